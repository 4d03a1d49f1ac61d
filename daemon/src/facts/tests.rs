//! Sessions of facts: what holds after corrections, the bounds, the laws of the fold, and the block of a prompt.

use ollm_protocol::content::{ContextEntryChange, Custom, Message, Record, RecordBody, Role};
use ollm_protocol::{Seq, Timestamp};
use proptest::prelude::*;
use serde_json::json;

use super::block::FactBlock;
use super::numbers::PASTED_SCORE;
use super::*;

/// A session of user messages.
#[derive(Default)]
struct Talk {
    fold: FactFold,
    next: u64,
}

impl Talk {
    fn of(messages: &[&str]) -> Self {
        let mut talk = Self::default();
        for text in messages {
            talk.say(text);
        }
        talk
    }

    fn say(&mut self, text: &str) -> Seq {
        let at = Timestamp::from_unix_ms(
            1_750_000_000_000 + i64::try_from(self.next).expect("small") * 1000,
        );
        self.push(RecordBody::Message(Message::text(Role::User, text, at)))
    }

    fn push(&mut self, body: RecordBody) -> Seq {
        let seq = Seq(self.next);
        self.next += 1;
        let at = Timestamp::from_unix_ms(
            1_750_000_000_000 + i64::try_from(seq.0).expect("small") * 1000,
        );
        self.fold.apply(Record::new(seq, None, at, body));
        seq
    }

    /// Suppresses the facts of a record.
    fn forget(&mut self, seq: Seq) {
        let forgotten = ForgottenFact { seq, digest: None, restored: false };
        let data = serde_json::to_value(forgotten).expect("serializes");
        let name = FORGET_RECORD.to_owned();
        self.push(RecordBody::Custom(Custom { name, data, context_text: None }));
    }

    fn texts(&self) -> Vec<String> {
        self.fold
            .ranked(&[])
            .into_iter()
            .filter(|fact| !fact.is_forgotten)
            .map(|fact| fact.fact.text.clone())
            .collect()
    }

    /// Returns the listed facts as they are shown, each with the one before it that may still hold.
    fn shown(&self) -> Vec<String> {
        self.fold.ranked(&[]).iter().map(|one| one.fact.shown().into_owned()).collect()
    }

    fn block(&self, notes: &str, room: u64) -> FactBlock {
        let shown = ShownText { notes, has_record: &|_| false };
        fact_block(&self.fold.ranked(&[]), &shown, room, &|text| text.len() as u64 / 4 + 1)
    }
}

#[test]
fn later_fact_on_the_same_subject_replaces_the_earlier() {
    let check = |messages: &[&str], expect: &[&str]| {
        assert_eq!(Talk::of(messages).texts(), expect, "{messages:?}");
    };
    check(&["The relay port is 6100.", "The relay port is 6200."], &["The relay port is 6200."]);
    check(
        &["The relay port is 6100.", "Now the relay port is 6200.", "Actually 6300."],
        &["Actually 6300."],
    );
    check(
        &["Rack 12 uses VLAN 340.", "Rack 14 uses VLAN 350."],
        &["Rack 12 uses VLAN 340.", "Rack 14 uses VLAN 350."],
    );
    check(
        &["Ada's birthday is 14 May.", "Bruno's birthday is 21 June."],
        &["Ada's birthday is 14 May.", "Bruno's birthday is 21 June."],
    );
    check(&["The lead is Ada.", "The lead is now Grace."], &["The lead is now Grace."]);
    check(&["Always use tabs.", "Never use tabs."], &["Never use tabs."]);
    check(
        &["Der Tresorcode ist 4471.", "Der Tresorcode ist jetzt 9920."],
        &["Der Tresorcode ist jetzt 9920."],
    );
    check(&["会议室的号码是318。", "会议室的号码改为402。"], &["会议室的号码改为402。"]);
    check(&["رقم الغرفة هو 412.", "رقم الغرفة الآن هو 518."], &["رقم الغرفة الآن هو 518."]);
    check(
        &["We moved the relay port from 6100 to 6300."],
        &["We moved the relay port from 6100 to 6300."],
    );
    let corrected = |earlier: &str, later: &str| check(&[earlier, later], &[later]);
    corrected("My flight is at 06:40.", "They moved my flight, it leaves at 11:25 instead.");
    corrected("The budget for the fair is 5200 euros.", "Finance cut the fair, it's 3900 now.");
    corrected(
        "For the dinner we are 18 people.",
        "Two dropped out, we are 11 people for the dinner.",
    );
    corrected(
        "I am a vegan, so no cheese in the menu.",
        "I'm not a vegan any more, a bit of cheese is fine.",
    );
    corrected("The build host is called wren.", "Ops renamed the build host, it answers to heron.");
    corrected("El vuelo a Bogotá cuesta 612 euros.", "Ha subido: el vuelo ya cuesta 689 euros.");
    check(
        &["The relay port is 6100.", "We moved the relay port from 6100 to 6300."],
        &["We moved the relay port from 6100 to 6300."],
    );
}

