//! Output that several commands share: tables, styles, numbers and times, progress, transcripts, JSON.
//!
//! Everything but [`terminal`] and [`progress`] is pure: values in, text out. Text that came from models, tools or
//! files passes [`ollm_protocol::sanitize`] before it enters text for people.

pub(crate) mod json;
pub(crate) mod progress;
pub(crate) mod session_table;
pub(crate) mod table;
pub(crate) mod terminal;
pub(crate) mod transcript;
pub(crate) mod units;

use ollm_protocol::content::Role;
use ollm_protocol::{Timestamp, sanitize};

/// The layout of text for people.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RenderOptions {
    /// Columns of a line.
    pub(crate) width: usize,
    /// The present time, for ages.
    pub(crate) now: Timestamp,
    /// Whether long texts are printed whole.
    pub(crate) full: bool,
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
    Code,
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
            Self::Code => "36",
            Self::Bad => "1;31",
        };
        format!("\u{1b}[{code}m{text}\u{1b}[0m")
    }
}

/// Returns a line `warning: ...`.
pub(crate) fn warning_line(text: &str) -> String {
    format!("{} {}\n", Style::Bad.paint("warning:"), sanitize::one_line(text))
}
