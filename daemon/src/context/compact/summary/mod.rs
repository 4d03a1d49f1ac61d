//! The fixed form of a summary: six sections, parsed tolerantly, rendered in one way, and shortened without a model.
//!
//! Models number headings, make them bold, omit the colon or answer in a code fence; all of these are the same summary.
//! Text before the first heading is ignored, so an answer without headings is empty.
//!
//! A summary is shortened section by section, the least needed lines first: of constraints, decisions and critical
//! context the oldest lines without a value, then the oldest. **Invariants**: the same summary and target give the same
//! result; the result has at most the target's tokens; a summary that fits is unchanged.

use super::defuse::defuse;
use super::numbers::*;
use super::values::{has_names, has_value, subject_words, values};
use crate::context::cut::words_before;
use crate::tokens::Counter;

/// Attempts with smaller shares, because headings and joins cost more than the lines.
const MAX_TRIES: usize = 8;

/// A part of a summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Section {
    Goal,
    Constraints,
    Progress,
    Decisions,
    NextSteps,
    /// Names, values and errors that the work needs.
    Critical,
}

impl Section {
    /// Every section, in the order of rendering.
    pub(super) const ALL: [Self; 6] = [
        Self::Goal,
        Self::Constraints,
        Self::Progress,
        Self::Decisions,
        Self::NextSteps,
        Self::Critical,
    ];
    /// The sections whose lines hold until something contradicts them.
    pub(super) const LASTING: [Self; 3] = [Self::Constraints, Self::Decisions, Self::Critical];

    /// Returns the heading.
    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Goal => "Goal",
            Self::Constraints => "Constraints",
            Self::Progress => "Progress",
            Self::Decisions => "Key decisions",
            Self::NextSteps => "Next steps",
            Self::Critical => "Critical context",
        }
    }

    /// Returns the names that models use, in lower case.
    const fn names(self) -> &'static [&'static str] {
        match self {
            Self::Goal => &["goal", "goals", "main goal", "objective", "task", "user goal"],
            Self::Constraints => &[
                "constraints",
                "constraint",
                "constraints and preferences",
                "constraints & preferences",
                "requirements",
            ],
            Self::Progress => &["progress", "progress so far", "work done", "current status"],
            Self::Decisions => &["key decisions", "decisions", "key decision", "decisions made"],
            Self::NextSteps => &["next steps", "next step", "next", "remaining work"],
            Self::Critical => &["critical context", "critical information", "important context"],
        }
    }

    fn named(name: &str) -> Option<Self> {
        let name = name.to_lowercase();
        Self::ALL.into_iter().find(|section| section.names().contains(&name.as_str()))
    }
}

/// A summary in its sections.
///
/// **Shape**: lines without trailing space, and no empty lines at the ends of a section; an empty section is not
/// rendered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    sections: [Vec<String>; 6],
}

impl Summary {
    /// Parses the text of a summarizer. Text that a model could obey is defused.
    pub(crate) fn parse(text: &str) -> Self {
        let mut summary = Self::default();
        let mut current = None;
        for line in unwrapped(text).lines() {
            let line = line.trim_end();
            if let Some((section, rest)) = heading(line) {
                current = Some(section);
                if !rest.is_empty() {
                    summary.push(section, rest);
                }
            } else if let Some(section) = current {
                summary.push(section, line);
            }
        }
        summary.tidied()
    }

    /// Returns the section that a line begins, if it is a heading.
    pub(super) fn heading_of(line: &str) -> Option<Section> {
        heading(line.trim_end()).map(|(section, _)| section)
    }

    /// Returns the summary without empty lines at the ends of sections, and without lines that only say that there is
    /// nothing.
    pub(super) fn tidied(mut self) -> Self {
        self.sections.iter_mut().for_each(tidy);
        self
    }

    /// Returns every line that has words, with its section.
    pub(super) fn all_lines(&self) -> impl Iterator<Item = (Section, &str)> {
        let lines = |section| self.lines(section).iter().map(move |line| (section, line.as_str()));
        let all = Section::ALL.into_iter().flat_map(lines);
        all.filter(|(_, line)| !without_bullet(line).is_empty())
    }

    pub(super) fn push(&mut self, section: Section, line: &str) {
        self.sections[section as usize].push(defuse(line));
    }

