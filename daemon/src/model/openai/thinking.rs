//! Thinking that a server leaves in the text of an answer, between tags.
//!
//! **Invariant**: the pieces together are the text without the tags, wherever it was divided.

use crate::model::chat::ChatDelta;

const OPENING: &str = "<think>";
const CLOSING: &str = "</think>";
/// The most bytes of white space that are held before thinking, or left out behind it. More is text, whose length is
/// limited; a server that sends nothing else would otherwise never be stopped.
const MAX_BLANK_BYTES: usize = 1024;

/// Divides the text of an answer that begins with thinking.
#[derive(Debug, Default)]
pub(super) struct ThinkingSplitter {
    state: SplitState,
    /// Text that may be the beginning of a tag.
    held: String,
    /// The bytes that were left out.
    n_left_out: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SplitState {
    /// Nothing but white space has come.
    #[default]
    Start,
    Thinking,
    /// Behind the thinking, white space is left out.
    Behind,
    Text,
}

impl ThinkingSplitter {
    /// Adds a piece of text.
    pub(super) fn push(&mut self, piece: &str, deltas: &mut Vec<ChatDelta>) {
        if self.state == SplitState::Text {
            return add(deltas, ChatDelta::Text, piece);
        }
        self.held.push_str(piece);
        while !self.held.is_empty() && self.advance(deltas) {}
    }

    /// Adds the text that was held, at the end of the answer.
    pub(super) fn finish(&mut self, deltas: &mut Vec<ChatDelta>) {
        let held = std::mem::take(&mut self.held);
        match self.state {
            SplitState::Thinking => add(deltas, ChatDelta::Thinking, &held),
            SplitState::Behind if held.trim().is_empty() => {}
            _ => add(deltas, ChatDelta::Text, &held),
        }
    }

    /// Handles what is held; returns whether something changed.
    fn advance(&mut self, deltas: &mut Vec<ChatDelta>) -> bool {
        match self.state {
            SplitState::Start => {
                let begun = self.held.trim_start();
                if let Some(rest) = begun.strip_prefix(OPENING) {
                    (self.held, self.state) = (rest.to_owned(), SplitState::Thinking);
                    return true;
                }
                if OPENING.starts_with(begun) && self.held.len() <= MAX_BLANK_BYTES {
                    return false;
                }
                self.flush(deltas);
            }
            SplitState::Thinking => {
                if let Some((thinking, rest)) = self.held.split_once(CLOSING) {
                    add(deltas, ChatDelta::Thinking, thinking);
                    (self.held, self.state) = (rest.to_owned(), SplitState::Behind);
                    return true;
                }
                let n_held = (1..CLOSING.len()).rev().find(|n| self.held.ends_with(&CLOSING[..*n]));
                let ready = self.held.len() - n_held.unwrap_or(0);
                add(deltas, ChatDelta::Thinking, &self.held[..ready]);
                self.held.drain(..ready);
                return false;
            }
            SplitState::Behind => {
                let begun = self.held.trim_start();
                self.n_left_out += self.held.len() - begun.len();
                self.held = begun.to_owned();
                if !self.held.is_empty() || self.n_left_out > MAX_BLANK_BYTES {
                    self.flush(deltas);
                }
            }
            SplitState::Text => self.flush(deltas),
        }
        false
    }

    fn flush(&mut self, deltas: &mut Vec<ChatDelta>) {
        self.state = SplitState::Text;
        add(deltas, ChatDelta::Text, &std::mem::take(&mut self.held));
    }
}

fn add(deltas: &mut Vec<ChatDelta>, kind: fn(String) -> ChatDelta, text: &str) {
    if !text.is_empty() {
        deltas.push(kind(text.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinking_is_found_wherever_the_text_is_divided() {
        let check = |text: &str, thinking: &str, rest: &str| {
            for cut in (0..=text.len()).filter(|cut| text.is_char_boundary(*cut)) {
                let (mut splitter, mut deltas) = (ThinkingSplitter::default(), Vec::new());
                splitter.push(&text[..cut], &mut deltas);
                splitter.push(&text[cut..], &mut deltas);
                splitter.finish(&mut deltas);
                let (mut thought, mut said) = (String::new(), String::new());
                for delta in deltas {
                    match delta {
                        ChatDelta::Thinking(text) => thought.push_str(&text),
                        ChatDelta::Text(text) => said.push_str(&text),
                        _ => unreachable!("only texts"),
                    }
                }
                assert_eq!((thought.as_str(), said.as_str()), (thinking, rest), "{text} at {cut}");
            }
        };
        check("<think>so</think>\n\nYes.", "so", "Yes.");
        check("\n<think>é</think>ja", "é", "ja");
        check("<think></think>", "", "");
        check("<think>a </thin b", "a </thin b", "");
        check("A <think>tag</think>.", "", "A <think>tag</think>.");
        check("<thing>", "", "<thing>");
        check("  x", "", "  x");
        check("<", "", "<");
    }

    #[test]
    fn endless_white_space_is_text_after_a_while() {
        let check = |first: &str| {
            let (mut splitter, mut deltas) = (ThinkingSplitter::default(), Vec::new());
            splitter.push(first, &mut deltas);
            deltas.clear();
            for _ in 0..3 * MAX_BLANK_BYTES {
                splitter.push(" ", &mut deltas);
                assert!(splitter.held.len() <= MAX_BLANK_BYTES, "{first}");
            }
            assert!(deltas.len() >= MAX_BLANK_BYTES, "{first}: {}", deltas.len());
        };
        check("");
        check("<think>so</think>");
    }
}
