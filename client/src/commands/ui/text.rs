//! Text on the screen: its tones, Markdown, and cutting it at a number of columns. Pure.
//!
//! **Invariant**: every text from outside passes [`shown_line`], [`shown_text`] or [`markdown`] before it enters a
//! [`UiLine`].

use ollm_protocol::content::Role;
use ollm_protocol::sanitize;
use ratatui::style::{Color, Modifier, Style};
use unicode_width::UnicodeWidthChar as _;

pub(super) use crate::render::markdown::columns_of as columns;
pub(super) use crate::render::markdown::wrapped as wrap;
use crate::render::markdown::{Layout, broken, render};
pub(super) use crate::render::table::clip;

/// The columns of a tab.
const TAB: &str = "    ";
/// Begins the numbers of a style, which `m` ends.
const STYLE_START: &str = "\u{1b}[";
/// The colors of the palette, by the last digit of their numbers, and the bright ones.
const COLORS: [Color; 16] = [
    Color::Black,
    Color::Red,
    Color::Green,
    Color::Yellow,
    Color::Blue,
    Color::Magenta,
    Color::Cyan,
    Color::Gray,
    Color::DarkGray,
    Color::LightRed,
    Color::LightGreen,
    Color::LightYellow,
    Color::LightBlue,
    Color::LightMagenta,
    Color::LightCyan,
    Color::White,
];

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
    /// A look of Markdown.
    Styled(Style),
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

/// Returns the lines of a Markdown text from outside, as a chat shows them. Without styles, the marks of emphasis and code
/// stay.
pub(super) fn markdown(text: &str, width: usize, is_styled: bool) -> Vec<UiLine> {
    let width = width.max(1);
    let rendered = render(text, Layout { width, is_styled });
    // Code is not wrapped by the renderer.
    let lines = rendered.lines().flat_map(|line| broken(line, width));
    lines.map(|line| UiLine(styled_pieces(&line))).collect()
}

/// Returns the pieces of a line, whose escape sequences are those of styles alone.
fn styled_pieces(line: &str) -> Vec<(UiTone, String)> {
    let (mut pieces, mut tone) = (Vec::new(), UiTone::Plain);
    for (number, part) in line.split(STYLE_START).enumerate() {
        let sequence = if number == 0 { None } else { part.split_once('m') };
        let text = match sequence {
            Some((numbers, text)) => {
                tone = tone_of_style(numbers);
                text
            }
            None => part,
        };
        if !text.is_empty() {
            pieces.push((tone, text.to_owned()));
        }
    }
    pieces
}

/// Returns the tone of a style, which is given by its numbers.
fn tone_of_style(numbers: &str) -> UiTone {
    let mut style = Style::new();
    for number in numbers.split(';') {
        style = match number.parse().unwrap_or(0_u8) {
            1 => style.add_modifier(Modifier::BOLD),
            2 => style.add_modifier(Modifier::DIM),
            3 => style.add_modifier(Modifier::ITALIC),
            4 => style.add_modifier(Modifier::UNDERLINED),
            9 => style.add_modifier(Modifier::CROSSED_OUT),
            color @ 30..=37 => style.fg(COLORS[usize::from(color - 30)]),
            color @ 90..=97 => style.fg(COLORS[usize::from(color - 82)]),
            _ => Style::new(),
        };
    }
    if style == Style::new() { UiTone::Plain } else { UiTone::Styled(style) }
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
    fn markdown_has_the_looks_of_a_chat() {
        let lines = markdown("## A *b*\n\n- `c` d\u{1b}[2J&#27;[31m", 20, true);
        let style = UiTone::Styled;
        let bold = Style::new().add_modifier(Modifier::BOLD);
        assert_eq!(
            lines,
            [
                UiLine(vec![
                    (style(bold), "## A ".to_owned()),
                    (style(bold.add_modifier(Modifier::ITALIC)), "b".to_owned()),
                ]),
                UiLine::default(),
                UiLine(vec![
                    (UiTone::Plain, "- ".to_owned()),
                    (style(Style::new().fg(Color::Cyan)), "c".to_owned()),
                    (UiTone::Plain, " d[31m".to_owned()),
                ]),
            ]
        );
        let text = |text: &str, width, is_styled| -> Vec<String> {
            markdown(text, width, is_styled).iter().map(UiLine::text).collect()
        };
        assert_eq!(text("**a** `b`", 20, false), ["**a** `b`"]);
        assert_eq!(text("```\n設定ファ\n```", 4, true), ["```", "設定", "ファ", "```"]);
        assert_eq!(tone_of_style("94"), UiTone::Styled(Style::new().fg(Color::LightBlue)));
        assert_eq!(tone_of_style("0"), UiTone::Plain);
    }

    #[test]
    fn text_from_outside_obeys_no_terminal() {
        assert_eq!(shown_line("a\u{1b}[2Jb\n\tc\u{202e}"), "ab c");
        assert_eq!(shown_text("a\u{1b}]0;t\u{7}\n\tc"), "a\n    c");
    }
}
