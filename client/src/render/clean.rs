//! Makes text from models, tools and files safe for a terminal.
//!
//! A terminal obeys what it is shown: escape sequences can retitle windows, write to the clipboard or hide
//! text, and bidirectional overrides can make a command read as another. So sequences are removed whole,
//! control characters singly; line breaks and tabs stay. Pure.

use std::iter::Peekable;
use std::str::Chars;

const ESC: char = '\u{1b}';
const BEL: char = '\u{7}';
/// Control sequence introducer in its one-character form.
const C1_CSI: char = '\u{9b}';
/// String terminator in its one-character form.
const C1_ST: char = '\u{9c}';

/// The text without anything that a terminal would obey; keeps line breaks and tabs.
pub(crate) fn text(input: &str) -> String {
    if !input.chars().any(is_unsafe) {
        return input.to_owned();
    }
    let mut output = String::with_capacity(input.len());
    let mut rest = input.chars().peekable();
    while let Some(char) = rest.next() {
        match char {
            ESC => _ = skip_escape(&mut rest),
            C1_CSI => _ = skip_csi(&mut rest),
            // DCS, SOS, OSC, PM and APC in their one-character forms.
            '\u{90}' | '\u{98}' | '\u{9d}'..='\u{9f}' => _ = skip_string(&mut rest),
            // A lone return would let a line overwrite itself.
            '\r' if rest.peek() != Some(&'\n') => output.push('\n'),
            safe if !is_unsafe(safe) => output.push(safe),
            _ => {}
        }
    }
    output
}

/// The most bytes that a sequence is waited for; one that is longer is none, and what was held is shown.
const MAX_HELD_BYTES: usize = 4096;

/// Cleans a text that comes in pieces, where a piece may end within a sequence.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    held: String,
}

impl Pieces {
    /// What can be shown now that this piece is there.
    pub(crate) fn push(&mut self, piece: &str) -> String {
        self.held.push_str(piece);
        let ready = decided(&self.held);
        let ready = if self.held.len() - ready > MAX_HELD_BYTES { self.held.len() } else { ready };
        let shown = text(&self.held[..ready]);
        self.held.drain(..ready);
        shown
    }

    /// What is left when no piece follows.
    pub(crate) fn finish(&mut self) -> String {
        text(&std::mem::take(&mut self.held))
    }
}

/// How many bytes mean the same whatever follows.
fn decided(input: &str) -> usize {
    let mut rest = input.chars().peekable();
    while let Some(char) = rest.next() {
        if !is_unsafe(char) {
            continue;
        }
        let left: usize = rest.clone().map(char::len_utf8).sum();
        let is_open = match char {
            ESC => skip_escape(&mut rest),
            C1_CSI => skip_csi(&mut rest),
            '\u{90}' | '\u{98}' | '\u{9d}'..='\u{9f}' => skip_string(&mut rest),
            '\r' => rest.peek().is_none(),
            _ => false,
        };
        if is_open {
            return input.len() - left - char.len_utf8();
        }
    }
    input.len()
}

/// The text on one line: cleaned, every run of white space one blank, none at the ends.
pub(crate) fn one_line(input: &str) -> String {
    let mut output = String::with_capacity(input.len());
    for word in text(input).split_whitespace() {
        if !output.is_empty() {
            output.push(' ');
        }
        output.push_str(word);
    }
    output
}

/// Whether a character alone can harm: controls but line break and tab, and bidirectional overrides.
pub(crate) fn is_unsafe(char: char) -> bool {
    match char {
        '\n' | '\t' => false,
        // Embeddings, overrides and isolates reorder what surrounds them; line and paragraph separators break
        // lines where nobody sees a break.
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}' => true,
        other => other.is_control(),
    }
}

/// True where more text could belong to it.
fn skip_escape(rest: &mut Peekable<Chars<'_>>) -> bool {
    match rest.peek() {
        Some('[') => {
            rest.next();
            skip_csi(rest)
        }
        Some(']' | 'P' | 'X' | '^' | '_') => {
            rest.next();
            skip_string(rest)
        }
        _ => {
            while rest.next_if(|char| (' '..='/').contains(char)).is_some() {}
            rest.next_if(|char| ('0'..='~').contains(char)).is_none() && rest.peek().is_none()
        }
    }
}

/// Parameters, then intermediates, then one final character; stops at what cannot belong to it. True where more
/// text could belong to it.
fn skip_csi(rest: &mut Peekable<Chars<'_>>) -> bool {
    while rest.next_if(|char| ('0'..='?').contains(char)).is_some() {}
    while rest.next_if(|char| (' '..='/').contains(char)).is_some() {}
    rest.next_if(|char| ('@'..='~').contains(char)).is_none() && rest.peek().is_none()
}

