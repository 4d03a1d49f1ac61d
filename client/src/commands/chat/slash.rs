//! The commands of a chat, which begin with a slash.

use std::cmp::Reverse;
use std::path::PathBuf;

use ollm_protocol::Seq;
use ollm_protocol::methods::chat::Think;
use strsim::levenshtein;

use super::session::parse_think;
use crate::commands::remember::RememberScope;

/// The maximum number of edits between an unknown command and a suggestion.
const MAX_EDITS: usize = 3;
/// Messages that `/history` shows without a number.
const HISTORY_MESSAGES: u32 = 10;

/// Every command with its arguments and its help.
pub(super) const COMMANDS: &[(&str, &str)] = &[
    ("/help", "list the commands"),
    ("/model [NAME]", "show the models, or use another one from now on"),
    ("/think [LEVEL]", "show or set how the model thinks: on, off, low, medium, high or max"),
    ("/retry", "ask for an answer to the last message again"),
    ("/history [N]", "show the last messages of this session"),
    (
        "/undo [N] [--files]",
        "undo the last turn or change, or N of them; with --files, put files back too",
    ),
    ("/redo [N] [--files]", "redo what was undone"),
    ("/tree", "show all branches of this session"),
    (
        "/branch N",
        "continue after record N, or from the beginning with `start`; /tree shows the numbers",
    ),
    ("/fork [N]", "continue in a new session that begins as this one does, up to record N"),
    ("/goal [TEXT]", "show the goals of this session, or set a new one"),
    ("/remember [--project | --global] [TEXT]", "keep a text in every context, or show such texts"),
    ("/recall QUESTION", "find what was said about a question, in all sessions"),
    ("/pin [N]", "keep the last message, or record N, in every later context"),
    ("/unpin [N]", "unpin the last message, or record N"),
    ("/context", "show how full the model's window is, part by part"),
    ("/context snapshot [TEXT]", "take a snapshot of this session"),
    ("/context snapshots", "list the snapshots of this session"),
    (
        "/context restore [ID] [--files]",
        "return to the newest snapshot, or to another one, after asking; with --files, put files back too",
    ),
    ("/compact [--apply]", "show the effect of a compaction; with --apply, compact"),
    ("/debug context", "show the messages that the model is sent now, and the parts left out"),
    ("/sessions", "list the latest sessions"),
    ("/session info", "show the title, the id and the size of this session"),
    ("/session export [FILE]", "write this session as Markdown, JSON or HTML, by FILE's extension"),
    ("/session archive", "archive this session and start a new one"),
    ("/new", "start a new session"),
    ("/exit", "leave, like Ctrl-D"),
];

/// A typed line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ChatInput {
    Empty,
    Message(String),
    Help,
    Model(Option<String>),
    Think(Option<Think>),
    Goal(Option<String>),
    /// A text to remember; without one, the entries in force are shown.
    Remember(RememberScope, Option<String>),
    /// A question about what was said.
    Recall(String),
    Sessions,
    New,
    Exit,
    /// A command that needs a session with messages.
    OnSession(SessionInput),
    Unknown {
        text: String,
        /// A similar command without its arguments.
        suggestion: Option<String>,
    },
}

/// A command that needs a session with messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SessionInput {
    Retry,
    /// Operations to undo, with or without their files.
    Undo(u32, bool),
    Redo(u32, bool),
    Tree,
    /// The record to continue after; `None` for the beginning.
    Branch(Option<Seq>),
    Fork(Option<Seq>),
    History(u32),
    Context,
    /// Takes a snapshot, with a line that says what it is for.
    Snapshot(Option<String>),
    Snapshots,
    /// The snapshot to return to, `None` for the newest, with or without files.
    Restore(Option<String>, bool),
    Pin(Option<Seq>),
    Unpin(Option<Seq>),
    Compact {
        apply: bool,
    },
    DebugContext,
    Info,
    Export(Option<PathBuf>),
    Archive,
}

impl ChatInput {
    /// Parses a line. Two slashes begin a message with one slash.
    pub(super) fn parse(line: &str) -> Self {
        let text = line.trim();
        if text.is_empty() {
            return Self::Empty;
        }
        if text.starts_with("//") {
            return Self::Message(text[1..].to_owned());
        }
        if !text.starts_with('/') {
            return Self::Message(line.trim_end().to_owned());
        }
        Self::parse_command(text).unwrap_or_else(|| Self::unknown(text))
    }

