//! Tests of notes that are extracted without a model.

use ollm_protocol::Timestamp;
use proptest::prelude::*;

use super::*;

fn message(role: Role, text: &str) -> RecordBody {
    RecordBody::Message(Message::text(role, text, Timestamp::from_unix_ms(0)))
}

/// Returns an extractor of the records from a number on.
fn extractor(records: &[RecordBody], first: usize) -> Extractor {
    let mut extractor = Extractor::default();
    let numbered = records.iter().enumerate().skip(first);
    numbered.for_each(|(at, body)| extractor.add(Seq(at as u64), body));
    extractor
}

fn extracted(messages: &[(Role, &str)], target: u64) -> Summary {
    let all: Vec<RecordBody> = messages.iter().map(|(role, text)| message(*role, text)).collect();
    extractor(&all, 0).summary(Seq(0), None, &Counter::ESTIMATE, target)
}

#[test]
fn marks_are_found_in_many_languages() {
    let check = |line: &str, mark| assert!(has_mark(line, mark), "{line}");
    check("So we will use TCP.", WordClass::Decision);
    check("Wir haben uns für TCP entschieden.", WordClass::Decision);
    check("Nous avons choisi TCP.", WordClass::Decision);
    check("Решили использовать TCP.", WordClass::Decision);
    check("قررنا استخدام TCP", WordClass::Decision);
    check("我们决定使用 TCP。", WordClass::Decision);
    check("Nächster Schritt: die Tests", WordClass::Next);
    check("Prochaine étape : les tests", WordClass::Next);
    check("Следующий шаг: тесты", WordClass::Next);
    check("الخطوة التالية: الاختبارات", WordClass::Next);
    check("下一步：测试", WordClass::Next);
    check("main.c:4: Fehler: »x« nicht deklariert", WordClass::Error);
    check("main.c:4: 错误：‘x’未声明", WordClass::Error);
    check("main.c:4: ошибка: «x» не объявлена", WordClass::Error);
    for mark in [WordClass::Decision, WordClass::Next, WordClass::Error] {
        assert!(!has_mark("The lexer reads one line at a time.", mark));
    }
}

#[test]
fn request_demands_decisions_and_errors_are_extracted() {
    let summary = extracted(
        &[
            (Role::User, "Build a parser for TOML.\nYou must not use regexes."),
            (
                Role::Assistant,
                "I read the sources.\nWe will use a hand-written lexer.\nNext: the tests",
            ),
            (Role::Tool, "running\nerror: cannot find `Token` in this scope\nok"),
            (Role::Assistant, "The lexer is done."),
        ],
        1000,
    );
    let check = |section, expect: &[&str]| assert_eq!(summary.items(section), expect);
    check(Section::Goal, &["Build a parser for TOML. You must not use regexes."]);
    check(Section::Constraints, &["You must not use regexes."]);
    check(Section::Progress, &["I read the sources.", "The lexer is done."]);
    check(Section::Decisions, &["We will use a hand-written lexer."]);
    check(Section::NextSteps, &["Next: the tests"]);
    check(Section::Critical, &["error: cannot find `Token` in this scope"]);
}

#[test]
fn first_message_is_said_once_except_its_rules() {
    let request = "The relay port is 48213. Never use regexes.";
    let summary = extracted(&[(Role::User, request), (Role::User, "Go on.")], 1000);
    let check = |section, expect: &[&str]| assert_eq!(summary.items(section), expect);
    check(Section::Goal, &[request]);
    check(Section::Constraints, &["Never use regexes."]);
    check(Section::Progress, &["user: Go on."]);
    check(Section::Critical, &[]);
}

