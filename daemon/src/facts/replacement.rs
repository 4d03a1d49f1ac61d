//! The comparison of a fact and a later sentence: how likely the sentence takes the place of the fact, because it corrects the
//! fact or takes it back.
//!
//! A pair of a fact and a later sentence has features, which decide nothing alone. Their points are in `replacement.txt`,
//! with those of the sentence's words, fitted to labeled pairs by `cargo bench --bench facts`: the sum is ten times the
//! logarithm of the odds that the fact no longer holds beside the sentence.

use std::sync::LazyLock;

use super::candidate::{FactValue, SentenceReading, score_of};
use super::counts::{Count, counts_alike};
use super::features::{Feature, Points, features};
use super::fold::{KnownFact, n_common};
use super::lexicon::ClassSet;
use super::numbers::MIN_SCORE;
use super::values::FactValueKind;
use crate::languages::WordClass;

features! {
    /// A feature of a fact and a later sentence.
    PairFeature
    // The later sentence.
    Change "change", Retract "retract", Denial "denial", Pointing "pointing", Asked "asked", Doubt "doubt",
    Report "report", Episode "episode", Plan "plan", Rule "rule", NoValue "noValue",
    // Their last values.
    SameKind "sameKind", OtherKind "otherKind", BothTimes "bothTimes", NoValues "noValues", Lost "lost", Gained "gained", SameForm "sameForm",
    SameStart "sameStart", OtherCount "otherCount", SameCount "sameCount", BothClock "bothClock",
    NamesOld "namesOld", NamesOther "namesOther",
    // Their words.
    SharesNone "sharesNone", SharesOne "sharesOne", SharesTwo "sharesTwo", SharesMore "sharesMore",
    CoversLater "coversLater", CoversEarlier "coversEarlier", MostOfLater "mostOfLater",
    AddsOne "addsOne", AddsSome "addsSome", AddsMany "addsMany", LacksOne "lacksOne", LacksSome "lacksSome",
    LacksMany "lacksMany", BothDiffer "bothDiffer", OtherKey "otherKey", AddsKey "addsKey", OtherModifier "otherModifier",
    Only "only",
    SameSlot "sameSlot",
    // Their kind.
    BothRules "bothRules", AddsRule "addsRule", OneRule "oneRule", Turned "turned", SameTopic "sameTopic",
    // How much they say.
    EarlierListed "earlierListed", LaterListed "laterListed", LaterUnsaid "laterUnsaid",
    // Their places.
    NewestAlike "newestAlike",
    // Several at once. `moved`: change or retract.
    MovedAndOnly "moved+only", MovedAndSharesOne "moved+sharesOne",
    MovedAndSharesMore "moved+sharesTwoOrMore", MovedAndCoversEarlier "moved+coversEarlier",
    MovedAndCoversLater "moved+coversLater", MovedAndNamesOld "moved+namesOld",
    MovedAndSharedKind "moved+sharesOneOrMore+sameKind", MovedAndSharedOther "moved+sharesOneOrMore+otherKind",
    MovedAndPointing "moved+pointing+sameKind+newestAlike", MovedAndNewest "moved+sharesNone+newestAlike",
    MovedAndOtherCount "moved+otherCount", SharesAndOtherCount "sharesOneOrMore+otherCount",
    PointingAndOtherCount "pointing+otherCount+newestAlike",
    StillAndAddsKey "still+addsKey", StillAndAdds "still+addsOneOrMore",
    StillAndBothTimes "still+bothTimes",
    StillAndSharedKind "still+sharesTwoOrMore+sameForm", DenialAndNamesOld "denial+namesOld",
}

const _: () = assert!(PairFeature::ALL.len() <= u128::BITS as usize);

static POINTS: LazyLock<Points> = LazyLock::new(|| {
    let names = PairFeature::ALL.iter().map(|(_, name)| *name);
    Points::parse(include_str!("replacement.txt"), names)
});

/// A fact and a later sentence.
pub(super) struct Pair<'p> {
    pub(super) fact: &'p KnownFact,
    pub(super) reading: &'p SentenceReading,
    /// Set if a word of both belongs to no other fact.
    pub(super) is_only: bool,
    /// Set if the fact is the newest one that counts the same; for a sentence without counts, the newest one whose last value
    /// is of the same kind.
    pub(super) is_newest_alike: bool,
}

/// The features of a pair.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PairFeatures {
    set: u128,
    /// The points of the words of the sentence.
    words: i32,
}

