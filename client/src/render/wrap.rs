//! Lines that end between words at the width of the terminal. Pure.

use unicode_width::UnicodeWidthChar as _;

/// The narrowest column of text: below it, a terminal's own line breaks are better.
const MIN_COLUMNS: usize = 20;

/// Wraps a text without styles that arrives in pieces. A word is held until its end is known.
#[derive(Debug, Default)]
pub(crate) struct WordWrap {
    /// The columns of a line; `None` to change nothing.
    width: Option<usize>,
    /// The columns of the line so far.
    column: usize,
    /// The spaces before the held word.
    space: String,
    word: String,
    /// The held text continues a word that is shown already, so no line ends before it.
    is_glued: bool,
}

impl WordWrap {
    /// Sets the columns of a line.
    pub(crate) fn set_width(&mut self, width: Option<usize>) {
        self.width = width.filter(|width| *width >= MIN_COLUMNS);
    }

    /// Adds a piece and returns the text that can be shown now.
    pub(crate) fn push(&mut self, piece: &str) -> String {
        if self.width.is_none() {
            return self.flush() + piece;
        }
        let mut shown = String::new();
        for char in piece.chars() {
            match char {
                '\n' => {
                    self.show_word(&mut shown);
                    shown.push('\n');
                    self.start_line();
                }
                ' ' => {
                    self.show_word(&mut shown);
                    self.space.push(char);
                    self.is_glued = false;
                }
                // What joins two pictures to one, or changes the one before.
                '\u{200d}' | '\u{fe0f}' | '\u{1f3fb}'..='\u{1f3ff}' => {
                    self.is_glued |= self.word.is_empty();
                    self.word.push(char);
                }
                // Scripts with wide characters have no spaces, and lines end between any two of them.
                _ if char.width() == Some(2) => {
                    self.show_word(&mut shown);
                    self.word.push(char);
                    self.show_word(&mut shown);
                    self.is_glued = false;
                }
                _ => self.word.push(char),
            }
        }
        shown
    }

    /// Returns the held text, whose word may continue.
    pub(crate) fn flush(&mut self) -> String {
        let mut shown = String::new();
        let has_word = !self.word.is_empty();
        self.show_word(&mut shown);
        self.is_glued |= has_word;
        self.column += self.space.len();
        shown.push_str(&std::mem::take(&mut self.space));
        shown
    }

    /// Notes that the cursor is at the beginning of a line.
    pub(crate) fn start_line(&mut self) {
        (self.column, self.is_glued) = (0, false);
        self.space.clear();
    }

    /// Adds the held word, on the next line if this one has no room for it.
    fn show_word(&mut self, shown: &mut String) {
        if self.word.is_empty() {
            return;
        }
        let width = self.width.unwrap_or(usize::MAX);
        let columns = columns_of(&self.word);
        if self.column > 0 && !self.is_glued && self.column + self.space.len() + columns > width {
            shown.push('\n');
            self.start_line();
        }
        self.column += self.space.len() + columns;
        shown.push_str(&std::mem::take(&mut self.space));
        shown.push_str(&std::mem::take(&mut self.word));
    }
}

/// Returns the columns that a text without escape sequences takes.
fn columns_of(text: &str) -> usize {
    text.chars().filter_map(unicode_width::UnicodeWidthChar::width).sum()
}

/// Wraps the lines of a text with styles; further lines begin as their first one, with `indent` more spaces. Lines with a
/// command to type, after `try:` or `or:`, stay whole, so that they can be copied.
pub(crate) fn wrap(text: &str, width: Option<usize>, indent: usize) -> String {
    let Some(width) = width.filter(|width| *width >= MIN_COLUMNS) else { return text.to_owned() };
    let lines: Vec<String> = text.split('\n').map(|line| wrap_line(line, width, indent)).collect();
    lines.join("\n")
}

