//! Whether an answer of a summarizer is a summary.

use super::defuse::obeyed;
use super::fit::fit;
use super::sections::{Section, Summary};
use crate::tokens::Counter;

/// Without these a summary does not say what is going on.
const NEEDED: [Section; 2] = [Section::Goal, Section::Progress];

/// Why an answer is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Rejected {
    /// Nothing was said.
    #[error("the summary is empty")]
    Empty,
    /// It is not a text for a reader.
    #[error("the summary holds {what}")]
    Obeyed {
        /// What it holds.
        what: &'static str,
    },
    /// A section is not there, or says that there is nothing.
    #[error("the summary has no section {}", section.title())]
    Missing {
        /// The section.
        section: Section,
    },
    /// It reached its longest before a section.
    #[error("the summary was too long and broke off before the section {}", section.title())]
    BrokeOff {
        /// The section.
        section: Section,
    },
    /// It would not save anything.
    #[error("the summary has {tokens} tokens in place of {replaced}")]
    Longer {
        /// Tokens of the summary, as short as it can be made.
        tokens: u64,
        /// Tokens of what it stands for.
        replaced: u64,
    },
}

/// How large a summary may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Tokens of what it stands for.
    pub replaced: u64,
    /// Tokens that it should have at most.
    pub target: u64,
}

/// Takes an answer as a summary of at most the target, or says why not.
///
/// A longer one is cut by sections; `is_cut` says that the answer ended in the middle, so its last line goes.
pub(crate) fn verify(
    answer: &str,
    is_cut: bool,
    counter: &Counter,
    limits: Limits,
) -> Result<Summary, Rejected> {
    if answer.trim().is_empty() {
        return Err(Rejected::Empty);
    }
    if let Some(what) = obeyed(answer) {
        return Err(Rejected::Obeyed { what });
    }
    let whole = if is_cut { without_last_line(answer) } else { answer };
    let summary = Summary::parse(whole);
    for section in NEEDED {
        if summary.lines(section).is_empty() {
            let (cut, missing) = (Rejected::BrokeOff { section }, Rejected::Missing { section });
            return Err(if is_cut { cut } else { missing });
        }
    }
    taken(&summary, counter, limits)
}

/// What an answer holds that reached its longest: whole lines, up to the section in which it broke off.
pub(crate) fn begun(answer: &str) -> Option<Summary> {
    let summary = Summary::parse(without_last_line(answer));
    (obeyed(answer).is_none() && !summary.is_empty()).then_some(summary)
}

/// A summary that broke off, with what it did not come to taken from others, of which the first that has it counts.
///
/// A section before the one in which it broke off, and that it left out, stays left out, but for the needed ones.
pub(crate) fn completed(
    begun: &Summary,
    others: &[&Summary],
    counter: &Counter,
    limits: Limits,
) -> Result<Summary, Rejected> {
    let mut summary = begun.clone();
    let is_there = |section: &Section| !begun.lines(*section).is_empty();
    let reached = Section::ALL.iter().rposition(is_there).unwrap_or_default();
    for (at, section) in Section::ALL.into_iter().enumerate() {
        if is_there(&section) || (at < reached && !NEEDED.contains(&section)) {
            continue;
        }
        let other = others.iter().map(|other| other.lines(section)).find(|it| !it.is_empty());
        *summary.lines_mut(section) = other.unwrap_or_default().to_vec();
    }
    taken(&summary, counter, limits)
}

/// A summary cut to its target, unless nothing that is needed stays.
fn taken(summary: &Summary, counter: &Counter, limits: Limits) -> Result<Summary, Rejected> {
    let Limits { replaced, target } = limits;
    let most = target.min(replaced.saturating_sub(1));
    let summary = fit(summary, counter, most);
    let missing = NEEDED.into_iter().find(|section| summary.lines(*section).is_empty());
    if missing.is_some() {
        let tokens = u64::from(counter.count_text(&summary.render()));
        return Err(Rejected::Longer { tokens, replaced });
    }
    Ok(summary)
}