    /// Adds the lines of another summary that this one does not have.
    pub(super) fn append(&mut self, other: &Self) {
        for (own, added) in self.sections.iter_mut().zip(&other.sections) {
            for line in added {
                if !own.contains(line) {
                    own.push(line.clone());
                }
            }
        }
        drop_replaced(self.lines_mut(Section::Progress));
    }

    pub(super) fn lines(&self, section: Section) -> &[String] {
        &self.sections[section as usize]
    }

    pub(super) fn lines_mut(&mut self, section: Section) -> &mut Vec<String> {
        &mut self.sections[section as usize]
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sections.iter().all(Vec::is_empty)
    }

    /// Returns the summary without its goal, for a part of a conversation whose goal stands elsewhere.
    pub(crate) fn without_goal(mut self) -> Self {
        self.lines_mut(Section::Goal).clear();
        self
    }

    /// Returns the summary with lines at the end of its critical context, as far as it does not have them.
    pub(crate) fn keeping(&self, lines: &[String]) -> Self {
        let mut summary = self.clone();
        for line in lines {
            let line = without_bullet(line);
            if !summary.items(Section::Critical).iter().any(|own| own == &defuse(line)) {
                summary.push(Section::Critical, &format!("- {line}"));
            }
        }
        summary
    }

    /// Returns the summary without the lasting lines that say what does not hold any more.
    pub(crate) fn without_outdated(mut self, is_outdated: impl Fn(&str) -> bool) -> Self {
        for section in Section::LASTING {
            self.lines_mut(section).retain(|line| !is_outdated(without_bullet(line)));
        }
        self
    }

    /// Returns the items of a section, without their bullets.
    pub(super) fn items(&self, section: Section) -> Vec<String> {
        let lines = self.lines(section).iter().map(|line| without_bullet(line));
        lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned).collect()
    }

    /// Returns the text as models are sent it.
    pub(crate) fn render(&self) -> String {
        let mut text = String::new();
        for section in Section::ALL {
            let lines = self.lines(section);
            if lines.is_empty() {
                continue;
            }
            if !text.is_empty() {
                text.push_str("\n\n");
            }
            text.push_str("## ");
            text.push_str(section.title());
            text.push('\n');
            text.push_str(&lines.join("\n"));
        }
        text
    }
}

/// Returns the summary with at most `target` tokens.
pub(in crate::context) fn fit(summary: &Summary, counter: &Counter, target: u64) -> Summary {
    let count = |summary: &Summary| u64::from(counter.count_text(&summary.render()));
    let before = count(summary);
    if before <= target {
        return summary.clone();
    }
    let mut aim = target;
    for _ in 0..MAX_TRIES {
        let shorter = with_shares(summary, counter, aim);
        let after = count(&shorter);
        if after <= target {
            return shorter;
        }
        aim = aim * 9 / 10;
    }
    shortest(summary, counter, target)
}

/// Returns the section that a line begins, and the text behind its name.
fn heading(line: &str) -> Option<(Section, &str)> {
    let trimmed = line.trim_start();
    if trimmed.len() < line.len() && !trimmed.starts_with('#') {
        return None;
    }
    let marked = trimmed.trim_start_matches('#');
    let has_marks = marked.len() < trimmed.len();
    let unnumbered = without_number(marked.trim_start());
    let bold = unnumbered.trim_start_matches(['*', '_']);
    let has_marks = has_marks || bold.len() < unnumbered.len();
    let end = bold.find([':', '*', '_']).unwrap_or(bold.len());
    let section = Section::named(bold[..end].trim())?;
    let rest = bold[end..].trim_start_matches([':', '*', '_']).trim();
    // `Next: look at it` is a heading, `Next we look at it` is not.
    (has_marks || rest.is_empty() || bold[end..].contains(':')).then_some((section, rest))
}

/// Removes the last mark of a code block that is not closed: what follows the notes would belong to it.
fn drop_open_fence(lines: &mut Vec<String>) {
    let is_fence = |line: &String| line.trim_start().starts_with("```");
    if lines.iter().filter(|line| is_fence(line)).count() % 2 == 1
        && let Some(last) = lines.iter().rposition(is_fence)
    {
        lines.remove(last);
    }
}

