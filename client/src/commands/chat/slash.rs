//! The commands of a chat, which begin with a slash: most are commands of `ollmctl`, with the same flags and output.
//!
//! Arguments are split as a shell does it, except for a text, which is written without quotes. That needs to know where
//! in the line each word begins, so no crate does it.

use std::cmp::Reverse;

use clap::{Command, Parser};
use ollm_protocol::SessionId;
use ollm_protocol::methods::chat::Think;
use strsim::levenshtein;

use super::session::think_parser;
use crate::commands::shared::SharedCommand;

/// The maximum number of edits between an unknown command and a suggestion.
const MAX_EDITS: usize = 3;
/// Stands for the id of the chat's session in the line of a command.
const SESSION: &str = "{}";
/// Flags with which a command concerns something else than the chat's session.
const OTHER_SCOPES: [&str; 3] = ["--project", "--global", "--session"];

/// Every command by its group, in the order of `/help`: its group, its usual form, the command of `ollmctl` (empty for an
/// [`OwnCommand`]), and its help. Of two with the same name, the first takes no arguments.
const ROWS: &[(&str, &str, &str, &str)] = &[
    ("Chat", "/help [COMMAND]", "", "list the commands, or explain one; `all` explains each"),
    ("Chat", "/new", "", "start a new session"),
    ("Chat", "/exit", "", "leave, like Ctrl-D"),
    ("Answers", "/retry", "", "ask for an answer to the last message again"),
    ("Answers", "/edit [TEXT]", "", "write a message in $VISUAL or $EDITOR, as Ctrl-X Ctrl-E does"),
    ("Answers", "/model [NAME]", "", "show the models, or use another one, by name or number"),
    (
        "Answers",
        "/think [LEVEL]",
        "",
        "show or set how the model thinks: on, off, low, medium, high or max",
    ),
    (
        "Answers",
        "/set [--keep] [NAME=VALUE]",
        "",
        "show the options of answers, or set one, as temperature=0.2; with --keep for the session",
    ),
    ("Answers", "/system [TEXT]", "", "set the instructions to the model for the whole session"),
    (
        "Back",
        "/undo [N] [--files]",
        "undo --session {}",
        "undo the last turn or change, or N of them; with --files, put files back too",
    ),
    ("Back", "/redo [N] [--files]", "redo --session {}", "redo what was undone"),
    ("Back", "/tree", "sessions tree {}", "show all branches of this session"),
    (
        "Back",
        "/branch N",
        "sessions branch --session {}",
        "continue after record N, or from the beginning with `start`; /tree shows the numbers",
    ),
    (
        "Back",
        "/fork [--at N]",
        "sessions fork {}",
        "continue in a new session that begins as this one does, up to record N",
    ),
    (
        "Back",
        "/snapshot create [TEXT]",
        "snapshot create --session {}",
        "take a snapshot of this session",
    ),
    ("Back", "/snapshot list", "snapshot list {}", "list the snapshots of this session"),
    (
        "Back",
        "/snapshot restore [ID] [--files]",
        "snapshot restore --session {}",
        "return to the newest snapshot, or to another one, after asking; with --files, put files back too",
    ),
    ("Memory", "/goal", "goal --session {}", "show the goals of this session"),
    ("Memory", "/goal TEXT", "goal create --session {}", "set a new goal"),
    (
        "Memory",
        "/remember",
        "context entries --session {}",
        "show the texts that every context contains",
    ),
    (
        "Memory",
        "/remember [--project | --global] TEXT",
        "remember --session {}",
        "keep a text in every context",
    ),
    (
        "Memory",
        "/forget KEY",
        "context entries remove --session {}",
        "remove a text that was remembered; /remember shows the keys",
    ),
    (
        "Memory",
        "/recall QUESTION",
        "recall",
        "find what was said about a question, in all sessions",
    ),
    (
        "Memory",
        "/pin [N]",
        "context pin --session {}",
        "keep the last message, or record N, in every later context",
    ),
    ("Memory", "/unpin [N]", "context unpin --session {}", "unpin the last message, or record N"),
    (
        "Window",
        "/context",
        "context status {}",
        "show how full the model's window is, part by part",
    ),
    (
        "Window",
        "/compact [--dry-run]",
        "context compact {}",
        "shorten the context; with --dry-run, only show the effect",
    ),
    (
        "Window",
        "/debug context",
        "context inspect {} --messages",
        "show the messages that the model is sent now, and the parts left out",
    ),
    ("Session", "/history [N]", "", "show the last messages of this session"),
    ("Session", "/session info", "", "show the title, the id and the size of this session"),
    (
        "Session",
        "/session export [--output FILE]",
        "sessions export {}",
        "write this session as Markdown, JSON or HTML, by FILE's extension",
    ),
    (
        "Session",
        "/session archive",
        "sessions archive {}",
        "archive this session and start a new one",
    ),
    ("Session", "/sessions", "sessions list --limit 10", "list the latest sessions"),
];

