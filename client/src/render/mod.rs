//! Output that several commands share: tables, styles, numbers and times, progress, transcripts, JSON.
//!
//! All modules but [`answer`], [`progress`] and [`terminal`] are pure, apart from [`units::now`]: they turn values into
//! text. Text from models, tools or files passes [`ollm_protocol::sanitize`] before it enters text for people.

pub(crate) mod answer;
pub(crate) mod file_plan;
pub(crate) mod hit;
pub(crate) mod line_diff;
pub(crate) mod live;
pub(crate) mod markdown;
pub(crate) mod progress;
pub(crate) mod session_table;
pub(crate) mod table;
pub(crate) mod terminal;
pub(crate) mod transcript;
pub(crate) mod units;
pub(crate) mod wrap;

use std::fmt::Write as _;

use chrono::{DateTime, FixedOffset};
use ollm_protocol::content::Role;
use ollm_protocol::{Timestamp, sanitize};
use serde::Serialize;

/// The layout of text for people.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RenderOptions {
    /// Columns of a line.
    pub(crate) width: usize,
    /// The columns at which prose is wrapped; `None` to leave its lines whole, for another program.
    pub(crate) prose_columns: Option<usize>,
    /// Set if styles are shown.
    pub(crate) is_styled: bool,
    /// The present time, for ages.
    pub(crate) now: Timestamp,
    /// Converts a time to the time zone of the reader.
    pub(crate) local_time: fn(Timestamp) -> DateTime<FixedOffset>,
    /// Set if long texts are printed whole.
    pub(crate) full: bool,
}

impl RenderOptions {
    /// Returns date and minute of a time.
    pub(crate) fn minute(&self, at: Timestamp) -> String {
        (self.local_time)(at).format("%Y-%m-%d %H:%M").to_string()
    }

    /// Returns hour, minute and second of a time.
    pub(crate) fn second(&self, at: Timestamp) -> String {
        (self.local_time)(at).format("%H:%M:%S").to_string()
    }
}

/// A style of text. The terminal decides whether styles are written.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Style {
    /// A heading or a match.
    Strong,
    /// A detail.
    Faint,
    /// The user's name in a conversation.
    User,
    /// The model's name in a conversation.
    Assistant,
    /// A tool's name in a conversation.
    Tool,
    /// An error or a warning.
    Bad,
}

impl Style {
    /// Returns the style for the name of a role.
    pub(crate) const fn of_role(role: Role) -> Self {
        match role {
            Role::User => Self::User,
            Role::Assistant => Self::Assistant,
            Role::Tool => Self::Tool,
            Role::System => Self::Faint,
        }
    }

    /// Returns the text between the escape sequences of the style.
    pub(crate) fn paint(self, text: &str) -> String {
        let code = match self {
            Self::Strong => "1",
            Self::Faint => "2",
            Self::User => "1;36",
            Self::Assistant => "1;32",
            Self::Tool => "33",
            Self::Bad => "1;31",
        };
        format!("\u{1b}[{code}m{text}\u{1b}[0m")
    }
}

/// Returns the name of an enum's variant on the wire.
pub(crate) fn wire_name(variant: impl Serialize) -> String {
    let value = serde_json::to_value(variant).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}

/// Returns a line `warning: ...`.
pub(crate) fn warning_line(text: &str) -> String {
    format!("{} {}\n", Style::Bad.paint("warning:"), sanitize::one_line(text))
}

/// Returns a line with a command that may help.
pub(crate) fn try_line(hint: &str) -> String {
    format!("  {} {}\n", Style::Strong.paint("try:"), sanitize::one_line(hint))
}

/// Escapes the characters that a terminal would obey. In JSON they occur only in strings, in which the escape means
/// the same.
pub(crate) fn escaped_json(json: &str) -> String {
    if !json.chars().any(sanitize::is_unsafe) {
        return json.to_owned();
    }
    let mut out = String::with_capacity(json.len() + 16);
    for char in json.chars() {
        // A carriage return is white space between values. All other unsafe characters have four hexadecimal digits.
        if sanitize::is_unsafe(char) && char != '\r' {
            let _infallible = write!(out, "\\u{:04x}", u32::from(char));
        } else {
            out.push(char);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_characters_are_escaped_without_changing_the_value() {
        let original = serde_json::json!({"t": "a\u{9b}31m\u{202e}b\u{7f}\u{1b}[0m 日本"});
        for json in [original.to_string(), format!("{original:#}")] {
            let text = escaped_json(&json);
            assert!(!text.chars().any(sanitize::is_unsafe), "{text}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), original);
        }
    }
}