    /// Parses a command; `None` for an unknown one or wrong arguments.
    fn parse_command(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split_whitespace().collect();
        // Returns the text after the first words, with its own white space.
        let rest = |n_words: usize| {
            let skipped = words[..n_words]
                .iter()
                .fold(text, |rest, word| rest.trim_start().strip_prefix(word).unwrap_or_default());
            Some(skipped.trim()).filter(|rest| !rest.is_empty()).map(str::to_owned)
        };
        let record = |number: &str| number.trim_start_matches('#').parse().ok().map(Seq);
        let steps = |number: &str| number.parse().ok().filter(|number| (1..=1000).contains(number));
        let on_session = match words.as_slice() {
            ["/help" | "/?"] => return Some(Self::Help),
            ["/model"] | ["/model", _] => return Some(Self::Model(rest(1))),
            ["/think"] => return Some(Self::Think(None)),
            ["/think", word] => return Some(Self::Think(Some(parse_think(word)?))),
            ["/goal", ..] => return Some(Self::Goal(rest(1))),
            ["/remember", flag @ ("--project" | "--global"), ..] => {
                let is_global = *flag == "--global";
                let scope = if is_global { RememberScope::Global } else { RememberScope::Project };
                return Some(Self::Remember(scope, rest(2)));
            }
            ["/remember", ..] => return Some(Self::Remember(RememberScope::Session, rest(1))),
            ["/recall", _, ..] => return rest(1).map(Self::Recall),
            ["/sessions"] => return Some(Self::Sessions),
            ["/new"] => return Some(Self::New),
            ["/exit" | "/quit"] => return Some(Self::Exit),
            ["/retry"] => SessionInput::Retry,
            ["/undo"] => SessionInput::Undo(1, false),
            ["/undo", "--files"] => SessionInput::Undo(1, true),
            ["/undo", number] => SessionInput::Undo(steps(number)?, false),
            ["/undo", number, "--files"] => SessionInput::Undo(steps(number)?, true),
            ["/redo"] => SessionInput::Redo(1, false),
            ["/redo", "--files"] => SessionInput::Redo(1, true),
            ["/redo", number] => SessionInput::Redo(steps(number)?, false),
            ["/redo", number, "--files"] => SessionInput::Redo(steps(number)?, true),
            ["/tree"] => SessionInput::Tree,
            ["/branch", "start"] => SessionInput::Branch(None),
            ["/branch", number] => SessionInput::Branch(Some(record(number)?)),
            ["/fork"] => SessionInput::Fork(None),
            ["/fork", number] => SessionInput::Fork(Some(record(number)?)),
            ["/history"] => SessionInput::History(HISTORY_MESSAGES),
            ["/history", number] => {
                let number = number.parse().ok();
                SessionInput::History(number.filter(|number| (1..=1000).contains(number))?)
            }
            ["/context"] => SessionInput::Context,
            ["/context", "snapshot", ..] => SessionInput::Snapshot(rest(2)),
            ["/context", "snapshots"] => SessionInput::Snapshots,
            ["/context", "restore"] => SessionInput::Restore(None, false),
            ["/context", "restore", "--files"] => SessionInput::Restore(None, true),
            ["/context", "restore", id] => SessionInput::Restore(Some((*id).to_owned()), false),
            ["/context", "restore", id, "--files"] => {
                SessionInput::Restore(Some((*id).to_owned()), true)
            }
            ["/pin"] => SessionInput::Pin(None),
            ["/pin", number] => SessionInput::Pin(Some(record(number)?)),
            ["/unpin"] => SessionInput::Unpin(None),
            ["/unpin", number] => SessionInput::Unpin(Some(record(number)?)),
            ["/compact"] => SessionInput::Compact { apply: false },
            ["/compact", "--apply"] => SessionInput::Compact { apply: true },
            ["/debug", "context"] => SessionInput::DebugContext,
            ["/session", "info"] => SessionInput::Info,
            ["/session", "export", ..] => SessionInput::Export(rest(2).map(PathBuf::from)),
            ["/session", "archive"] => SessionInput::Archive,
            _ => return None,
        };
        Some(Self::OnSession(on_session))
    }

    fn unknown(text: &str) -> Self {
        let lower = text.to_lowercase();
        let typed: Vec<&str> = lower.split_whitespace().collect();
        let suggestion = COMMANDS
            .iter()
            .enumerate()
            .map(|(at, (usage, _))| {
                let name = command_name(usage);
                let n_words = name.split_whitespace().count();
                let beginning = typed[..n_words.min(typed.len())].join(" ");
                let takes_arguments = name.len() < usage.len();
                let extra = if takes_arguments { 0 } else { typed.len().saturating_sub(n_words) };
                let edits = extra * MAX_EDITS
                    + if name.starts_with(&beginning) { 0 } else { levenshtein(&beginning, name) };
                // Of two equally similar commands the longer one explains more of the text.
                (edits, Reverse(n_words), at, name)
            })
            .filter(|(edits, n_words, ..)| *edits <= max_edits(&typed, n_words.0))
            .min();
        let suggestion = suggestion.map(|(.., name)| name.to_owned());
        Self::Unknown { text: text.to_owned(), suggestion }
    }
}

/// Returns the usage and the description of a command that was typed without the argument that it needs.
pub(super) fn without_argument(text: &str) -> Option<(&'static str, &'static str)> {
    let needs_one = |usage: &str| {
        let argument = usage.strip_prefix(text.trim()).and_then(|rest| rest.strip_prefix(' '));
        argument.is_some_and(is_placeholder)
    };
    COMMANDS.iter().find(|(usage, _)| needs_one(usage)).copied()
}