/// Other beginnings of lines, and the commands that they mean.
const ALIASES: [(&str, &str); 5] = [
    ("/?", "/help"),
    ("/quit", "/exit"),
    ("/context snapshots", "/snapshot list"),
    ("/context snapshot", "/snapshot create"),
    ("/context restore", "/snapshot restore"),
];

/// A typed line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ChatInput {
    Empty,
    Message(String),
    Command(SlashCommand, Vec<String>),
    Unknown {
        text: String,
        /// The commands that continue the text, which is the beginning of a name.
        continued: Vec<&'static str>,
        /// A similar command without its arguments.
        suggestion: Option<&'static str>,
    },
}

/// A command of a chat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlashCommand {
    pub(super) group: &'static str,
    /// The name and the usual arguments.
    pub(super) usage: &'static str,
    pub(super) help: &'static str,
    line: &'static str,
}

/// The commands that only a chat has.
#[derive(Debug, PartialEq, Eq, Parser)]
#[command(no_binary_name = true, disable_help_subcommand = true)]
pub(super) enum OwnCommand {
    Help {
        words: Vec<String>,
    },
    Edit {
        text: Option<String>,
    },
    Set {
        /// Let the session keep the options, for all its clients.
        #[arg(long)]
        keep: bool,
        #[arg(value_name = "NAME=VALUE")]
        options: Vec<String>,
    },
    System {
        text: Option<String>,
    },
    Model {
        name: Option<String>,
    },
    Think {
        #[arg(value_parser = think_parser())]
        level: Option<Think>,
    },
    Retry,
    History {
        #[arg(value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
        number: u32,
    },
    Info,
    New,
    Exit,
}

/// A command with its parsed arguments.
#[derive(Debug)]
pub(super) enum ParsedCommand {
    Own(OwnCommand),
    Shared(SharedCommand),
}

impl ChatInput {
    /// Parses a line. Two slashes begin a message with one slash.
    pub(super) fn parse(line: &str) -> Self {
        let text = line.trim();
        match text {
            "" => return Self::Empty,
            _ if text.starts_with("//") => return Self::Message(text[1..].to_owned()),
            _ if !text.starts_with('/') => return Self::Message(line.trim_end().to_owned()),
            _ => {}
        }
        for (alias, command) in ALIASES {
            if let Some(rest) = arguments_after(alias, text) {
                return Self::parse(&format!("{command} {rest}"));
            }
        }
        let arguments = |command: &SlashCommand| arguments_after(command.name(), text);
        let found = SlashCommand::all().filter_map(|command| Some((command, arguments(&command)?)));
        // The longest name is meant, and of two commands with one name the second if there are arguments.
        let found = found.max_by_key(|(command, typed)| {
            let takes_arguments = command.name() != command.usage;
            (command.name().len(), takes_arguments != typed.is_empty())
        });
        match found {
            Some((command, typed)) => Self::Command(command, command.split(typed)),
            None => {
                let begins = |name: &&str| arguments_after(text, name).is_some();
                let names = SlashCommand::all().map(|command| command.name());
                let continued = names.filter(begins).collect();
                Self::Unknown { text: text.to_owned(), continued, suggestion: suggestion(text) }
            }
        }
    }
}

