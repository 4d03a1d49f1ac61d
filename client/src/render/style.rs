//! The few styles that are used. Whether they reach the terminal is decided where text is written.

/// What a text is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Style {
    /// A heading, or a match.
    Strong,
    /// What matters less.
    Faint,
    /// The person.
    User,
    /// The model.
    Assistant,
    /// A tool.
    Tool,
    /// A program's text.
    Code,
    /// Something is wrong.
    Bad,
}

impl Style {
    /// The text between the codes of the style.
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