/// Returns a text without the number of a list at its beginning: `2. ` or `2) `, but no part of an address or a version.
pub(super) fn without_number(text: &str) -> &str {
    let rest = text.trim_start_matches(|char: char| char.is_ascii_digit());
    let is_number = (1..=MAX_NUMBER_DIGITS).contains(&(text.len() - rest.len()));
    match rest.strip_prefix(['.', ')']).filter(|_| is_number) {
        Some(behind) if behind.is_empty() || behind.starts_with([' ', '\t', '*', '_']) => {
            behind.trim_start()
        }
        _ => text,
    }
}

/// Drops the lines of progress that a later line says again: most of its subject, and every value.
pub(super) fn drop_replaced(progress: &mut Vec<String>) {
    let read = |line: &String| {
        let line = without_bullet(line);
        (subject_words(line), values(line, has_names(line)))
    };
    let all: Vec<_> = progress.iter().map(read).collect();
    let mut at = 0;
    progress.retain(|_| {
        let (about, stated) = &all[at];
        at += 1;
        !all[at..].iter().any(|(later, known)| {
            let n_both = about.intersection(later).count();
            n_both * 100 >= about.union(later).count() * SAME_SUBJECT_PERCENT
                && n_both >= MIN_SUBJECT_WORDS
                && stated.iter().all(|value| known.contains(value))
        })
    });
}

/// Returns a line without indentation, bullet and check box. Two asterisks begin bold words and are no bullet.
pub(super) fn without_bullet(line: &str) -> &str {
    let line = without_number(line.trim_start());
    let behind = line.strip_prefix(['-', '*', '+', '•']).filter(|_| !line.starts_with("**"));
    let line = behind.map_or(line, str::trim_start);
    let boxes = ["[x] ", "[X] ", "[ ] "];
    boxes.iter().find_map(|mark| line.strip_prefix(mark)).unwrap_or(line).trim()
}

/// Returns the text without thinking before it and without a code fence around it.
pub(super) fn unwrapped(text: &str) -> &str {
    let mut text = text.trim();
    while let Some(end) = text.strip_prefix("<think").and_then(|rest| rest.find("</think>")) {
        text = text[end + "<think".len() + "</think>".len()..].trim_start();
    }
    let fenced = text.strip_prefix("```").and_then(|rest| rest.strip_suffix("```"));
    match fenced.and_then(|inner| inner.split_once('\n')) {
        // With further fences inside, the first and the last one are not a pair.
        Some((_, inner)) if !inner.contains("```") => inner,
        _ => text,
    }
}

/// Removes empty lines at the ends, or all lines if they only say that there is nothing.
fn tidy(lines: &mut Vec<String>) {
    drop_open_fence(lines);
    if lines.iter().all(|line| is_nothing(line)) {
        lines.clear();
        return;
    }
    while lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    let n_empty = lines.iter().take_while(|line| line.is_empty()).count();
    lines.drain(..n_empty);
}

/// Whether a line is empty or says that there is nothing.
fn is_nothing(line: &str) -> bool {
    let text = without_bullet(line).to_lowercase();
    let text = text.trim_matches(|char: char| !char.is_alphanumeric());
    let words = ["", "none", "n/a", "nothing", "none yet", "not applicable", "not specified"];
    words.contains(&text) || text.starts_with("none -") || text.contains("empty conversation")
}

/// Cuts each section to its share of `target` and the tokens that other sections leave.
fn with_shares(summary: &Summary, counter: &Counter, target: u64) -> Summary {
    let mut shares = Section::ALL.into_iter().zip(SECTION_PERCENTS);
    let costs = [(); 6].map(|()| {
        let (section, share) = shares.next().expect("there are six sections");
        let lines = summary.lines(section);
        let title = u64::from(counter.count_text(section.title())) + 4;
        let cost: u64 = lines.iter().map(|line| line_cost(counter, line)).sum();
        (section, share, if lines.is_empty() { 0 } else { cost + title }, title)
    });
    let mut grants = [0_u64; 6];
    let mut left = target;
    let mut open: Vec<usize> = (0..6).filter(|at| costs[*at].2 > 0).collect();
    // A section that needs less than its share leaves the rest to the others.
    loop {
        let total: u64 = open.iter().map(|at| costs[*at].1).sum();
        let share = |at: usize| left * costs[at].1 / total.max(1);
        let (fitting, others): (Vec<usize>, Vec<usize>) =
            open.into_iter().partition(|at| costs[*at].2 <= share(*at));
        if fitting.is_empty() {
            others.into_iter().for_each(|at| grants[at] = share(at));
            break;
        }
        for at in fitting {
            grants[at] = costs[at].2;
            left -= costs[at].2;
        }
        open = others;
    }
    let mut shorter = Summary::default();
    for (at, (section, _, cost, title)) in costs.into_iter().enumerate() {
        let lines = summary.lines(section);
        *shorter.lines_mut(section) = if cost <= grants[at] {
            lines.to_vec()
        } else {
            keep_lines(lines, section, counter, grants[at].saturating_sub(title))
        };
    }
    shorter
}

