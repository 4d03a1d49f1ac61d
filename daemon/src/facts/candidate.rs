//! Reading one sentence: whether it states a fact, what it is about, and how much it says.
//!
//! Questions and bare commands state nothing, unless they carry a rule. A sentence without a value and without a rule
//! is not kept, however true it is.

use std::hash::{Hash, Hasher};

use rustc_hash::FxHasher;

use super::counts::{Count, counts_of};
use super::features::{Feature, FeatureSet, SentenceForm, SentencePlace};
use super::lexicon::{ClassSet, Reading, denies, is_date, is_function_char, read_words, words_of};
use super::numbers::*;
use super::sentences::{for_each_sentence, one_line};
use super::values::{FactValueKind, FoundValue, Orthography, values_of};
use super::words::word_points;
use crate::languages::{ENGLISH, GERMAN, WordClass, has_class, is_joined_script, texts};

/// A value of a fact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FactValue {
    pub(crate) kind: FactValueKind,
    pub(crate) text: String,
    /// The hash of the text in lower case.
    pub(super) hash: u64,
}

/// A sentence as it was read.
#[derive(Debug)]
pub(super) struct SentenceReading {
    /// The text, without fillers in front.
    pub(super) text: String,
    pub(super) values: Vec<FactValue>,
    /// The hashes of the words that the sentence is about, sorted.
    pub(super) subject: Vec<u64>,
    /// The hashes of its values and of the words of those that have some, sorted.
    pub(super) value_words: Vec<u64>,
    /// The hashes of the words that it is about with that of the one directly before: `staging port`.
    pub(super) neighbors: Vec<(u64, u64)>,
    /// Its numbers of something.
    pub(super) counts: Vec<Count>,
    pub(super) sort: SentenceSort,
    pub(super) is_rule: bool,
    /// Whether the sentence denies or forbids something.
    pub(super) is_denial: bool,
    /// Set if the sentence asks or commands.
    pub(super) is_request: bool,
    /// Set if only the sentences before it name its subject: `It is 4200.`
    pub(super) refers_back: bool,
    /// Set if a later clause begins with a pronoun: `They moved the flight, it leaves at 11:25`.
    pub(super) has_pointing_clause: bool,
    /// The classes of all of its words, and their number with that of the values.
    pub(super) classes: ClassSet,
    pub(super) n_words: usize,
    /// Whether the sentence says that something is not as before.
    pub(super) is_change: bool,
    /// The points of its words for taking the place of an earlier fact.
    pub(super) replacing: i32,
    /// The weight of all values.
    weight: f32,
    /// Logarithm of the odds that the sentence states something that lasts.
    pub(super) score: f32,
    pub(super) features: FeatureSet,
}

impl SentenceReading {
    /// Returns whether a sentence that states nothing by itself may correct what was said: it says that something is not as
    /// before, or not so.
    pub(super) fn may_correct(&self) -> bool {
        let is_moved = self.is_change || self.is_denial || self.classes.has(WordClass::Retract);
        is_moved && !self.features.has(Feature::Asked)
    }

    /// Returns whether the sentence is kept as a fact or a rule, unless it only takes something back.
    pub(super) fn is_stated(&self) -> bool {
        match self.sort {
            SentenceSort::Fact => true,
            SentenceSort::Retraction => self.is_statement(),
            SentenceSort::Other => false,
        }
    }

    /// Returns whether the sentence may need the one before it to be understood.
    pub(super) fn says_little(&self) -> bool {
        self.refers_back || self.subject.len() <= MAX_POINTING_WORDS
    }

    /// Returns the hashes of the words that the sentence is about and of those of its values, sorted.
    pub(super) fn words(&self) -> Vec<u64> {
        joined(&self.subject, &self.value_words)
    }

    /// Returns whether the sentence may state a fact or a rule, if it takes nothing back.
    pub(super) fn is_statement(&self) -> bool {
        self.score >= MIN_CANDIDATE_SCORE
    }
}

/// The purpose of a sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SentenceSort {
    /// States a fact or a rule.
    Fact,
    /// Takes back what was said before.
    Retraction,
    /// Anything else.
    Other,
}