fn wrap_line(line: &str, width: usize, indent: usize) -> String {
    let plain = anstream::adapter::strip_str(line).to_string();
    let start = plain.trim_start_matches(' ');
    let is_command = start.starts_with("try: ") || start.starts_with("or: ");
    let indent = plain.len() - start.len() + indent;
    if is_command || columns_of(&plain) <= width || indent * 2 > width {
        return line.to_owned();
    }
    let (mut wrapped, mut column, mut is_first) = (String::new(), 0, true);
    for (at, word) in line.split(' ').enumerate() {
        let columns = columns_of(&anstream::adapter::strip_str(word).to_string());
        if column + 1 + columns > width && !is_first && columns > 0 {
            wrapped.push('\n');
            wrapped.push_str(&" ".repeat(indent));
            column = indent;
        } else if at > 0 {
            wrapped.push(' ');
            column += 1;
        }
        wrapped.push_str(word);
        column += columns;
        is_first &= columns == 0;
    }
    wrapped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::Style;

    fn wrapped(text: &str, size: usize, width: usize) -> String {
        let mut wrap = WordWrap::default();
        wrap.set_width(Some(width));
        let chars: Vec<char> = text.chars().collect();
        let mut shown = String::new();
        for piece in chars.chunks(size) {
            shown.push_str(&wrap.push(&piece.iter().collect::<String>()));
        }
        shown + &wrap.flush()
    }

    #[test]
    fn parts_of_one_picture_stay_together() {
        let mut wrap = WordWrap::default();
        wrap.set_width(Some(20));
        let pictures = "123456789 123456789👩\u{200d}💻👍🏽";
        assert_eq!(wrap.push(pictures) + &wrap.flush(), "123456789 123456789\n👩\u{200d}💻👍🏽");
    }

    #[test]
    fn held_word_comes_first_when_the_terminal_becomes_too_narrow() {
        let mut wrap = WordWrap::default();
        wrap.set_width(Some(20));
        let mut shown = wrap.push("one tw");
        wrap.set_width(Some(10));
        shown.push_str(&wrap.push("o three"));
        assert_eq!(shown, "one two three");
    }

    #[test]
    fn lines_end_between_words_for_any_pieces() {
        let check = |text: &str, expect: &str| {
            for size in 1..9 {
                assert_eq!(wrapped(text, size, 20), expect, "{size}");
            }
        };
        check("short", "short");
        check("exactly twenty here.\nnext", "exactly twenty here.\nnext");
        check("a line that is longer than twenty", "a line that is\nlonger than twenty");
        check("two  spaces  and  then  more", "two  spaces  and\nthen  more");
        check("  indented words that wrap", "  indented words\nthat wrap");
        check("averyveryverylongwordwithoutanend x", "averyveryverylongwordwithoutanend\nx");
        check("日本語の文章は空白なしで書かれる。", "日本語の文章は空白な\nしで書かれる。");
    }

    #[test]
    fn flushed_beginning_of_a_word_keeps_its_end() {
        let mut wrap = WordWrap::default();
        wrap.set_width(Some(20));
        let mut shown = wrap.push("seventeen columns ab");
        shown.push_str(&wrap.flush());
        shown.push_str(&wrap.push("cdef and more "));
        assert_eq!(shown + &wrap.flush(), "seventeen columns abcdef\nand more ");
    }

    #[test]
    fn without_a_width_nothing_changes() {
        let mut wrap = WordWrap::default();
        assert_eq!(wrap.push("any length of a line, in pieces"), "any length of a line, in pieces");
        assert_eq!(wrap.flush(), "");
        assert_eq!(super::wrap("any length of a line", None, 0), "any length of a line");
    }

    #[test]
    fn static_text_is_indented_and_commands_stay_whole() {
        let bad = Style::Bad.paint("error:");
        let text = format!(
            "{bad} the model is not there at all\n  try: ollmctl chat --model fake:1b  # with it"
        );
        assert_eq!(
            wrap(&text, Some(24), 2),
            format!(
                "{bad} the model is not\n  there at all\n  try: ollmctl chat --model fake:1b  # with it"
            )
        );
        assert_eq!(wrap("- a list with some words", Some(20), 2), "- a list with some\n  words");
    }
}
