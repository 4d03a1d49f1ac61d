//! Recall: the messages that answer a question.

use super::*;
use crate::catalog::{RecallPeriod, RecallQuery, RecallScope, RecalledMessage, TurnRules};

impl CatalogFixture {
    fn recall_in(&self, question: &str, scope: RecallScope<'_>) -> Vec<RecalledMessage> {
        let query = RecallQuery {
            question,
            scope,
            period: RecallPeriod::default(),
            limit: 8,
            turn: None,
            wants: &|_, _| true,
        };
        self.catalog.recall(&query).expect("recalls").messages
    }

    fn recall(&self, question: &str) -> Vec<RecalledMessage> {
        self.recall_in(question, RecallScope::All)
    }

    /// Records messages of a user and an assistant in turns, one in each minute.
    fn talk(&self, id: SessionId, texts: &[&str]) {
        for (number, text) in texts.iter().enumerate() {
            let role = if number % 2 == 0 { Role::User } else { Role::Assistant };
            let minute = i64::try_from(number).expect("small") * 60_000;
            self.record(id, role, Timestamp::from_unix_ms(START_MS + minute), text);
        }
        self.catch_up();
    }
}

const FILLER: &[&str] = &[
    "Let us look at the parser first.",
    "The parser reads one line at a time.",
    "Does it keep the line breaks?",
    "It drops them.",
    "Then write a test for empty lines.",
    "Done, the test passes.",
];

#[test]
fn message_with_most_of_a_question_is_the_first() {
    let fixture = CatalogFixture::new();
    let mut texts = FILLER.to_vec();
    texts.extend(["The staging server listens on port 48213.", "Noted."]);
    texts.extend(FILLER);
    texts.extend(["Production has another port.", "Fine."]);
    fixture.talk(id(1), &texts);
    let found = fixture.recall("Which port does staging use?");
    assert_eq!(found[0].seq, Seq(6), "{found:?}");
    assert_eq!(found[0].matched, ["port", "staging"]);
    assert!(found[0].excerpt.contains("48213"));
    assert!(found.windows(2).all(|pair| pair[0].score >= pair[1].score));
}

#[test]
fn other_forms_identifiers_numbers_and_cjk_are_found() {
    let fixture = CatalogFixture::new();
    let mut texts = FILLER.to_vec();
    texts.extend([
        "We are moving the boxes on Monday.",
        "ok",
        "fn getUserName() calls parseHTTPResponse()",
        "ok",
        "Ticket 48213 is closed, 48214 is not",
        "ok",
        "私は日本語を話す",
        "ok",
        "Die Bücher liegen in den Häusern und nicht hier.",
        "ok",
    ]);
    fixture.talk(id(1), &texts);
    let check = |question: &str, seq: u64| {
        let found = fixture.recall(question);
        assert_eq!(found.first().map(|hit| hit.seq), Some(Seq(seq)), "{question}: {found:?}");
    };
    check("When do they move a box?", 6);
    check("where is UserName used", 8);
    check("HTTPResponse", 8);
    check("what about 48213?", 10);
    check("日本語", 12);
    check("Wo liegt das Buch und das Haus?", 14);
    check("tests", 5);
}

#[test]
fn answer_is_shown_with_its_question_and_a_question_with_its_answer() {
    let fixture = CatalogFixture::new();
    let mut texts = FILLER.to_vec();
    texts.extend(["Which port does staging use?", "48213"]);
    texts.extend(FILLER);
    fixture.talk(id(1), &texts);
    let found = fixture.recall("staging port");
    assert_eq!(found[0].excerpt, "user: Which port does staging use?\nassistant: 48213");
    let found = fixture.recall("48213");
    assert_eq!(found[0].excerpt, "user: Which port does staging use?\nassistant: 48213");
    assert_eq!((found[0].seq, found[0].role), (Seq(7), Role::Assistant));
}