/// A sentence that states a fact or a rule.
pub(crate) struct Statement<'s> {
    pub(crate) text: &'s str,
    pub(crate) is_rule: bool,
    /// Set if only the sentences before it name its subject: `It is 4200.`
    pub(crate) refers_back: bool,
}

/// Calls `visit` with each statement of a message, in order.
pub(crate) fn for_each_statement(text: &str, mut visit: impl FnMut(&Statement<'_>)) {
    for_each_sentence(text, |_, sentence| {
        if let Some(reading) = read_sentence(sentence, SentencePlace::default())
            && reading.sort == SentenceSort::Fact
            && reading.score >= MIN_SCORE
        {
            let SentenceReading { text, is_rule, refers_back, .. } = &reading;
            visit(&Statement { text, is_rule: *is_rule, refers_back: *refers_back });
        }
    });
}

/// Returns whether a sentence is said to the one who reads it, or called out: `You're welcome!`
pub(crate) fn is_talk(sentence: &str) -> bool {
    let reading = read_sentence(sentence, SentencePlace::default());
    let has = |feature| reading.as_ref().is_some_and(|reading| reading.features.has(feature));
    has(Feature::Addressee) || has(Feature::Exclaimed)
}

/// Returns whether a message only asks for something: short questions and commands without a rule or a value of weight.
pub(crate) fn is_plain_request(text: &str) -> bool {
    if text.len() > MAX_SENTENCE_BYTES {
        return false;
    }
    let (mut n_requests, mut is_plain) = (0, true);
    for_each_sentence(text, |_, sentence| {
        let reading = read_sentence(sentence, SentencePlace::default());
        let is_request = reading.is_some_and(|reading| {
            reading.is_request && !reading.is_rule && reading.weight < MIN_WEIGHT
        });
        n_requests += 1;
        is_plain &= is_request;
    });
    is_plain && n_requests > 0
}

/// Reads a sentence; returns `None` for data and for sentences without any content.
pub(super) fn read_sentence(sentence: &str, place: SentencePlace) -> Option<SentenceReading> {
    // A number may be an answer.
    let says =
        |char: &char| char.is_alphabetic() || place.question.is_some() && char.is_alphanumeric();
    let n_letters = sentence.chars().filter(says).take(2).count();
    // `Here is the log:` states nothing.
    let is_announcement = sentence.ends_with([':', '：']);
    if sentence.len() > MAX_SENTENCE_BYTES || n_letters < 2 || is_announcement {
        return None;
    }
    let (found, rest) = values_and_rest(sentence);
    let words = words_of(&rest);
    let reading = read_words(&words, &rest);
    if is_data(&found, &words, &reading, sentence) {
        return None;
    }
    let dates =
        words.iter().zip(&reading.words).filter(|(_, classes)| classes.has(WordClass::Date));
    let dates: Vec<&str> = dates.map(|(word, _)| *word).collect();
    let classes = Classes::of(sentence, &words, &reading);
    let form = classes.form(words.len() + n_own(&found));
    let features = FeatureSet::of(sentence, &reading, &found, &form, place);
    let subject = with_values(subject_of(&words, &reading, &rest), sentence, &found, &reading);
    let mut values = fact_values(sentence, &found);
    values.extend(dates.into_iter().map(|date| fact_value(FactValueKind::Date, date)));
    let word_points = word_points(sentence);
    let score = score_of(features.points() + word_points.lasting);
    let has_content = has_content(&words, &reading, &rest) || !values.is_empty();
    Some(SentenceReading {
        text: short_text(sentence, &found),
        value_words: value_words(&values),
        neighbors: neighbors_of(&words, &reading),
        counts: counts_of(sentence),
        values,
        weight: found.iter().map(|value| value.weight).sum(),
        subject,
        sort: classes.sort(has_content && score >= MIN_CANDIDATE_SCORE),
        is_rule: classes.is_rule,
        is_denial: denies(&words, &rest),
        is_request: classes.is_question || classes.is_command,
        refers_back: classes.refers_back,
        has_pointing_clause: has_pointing_clause(&rest, &words, &reading),
        classes: reading.all,
        n_words: form.n_words,
        is_change: classes.all.has(WordClass::Change),
        replacing: word_points.replacing,
        score,
        features,
    })
}

/// Returns the values of a sentence, and its rest as [`lower_rest`] does. A German noun is no name.
fn values_and_rest(sentence: &str) -> (Vec<FoundValue>, String) {
    let mut orthography = Orthography::default();
    let found = values_of(sentence, orthography);
    let rest = lower_rest(sentence, &found);
    if !is_german(&read_words(&words_of(&rest), "")) {
        return (found, rest);
    }
    orthography.has_capital_nouns = true;
    let found = values_of(sentence, orthography);
    let rest = lower_rest(sentence, &found);
    (found, rest)
}

/// Returns whether a sentence announces a text to work on: `Shorten this text:`. A text that the user asks to remember is
/// not one.
pub(super) fn announces_text(sentence: &str) -> bool {
    if !sentence.ends_with([':', '：']) || sentence.len() > MAX_SENTENCE_BYTES {
        return false;
    }
    let rest = lower_rest(sentence, &[]);
    let words = words_of(&rest);
    let reading = read_words(&words, &rest);
    let classes = Classes::of(sentence, &words, &reading);
    (classes.is_command || classes.is_question) && !classes.all.has(WordClass::Remember)
}

/// Returns the score for a number of points.
#[expect(clippy::cast_precision_loss, reason = "at most some hundred points")]
pub(super) fn score_of(points: i32) -> f32 {
    points as f32 / POINTS_PER_SCORE
}

/// Returns whether a later clause of a lower-case text begins with a pronoun.
fn has_pointing_clause(rest: &str, words: &[&str], reading: &Reading) -> bool {
    let begins_clause = |word: &str| {
        let before = &rest[..word.as_ptr().addr() - rest.as_ptr().addr()];
        before.trim_end().ends_with([',', ';', ':', '，', '；'])
    };
    let mut words = words.iter().zip(&reading.words);
    words.any(|(word, classes)| classes.has(WordClass::Pronoun) && begins_clause(word))
}

/// Returns the number of values that are no words of the rest.
fn n_own(found: &[FoundValue]) -> usize {
    found.iter().filter(|value| value.weight >= MIN_OWN_WEIGHT).count()
}

/// Adds the values of a sentence to its subject, except days, and the last one, which the sentence states.
fn with_values(
    mut subject: Vec<u64>,
    sentence: &str,
    found: &[FoundValue],
    reading: &Reading,
) -> Vec<u64> {
    let is_day = |value: &FoundValue| is_date(&sentence[value.range.clone()].to_lowercase());
    let own = found.iter().filter(|value| value.weight >= MIN_OWN_WEIGHT && !is_day(value));
    let mut own: Vec<&FoundValue> = own.collect();
    if own.last().is_some_and(|last| !is_named_by_value(sentence, last, reading)) {
        own.pop();
    }
    subject.extend(own.into_iter().map(|value| hash_of(&sentence[value.range.clone()])));
    subject.sort_unstable();
    subject.dedup();
    subject.truncate(MAX_SUBJECT_WORDS);
    subject
}

fn fact_values(sentence: &str, found: &[FoundValue]) -> Vec<FactValue> {
    let value = |value: &FoundValue| {
        let text = &sentence[value.range.clone()];
        // A capitalized day or month was read as a name.
        let is_day = value.kind == FactValueKind::Name && is_date(&text.to_lowercase());
        fact_value(if is_day { FactValueKind::Date } else { value.kind }, text)
    };
    found.iter().map(value).collect()
}

fn fact_value(kind: FactValueKind, text: &str) -> FactValue {
    FactValue { kind, text: text.to_owned(), hash: hash_of(text) }
}

/// Returns the hashes of values and of the words of those that have some, sorted.
fn value_words(values: &[FactValue]) -> Vec<u64> {
    let mut words: Vec<u64> = values.iter().map(|value| value.hash).collect();
    for value in values.iter().filter(|value| value.kind != FactValueKind::Number) {
        let lower = value.text.to_lowercase();
        words.extend(words_of(&lower).into_iter().map(|word| hash_of(stem(word))));
    }
    words.sort_unstable();
    words.dedup();
    words
}

/// Returns the hashes of two sorted lists, sorted.
pub(super) fn joined(one: &[u64], other: &[u64]) -> Vec<u64> {
    let mut all = [one, other].concat();
    all.sort_unstable();
    all.dedup();
    all
}

/// Returns the beginning of a word, by which words are compared.
pub(super) fn stem(word: &str) -> &str {
    let word = word.strip_suffix("'s").unwrap_or(word);
    let end = word.char_indices().nth(STEM_CHARS).map_or(word.len(), |(end, _)| end);
    word[..end].strip_suffix('s').unwrap_or(&word[..end])
}

/// Returns the hash of a word or a value, whatever its capitals.
pub(super) fn hash_of(text: &str) -> u64 {
    let mut hasher = FxHasher::default();
    text.chars().flat_map(char::to_lowercase).for_each(|char| char.hash(&mut hasher));
    hasher.finish()
}

/// The properties of a sentence that decide its purpose.
struct Classes {
    all: ClassSet,
    is_rule: bool,
    is_question: bool,
    /// Set if the sentence asks for a rule instead of giving one: `How long may a line be at most?`
    asks_for_value: bool,
    is_command: bool,
    begins_with_retraction: bool,
    /// Set if only the sentences before it name its subject.
    refers_back: bool,
    has_label: bool,
    has_definition: bool,
}

impl Classes {
    fn of(sentence: &str, words: &[&str], reading: &Reading) -> Self {
        let all = reading.all;
        let first = reading.words.iter().position(|classes| !classes.has(WordClass::Filler));
        let is_joined = sentence.chars().any(is_joined_script);
        let begins = |class| first.is_some_and(|at| reading.words[at].has(class));
        let second = first.and_then(|at| reading.words.get(at + 1));
        let asks =
            begins(WordClass::Question) && second.is_some_and(|word| word.has(WordClass::Question));
        let rules = reading
            .words
            .iter()
            .enumerate()
            .any(|(at, classes)| classes.has(WordClass::Rule) && !is_own_denial(words, at));
        let advice = reading.words.iter().position(|classes| classes.has(WordClass::Advice));
        let is_advised = first.zip(advice).is_some_and(|(first, advice)| advice <= first + 1)
            || is_joined && all.has(WordClass::Advice);
        // In Chinese a noun may look like the verb of a command, but not before a copula.
        let is_stated = texts(WordClass::Copula).iter().any(|copula| sentence.contains(copula));
        let is_command = begins(WordClass::Command)
            || is_joined && all.has(WordClass::Command) && !is_stated && !all.has(WordClass::Rule);
        let is_asked = is_asked(sentence, words, begins(WordClass::Question));
        // `After how many attempts must retries stop?` begins with a preposition.
        let asks_with = words.iter().skip(first.unwrap_or(words.len())).take(2);
        Self {
            is_rule: rules || (is_joined && all.has(WordClass::Rule)),
            is_question: is_asked || asks,
            asks_for_value: is_asked
                && asks_with.into_iter().any(|word| has_class(word, WordClass::Interrogative)),
            is_command: is_command && !is_advised,
            begins_with_retraction: begins(WordClass::Retract),
            refers_back: begins(WordClass::Pronoun),
            has_label: words.len() <= MAX_LABEL_WORDS && has_definition_mark(sentence),
            has_definition: has_definition_mark(sentence),
            all,
        }
    }

    /// Returns whether the sentence takes something back. `Never ignore it` is a rule, and `don't forget it` asks to remember.
    fn takes_back(&self) -> bool {
        self.all.has(WordClass::Retract)
            && !self.all.has(WordClass::Remember)
            && (self.begins_with_retraction || !self.is_rule)
    }

    const fn form(&self, n_words: usize) -> SentenceForm {
        SentenceForm {
            is_rule: self.is_rule,
            is_addressed: self.all.has(WordClass::Addressee),
            is_asked: self.is_question,
            asks_for_value: self.asks_for_value,
            is_command: self.is_command,
            has_definition: self.has_definition,
            has_label: self.has_label,
            n_words,
        }
    }

    fn sort(&self, is_statement: bool) -> SentenceSort {
        if self.takes_back() && !self.is_question {
            SentenceSort::Retraction
        } else if is_statement && !self.asks_for_value {
            SentenceSort::Fact
        } else {
            SentenceSort::Other
        }
    }
}

/// Returns whether the last value belongs to the subject: no verb stands before it and one behind it, as in
/// `Port 8080 is open`.
fn is_named_by_value(sentence: &str, last: &FoundValue, reading: &Reading) -> bool {
    if !reading.all.has(WordClass::Statement) {
        return false;
    }
    let before = sentence[..last.range.start].to_lowercase();
    let behind = sentence[last.range.end..].to_lowercase();
    let states = |part: &str| read_words(&words_of(part), "").all.has(WordClass::Statement);
    !words_of(&before).is_empty() && !states(&before) && states(&behind)
}

/// Whether a negation says what the speakers themselves do not do: `I don't know` is no rule.
fn is_own_denial(words: &[&str], at: usize) -> bool {
    let is_denial = matches!(words[at], "don't" | "dont" | "do");
    let before = at.checked_sub(1).map(|before| words[before]);
    is_denial && before.is_some_and(|word| ["i", "we", "they", "you", "who"].contains(&word))
}

/// Whether a sentence ends like a question. A statement with `right?` behind it is not a question.
fn is_asked(sentence: &str, words: &[&str], begins_as_question: bool) -> bool {
    let end = sentence.trim_end_matches(|char: char| {
        char.is_whitespace() || matches!(char, '"' | ')' | '»' | '”')
    });
    if let Some(asked) = end.strip_suffix(['?', '？', '؟', ';']).filter(|_| !end.ends_with(';')) {
        let tag = asked.rsplit_once([',', '，', '、', '،']);
        let is_tag = tag.is_some_and(|(_, tag)| tag.split_whitespace().count() <= 2);
        return begins_as_question || !is_tag || words.len() < 5;
    }
    let end = end.trim_end_matches(|char: char| !char.is_alphanumeric());
    texts(WordClass::Question).iter().any(|ending| end.ends_with(ending))
}

/// Whether a mark defines something: `name: value`, `name = value`.
fn has_definition_mark(sentence: &str) -> bool {
    let is_label = |(before, after): (&str, &str)| {
        !after.trim().is_empty()
            && !before.is_empty()
            && before.split_whitespace().count() <= 6
            && !after.starts_with("//")
    };
    let colon = sentence.split_once([':', '：']).filter(|(before, after)| {
        !before.ends_with(|char: char| char.is_numeric()) || after.starts_with(' ')
    });
    colon.is_some_and(is_label)
        || sentence.split_once('=').is_some_and(is_label)
        || sentence.contains(" -> ")
        || sentence.contains(" — ")
}

/// Whether a sentence is a line of a log, a table or other data: values without the words that join them.
fn is_data(found: &[FoundValue], words: &[&str], reading: &Reading, sentence: &str) -> bool {
    use WordClass::{Function, Rule, Statement};
    let is_said = |class| reading.all.has(class);
    let is_prose = [Function, Rule, Statement].into_iter().any(is_said)
        || sentence.chars().any(is_joined_script);
    let n_values = found.len();
    n_values >= MAX_VALUES
        || n_values > 2 && !is_prose && words.len() < 2 * n_values
        || !is_prose && sentence.contains(['{', '}', ';'])
        || sentence.ends_with(['{', '}']) && sentence.contains(['(', ':', '='])
}

/// Whether anything but values, rules and function words stands in a sentence.
fn has_content(words: &[&str], reading: &Reading, rest: &str) -> bool {
    let is_content = |(word, classes): (&&str, &ClassSet)| {
        word.chars().filter(|char| char.is_alphabetic()).nth(1).is_some()
            && !is_functional(*classes)
    };
    words.iter().zip(&reading.words).any(is_content)
        || rest
            .chars()
            .filter(|char| is_joined_script(*char) && !is_function_char(*char))
            .nth(1)
            .is_some()
}

/// Whether a word is not a part of a sentence's subject.
fn is_functional(classes: ClassSet) -> bool {
    use WordClass::{
        Back, Change, Courtesy, Date, Doubt, Filler, Function, Pronoun, Remember, Retract, Rule,
        Statement, Unit,
    };
    [
        Back, Change, Courtesy, Date, Doubt, Filler, Function, Pronoun, Remember, Retract, Rule,
        Statement, Unit,
    ]
    .into_iter()
    .any(|class| classes.has(class))
}

/// Returns the hashes of the words that a sentence is about, without values.
fn subject_of(words: &[&str], reading: &Reading, rest: &str) -> Vec<u64> {
    let mut subject = Vec::new();
    for (word, classes) in words.iter().zip(&reading.words) {
        if is_functional(*classes) || word.chars().next().is_none_or(is_joined_script) {
            continue;
        }
        subject.push(hash_of(stem(word)));
    }
    let mut before = None;
    for char in rest.chars() {
        let is_content = is_joined_script(char) && !is_function_char(char);
        if let (true, Some(before)) = (is_content, before) {
            let mut pair = String::from(before);
            pair.push(char);
            subject.push(hash_of(&pair));
        }
        before = is_content.then_some(char);
    }
    subject
}

/// Returns the words that a sentence is about, each with the one directly before it.
fn neighbors_of(words: &[&str], reading: &Reading) -> Vec<(u64, u64)> {
    let content = |at: usize| {
        let word = words[at];
        let is_content = !is_functional(reading.words[at])
            && word.chars().next().is_some_and(|char| !is_joined_script(char));
        is_content.then(|| hash_of(stem(word)))
    };
    let pairs = (1..words.len()).filter_map(|at| Some((content(at)?, content(at - 1)?)));
    pairs.take(MAX_SUBJECT_WORDS).collect()
}

/// Returns a sentence in lower case with spaces in place of its values of some weight, without marks that only change the
/// sound.
fn lower_rest(sentence: &str, values: &[FoundValue]) -> String {
    let mut rest = String::with_capacity(sentence.len());
    let mut at = 0;
    for value in values.iter().filter(|value| value.weight >= MIN_OWN_WEIGHT) {
        push_lower(&mut rest, &sentence[at..value.range.start]);
        rest.push(' ');
        at = value.range.end;
    }
    push_lower(&mut rest, &sentence[at..]);
    rest
}

fn push_lower(rest: &mut String, text: &str) {
    for char in text.chars() {
        match char {
            '\u{064B}'..='\u{0652}' | '\u{0640}' => {}
            '’' | 'ʼ' => rest.push('\''),
            'A'..='Z' => rest.push(char.to_ascii_lowercase()),
            char if char.is_ascii() => rest.push(char),
            char => rest.extend(char.to_lowercase()),
        }
    }
}

/// Whether a sentence is German, by its function words.
const fn is_german(reading: &Reading) -> bool {
    reading.languages != u32::MAX
        && reading.languages & GERMAN != 0
        && reading.languages & ENGLISH == 0
}

/// Returns the text of a fact: the sentence without fillers in front, or of a long sentence the clauses with values.
fn short_text(sentence: &str, values: &[FoundValue]) -> String {
    let mut text = sentence.trim();
    while let Some((before, after)) = text.split_once([',', '，'])
        && is_lead_in(before)
        && !after.trim().is_empty()
    {
        text = after.trim_start();
    }
    if text.chars().nth(MAX_TEXT_CHARS).is_none() {
        return one_line(text);
    }
    let is_clause_end = |char: char| matches!(char, ',' | ';' | '(' | '—' | '，' | '；' | '、');
    let first = values.first().map_or(0, |value| value.range.start);
    let mut before = sentence[..first].char_indices().rev();
    let clause = before.find(|(_, char)| is_clause_end(*char));
    let start = clause.map_or(0, |(at, char)| at + char.len_utf8());
    let kept = sentence[start..].trim_start();
    let end = kept.char_indices().nth(MAX_TEXT_CHARS).map_or(kept.len(), |(end, _)| end);
    let end = kept[..end].rfind(char::is_whitespace).filter(|_| end < kept.len()).unwrap_or(end);
    let dots = if end < kept.len() { "..." } else { "" };
    one_line(&format!("{}{dots}", kept[..end].trim_end()))
}

/// Whether a clause only leads to the next one: `By the way`, `OK`.
fn is_lead_in(clause: &str) -> bool {
    let lower = clause.to_lowercase();
    let words: Vec<&str> = lower.split_whitespace().collect();
    if words.is_empty() || words.len() > 4 {
        return words.is_empty();
    }
    let reading = read_words(&words, "");
    reading.words[0].has(WordClass::Filler)
        && reading.words.iter().all(|classes| {
            is_functional(*classes) || classes.has(WordClass::Filler) || words.len() > 2
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the sort of a sentence, `Other` for one that is not worth listing.
    fn sort(sentence: &str) -> SentenceSort {
        let reading = read_sentence(sentence, SentencePlace::default());
        let listed = reading.filter(|reading| reading.score >= MIN_SCORE);
        listed.map_or(SentenceSort::Other, |reading| reading.sort)
    }

    #[test]
    fn statements_with_values_and_rules_are_facts() {
        let check = |sentence: &str| assert_eq!(sort(sentence), SentenceSort::Fact, "{sentence}");
        check("The message broker listens on 61613.");
        check("Never log the customer's e-mail.");
        check("Call it the Harbor release.");
        check("My sister Mara lives in Porto.");
        check("Could you always answer in short sentences?");
        check("Rename a to b, but never touch the public API.");
        check("Remember that the client hates purple.");
        check("The license must stay MIT, right?");
        check("Der Zugangscode für das Lager ist 7731.");
        check("Die Kundin heißt Frau Öztürk.");
        check("Le serveur de test écoute sur le port 9043.");
        check("N'utilise jamais de tabulations.");
        check("El presupuesto es de 14.500 euros.");
        check("O prazo final é 17 de março.");
        check("Il cliente si chiama Bianchi.");
        check("De sleutel ligt in kluis 48.");
        check("Termin oddania to 14 kwietnia.");
        check("Пароль от стенда лежит в файле vault.kdbx.");
        check("Sunucu adresi 10.2.0.7 olarak ayarlandı.");
        check("رقم الغرفة هو ٤١٢.");
        check("मीटिंग रूम का नंबर 318 है।");
        check("会议室的号码是318。");
        check("测试环境的密码是 qwe-88。");
        check("回答には必ず敬語を使ってください。");
        check("배포 서버 포트는 8443입니다.");
        check("🦊🌙 means that the build is frozen.");
        check("Notre serveur de production s'appelle mercure.");
        check("Je suis allergique aux noix.");
        check("Ich bin Vegetarier.");
        check("我住在杭州。");
        check("No emojis please");
    }

    #[test]
    fn questions_commands_and_talk_are_no_facts() {
        let check = |sentence: &str| assert_eq!(sort(sentence), SentenceSort::Other, "{sentence}");
        check("Which port does the broker use?");
        check("what is the port of staging");
        check("Rename a to b.");
        check("Please fix the test in src/parser.rs");
        check("Run it 20 times.");
        check("Could you add a line to README.md?");
        check("thanks, that looks good");
        check("I don't know yet.");
        check("Wie lautet der Code?");
        check("How long should a line be at most?");
        check("Wie lang darf eine Zeile höchstens sein?");
        check("Bitte lösche die Datei tmp.txt.");
        check("¿Cuál es el puerto 8080?");
        check("端口是多少？");
        check("ポートは48213ですか");
        check("48213 4512 99 1024 77");
        check("2026-01-01T10:00:00 INFO main started pid=4711 port=8080");
        check("Here is the log of host vega-7:");
        check("");
        check("🙂🙂🙂");
    }

    #[test]
    fn long_sentences_keep_their_values() {
        let sentence = format!(
            "{}, and the backup job starts at 03:40 on host vega-7",
            "so we talked and talked ".repeat(20)
        );
        let reading = read_sentence(&sentence, SentencePlace::default()).expect("is read");
        assert!(
            reading.text.contains("03:40") && reading.text.chars().count() <= MAX_TEXT_CHARS + 3,
            "{}",
            reading.text
        );
        let text =
            |sentence| read_sentence(sentence, SentencePlace::default()).expect("is read").text;
        assert_eq!(text("By the way, the code is 7731."), "the code is 7731.");
        assert_eq!(text("No tabs, only spaces of width 4"), "No tabs, only spaces of width 4");
    }
}