#[test]
fn line_of_notes_is_outdated_if_it_says_only_what_no_longer_holds() {
    let mut talk = Talk::of(&[
        "The relay port is 6100.",
        "My flight to Porto leaves at 06:40.",
        "The vault code is 7731.",
        "We moved the relay port from 6100 to 6300.",
        "Forget the flight at 06:40.",
    ]);
    talk.forget(Seq(2));
    let check = |line: &str, expected| {
        assert_eq!(talk.fold.is_outdated(line), expected, "{line}: {:?}", talk.texts());
    };
    check("the relay listens on port 6100", true);
    check("relay port: 6300 (was 6100)", false);
    check("relay port: 6300", false);
    check("The flight to Porto leaves at 06:40.", true);
    check("vault code: 7731", true);
    check("The lexer is done.", false);
    check("", false);
}

#[test]
fn line_of_notes_with_the_number_of_another_fact_is_not_outdated() {
    let mut talk = Talk::of(&["Retention is 14 days."]);
    talk.forget(Seq(0));
    assert!(talk.fold.is_outdated("retention: 14 days"));
    assert!(!talk.fold.is_outdated("Tokens are rotated every 14 days."));
}

#[test]
fn correction_in_doubt_is_shown_with_the_fact_before_it() {
    let talk = Talk::of(&["Retention is 14 days.", "Retention for refunds is 30 days."]);
    let ranked = talk.fold.ranked(&[]);
    let expected = "Retention for refunds is 30 days. (before: Retention is 14 days.)";
    assert_eq!((ranked.len(), ranked[0].fact.shown().as_ref()), (1, expected));
    assert_eq!(ranked[0].fact.supersedes, Some(Seq(0)));
    assert!(talk.block("", 100).text.ends_with(&format!("- {expected}")));
    // Notes that say the correction alone do not say the fact before it.
    assert!(talk.block("- Retention for refunds is 30 days.", 100).text.ends_with(expected));
}

#[test]
fn fact_before_a_doubtful_correction_is_never_lost() {
    for later in [
        "Retention for refunds is now 45 days.",
        "Retention for invoices is 60 days.",
        "retention for refunds is 30 days",
    ] {
        let before = "Retention is 14 days.";
        let talk = Talk::of(&[before, "Retention for refunds is 30 days.", later]);
        let shown = talk.shown();
        assert!(shown.iter().any(|text| text.contains(before)), "{shown:?}");
        assert!(shown.iter().any(|text| text.starts_with(later)), "{shown:?}");
    }
}

