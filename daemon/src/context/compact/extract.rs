//! A summary without a model: lines taken from the records by plain rules, in the sections of every summary.
//!
//! It is worse than what a model writes, and is made only where no model answers and the context would not fit. The
//! same records give the same summary; memory is bounded whatever they hold.

use std::collections::VecDeque;

use ollm_protocol::Seq;
use ollm_protocol::content::{Message, RecordBody, Role};

use super::fit::fit;
use super::sections::{Section, Summary, bare};
use super::transcript::cut;
use crate::tokens::Counter;

/// Characters kept of a line, at the beginning and at the end.
const LINE: (usize, usize) = (200, 40);
/// Characters kept of the original request.
const REQUEST: (usize, usize) = (500, 100);
/// Most lines of each kind; more do not fit into any target.
const MAX_LINES: usize = 48;
/// Longest line that is looked at; longer ones are data.
const MAX_LOOKED_AT: usize = 1000;
/// Lines of a text that are looked at.
const MAX_TEXT_LINES: usize = 2000;

/// What users say when they demand or forbid something.
const DEMANDS: &[&str] = &[
    "must ",
    "must not",
    "never ",
    "always ",
    "do not ",
    "don't ",
    "only use",
    "make sure",
    "should ",
    "without ",
    "avoid ",
    "please keep",
    "important:",
];
/// What is said when something is decided.
const DECISIONS: &[&str] = &[
    "[decision]",
    "decision:",
    "decided to",
    "we will use",
    "we'll use",
    "let's use",
    "i'll use",
    "i will use",
    "going with",
    "instead of",
    "chose ",
    "settled on",
    "agreed to",
];
/// What is said of what comes next.
const NEXT: &[&str] =
    &["[next]", "next:", "next step", "next,", "todo", "to do:", "remaining:", "still need"];
/// How outputs tell that something went wrong.
const ERRORS: &[&str] = &[
    "error:",
    "error[",
    "fatal:",
    "panicked at",
    "exception",
    "traceback",
    "failed:",
    "test result: failed",
    "cannot find",
    "no such file",
    "permission denied",
    "undefined reference",
    "not found",
];

/// Reads records in order and keeps what the summary may need.
#[derive(Debug, Default)]
pub(crate) struct Extractor {
    request: Option<String>,
    users: Lines,
    demands: Lines,
    said: Lines,
    decisions: Lines,
    next: Lines,
    errors: Lines,
}

/// The newest lines of a kind, each once.
#[derive(Debug, Default)]
struct Lines(VecDeque<String>);

impl Lines {
    fn push(&mut self, line: &str) {
        let line = cut(bare(line), LINE);
        if line.is_empty() {
            return;
        }
        self.0.retain(|known| *known != line);
        if self.0.len() == MAX_LINES {
            self.0.pop_front();
        }
        self.0.push_back(line);
    }
}

impl Extractor {
    /// Takes the next record.
    pub(crate) fn see(&mut self, seq: Seq, body: &RecordBody) {
        match body {
            RecordBody::Message(message) => self.message(seq, message),
            RecordBody::ToolCall(call) => {
                if let Some(error) = call.result.error.as_deref() {
                    self.errors.push(&format!("{}: {}", call.name, first_line(error)));
                }
                self.look(&call.result.llm_content, true);
            }
            RecordBody::Compaction(compaction) => {
                self.said.push(&format!("[#{seq}] {}", first_line(&compaction.summary)));
            }
            _ => {}
        }
    }

    /// The summary, which goes on from an earlier one where there is one.
    pub(crate) fn finish(
        self,
        before: Option<&Summary>,
        counter: &Counter,
        target: u64,
    ) -> Summary {
        let mut summary = before.cloned().unwrap_or_default();
        if summary.lines(Section::Goal).is_empty() {
            let request = self.request.as_deref().unwrap_or("- not said in these records");
            summary.push(Section::Goal, &request.replace('\n', " "));
        }
        add(&mut summary, Section::Constraints, self.demands);
        add(&mut summary, Section::Progress, self.said);
        add(&mut summary, Section::Decisions, self.decisions);
        // What was to come next before has come, or is said again.
        if !self.next.0.is_empty() {
            summary.lines_mut(Section::NextSteps).clear();
        }
        add(&mut summary, Section::NextSteps, self.next);
        add(&mut summary, Section::Critical, self.errors);
        if summary.lines(Section::Progress).is_empty() {
            add(&mut summary, Section::Progress, self.users);
        }
        if summary.lines(Section::Progress).is_empty() {
            summary.push(Section::Progress, "- tools were used; their results are in the log");
        }
        fit(&summary, counter, target)
    }