#[test]
fn question_is_asked_only_of_its_scope() {
    let fixture = CatalogFixture::new();
    for number in 1..=3 {
        fixture.talk(id(number), &["The staging port is 48213.", "ok"]);
        let project = (number < 3).then(|| "aa11".to_owned());
        fixture.logs.change(id(number), |log| log.session.project_hash = project);
        fixture.catalog.mark_dirty(id(number));
    }
    fixture.catch_up();
    let sessions = |scope| {
        let found = fixture.recall_in("staging port", scope).into_iter();
        let mut ids: Vec<_> = found.map(|hit| hit.session_id).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    };
    assert_eq!(sessions(RecallScope::All), [id(1), id(2), id(3)]);
    assert_eq!(sessions(RecallScope::Project("aa11")), [id(1), id(2)]);
    assert_eq!(sessions(RecallScope::Session(id(2))), [id(2)]);
    assert_eq!(sessions(RecallScope::Session(id(9))), []);
    assert_eq!(sessions(RecallScope::Project("bb22")), []);
    fixture.catalog.forget(&[id(1)]).expect("forgets");
    assert_eq!(sessions(RecallScope::All), [id(2), id(3)]);
}

#[test]
fn excluded_messages_give_way_to_the_next_ones() {
    let fixture = CatalogFixture::new();
    let texts: Vec<String> = (0..30).map(|n| format!("The staging port was {n}.")).collect();
    fixture.talk(id(1), &texts.iter().map(String::as_str).collect::<Vec<_>>());
    let wants = |_, seq: Seq| seq.0 < 3;
    let scope = RecallScope::Session(id(1));
    let question = "staging port";
    let query = RecallQuery {
        question,
        scope,
        period: RecallPeriod::default(),
        limit: 8,
        turn: None,
        wants: &wants,
    };
    let page = fixture.catalog.recall(&query).expect("recalls");
    let mut seqs: Vec<_> = page.messages.iter().map(|hit| hit.seq.0).collect();
    seqs.sort_unstable();
    assert_eq!(seqs, [0, 1, 2]);
}

#[test]
fn question_without_content_finds_nothing_and_a_huge_one_something() {
    let fixture = CatalogFixture::new();
    fixture.talk(id(1), FILLER);
    for question in
        ["", "the", "it was the", "?!... -- \"*\"", "___", "\u{0}\u{82}s1", "\u{83}parser"]
    {
        let found = fixture.recall(question);
        let is_known = question.ends_with("parser") && !found.is_empty();
        assert!(found.is_empty() || is_known, "{question:?}: {found:?}");
    }
    let huge = format!("{} parser", "padding \"words\" ".repeat(5_000));
    assert!(huge.len() > 64 << 10);
    let found = fixture.recall(&huge);
    assert!(found.iter().any(|hit| hit.excerpt.contains("parser")), "{found:?}");
}

#[test]
fn recall_while_the_catalog_is_rebuilt_says_so_and_does_not_wait() {
    let fixture = CatalogFixture::new();
    fixture.talk(id(1), &["The staging port is 48213.", "ok"]);
    fixture.logs.change(id(2), |log| log.is_unreadable = true);
    fixture.record(id(2), Role::User, at(1), "The staging port is 48214.");
    let scope = RecallScope::All;
    let question = "staging port";
    let query = RecallQuery {
        question,
        scope,
        period: RecallPeriod::default(),
        limit: 8,
        turn: None,
        wants: &|_, _| true,
    };
    // The text of the second session cannot be read, so it stays behind.
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let page = fixture.catalog.recall(&query).expect("recalls");
        assert!(page.messages.iter().all(|hit| hit.session_id == id(1)));
        if page.behind == 1 && !page.messages.is_empty() {
            break;
        }
        assert!(Instant::now() < deadline, "{page:?}");
    }
}

#[test]
fn common_words_of_a_long_history_are_bounded_and_rare_ones_are_found_in_old_shards() {
    let fixture = CatalogFixture::new();
    // More than ten shards of tests.
    for hour in 0..800 {
        let text = if hour == 3 { "common words and the zebra" } else { "common words again" };
        fixture.logs.record(id(1), Role::User, at(hour), text);
    }
    fixture.catalog.mark_dirty(id(1));
    fixture.catch_up();
    for scope in [RecallScope::All, RecallScope::Session(id(1))] {
        let found = fixture.recall_in("common words with a zebra", scope);
        assert_eq!((found.len(), found[0].seq), (8, Seq(3)), "{found:?}");
    }
}

