//! A believable session: ordinary work on a program, and thirty facts that the user says once each.

use std::sync::LazyLock;

use super::server::Noted;
use crate::harness::generate::Random;

/// A fact that the user states once.
pub(crate) struct Fact {
    pub(crate) sentence: &'static str,
    /// A question that names the subject of the fact.
    pub(crate) question: &'static str,
    /// The words by which the fact is recognized, which nothing else contains.
    pub(crate) value: &'static str,
}

/// The facts of the session: the lines of a file.
pub(crate) static FACTS: LazyLock<Vec<Fact>> = LazyLock::new(|| {
    let lines = include_str!("facts.txt").lines().filter(|line| !line.starts_with('#'));
    let fact = |line: &'static str| {
        let (sentence, rest) = line.split_once(" | ")?;
        let (question, value) = rest.split_once(" | ")?;
        Some(Fact { sentence, question, value })
    };
    lines.filter_map(fact).collect()
});

/// Returns what notes can keep of the session.
pub(crate) fn noted() -> Vec<Noted> {
    let noted = |fact: &Fact| Noted {
        sentence: fact.sentence.to_owned(),
        values: vec![fact.value.to_owned()],
        corrected_by: None,
    };
    FACTS.iter().map(noted).collect()
}

const MODULES: [&str; 14] = [
    "parser",
    "router",
    "cache",
    "scheduler",
    "mailer",
    "importer",
    "session store",
    "search",
    "settings page",
    "uploader",
    "job queue",
    "report view",
    "login form",
    "rate limiter",
];
const REQUESTS: [&str; 10] = [
    "Please read the {} again and tell me what surprises you.",
    "The {} feels slow today; where would you look first?",
    "Can you explain how the {} handles an empty input?",
    "Rename the helper in the {} so that it says what it does.",
    "Write a test for the {} that fails on the old code.",
    "I think the {} does two things. How would you split it?",
    "What happens in the {} when the network goes away?",
    "Make the error message of the {} kinder.",
    "Remove the dead branch from the {}, and say why it was dead.",
    "Compare the {} with what we had before the rewrite.",
];
const THOUGHTS: [&str; 12] = [
    "The first thing that stands out is how much state is shared.",
    "I would begin with the boundary, because that is where errors are lost.",
    "The function reads well, but its name promises more than it does.",
    "There are two callers, and only one of them checks the result.",
    "A smaller type would make the wrong call impossible.",
    "The test covers the common path and leaves the retry alone.",
    "Nothing here needs a lock, since one thread owns the data.",
    "I moved the check to the place where the value comes in.",
    "The comment repeats the code, so I took it out.",
    "This branch was there for a format that is no longer written.",
    "With the early return the rest of the function loses a level.",
    "I kept the behavior and made the order of the steps visible.",
];

/// Returns the turn in which a fact is stated, of a session of `n_turns` turns. The last fifth has none.
pub(crate) fn turn_of(fact: usize, n_turns: usize) -> usize {
    2 + fact * (n_turns * 4 / 5 - 2) / FACTS.len()
}

/// A turn of the session.
pub(crate) struct Turn {
    pub(crate) message: String,
    pub(crate) answer: String,
}

/// Returns a turn of ordinary work, in which the user states a fact or not.
pub(crate) fn turn(at: usize, fact: Option<&Fact>, random: &mut Random) -> Turn {
    let module = MODULES[random.below(MODULES.len())];
    let request = REQUESTS[random.below(REQUESTS.len())].replace("{}", module);
    let message = match fact {
        None => request,
        Some(fact) if at.is_multiple_of(2) => format!("{} {request}", fact.sentence),
        Some(fact) => format!("{request} {}", fact.sentence),
    };
    Turn { message, answer: thoughts(module, 3 + random.below(6), random) }
}

fn thoughts(module: &str, count: usize, random: &mut Random) -> String {
    let mut text = format!("About the {module}:");
    for _ in 0..count {
        text.push(' ');
        text.push_str(THOUGHTS[random.below(THOUGHTS.len())]);
    }
    text
}

/// Returns a message of about `bytes` bytes, as a user pastes a file.
pub(crate) fn paste(at: usize, bytes: usize, random: &mut Random) -> String {
    let mut text = format!("Here is the file of step {at}:\n");
    let mut line = 0;
    while text.len() < bytes {
        line += 1;
        let words = thoughts(MODULES[random.below(MODULES.len())], 1, random);
        text.push_str(&format!("{line:>4}  {words}\n"));
    }
    text + "What do you make of it?"
}
