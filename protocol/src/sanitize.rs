//! Makes text from models, tools and files safe to show to people.
//!
//! A terminal obeys the text that it displays: escape sequences can retitle windows, write to the clipboard or hide
//! text, and bidirectional overrides can make one command read as another. So escape sequences are removed whole and
//! other control characters one by one; line breaks, all written as `\n`, and tabs stay.
//!
//! **Invariants**: a sequence without an end is removed up to the end of its line and never hides a later line; text
//! that arrives in pieces gives the same result as the whole text; sanitizing twice changes nothing. Pure.

const ESC: char = '\u{1b}';
const BEL: char = '\u{7}';
/// The control sequence introducer in its one-character form.
const C1_CSI: char = '\u{9b}';
/// The string terminator in its one-character form.
const C1_ST: char = '\u{9c}';

/// Sanitizes a text that arrives in pieces; a piece may end within a sequence.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sanitizer {
    position: SequencePosition,
}

/// The position of a [`Sanitizer`] relative to escape sequences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SequencePosition {
    /// Outside of a sequence.
    #[default]
    Outside,
    /// After a carriage return, which became a line break; a following line feed belongs to it.
    CarriageReturn,
    /// After ESC.
    Escape,
    /// After ESC and at least one intermediate character.
    Intermediate,
    /// In a control sequence (CSI), before its final character.
    Control,
    /// In a string for the terminal (DCS, SOS, OSC, PM or APC), before its terminator.
    String,
    /// After an ESC in such a string.
    StringEscape,
}

/// Removes everything that a terminal would obey; keeps line breaks and tabs.
#[must_use]
pub fn text(input: &str) -> String {
    Sanitizer::default().push(input)
}

/// Sanitizes the text and joins its words with single spaces on one line.
#[must_use]
pub fn one_line(input: &str) -> String {
    let mut line = String::with_capacity(input.len());
    for word in text(input).split_whitespace() {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    line
}

/// Returns whether a character alone can do harm: control characters but line feed and tab, bidirectional
/// embeddings, overrides and isolates, and the line and paragraph separators.
#[must_use]
pub fn is_unsafe(char: char) -> bool {
    match char {
        '\n' | '\t' => false,
        // The first two ranges reorder the text around them, the separators break lines invisibly.
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}' => true,
        other => other.is_control(),
    }
}

impl Sanitizer {
    /// Returns the safe text of the next piece.
    pub fn push(&mut self, piece: &str) -> String {
        if self.position == SequencePosition::Outside && !piece.chars().any(is_unsafe) {
            return piece.to_owned();
        }
        let mut safe = String::with_capacity(piece.len());
        safe.extend(piece.chars().filter_map(|char| self.push_char(char)));
        safe
    }

    /// Returns the safe form of the next character, or `None` if nothing of it may be shown.
    pub fn push_char(&mut self, char: char) -> Option<char> {
        let (position, shown) = self.position.advance(char);
        self.position = position;
        shown
    }
}

