//! Selection of facts by a model: the facts that it is asked about, the request, and what of its answers counts.
//!
//! A model only picks numbers, so nothing can be invented. It is asked twice, in opposite orders, for half of the list at
//! most; a fact counts that both answers have. So a model that takes everything, or prefers one end of a list, chooses
//! nothing; and [`EXAM`] finds one that guesses by something else.

use std::collections::BTreeSet;

use ollm_protocol::Seq;
use ollm_protocol::content::AskedFact;
use serde_json::{Value, json};

use super::block::worth;
use super::fold::{FactFold, KnownFact, RankedFact};
use super::numbers::*;
use super::said::SaidText;
use super::sentences::one_line;

/// A fact that a model is asked about.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FactCandidate {
    /// The fact, not chosen.
    pub(crate) asked: AskedFact,
    /// Its text in one line.
    pub(crate) text: String,
}

/// Returns the facts around the line where the room of a head ends, in the order of the log: those for which the choice of a
/// model can matter, and for which none was asked. Returns none if they are too few.
///
/// `is_in_block`: whether the block of the head has the text of a fact. `prompt`: everything that the head shows.
pub(crate) fn fact_candidates(
    fold: &FactFold,
    is_in_block: &dyn Fn(&KnownFact) -> bool,
    prompt: &str,
    count: &dyn Fn(&str) -> u64,
) -> Vec<FactCandidate> {
    let prompt = SaidText::new(prompt);
    let ranked = fold.ranked_from(MIN_SCORE - CHOSEN_SCORE, &[]);
    let (inside, rest): (Vec<RankedFact<'_>>, Vec<_>) = ranked
        .into_iter()
        .filter(RankedFact::is_worth_showing)
        .partition(|one| is_in_block(one.fact));
    let outside: Vec<RankedFact<'_>> =
        rest.into_iter().filter(|one| !prompt.says(&one.fact.searched)).collect();
    let border = Border::of(&inside, &outside, count);
    let shown = border.nearest(&inside, MAX_SHOWN_CANDIDATES);
    let missing = border.nearest(&outside, MAX_CANDIDATES - shown.len());
    let mut nearest = [shown, missing].concat();
    if nearest.len() < MIN_CANDIDATES {
        return Vec::new();
    }
    nearest.sort_by_key(|fact| key(fact));
    nearest.into_iter().map(candidate).collect()
}

/// The border between the facts that a head shows and the others.
struct Border<'c> {
    /// The least worth of a shown fact; `None` if no other one lacks room.
    line: Option<f32>,
    count: &'c dyn Fn(&str) -> u64,
}

impl<'c> Border<'c> {
    fn of(
        inside: &[RankedFact<'_>],
        outside: &[RankedFact<'_>],
        count: &'c dyn Fn(&str) -> u64,
    ) -> Self {
        let is_full = outside.iter().any(|one| one.score >= MIN_SCORE);
        let line = inside.iter().map(|one| worth(one, count)).min_by(f32::total_cmp);
        Self { line: line.filter(|_| is_full), count }
    }

    /// Returns the score that a fact lacks to be shown; less than 0 for one that is.
    fn distance(&self, ranked: &RankedFact<'_>) -> f32 {
        let to_list = MIN_SCORE - ranked.score;
        let to_show = self.line.map(|line| line - worth(ranked, self.count));
        match to_show {
            None => to_list,
            Some(to_show) if to_list > 0.0 => to_list.max(to_show),
            Some(to_show) => to_show,
        }
    }

    /// Returns the facts nearest to the border that the choice of a model can bring over it, without those about which one
    /// was asked; of equal ones the newest.
    fn nearest<'f>(&self, facts: &[RankedFact<'f>], most: usize) -> Vec<&'f KnownFact> {
        let open = facts.iter().filter(|one| !one.fact.is_asked);
        let mut near: Vec<(f32, &KnownFact)> = open
            .map(|one| (self.distance(one).abs(), one.fact))
            .filter(|(distance, _)| *distance <= CHOSEN_SCORE)
            .collect();
        near.sort_by(|(one_distance, one), (other_distance, other)| {
            one_distance.total_cmp(other_distance).then_with(|| key(other).cmp(&key(one)))
        });
        near.into_iter().take(most).map(|(_, fact)| fact).collect()
    }
}

const fn key(fact: &KnownFact) -> (Seq, u32) {
    (fact.seq, fact.index)
}

fn candidate(fact: &KnownFact) -> FactCandidate {
    FactCandidate {
        asked: AskedFact { seq: fact.seq, digest: fact.digest(), chosen: false },
        text: one_line(&fact.shown()),
    }
}

/// Sentences by which a model shows that it can choose, and whether each lasts.
pub(crate) const EXAM: [(&str, bool); 12] = [
    ("My sister Ines is allergic to hazelnuts.", true),
    ("That sounds really great, thank you!", false),
    ("I am so tired today.", false),
    ("The staging server listens on port 48213.", true),
    ("Always answer me in British English.", true),
    ("Can you make it a bit shorter?", false),
    ("We decided to drop support for Windows 7.", true),
    ("Let us go on with the next file.", false),
    ("The weather was lovely this morning.", false),
    ("I work as a nurse at the children's hospital.", true),
    ("I never eat meat.", true),
    ("Haha, that made me laugh.", false),
];