/// Up to the terminator. Where there is none on the line only the introducer goes: a forgotten terminator must
/// not hide the rest of a message. True where the terminator may follow.
fn skip_string(rest: &mut Peekable<Chars<'_>>) -> bool {
    let mut ahead = rest.clone();
    while let Some(char) = ahead.next() {
        match char {
            BEL | C1_ST => {
                *rest = ahead;
                return false;
            }
            ESC => {
                if ahead.next_if_eq(&'\\').is_some() {
                    *rest = ahead;
                    return false;
                }
                return ahead.peek().is_none();
            }
            '\n' => return false,
            _ => {}
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sequences_go_whole_and_text_stays() {
        let check = |input: &str, expect: &str| assert_eq!(text(input), expect, "{input:?}");
        check("plain text\n\twith tab", "plain text\n\twith tab");
        check("\u{1b}[31mred\u{1b}[0m", "red");
        check("\u{1b}[38;2;1;2;3mx\u{1b}[?25l", "x");
        check("a\u{9b}2Jb", "ab");
        check("\u{1b}]0;title\u{7}after", "after");
        check("\u{1b}]52;c;cm0gLXJm\u{1b}\\after", "after");
        check("\u{9d}8;;http://x\u{9c}link", "link");
        check("\u{1b}Pq#0\u{1b}\\after", "after");
        check("\u{1b}(Bx\u{1b}7y\u{1b}=z", "xyz");
        check("bell\u{7} null\0 del\u{7f} nel\u{85}", "bell null del nel");
        check("user\u{202e}txt.exe\u{202c}", "usertxt.exe");
        check("a\u{2066}b\u{2069}c", "abc");
        check("one\r\ntwo", "one\ntwo");
        check("50 %\r100 %", "50 %\n100 %");
    }

    #[test]
    fn a_sequence_that_never_ends_hides_nothing() {
        let check = |input: &str, expect: &str| assert_eq!(text(input), expect, "{input:?}");
        check("\u{1b}]0;title\nrest", "0;title\nrest");
        check("\u{1b}]0;title\u{1b}[1mrest", "0;titlerest");
        check("\u{1b}[12\nrest", "\nrest");
        check("\u{1b}[", "");
        check("end\u{1b}", "end");
    }

    #[test]
    fn scripts_and_emoji_are_left_alone() {
        for whole in ["日本語", "👩‍👩‍👧", "é", "עברית", "naïve — “quotes”"]
        {
            assert_eq!(text(whole), whole);
        }
        assert_eq!(one_line("  a\n\n b\tc "), "a b c");
    }

    #[test]
    fn a_sequence_that_is_cut_by_pieces_goes_whole() {
        let check = |pieces: &[&str], expect: &str| {
            let mut cleaner = Pieces::default();
            let mut shown: String = pieces.iter().map(|piece| cleaner.push(piece)).collect();
            shown.push_str(&cleaner.finish());
            assert_eq!(shown, expect, "{pieces:?}");
        };
        check(&["a\u{1b}", "[3", "1mred\u{1b}[", "0m"], "ared");
        check(&["x\u{1b}]0;ti", "tle\u{1b}", "\\after"], "xafter");
        check(&["\u{1b}]0;title", "\nrest"], "0;title\nrest");
        check(&["one\r", "\ntwo\r", "three"], "one\ntwo\nthree");
        check(&["end\u{1b}"], "end");
        let mut cleaner = Pieces::default();
        assert_eq!(cleaner.push("plain "), "plain ", "text never waits");
        assert_eq!(cleaner.push("\u{1b}]0;never ends"), "");
        assert!(cleaner.push(&"x".repeat(MAX_HELD_BYTES)).starts_with("0;never endsxxx"));
    }

    proptest! {
        #[test]
        fn pieces_show_what_the_whole_shows(
            input in "(\\PC|[\u{0}-\u{1f}]|\u{1b}\\[|\u{1b}\\]|\u{1b}|\\\\|\u{9b}|\u{202e}|[0-9;]){0,40}",
            size in 1usize..6,
        ) {
            let chars: Vec<char> = input.chars().collect();
            let mut cleaner = Pieces::default();
            let mut shown = String::new();
            for piece in chars.chunks(size) {
                shown.push_str(&cleaner.push(&piece.iter().collect::<String>()));
            }
            shown.push_str(&cleaner.finish());
            prop_assert_eq!(shown, text(&input));
        }

        #[test]
        fn nothing_unsafe_is_left_and_a_second_pass_changes_nothing(
            input in "(\\PC|[\u{0}-\u{1f}]|\u{1b}\\[|\u{1b}\\]|\u{9b}|\u{202e}|[0-9;]){0,40}"
        ) {
            let once = text(&input);
            prop_assert!(!once.chars().any(is_unsafe));
            prop_assert_eq!(text(&once), once.clone());
            prop_assert!(!one_line(&input).contains('\n'));
        }
    }
}
