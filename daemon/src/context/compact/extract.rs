//! A summary without a model: the statements of the user in any language, and the lines of the records that contain certain
//! phrases, in the sections of every summary.
//!
//! Used only where nobody can wait for a model, because it is worse than a model's. Lines that
//! differ in numbers alone count as one, whose newest form is kept; code blocks are left out. Equal records give equal
//! summaries.
//!
//! **Invariants**: the extractor's memory is bounded; it finds the same lines in a record, wherever it began. So one
//! extractor continues from compaction to compaction.

use std::collections::VecDeque;

use ollm_protocol::Seq;
use ollm_protocol::content::{Message, RecordBody, Role};

use super::numbers::*;
use super::request::cut_middle;
use super::summary::{Section, Summary, drop_replaced, fit, without_bullet};
use crate::facts::{
    FactValueKind, Statement, for_each_sentence_of_line, for_each_statement, values_of_line,
};
use crate::languages::{WordClass, texts};
use crate::tokens::Counter;

/// The lines of consecutive records that a summary may need.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extractor {
    /// The first record.
    first: Option<Seq>,
    /// The first message of the user that has a text.
    request: Option<(Seq, String)>,
    user_messages: NewestLines,
    demands: NewestLines,
    values: NewestLines,
    answers: NewestLines,
    /// Sentences of answers that report a path, an address or a long number.
    reports: NewestLines,
    decisions: NewestLines,
    next: NewestLines,
    errors: NewestLines,
}

/// The newest distinct lines of a kind, oldest first.
#[derive(Clone, Debug, Default)]
struct NewestLines(VecDeque<ExtractedLine>);

#[derive(Clone, Debug)]
struct ExtractedLine {
    /// The newest record with the line.
    seq: Seq,
    /// The text by which it is compared.
    key: String,
    text: String,
}

impl NewestLines {
    fn push(&mut self, seq: Seq, line: &str) {
        let line = without_bullet(line);
        // A line that is hardly longer would lose less than the note of it takes.
        let is_long = line.chars().nth(MAX_WHOLE_CHARS).is_some();
        let text = if is_long { cut_middle(line, KEPT_OF_LINE) } else { line.to_owned() };
        if text.is_empty() {
            return;
        }
        let key = without_numbers(&text);
        self.0.retain(|known| known.key != key);
        if self.0.len() == MAX_LINES {
            self.0.pop_front();
        }
        self.0.push_back(ExtractedLine { seq, key, text });
    }

    fn push_matching(&mut self, seq: Seq, text: &str, is_wanted: impl Fn(&str) -> bool) {
        let lines = prose_lines(text).filter(|line| line.len() <= MAX_SEARCHED_BYTES);
        for line in lines.filter(|line| is_wanted(line)) {
            if line.chars().nth(MAX_WHOLE_CHARS).is_none() {
                self.push(seq, line);
            } else {
                // A paragraph as a whole would lose its middle.
                let wanted = sentences(line).into_iter().filter(|sentence| is_wanted(sentence));
                wanted.for_each(|sentence| self.push(seq, sentence));
            }
        }
    }

    /// Returns the lines of the records from `from` on.
    fn since(&self, from: Seq) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |line| line.seq >= from).map(|line| line.text.as_str())
    }
}

impl Extractor {
    /// Returns the first record.
    pub(crate) const fn first(&self) -> Option<Seq> {
        self.first
    }

    /// Returns the number of lines, which the memory of an extractor depends on.
    pub(crate) fn n_items(&self) -> usize {
        self.lists().iter().map(|list| list.0.len()).sum()
    }

    const fn lists(&self) -> [&NewestLines; 8] {
        let Self { user_messages, demands, values, answers, reports, .. } = self;
        let Self { decisions, next, errors, .. } = self;
        [user_messages, demands, values, answers, reports, decisions, next, errors]
    }