#[test]
fn answer_is_extracted_by_its_first_sentence() {
    let long = "and so it goes on, without an end, ".repeat(20);
    let check = |answer: &str, expect: &str| {
        let summary = extracted(&[(Role::User, "Go."), (Role::Assistant, answer)], 1000);
        assert_eq!(summary.items(Section::Progress), [expect]);
    };
    // A paragraph, which would be cut in its middle.
    let first = "Sure. The lexer of version 2.1 is done, in src/lex.rs.";
    check(&format!("{first} Then {long}"), first);
    check(
        "词法分析器已经完成，代码在这个项目的源文件里面。然后测试。",
        "词法分析器已经完成，代码在这个项目的源文件里面。",
    );
    check("1. Read src/lex.rs\n2. Test it", "Read src/lex.rs");
    check("1. **Read** src/lex.rs\n2. Test it", "**Read** src/lex.rs");
    let hardly_longer = format!("The lexer {}.", "is done and ".repeat(21));
    check(&hardly_longer, &hardly_longer);
    // A sentence that ends with a colon is joined with the next line.
    check(
        "To set up a web server, follow these steps:\n\n1. Install nginx.\n2. Start it.",
        "To set up a web server, follow these steps: Install nginx.",
    );
    check("<notice>\nOlder parts are not shown.", "Older parts are not shown.");
    let code = "Here is the function that reverses a list:\n```\nx[::-1]\n```";
    check(code, "user: Go.");
    check("Okay.", "user: Go.");
    check("You're welcome! Feel free to ask me about anything else.", "user: Go.");
    check("I hope your weekend was full of rest and good food.", "user: Go.");
}

#[test]
fn values_that_an_answer_reports_are_extracted() {
    let check = |answer: &str, expect: &[&str]| {
        let summary = extracted(&[(Role::User, "Go."), (Role::Assistant, answer)], 1000);
        assert_eq!(summary.items(Section::Critical), expect, "{answer}");
    };
    // The first sentence of some length stands for the answer.
    check(
        "Fertig. Der Server läuft jetzt auf 8443. Die Konfiguration ist in /etc/x.toml.",
        &["Die Konfiguration ist in /etc/x.toml."],
    );
    check("The lexer is in src/lex.rs. It has 12 states.", &[]);
    check("A hash map maps keys to values. The first hash map was built in 1953 by Luhn.", &[]);
    check("A bus connects the parts of a computer. It was built with 4812 wires then.", &[]);
    let table: String = (0..9).map(|n| format!("Port {n} of the switch is 900{n}. ")).collect();
    check(
        &format!("Here it comes. {table}"),
        &["Port 1 of the switch is 9001.", "Port 2 of the switch is 9002."],
    );
}

#[test]
fn decisions_and_next_steps_are_extracted_in_other_languages() {
    let answer =
        "Der Lexer ist fertig.\nWir haben uns für TCP entschieden.\nNächster Schritt: die Tests";
    let summary = extracted(&[(Role::User, "Los."), (Role::Assistant, answer)], 1000);
    assert_eq!(summary.items(Section::Decisions), ["Wir haben uns für TCP entschieden."]);
    assert_eq!(summary.items(Section::NextSteps), ["Nächster Schritt: die Tests"]);
}

#[test]
fn progress_that_is_said_again_is_extracted_once() {
    let lines = [
        "The parser handles nested comments in strings.",
        "The release 2.4.1 was uploaded to the mirror.",
        "The parser handles all nested comments in strings.",
    ];
    let messages = lines.map(|line| (Role::Assistant, line));
    let summary = extracted(&[&[(Role::User, "Go.")], &messages[..]].concat(), 1000);
    assert_eq!(summary.items(Section::Progress), lines[1..]);
}

#[test]
fn decision_in_a_paragraph_is_extracted_by_its_sentence() {
    let long = "and so it goes on, without an end, ".repeat(8);
    let decision = "So we will use TCP instead of UDP on port 48731.";
    let explanation = "A server can send packets instead of streams.";
    let answer =
        format!("A protocol has to be found for it, {long}. {explanation} {decision} Then {long}");
    let summary = extracted(&[(Role::User, "Go."), (Role::Assistant, &answer)], 1000);
    assert_eq!(summary.items(Section::Decisions), [decision]);
}

