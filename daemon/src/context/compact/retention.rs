//! Retention: the texts and names that a compaction must keep, and the number of them that the new context shows.
//!
//! Retention is measured on the messages that a model is sent, not on the plan for them. Facts are counted over the whole
//! session: what one compaction lost stays lost in the figures of the next. They are counted again on later prompts, which
//! show more or less of them. What only a search of the log would find again counts as lost: the model is not shown it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::ControlFlow;

use ollm_protocol::Seq;
use ollm_protocol::content::{Checkpoint, ContextMessage, RecordBody, Retention};

use super::values::{SearchedText, Value, has_names, values};

use crate::context::input::{BuildInput, FactSource};
use crate::context::path::{Contents, ContentsError, for_each_record};
use crate::facts::one_line;

/// Maximum number of files that are looked for: those that were changed last. Files of long ago may be no more than a
/// number in the ledger.
const MAX_FILES: usize = 10;
/// Maximum number of identifiers that are looked for: the most frequent ones.
const MAX_IDENTIFIERS: usize = 64;
/// Maximum number of distinct words that are counted. Frequent words occur early in any range.
const MAX_WORDS: usize = 20_000;
/// Bytes of the shortest identifier; shorter words are in every text.
const MIN_WORD_BYTES: usize = 4;
/// Bytes of the longest identifier; longer words are data.
const MAX_WORD_BYTES: usize = 80;
/// Characters that suffice to find a text again.
const PROBE_CHARS: usize = 60;

/// The texts and names that a compaction must keep.
#[derive(Clone, Debug, Default)]
pub(crate) struct RetentionTargets {
    /// The first message of the user, if there is one.
    task: Vec<String>,
    /// The texts of pinned records.
    pins: Vec<String>,
    /// The decisions that the goal locks.
    decisions: Vec<String>,
    /// Files that tools changed.
    files: Vec<String>,
    /// Identifiers that occur more than once in the range.
    identifiers: Vec<String>,
    /// The values of the notes before that no fact states.
    values: BTreeSet<Value>,
}

/// The texts of one compaction whose survival is measured.
pub(crate) struct MeasuredTexts {
    /// The files that tools changed, the newest last.
    pub files: Vec<String>,
    pub identifiers: Vec<String>,
}

/// Returns the targets of a compaction: task, pins and decisions of the session, files and identifiers of the range, and
/// the values of the notes before.
///
/// `notes`: the checkpoints before the compaction.
pub(crate) fn retention_targets(
    input: &BuildInput<'_>,
    contents: &dyn Contents,
    notes: &[Checkpoint],
    texts_of_range: MeasuredTexts,
) -> Result<RetentionTargets, ContentsError> {
    let MeasuredTexts { files, identifiers } = texts_of_range;
    let task = input.path.iter().find(|item| item.is_user_message()).map(|item| item.seq);
    let task = texts(contents, task.as_slice())?;
    let on_path = |seq: &&Seq| input.path.binary_search_by_key(*seq, |item| item.seq).is_ok();
    let pins: Vec<Seq> = input.pins.iter().filter(on_path).copied().collect();
    let pins = texts(contents, &pins)?;
    let files = files[files.len().saturating_sub(MAX_FILES)..].to_vec();
    let mut known = BTreeSet::new();
    let lasting = notes.iter().filter(|checkpoint| !checkpoint.provisional);
    lasting.for_each(|one| known.extend(values(&one.summary, has_names(&one.summary))));
    if !known.is_empty() {
        let facts = input.facts.map_or_else(Vec::new, FactSource::texts);
        let stated: HashSet<String> =
            facts.iter().flat_map(|text| values(text, true)).map(|value| value.text).collect();
        known.retain(|value| !stated.contains(&value.text));
    }
    let decisions = input.decisions.to_vec();
    Ok(RetentionTargets { task, pins, decisions, files, identifiers, values: known })
}

/// Returns the texts of records, without damaged ones.
fn texts(contents: &dyn Contents, records: &[Seq]) -> Result<Vec<String>, ContentsError> {
    let mut texts = Vec::new();
    for_each_record(contents, records, |_, body| {
        match body {
            RecordBody::Message(message) => texts.push(message.sent_text()),
            RecordBody::ToolCall(call) => texts.push(call.result.llm_content.clone()),
            RecordBody::Custom(custom) => texts.extend(custom.context_text.clone()),
            _ => {}
        }
        ControlFlow::Continue(())
    })?;
    Ok(texts)
}

