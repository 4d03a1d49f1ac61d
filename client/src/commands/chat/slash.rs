//! The commands of a chat, which begin with a slash.

use std::cmp::Reverse;
use std::path::PathBuf;

use ollm_protocol::Seq;
use ollm_protocol::methods::chat::Think;
use strsim::levenshtein;

use super::session::parse_think;

/// The most edits between an unknown command and a suggestion.
const MAX_EDITS: usize = 3;
/// Messages that `/history` shows without a number.
const HISTORY_MESSAGES: u32 = 10;

/// Every command with its arguments, and what it does.
pub(super) const COMMANDS: &[(&str, &str)] = &[
    ("/help", "list the commands"),
    ("/model [NAME]", "show the models, or use another one from now on"),
    ("/think [LEVEL]", "show or set how the model thinks: on, off, low, medium, high or max"),
    ("/retry", "ask for an answer to the last message again"),
    ("/history [N]", "show the last messages of this session"),
    ("/goal [TEXT]", "show the goals of this session, or set a new one"),
    ("/pin [N]", "keep the last message, or record N, in every later context"),
    ("/unpin [N]", "unpin the last message, or record N"),
    ("/context", "show how full the model's window is, part by part"),
    ("/compact [--apply]", "show what a compaction would do; with --apply, do it"),
    ("/debug context", "show everything that the model is sent now, and what is left out"),
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
    Retry,
    History(u32),
    Context,
    Goal(Option<String>),
    Pin(Option<Seq>),
    Unpin(Option<Seq>),
    Compact {
        apply: bool,
    },
    DebugContext,
    Sessions,
    Info,
    Export(Option<PathBuf>),
    Archive,
    New,
    Exit,
    Unknown {
        text: String,
        /// A similar command without its arguments.
        suggestion: Option<String>,
    },
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
        let words: Vec<&str> = text.split_whitespace().collect();
        // Returns the text after the first words, with its own white space.
        let rest = |n_words: usize| {
            let skipped = words[..n_words]
                .iter()
                .fold(text, |rest, word| rest.trim_start().strip_prefix(word).unwrap_or_default());
            Some(skipped.trim()).filter(|rest| !rest.is_empty()).map(str::to_owned)
        };
        match words.as_slice() {
            ["/help" | "/?"] => Self::Help,
            ["/model"] | ["/model", _] => Self::Model(rest(1)),
            ["/think"] => Self::Think(None),
            ["/think", word] => match parse_think(word) {
                Some(think) => Self::Think(Some(think)),
                None => Self::unknown(text),
            },
            ["/retry"] => Self::Retry,
            ["/history"] => Self::History(HISTORY_MESSAGES),
            ["/history", number] => match number.parse() {
                Ok(number @ 1..=1000) => Self::History(number),
                _ => Self::unknown(text),
            },
            ["/context"] => Self::Context,
            ["/goal", ..] => Self::Goal(rest(1)),
            ["/pin"] => Self::Pin(None),
            ["/unpin"] => Self::Unpin(None),
            ["/pin" | "/unpin", number] => match number.trim_start_matches('#').parse() {
                Ok(number) if words[0] == "/pin" => Self::Pin(Some(Seq(number))),
                Ok(number) => Self::Unpin(Some(Seq(number))),
                Err(_) => Self::unknown(text),
            },
            ["/compact"] => Self::Compact { apply: false },
            ["/compact", "--apply"] => Self::Compact { apply: true },
            ["/debug", "context"] => Self::DebugContext,
            ["/sessions"] => Self::Sessions,
            ["/session", "info"] => Self::Info,
            ["/session", "export", ..] => Self::Export(rest(2).map(PathBuf::from)),
            ["/session", "archive"] => Self::Archive,
            ["/new"] => Self::New,
            ["/exit" | "/quit"] => Self::Exit,
            _ => Self::unknown(text),
        }
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
            .filter(|(edits, ..)| *edits <= MAX_EDITS)
            .min();
        let suggestion = suggestion.map(|(.., name)| name.to_owned());
        Self::Unknown { text: text.to_owned(), suggestion }
    }
}

/// Returns a command without its arguments.
pub(super) fn command_name(usage: &str) -> &str {
    usage.split(" [").next().unwrap_or(usage)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_is_a_message_or_a_command() {
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
        check("/history 3", ChatInput::History(3));
        check("/session export a file.md", ChatInput::Export(Some("a file.md".into())));
        check("/session  export", ChatInput::Export(None));
        check("/goal", ChatInput::Goal(None));
        check("/goal  Ship it, then rest", ChatInput::Goal(Some("Ship it, then rest".into())));
        check("/pin", ChatInput::Pin(None));
        check("/pin 12", ChatInput::Pin(Some(Seq(12))));
        check("/unpin #12", ChatInput::Unpin(Some(Seq(12))));
        check("/debug context", ChatInput::DebugContext);
        check("/compact", ChatInput::Compact { apply: false });
        check("/compact  --apply", ChatInput::Compact { apply: true });
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
        check("/frobnicate", None);
    }

    #[test]
    fn every_listed_command_parses() {
        for (usage, _) in COMMANDS {
            let input = ChatInput::parse(command_name(usage));
            assert!(!matches!(input, ChatInput::Unknown { .. }), "{usage}");
        }
    }
}
