//! Shortening a summary without a model: section by section, the least needed lines first.
//!
//! **Invariants**: the same summary and target give the same result; the result has at most the target's tokens; a
//! summary that fits is unchanged.

use super::summary::{Section, Summary};
use crate::tokens::Counter;

/// Percent of a target for each section. A section that needs less leaves the rest to the others.
const SHARES: [(Section, u64); 6] = [
    (Section::Goal, 15),
    (Section::Constraints, 15),
    (Section::Progress, 25),
    (Section::Decisions, 20),
    (Section::NextSteps, 10),
    (Section::Critical, 15),
];
/// Characters of the shortest line that is cut; a shorter line is dropped, because its beginning says nothing.
const MIN_LINE_CHARS: usize = 24;
/// Attempts with smaller shares, because headings and joins cost more than the lines.
const MAX_TRIES: usize = 8;

/// Returns the summary with at most `target` tokens.
pub(super) fn fit(summary: &Summary, counter: &Counter, target: u64) -> Summary {
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

/// Cuts each section to its share of `target` and the tokens that other sections leave.
fn with_shares(summary: &Summary, counter: &Counter, target: u64) -> Summary {
    let costs = SHARES.map(|(section, share)| {
        let lines = summary.lines(section);
        let title = u64::from(counter.count_text(section.title())) + 4;
        let cost: u64 = lines.iter().map(|line| line_cost(counter, line)).sum();
        (section, share, if lines.is_empty() { 0 } else { cost + title }, title)
    });
    let mut grants = [0_u64; 6];
    let mut left = target;
    let mut open: Vec<usize> = (0..6).filter(|at| costs[*at].2 > 0).collect();
    // A section that needs less than its share leaves the rest to the others.
    while !open.is_empty() {
        let total: u64 = open.iter().map(|at| costs[*at].1).sum();
        let fitting: Vec<usize> = open
            .iter()
            .copied()
            .filter(|at| costs[*at].2 <= left * costs[*at].1 / total.max(1))
            .collect();
        if fitting.is_empty() {
            for at in &open {
                grants[*at] = left * costs[*at].1 / total.max(1);
            }
            break;
        }
        for at in &fitting {
            grants[*at] = costs[*at].2;
            left -= costs[*at].2;
        }
        open.retain(|at| !fitting.contains(at));
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
    // The newest progress shows the state of the work; of other sections the beginning matters most.
    let newest_first = matches!(section, Section::Progress | Section::Critical);
    let mut order: Vec<usize> = (0..lines.len()).collect();
    if newest_first {
        order.reverse();
    }
    let mut left = tokens;
    let mut kept: Vec<(usize, String)> = Vec::new();
    for at in order {
        let line = &lines[at];
        let cost = line_cost(counter, line);
        if cost <= left {
            left -= cost;
            kept.push((at, line.clone()));
            continue;
        }
        if let Some(cut) = cut_line(line, counter, left) {
            kept.push((at, cut));
        }
        break;
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
        let cut: String = line.chars().take(chars).collect();
        let cut = format!("{}…", cut.trim_end());
        if line_cost(counter, &cut) <= tokens {
            return Some(cut);
        }
    }
    None
}

/// Returns the beginning of the first section, for a target that no shares fit.
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn long() -> Summary {
        let lines = |what: &str, n: usize| {
            (0..n)
                .map(|at| format!("- {what} number {at} is told here"))
                .collect::<Vec<_>>()
                .join("\n")
        };
        let text = format!(
            "## Goal\nBuild the parser\n## Constraints\n{}\n## Progress\n### Done\n{}\n### Doing\n- the last thing\n\
             ## Key decisions\n{}\n## Next steps\n- test it\n## Critical context\n{}",
            lines("rule", 5),
            lines("work", 60),
            lines("decision", 20),
            lines("fact", 20)
        );
        Summary::parse(&text)
    }

    #[test]
    fn newest_progress_and_first_decisions_are_kept() {
        let counter = Counter::ESTIMATE;
        let short = fit(&long(), &counter, 250);
        let text = short.render();
        assert!(counter.count_text(&text) <= 250, "{text}");
        assert!(text.contains("Build the parser") && text.contains("- test it"), "{text}");
        assert!(text.contains("- the last thing") && !text.contains("work number 0 "), "{text}");
        assert!(
            text.contains("decision number 0 ") && !text.contains("decision number 19"),
            "{text}"
        );
        assert!(text.contains("fact number 19 "), "{text}");
    }

    #[test]
    fn headline_without_lines_is_removed() {
        let short = fit(&long(), &Counter::ESTIMATE, 120);
        assert!(!short.render().contains("### Done"), "{}", short.render());
    }

    #[test]
    fn fitting_summary_is_unchanged() {
        let whole = long();
        assert_eq!(fit(&whole, &Counter::ESTIMATE, 100_000), whole);
        assert!(fit(&whole, &Counter::ESTIMATE, 0).is_empty());
    }

    proptest! {
        #[test]
        fn target_holds_for_every_summary(
            parts in proptest::collection::vec((0..6_usize, "[ -~é字]{0,200}"), 0..40), target in 0..400_u64,
        ) {
            let mut summary = Summary::default();
            for (section, line) in &parts {
                summary.push(Section::ALL[*section], line);
            }
            let counter = Counter::ESTIMATE;
            let count = |summary: &Summary| u64::from(counter.count_text(&summary.render()));
            let short = fit(&summary, &counter, target);
            prop_assert!(count(&short) <= target.min(count(&summary)));
            prop_assert_eq!(&fit(&short, &counter, target), &short);
            prop_assert_eq!(fit(&summary, &counter, target), short);
        }
    }
}