impl SlashCommand {
    /// Returns every command.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        ROWS.iter().map(|&(group, usage, line, help)| Self { group, usage, help, line })
    }

    /// Returns the command without its arguments.
    pub(super) fn name(&self) -> &'static str {
        let is_argument = |word: &str| word.starts_with('[') || is_placeholder(word);
        let argument = self.usage.split(' ').find(|word| is_argument(word));
        let end = argument.and_then(|word| self.usage.find(word)).unwrap_or(self.usage.len());
        self.usage[..end].trim_end()
    }

    /// Returns whether the command needs the chat's session.
    pub(super) fn needs_session(&self, words: &[String]) -> bool {
        self.line.contains(SESSION)
            && !words.iter().any(|word| OTHER_SCOPES.contains(&word.as_str()))
    }

    /// Returns whether the command records a text, so that it starts the session of a draft.
    pub(super) fn starts_session(&self) -> bool {
        self.usage.ends_with(" TEXT")
    }

    /// Parses the arguments; `session` is the chat's session if it is needed.
    pub(super) fn parse(
        &self,
        words: Vec<String>,
        session: Option<SessionId>,
    ) -> Result<ParsedCommand, clap::Error> {
        if self.line.is_empty() {
            let name = self.name().trim_start_matches("/session ").trim_start_matches('/');
            let own = OwnCommand::try_parse_from([name.to_owned()].into_iter().chain(words))?;
            return Ok(ParsedCommand::Own(own));
        }
        let line = match session {
            Some(id) => self.line.replace(SESSION, &id.to_string()),
            None => self.line.replace("--session {}", ""),
        };
        let line = line.split_whitespace().map(str::to_owned);
        SharedCommand::parse(line.chain(words)).map(ParsedCommand::Shared)
    }

    /// Splits arguments as a shell does; TEXT and QUESTION are the rest of the line as it was typed.
    fn split(&self, typed: &str) -> Vec<String> {
        let usage = self.usage.trim_end_matches(']');
        let takes_text = usage.ends_with("TEXT") || usage.ends_with("QUESTION");
        let definition = takes_text.then(|| self.definition());
        let mut words: Vec<String> = Vec::new();
        let mut rest = typed;
        while !rest.is_empty() {
            let is_value = |definition: &Command| {
                let flag = words.last().and_then(|word| word.strip_prefix("--"));
                let mut flags = definition.get_arguments().filter(|arg| arg.get_long().is_some());
                let found = flags.find(|arg| arg.get_long() == flag);
                found.is_some_and(|arg| arg.get_action().takes_values())
            };
            if !rest.starts_with("--") && definition.as_ref().is_some_and(|own| !is_value(own)) {
                words.extend(["--".to_owned(), rest.to_owned()]);
                break;
            }
            let (word, after) = first_word(rest);
            words.push(word);
            rest = after;
        }
        words
    }

    /// Returns the definition of the command of `ollmctl`.
    fn definition(&self) -> Command {
        let words = self.line.split(' ').take_while(|word| !word.starts_with('-'));
        let mut root = SharedCommand::definitions();
        root.build();
        words.fold(root, |command, word| command.find_subcommand(word).cloned().unwrap_or(command))
    }
}

/// Returns the rest of a line that begins with a command; `None` if it begins with something else.
fn arguments_after<'a>(name: &str, line: &'a str) -> Option<&'a str> {
    let rest = name.split(' ').try_fold(line, |rest, word| {
        let after = rest.trim_start().strip_prefix(word)?;
        (after.is_empty() || after.starts_with(char::is_whitespace)).then_some(after)
    });
    rest.map(str::trim_start)
}

