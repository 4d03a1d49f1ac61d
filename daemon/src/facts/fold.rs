//! The fold of a session's facts: which ones hold after each record.
//!
//! **Invariants**: the same records in the same order give the same facts, whether they are folded one by one or at
//! once; the memory and the time of a record are bounded whatever the session says.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ollm_protocol::content::{
    AskedFact, ContextEntryChange, Custom, Message, Record, RecordBody, Role,
};
use ollm_protocol::{Seq, Timestamp};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use super::before::{AskedQuestion, RequestsBefore, SentenceBefore, needs_question};
use super::candidate::{FactValue, SentenceReading, SentenceSort, joined, read_sentence};
use super::counts::{Count, counts_alike};
use super::features::{Feature, FeatureSet, SentencePlace};
use super::lexicon::ClassSet;
use super::numbers::*;
use super::replacement::{Pair, PairFeatures};
use super::said::{SaidText, SearchedFact};
use super::sentences::for_each_sentence;

/// The name of the custom records that suppress facts. FORMAT.md, "Facts".
pub(crate) const FORGET_RECORD: &str = "ollm.forgetFact";

/// The data of a record that suppresses facts or shows them again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ForgottenFact {
    /// The record that states the facts.
    pub(crate) seq: Seq,
    /// The digest of the text of one fact; absent for all facts of the record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) digest: Option<String>,
    /// Whether the facts are shown again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) restored: bool,
}

/// A fact in force.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct KnownFact {
    /// The record that states it.
    pub(crate) seq: Seq,
    /// The number of the fact among those of its record, from 0.
    pub(crate) index: u32,
    pub(crate) at: Timestamp,
    pub(crate) text: String,
    pub(crate) values: Vec<FactValue>,
    pub(crate) is_rule: bool,
    /// The key of the context entry that states it, if no message does.
    pub(crate) entry: Option<String>,
    /// The record whose fact this one replaced.
    pub(crate) supersedes: Option<Seq>,
    /// The text of that fact if it may still hold.
    before: Option<String>,
    /// The number of times that the same was said again.
    pub(crate) n_repeats: u32,
    /// The text and its values as other texts are searched for them.
    pub(crate) searched: SearchedFact,
    /// The hashes of the words that the fact is about, sorted.
    pub(super) subject: Vec<u64>,
    /// The hashes of the words of its values, sorted.
    pub(super) value_words: Vec<u64>,
    /// Neighbors among the words that it is about, as in [`SentenceReading`].
    pub(super) neighbors: Vec<(u64, u64)>,
    /// Its numbers of something.
    pub(super) counts: Vec<Count>,
    /// The classes of its words.
    pub(super) classes: ClassSet,
    /// The score of its sentence, or of one that it replaced.
    pub(super) score: f32,
    /// Whether it denies or forbids something.
    pub(super) is_denial: bool,
    /// The number of the message, from 0.
    message: u32,
    /// Set if a model was asked about it.
    pub(super) is_asked: bool,
    /// Set if a model chose it, or one that it replaced.
    pub(super) is_chosen: bool,
}

impl KnownFact {
    fn new(reading: SentenceReading, source: &FactOccasion<'_>) -> Self {
        let SentenceReading { text, values, subject, value_words, neighbors, counts, .. } = reading;
        Self {
            searched: SearchedFact::new(&text, &values),
            seq: source.seq,
            index: source.index,
            at: source.at,
            text,
            values,
            is_rule: reading.is_rule,
            entry: source.entry.map(str::to_owned),
            supersedes: None,
            before: None,
            n_repeats: 0,
            subject,
            value_words,
            neighbors,
            counts,
            classes: reading.classes,
            score: reading.score,
            is_denial: reading.is_denial,
            message: source.message,
            is_asked: false,
            is_chosen: false,
        }
    }

    /// Returns whether it goes on with the fact before it, which may still hold.
    pub(super) const fn is_in_doubt(&self) -> bool {
        self.before.is_some()
    }

