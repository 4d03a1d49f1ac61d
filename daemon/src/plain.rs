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