/// Returns the most edits between the first typed words and a command that is still similar: half of the letters, so
/// that a short word does not resemble every other short word.
fn max_edits(typed: &[&str], n_words: usize) -> usize {
    let letters =
        typed.iter().take(n_words).map(|word| word.trim_start_matches('/').chars().count());
    (letters.sum::<usize>() / 2).clamp(1, MAX_EDITS)
}

/// Returns a command without its arguments.
pub(super) fn command_name(usage: &str) -> &str {
    let is_argument = |word: &str| word.starts_with(['[', '-']) || is_placeholder(word);
    let argument = usage.split(' ').find(|word| is_argument(word));
    let end = argument.and_then(|word| usage.find(word)).unwrap_or(usage.len());
    usage[..end].trim_end()
}

/// Returns whether a word of a usage stands for an argument, as `N` does.
fn is_placeholder(word: &str) -> bool {
    !word.is_empty() && word.chars().all(|char| char.is_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_is_a_message_or_a_command() {
        let on_session = ChatInput::OnSession;
        let check =
            |line: &str, expect: ChatInput| assert_eq!(ChatInput::parse(line), expect, "{line:?}");
        check("  ", ChatInput::Empty);
        check("hello ", ChatInput::Message("hello".into()));
        check("  indented\nlines\n", ChatInput::Message("  indented\nlines".into()));
        check("//etc is a path", ChatInput::Message("/etc is a path".into()));
        check("/help", ChatInput::Help);
        check("/model", ChatInput::Model(None));
        check("/model qwen3:8b", ChatInput::Model(Some("qwen3:8b".into())));
        check("/think", ChatInput::Think(None));
        check("/think off", ChatInput::Think(Some(Think::Flag(false))));
        check("/history 3", on_session(SessionInput::History(3)));
        check(
            "/session export a file.md",
            on_session(SessionInput::Export(Some("a file.md".into()))),
        );
        check("/session  export", on_session(SessionInput::Export(None)));
        check("/goal", ChatInput::Goal(None));
        check("/goal  Ship it, then rest", ChatInput::Goal(Some("Ship it, then rest".into())));
        let remember = |scope, text: &str| ChatInput::Remember(scope, Some(text.to_owned()));
        check("/remember", ChatInput::Remember(RememberScope::Session, None));
        check("/remember  The port is 6100", remember(RememberScope::Session, "The port is 6100"));
        check("/remember --global Be brief", remember(RememberScope::Global, "Be brief"));
        check("/remember --project", ChatInput::Remember(RememberScope::Project, None));
        check("/recall which port?", ChatInput::Recall("which port?".to_owned()));
        check("/pin", on_session(SessionInput::Pin(None)));
        check("/pin 12", on_session(SessionInput::Pin(Some(Seq(12)))));
        check("/unpin #12", on_session(SessionInput::Unpin(Some(Seq(12)))));
        check("/undo", on_session(SessionInput::Undo(1, false)));
        check("/undo 2 --files", on_session(SessionInput::Undo(2, true)));
        check("/redo 3", on_session(SessionInput::Redo(3, false)));
        check("/branch #7", on_session(SessionInput::Branch(Some(Seq(7)))));
        assert!(matches!(ChatInput::parse("/branch"), ChatInput::Unknown { .. }));
        assert_eq!(without_argument("/branch").expect("needs one").0, "/branch N");
        assert_eq!(without_argument("/undo"), None);
        check("/branch start", on_session(SessionInput::Branch(None)));
        check("/fork", on_session(SessionInput::Fork(None)));
        check("/debug context", on_session(SessionInput::DebugContext));
        let before = Some("before it".to_owned());
        check("/context snapshot before it", on_session(SessionInput::Snapshot(before)));
        check("/context restore", on_session(SessionInput::Restore(None, false)));
        let abcd = Some("abcd".to_owned());
        check("/context restore abcd --files", on_session(SessionInput::Restore(abcd, true)));
        check("/compact", on_session(SessionInput::Compact { apply: false }));
        check("/compact  --apply", on_session(SessionInput::Compact { apply: true }));
        check("/quit", ChatInput::Exit);
    }

    #[test]
    fn unknown_command_gets_a_suggestion() {
        let check = |line: &str, expect: Option<&str>| {
            let ChatInput::Unknown { suggestion, .. } = ChatInput::parse(line) else {
                panic!("{line}")
            };
            assert_eq!(suggestion.as_deref(), expect, "{line}");
        };
        check("/hlep", Some("/help"));
        check("/session inof", Some("/session info"));
        check("/sesion inf", Some("/session info"));
        check("/session", Some("/session info"));
        check("/debug", Some("/debug context"));
        check("/think hard", Some("/think"));
        check("/history many", Some("/history"));
        check("/exti", Some("/exit"));
        check("/h", Some("/help"));
        check("/frobnicate", None);
        check("/foo", None);
        check("/bar", None);
        check("/pic", Some("/pin"));
    }

    #[test]
    fn every_listed_command_parses() {
        for (usage, _) in COMMANDS {
            let name = command_name(usage);
            let is_known = !matches!(ChatInput::parse(name), ChatInput::Unknown { .. });
            assert!(is_known != without_argument(name).is_some(), "{usage}");
        }
    }
}
