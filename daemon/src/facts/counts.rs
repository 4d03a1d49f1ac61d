//! The counts in a sentence: numbers in digits or in words, each with what it is a number of, as in `four spaces`.

use super::candidate::{hash_of, stem};
use super::numbers::MAX_COUNTS;
use crate::languages::{WordClass, entries, has_class, is_joined_script};

/// Signs of currencies, which stand before or behind their number.
const CURRENCIES: &str = "$€£¥₹";
/// Numerals of Chinese and Japanese.
const HAN_NUMBERS: &str = "一二两兩三四五六七八九十百千";
/// The noun of all times of day, whatever stands behind them.
const CLOCK: &str = ":";

/// A number of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Count {
    /// The hash of what is counted: a noun, a unit, a currency, or [`CLOCK`].
    pub(super) noun: u64,
    /// The hash of the number.
    pub(super) number: u64,
}

impl Count {
    /// Returns whether the count is a time of day.
    pub(super) fn is_clock(self) -> bool {
        self.noun == hash_of(CLOCK)
    }
}

/// Returns the counts of a sentence in order.
pub(super) fn counts_of(sentence: &str) -> Vec<Count> {
    let mut counts = Vec::new();
    let mut rest = sentence;
    let mut before = ' ';
    // A noun in front makes a number a name: `Rack 12 uses VLAN 340`.
    let is_name = |at: usize, number: &str| {
        let word = sentence[..at].trim_end().rsplit(|char: char| !char.is_alphabetic()).next();
        let word = word.unwrap_or_default().to_lowercase();
        number.starts_with(|char: char| char.is_ascii_digit())
            && !word.is_empty()
            && sentence[..at].ends_with(' ')
            && entries(&word).is_empty()
    };
    while let Some(first) = rest.chars().next() {
        let may_begin =
            counts.len() < MAX_COUNTS && (!before.is_alphanumeric() || is_joined_script(before));
        let Some(len) = may_begin.then(|| number_len(rest)).flatten() else {
            before = first;
            rest = &rest[first.len_utf8()..];
            continue;
        };
        let (number, behind) = rest.split_at(len);
        let noun = match before {
            _ if is_clock(number) => Some(hash_of(CLOCK)),
            currency if CURRENCIES.contains(currency) => Some(hash_of(&currency.to_string())),
            _ => noun_of(behind, is_name(sentence.len() - rest.len(), number)),
        };
        counts.extend(noun.map(|noun| Count { noun, number: hash_of(number) }));
        before = number.chars().next_back().unwrap_or(' ');
        rest = behind;
    }
    counts
}

/// Returns the pairs of counts, one of each sentence, whose nouns are the same.
pub(super) fn counts_alike<'c>(
    one: &'c [Count],
    other: &'c [Count],
) -> impl Iterator<Item = (Count, Count)> + 'c {
    let alike = |count: Count| other.iter().filter(move |it| it.noun == count.noun);
    one.iter().flat_map(move |count| alike(*count).map(|other| (*count, *other)))
}

/// Returns the length of the number that a text begins with.
fn number_len(text: &str) -> Option<usize> {
    let first = text.chars().next()?;
    if first.is_ascii_digit() {
        let is_in = |char: char| char.is_ascii_digit() || matches!(char, '.' | ',' | ':');
        let len = text.find(|char| !is_in(char)).unwrap_or(text.len());
        return Some(text[..len].trim_end_matches(['.', ',', ':']).len());
    }
    if HAN_NUMBERS.contains(first) {
        return Some(text.find(|char| !HAN_NUMBERS.contains(char)).unwrap_or(text.len()));
    }
    // A word is known only if spaces separate it. In a script that joins words, each character would begin one.
    if is_joined_script(first) {
        return None;
    }
    let len = text.find(|char: char| !char.is_alphabetic()).unwrap_or(text.len());
    let word = text[..len].to_lowercase();
    (len > 0 && has_class(&word, WordClass::Number)).then_some(len)
}

fn is_clock(number: &str) -> bool {
    number.split_once(':').is_some_and(|(hours, minutes)| hours.len() <= 2 && minutes.len() == 2)
}

/// Returns the hash of what stands behind a number, if that can be counted: behind a name only a unit.
fn noun_of(behind: &str, is_name: bool) -> Option<u64> {
    use WordClass::{Change, Denial, Function, Pronoun, Retract, Rule, Statement};
    let behind = behind.strip_prefix([' ', '\u{a0}']).unwrap_or(behind);
    let first = behind.chars().next()?;
    if CURRENCIES.contains(first) || is_joined_script(first) {
        return Some(hash_of(&first.to_string()));
    }
    let len = behind.find(|char: char| !char.is_alphabetic()).unwrap_or(behind.len());
    let word = behind[..len].to_lowercase();
    let is = |class| has_class(&word, class);
    let is_noun = len > 1
        && (is(WordClass::Unit)
            || !is_name
                && ![Change, Denial, Function, Pronoun, Retract, Rule, Statement]
                    .into_iter()
                    .any(is));
    is_noun.then(|| hash_of(stem(&word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_one_thing_are_comparable_in_digits_and_words() {
        let check = |one: &str, other: &str, is_comparable: bool| {
            let [one_counts, other_counts] = [one, other].map(counts_of);
            let differs = |count: &Count| {
                other_counts.iter().any(|it| it.noun == count.noun && it.number != count.number)
            };
            assert_eq!(one_counts.iter().any(differs), is_comparable, "{one} {other}");
        };
        check("Use four spaces in the templates.", "make it two spaces", true);
        check("The rent is 1180 euros a month.", "it costs 1,265 Euro now", true);
        check("Each change needs two approvals.", "one approval is enough", true);
        check("leaves at 06:52 on Friday", "it goes at 7:34 instead", true);
        check("Wir sind 18 Personen.", "Nur noch zwölf Personen.", true);
        check("The hall costs €900.", "They want €950 now.", true);
        check("我们有18个人。", "现在是20个人。", true);
        check("Use four spaces.", "Four people came.", false);
        check("Use four spaces.", "I like four spaces.", false);
        check("The port is 4213.", "The port is 5213 now.", false);
        check("Rack 12 uses VLAN 340.", "Rack 14 uses VLAN 350.", false);
        check("Version v2 has 3 bugs.", "We fixed them.", false);
    }
}
