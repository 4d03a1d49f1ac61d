//! A line of text that a person edits: a title, or the words of a search. Pure.

use unicode_width::UnicodeWidthChar as _;

use super::super::keys::UiKey;
use super::super::text::{columns, shown_line};

/// The longest text, in bytes: that of a title.
const MAX_BYTES: usize = 4096;

/// A line with a cursor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct LineEdit {
    text: String,
    /// The position of the cursor, in bytes.
    cursor: usize,
}

impl LineEdit {
    /// Returns a line with a text, and the cursor at its end.
    pub(in super::super) fn new(text: &str) -> Self {
        let text = shown_line(text);
        Self { cursor: text.len(), text }
    }

    pub(in super::super) fn text(&self) -> &str {
        &self.text
    }

    /// Edits the line; returns whether the key was one of editing.
    pub(in super::super) fn edit(&mut self, key: &UiKey) -> bool {
        match key {
            UiKey::Char(char) => self.insert(&char.to_string()),
            UiKey::Paste(text) => self.insert(&shown_line(text)),
            UiKey::Backspace => self.remove_to(self.previous()),
            UiKey::Delete | UiKey::Ctrl('d') => {
                let start = self.cursor;
                self.cursor = self.next();
                self.remove_to(start);
            }
            UiKey::Ctrl('w') => self.remove_to(self.word_start()),
            UiKey::Ctrl('u') => self.remove_to(0),
            UiKey::Ctrl('k') => self.text.truncate(self.cursor),
            UiKey::Left | UiKey::Ctrl('b') => self.cursor = self.previous(),
            UiKey::Right | UiKey::Ctrl('f') => self.cursor = self.next(),
            UiKey::Home | UiKey::Ctrl('a') => self.cursor = 0,
            UiKey::End | UiKey::Ctrl('e') => self.cursor = self.text.len(),
            UiKey::Alt('b') => self.cursor = self.word_start(),
            _ => return false,
        }
        true
    }

    /// Returns the part of the line that fits into a number of columns with the cursor in it, and the cursor's column.
    pub(in super::super) fn visible(&self, width: usize) -> (&str, usize) {
        let mut start = 0;
        // The cursor takes a column of its own behind the text.
        while columns(&self.text[start..self.cursor]) >= width.max(1) {
            start += self.text[start..].chars().next().map_or(1, char::len_utf8);
        }
        let mut column = 0;
        let mut end = start;
        for char in self.text[start..].chars() {
            column += char.width().unwrap_or(0);
            if column > width {
                break;
            }
            end += char.len_utf8();
        }
        (&self.text[start..end], columns(&self.text[start..self.cursor]))
    }

    fn insert(&mut self, text: &str) {
        if self.text.len() + text.len() <= MAX_BYTES {
            self.text.insert_str(self.cursor, text);
            self.cursor += text.len();
        }
    }

    fn remove_to(&mut self, start: usize) {
        self.text.replace_range(start..self.cursor, "");
        self.cursor = start;
    }

    fn previous(&self) -> usize {
        self.text[..self.cursor].char_indices().next_back().map_or(0, |(at, _)| at)
    }

    fn next(&self) -> usize {
        self.cursor + self.text[self.cursor..].chars().next().map_or(0, char::len_utf8)
    }

    fn word_start(&self) -> usize {
        let before = self.text[..self.cursor].trim_end();
        before.rfind(' ').map_or(0, |at| at + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_edit_the_line_at_its_cursor() {
        let mut line = LineEdit::new("日本 two");
        for key in [UiKey::Ctrl('w'), UiKey::Char('x'), UiKey::Home, UiKey::Right, UiKey::Backspace]
        {
            assert!(line.edit(&key), "{key:?}");
        }
        assert_eq!(line.text(), "本 x");
        line.edit(&UiKey::Delete);
        line.edit(&UiKey::Paste("a\nb\u{1b}[2J".to_owned()));
        assert_eq!(line.text(), "a b x");
        line.edit(&UiKey::End);
        line.edit(&UiKey::Ctrl('u'));
        assert_eq!(line, LineEdit::default());
        assert!(!line.edit(&UiKey::Enter) && !line.edit(&UiKey::Up));
        for key in [UiKey::Backspace, UiKey::Delete, UiKey::Left, UiKey::Right, UiKey::Ctrl('w')] {
            line.edit(&key);
        }
        assert_eq!(line, LineEdit::default());
    }

    #[test]
    fn text_has_an_end() {
        let mut line = LineEdit::default();
        line.edit(&UiKey::Paste("x".repeat(MAX_BYTES)));
        line.edit(&UiKey::Char('y'));
        assert_eq!(line.text().len(), MAX_BYTES);
    }

    #[test]
    fn cursor_is_always_visible() {
        let mut line = LineEdit::new("one two three");
        assert_eq!(line.visible(20), ("one two three", 13));
        assert_eq!(line.visible(5), ("hree", 4));
        line.edit(&UiKey::Home);
        assert_eq!(line.visible(5), ("one t", 0));
        assert_eq!(LineEdit::new("日本").visible(4), ("本", 2));
    }
}