    /// Returns the text, with that of the fact before it if that one may still hold.
    pub(crate) fn shown(&self) -> Cow<'_, str> {
        match &self.before {
            Some(before) => Cow::Owned(format!("{} (before: {before})", self.text)),
            None => Cow::Borrowed(&self.text),
        }
    }

    /// Returns the hashes of all words.
    fn words(&self) -> Vec<u64> {
        joined(&self.subject, &self.value_words)
    }

    /// Returns a short digest of the text, by which a fact is suppressed.
    pub(crate) fn digest(&self) -> String {
        blake3::hash(self.text.as_bytes()).to_hex()[..16].to_owned()
    }
}

/// A fact with its score.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RankedFact<'f> {
    pub(crate) fact: &'f KnownFact,
    pub(crate) score: f32,
    pub(crate) is_pinned: bool,
    /// Whether the user suppressed it.
    pub(crate) is_forgotten: bool,
}

impl RankedFact<'_> {
    /// Returns the probability that the fact lasts.
    pub(crate) fn probability(&self) -> f32 {
        1.0 / (1.0 + (-self.score).exp())
    }

    /// Returns whether the fact is worth its tokens in a prompt. The system message has what an entry states.
    pub(crate) fn is_worth_showing(&self) -> bool {
        !self.is_forgotten && self.fact.entry.is_none()
    }
}

/// The facts of a session after some records.
#[derive(Clone, Debug, Default)]
pub(crate) struct FactFold {
    /// The facts in force by their number, which grows with the log.
    facts: BTreeMap<u32, KnownFact>,
    next: u32,
    /// The facts of each word that facts are about.
    by_word: FxHashMap<u64, Vec<u32>>,
    /// The number of messages that each value occurs in.
    value_counts: FxHashMap<u64, u32>,
    n_messages: u32,
    forgotten: BTreeSet<(Seq, Option<String>)>,
    /// The question that the assistant's last message ends with.
    question: Option<AskedQuestion>,
    /// The newest compaction in which a model was asked about facts.
    pub(crate) asked_at: Option<Seq>,
    /// The facts that a later sentence replaced or took back: the newest.
    ended: VecDeque<SearchedFact>,
}

impl FactFold {
    /// Applies the next record of the path.
    pub(crate) fn apply(&mut self, record: Record) {
        let (seq, at) = (record.seq, record.at);
        match record.into_body() {
            Some(RecordBody::Message(message)) if message.role == Role::User => {
                self.message(seq, at, &message);
            }
            Some(RecordBody::Message(message)) if message.role == Role::Assistant => {
                self.question = AskedQuestion::at_the_end_of(&message.sent_text());
            }
            Some(RecordBody::ContextEntry(change)) => self.entry(seq, at, change),
            Some(RecordBody::Custom(custom)) if custom.name == FORGET_RECORD => {
                self.forget(&custom)
            }
            Some(RecordBody::Compaction(compaction)) if !compaction.asked.is_empty() => {
                self.asked_at = Some(seq);
                self.note_asked(&compaction.asked);
            }
            _ => {}
        }
    }