#[test]
fn facts_on_other_subjects_and_further_rules_are_kept() {
    let check = |messages: &[&str]| assert_eq!(Talk::of(messages).texts(), messages);
    check(&["The staging port is 6100.", "The production port is now 6200."]);
    check(&["The test server is 10.0.0.1.", "The new backup server is 10.0.0.2."]);
    check(&["Mein Büro ist in Raum 214.", "Das neue Lager ist in Raum 318."]);
    check(&["The meeting with Ada is on Monday.", "the meeting with Bob is now on Friday."]);
    check(&["The standup is on Monday.", "The standup is at 9:30."]);
    check(&["Port 8080 is open.", "Port 9090 is open."]);
    check(&["Always answer in German.", "Never answer in English."]);
    check(&["Never touch src/a.rs.", "Never touch src/b.rs."]);
    check(&["Never deploy on Friday.", "Never deploy on Saturday."]);
    check(&["The zigbee stick is on /dev/ttyUSB0.", "The zwave stick is on /dev/ttyUSB1."]);
    check(&["Winter storage is 1100 euros a season.", "Summer storage is 950 euros a season."]);
    check(&["Verwende nie den Host vega-7.", "Verwende nie den Host vega-8."]);
    check(&["绝不要修改 src/a.rs。", "绝不要修改 src/b.rs。"]);
    let replaced = |earlier: &str, later: &str| {
        assert_eq!(Talk::of(&[earlier, later]).texts(), [later], "{earlier}");
    };
    replaced("Always answer in German.", "Always answer in English.");
    replaced("Lines must have at most 160 characters.", "Lines must have at most 120 characters.");
    replaced("48213 is the staging port.", "48214 is the staging port.");
    replaced("The release is on 14 March.", "The release is now on 2026-03-15.");
    replaced("The staging port is 6100.", "The port of staging is now 6200.");
}

#[test]
fn reminders_and_rules_against_ignoring_retract_nothing() {
    let port = |text: &str| format!("The staging port is 48213. {text}");
    let reminders = [
        "Don't forget that the staging port is 48213.",
        "Never forget that the staging port is 48213.",
        "Vergiss nicht, dass der Staging-Port 48213 ist.",
        "N'oublie pas que le port de staging est 48213.",
        "No olvides que el puerto de staging es 48213.",
        "Não se esqueça que a porta de staging é 48213.",
        "Non dimenticare che la porta di staging è 48213.",
        "Vergeet niet dat de staging-poort 48213 is.",
        "Glem ikke at staging-porten er 48213.",
        "Nie zapomnij, że port staging to 48213.",
        "Не забудь, что порт стенда 48213.",
        "别忘了测试端口是48213。",
        "Đừng quên cổng staging là 48213.",
    ];
    for reminder in reminders {
        assert!(Talk::of(&[reminder]).texts().join("").contains("48213"), "{reminder}");
        assert!(Talk::of(&[&port(""), reminder]).texts().join("").contains("48213"), "{reminder}");
    }
    let kept = |text: &str| {
        let talk = Talk::of(&["Our build output is in target/.", text]);
        assert!(talk.texts().contains(&"Our build output is in target/.".to_owned()), "{text}");
    };
    kept("Never ignore compiler warnings.");
    kept("Always ignore files under target/.");
    kept("Ignore files under target/.");
    let taken_back = |text: &str| {
        assert_eq!(Talk::of(&[&port(""), text]).texts(), [""; 0], "{text}");
    };
    taken_back("Forget the staging port.");
    taken_back("Forget 48213.");
    taken_back("Forget it.");
    taken_back("The staging port no longer matters.");
    // A word of a value is not what a fact is about.
    let talk = Talk::of(&["The parser is in src/port.rs.", &port(""), "Forget the port."]);
    assert_eq!(talk.texts(), ["The parser is in src/port.rs."]);
}

#[test]
fn fact_taken_back_three_times_holds_as_said_last() {
    let talk = Talk::of(&[
        "The relay port is 6100.",
        "Actually the relay port is 6200.",
        "No, the relay port is 6100 after all.",
        "Sorry, the relay port is now 6400.",
    ]);
    assert_eq!(talk.texts(), ["the relay port is now 6400."]);
    let ranked = talk.fold.ranked(&[]);
    assert_eq!(ranked[0].fact.supersedes, Some(Seq(2)));
    let talk = Talk::of(&["The relay port is 6100.", "Forget what I said about the relay port."]);
    assert_eq!(talk.texts(), [""; 0]);
    let talk =
        Talk::of(&["The relay port is 6100.", "The vault code is 7731.", "Ignore port 6100."]);
    assert_eq!(talk.texts(), ["The vault code is 7731."]);
}