impl SequencePosition {
    /// Returns the position after a character, and the character to show for it.
    fn advance(self, char: char) -> (Self, Option<char>) {
        match (self, char) {
            (Self::CarriageReturn, '\n') => (Self::Outside, None),
            (Self::Escape, '[') => (Self::Control, None),
            (Self::Escape, ']' | 'P' | 'X' | '^' | '_') => (Self::String, None),
            (Self::Escape | Self::Intermediate, ' '..='/') => (Self::Intermediate, None),
            (Self::Escape | Self::Intermediate, '0'..='~') => (Self::Outside, None),
            (Self::Control, ' '..='?') => (Self::Control, None),
            (Self::Control, '@'..='~') => (Self::Outside, None),
            (Self::String | Self::StringEscape, '\n') => (Self::Outside, Some('\n')),
            (Self::StringEscape, '\\') | (Self::String | Self::StringEscape, BEL | C1_ST) => {
                (Self::Outside, None)
            }
            (Self::String | Self::StringEscape, ESC) => (Self::StringEscape, None),
            (Self::String | Self::StringEscape, _) => (Self::String, None),
            // A character that cannot belong to the sequence before it stands for itself.
            (_, ESC) => (Self::Escape, None),
            (_, C1_CSI) => (Self::Control, None),
            // DCS, SOS, OSC, PM and APC in their one-character forms.
            (_, '\u{90}' | '\u{98}' | '\u{9d}'..='\u{9f}') => (Self::String, None),
            // A lone carriage return would let a line overwrite itself.
            (_, '\r') => (Self::CarriageReturn, Some('\n')),
            (_, other) => (Self::Outside, (!is_unsafe(other)).then_some(other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Texts, and what is left of them.
    const CASES: &[(&str, &str)] = &[
        ("plain text\n\twith tab", "plain text\n\twith tab"),
        // Control sequences.
        ("\u{1b}[31mred\u{1b}[0m", "red"),
        ("a\u{1b}[31;1mred\u{1b}[0m b", "ared b"),
        ("\u{1b}[38;2;1;2;3mx\u{1b}[?25l", "x"),
        ("a\u{1b}[1 2mb", "ab"),
        ("a\u{9b}2Jb", "ab"),
        ("\u{1b}[12\nrest", "\nrest"),
        ("\u{1b}[12\u{1b}[1mrest", "rest"),
        ("\u{1b}[", ""),
        // Strings for the terminal.
        ("\u{1b}]0;title\u{7}after", "after"),
        ("\u{1b}]52;c;cm0gLXJm\u{1b}\\after", "after"),
        ("\u{1b}]8;;http://x\u{1b}\\link\u{1b}]8;;\u{1b}\\", "link"),
        ("\u{9d}8;;http://x\u{9c}link", "link"),
        ("\u{1b}Pq#0\u{1b}\\after", "after"),
        ("\u{90}q#0\u{7}after", "after"),
        ("\u{1b}]never ends\nnext line", "\nnext line"),
        ("\u{9d}never ends\r\nnext line", "\nnext line"),
        ("\u{1b}]0;title\u{1b}[1mrest\nnext line", "\nnext line"),
        ("\u{1b}]never ends", ""),
        // Other escape sequences.
        ("\u{1b}(Bx\u{1b}7y\u{1b}=z", "xyz"),
        ("\u{1b}(Bx\u{1b}cy\u{1b}", "xy"),
        ("end\u{1b}", "end"),
        // Single characters.
        ("bell\u{7} null\0 del\u{7f} nel\u{85}", "bell null del nel"),
        ("user\u{202e}txt.exe\u{202c}", "usertxt.exe"),
        ("a\u{2066}b\u{2069}c", "abc"),
        ("one\u{2028}two\u{2029}three", "onetwothree"),
        // Line breaks.
        ("one\r\ntwo", "one\ntwo"),
        ("50 %\r100 %", "50 %\n100 %"),
        ("a\r\nb\rc\td", "a\nb\nc\td"),
        ("a\r\r\nb\r", "a\n\nb\n"),
        // Other scripts and joined emoji.
        ("שלום 你好 👩‍👩‍👧 é naïve — “quotes”", "שלום 你好 👩‍👩‍👧 é naïve — “quotes”"),
    ];

    #[test]
    fn text_without_its_sequences_is_left() {
        for (input, expect) in CASES {
            assert_eq!(text(input), *expect, "{input:?}");
        }
    }

    #[test]
    fn one_line_has_single_spaces() {
        assert_eq!(one_line("  a\n\n b\tc\u{1b}[1m d\u{2028}e "), "a b c de");
    }

    #[test]
    fn plain_text_in_pieces_never_waits() {
        let mut sanitizer = Sanitizer::default();
        assert_eq!(sanitizer.push("plain "), "plain ");
        assert_eq!(sanitizer.push("a\r"), "a\n");
        assert_eq!(sanitizer.push("\nb\u{1b}]0;ti"), "b");
        assert_eq!(sanitizer.push("tle\u{1b}"), "");
        assert_eq!(sanitizer.push("\\after"), "after");
    }

    proptest! {
        #[test]
        fn pieces_give_the_same_text_as_the_whole(
            input in "(\\PC|[\u{0}-\u{1f}]|\u{1b}\\[|\u{1b}\\]|\u{1b}|\\\\|\u{9b}|\u{202e}|[0-9;]){0,40}",
            size in 1usize..6,
        ) {
            let chars: Vec<char> = input.chars().collect();
            let mut sanitizer = Sanitizer::default();
            let pieces = chars.chunks(size).map(|piece| piece.iter().collect::<String>());
            let shown: String = pieces.map(|piece| sanitizer.push(&piece)).collect();
            prop_assert_eq!(shown, text(&input));
        }

        #[test]
        fn sanitized_text_is_safe_and_stays_as_it_is(
            input in "(\\PC|[\u{0}-\u{1f}]|\u{1b}\\[|\u{1b}\\]|\u{9b}|\u{202e}|[0-9;]){0,40}"
        ) {
            let once = text(&input);
            prop_assert!(!once.chars().any(is_unsafe));
            prop_assert_eq!(text(&once), once.clone());
            prop_assert!(!one_line(&input).contains('\n'));
        }
    }
}