/// Returns whether answers to [`EXAM`] chose well: a model that guesses seldom does.
pub(crate) fn passes_exam(answers: &[BTreeSet<usize>; 2]) -> bool {
    let n_chosen = |lasts: bool| {
        let places = (0..EXAM.len()).filter(|at| EXAM[*at].1 == lasts);
        places.filter(|at| is_agreed(*at, EXAM.len(), answers)).count()
    };
    n_chosen(true) >= n_chosen(false) + EXAM_MARGIN
}

/// Returns the most texts that an answer may name.
const fn most_of(n_texts: usize) -> usize {
    n_texts / 2
}

/// Returns the request to choose among texts. A model that repeats the example, or takes the first texts of both lists, chooses
/// nothing.
pub(crate) fn selection_request<'t>(texts: impl ExactSizeIterator<Item = &'t str>) -> String {
    let most = most_of(texts.len());
    let list: String =
        texts.enumerate().map(|(at, text)| format!("{}. {text}\n", at + 1)).collect();
    format!(
        "A person said the sentences below to an assistant. Which of them should the assistant still know in a month? \
         Choose lasting facts: names, values, dates, likes, rules, decisions. Do not choose small talk, moods, or what is \
         soon over. Choose {most} at most, by their numbers.\n\n{list}\nAnswer with JSON, for example \
         {{\"numbers\": [1, 3]}}."
    )
}

/// Returns the JSON Schema of an answer about some texts.
pub(crate) fn answer_format(n_texts: usize) -> Value {
    let number = json!({ "type": "integer", "minimum": 1, "maximum": n_texts });
    let numbers = json!({ "type": "array", "items": number, "maxItems": most_of(n_texts) });
    json!({ "type": "object", "properties": { "numbers": numbers }, "required": ["numbers"],
        "additionalProperties": false })
}

/// Returns the places of the texts that an answer names, from 0; none if it names too many or others.
pub(crate) fn chosen_places(answer: &str, n_texts: usize) -> BTreeSet<usize> {
    // A model that has no schema can say more around it.
    let json = answer.find('{').zip(answer.rfind('}')).and_then(|(from, to)| answer.get(from..=to));
    let answer: Value = serde_json::from_str(json.unwrap_or_default()).unwrap_or_default();
    let numbers = answer["numbers"].as_array().into_iter().flatten();
    let place = |number: &Value| {
        let place = usize::try_from(number.as_u64()?).ok()?.checked_sub(1)?;
        (place < n_texts).then_some(place)
    };
    let places: Option<BTreeSet<usize>> = numbers.map(place).collect();
    places.filter(|places| places.len() <= most_of(n_texts)).unwrap_or_default()
}

/// Returns whether both answers have a text: that to the list, and that to the list from its end.
pub(crate) fn is_agreed(place: usize, n_texts: usize, answers: &[BTreeSet<usize>; 2]) -> bool {
    let [forward, backward] = answers;
    forward.contains(&place) && backward.contains(&(n_texts - 1 - place))
}

#[cfg(test)]
mod tests {
    use ollm_protocol::Timestamp;
    use ollm_protocol::content::{Message, Record, RecordBody, Role};

    use super::*;

    fn door(n: u64) -> String {
        format!("The access code of door {n}-{} is {}.", n * 7, 50_000 + n)
    }

    /// Facts of one score, in the order of the log, and one that was said three times.
    fn thirty_facts() -> FactFold {
        let mut fold = FactFold::default();
        let at = Timestamp::from_unix_ms(0);
        let mut say = |n: u64, text: &str| {
            let message = Message::text(Role::User, text, at);
            fold.apply(Record::new(Seq(n), None, at, RecordBody::Message(message)));
        };
        for n in 0..30 {
            say(n, &door(n));
        }
        for n in 30..33 {
            say(n, "My daughter Ines is allergic to nuts.");
        }
        fold
    }

    /// Returns the records of the candidates if the block of a head has these facts.
    fn asked(fold: &FactFold, is_in_block: &dyn Fn(Seq) -> bool, prompt: &str) -> Vec<u64> {
        let is_in_block = |fact: &KnownFact| is_in_block(fact.seq);
        let found = fact_candidates(fold, &is_in_block, prompt, &|_| 10);
        found.iter().map(|one| one.asked.seq.0).collect()
    }