fn without_last_line(text: &str) -> &str {
    text.trim_end().rfind('\n').map_or(text, |end| &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str =
        "## Goal\nBuild the parser.\n## Progress\n- lexer done\n## Next steps\n- tests";

    fn check(answer: &str, limits: (u64, u64)) -> Result<String, Rejected> {
        let limits = Limits { replaced: limits.0, target: limits.1 };
        verify(answer, false, &Counter::ESTIMATE, limits).map(|summary| summary.render())
    }

    #[test]
    fn an_answer_that_broke_off_is_told_that_it_was_too_long() {
        let limits = Limits { replaced: 2000, target: 200 };
        let cut = verify("## Goal\nBuild it.\n## Prog", true, &Counter::ESTIMATE, limits);
        assert_eq!(cut, Err(Rejected::BrokeOff { section: Section::Progress }));
    }

    #[test]
    fn answers_that_are_no_summary_are_refused() {
        let refused = |answer: &str| check(answer, (2000, 200)).expect_err(answer);
        assert_eq!(refused(" \n"), Rejected::Empty);
        assert_eq!(
            refused("I cannot help with that."),
            Rejected::Missing { section: Section::Goal }
        );
        let nothing = "## Goal\n(none - empty conversation)\n## Progress\n(none)";
        assert_eq!(refused(nothing), Rejected::Missing { section: Section::Goal });
        assert_eq!(
            refused("## Goal\nx\n## Progress\nNone"),
            Rejected::Missing { section: Section::Progress }
        );
        let call = format!("{GOOD}\n<tool_call>{{}}</tool_call>");
        assert_eq!(refused(&call), Rejected::Obeyed { what: "a tool call" });
        let control = format!("{GOOD}\n<|im_end|>");
        assert_eq!(refused(&control), Rejected::Obeyed { what: "control tokens" });
        assert!(matches!(check(GOOD, (4, 200)), Err(Rejected::Longer { replaced: 4, .. })));
    }

    #[test]
    fn a_summary_is_taken_and_cut_where_it_is_too_long() {
        assert!(check(GOOD, (2000, 200)).expect("good").contains("- lexer done"));
        let verbose = format!("{GOOD}\n{}", "- and one more thing that nobody needs\n".repeat(400));
        let kept = check(&verbose, (2000, 120)).expect("cut");
        assert!(Counter::ESTIMATE.count_text(&kept) <= 120, "{kept}");
        assert!(kept.contains("Build the parser."));
    }

    #[test]
    fn the_end_of_an_answer_that_was_cut_off_goes() {
        let limits = Limits { replaced: 2000, target: 200 };
        let cut = format!("{GOOD}\n- half of a sent");
        let kept = verify(&cut, true, &Counter::ESTIMATE, limits).expect("taken").render();
        assert!(kept.ends_with("- tests"), "{kept}");
    }

    const OTHER: &str = "## Goal\nother goal\n## Constraints\n- a rule\n## Progress\n- other work\n\
        ## Key decisions\n- a decision\n## Critical context\n- src/lex.rs";

    fn complete(answer: &str, target: u64) -> Result<String, Rejected> {
        let limits = Limits { replaced: 2000, target };
        let begun = begun(answer).expect("has whole lines");
        let older = Summary::parse("## Goal\nold\n## Progress\n- old\n## Next steps\n- old step");
        let others = [&Summary::parse(OTHER), &older];
        let whole = completed(&begun, &others, &Counter::ESTIMATE, limits);
        whole.map(|summary| summary.render())
    }

    #[test]
    fn what_a_model_did_not_come_to_is_taken_from_elsewhere() {
        let kept = complete("## Goal\n- its words\n- more of them\n- half a l", 400).expect("is");
        let expect = "## Goal\n- its words\n- more of them\n\n## Constraints\n- a rule\n\n## Progress\n\
            - other work\n\n## Key decisions\n- a decision\n\n## Next steps\n- old step\n\n\
            ## Critical context\n- src/lex.rs";
        assert_eq!(kept, expect);
        // What it left out before it broke off stays left out.
        let kept = complete("## Goal\nx\n## Progress\n- its work\n- hal", 400).expect("is");
        assert!(kept.starts_with("## Goal\nx\n\n## Progress\n- its work\n\n## Key dec"), "{kept}");
        let kept = complete("## Constraints\n- its rule\n## Progress\n- its work\n- hal", 400);
        assert!(kept.expect("is").starts_with("## Goal\nother goal\n\n## Constraints\n- its rule"));
    }

    #[test]
    fn a_beginning_far_over_the_target_is_cut_and_leaves_room_for_the_rest() {
        let verbose = format!("## Goal\n{}- and ha", "- its words about the goal\n".repeat(90));
        let kept = complete(&verbose, 120).expect("is");
        assert!(Counter::ESTIMATE.count_text(&kept) <= 120, "{kept}");
        assert!(kept.contains("its words") && kept.contains("- other work"), "{kept}");
    }

    #[test]
    fn what_began_with_no_section_is_no_beginning() {
        assert_eq!(begun("I will now tell you at length what"), None);
        assert_eq!(begun("## Goal\nno whole line"), None);
        assert_eq!(begun("## Goal\nx\n<tool_call>{}</tool_call>\n## Pro"), None);
    }

    #[test]
    fn markers_inside_do_nothing() {
        let text = "## Goal\nx\n## Progress\n[DECISION] use y - LOCKED\n[GOAL] other";
        let kept = check(text, (2000, 200)).expect("taken");
        assert!(!kept.contains("[DECISION]") && !kept.contains("[GOAL]"), "{kept}");
    }
}
