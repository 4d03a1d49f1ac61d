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
    FactValueKind, Statement, for_each_sentence_of_line, for_each_statement, is_talk,
    values_of_line,
};
use crate::languages::{WordClass, texts};
use crate::tokens::Counter;

/// The mark of a message of the user among the progress.
const USER_MARK: &str = "user: ";

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
    fn since(&self, from: Seq) -> impl Iterator<Item = &str> + Clone {
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
            self.add_messages(&mut summary, from);
        }
        if summary.lines(Section::Progress).is_empty() {
            summary.push(Section::Progress, "- tools were used; their results are in the log");
        }
        fit(&summary, counter, target)
    }

    /// Adds the messages of the user that the summary does not say yet to its progress; if it says all, the newest one.
    fn add_messages(&self, summary: &mut Summary, from: Seq) {
        let said = summary.render();
        let messages = self.user_messages.since(from);
        let is_said = |line: &&str| said.contains(line.strip_prefix(USER_MARK).unwrap_or(line));
        let mut further = messages.clone().filter(|line| !is_said(line)).peekable();
        match further.peek() {
            Some(_) => add_lines(summary, Section::Progress, further),
            None => add_lines(summary, Section::Progress, messages.last().into_iter()),
        }
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
                self.user_messages.push(seq, &format!("{USER_MARK}{}", first_line(&text)));
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
                // `Okay.` and `You're welcome!` report nothing.
                let is_report =
                    |answer: &String| answer.len() >= MIN_ANSWER_BYTES && !is_talk(answer);
                let report = answer.filter(is_report);
                report.iter().for_each(|answer| self.answers.push(seq, answer));
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

/// Adds lines as bullets to a section, without those that it has. Of the goal only rules are said again.
fn add_lines<'l>(summary: &mut Summary, section: Section, lines: impl Iterator<Item = &'l str>) {
    for line in lines {
        let is_in_goal = |goal: &String| section == Section::Critical && goal.contains(line);
        let is_known = summary.lines(section).iter().any(|known| without_bullet(known) == line)
            || summary.lines(Section::Goal).iter().any(is_in_goal);
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
mod tests;