#[test]
fn answer_is_kept_with_the_question_that_it_completes() {
    let answered = |question: &str, answer: &str| {
        let mut talk = Talk::default();
        let at = Timestamp::from_unix_ms(1_750_000_000_000);
        talk.push(RecordBody::Message(Message::text(Role::Assistant, question, at)));
        talk.say(answer);
        talk.texts()
    };
    assert_eq!(
        answered("I can set it up. Which database port do you use?", "8123"),
        ["Which database port do you use? 8123"]
    );
    assert_eq!(
        answered("I would name the server harvest-9. Is that fine?", "no, harvest-8"),
        ["I would name the server harvest-9. Is that fine? harvest-8"]
    );
    assert_eq!(answered("The port is open.", "8123"), [""; 0]);
    let proposal = "Shall we keep our backups for 400 days?";
    assert_eq!(answered(proposal, "yep, do it"), [format!("{proposal} yep, do it")]);
    assert_eq!(answered(proposal, "no, don't"), [""; 0]);
    assert_eq!(answered("Shall I go on?", "yes"), [""; 0]);
    // A whole sentence needs no question.
    assert_eq!(
        answered("Anything else?", "Our wifi password is plum-77."),
        ["Our wifi password is plum-77."]
    );
}

#[test]
fn fact_within_a_long_message_scores_less() {
    let filler = "so we talked and talked\n".repeat(60);
    let score = |text: &str| Talk::of(&[text]).fold.ranked_from(f32::MIN, &[])[0].score;
    let fact = "The relay port is 6100.\n";
    let (first, middle) = (format!("{fact}{filler}{filler}"), format!("{filler}{fact}{filler}"));
    assert!(score(&first) > score(&middle), "{} {}", score(&first), score(&middle));
}

#[test]
fn repeated_fact_is_kept_once_and_counts_more() {
    let talk =
        Talk::of(&["The vault code is 7731.", "The relay port is 6100.", "the vault code is 7731"]);
    let ranked = talk.fold.ranked(&[]);
    let (port, code) = (&ranked[0], &ranked[1]);
    assert_eq!((code.fact.n_repeats, code.fact.supersedes), (1, None));
    let once = Talk::of(&["The vault code is 7731."]);
    let before = once.fold.ranked(&[])[0].score;
    assert!(code.score > before, "{} {before}", code.score);
    let pinned = talk.fold.ranked(&[Seq(1)]);
    assert!(pinned[0].score > port.score && pinned[0].is_pinned);
}

#[test]
fn value_that_many_messages_have_scores_less() {
    let mut talk =
        Talk::of(&["The server is src/server.rs.", "The vault server is at vault/seven.kdb."]);
    for n in 0..40 {
        talk.say(&format!("Look at src/server.rs again, step {n}"));
    }
    let score = |text: &str| {
        let ranked = talk.fold.ranked(&[]);
        ranked.iter().find(|one| one.fact.text.contains(text)).map_or(f32::MIN, |one| one.score)
    };
    assert!(
        score("vault") > score("The server is"),
        "{} {}",
        score("vault"),
        score("The server is")
    );
}

#[test]
fn context_entries_of_users_state_facts_while_they_are_set() {
    let mut talk = Talk::default();
    let mut set = |content: Option<&str>, source: &str| {
        let change = ContextEntryChange {
            key: "k".to_owned(),
            content: content.map(str::to_owned),
            priority: None,
            source: Some(source.to_owned()),
        };
        talk.push(RecordBody::ContextEntry(change));
        talk.texts()
    };
    assert_eq!(set(Some("The vault code is 7731."), "hook"), [""; 0]);
    assert_eq!(set(Some("The vault code is 7731."), "user"), ["The vault code is 7731."]);
    assert_eq!(set(Some("The relay port is 6100."), "user"), ["The relay port is 6100."]);
    assert_eq!(set(None, "user"), [""; 0]);
}

#[test]
fn forgotten_facts_are_suppressed_until_they_are_restored() {
    let mut talk = Talk::of(&["The vault code is 7731. The relay port is 6100."]);
    let digest = talk.fold.ranked(&[])[0].fact.digest();
    let mut forget = |digest: Option<&str>, restored: bool| {
        let data = serde_json::to_value(ForgottenFact {
            seq: Seq(0),
            digest: digest.map(str::to_owned),
            restored,
        });
        let data = data.expect("serializes");
        talk.push(RecordBody::Custom(Custom {
            name: FORGET_RECORD.to_owned(),
            data,
            context_text: None,
        }));
        talk.texts().len()
    };
    assert_eq!(forget(Some(&digest), false), 1);
    assert_eq!(forget(Some(&digest), true), 2);
    assert_eq!(forget(None, false), 0);
    assert_eq!(forget(None, true), 2);
    let junk = Custom { name: FORGET_RECORD.to_owned(), data: json!([1]), context_text: None };
    talk.push(RecordBody::Custom(junk));
    assert_eq!(talk.texts().len(), 2);
}