/// Counts the targets that messages name, and the facts of the session that they say.
pub(crate) fn measure_retention(
    targets: &RetentionTargets,
    facts: Option<&dyn FactSource>,
    messages: &[ContextMessage],
) -> Retention {
    let whole = prompt_text(messages);
    let flat = one_line(&whole);
    let words: HashSet<&str> = words(&whole).collect();
    let searched = SearchedText::new(&whole);
    let n_values = targets.values.iter().filter(|value| searched.has(value)).count();
    let texts = |texts: &[String]| count_kept(texts, |text| flat.contains(&probe(text)));
    Retention {
        task: texts(&targets.task),
        pins: texts(&targets.pins),
        decisions: texts(&targets.decisions),
        files: count_kept(&targets.files, |path| whole.contains(path)),
        identifiers: count_kept(&targets.identifiers, |name| words.contains(name)),
        values: (small(n_values), small(targets.values.len())),
        facts: facts.map_or((0, 0), |facts| count_facts(facts, &whole)),
    }
}

/// Returns a retention with the facts of the session that the text of another prompt says.
pub(crate) fn recount_facts(
    retention: Retention,
    facts: &dyn FactSource,
    prompt: &str,
) -> Retention {
    Retention { facts: count_facts(facts, prompt), ..retention }
}

fn count_facts(facts: &dyn FactSource, text: &str) -> (u32, u32) {
    let (said, all) = facts.count_lasting(text);
    // Probabilities add up to hardly any whole number.
    (rounded(said), rounded(all))
}

/// Returns the contents and the calls of messages.
pub(crate) fn prompt_text(messages: &[ContextMessage]) -> String {
    let mut whole = String::new();
    for message in messages {
        whole.push_str(&message.content);
        whole.push('\n');
        for call in &message.tool_calls {
            whole.push_str(&call.function.arguments.to_string());
            whole.push('\n');
        }
    }
    whole
}

/// Returns the percentage of the facts and of the values of the notes that was kept; without any, of the other targets; 100
/// without any of them.
pub(crate) fn retained_percent(retention: &Retention) -> u32 {
    let Retention { task, pins, decisions, files, identifiers, values, facts } = *retention;
    let (kept, all) = (facts.0.saturating_add(values.0), facts.1.saturating_add(values.1));
    if let Some(percent) = kept.saturating_mul(100).checked_div(all) {
        return percent;
    }
    let parts: Vec<(u32, u32)> = [task, pins, decisions, files, identifiers]
        .into_iter()
        .filter(|(_, all)| *all > 0)
        .collect();
    let n_parts = u32::try_from(parts.len()).unwrap_or(u32::MAX);
    let sum: u32 = parts.iter().map(|(kept, all)| kept.saturating_mul(100) / all).sum();
    sum.checked_div(n_parts).unwrap_or(100)
}

/// Returns the number of targets that are kept, and of all.
fn count_kept(all: &[String], is_kept: impl Fn(&str) -> bool) -> (u32, u32) {
    let n_kept = all.iter().filter(|text| is_kept(text)).count();
    (small(n_kept), small(all.len()))
}

fn small(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "casts saturate")]
fn rounded(n: f32) -> u32 {
    n.round() as u32
}

/// Returns the beginning of a text, by which the text is found in another form.
fn probe(text: &str) -> String {
    let text = one_line(text.get(..text.len().min(8 * PROBE_CHARS)).unwrap_or(text));
    text.chars().take(PROBE_CHARS).collect::<String>().trim_end().to_owned()
}

/// The occurrences of identifiers in records.
#[derive(Debug, Default)]
pub(super) struct IdentifierCounts(HashMap<String, u32>);

impl IdentifierCounts {
    /// Counts the identifiers of a record.
    pub(super) fn add(&mut self, body: &RecordBody) {
        match body {
            RecordBody::Message(message) => self.add_text(&message.sent_text()),
            RecordBody::ToolCall(call) => {
                self.add_text(&call.args.to_string());
                self.add_text(&call.result.llm_content);
            }
            _ => {}
        }
    }

