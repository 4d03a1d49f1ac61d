//! The features of a sentence and its place, and the points of each: how likely the sentence states something that lasts.
//!
//! Features are facts about words and form and decide nothing alone. Their points are in `points.txt`, fitted to labeled
//! sentences by `cargo bench --bench facts`: the sum is ten times the logarithm of the odds that a careful reader would keep
//! the sentence.

use std::sync::LazyLock;

use super::lexicon::{ClassSet, Reading};
use super::numbers::*;
use super::values::{FactValueKind, FoundValue};
use crate::languages::{WordClass, is_joined_script, is_unspaced_script};

/// Defines an enum of features, with their names in the file of their points, which explains them.
macro_rules! features {
    ($(#[$doc:meta])* $all:ident $($feature:ident $name:literal,)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(crate) enum $all { $($feature,)* }

        impl $all {
            pub(super) const ALL: &[(Self, &str)] = &[$((Self::$feature, $name),)*];
        }
    };
}
pub(super) use features;

features! {
    /// A feature of a sentence.
    Feature
    // A word of the class.
    Rule "rule", Advice "advice", Naming "naming", Remember "remember", Change "change", Retract "retract",
    Statement "statement", Own "own", Transient "transient", Denial "denial", Speaker "speaker", Addressee "addressee",
    Doubt "doubt", Report "report", Feeling "feeling", Liking "liking", Habit "habit", Person "person", Life "life",
    Plan "plan", Episode "episode", Setting "setting", Courtesy "courtesy", Back "back", Date "date",
    // The class of the first word that is no filler.
    SpeakerFirst "speakerFirst", AddresseeFirst "addresseeFirst", CommandFirst "commandFirst", PronounFirst "pronounFirst",
    RuleFirst "ruleFirst", RememberFirst "rememberFirst", DoubtFirst "doubtFirst", AdviceFirst "adviceFirst",
    // The form.
    Asked "asked", AsksForValue "asksForValue", AsksForRule "asksForRule", Exclaimed "exclaimed",
    Quotation "quotation", Definition "definition", Label "label", Short "short", Long "long", Unsaid "unsaid",
    // The values.
    Number "number", Place "place", Identifier "identifier", Quoted "quoted", Name "name",
    // Two at once.
    SpeakerAndValue "speaker+value", SpeakerAndLiking "speaker+liking", SpeakerAndPerson "speaker+person",
    SpeakerAndLife "speaker+life", SpeakerAndPlan "speaker+plan", PlanAndTime "plan+time", SettingAndValue "setting+value",
    CommandAndValue "command+value", CommandAndQuotation "command+quotation",
    // A guess or a case: of the speaker, or for a rule.
    DoubtAndSpeaker "doubt+speaker", DoubtAndRule "doubt+rule", DoubtAndValue "doubt+value",
    // A rule that is felt, reported or called out.
    RuleAndFeeling "rule+feeling", RuleAndReport "rule+report", RuleAndExclaimed "rule+exclaimed",
    RuleAndSpeaker "rule+speaker", RuleAndValue "rule+value",
    // Nothing that speaks against the sentence, alone and with what it has.
    Plain "plain", PlainAndStated "plain+stated", StatedPlace "stated+place",
    // A rule that is neither asked for, guessed, reported, nor what the speaker has to do.
    Demand "demand", DemandAndValue "demand+value",
    // The place.
    AfterQuestion "afterQuestion", Answer "answer",
}

/// The features that speak against a sentence.
const AGAINST: [Feature; 10] = [
    Feature::Asked,
    Feature::CommandFirst,
    Feature::PronounFirst,
    Feature::Addressee,
    Feature::Doubt,
    Feature::Report,
    Feature::Feeling,
    Feature::Transient,
    Feature::Episode,
    Feature::Courtesy,
];

/// The features that make a rule no demand.
const AGAINST_DEMAND: [Feature; 8] = [
    Feature::Feeling,
    Feature::Asked,
    Feature::Doubt,
    Feature::Report,
    Feature::Episode,
    Feature::Speaker,
    Feature::Courtesy,
    Feature::PronounFirst,
];

/// Marks around the words of others. An apostrophe is mostly none.
pub(super) const QUOTATION_MARKS: [(char, char); 6] =
    [('"', '"'), ('“', '”'), ('„', '“'), ('„', '”'), ('«', '»'), ('「', '」')];

const _: () = assert!(Feature::ALL.len() <= u128::BITS as usize);

/// A set of features.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FeatureSet(u128);

/// The place of a sentence.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SentencePlace {
    /// The classes of the words of the question with which the message before it ends.
    pub(crate) question: Option<ClassSet>,
}