    #[test]
    fn facts_around_the_end_of_the_room_are_asked_about_once() {
        let mut fold = thirty_facts();
        let is_in_block = |seq: Seq| seq.0 >= 15;
        let first = asked(&fold, &is_in_block, "");
        let n_shown = first.iter().filter(|seq| **seq >= 15).count();
        assert_eq!((first.len(), n_shown), (MAX_CANDIDATES, MAX_SHOWN_CANDIDATES));
        assert!(
            first.is_sorted() && first.iter().all(|seq| *seq < 30),
            "not the surest: {first:?}"
        );
        let all = fold.ranked(&[]);
        let of_first = all.iter().filter(|one| first.contains(&one.fact.seq.0));
        let facts: Vec<AskedFact> = of_first.map(|one| candidate(one.fact).asked).collect();
        fold.note_asked(&facts);
        let second = asked(&fold, &is_in_block, "");
        assert!(second.len() >= MIN_CANDIDATES, "{second:?}");
        assert!(second.iter().all(|seq| !first.contains(seq)), "{first:?}, {second:?}");
        let missing = second[0];
        let third = asked(&fold, &is_in_block, &format!("As you said: {}", door(missing)));
        assert_eq!(third, second[1..], "the prompt says it");
    }

    #[test]
    fn facts_that_all_have_room_are_not_asked_about() {
        assert!(asked(&thirty_facts(), &|_| true, "").is_empty());
    }

    #[test]
    fn chosen_fact_gains_a_bounded_score_that_its_correction_keeps() {
        let mut fold = thirty_facts();
        let score = |fold: &FactFold, text: &str| {
            let ranked = fold.ranked(&[]);
            ranked.iter().find(|one| one.fact.text.contains(text)).map(|one| one.score)
        };
        let of = |fold: &FactFold, text: &str| {
            let ranked = fold.ranked(&[]);
            let fact = ranked.iter().find(|one| one.fact.text.contains(text)).expect("is known");
            AskedFact { chosen: true, ..candidate(fact.fact).asked }
        };
        let before = [score(&fold, "50003"), score(&fold, "50004")];
        let chosen = of(&fold, "50003");
        let other = AskedFact { digest: "0".repeat(16), ..of(&fold, "50004") };
        fold.note_asked(&[chosen.clone(), other]);
        fold.note_asked(&[AskedFact { chosen: false, ..chosen }]);
        let gained = before[0].map(|score| score + CHOSEN_SCORE);
        assert_eq!([score(&fold, "50003"), score(&fold, "50004")], [gained, before[1]]);
        let at = Timestamp::from_unix_ms(0);
        let text = "The access code of door 3-21 is now 59999.";
        let message = Message::text(Role::User, text, at);
        fold.apply(Record::new(Seq(40), None, at, RecordBody::Message(message)));
        assert_eq!(score(&fold, "50003"), None);
        assert!(score(&fold, "59999") >= gained);
    }

    #[test]
    fn answer_counts_if_it_names_half_of_the_list_at_most() {
        let check = |answer: &str, expect: &[usize]| {
            let places: Vec<usize> = chosen_places(answer, 8).into_iter().collect();
            assert_eq!(places, expect, "{answer}");
        };
        check(r#"{"numbers": [1, 8, 3]}"#, &[0, 2, 7]);
        check(" {\n \"numbers\": [2, 2]\n}\n", &[1]);
        check(r#"{"numbers": [1, 2, 3, 4, 5]}"#, &[]);
        check(r#"{"numbers": [1, 9]}"#, &[]);
        check(r#"{"numbers": [0]}"#, &[]);
        check(r#"{"numbers": ["one"]}"#, &[]);
        check(r#"{"numbers": [1, 2"#, &[]);
        check("The first one.", &[]);
        check("Here:\n```json\n{\"numbers\": [4]}\n```", &[3]);
        check("} {", &[]);
    }

    #[test]
    fn model_that_prefers_an_end_of_a_list_or_repeats_the_example_chooses_nothing() {
        for n in MIN_CANDIDATES..=MAX_CANDIDATES {
            let most = most_of(n);
            let example = selection_request((0..n).map(|_| "text"));
            let example =
                example.rsplit_once("example ").map(|(_, json)| json.trim_end_matches('.'));
            let example = chosen_places(example.expect("has one"), n);
            assert_eq!(example.len(), 2);
            for answer in [(0..most).collect(), (n - most..n).collect(), example] {
                let answers = [answer.clone(), answer];
                assert!((0..n).all(|place| !is_agreed(place, n, &answers)), "{answers:?}");
            }
        }
    }

    #[test]
    fn exam_is_passed_by_choosing_what_lasts() {
        let n = EXAM.len();
        let both = |places: &[usize]| {
            let forward: BTreeSet<usize> = places.iter().copied().collect();
            let backward = forward.iter().map(|at| n - 1 - at).collect();
            passes_exam(&[forward, backward])
        };
        let lasting: Vec<usize> = (0..n).filter(|at| EXAM[*at].1).collect();
        assert_eq!(lasting.len(), most_of(n));
        assert!(both(&lasting) && both(&lasting[..EXAM_MARGIN]));
        assert!(!both(&lasting[..EXAM_MARGIN - 1]) && !both(&[]));
        assert!(!both(&(0..most_of(n)).collect::<Vec<_>>()), "the first half");
        let others: Vec<usize> = (0..n).filter(|at| !EXAM[*at].1).collect();
        assert!(!both(&others) && !both(&[&lasting[..4], &others[..2]].concat()));
    }
}