/// Returns the first word of a line as a shell reads it, and the rest. A quote that nothing closes is a letter.
fn first_word(line: &str) -> (String, &str) {
    let (mut word, mut open) = (String::new(), None);
    for (at, char) in line.char_indices() {
        match char {
            _ if open == Some(char) => open = None,
            '\'' | '"' if open.is_none() && line[at + 1..].contains(char) => open = Some(char),
            _ if open.is_none() && char.is_whitespace() => return (word, line[at..].trim_start()),
            _ => word.push(char),
        }
    }
    (word, "")
}

/// Returns the command that is most similar to a text.
fn suggestion(text: &str) -> Option<&'static str> {
    let lower = text.to_lowercase();
    let typed: Vec<&str> = lower.split_whitespace().collect();
    let similar = SlashCommand::all().enumerate().map(|(at, command)| {
        let name = command.name();
        let n_words = name.split(' ').count();
        let beginning = typed[..n_words.min(typed.len())].join(" ");
        let takes_arguments = name != command.usage;
        let extra = if takes_arguments { 0 } else { typed.len().saturating_sub(n_words) };
        let edits = extra * MAX_EDITS
            + if name.starts_with(&beginning) { 0 } else { levenshtein(&beginning, name) };
        // Of two equally similar commands the longer one explains more of the text.
        (edits, Reverse(n_words), at, name)
    });
    similar
        .filter(|(edits, n_words, ..)| *edits <= max_edits(&typed, n_words.0))
        .min()
        .map(|(.., name)| name)
}

/// Returns the most edits between the first typed words and a command that is still similar: half of the letters, so
/// that a short word does not resemble every other short word.
fn max_edits(typed: &[&str], n_words: usize) -> usize {
    let letters =
        typed.iter().take(n_words).map(|word| word.trim_start_matches('/').chars().count());
    (letters.sum::<usize>() / 2).clamp(1, MAX_EDITS)
}