    /// Returns the facts in the order of the log, the suppressed ones too. Sentences that hardly last are none, until the talk
    /// comes back to them.
    pub(crate) fn ranked(&self, pins: &[Seq]) -> Vec<RankedFact<'_>> {
        self.ranked_from(MIN_SCORE, pins)
    }

    /// Returns the facts from a score on, as [`Self::ranked`] does.
    pub(super) fn ranked_from(&self, least: f32, pins: &[Seq]) -> Vec<RankedFact<'_>> {
        let ranked = self.facts.values().filter_map(|fact| {
            let is_pinned = pins.contains(&fact.seq);
            let score = self.score(fact) + if is_pinned { PIN_SCORE } else { 0.0 };
            if score < least && fact.entry.is_none() {
                return None;
            }
            let is_forgotten = self.is_suppressed(fact);
            Some(RankedFact { fact, score, is_pinned, is_forgotten })
        });
        ranked.collect()
    }

    /// Returns how many sentences of the user that last a text says, and how many there are, as far as their scores tell:
    /// each sentence counts by its probability to last, also the many that are not listed, of which some last.
    pub(crate) fn count_lasting(&self, text: &str, pins: &[Seq]) -> (f32, f32) {
        let text = SaidText::new(text);
        let ranked = self.ranked_from(MIN_CANDIDATE_SCORE, pins);
        let mut counts = (0.0, 0.0);
        for one in ranked.iter().filter(|one| one.is_worth_showing()) {
            counts.1 += one.probability();
            if text.says(&one.fact.searched) {
                counts.0 += one.probability();
            }
        }
        counts
    }

    /// Notes which facts a model was asked about, and which of them it chose.
    pub(crate) fn note_asked(&mut self, asked: &[AskedFact]) {
        // Logs that are imported can hold more.
        let asked = &asked[..asked.len().min(MAX_CANDIDATES)];
        for fact in self.facts.values_mut() {
            let mut of_record = asked.iter().filter(|one| one.seq == fact.seq);
            if let Some(one) = of_record.find(|one| one.digest == fact.digest()) {
                (fact.is_asked, fact.is_chosen) = (true, fact.is_chosen || one.chosen);
            }
        }
    }

    /// Returns the number of facts and counted values, which the memory of a fold depends on.
    pub(crate) fn n_items(&self) -> usize {
        self.facts.len() + self.value_counts.len() + self.ended.len()
    }

    /// Returns whether a line of notes surely says a fact that does not hold any more or is suppressed, and perhaps none
    /// that holds.
    pub(crate) fn is_outdated(&self, line: &str) -> bool {
        let line = SaidText::new(line);
        let mut is_outdated = self.ended.iter().any(|fact| line.says_surely(fact));
        for fact in self.facts.values().filter(|fact| line.says(&fact.searched)) {
            if !self.is_suppressed(fact) {
                return false;
            }
            is_outdated |= line.says_surely(&fact.searched);
        }
        is_outdated
    }

    /// Whether a record's facts, or one of them by its digest, are suppressed.
    pub(crate) fn is_forgotten(&self, seq: Seq, digest: Option<&str>) -> bool {
        self.forgotten.contains(&(seq, digest.map(str::to_owned)))
    }

    fn is_suppressed(&self, fact: &KnownFact) -> bool {
        // Few sessions have suppressed facts, and a digest takes longer than the rest.
        !self.forgotten.is_empty()
            && (self.is_forgotten(fact.seq, None)
                || self.is_forgotten(fact.seq, Some(&fact.digest())))
    }

    fn message(&mut self, seq: Seq, at: Timestamp, message: &Message) {
        let text = message.plain_text();
        let question = self.question.take();
        self.read(seq, at, &text, question.as_ref(), None);
    }

    fn entry(&mut self, seq: Seq, at: Timestamp, change: ContextEntryChange) {
        let is_of_user = change.source.as_deref().is_none_or(|source| source == "user");
        let known =
            self.facts.iter().filter(|(_, fact)| fact.entry.as_deref() == Some(&change.key));
        let known: Vec<u32> = known.map(|(id, _)| *id).collect();
        for id in known {
            self.remove(id);
        }
        if let Some(text) = change.content.filter(|_| is_of_user) {
            self.read(seq, at, &text, None, Some(&change.key));
        }
    }

    fn forget(&mut self, custom: &Custom) {
        // Clients can record anything under this name.
        let Ok(change) = serde_json::from_value::<ForgottenFact>(custom.data.clone()) else {
            return;
        };
        let fact = (change.seq, change.digest);
        if !change.restored {
            if self.forgotten.len() < MAX_FORGOTTEN {
                self.forgotten.insert(fact);
            }
        } else if fact.1.is_none() {
            self.forgotten.retain(|(seq, _)| *seq != fact.0);
        } else {
            self.forgotten.remove(&fact);
        }
    }

    /// Reads the sentences of a text, which a message or an entry has. The first one may answer a question.
    fn read(
        &mut self,
        seq: Seq,
        at: Timestamp,
        text: &str,
        mut question: Option<&AskedQuestion>,
        entry: Option<&str>,
    ) {
        let message = self.n_messages;
        self.n_messages = self.n_messages.saturating_add(1);
        let mut index = 0;
        let mut seen = BTreeSet::new();
        let mut before = SentenceBefore::default();
        let mut requests = RequestsBefore::default();
        for_each_sentence(text, |at_byte, sentence| {
            if seen.len() >= MAX_VALUES_COUNTED || index as usize >= MAX_MESSAGE_FACTS {
                return;
            }
            let before = std::mem::replace(&mut before, SentenceBefore::of(sentence));
            requests.begin(text, at_byte, sentence);
            let asked = question.take();
            let place = SentencePlace { question: asked.map(|question| question.classes) };
            let Some(mut reading) = read_sentence(sentence, place) else { return };
            let middle = if is_in_middle(text, at_byte) { MIDDLE_SCORE } else { 0.0 };
            let lost_score = middle + requests.lost_score(&reading);
            reading.score -= lost_score;
            if let Some(question) = asked.filter(|_| needs_question(&reading)) {
                question.complete(&mut reading);
            }
            for value in &reading.values {
                if seen.insert(value.hash) {
                    self.count(value.hash);
                }
            }
            if reading.sort == SentenceSort::Retraction && !self.take_back(&mut reading, message) {
                return;
            }
            let is_stated = reading.is_stated();
            let joined = || before.joined(sentence, lost_score);
            let (reading, earlier) = self.with_earlier(reading, joined, message);
            if is_stated || earlier.is_some_and(Earlier::is_replaced) {
                let source = FactOccasion { seq, index, at, entry, message };
                self.state(reading, earlier, &source);
                index += 1;
            }
        });
    }

    /// Takes back the facts that a sentence means, and gives the sentence their highest score. Returns whether the sentence
    /// may state something itself.
    fn take_back(&mut self, reading: &mut SentenceReading, message: u32) -> bool {
        let taken_back = self.retract(reading, message);
        let scores = taken_back.iter().map(|fact| fact.score);
        reading.score = scores.fold(reading.score, f32::max);
        taken_back.is_empty() || states_more(&taken_back, reading)
    }

    /// Finds the fact that a sentence replaces or repeats. If it replaces none and says little alone, it is read together with
    /// the sentence before it: `They moved the exam. It is at 11 now.`
    fn with_earlier(
        &self,
        reading: SentenceReading,
        joined: impl FnOnce() -> Option<SentenceReading>,
        message: u32,
    ) -> (SentenceReading, Option<Earlier>) {
        let may_be = reading.is_stated() || reading.may_correct();
        let alone = may_be.then(|| self.earlier(&reading, message, false)).flatten();
        if alone.is_some_and(Earlier::is_replaced) || !reading.says_little() {
            return (reading, alone);
        }
        // A statement of something else stays apart: a later correction of one must not replace both.
        let is_apart = reading.is_stated()
            && !reading.refers_back
            && !reading.may_correct()
            && !reading.subject.is_empty();
        let together = joined().and_then(|joined| {
            let earlier = self.earlier(&joined, message, true)?;
            let is_kept = is_apart && self.facts[&earlier.id].message == message;
            (earlier.is_replaced() && !is_kept).then_some((joined, Some(earlier)))
        });
        together.unwrap_or((reading, alone))
    }

    fn count(&mut self, value: u64) {
        if let Some(count) = self.value_counts.get_mut(&value) {
            *count += 1;
        } else if self.value_counts.len() < MAX_VALUES_COUNTED {
            self.value_counts.insert(value, 1);
        }
    }

    /// Adds a fact in place of the one that it replaces or repeats. In doubt, the fact goes on with the one before it.
    fn state(
        &mut self,
        reading: SentenceReading,
        earlier: Option<Earlier>,
        source: &FactOccasion<'_>,
    ) {
        let says_something = !reading.features.has(Feature::Unsaid);
        let mut fact = KnownFact::new(reading, source);
        let known = earlier.and_then(|earlier| Some((self.remove(earlier.id)?, earlier.relation)));
        if let Some((known, relation)) = known {
            match relation {
                Relation::Repeated => {
                    // `Go on with the next part` is said again and again.
                    fact.n_repeats = known.n_repeats.saturating_add(u32::from(says_something));
                    (fact.supersedes, fact.before) = (known.supersedes, known.before);
                }
                Relation::Replaced => {
                    // What the known fact went on with may hold beside any correction of it.
                    fact.before = known.before;
                    let is_same_record = known.seq == fact.seq;
                    fact.supersedes =
                        if is_same_record { known.supersedes } else { Some(known.seq) };
                    // A sentence that is read together with the next one is still said.
                    if !(is_same_record && fact.text.starts_with(&known.text)) {
                        self.note_ended(known.searched);
                    }
                }
                Relation::InDoubt => {
                    (fact.supersedes, fact.before) = (Some(known.seq), Some(known.text));
                }
            }
            // A correction matters as much as what it corrects, however briefly it is said.
            fact.score = fact.score.max(known.score);
            fact.is_chosen = known.is_chosen;
            fact.is_asked = known.is_asked && (known.is_chosen || relation == Relation::Repeated);
        }
        self.insert(fact);
    }

    fn insert(&mut self, fact: KnownFact) {
        for word in fact.words() {
            self.by_word.entry(word).or_default().push(self.next);
        }
        self.facts.insert(self.next, fact);
        self.next += 1;
        if self.facts.len() > MAX_FACTS {
            self.drop_least();
        }
    }

    /// Returns the fact that a sentence replaces or repeats. Two sentences that were read as one replace none of their own
    /// message, except a correction that the first one is.
    fn earlier(&self, reading: &SentenceReading, message: u32, is_joined: bool) -> Option<Earlier> {
        let mut pairs = self.pairs(reading, message);
        // The first sentence may have corrected something already: `They moved the exam.`
        let is_first =
            |fact: &KnownFact| fact.supersedes.is_some() && reading.text.starts_with(&fact.text);
        let is_meant = |fact: &KnownFact| fact.message != message || is_first(fact);
        pairs.retain(|(id, _)| !is_joined || is_meant(&self.facts[id]));
        let scored = pairs.iter().map(|(id, features)| (features.score(), *id, features));
        let best = scored.max_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
        let repeated = pairs
            .iter()
            .rev()
            .find(|(id, _)| self.facts.get(id).is_some_and(|fact| is_repeated(fact, reading)));
        match (repeated, best) {
            (Some((id, _)), _) => Some(Earlier { id: *id, relation: Relation::Repeated }),
            (None, Some((score, id, _))) if score >= MIN_REPLACEMENT_SCORE => {
                Some(Earlier { id, relation: Relation::Replaced })
            }
            (None, Some((score, id, features)))
                if score >= MIN_DOUBT_SCORE
                    && features.is_comparable()
                    && self.facts[&id].before.is_none() =>
            {
                Some(Earlier { id, relation: Relation::InDoubt })
            }
            _ => None,
        }
    }

    /// Returns the facts that a sentence may replace, with what they and the sentence have in common: those that share the
    /// most words with it, and the newest ones.
    fn pairs(&self, reading: &SentenceReading, message: u32) -> Vec<(u32, PairFeatures)> {
        let words = reading.words();
        let mut shared = self.sharing(&words);
        shared.sort_by_key(|(id, n_common)| Reverse((*n_common, *id)));
        shared.truncate(MAX_PAIRS);
        let is_recent = |fact: &KnownFact| message.abs_diff(fact.message) <= PRONOUN_MESSAGES;
        let newest = self.facts.iter().rev().take_while(|(_, fact)| is_recent(fact));
        for (id, _) in newest.take(MAX_PAIRS) {
            if !shared.iter().any(|(known, _)| known == id) {
                shared.push((*id, 0));
            }
        }
        let newest_alike = self.newest_alike(reading);
        let pairs = shared.into_iter().filter_map(|(id, _)| {
            let fact = self.facts.get(&id)?;
            // Few people correct themselves within a message, and most tables have a line for each of many things.
            if fact.message == message && !reading.is_change && !reading.is_denial {
                return None;
            }
            let is_only = |word| self.by_word.get(word).is_some_and(|ids| ids[..] == [id]);
            let pair = Pair {
                fact,
                reading,
                is_only: words.iter().any(is_only),
                is_newest_alike: newest_alike == Some(id),
            };
            Some((id, PairFeatures::of(&pair)))
        });
        pairs.collect()
    }

    /// Returns the newest fact that counts what a sentence counts; for a sentence without counts, the newest one whose last
    /// value is of the same kind.
    fn newest_alike(&self, reading: &SentenceReading) -> Option<u32> {
        let kind = reading.values.last().map(|value| value.kind);
        let is_alike = |fact: &KnownFact| match &reading.counts[..] {
            [] => fact.values.last().map(|value| value.kind) == kind,
            counts => counts_alike(counts, &fact.counts).next().is_some(),
        };
        let mut newest = self.facts.iter().rev().take(MAX_COMPARED);
        newest.find(|(_, fact)| is_alike(fact)).map(|(id, _)| *id)
    }

    /// Removes the facts that a sentence takes back, and returns them.
    fn retract(&mut self, reading: &SentenceReading, message: u32) -> Vec<KnownFact> {
        let n_words = reading.subject.len();
        let shared = self.sharing(&reading.subject);
        let is_meant = |(id, _): &(u32, usize)| {
            let fact = self.facts.get(id)?;
            let (n_common, n_all) = (n_common(fact, reading), fact.subject.len());
            let is_named = names_one_of(&reading.values, &fact.values);
            let is_part =
                n_common == n_all || n_common == n_words || 2 * n_common >= n_all.max(n_words);
            // A word of a value is not what a fact is about: `src/port.rs` is no port.
            let is_meant = n_common > 0 && is_part && (is_named || reading.values.is_empty());
            is_meant.then_some(*id)
        };
        let mut meant: Vec<u32> = shared.iter().filter_map(is_meant).collect();
        if n_words == 0 && !reading.values.is_empty() {
            // "Forget 6100" means whatever has the value.
            let known = |fact: &KnownFact| names_one_of(&reading.values, &fact.values);
            let named = self.facts.iter().filter(|(_, fact)| known(fact)).map(|(id, _)| *id);
            meant = named.collect();
        }
        if n_words == 0 && reading.values.is_empty() {
            // "Forget it" means the newest fact.
            let newest = self.facts.iter().next_back();
            let recent =
                newest.filter(|(_, fact)| message.abs_diff(fact.message) <= PRONOUN_MESSAGES);
            meant.extend(recent.map(|(id, _)| *id));
        }
        let taken_back: Vec<_> = meant.into_iter().filter_map(|id| self.remove(id)).collect();
        taken_back.iter().for_each(|fact| self.note_ended(fact.searched.clone()));
        taken_back
    }

    fn note_ended(&mut self, fact: SearchedFact) {
        if self.ended.len() == MAX_ENDED {
            self.ended.pop_front();
        }
        self.ended.push_back(fact);
    }

    /// Returns the facts that have words of a subject, with the number of these words, the oldest first.
    fn sharing(&self, subject: &[u64]) -> Vec<(u32, usize)> {
        let mut ids: Vec<u32> = Vec::new();
        for word in subject {
            let all = self.by_word.get(word).map_or(&[][..], Vec::as_slice);
            ids.extend(&all[all.len().saturating_sub(MAX_COMPARED)..]);
        }
        ids.sort_unstable();
        ids.chunk_by(|one, next| one == next).map(|same| (same[0], same.len())).collect()
    }

    fn remove(&mut self, id: u32) -> Option<KnownFact> {
        let fact = self.facts.remove(&id)?;
        for word in fact.words() {
            if let Some(ids) = self.by_word.get_mut(&word) {
                ids.retain(|one| *one != id);
                if ids.is_empty() {
                    self.by_word.remove(&word);
                }
            }
        }
        Some(fact)
    }

    /// Removes a quarter of the facts, the least important and oldest first.
    fn drop_least(&mut self) {
        let mut scored: Vec<(f32, u32)> =
            self.facts.iter().map(|(id, fact)| (self.score(fact), *id)).collect();
        scored.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
        for (_, id) in &scored[..MAX_FACTS / 4] {
            self.facts.remove(id);
        }
        self.by_word.clear();
        for (id, fact) in &self.facts {
            for word in fact.words() {
                self.by_word.entry(word).or_default().push(*id);
            }
        }
    }

    /// Returns the score of a fact: that of its sentence, more if it was said again, less if many messages have its values.
    fn score(&self, fact: &KnownFact) -> f32 {
        let n_messages = |value: &FactValue| self.value_counts.get(&value.hash).copied();
        let rarest = fact.values.iter().map(|value| n_messages(value).unwrap_or(1)).min();
        let n_others = rarest.map(|n_messages| n_messages.saturating_sub(fact.n_repeats));
        let common = n_others.map_or(0.0, doublings) * COMMON_SCORE;
        let n_repeats = fact.n_repeats.min(2);
        #[expect(clippy::cast_precision_loss, reason = "at most 2")]
        let repeats = n_repeats as f32 * REPEAT_SCORE;
        let chosen = if fact.is_chosen { CHOSEN_SCORE } else { 0.0 };
        fact.score + repeats - common + chosen
    }
}