#[test]
fn memory_is_bounded_whatever_is_said() {
    let mut talk = Talk::default();
    for n in 0..10_000 {
        talk.say(&format!("The access code of door {n}-{} is {}.", n * 7, 50_000 + n));
    }
    let texts = talk.texts();
    assert!((512..=1024).contains(&texts.len()), "{}", texts.len());
    assert!(texts[texts.len() - 1].contains("59999"), "the newest is kept");

    let many: String = (0..10_000)
        .map(|n| format!("The access code of door {n}-x is {}.\n", 50_000 + n))
        .collect();
    assert_eq!(Talk::of(&[&many]).fold.ranked_from(f32::MIN, &[]).len(), 64);
    let numbers: String = (0..500_000).map(|n| format!("{} ", n * 37)).collect();
    assert_eq!(Talk::of(&[&numbers, "1 2 3 4812 77", &"9".repeat(10_000_000)]).texts(), [""; 0]);
    let log: String =
        (0..2000).map(|n| format!("2026-01-01 10:00:{n} GET /a/{n} 200 {n}ms\n")).collect();
    assert_eq!(Talk::of(&[&log]).texts(), [""; 0]);
}

#[test]
fn block_has_the_best_facts_in_the_order_of_the_log() {
    let talk = Talk::of(&[
        "The vault code is 7731.",
        "Fix the test in src/a.rs",
        "That was so nice, haha, thank you!",
        "Never deploy on Fridays.",
        "Our dentist is Dr. Weber in Linz.",
    ]);
    let block = talk.block("", 1000);
    assert!(block.text.starts_with("2025-06-15:\n- The vault code is 7731.\n"), "{}", block.text);
    assert!(
        block.text.ends_with("- Never deploy on Fridays.\n- Our dentist is Dr. Weber in Linz."),
        "{}",
        block.text
    );
    assert_eq!(block.left_out, []);
    let block = talk.block("", 20);
    assert_eq!((block.shown.len(), block.left_out.len()), (2, 1), "{}", block.text);
    assert!(!block.text.contains("nice"), "praise does not last");
    let whole = talk.block("", 1000).text;
    let exact = talk.block("", whole.len() as u64 / 4 + 1);
    assert_eq!(exact.text, whole, "a block that fits is whole");
    assert_eq!(talk.block("", 0).text, "");
    assert_eq!(FactBlock::default(), Talk::default().block("", 100));
}

#[test]
fn facts_that_something_else_shows_are_not_repeated() {
    let talk = Talk::of(&[
        "The vault code is 7731.",
        "Never deploy on Fridays.",
        "The team has 48 members.",
        "We release on 18 March 2027, that date is fixed.",
        "Our dentist is Dr. Weber in Linz.",
        "Use /etc/relay/key.pem.",
    ]);
    let shows = |notes: &str, part: &str| !talk.block(notes, 1000).text.contains(part);
    assert!(shows("## Critical\n- vault: 7731 (user)", "7731"));
    assert!(!shows("- vault: 77310", "7731"));
    assert!(shows("- Constraint: never deploy on fridays", "Never"));
    assert!(!shows("- deploy often", "Never"));
    assert!(!shows("- line 48 of the file", "48 members"));
    assert!(shows("- 48 members in the team", "48 members"));
    assert!(!shows("- I will deliver my launch on 18 March 2027", "18 March"));
    assert!(shows("- release: 18 March 2027 (user)", "18 March"));
    assert!(!shows("- met Dr. Weber in Linz", "Weber"));
    assert!(shows("- dentist: Dr. Weber, Linz", "Weber"));
    assert!(shows("- key: /etc/relay/key.pem", "key.pem"));
    let facts = talk.fold.ranked(&[]);
    let shown = ShownText { notes: "", has_record: &|seq| seq == Seq(0) };
    let block = fact_block(&facts, &shown, 1000, &|text| text.len() as u64);
    assert!(!block.text.contains("7731") && block.text.contains("48"), "{}", block.text);
}

