//! Text on the screen: its tones, and cutting it at a number of columns. Pure.
//!
//! **Invariant**: every text from outside passes [`shown_line`] or [`shown_text`] before it enters a [`UiLine`].

use ollm_protocol::content::Role;
use ollm_protocol::sanitize;
use unicode_width::UnicodeWidthChar as _;

pub(super) use crate::render::markdown::columns_of as columns;
pub(super) use crate::render::markdown::wrapped as wrap;
pub(super) use crate::render::table::clip;

/// The columns of a tab.
const TAB: &str = "    ";

/// The tone of a text; the drawing gives it a style.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum UiTone {
    #[default]
    Plain,
    /// A heading or a title.
    Strong,
    /// A detail.
    Faint,
    /// A word that was searched for.
    Match,
    User,
    Assistant,
    Tool,
    /// An error, or something that cannot be taken back.
    Bad,
    /// Something that happens now.
    Live,
}

impl UiTone {
    /// Returns the tone for the name of a role.
    pub(super) const fn of_role(role: Role) -> Self {
        match role {
            Role::User => Self::User,
            Role::Assistant => Self::Assistant,
            Role::Tool => Self::Tool,
            Role::System => Self::Faint,
        }
    }
}

/// A line of the screen: pieces of text, each with its tone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct UiLine(pub(super) Vec<(UiTone, String)>);

impl UiLine {
    /// Returns a line of one tone.
    pub(super) fn of(tone: UiTone, text: impl Into<String>) -> Self {
        Self(vec![(tone, text.into())])
    }

    /// Returns the text of the line.
    #[cfg(test)]
    pub(super) fn text(&self) -> String {
        self.0.iter().map(|(_, text)| text.as_str()).collect()
    }
}

/// Returns a text from outside on one line, without anything that a terminal would obey.
pub(super) fn shown_line(text: &str) -> String {
    sanitize::one_line(text)
}

/// Returns a text from outside with its lines, without anything that a terminal would obey.
pub(super) fn shown_text(text: &str) -> String {
    sanitize::text(text).replace('\t', TAB)
}

/// Cuts a text at its beginning, so that its end has at most a number of columns.
pub(super) fn clip_start(text: &str, width: usize) -> String {
    if columns(text) <= width {
        return text.to_owned();
    }
    let mut column = 0;
    let mut from = text.len();
    for (at, char) in text.char_indices().rev() {
        column += char.width().unwrap_or(0);
        if column >= width {
            break;
        }
        from = at;
    }
    let ellipsis = if width > 0 { "…" } else { "" };
    format!("{ellipsis}{}", &text[from..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beginning_is_cut_at_columns_and_not_at_characters() {
        let check = |text: &str, width, expect: &str| assert_eq!(clip_start(text, width), expect);
        check("short", 5, "short");
        check("longer", 5, "…nger");
        check("設定ファイル", 6, "…イル");
        check("any", 0, "");
    }

    #[test]
    fn lines_end_between_words_or_after_wide_characters() {
        let check = |text: &str, width, expect: &[&str]| assert_eq!(wrap(text, width), expect);
        check("one two three", 7, &["one two", "three"]);
        check("one two three", 8, &["one two", "three"]);
        check("a\n\nb ", 8, &["a", "", "b"]);
        check("unbreakable", 4, &["unbr", "eaka", "ble"]);
        check("    deep word", 8, &["    deep", "word"]);
        check("設定ファイル", 5, &["設定", "ファ", "イル"]);
        check("設", 1, &["設"]);
        check("", 9, &[""]);
    }

    #[test]
    fn text_from_outside_obeys_no_terminal() {
        assert_eq!(shown_line("a\u{1b}[2Jb\n\tc\u{202e}"), "ab c");
        assert_eq!(shown_text("a\u{1b}]0;t\u{7}\n\tc"), "a\n    c");
    }
}