/// Finds messages for the prompt of a turn in one session.
fn recall_for_prompt(fixture: &CatalogFixture, question: &str, points_back: bool) -> Vec<u64> {
    let query = RecallQuery {
        question,
        scope: RecallScope::Session(id(1)),
        period: RecallPeriod::default(),
        limit: 8,
        turn: Some(TurnRules { points_back, question: None }),
        wants: &|_, _| true,
    };
    let page = fixture.catalog.recall(&query).expect("recalls");
    page.messages.iter().map(|hit| hit.seq.0).collect()
}

#[test]
fn message_for_a_prompt_has_enough_of_the_question() {
    let fixture = CatalogFixture::new();
    let mut texts = vec![
        "The code of the Larkspur door is 7731.",
        "Noted: the Larkspur door.",
        "会议室的密码是 4471。",
        "好的。",
        "창고 비밀번호는 5522입니다.",
        "네.",
        "Always run the linter before a commit.",
        "I will.",
    ];
    (0..8).for_each(|_| texts.extend(FILLER));
    fixture.talk(id(1), &texts);
    let found = |question| recall_for_prompt(&fixture, question, false);
    assert_eq!(found("the Larkspur code please"), [0, 1]);
    assert_eq!(found("密码是多少？"), [2]);
    assert_eq!(found("창고 비밀번호가 뭐예요?"), [4]);
    assert_eq!(found("What comes before a commit?"), [6]);
    assert_eq!(found("Commit it."), [6]);
    let lines = found("The parser reads lines, what else?");
    assert_eq!(lines, [51, 52, 50], "the newest that say so, and the one before");
    // Most of each question is about something that nobody said.
    assert_eq!(found("Which branch does the commit belong to?"), [0; 0]);
    assert_eq!(found("How do I grill a zucchini with a commit of rosemary?"), [0; 0]);
    // The code answers both, but one word in four is not enough.
    assert_eq!(found("I am in Larkspur now, which number do I type?"), [1, 0]);
    let longer = "I am in Larkspur now, which number do I type on the panel?";
    assert_eq!(found(longer), [0; 0]);
}

#[test]
fn message_with_less_of_the_question_is_found_only_beside_one_with_enough() {
    let fixture = CatalogFixture::new();
    let texts = |first: &'static str| {
        let mut texts = vec![first, "Noted."];
        (0..4).for_each(|_| texts.extend(FILLER));
        texts.extend(["Bertolt put a spare key under the third pot.", "Good to know."]);
        (0..8).for_each(|_| texts.extend(FILLER));
        texts
    };
    let question = "Where is the key of the Larkspur barn?";
    fixture.talk(id(1), &texts("The river is high."));
    assert_eq!(recall_for_prompt(&fixture, question, false), [0; 0]);
    let fixture = CatalogFixture::new();
    let texts = texts("The key of the Larkspur barn hangs behind the oil tank.");
    fixture.talk(id(1), &texts);
    let spare = texts.iter().position(|text| text.contains("spare")).expect("is there") as u64;
    assert_eq!(recall_for_prompt(&fixture, question, false)[..2], [0, spare]);
}

#[test]
fn date_that_no_message_has_hides_no_answer() {
    let fixture = CatalogFixture::new();
    let mut texts = vec!["The kiln had a setback, the door is warped.", "What a pity."];
    (0..8).for_each(|_| texts.extend(FILLER));
    fixture.talk(id(1), &texts);
    let found = |question| recall_for_prompt(&fixture, question, false);
    assert_eq!(found("What setback was there on 13 October 2023?")[..1], [0]);
    assert_eq!(found("Welcher setback war am 3. März?")[..1], [0]);
    assert_eq!(found("What setback was there from 2023-10-13 to 2023-11-02?")[..1], [0]);
    // The other words that nobody said still count.
    assert_eq!(found("Which setback did the harbour and the ferry have in 2023?"), [0; 0]);
    assert_eq!(found("What was on 13 October 2023?"), [0; 0]);
}

#[test]
fn message_that_points_back_finds_more_for_its_prompt() {
    let fixture = CatalogFixture::new();
    let mut texts = vec!["We met Bertolt in the museum yesterday.", "How nice."];
    (0..8).for_each(|_| texts.extend(FILLER));
    fixture.talk(id(1), &texts);
    let question = "I told you that I went to a museum, which exhibits and paintings did I like?";
    assert_eq!(recall_for_prompt(&fixture, question, false), [0; 0]);
    assert_eq!(recall_for_prompt(&fixture, question, true), [0]);
}

