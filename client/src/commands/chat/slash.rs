//! Lines that begin with a slash: what they mean, and which there are.

use std::cmp::Reverse;
use std::path::PathBuf;

use ollm_protocol::methods::chat::Think;

use crate::cli::{distance, think};

/// Letters that may be wrong in a command that is offered instead.
const MAX_WRONG: usize = 3;
/// Messages of `/history` unless a number is given.
const SHOWN: u32 = 10;

/// Every command, with what it does.
pub(super) const COMMANDS: &[(&str, &str)] = &[
    ("/help", "what can be typed here"),
    ("/model [NAME]", "which model answers; with a name, that one from now on"),
    ("/think [HOW]", "how the model thinks; on, off, low, medium, high or max, from now on"),
    ("/retry", "ask again for an answer to what was said last"),
    ("/history [N]", "the last messages of this session"),
    ("/goal [TEXT]", "what this session works towards; with a text, that from now on"),
    ("/pin [N]", "keep the last message in every later context, or the one numbered N"),
    ("/unpin [N]", "release it"),
    ("/context", "how full the model's window is, part by part"),
    ("/compact [--apply]", "what making the context smaller would do; with --apply, does it"),
    ("/debug context", "everything that the model is sent now, and what it is not, and why"),
    ("/sessions", "the recent sessions"),
    ("/session info", "which session this is"),
    ("/session export [FILE]", "this session as Markdown, JSON or HTML by the ending of the file"),
    ("/session archive", "put this session away and begin a new one"),
    ("/new", "begin a new session"),
    ("/exit", "leave; so does Ctrl-D"),
];

/// A line that was typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Typed {
    /// Nothing.
    Nothing,
    /// Something for the model.
    Message(String),
    /// `/help`
    Help,
    /// `/model [NAME]`
    Model(Option<String>),
    /// `/think [HOW]`
    Think(Option<Think>),
    /// `/retry`
    Retry,
    /// `/history [N]`
    History(u32),
    /// `/context`
    Context,
    /// `/goal [TEXT]`
    Goal(Option<String>),
    /// `/pin [N]`
    Pin(Option<u64>),
    /// `/unpin [N]`
    Unpin(Option<u64>),
    /// `/compact [--apply]`
    Compact {
        /// Not only what it would do.
        apply: bool,
    },
    /// `/debug context`
    DebugContext,
    /// `/sessions`
    Sessions,
    /// `/session info`
    Info,
    /// `/session export [FILE]`
    Export(Option<PathBuf>),
    /// `/session archive`
    Archive,
    /// `/new`
    New,
    /// `/exit`
    Exit,
    /// A command that is none, and the one that may be meant.
    Unknown {
        /// What was typed.
        said: String,
        /// A whole command, without its arguments.
        near: Option<String>,
    },
}

impl Typed {
    /// Reads a line. Two slashes begin a message that begins with one.
    pub(super) fn read(line: &str) -> Self {
        let text = line.trim();
        if text.is_empty() {
            return Self::Nothing;
        }
        if text.starts_with("//") {
            return Self::Message(text[1..].to_owned());
        }
        if !text.starts_with('/') {
            return Self::Message(line.trim_end().to_owned());
        }
        let words: Vec<&str> = text.split_whitespace().collect();
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
            ["/think", how] => match think(how) {
                Some(how) => Self::Think(Some(how)),
                None => Self::unknown(text),
            },
            ["/retry"] => Self::Retry,
            ["/history"] => Self::History(SHOWN),
            ["/history", number] => match number.parse() {
                Ok(number @ 1..=1000) => Self::History(number),
                _ => Self::unknown(text),
            },
            ["/context"] => Self::Context,
            ["/goal", ..] => Self::Goal(rest(1)),
            ["/pin"] => Self::Pin(None),
            ["/unpin"] => Self::Unpin(None),
            ["/pin" | "/unpin", number] => match number.trim_start_matches('#').parse() {
                Ok(number) if words[0] == "/pin" => Self::Pin(Some(number)),
                Ok(number) => Self::Unpin(Some(number)),
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
        let near = COMMANDS
            .iter()
            .enumerate()
            .map(|(at, (usage, _))| {
                let name = name(usage);
                let words = name.split_whitespace().count();
                let typed: Vec<&str> = lower.split_whitespace().collect();
                let said = typed[..words.min(typed.len())].join(" ");
                let takes_more = name.len() < usage.len();
                let more = if takes_more { 0 } else { typed.len().saturating_sub(words) };
                let wrong = more * MAX_WRONG
                    + if name.starts_with(&said) { 0 } else { distance(&said, name) };
                // Of two that are as near the longer explains more of what was typed.
                (wrong, Reverse(words), at, name)
            })
            .filter(|(wrong, ..)| *wrong <= MAX_WRONG)
            .min();
        Self::Unknown { said: text.to_owned(), near: near.map(|(.., name)| name.to_owned()) }
    }
}

/// A command without its arguments.
pub(super) fn name(usage: &str) -> &str {
    usage.split(" [").next().unwrap_or(usage)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_message_or_a_command() {
        let check = |line: &str, expect: Typed| assert_eq!(Typed::read(line), expect, "{line:?}");
        check("  ", Typed::Nothing);
        check("hello ", Typed::Message("hello".into()));
        check("  indented\nlines\n", Typed::Message("  indented\nlines".into()));
        check("//etc is a path", Typed::Message("/etc is a path".into()));
        check("/help", Typed::Help);
        check("/model", Typed::Model(None));
        check("/model qwen3:8b", Typed::Model(Some("qwen3:8b".into())));
        check("/think", Typed::Think(None));
        check("/think off", Typed::Think(Some(Think::Flag(false))));
        check("/history 3", Typed::History(3));
        check("/session export a file.md", Typed::Export(Some("a file.md".into())));
        check("/session  export", Typed::Export(None));
        check("/goal", Typed::Goal(None));
        check("/goal  Ship it, then rest", Typed::Goal(Some("Ship it, then rest".into())));
        check("/pin", Typed::Pin(None));
        check("/pin 12", Typed::Pin(Some(12)));
        check("/unpin #12", Typed::Unpin(Some(12)));
        check("/debug context", Typed::DebugContext);
        check("/compact", Typed::Compact { apply: false });
        check("/compact  --apply", Typed::Compact { apply: true });
        check("/quit", Typed::Exit);
    }

    #[test]
    fn a_command_that_is_none_names_the_nearest() {
        let check = |line: &str, expect: Option<&str>| {
            let Typed::Unknown { near, .. } = Typed::read(line) else { panic!("{line}") };
            assert_eq!(near.as_deref(), expect, "{line}");
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
    fn every_command_in_the_help_is_one() {
        for (usage, _) in COMMANDS {
            assert!(!matches!(Typed::read(name(usage)), Typed::Unknown { .. }), "{usage}");
        }
    }
}