impl PairFeatures {
    pub(super) fn of(pair: &Pair<'_>) -> Self {
        let mut set = Self { set: 0, words: pair.reading.replacing };
        set.add_sentence(pair.reading);
        set.add_values(&pair.fact.values, pair.reading);
        set.add_counts(&pair.fact.counts, &pair.reading.counts);
        set.add_words(pair);
        set.add_kind(pair);
        set.add_several();
        set
    }

    const fn has(self, feature: PairFeature) -> bool {
        self.set & (1 << feature as u8) != 0
    }

    fn add(&mut self, is_true: bool, feature: PairFeature) {
        self.set |= u128::from(is_true) << feature as u8;
    }

    fn add_sentence(&mut self, later: &SentenceReading) {
        use PairFeature as P;
        let has = |class| later.classes.has(class);
        self.add(later.is_change, P::Change);
        self.add(has(WordClass::Retract), P::Retract);
        self.add(later.is_denial, P::Denial);
        let is_pointing = later.refers_back || later.has_pointing_clause;
        self.add(is_pointing || later.subject.is_empty(), P::Pointing);
        self.add(later.features.has(Feature::Asked), P::Asked);
        self.add(has(WordClass::Doubt), P::Doubt);
        self.add(has(WordClass::Report), P::Report);
        self.add(has(WordClass::Episode), P::Episode);
        self.add(has(WordClass::Plan), P::Plan);
        self.add(later.is_rule, P::Rule);
        self.add(later.values.is_empty(), P::NoValue);
    }

    fn add_values(&mut self, earlier: &[FactValue], reading: &SentenceReading) {
        use PairFeature as P;
        let later = &reading.values;
        let names = |value: &FactValue| {
            let is_in = |words: &[u64]| words.binary_search(&value.hash).is_ok();
            is_in(&reading.value_words) || is_in(&reading.subject)
        };
        match (earlier.last(), later.last()) {
            (None, None) => self.add(true, P::NoValues),
            (Some(_), None) => self.add(true, P::Lost),
            (None, Some(_)) => self.add(true, P::Gained),
            (Some(one), Some(other)) => {
                let is_same = one.kind == other.kind;
                self.add(is_same, P::SameKind);
                self.add(!is_same, P::OtherKind);
                self.add(!is_same && can_be_time(one) && can_be_time(other), P::BothTimes);
                let new = later.iter().filter(|value| value.hash != one.hash);
                self.add(new.clone().any(|value| has_same_form(one, value)), P::SameForm);
                self.add(new.clone().any(|value| has_same_start(one, value)), P::SameStart);
            }
        }
        let (last, others) = earlier.split_last().map_or((None, earlier), |(l, o)| (Some(l), o));
        self.add(last.is_some_and(names), P::NamesOld);
        self.add(others.iter().any(names), P::NamesOther);
    }

    fn add_counts(&mut self, earlier: &[Count], later: &[Count]) {
        use PairFeature as P;
        let alike = || counts_alike(earlier, later);
        let has_same = alike().any(|(one, other)| one.number == other.number);
        let has_clock = alike().any(|(one, other)| one.is_clock() && one.number != other.number);
        self.add(has_same, P::SameCount);
        self.add(has_clock, P::BothClock);
        self.add(!has_same && alike().next().is_some(), P::OtherCount);
    }

    fn add_words(&mut self, pair: &Pair<'_>) {
        use PairFeature as P;
        let Pair { fact, reading, is_only, .. } = pair;
        let is_in = |words: [&[u64]; 2], word: &u64| {
            words.iter().any(|words| words.binary_search(word).is_ok())
        };
        let later = [&reading.subject[..], &reading.value_words];
        let earlier = [&fact.subject[..], &fact.value_words];
        let n_in_later = fact.subject.iter().filter(|word| is_in(later, word)).count();
        let n_in_earlier = reading.subject.iter().filter(|word| is_in(earlier, word)).count();
        let (n_earlier, n_later) = (fact.subject.len(), reading.subject.len());
        let shares = [P::SharesNone, P::SharesOne, P::SharesTwo, P::SharesMore];
        self.add(true, shares[n_in_later.max(n_in_earlier).min(3)]);
        self.add(n_in_earlier > 0 && n_in_earlier == n_later, P::CoversLater);
        self.add(n_in_later > 0 && n_in_later == n_earlier, P::CoversEarlier);
        self.add(n_in_earlier > 0 && n_in_earlier * 2 >= n_later, P::MostOfLater);
        let (n_added, n_lacking) = (n_later - n_in_earlier, n_earlier - n_in_later);
        self.add(n_added == 1, P::AddsOne);
        self.add((2..=3).contains(&n_added), P::AddsSome);
        self.add(n_added > 3, P::AddsMany);
        self.add(n_lacking == 1, P::LacksOne);
        self.add((2..=3).contains(&n_lacking), P::LacksSome);
        self.add(n_lacking > 3, P::LacksMany);
        self.add(n_added > 0 && n_lacking > 0, P::BothDiffer);
        let adds_key = has_new_key(&fact.values, &reading.values);
        self.add(adds_key, P::AddsKey);
        self.add(adds_key && has_new_key(&reading.values, &fact.values), P::OtherKey);
        self.add(has_other_modifier(fact, reading), P::OtherModifier);
        self.add(*is_only, P::Only);
        self.add(is_same_slot(fact, reading), P::SameSlot);
    }