/// The form of a sentence.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SentenceForm {
    pub(super) is_rule: bool,
    pub(super) is_addressed: bool,
    pub(super) is_asked: bool,
    pub(super) asks_for_value: bool,
    pub(super) is_command: bool,
    pub(super) has_definition: bool,
    pub(super) has_label: bool,
    pub(super) n_words: usize,
}

impl FeatureSet {
    /// Finds the features of a sentence.
    pub(super) fn of(
        sentence: &str,
        reading: &Reading,
        found: &[FoundValue],
        form: &SentenceForm,
        place: SentencePlace,
    ) -> Self {
        let mut set = Self::default();
        set.add_classes(reading, place);
        set.add(form.is_rule, Feature::Rule);
        // `You must not guess` is a demand like any other.
        set.add(reading.all.has(WordClass::Addressee) && !form.is_rule, Feature::Addressee);
        set.add_values(found);
        set.add_form(sentence, form, place);
        set.add_pairs(form);
        set
    }

    /// Returns whether the sentence has a feature.
    pub(super) const fn has(self, feature: Feature) -> bool {
        self.0 & (1 << feature as u8) != 0
    }

    fn has_one_of(self, features: &[Feature]) -> bool {
        features.iter().any(|feature| self.has(*feature))
    }

    fn add(&mut self, is_true: bool, feature: Feature) {
        self.0 |= u128::from(is_true) << feature as u8;
    }

    fn add_classes(&mut self, reading: &Reading, place: SentencePlace) {
        use WordClass as Class;
        let anywhere = [
            (Class::Advice, Feature::Advice),
            (Class::Naming, Feature::Naming),
            (Class::Remember, Feature::Remember),
            (Class::Change, Feature::Change),
            (Class::Retract, Feature::Retract),
            (Class::Statement, Feature::Statement),
            (Class::Own, Feature::Own),
            (Class::Transient, Feature::Transient),
            (Class::Denial, Feature::Denial),
            (Class::Doubt, Feature::Doubt),
            (Class::Report, Feature::Report),
            (Class::Feeling, Feature::Feeling),
            (Class::Episode, Feature::Episode),
            (Class::Courtesy, Feature::Courtesy),
            (Class::Back, Feature::Back),
            (Class::Date, Feature::Date),
        ];
        for (class, feature) in anywhere {
            self.add(reading.all.has(class), feature);
        }
        // An answer is about what was asked.
        let topics = [
            (Class::Liking, Feature::Liking),
            (Class::Habit, Feature::Habit),
            (Class::Person, Feature::Person),
            (Class::Life, Feature::Life),
            (Class::Plan, Feature::Plan),
            (Class::Setting, Feature::Setting),
        ];
        let asked = place.question.unwrap_or_default();
        for (class, feature) in topics {
            self.add(reading.all.has(class) || asked.has(class), feature);
        }
        self.add(is_about_speaker(reading), Feature::Speaker);
        let first = reading.words.iter().find(|classes| !classes.has(Class::Filler));
        let begins = |class| first.is_some_and(|classes| classes.has(class));
        self.add(begins(Class::Speaker), Feature::SpeakerFirst);
        self.add(begins(Class::Addressee), Feature::AddresseeFirst);
        self.add(begins(Class::Pronoun), Feature::PronounFirst);
        self.add(begins(Class::Rule), Feature::RuleFirst);
        self.add(begins(Class::Remember), Feature::RememberFirst);
        self.add(begins(Class::Doubt), Feature::DoubtFirst);
        self.add(begins(Class::Advice), Feature::AdviceFirst);
    }

    fn add_values(&mut self, found: &[FoundValue]) {
        use FactValueKind as Kind;
        for value in found.iter().filter(|value| value.weight >= MIN_OWN_WEIGHT) {
            let feature = match value.kind {
                Kind::Quoted => Feature::Quoted,
                Kind::Address | Kind::Path => Feature::Place,
                Kind::Number => Feature::Number,
                Kind::Identifier | Kind::Symbol => Feature::Identifier,
                Kind::Date => Feature::Date,
                Kind::Name => Feature::Name,
            };
            self.add(true, feature);
        }
    }

