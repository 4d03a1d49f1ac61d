//! What a compaction was to keep, and how much of it the new context still names.
//!
//! Measured on the messages that a model is sent, not on what anybody meant to keep.

use std::collections::{HashMap, HashSet};

use ollm_protocol::content::{ContextMessage, RecordBody, Retention};

/// Most identifiers that are looked for: the most frequent ones; the rest says nothing new.
const MAX_IDENTIFIERS: usize = 64;
/// Most different words that are counted; in a range of any size the frequent ones come early.
const MAX_WORDS: usize = 20_000;
/// Shorter words are in every text.
const MIN_LENGTH: usize = 4;
/// Longer ones are data.
const MAX_LENGTH: usize = 80;
/// Characters of a text that are enough to find it again.
const PROBE_CHARS: usize = 60;

/// What must not be lost.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kept {
    /// The first message of the user.
    pub task: Option<String>,
    /// The texts of pinned records.
    pub pins: Vec<String>,
    /// Locked decisions.
    pub decisions: Vec<String>,
    /// Paths of files that tools changed.
    pub files: Vec<String>,
    /// Identifiers that occur more than once in what is compacted.
    pub identifiers: Vec<String>,
}

/// How much of it the messages name.
pub(crate) fn measure(kept: &Kept, messages: &[ContextMessage]) -> Retention {
    let mut whole = String::new();
    for message in messages {
        whole.push_str(&message.content);
        whole.push('\n');
        for call in &message.tool_calls {
            whole.push_str(&call.function.arguments.to_string());
            whole.push('\n');
        }
    }
    let flat = flat(&whole);
    let words: HashSet<&str> = words(&whole).collect();
    let texts = |texts: &[String]| share(texts.iter(), |text| flat.contains(&probe(text)));
    Retention {
        task: share(kept.task.iter(), |text| flat.contains(&probe(text))),
        pins: texts(&kept.pins),
        decisions: texts(&kept.decisions),
        files: share(kept.files.iter(), |path| whole.contains(path)),
        identifiers: share(kept.identifiers.iter(), |name| words.contains(name)),
    }
}

/// The part that is kept, in percent; 100 where there was nothing to keep.
pub(crate) fn percent(retention: &Retention) -> u32 {
    let Retention { task, pins, decisions, files, identifiers } = *retention;
    let parts: Vec<(u32, u32)> = [task, pins, decisions, files, identifiers]
        .into_iter()
        .filter(|(_, all)| *all > 0)
        .collect();
    let n_parts = u32::try_from(parts.len()).unwrap_or(u32::MAX);
    let sum: u32 = parts.iter().map(|(kept, all)| kept.saturating_mul(100) / all).sum();
    sum.checked_div(n_parts).unwrap_or(100)
}

fn share<'t>(
    all: impl ExactSizeIterator<Item = &'t String>,
    is_kept: impl Fn(&str) -> bool,
) -> (u32, u32) {
    let total = u32::try_from(all.len()).unwrap_or(u32::MAX);
    let kept = all.filter(|text| is_kept(text)).count();
    (u32::try_from(kept).unwrap_or(u32::MAX), total)
}

/// The beginning of a text, by which it is found in another form of itself.
fn probe(text: &str) -> String {
    let text = flat(text.get(..text.len().min(8 * PROBE_CHARS)).unwrap_or(text));
    text.chars().take(PROBE_CHARS).collect::<String>().trim_end().to_owned()
}

/// A text with single spaces only.
fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Counts identifiers in records.
#[derive(Debug, Default)]
pub(crate) struct Identifiers(HashMap<String, u32>);

impl Identifiers {
    /// Takes the next record.
    pub(crate) fn see(&mut self, body: &RecordBody) {
        match body {
            RecordBody::Message(message) => self.text(&message.plain_text()),
            RecordBody::ToolCall(call) => {
                self.text(&call.args.to_string());
                self.text(&call.result.llm_content);
            }
            _ => {}
        }
    }

    fn text(&mut self, text: &str) {
        for word in words(text).filter(|word| is_identifier(word)) {
            if let Some(count) = self.0.get_mut(word) {
                *count += 1;
            } else if self.0.len() < MAX_WORDS {
                self.0.insert(word.to_owned(), 1);
            }
        }
    }

    /// Those that occur more than once, the most frequent first.
    pub(crate) fn frequent(self) -> Vec<String> {
        let mut all: Vec<(String, u32)> = self.0.into_iter().filter(|(_, n)| *n > 1).collect();
        all.sort_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
        all.truncate(MAX_IDENTIFIERS);
        all.into_iter().map(|(name, _)| name).collect()
    }
}

/// Names as code has them, the parts of a path each.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|char: char| !(char.is_alphanumeric() || char == '_'))
        .filter(|word| (MIN_LENGTH..=MAX_LENGTH).contains(&word.len()))
}

/// Whether a word is a name rather than a word of a language: it has an underscore, or a capital within.
fn is_identifier(word: &str) -> bool {
    let mut chars = word.chars();
    if chars.next().is_none_or(|first| first.is_numeric()) {
        return false;
    }
    let is_mixed = word.chars().any(char::is_lowercase) && chars.any(char::is_uppercase);
    is_mixed || word.trim_matches('_').contains('_')
}

#[cfg(test)]
mod tests {
    use ollm_protocol::Timestamp;
    use ollm_protocol::content::{Message, Role};

    use super::*;

    fn sent(text: &str) -> Vec<ContextMessage> {
        vec![ContextMessage {
            role: Role::User,
            content: text.to_owned(),
            tool_calls: Vec::new(),
            tool_name: None,
            tool_call_id: None,
            images: Vec::new(),
        }]
    }

    #[test]
    fn what_is_named_counts_and_what_is_not_does_not() {
        let texts = |all: &[&str]| all.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let kept = Kept {
            task: Some("Build  the\nparser, please".to_owned()),
            pins: texts(&["never use unsafe", "gone"]),
            decisions: texts(&["use serde"]),
            files: texts(&["src/lib.rs", "src/main.rs"]),
            identifiers: texts(&["parse_value", "TokenKind", "lost_name"]),
        };
        let text = "Build the parser, please. never use unsafe; use serde. src/lib.rs has parse_value and TokenKind";
        let retention = measure(&kept, &sent(text));
        let expect = Retention {
            task: (1, 1),
            pins: (1, 2),
            decisions: (1, 1),
            files: (1, 2),
            identifiers: (2, 3),
        };
        assert_eq!(retention, expect);
        assert_eq!(percent(&retention), (100 + 50 + 100 + 50 + 66) / 5);
        assert_eq!(percent(&Retention::default()), 100);
    }

    #[test]
    fn names_that_come_again_are_identifiers() {
        let mut identifiers = Identifiers::default();
        let text = "parse_value calls parse_value; TokenKind TokenKind once_only the the THE_THE 1a_b 1a_b";
        let at = Timestamp::from_unix_ms(0);
        identifiers.see(&RecordBody::Message(Message::text(Role::Assistant, text, at)));
        assert_eq!(identifiers.frequent(), ["TokenKind", "parse_value"]);
    }
}