    fn add_kind(&mut self, pair: &Pair<'_>) {
        use PairFeature as P;
        let Pair { fact, reading, is_newest_alike, .. } = pair;
        self.add(fact.is_rule && reading.is_rule, P::BothRules);
        self.add(fact.is_rule != reading.is_rule, P::OneRule);
        self.add(adds_to_rule(fact, reading), P::AddsRule);
        self.add(fact.is_denial != reading.is_denial, P::Turned);
        self.add(shares_topic(fact.classes, reading.classes), P::SameTopic);
        self.add(*is_newest_alike, P::NewestAlike);
        self.add(fact.score >= MIN_SCORE, P::EarlierListed);
        self.add(reading.score >= MIN_SCORE, P::LaterListed);
        self.add(reading.features.has(Feature::Unsaid), P::LaterUnsaid);
    }

    fn add_several(&mut self) {
        use PairFeature as P;
        let has = |feature| self.has(feature);
        let is_moved = has(P::Change) || has(P::Retract);
        let shares_more = has(P::SharesTwo) || has(P::SharesMore);
        let shares_any = shares_more || has(P::SharesOne);
        let is_kind = has(P::SameKind);
        let several = [
            (is_moved && has(P::Only), P::MovedAndOnly),
            (is_moved && has(P::SharesOne), P::MovedAndSharesOne),
            (is_moved && shares_more, P::MovedAndSharesMore),
            (is_moved && has(P::CoversEarlier), P::MovedAndCoversEarlier),
            (is_moved && has(P::CoversLater), P::MovedAndCoversLater),
            (is_moved && has(P::NamesOld), P::MovedAndNamesOld),
            (is_moved && shares_any && is_kind, P::MovedAndSharedKind),
            (is_moved && shares_any && has(P::OtherKind), P::MovedAndSharedOther),
            (is_moved && has(P::Pointing) && is_kind && has(P::NewestAlike), P::MovedAndPointing),
            (is_moved && has(P::SharesNone) && has(P::NewestAlike), P::MovedAndNewest),
            (is_moved && has(P::OtherCount), P::MovedAndOtherCount),
            (shares_any && has(P::OtherCount), P::SharesAndOtherCount),
            (
                has(P::Pointing) && has(P::OtherCount) && has(P::NewestAlike),
                P::PointingAndOtherCount,
            ),
            (!is_moved && has(P::AddsKey), P::StillAndAddsKey),
            (
                !is_moved && (has(P::AddsOne) || has(P::AddsSome) || has(P::AddsMany)),
                P::StillAndAdds,
            ),
            (!is_moved && has(P::BothTimes), P::StillAndBothTimes),
            (!is_moved && shares_more && has(P::SameForm), P::StillAndSharedKind),
            (has(P::Denial) && has(P::NamesOld), P::DenialAndNamesOld),
        ];
        several.into_iter().for_each(|(is_true, feature)| self.add(is_true, feature));
    }

    /// Returns the logarithm of the odds that the sentence takes the place of the fact.
    pub(super) fn score(self) -> f32 {
        score_of(self.words + POINTS.sum(|at| self.set & (1 << at) != 0))
    }

    /// Returns whether both are about one thing, and the sentence says that it changed or may state another value of it.
    pub(super) fn is_comparable(self) -> bool {
        use PairFeature as P;
        let has_one_of = |features: &[P]| features.iter().any(|feature| self.has(*feature));
        has_one_of(&[P::Change, P::Retract, P::SameKind, P::OtherCount])
            && (has_one_of(&[P::SharesTwo, P::SharesMore])
                || self.has(P::SharesOne)
                    && has_one_of(&[P::CoversLater, P::CoversEarlier, P::OtherCount])
                || self.has(P::Pointing) && self.has(P::NewestAlike))
    }

    /// Returns the names of the features.
    pub(super) fn names(self) -> impl Iterator<Item = &'static str> {
        let all = PairFeature::ALL.iter();
        all.filter(move |(feature, _)| self.has(*feature)).map(|(_, name)| *name)
    }
}