    fn add_form(&mut self, sentence: &str, form: &SentenceForm, place: SentencePlace) {
        let follows = place.question.is_some();
        let is_joined = sentence.chars().any(is_joined_script);
        // `Could you always answer in English?` asks for a rule, not for an answer.
        let asks_for_rule =
            form.is_asked && !form.asks_for_value && form.is_rule && form.is_addressed;
        self.add(asks_for_rule, Feature::AsksForRule);
        self.add(form.is_asked && !asks_for_rule, Feature::Asked);
        self.add(form.asks_for_value, Feature::AsksForValue);
        self.add(form.is_command, Feature::CommandFirst);
        self.add(form.has_definition, Feature::Definition);
        self.add(form.has_label, Feature::Label);
        self.add(sentence.contains(['!', '！']), Feature::Exclaimed);
        self.add(has_quotation(sentence), Feature::Quotation);
        let is_short = form.n_words <= SHORT_WORDS && !is_joined && !follows;
        self.add(is_short && !form.is_rule, Feature::Short);
        self.add(form.n_words > LONG_WORDS, Feature::Long);
        self.add(follows, Feature::AfterQuestion);
        let is_answer = follows && !form.is_asked && form.n_words <= ANSWER_WORDS;
        self.add(is_answer, Feature::Answer);
    }

    fn add_pairs(&mut self, form: &SentenceForm) {
        use Feature::{
            Date, Definition, Habit, Identifier, Life, Liking, Name, Naming, Number, Own, Person,
            Place, Plan, Quoted, Remember, Rule, Setting, Speaker,
        };
        let has_value = self.has_one_of(&[Number, Place, Identifier, Quoted, Name]);
        let has_time = self.has_one_of(&[Number, Date]);
        let is_own = self.has_one_of(&[Speaker, Own]);
        let is_topical = has_value
            || self.has_one_of(&[
                Rule, Naming, Remember, Liking, Person, Life, Habit, Plan, Setting, Date,
                Definition,
            ]);
        self.add(!is_topical, Feature::Unsaid);
        self.add(is_own && has_value, Feature::SpeakerAndValue);
        self.add(is_own && self.has(Liking), Feature::SpeakerAndLiking);
        self.add(is_own && self.has(Person), Feature::SpeakerAndPerson);
        self.add(is_own && self.has(Life), Feature::SpeakerAndLife);
        self.add(is_own && self.has(Plan), Feature::SpeakerAndPlan);
        self.add(self.has(Plan) && has_time, Feature::PlanAndTime);
        self.add(self.has(Setting) && has_value, Feature::SettingAndValue);
        self.add(form.is_command && has_value, Feature::CommandAndValue);
        self.add(form.is_command && self.has(Feature::Quotation), Feature::CommandAndQuotation);
        self.add(self.has(Feature::Doubt) && is_own && !form.is_rule, Feature::DoubtAndSpeaker);
        self.add(self.has(Feature::Doubt) && form.is_rule, Feature::DoubtAndRule);
        self.add(self.has(Feature::Doubt) && has_value, Feature::DoubtAndValue);
        self.add(form.is_rule && self.has(Feature::Feeling), Feature::RuleAndFeeling);
        self.add(form.is_rule && self.has(Feature::Report), Feature::RuleAndReport);
        self.add(form.is_rule && self.has(Feature::Exclaimed), Feature::RuleAndExclaimed);
        self.add(form.is_rule && is_own, Feature::RuleAndSpeaker);
        self.add(form.is_rule && has_value, Feature::RuleAndValue);
        let is_plain = !self.has_one_of(&AGAINST);
        self.add(is_plain, Feature::Plain);
        let is_stated =
            self.has_one_of(&[Feature::Statement, Definition]) && (has_value || has_time);
        self.add(is_plain && is_stated, Feature::PlainAndStated);
        self.add(is_plain && is_stated && self.has(Place), Feature::StatedPlace);
        let is_demand = form.is_rule && !self.has_one_of(&AGAINST_DEMAND);
        self.add(is_demand, Feature::Demand);
        self.add(is_demand && has_value, Feature::DemandAndValue);
    }

    /// Returns the features of a question as those of a statement.
    pub(super) fn without_asking(self) -> Self {
        let asking = [Feature::Asked, Feature::AsksForValue, Feature::AsksForRule];
        Self(asking.into_iter().fold(self.0, |set, feature| set & !(1 << feature as u8)))
    }

    /// Returns the sum of the points: ten for each e-fold of the odds.
    pub(super) fn points(self) -> i32 {
        POINTS.sum(|at| self.0 & (1 << at) != 0)
    }

    /// Returns the names of the features.
    pub(crate) fn names(self) -> impl Iterator<Item = &'static str> {
        Feature::ALL.iter().filter(move |(feature, _)| self.has(*feature)).map(|(_, name)| *name)
    }
}

