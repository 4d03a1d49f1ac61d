//! The talk before a sentence: the question that its message answers, and the sentence and the requests before it in the same
//! message.

use super::candidate::{
    FactValue, SentenceReading, SentenceSort, announces_text, read_sentence, score_of,
};
use super::features::{Feature, SentencePlace};
use super::lexicon::ClassSet;
use super::numbers::*;
use super::sentences::for_each_sentence;
use crate::languages::WordClass;

/// A question of the assistant.
#[derive(Clone, Debug)]
pub(super) struct AskedQuestion {
    /// The question, with the proposal before it if it says little alone: `Is that fine?`
    text: String,
    pub(super) classes: ClassSet,
    values: Vec<FactValue>,
    subject: Vec<u64>,
    /// The score of what the question proposes, as if the user had said it.
    proposal_score: f32,
}

impl AskedQuestion {
    /// Returns the question that a message ends with.
    pub(super) fn at_the_end_of(text: &str) -> Option<Self> {
        let (mut last, mut before) = (String::new(), String::new());
        for_each_sentence(text, |_, sentence| {
            std::mem::swap(&mut before, &mut last);
            sentence.clone_into(&mut last);
        });
        let asks = |text: &str| text.ends_with(['?', '？', '؟']);
        let question = read_sentence(&last, SentencePlace::default()).filter(|_| asks(&last))?;
        let is_empty = question.subject.len() <= 1 && question.values.is_empty();
        let proposal = read_sentence(&before, SentencePlace::default())
            .filter(|proposal| is_empty && !proposal.values.is_empty());
        let (text, reading) = match proposal {
            Some(proposal) => (format!("{before} {last}"), proposal),
            None => (last, question),
        };
        let is_short = text.chars().count() <= MAX_QUESTION_CHARS;
        let SentenceReading { classes, values, subject, features, score, .. } = reading;
        let asking = features.points() - features.without_asking().points();
        let proposal_score = score - score_of(asking);
        is_short.then_some(Self { text, classes, values, subject, proposal_score })
    }

    /// Puts the question before its answer. A value that the question proposes is the user's own by a `yes`.
    pub(super) fn complete(&self, answer: &mut SentenceReading) {
        if agrees(answer) && !self.values.is_empty() && self.proposal_score > answer.score {
            answer.score = self.proposal_score;
            if answer.is_statement() {
                answer.sort = SentenceSort::Fact;
            }
        }
        answer.text = format!("{} {}", self.text, answer.text);
        answer.subject.extend(&self.subject);
        answer.subject.sort_unstable();
        answer.subject.dedup();
        if answer.values.is_empty() {
            answer.values.clone_from(&self.values);
        }
    }
}

/// The sentence before another one of the same message.
#[derive(Debug, Default)]
pub(super) struct SentenceBefore(String);

impl SentenceBefore {
    pub(super) fn of(sentence: &str) -> Self {
        Self(sentence.to_owned())
    }

    /// Reads the two sentences as one, if both are short and may correct something together. `lost_score` is what the place
    /// of the second one takes from the score.
    pub(super) fn joined(&self, sentence: &str, lost_score: f32) -> Option<SentenceReading> {
        let is_short = self.0.len() + sentence.len() < MAX_TEXT_CHARS;
        let is_said = !self.0.is_empty() && !self.0.ends_with(['?', '？', '؟', ':', '：']);
        if !is_short || !is_said {
            return None;
        }
        let mut joined =
            read_sentence(&format!("{} {sentence}", self.0), SentencePlace::default())?;
        joined.score -= lost_score;
        joined.may_correct().then_some(joined)
    }
}

/// Returns whether a sentence says something only together with the question that it answers.
pub(super) fn needs_question(reading: &SentenceReading) -> bool {
    reading.n_words <= ANSWER_WORDS
        && (!reading.classes.has(WordClass::Statement) || reading.refers_back)
}

/// Returns whether a sentence only agrees to what was proposed.
fn agrees(reading: &SentenceReading) -> bool {
    reading.classes.has(WordClass::Assent)
        && !reading.is_denial
        && reading.values.is_empty()
        && !reading.features.has(Feature::Asked)
}

/// The requests before a sentence in its message, which show whether the sentence belongs to a text to work on.
#[derive(Debug, Default)]
pub(super) struct RequestsBefore {
    /// A sentence announced a text: `Shorten this:`.
    has_announced: bool,
    /// The first byte of the line of the last sentence.
    line: usize,
    /// The paragraph so far asks for something.
    asks: bool,
    /// A paragraph before asks for something.
    follows_request: bool,
    /// The message points at a text in it: `Shorten the given text.`
    has_named: bool,
}

impl RequestsBefore {
    /// Begins with the next sentence of a text, which stands in the line at a byte.
    pub(super) fn begin(&mut self, text: &str, at_byte: usize, sentence: &str) {
        let is_new_line = std::mem::replace(&mut self.line, at_byte) != at_byte;
        if is_new_line && ends_with_blank_line(&text[..at_byte]) {
            self.follows_request |= std::mem::take(&mut self.asks);
        }
        self.has_announced |= announces_text(sentence);
    }

    /// Returns the score that the sentence loses. What follows a request in a paragraph of its own is what to work on, unless
    /// the user speaks: in a text that the request points at, others may.
    pub(super) fn lost_score(&mut self, reading: &SentenceReading) -> f32 {
        let asks_to_keep = reading.classes.has(WordClass::Remember);
        let names_text = reading.classes.has(WordClass::Material) && !asks_to_keep;
        self.has_named |= names_text;
        self.asks |= (reading.is_request || names_text) && !asks_to_keep;
        let is_own = reading.features.has(Feature::Speaker) && !self.has_named;
        let is_material = names_text || self.follows_request && !is_own;
        if self.has_announced || is_material { PASTED_SCORE } else { 0.0 }
    }
}

fn ends_with_blank_line(text: &str) -> bool {
    let space = &text[text.trim_end().len()..];
    space.matches('\n').count() > 1
}