/// Texts of a session: facts, corrections, retractions, talk and noise in several languages.
fn text() -> impl Strategy<Value = String> {
    let subject = prop::sample::select(vec![
        "relay port",
        "vault code",
        "Budget",
        "房间号码",
        "رقم الغرفة",
        "код двери",
    ]);
    let form = prop::sample::select(vec![
        "The {s} is {n}.",
        "Actually the {s} is now {n}.",
        "Forget the {s}.",
        "Never change the {s}!",
        "{s}是{n}。",
        "هو {s} {n}",
        "{s} — {n}",
        "Where is the {s}?",
        "Actually {n}.",
        "`{s}`: {n}\n```\ncode {n}\n```",
    ]);
    let made = (subject, form, 10_u32..60).prop_map(|(subject, form, n)| {
        form.replace("{s}", subject).replace("{n}", &(n * 97).to_string())
    });
    prop_oneof![4 => made, 1 => ".{0,80}", 1 => "[a-zA-Z0-9 .,:'\"/_-]{0,120}"]
}

proptest! {
    #[test]
    fn folding_in_parts_equals_folding_at_once(texts in prop::collection::vec(text(), 0..40), restart in 0..40_usize) {
        let at_once = Talk::of(&texts.iter().map(String::as_str).collect::<Vec<_>>());
        let mut parts = Talk::default();
        for (at, text) in texts.iter().enumerate() {
            if at == restart {
                // A restart folds the log from the beginning again.
                parts = Talk::of(&texts[..at].iter().map(String::as_str).collect::<Vec<_>>());
            }
            parts.say(text);
        }
        let facts = |talk: &Talk| {
            let ranked = talk.fold.ranked(&[]).into_iter();
            ranked.map(|one| (one.fact.clone(), one.score)).collect::<Vec<_>>()
        };
        prop_assert_eq!(facts(&at_once), facts(&parts));
    }

    #[test]
    fn any_text_is_folded_and_no_fact_is_longer_than_a_line(text in "\\PC{0,400}") {
        let talk = Talk::of(&[&text, &text]);
        for text in talk.texts() {
            prop_assert!(text.chars().count() <= 250 && !text.contains('\n'));
        }
    }

    #[test]
    fn block_keeps_its_room(texts in prop::collection::vec(text(), 0..30), room in 0..200_u64) {
        let talk = Talk::of(&texts.iter().map(String::as_str).collect::<Vec<_>>());
        let block = talk.block("", room);
        prop_assert!(block.text.is_empty() || block.text.len() as u64 / 4 < room);
    }
}

#[test]
fn plain_requests_carry_neither_rules_nor_values() {
    let check = |text: &str, expect| assert_eq!(is_plain_request(text), expect, "{text}");
    check("Rename the helper to the new name, please.", true);
    check("Fix the test. Can you run it again?", true);
    check("Which module is first?", true);
    check("Make the error message of the uploader kinder.", true);
    check("What does this function do?", true);
    check("Never push with force.", false);
    check("Rename it to src/parser/lines.rs.", false);
    check("The staging server listens on port 48213.", false);
    check("Fix the test. The shop was closed in May.", false);
    check("", false);
    check(&"Fix it. ".repeat(1000), false);
}

#[test]
fn correction_in_two_sentences_replaces_what_the_first_one_names() {
    let exam = "The exam of the sailing course is on Tuesday at 10:15.";
    let talk = Talk::of(&[exam, "They moved the sailing exam. It is at 16:40 now."]);
    assert_eq!(talk.shown(), ["They moved the sailing exam. It is at 16:40 now."]);
    let talk = Talk::of(&[exam, "They painted the kitchen. It is blue now."]);
    let texts = talk.shown();
    assert!(texts.iter().any(|text| text == exam), "{texts:?}");
}

#[test]
fn statement_behind_a_correction_is_a_fact_of_its_own() {
    let talk = Talk::of(&[
        "The relay port is 6100.",
        "The relay port is now 6300. My dog is called Rex.",
        "My dog is now called Max.",
    ]);
    let kept = talk.fold.ranked_from(f32::MIN, &[]);
    let has = |value: &str| kept.iter().any(|one| one.fact.text.contains(value));
    assert!(has("6300") && has("Max") && !has("6100"), "{kept:?}");
}