    fn message(&mut self, seq: Seq, message: &Message) {
        let text = message.plain_text();
        match message.role {
            Role::User => {
                if self.request.is_none() && !text.trim().is_empty() {
                    self.request = Some(cut(text.trim(), REQUEST));
                }
                self.users.push(&format!("[#{seq}] user: {}", first_line(&text)));
                for line in looked_at(&text).filter(|line| says(line, DEMANDS)) {
                    self.demands.push(line);
                }
                self.look(&text, false);
            }
            Role::Assistant => {
                let said = first_line(&text);
                if !said.is_empty() {
                    self.said.push(&format!("[#{seq}] {said}"));
                }
                self.look(&text, false);
            }
            Role::Tool => self.look(&text, true),
            Role::System => {}
        }
    }

    fn look(&mut self, text: &str, is_output: bool) {
        for line in looked_at(text) {
            if is_output {
                if says(line, ERRORS) {
                    self.errors.push(line);
                }
            } else if says(line, DECISIONS) {
                self.decisions.push(line);
            } else if says(line, NEXT) {
                self.next.push(line);
            }
        }
    }
}

/// Adds lines as bullets behind those that are there, each once.
fn add(summary: &mut Summary, section: Section, lines: Lines) {
    for line in lines.0 {
        let is_known = summary.lines(section).iter().any(|known| bare(known) == line);
        if !is_known {
            summary.push(section, &format!("- {line}"));
        }
    }
}

fn first_line(text: &str) -> &str {
    text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default()
}

fn looked_at(text: &str) -> impl Iterator<Item = &str> {
    text.lines().take(MAX_TEXT_LINES).filter(|line| line.len() <= MAX_LOOKED_AT)
}

fn says(line: &str, words: &[&str]) -> bool {
    let line = line.to_lowercase();
    words.iter().any(|word| line.contains(word))
}

#[cfg(test)]
mod tests {
    use ollm_protocol::Timestamp;
    use proptest::prelude::*;

    use super::*;

    fn message(role: Role, text: &str) -> RecordBody {
        RecordBody::Message(Message::text(role, text, Timestamp::from_unix_ms(0)))
    }

    fn extracted(said: &[(Role, &str)], target: u64) -> Summary {
        let mut extractor = Extractor::default();
        for (seq, (role, text)) in said.iter().enumerate() {
            extractor.see(Seq(seq as u64), &message(*role, text));
        }
        extractor.finish(None, &Counter::ESTIMATE, target)
    }

    #[test]
    fn request_demands_decisions_and_errors_are_found() {
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
        check(Section::Progress, &["[#1] I read the sources.", "[#3] The lexer is done."]);
        check(Section::Decisions, &["We will use a hand-written lexer."]);
        check(Section::NextSteps, &["Next: the tests"]);
        check(Section::Critical, &["error: cannot find `Token` in this scope"]);
    }

    #[test]
    fn it_goes_on_from_an_earlier_summary() {
        let before =
            Summary::parse("## Goal\nthe goal\n## Progress\n- begun\n## Next steps\n- old step");
        let mut extractor = Extractor::default();
        extractor.see(Seq(9), &message(Role::Assistant, "Finished the rest.\nNext: ship"));
        let text = extractor.finish(Some(&before), &Counter::ESTIMATE, 1000).render();
        assert!(text.contains("the goal") && text.contains("- begun\n- [#9] Finished"), "{text}");
        assert!(text.contains("- Next: ship") && !text.contains("old step"), "{text}");
    }

    #[test]
    fn there_is_a_summary_whatever_the_records_hold() {
        let check = |said: &[(Role, &str)]| {
            let summary = extracted(said, 300);
            for section in [Section::Goal, Section::Progress] {
                assert!(!summary.lines(section).is_empty(), "{said:?}");
            }
        };
        check(&[]);
        check(&[(Role::Tool, "only a result")]);
        check(&[(Role::User, "a"), (Role::User, "b")]);
        check(&[(Role::User, &"x".repeat(200_000))]);
    }

    proptest! {
        #[test]
        fn the_target_holds(texts in proptest::collection::vec("(must |error: |next: |we will use )?[a-z字 ]{0,300}", 0..60)) {
            let said: Vec<_> = texts.iter().map(|text| (Role::User, text.as_str())).collect();
            let summary = extracted(&said, 120);
            prop_assert!(Counter::ESTIMATE.count_text(&summary.render()) <= 120);
            prop_assert_eq!(extracted(&said, 120), summary);
        }
    }
}