/// Judges whether a later sentence takes the place of earlier ones, each with the number of the user's message that it is
/// in: returns their features by the number of the sentence, for those that are known.
pub(crate) fn judge_pairs(
    earlier: &[(u32, &str)],
    later: (u32, &str),
) -> Vec<(usize, Vec<&'static str>)> {
    let mut fold = FactFold::default();
    for (number, (message, text)) in earlier.iter().enumerate() {
        let Some(reading) = read_sentence(text, SentencePlace::default()) else { continue };
        let (seq, at) = (Seq(number as u64), Timestamp::from_unix_ms(0));
        let source = FactOccasion { seq, index: 0, at, entry: None, message: *message };
        fold.insert(KnownFact::new(reading, &source));
    }
    let Some(reading) = read_sentence(later.1, SentencePlace::default()) else { return Vec::new() };
    let pairs = fold.pairs(&reading, later.0).into_iter();
    let named = pairs.map(|(id, features)| {
        let number = usize::try_from(fold.facts[&id].seq.0).unwrap_or_default();
        (number, features.names().collect())
    });
    named.collect()
}

/// Returns the features of a sentence behind another text, and its score; `None` if it is data or says nothing.
pub(crate) fn judge(sentence: &str, before: &str) -> Option<(FeatureSet, f32)> {
    let question = AskedQuestion::at_the_end_of(before).map(|question| question.classes);
    let reading = read_sentence(sentence, SentencePlace { question })?;
    Some((reading.features, reading.score))
}

