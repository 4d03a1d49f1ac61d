//! A believable session: ordinary work on a program, and thirty facts that the user says once each.

use crate::harness::generate::Random;

/// A fact that the user states once.
pub(crate) struct Fact {
    pub(crate) sentence: &'static str,
    /// A question that names the subject of the fact.
    pub(crate) question: &'static str,
    /// The words by which the fact is recognized, which nothing else contains.
    pub(crate) value: &'static str,
}

const fn fact(sentence: &'static str, question: &'static str, value: &'static str) -> Fact {
    Fact { sentence, question, value }
}

pub(crate) const FACTS: [Fact; 30] = [
    fact(
        "The staging server listens on port 48613.",
        "Which port does the staging server use?",
        "48613",
    ),
    fact(
        "Our production database is called ledger_prod_eu.",
        "What is the production database called?",
        "ledger_prod_eu",
    ),
    fact(
        "Never write log lines longer than 160 characters.",
        "How long may a log line be?",
        "160 characters",
    ),
    fact(
        "Katharina Vogt reviews everything that touches billing.",
        "Who reviews changes to billing?",
        "Katharina Vogt",
    ),
    fact(
        "The release is planned for the 17th of March.",
        "When is the release planned?",
        "17th of March",
    ),
    fact(
        "Use tabs, not spaces, in the Makefile snippets.",
        "Tabs or spaces in the Makefile?",
        "Use tabs",
    ),
    fact(
        "Customer exports live in /srv/exports/nightly.",
        "Where do the customer exports live?",
        "/srv/exports/nightly",
    ),
    fact("The API quota is 2750 requests per minute.", "What is the API quota?", "2750"),
    fact(
        "We pin the compiler to version 1.84.2 until summer.",
        "To which version is the compiler pinned?",
        "1.84.2",
    ),
    fact(
        "Call the new crate \"harbor\", please.",
        "What should the new crate be called?",
        "harbor",
    ),
    fact(
        "The on-call number is +49 711 5540 332.",
        "What is the number of the person on call?",
        "5540 332",
    ),
    fact(
        "Retries must stop after 7 attempts.",
        "After how many attempts must retries stop?",
        "7 attempts",
    ),
    fact(
        "The old importer was broken by commit 9f3c2e71.",
        "Which commit broke the old importer?",
        "9f3c2e71",
    ),
    fact(
        "Backups go to the bucket s3://orbit-cold-storage.",
        "To which bucket do backups go?",
        "s3://orbit-cold-storage",
    ),
    fact(
        "The license header must say Meridian GmbH 2026.",
        "What must the license header say?",
        "Meridian GmbH",
    ),
    fact(
        "Our slowest customer has a latency of 840 ms.",
        "What latency does the slowest customer have?",
        "840 ms",
    ),
    fact("The session cookie is named orb_sid.", "What is the session cookie named?", "orb_sid"),
    fact("Always run the linter before a commit.", "What comes before a commit?", "linter"),
    fact(
        "The test account belongs to pilar.ortega@example.net.",
        "To whom does the test account belong?",
        "pilar.ortega@example.net",
    ),
    fact(
        "Das Passwort für den Testdrucker steht in Ordner 31B.",
        "In welchem Ordner steht das Passwort für den Testdrucker?",
        "31B",
    ),
    fact(
        "The checksum of the golden file begins with c0ffee42.",
        "How does the checksum of the golden file begin?",
        "c0ffee42",
    ),
    fact(
        "Invoices are rounded to 5 cents in Switzerland.",
        "How are invoices rounded in Switzerland?",
        "5 cents",
    ),
    fact(
        "We do not support Windows in this release.",
        "Which system is not supported in this release?",
        "support Windows",
    ),
    fact(
        "The feature flag for the beta is ENABLE_TIDAL_SYNC.",
        "Which feature flag turns the beta on?",
        "ENABLE_TIDAL_SYNC",
    ),
    fact(
        "El servidor de pruebas está en el edificio Cervantes.",
        "¿En qué edificio está el servidor de pruebas?",
        "Cervantes",
    ),
    fact("The nightly job starts at 03:25.", "When does the nightly job start?", "03:25"),
    fact(
        "Our schema migrations are numbered from 0412 on.",
        "From which number on are schema migrations numbered?",
        "0412",
    ),
    fact(
        "Tomasz prefers short answers without lists.",
        "How does Tomasz like answers?",
        "Tomasz prefers",
    ),
    fact("测试服务器的地址是 10.20.7.14。", "测试服务器的地址是什么?", "10.20.7.14"),
    fact(
        "The dashboard was drawn by the agency Blaufuchs.",
        "Which agency drew the dashboard?",
        "Blaufuchs",
    ),
];

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