    fn add_text(&mut self, text: &str) {
        for word in words(text).filter(|word| is_identifier(word)) {
            if let Some(count) = self.0.get_mut(word) {
                *count += 1;
            } else if self.0.len() < MAX_WORDS {
                self.0.insert(word.to_owned(), 1);
            }
        }
    }

    /// Returns the identifiers that occur more than once, the most frequent first.
    pub(super) fn frequent(self) -> Vec<String> {
        let mut all: Vec<(String, u32)> = self.0.into_iter().filter(|(_, n)| *n > 1).collect();
        all.sort_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
        all.truncate(MAX_IDENTIFIERS);
        all.into_iter().map(|(name, _)| name).collect()
    }
}

/// Returns the words of a text as code has them; each part of a path is a word.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|char: char| !(char.is_alphanumeric() || char == '_'))
        .filter(|word| (MIN_WORD_BYTES..=MAX_WORD_BYTES).contains(&word.len()))
}

/// Whether a word is an identifier: it has an underscore, or a capital within.
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

    #[test]
    fn named_targets_count_as_kept() {
        let texts = |all: &[&str]| all.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let targets = RetentionTargets {
            task: texts(&["Build  the\nparser, please"]),
            pins: texts(&["never use unsafe", "gone"]),
            decisions: texts(&["use serde"]),
            files: texts(&["src/lib.rs", "src/main.rs"]),
            identifiers: texts(&["parse_value", "TokenKind", "lost_name"]),
            values: BTreeSet::new(),
        };
        let text = "Build the parser, please. never use unsafe; use serde. src/lib.rs has parse_value and TokenKind";
        let message = ContextMessage::text(Role::User, text);
        let retention = measure_retention(&targets, None, &[message]);
        let expect = Retention {
            task: (1, 1),
            pins: (1, 2),
            decisions: (1, 1),
            files: (1, 2),
            identifiers: (2, 3),
            values: (0, 0),
            facts: (0, 0),
        };
        assert_eq!(retention, expect);
        assert_eq!(retained_percent(&retention), (100 + 50 + 100 + 50 + 66) / 5);
        assert_eq!(retained_percent(&Retention::default()), 100);
    }

    #[test]
    fn facts_and_values_of_notes_count_together() {
        /// Facts of which the first is said if a text has its words.
        struct TwoFacts;
        impl FactSource for TwoFacts {
            fn lines(
                &self,
                _: &str,
                _: &dyn Fn(Seq) -> bool,
                _: u64,
                _: &dyn Fn(&str) -> u64,
            ) -> String {
                String::new()
            }
            fn unsaid_records(&self, _: &str) -> HashMap<Seq, f32> {
                HashMap::new()
            }
            fn count_lasting(&self, text: &str) -> (f32, f32) {
                (if text.contains("port: 48213") { 1.2 } else { 0.0 }, 2.1)
            }
            fn texts(&self) -> Vec<String> {
                Vec::new()
            }
        }
        let notes = "- port: 48213\n- key: /etc/a.pem\n- host: vega-7\n- build: 9f3c2e71";
        let targets = RetentionTargets {
            values: values(notes, has_names(notes)).into_iter().collect(),
            ..RetentionTargets::default()
        };
        let shown = ContextMessage::text(Role::User, "- port: 48213\n- host: vega-7\n- 9f3c2e71");
        let retention = measure_retention(&targets, Some(&TwoFacts), &[shown]);
        assert_eq!((retention.values, retention.facts), ((3, 4), (1, 2)));
        assert_eq!(retained_percent(&retention), 4 * 100 / 6);
        let later = recount_facts(retention, &TwoFacts, "nothing");
        assert_eq!((later.values, later.facts, retained_percent(&later)), ((3, 4), (0, 2), 50));
    }

    #[test]
    fn repeated_names_are_identifiers() {
        let mut identifiers = IdentifierCounts::default();
        let text = "parse_value calls parse_value; TokenKind TokenKind once_only the the THE_THE 1a_b 1a_b";
        let at = Timestamp::from_unix_ms(0);
        identifiers.add(&RecordBody::Message(Message::text(Role::Assistant, text, at)));
        assert_eq!(identifiers.frequent(), ["TokenKind", "parse_value"]);
    }
}