/// Returns whether a sentence speaks of its speaker. `Write me a poem` does not.
fn is_about_speaker(reading: &Reading) -> bool {
    use WordClass as Class;
    let words = &reading.words;
    let first = words.iter().position(|classes| !classes.has(Class::Filler));
    let commanded = first.filter(|at| words[*at].has(Class::Command)).map(|at| at + 1);
    let mut said = words.iter().enumerate().filter(|(_, classes)| classes.has(Class::Speaker));
    match (said.next(), said.next()) {
        (Some((at, classes)), None) => Some(at) != commanded || classes.has(Class::Own),
        _ => reading.all.has(Class::Speaker),
    }
}

/// Returns whether a sentence gives words of others: several of them in quotation marks, or a mark without its other half,
/// which another sentence has.
fn has_quotation(sentence: &str) -> bool {
    let quoted = |(opening, closing): (char, char)| {
        let (_, behind) = sentence.split_once(opening)?;
        Some(behind.split_once(closing)?.0)
    };
    let (whole, others): (Vec<_>, Vec<_>) =
        QUOTATION_MARKS.into_iter().partition(|marks| quoted(*marks).is_some());
    // The other half of a mark depends on the language: `“name”` and `„name“`.
    let is_half = |mark: char| {
        let is_closed = whole.iter().any(|(opening, closing)| [*opening, *closing].contains(&mark));
        !is_closed && sentence.contains(mark)
    };
    let is_speech = |quoted: &str| match quoted.chars().any(is_unspaced_script) {
        true => quoted.chars().count() >= MIN_QUOTED_CHARS,
        false => quoted.split_whitespace().count() >= MIN_QUOTED_WORDS,
    };
    whole.iter().filter_map(|marks| quoted(*marks)).any(is_speech)
        || others.iter().any(|(opening, closing)| is_half(*opening) || is_half(*closing))
}

/// Returns the names of all features.
pub(crate) fn feature_names() -> impl Iterator<Item = &'static str> {
    Feature::ALL.iter().map(|(_, name)| *name)
}

/// The points of a set of features.
pub(super) struct Points {
    /// The points of anything.
    any: i32,
    /// The points of each feature.
    each: Vec<i32>,
}

impl Points {
    /// Reads a file with a name and its points a line. A name that is missing has none.
    pub(super) fn parse(file: &str, names: impl Iterator<Item = &'static str>) -> Self {
        let of = |name: &str| {
            let mut lines = file.lines().filter(|line| !line.starts_with('#'));
            let line = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.and_then(|points| points.trim().parse().ok()).unwrap_or(0)
        };
        Self { any: of("any"), each: names.map(of).collect() }
    }

    /// Returns the sum of the points of those features that are there: ten for each e-fold of the odds.
    pub(super) fn sum(&self, is_there: impl Fn(usize) -> bool) -> i32 {
        let each = self.each.iter().enumerate();
        self.any + each.filter(|(at, _)| is_there(*at)).map(|(_, points)| points).sum::<i32>()
    }
}

static POINTS: LazyLock<Points> = LazyLock::new(|| {
    Points::parse(include_str!("points.txt"), Feature::ALL.iter().map(|(_, name)| *name))
});

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Asserts that a file has points for each name and for no other.
    pub(in crate::facts) fn assert_points_for(
        file: &str,
        names: impl Iterator<Item = &'static str>,
    ) {
        let mut names: Vec<&str> = names.chain(["any"]).collect();
        for line in file.lines().filter(|line| !line.starts_with('#') && !line.contains(':')) {
            let (name, points) = line.split_once(' ').expect("a name and points");
            assert!(points.trim().parse::<i32>().is_ok(), "{line}");
            let at = names.iter().position(|one| *one == name);
            names.swap_remove(at.unwrap_or_else(|| panic!("{name} is no feature, or there twice")));
        }
        assert!(names.is_empty(), "without points: {names:?}");
    }

    #[test]
    fn several_words_in_marks_and_halves_of_marks_are_quotations() {
        let check = |sentence: &str, expect: bool| {
            assert_eq!(has_quotation(sentence), expect, "{sentence}");
        };
        for (opening, closing) in QUOTATION_MARKS {
            check(&format!("We call it {opening}Morning Star{closing}."), false);
            check(&format!("He said {opening}I have never been there{closing}."), true);
            check(&format!("He said {opening}I was there."), true);
            check(&format!("I was there{closing}, he said."), true);
        }
        check("他说「我从来没有去过那里」。", true);
        check("我们叫它「晨星」。", false);
        check("It's the users' own list.", false);
    }

    #[test]
    fn file_has_points_for_every_feature_and_no_other() {
        assert_points_for(include_str!("points.txt"), feature_names());
    }
}