/// Returns whether a word of a usage stands for an argument, as `N` does.
fn is_placeholder(word: &str) -> bool {
    !word.is_empty() && word.chars().all(|char| char.is_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::SESSION_ID;

    /// Returns the chosen usage and the words, separated by bars.
    fn parsed(line: &str) -> Option<(&'static str, String)> {
        match ChatInput::parse(line) {
            ChatInput::Command(command, words) => Some((command.usage, words.join("|"))),
            _ => None,
        }
    }

    #[test]
    fn line_is_a_message_or_a_command() {
        let check =
            |line: &str, expect: ChatInput| assert_eq!(ChatInput::parse(line), expect, "{line:?}");
        check("  ", ChatInput::Empty);
        check("hello ", ChatInput::Message("hello".into()));
        check("  indented\nlines\n", ChatInput::Message("  indented\nlines".into()));
        check("//etc is a path", ChatInput::Message("/etc is a path".into()));
        let check = |line: &str, usage: &'static str, words: &str| {
            assert_eq!(parsed(line), Some((usage, words.to_owned())), "{line:?}");
        };
        check("/?", "/help [COMMAND]", "");
        check("/quit", "/exit", "");
        check("/model qwen3:8b", "/model [NAME]", "qwen3:8b");
        check(
            "/session  export --output 'a file.md'",
            "/session export [--output FILE]",
            "--output|a file.md",
        );
        check("/goal", "/goal", "");
        check("/goal  Ship it,\n  then rest", "/goal TEXT", "--|Ship it,\n  then rest");
        let step = "--step|Write the notes|--|It's -- \"done\"";
        check("/goal --step 'Write the notes' It's -- \"done\"", "/goal TEXT", step);
        check("/remember", "/remember", "");
        let remember = "/remember [--project | --global] TEXT";
        check("/remember -5 is cold", remember, "--|-5 is cold");
        check("/remember --global  Be brief", remember, "--global|--|Be brief");
        check("/recall --limit 3 which port?", "/recall QUESTION", "--limit|3|--|which port?");
        check("/context", "/context", "");
        let snapshot = "/snapshot create [TEXT]";
        check("/snapshot create before it", snapshot, "--|before it");
        check("/context snapshot before it", snapshot, "--|before it");
        check("/context snapshots", "/snapshot list", "");
        check("/system Be  brief", "/system [TEXT]", "--|Be  brief");
        check("/set top_p=1 --keep", "/set [--keep] [NAME=VALUE]", "top_p=1|--keep");
        check("/undo 2  --files", "/undo [N] [--files]", "2|--files");
    }

    /// Parses a line for the session of the tests, and returns the debug form of the result.
    fn run(line: &str) -> Result<String, String> {
        let ChatInput::Command(command, words) = ChatInput::parse(line) else { panic!("{line}") };
        let needs = command.needs_session(&words);
        let session = needs.then(|| SESSION_ID.parse().unwrap());
        let parsed = command.parse(words, session);
        parsed.map(|parsed| format!("{parsed:?}")).map_err(|error| error.to_string())
    }

    #[test]
    fn arguments_are_those_of_the_commands() {
        let check = |line: &str, expect: &str| {
            let text = run(line).expect(line);
            assert!(text.contains(expect), "{line}: {text}");
        };
        check("/think off", "Think { level: Some(Flag(false)) }");
        check("/history", "History { number: 10 }");
        check("/undo 2 --files", "steps: 2");
        check("/undo", SESSION_ID);
        check("/branch #7 --summarize", "to: BranchTarget(Some(Seq(7))), summarize: true");
        check("/branch start", "to: BranchTarget(None)");
        check("/goal --priority high Ship it", "text: \"Ship it\", priority: High");
        check("/remember --global Be brief", "session: None, project: false, global: true");
        check("/pin", "seq: None");
        check("/unpin #12", "seq: Some(Seq(12))");
        check("/set --keep seed=7", "keep: true, options: [\"seed=7\"]");
        check("/forget style", "Remove { key: \"style\" }");
        check("/forget --global style", "global: true");
        check("/context restore abcd --files", "id: \"abcd\"");
        check("/context restore", "id: \"last\"");
        check("/sessions --limit 3", "limit: 3");
        let refused = |line: &str, expect: &str| {
            let text = run(line).expect_err(line);
            assert!(text.contains(expect), "{line}: {text}");
        };
        refused("/branch", "<N|start>");
        refused("/think hard", "[possible values: on, off, low, medium, high, max]");
        refused("/history many", "invalid value");
        refused("/undo --json", "unexpected argument");
        refused("/retry now", "unexpected argument");
    }

    #[test]
    fn unknown_command_gets_a_suggestion() {
        let check = |line: &str, expect: Option<&str>| {
            let ChatInput::Unknown { suggestion, .. } = ChatInput::parse(line) else {
                panic!("{line}")
            };
            assert_eq!(suggestion, expect, "{line}");
        };
        let ChatInput::Unknown { continued, .. } = ChatInput::parse("/session") else { panic!() };
        assert_eq!(continued, ["/session info", "/session export", "/session archive"]);
        check("/hlep", Some("/help"));
        check("/session inof", Some("/session info"));
        check("/sesion inf", Some("/session info"));
        check("/session", Some("/session info"));
        check("/debug", Some("/debug context"));
        check("/exti", Some("/exit"));
        check("/h", Some("/help"));
        check("/frobnicate", None);
        check("/foo", None);
        check("/bar", None);
        check("/pic", Some("/pin"));
    }

    #[test]
    fn every_listed_command_parses() {
        for command in SlashCommand::all() {
            let typed = match command.usage.rsplit_once(' ') {
                Some((_, argument)) if is_placeholder(argument) => {
                    format!("{} 1", command.name())
                }
                _ => command.name().to_owned(),
            };
            run(&typed).unwrap_or_else(|error| panic!("{typed}: {error}"));
        }
    }
}