    /// Takes the lines of the next record.
    pub(crate) fn add(&mut self, seq: Seq, body: &RecordBody) {
        self.first.get_or_insert(seq);
        match body {
            RecordBody::Message(message) => self.message(seq, message),
            RecordBody::ToolCall(call) => {
                if let Some(error) = call.result.error.as_deref() {
                    self.errors.push(seq, &format!("{}: {}", call.name, first_line(error)));
                }
                self.errors.push_matching(seq, &call.result.llm_content, is_error);
            }
            RecordBody::Compaction(compaction) => {
                self.answers.push(seq, first_line(&compaction.summary));
            }
            _ => {}
        }
    }

    /// Returns the summary of the records from `from` on, which extends an earlier one if there is one.
    pub(crate) fn summary(
        &self,
        from: Seq,
        before: Option<&Summary>,
        counter: &Counter,
        target: u64,
    ) -> Summary {
        let mut summary = before.cloned().unwrap_or_default();
        if summary.lines(Section::Goal).is_empty() {
            let request = self.request.as_ref().filter(|(seq, _)| *seq >= from);
            let request = request.map_or("- not said in these records", |(_, text)| text);
            summary.push(Section::Goal, &request.replace('\n', " "));
        }
        let mut add =
            |section, lines: &NewestLines| add_lines(&mut summary, section, lines.since(from));
        add(Section::Constraints, &self.demands);
        add(Section::Progress, &self.answers);
        add(Section::Decisions, &self.decisions);
        // If the room is short, the last lines stay.
        add(Section::Critical, &self.errors);
        add(Section::Critical, &self.reports);
        add(Section::Critical, &self.values);
        // Earlier next steps are done, or named again.
        if self.next.since(from).next().is_some() {
            summary.lines_mut(Section::NextSteps).clear();
            add_lines(&mut summary, Section::NextSteps, self.next.since(from));
        }
        if summary.lines(Section::Progress).is_empty() {
            add_lines(&mut summary, Section::Progress, self.user_messages.since(from));
        }
        if summary.lines(Section::Progress).is_empty() {
            summary.push(Section::Progress, "- tools were used; their results are in the log");
        }
        fit(&summary, counter, target)
    }

    fn message(&mut self, seq: Seq, message: &Message) {
        let text = message.sent_text();
        match message.role {
            Role::User => {
                if self.request.is_none() {
                    let prose = prose_lines(&text).collect::<Vec<_>>().join("\n");
                    let prose = Some(prose.trim()).filter(|prose| !prose.is_empty());
                    self.request = prose.map(|prose| (seq, cut_middle(prose, KEPT_OF_REQUEST)));
                }
                self.user_messages.push(seq, &format!("user: {}", first_line(&text)));
                for_each_statement(&text, |statement| {
                    let list = if statement.is_rule { &mut self.demands } else { &mut self.values };
                    list.push(seq, statement.text);
                });
                self.plans(seq, &text);
            }
            Role::Assistant => {
                let answer = first_statement(&text);
                for report in reports(&text, answer.as_deref().unwrap_or_default()) {
                    self.reports.push(seq, &report);
                }
                answer.iter().for_each(|answer| self.answers.push(seq, answer));
                self.plans(seq, &text);
            }
            Role::Tool => self.errors.push_matching(seq, &text, is_error),
            Role::System => {}
        }
    }

    /// Takes the decisions and the next steps of a message.
    fn plans(&mut self, seq: Seq, text: &str) {
        let is_decision = |line: &str| has_mark(line, WordClass::Decision);
        let is_next = |line: &str| has_mark(line, WordClass::Next) && !is_decision(line);
        self.decisions.push_matching(seq, text, is_decision);
        self.next.push_matching(seq, text, is_next);
    }
}

/// Adds lines as bullets to a section, without those that it has.
fn add_lines<'l>(summary: &mut Summary, section: Section, lines: impl Iterator<Item = &'l str>) {
    for line in lines {
        let is_known = summary.lines(section).iter().any(|known| without_bullet(known) == line);
        if !is_known {
            summary.push(section, &format!("- {line}"));
        }
    }
    if section == Section::Progress {
        drop_replaced(summary.lines_mut(section));
    }
}

fn first_line(text: &str) -> &str {
    prose_lines(text).map(str::trim).find(|line| !line.is_empty()).unwrap_or_default()
}