/// Returns whether values have one that others lack, besides the last, which is stated: `14` in `rack 14 uses VLAN 350`.
fn has_new_key(earlier: &[FactValue], later: &[FactValue]) -> bool {
    let keys = later.split_last().map_or(later, |(_, keys)| keys);
    keys.iter().any(|key| !earlier.iter().any(|one| one.hash == key.hash))
}

/// Returns whether both have a word with other words directly before it: `staging port` and `production port`.
fn has_other_modifier(fact: &KnownFact, reading: &SentenceReading) -> bool {
    fact.neighbors.iter().any(|(word, before)| {
        let mut same = reading.neighbors.iter().filter(|(other, _)| other == word).peekable();
        same.peek().is_some() && same.all(|(_, other)| other != before)
    })
}

/// Returns whether a sentence states another value, of the same kind, for all that a fact is about; with a word such as "now",
/// for most of it.
fn is_same_slot(fact: &KnownFact, reading: &SentenceReading) -> bool {
    let is_alike = match (fact.values.last(), reading.values.last()) {
        (None, None) => true,
        (Some(one), Some(other)) => {
            one.kind == other.kind || reading.is_change && can_be_time(one) && can_be_time(other)
        }
        _ => reading.is_change && reading.is_rule == fact.is_rule,
    };
    let n_common = n_common(fact, reading);
    let (n_all, n_words) = (fact.subject.len(), reading.subject.len());
    if !is_alike || n_common == 0 {
        return false;
    }
    let is_same = n_common == n_all && n_common == n_words && !adds_to_rule(fact, reading);
    let is_old = |old: &FactValue| reading.values.iter().any(|value| value.hash == old.hash);
    let names_old = fact.values.last().is_some_and(is_old);
    // With a word such as "now", a subject that lacks some of the words is the same; others are not. "They moved the flight,
    // it leaves at 11:25" says once what it is about.
    let least = n_all.min(n_words);
    let is_part = n_common == least && n_all.abs_diff(n_words) <= 3
        || n_common * 3 >= least * 2 && n_common > 1;
    let is_meant = reading.has_pointing_clause && (!reading.values.is_empty() || n_common > 1);
    // "Not 100, 250 for each tenant" names both.
    let names_both = names_old && reading.is_denial && reading.values.len() > 1;
    is_same || reading.is_change && (is_part || names_old || is_meant) || names_both
}

/// Returns whether both rules stay in force: a second prohibition does not lift the first. A number is a limit, which a new
/// number replaces.
fn adds_to_rule(fact: &KnownFact, reading: &SentenceReading) -> bool {
    let (Some(one), Some(other)) = (fact.values.last(), reading.values.last()) else {
        return false;
    };
    fact.is_rule
        && reading.is_rule
        && !reading.is_change
        && (fact.is_denial || reading.is_denial)
        && one.hash != other.hash
        && other.kind != FactValueKind::Number
}

/// Returns whether a value can be a time: a date, or a number, which may be a time of day or a date in digits.
const fn can_be_time(value: &FactValue) -> bool {
    matches!(value.kind, FactValueKind::Number | FactValueKind::Date)
}

/// Returns whether two values of one kind are written alike: both with a colon, both with as many digits.
fn has_same_form(one: &FactValue, other: &FactValue) -> bool {
    let marks = |value: &FactValue| {
        let marks = value.text.chars().filter(|char| !char.is_alphanumeric());
        marks.collect::<String>()
    };
    one.kind == other.kind && marks(one) == marks(other) && {
        let lengths = [one, other].map(|value| value.text.chars().count());
        one.kind != FactValueKind::Number || lengths[0].abs_diff(lengths[1]) <= 1
    }
}

/// Returns whether two values begin with the same four characters: paths in one directory, or hosts of one kind.
fn has_same_start(one: &FactValue, other: &FactValue) -> bool {
    let chars = |value: &FactValue| value.text.chars().take(4).collect::<Vec<_>>();
    let start = chars(one);
    start.len() == 4 && one.kind != FactValueKind::Number && start == chars(other)
}

/// Returns whether two sentences have words of one topic.
fn shares_topic(one: ClassSet, other: ClassSet) -> bool {
    use WordClass::{Habit, Life, Liking, Person, Setting};
    [Habit, Life, Liking, Person, Setting]
        .into_iter()
        .any(|topic| one.has(topic) && other.has(topic))
}

/// Returns the names of all features.
pub(crate) fn pair_feature_names() -> impl Iterator<Item = &'static str> {
    PairFeature::ALL.iter().map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::super::features::tests::assert_points_for;
    use super::*;

    #[test]
    fn file_has_points_for_every_feature_of_pairs_and_no_other() {
        assert_points_for(include_str!("replacement.txt"), pair_feature_names());
    }
}