/// Returns the number of words that both a fact and a sentence are about.
pub(super) fn n_common(fact: &KnownFact, reading: &SentenceReading) -> usize {
    reading.subject.iter().filter(|word| fact.subject.binary_search(word).is_ok()).count()
}

/// Returns whether a sentence says a fact again: the same values of the same subject.
fn is_repeated(fact: &KnownFact, reading: &SentenceReading) -> bool {
    let (one, other) = (&fact.subject, &reading.subject);
    let n_common = n_common(fact, reading);
    let is_same_subject = n_common > 0 && n_common == one.len().min(other.len());
    has_same_values(&fact.values, &reading.values)
        && fact.is_rule == reading.is_rule
        && fact.is_denial == reading.is_denial
        && is_same_subject
        && (!fact.values.is_empty() || one.len() == other.len())
}

/// Returns whether a retraction also states a value that no retracted fact had.
fn states_more(taken_back: &[KnownFact], reading: &SentenceReading) -> bool {
    let is_new = |value: &FactValue| {
        !taken_back.iter().flat_map(|fact| &fact.values).any(|known| known.hash == value.hash)
    };
    reading.values.iter().any(is_new)
}

/// The fact that a sentence is about.
#[derive(Clone, Copy, Debug)]
struct Earlier {
    id: u32,
    relation: Relation,
}