#[test]
fn number_that_the_same_message_corrects_is_outdated_in_notes() {
    let talk = Talk::of(&["The relay port is 6100. Sorry, the relay port is now 6300."]);
    assert!(talk.fold.is_outdated("the relay listens on port 6100"), "{:?}", talk.shown());
    assert!(!talk.fold.is_outdated("relay port: 6300"));
}

#[test]
fn number_in_words_before_the_same_noun_is_corrected() {
    let talk =
        Talk::of(&["Use four spaces in the templates.", "Now use two spaces in the templates."]);
    let texts = talk.shown();
    assert_eq!(texts.len(), 1, "{texts:?}");
    assert!(texts[0].starts_with("Now use two spaces in the templates."), "{texts:?}");
}

#[test]
fn text_behind_a_request_to_work_on_it_scores_less() {
    let text = "I am Lorcan, and I have kept the lighthouse for 29 years.";
    let score = |message: &str| {
        let talk = Talk::of(&[message]);
        let ranked = talk.fold.ranked_from(f32::MIN, &[]);
        ranked.iter().find(|one| one.fact.text.contains("29 years")).map(|one| one.score)
    };
    let alone = score(text).expect("is a fact");
    let pasted = score(&format!("Shorten this text for me:\n\n{text}"));
    assert_eq!(pasted, Some(alone - PASTED_SCORE));
    assert_eq!(score(&format!("Remember this:\n\n{text}")), Some(alone));
}

#[test]
fn paragraph_behind_a_request_scores_less_unless_the_user_speaks() {
    let score = |before: &str, text: &str| {
        let talk = Talk::of(&[&format!("{before}{text}")]);
        let ranked = talk.fold.ranked_from(f32::MIN, &[]);
        ranked.iter().find(|one| one.fact.text == text).map(|one| one.score)
    };
    let text = "The relay port is 48213.";
    let alone = score("", text).expect("is a fact");
    assert_eq!(score("Summarize this.\n\n", text), Some(alone - PASTED_SCORE));
    assert_eq!(score("Summarize this. Be brief.\n\n", text), Some(alone - PASTED_SCORE));
    assert_eq!(score("Summarize this.\n", text), Some(alone));
    assert_eq!(score("Remember this.\n\n", text), Some(alone));
    let own = "My relay port is 48213.";
    assert_eq!(score("Summarize this.\n\n", own), score("", own));
    // In a text that the request points at, another one may speak.
    let in_text = score("", own).map(|score| score - PASTED_SCORE);
    for request in
        ["Shorten the given text.", "Kürze die folgende Mail.", "この記事を要約してください。"]
    {
        assert_eq!(score(&format!("{request}\n\n"), own), in_text, "{request}");
    }
    assert_eq!(score("The given text is fine.\n\nThanks.\n\n", own), in_text);
    assert_eq!(score("Remember the following port.\n\n", own), score("", own));
    assert_eq!(score("Shorten the article.\n\n", own), score("", own));
}

#[test]
fn command_to_do_something_for_the_speaker_is_not_about_the_speaker() {
    let is_about_speaker = |text: &str| {
        let (features, _) = judge(text, "").expect("says something");
        features.names().any(|name| name == "speaker")
    };
    for text in
        ["Write me an SQL query.", "Please give us three names.", "Schreib mir ein Gedicht."]
    {
        assert!(!is_about_speaker(text), "{text}");
    }
    for text in ["Write my thesis.", "Write me a poem about us.", "Give Anna what I bought."] {
        assert!(is_about_speaker(text), "{text}");
    }
}

#[test]
fn sentences_count_as_often_as_they_last() {
    let talk =
        Talk::of(&["My sister Ines lives in Bergen.", "We tried the green tiles in the hall."]);
    let (said, all) = talk.fold.count_lasting("My sister Ines lives in Bergen.", &[]);
    assert!(said > 0.5 && said < 1.0, "one that probably lasts: {said}");
    assert!(all > said && all < said + 0.5, "and one that hardly does: {all}");
    assert_eq!(talk.fold.count_lasting("", &[]), (0.0, all));
}