/// Returns the sentences of a line. A short one, such as `Sure.` or `1.`, is a part of the one behind it.
fn sentences(line: &str) -> Vec<&str> {
    let mut all = Vec::new();
    let mut begun = None;
    for_each_sentence_of_line(line, &mut |sentence| {
        let at = sentence.as_ptr().addr() - line.as_ptr().addr();
        let (start, end) = (*begun.get_or_insert(at), at + sentence.len());
        if end - start > MIN_SENTENCE_BYTES {
            all.push(&line[start..end]);
            begun = None;
        }
    });
    all.extend(begun.map(|start| line[start..].trim_end()));
    all
}

/// Returns the first sentence of an answer. A sentence that ends with a colon is joined with the first one of the next
/// line; without such a line, `None`.
fn first_statement(text: &str) -> Option<String> {
    let is_prose = |line: &&str| !line.is_empty() && !is_tag(line);
    let mut lines = prose_lines(text).map(str::trim).filter(is_prose);
    let first = *sentences(without_bullet(lines.next()?)).first()?;
    if !first.ends_with([':', '：']) {
        return Some(first.to_owned());
    }
    let next = *sentences(without_bullet(lines.next()?)).first()?;
    Some(format!("{first} {next}"))
}

/// Returns whether a line is one tag of a markup, which a model copied from its prompt.
fn is_tag(line: &str) -> bool {
    line.starts_with('<') && line.ends_with('>') && line.matches('<').count() == 1
}

/// Returns the lines of a text outside of code blocks.
fn prose_lines(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    text.lines().take(MAX_TEXT_LINES).filter(move |line| {
        let line = line.trim_start();
        let is_fence = line.starts_with("```") || line.starts_with("~~~");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// Returns a line in lower case without its numbers, except small counts, which tell things apart.
fn without_numbers(line: &str) -> String {
    let mut key = String::with_capacity(line.len());
    for word in line.split_inclusive(|char: char| !char.is_alphanumeric()) {
        let digits: String = word.chars().filter(|char| char.is_numeric()).collect();
        if digits.len() < 2 {
            key.push_str(word);
        } else {
            key.extend(word.chars().filter(|char| !char.is_numeric()));
        }
    }
    key.to_lowercase()
}

/// Returns whether a line has a phrase that marks a decision, a next step or an error.
fn has_mark(line: &str, mark: WordClass) -> bool {
    let line = line.to_lowercase();
    texts(mark).iter().any(|phrase| line.contains(phrase))
}

fn is_error(line: &str) -> bool {
    has_mark(line, WordClass::Error)
}

/// Returns at most [`MAX_REPORTS`] sentences of an answer with a path, an address or a long number. Leaves out `answer`,
/// decisions, next steps and sentences that refer back. Years and names do not count: models often invent them.
fn reports(text: &str, answer: &str) -> Vec<String> {
    let mut found = Vec::new();
    for_each_statement(text, |Statement { text, refers_back, .. }| {
        let is_report = found.len() < MAX_REPORTS
            && !refers_back
            && !answer.contains(text)
            && !has_mark(text, WordClass::Decision)
            && !has_mark(text, WordClass::Next)
            && values_of_line(text).into_iter().any(|(kind, range)| match kind {
                FactValueKind::Path | FactValueKind::Address => true,
                FactValueKind::Number => is_reported(&text[range]),
                _ => false,
            });
        if is_report {
            found.push((*text).to_owned());
        }
    });
    found
}

/// Returns whether a number is long enough to be worth a note, and no year.
fn is_reported(number: &str) -> bool {
    let is_year = number.parse().is_ok_and(|number: u32| YEARS.contains(&number));
    number.chars().filter(|char| char.is_numeric()).count() >= MIN_REPORTED_DIGITS && !is_year
}

#[cfg(test)]
mod tests {
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
        let all: Vec<RecordBody> =
            messages.iter().map(|(role, text)| message(*role, text)).collect();
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
        let answer = "Der Lexer ist fertig.\nWir haben uns für TCP entschieden.\nNächster Schritt: die Tests";
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
        let answer = format!(
            "A protocol has to be found for it, {long}. {explanation} {decision} Then {long}"
        );
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
}