impl Earlier {
    fn is_replaced(self) -> bool {
        self.relation == Relation::Replaced
    }
}

/// The relation of a sentence to an earlier fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    /// Says the same again.
    Repeated,
    /// Takes its place.
    Replaced,
    /// Takes its place, or does not: both are shown.
    InDoubt,
}

/// The origin of a fact.
struct FactOccasion<'e> {
    seq: Seq,
    index: u32,
    at: Timestamp,
    entry: Option<&'e str>,
    message: u32,
}

/// Returns how often one message doubles to a number of messages.
fn doublings(n_messages: u32) -> f32 {
    #[expect(clippy::cast_precision_loss, reason = "at most 1000")]
    let n_messages = n_messages.clamp(1, 1000) as f32;
    n_messages.log2()
}

/// Whether the line at a byte of a message is in the middle of the message: not near its beginning or its end.
const fn is_in_middle(text: &str, at_byte: usize) -> bool {
    text.len() >= LONG_MESSAGE_BYTES && at_byte > END_BYTES && at_byte < text.len() - END_BYTES
}

fn has_same_values(one: &[FactValue], other: &[FactValue]) -> bool {
    one.len() == other.len()
        && other.iter().all(|value| one.iter().any(|known| known.hash == value.hash))
}

fn names_one_of(values: &[FactValue], known: &[FactValue]) -> bool {
    values.iter().any(|value| known.iter().any(|known| known.hash == value.hash))
}
