//! Text of models, tools, files and imports made harmless for people.

use std::iter::Peekable;
use std::str::Chars;

const ESCAPE: char = '\u{1b}';
const CSI: char = '\u{9b}';

/// The text without terminal sequences, control characters and overrides of the writing direction; line
/// breaks are `\n`.
pub(crate) fn plain(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\r' => {
                chars.next_if_eq(&'\n');
                kept.push('\n');
            }
            '\n' | '\t' => kept.push(c),
            ESCAPE => skip_sequence(&mut chars),
            CSI => skip_control_sequence(&mut chars),
            // They make text look like other text.
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {}
            c if c.is_control() => {}
            c => kept.push(c),
        }
    }
    kept
}

fn skip_sequence(chars: &mut Peekable<Chars<'_>>) {
    match chars.peek() {
        Some('[') => {
            chars.next();
            skip_control_sequence(chars);
        }
        // Strings to the terminal, ended by a bell or the string terminator. One that never ends must not
        // hide the text after it: it ends with the line.
        Some(']' | 'P' | 'X' | '^' | '_') => {
            while let Some(c) = chars.next_if(|&c| c != '\n') {
                if c == '\u{7}' || c == '\u{9c}' {
                    return;
                }
                if c == ESCAPE && chars.next_if_eq(&'\\').is_some() {
                    return;
                }
            }
        }
        _ => {
            while chars.next_if(|c| (' '..='/').contains(c)).is_some() {}
            chars.next_if(|c| ('0'..='~').contains(c));
        }
    }
}

fn skip_control_sequence(chars: &mut Peekable<Chars<'_>>) {
    while chars.next_if(|c| (' '..='?').contains(c)).is_some() {}
    chars.next_if(|c| ('@'..='~').contains(c));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_sequences_and_direction_overrides_are_removed() {
        let check = |text: &str, expect: &str| assert_eq!(plain(text), expect, "{text:?}");
        check("a\u{1b}[31;1mred\u{1b}[0m b", "ared b");
        check("\u{9b}2Jgone", "gone");
        check("\u{1b}]0;title\u{7}after", "after");
        check("\u{1b}]8;;http://x\u{1b}\\link\u{1b}]8;;\u{1b}\\", "link");
        check("\u{1b}]never ends\nnext line", "\nnext line");
        check("\u{1b}(Bx\u{1b}cy\u{1b}", "xy");
        check("a\r\nb\rc\td", "a\nb\nc\td");
        check("bell\u{7} null\0 del\u{7f} nel\u{85}", "bell null del nel");
        check("user\u{202e}gpj.exe\u{2066}x\u{2069}", "usergpj.exex");
        check("שלום 你好 👩‍👩‍👧 é", "שלום 你好 👩‍👩‍👧 é");
    }
}