/// Returns the lines of a section that fit into a number of tokens.
fn keep_lines(lines: &[String], section: Section, counter: &Counter, tokens: u64) -> Vec<String> {
    let mut order: Vec<usize> = (0..lines.len()).collect();
    let is_lasting = match section {
        // The beginning matters most.
        Section::Goal | Section::NextSteps => false,
        // The newest progress shows the state of the work.
        Section::Progress => {
            order.reverse();
            false
        }
        // Lines with values come first, because a value is lost with its line; then the newest ones, which nothing
        // contradicts yet.
        Section::Constraints | Section::Decisions | Section::Critical => {
            order.sort_by_key(|at| (has_value(&lines[*at]), *at));
            order.reverse();
            true
        }
    };
    let mut left = tokens;
    let mut kept: Vec<(usize, String)> = Vec::new();
    for at in order.iter().copied() {
        let line = &lines[at];
        let cost = line_cost(counter, line);
        if cost <= left {
            left -= cost;
            kept.push((at, line.clone()));
            continue;
        }
        if is_lasting {
            // Half a rule or a value misleads, and another line may be shorter.
            continue;
        }
        if let Some(cut) = cut_line(line, counter, left) {
            kept.push((at, cut));
        }
        break;
    }
    if kept.is_empty()
        && let Some(at) = order.first()
    {
        kept.extend(cut_line(&lines[*at], counter, tokens).map(|cut| (*at, cut)));
    }
    kept.sort_by_key(|(at, _)| *at);
    without_empty_headlines(kept.into_iter().map(|(_, line)| line).collect())
}

/// Removes headlines within a section that have no lines below them.
fn without_empty_headlines(lines: Vec<String>) -> Vec<String> {
    let is_headline = |line: &String| line.trim_start().starts_with('#');
    let mut kept: Vec<String> = Vec::with_capacity(lines.len());
    for line in lines {
        if is_headline(&line) {
            while kept.last().is_some_and(|last| is_headline(last) || last.is_empty()) {
                kept.pop();
            }
        }
        kept.push(line);
    }
    while kept.last().is_some_and(|last| is_headline(last) || last.is_empty()) {
        kept.pop();
    }
    kept
}

/// Returns the beginning of a line with at most `tokens`.
fn cut_line(line: &str, counter: &Counter, tokens: u64) -> Option<String> {
    let mut chars = line.chars().count();
    while chars > MIN_LINE_CHARS {
        chars -= chars.div_ceil(4);
        let end = line.char_indices().nth(chars).map_or(line.len(), |(at, _)| at);
        let cut = format!("{}…", words_before(line, end).trim_end());
        if line_cost(counter, &cut) <= tokens {
            return Some(cut);
        }
    }
    None
}

/// Returns the beginning of the first section, for a target that is too small for parts of all sections.
fn shortest(summary: &Summary, counter: &Counter, target: u64) -> Summary {
    let mut least = Summary::default();
    let first = Section::ALL.into_iter().find(|section| !summary.lines(*section).is_empty());
    let Some(section) = first else { return least };
    let mut line: String = summary.lines(section)[0].clone();
    while !line.is_empty() {
        least.lines_mut(section).clear();
        least.lines_mut(section).push(line.clone());
        if u64::from(counter.count_text(&least.render())) <= target {
            return least;
        }
        let chars = line.chars().count();
        line = line.chars().take(chars - chars.div_ceil(4)).collect();
    }
    Summary::default()
}

/// Returns the tokens of a line with its line break.
fn line_cost(counter: &Counter, line: &str) -> u64 {
    u64::from(counter.count_text(line)) + 1
}

#[cfg(test)]
mod tests;