#[test]
fn what_is_said_again_and_again_does_not_displace_a_message_with_more_of_the_question() {
    let fixture = CatalogFixture::new();
    // A run of messages on one topic ranks above a lone one with two words of it, because each raises its neighbors.
    let mut texts = vec!["Larkspur again."; 40];
    for _ in 0..40 {
        texts.extend(FILLER);
        texts.extend(["Bertolt called."]);
        texts.extend(FILLER);
    }
    texts.extend(["Larkspur is where Bertolt and the others keep the old boat during winter."]);
    let lone = texts.len() as u64 - 1;
    (0..80).for_each(|_| texts.extend(FILLER));
    fixture.talk(id(1), &texts);
    let question = "What did Bertolt leave in Larkspur?";
    let all = RecallQuery {
        question,
        scope: RecallScope::Session(id(1)),
        period: RecallPeriod::default(),
        limit: 60,
        turn: None,
        wants: &|_, _| true,
    };
    let all = fixture.catalog.recall(&all).expect("recalls").messages;
    let rank = all.iter().position(|hit| hit.seq.0 == lone).expect("is found");
    assert!(rank > 24, "{rank}");
    // `Bertolt called.` has a little of the question, and is found once of 40 times.
    assert_eq!(recall_for_prompt(&fixture, question, false), [lone, 553]);
    // It has enough of this one.
    let found = recall_for_prompt(&fixture, "Where in Larkspur is Bertolt?", false);
    assert_eq!(found, [lone, 553]);
}

#[test]
fn messages_for_a_prompt_say_more_than_the_question() {
    let fixture = CatalogFixture::new();
    let question = "Which port does the staging server use?";
    let again = "The staging server, which port.";
    let mut texts = vec!["The staging server uses port 48213.", "Noted.", question, again];
    for _ in 0..8 {
        texts.extend(FILLER);
    }
    fixture.talk(id(1), &texts);
    let scope = RecallScope::Session(id(1));
    let wants = |_, _| true;
    let query = RecallQuery {
        question,
        scope,
        period: RecallPeriod::default(),
        limit: 8,
        turn: Some(TurnRules { points_back: false, question: None }),
        wants: &wants,
    };
    let page = fixture.catalog.recall(&query).expect("recalls");
    let seqs: Vec<u64> = page.messages.iter().map(|hit| hit.seq.0).collect();
    assert_eq!(seqs, [0], "{page:?}");
    let all = RecallQuery { turn: None, ..query };
    let all = fixture.catalog.recall(&all).expect("recalls").messages;
    assert!(all.iter().any(|hit| hit.seq == Seq(2) && !hit.says_more), "{all:?}");
}

#[test]
fn recorded_question_changes_nothing_that_it_finds() {
    let fixture = CatalogFixture::new();
    let question = "Which port does the staging server use?";
    let mut texts = vec!["The staging server uses port 48213.", "Noted."];
    // With the question, each of its words would be in one message more, and weigh less.
    texts.extend(["Restart the staging server.", "The port is open.", "Staging works."]);
    (0..5).for_each(|_| texts.extend(FILLER));
    fixture.talk(id(1), &texts);
    fixture.talk(id(2), FILLER);
    let seq = Seq(texts.len() as u64);
    let find = |scope, question_at| {
        let turn = Some(TurnRules { points_back: false, question: question_at });
        let query = RecallQuery {
            question,
            scope,
            period: RecallPeriod::default(),
            limit: 8,
            turn,
            wants: &|_, _| true,
        };
        fixture.catalog.recall(&query).expect("recalls").messages
    };
    let (session, all) = (RecallScope::Session(id(1)), RecallScope::All);
    let before = [find(session, None), find(all, None)];
    assert!(before.iter().all(|found| found[0].seq == Seq(0)), "{before:?}");
    let at = Timestamp::from_unix_ms(START_MS + 3_600_000);
    fixture.record(id(1), Role::User, at, question);
    fixture.catch_up();
    let question_at = Some((id(1), seq));
    assert_eq!([find(session, question_at), find(all, question_at)], before);
}