#[test]
fn demands_and_values_of_any_language_are_extracted() {
    let summary = extracted(
        &[
            (Role::User, "Porte den Parser.\nDu darf keine Regexe verwenden."),
            (Role::User, "你必须使用中文\n端口是48213。\n端口是多少，48213？"),
            (Role::User, "Ключ лежит в /etc/a.pem\nhello there\nнельзя трогать прод"),
            (Role::User, "المنفذ هو ٤٨٢١٣"),
            (Role::User, "Der Port ist 5433 für `pg`"),
            (Role::User, "Der Port ist 5434 für `pg`"),
            (Role::User, "server 1 uses eth0, server 2 uses eth1"),
            (Role::User, "After how many attempts must retries stop?"),
            (Role::User, "In welchem Ordner muss das Passwort stehen?"),
        ],
        1000,
    );
    let check = |section, expect: &[&str]| assert_eq!(summary.items(section), expect);
    check(
        Section::Constraints,
        &["Du darf keine Regexe verwenden.", "你必须使用中文", "нельзя трогать прод"],
    );
    check(
        Section::Critical,
        &[
            "端口是48213。",
            "Ключ лежит в /etc/a.pem",
            "المنفذ هو ٤٨٢١٣",
            "Der Port ist 5434 für `pg`",
            "server 1 uses eth0, server 2 uses eth1",
        ],
    );
}

#[test]
fn code_blocks_are_not_extracted() {
    let text = "```rust\nlet port = 48213; // never change\n```\nIt listens there.";
    let summary = extracted(&[(Role::User, text), (Role::Assistant, text)], 1000);
    assert!(!summary.render().contains("let port"), "{}", summary.render());
    assert_eq!(summary.items(Section::Progress), ["It listens there."]);
}

#[test]
fn extracted_summary_extends_an_earlier_one() {
    let before =
        Summary::parse("## Goal\nthe goal\n## Progress\n- begun\n## Next steps\n- old step");
    let extractor = extractor(&[message(Role::Assistant, "Finished the rest.\nNext: ship")], 0);
    let text = extractor.summary(Seq(0), Some(&before), &Counter::ESTIMATE, 1000).render();
    assert!(text.contains("the goal") && text.contains("- begun\n- Finished"), "{text}");
    assert!(text.contains("- Next: ship") && !text.contains("old step"), "{text}");
}

#[test]
fn any_records_give_a_summary() {
    let check = |messages: &[(Role, &str)]| {
        let summary = extracted(messages, 300);
        for section in [Section::Goal, Section::Progress] {
            assert!(!summary.lines(section).is_empty(), "{messages:?}");
        }
    };
    check(&[]);
    check(&[(Role::Tool, "only a result")]);
    check(&[(Role::User, "a"), (Role::User, "b")]);
    check(&[(Role::User, &"x".repeat(200_000))]);
}

proptest! {
    #[test]
    fn extracted_summary_keeps_its_target(texts in proptest::collection::vec("(must |error: |next: |we will use )?[a-z字 ]{0,300}", 0..60)) {
        let messages: Vec<_> = texts.iter().map(|text| (Role::User, text.as_str())).collect();
        let summary = extracted(&messages, 120);
        prop_assert!(Counter::ESTIMATE.count_text(&summary.render()) <= 120);
        prop_assert_eq!(extracted(&messages, 120), summary);
    }

    #[test]
    fn extracted_lines_do_not_depend_on_the_first_record_read(
        texts in proptest::collection::vec("(must |error: |next: |we will use |port 48[0-9]{3} )?[a-c ]{0,6}\\.", 0..120),
        first in 0..120_usize,
    ) {
        let roles = [Role::User, Role::Assistant, Role::Tool];
        let record = |(at, text): (usize, &String)| message(roles[at % 3], text);
        let records: Vec<RecordBody> = texts.iter().enumerate().map(record).collect();
        let from = Seq(first as u64);
        // The goal is that of the earlier summary.
        let before = Summary::parse("## Goal\nthe goal");
        let summary = |began: usize| {
            let all = extractor(&records, began);
            all.summary(from, Some(&before), &Counter::ESTIMATE, 10_000)
        };
        prop_assert_eq!(summary(0), summary(first));
    }
}
