//! The check of a summarizer's answer, and the use of an answer that broke off.
//!
//! A model's text is used only if it is a summary: not the echo of its instructions, not an answer to the conversation,
//! and with most of the values of the notes that it updates. Lines that it lost nevertheless are carried over.

use std::collections::HashSet;

use super::carry::{carry_over, kept_values};
use super::defuse::find_obeyed;
use super::grounds::{Grounds, words};
use super::mend::{is_json, is_placeholder, mended};
use super::numbers::*;
use super::request::{EXAMPLE_VALUE, INSTRUCTIONS, SummaryOptions, SummaryRequest};
use super::summary::{Section, Summary, drop_replaced, fit, without_bullet};
use crate::tokens::Counter;

/// The sections that an answer reaches before it is long enough to be used, although it broke off.
const REQUIRED: [Section; 2] = [Section::Goal, Section::Progress];

/// The reason why an answer is rejected. A retry sends its text to the model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RejectedSummary {
    #[error("the summary is empty")]
    Empty,
    /// The answer holds text that a model or a chat template would obey.
    #[error("the summary holds {what}")]
    Obeyed { what: &'static str },
    #[error("the summary is JSON instead of headings and bullets")]
    Json,
    /// The answer has no headings, and does not tell what happened.
    #[error("the text is an answer to the conversation and not notes of it")]
    Answer,
    #[error("the summary has fewer than {MIN_LINES} lines")]
    TooShort,
    /// A line repeats the instructions or the example of the request, or holds a place for a text.
    #[error("the summary repeats the instructions instead of following them: {line}")]
    Echo { line: String },
    #[error("the summary repeats its own lines: {line}")]
    Repeated { line: String },
    /// Most of the names and numbers are in no record.
    #[error("the summary names what the conversation does not: {values}")]
    Invented { values: String },
    /// Fewer than two thirds of the values of the earlier notes are left.
    #[error("the summary lost these of the previous notes: {lost}")]
    Forgot { lost: String },
    /// The answer reached its maximum length before a section.
    #[error("the summary was too long and broke off before the section {}", section.title())]
    BrokeOff { section: Section },
    /// The shortest form of the summary is not shorter than the text that it replaces.
    #[error("the summary has {tokens} tokens in place of {replaced}")]
    Longer { tokens: u64, replaced: u64 },
}

/// The limits of a summary's size, in tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SummaryLimits {
    /// Tokens of the records or summaries that it replaces.
    pub replaced: u64,
    /// Tokens that it may have.
    pub target: u64,
}

/// Returns the answer to a request as a summary, with the lines of the earlier notes that it lost, cut to the limits.
///
/// `is_cut`: whether the answer reached its maximum length. Its last line is then dropped. `options`: those of the request.
pub(crate) fn verify_summary(
    answer: &str,
    is_cut: bool,
    request: SummaryRequest<'_>,
    options: &SummaryOptions<'_>,
    counter: &Counter,
    limits: SummaryLimits,
) -> Result<Summary, RejectedSummary> {
    if answer.trim().is_empty() {
        return Err(RejectedSummary::Empty);
    }
    if let Some(what) = find_obeyed(answer) {
        return Err(RejectedSummary::Obeyed { what });
    }
    if is_json(answer) {
        return Err(RejectedSummary::Json);
    }
    let text = if is_cut { without_last_line(answer) } else { answer };
    let summary = mended(text, request.material());
    let grounds = Grounds::new(request, options);
    if is_cut {
        let begun = summary.clone().unwrap_or_default();
        check_lines(&begun, request, &grounds)?;
        if let Some(section) = first_missing(&begun) {
            return Err(RejectedSummary::BrokeOff { section });
        }
    }
    let mut summary = summary.ok_or(RejectedSummary::Answer)?;
    check_lines(&summary, request, &grounds)?;
    match summary.all_lines().count() {
        0 => return Err(RejectedSummary::Empty),
        n_lines if n_lines < MIN_LINES => return Err(RejectedSummary::TooShort),
        _ => drop_repeated(&mut summary),
    }
    for previous in request.previous() {
        let kept = kept_values(previous, &summary);
        if kept.is_too_few() && !is_cut {
            return Err(RejectedSummary::Forgot { lost: kept.named() });
        }
    }
    cut_to_limits(&with_earlier(summary, request), counter, limits)
}

/// Returns the whole lines of an answer that reached its maximum length, or `None` if they are no summary.
///
/// `options`: those of the request.
pub(crate) fn partial_summary(
    answer: &str,
    request: SummaryRequest<'_>,
    options: &SummaryOptions<'_>,
) -> Option<Summary> {
    let mut summary = Summary::parse(without_last_line(answer));
    let is_clean = || check_lines(&summary, request, &Grounds::new(request, options)).is_ok();
    let is_usable = find_obeyed(answer).is_none() && is_clean();
    drop_repeated(&mut summary);
    (is_usable && !summary.is_empty()).then_some(summary)
}

/// Returns a partial summary with the sections that it did not reach taken from others, from the first that has them.
///
/// A section that the summary left out before it broke off stays left out, unless it is required.
pub(crate) fn complete_summary(
    partial: &Summary,
    others: &[&Summary],
    request: SummaryRequest<'_>,
    counter: &Counter,
    limits: SummaryLimits,
) -> Result<Summary, RejectedSummary> {
    let mut summary = partial.clone();
    let has = |section: &Section| !partial.lines(*section).is_empty();
    let reached = Section::ALL.iter().rposition(has).unwrap_or_default();
    for (at, section) in Section::ALL.into_iter().enumerate() {
        if has(&section) || (at < reached && !REQUIRED.contains(&section)) {
            continue;
        }
        let lines = others.iter().map(|other| other.lines(section)).find(|lines| !lines.is_empty());
        *summary.lines_mut(section) = lines.unwrap_or_default().to_vec();
    }
    cut_to_limits(&with_earlier(summary, request), counter, limits)
}

/// Returns a summary with the lines of the earlier notes that it lost.
fn with_earlier(summary: Summary, request: SummaryRequest<'_>) -> Summary {
    // The newer of two notes decides what the older one may add.
    request.previous().into_iter().rev().fold(summary, |summary, one| carry_over(one, &summary))
}

/// Fails for lines that repeat the request or each other, and for names and numbers that are invented.
fn check_lines(
    summary: &Summary,
    request: SummaryRequest<'_>,
    grounds: &Grounds,
) -> Result<(), RejectedSummary> {
    let instructions = INSTRUCTIONS.map(|text| format!(" {} ", words(text)));
    let knows_example = request.material().contains(EXAMPLE_VALUE)
        || request.previous().iter().any(|one| one.render().contains(EXAMPLE_VALUE));
    let is_echo = |line: &str| {
        let said = words(line);
        if limits_length(&said, request) || grounds.is_about_the_task(&said) {
            return true;
        }
        let is_said = |text: &String| text.contains(&format!(" {said} "));
        (said.split(' ').count() >= MIN_ECHOED_WORDS && instructions.iter().any(is_said))
            || (!knows_example && line.contains(EXAMPLE_VALUE))
            || is_placeholder(line)
    };
    let short = |line: &str| without_bullet(line).chars().take(80).collect();
    let is_question = |line: &str| {
        let text = without_bullet(line);
        text.starts_with('#') && text.ends_with(['?', '？'])
    };
    // The questions of the conversation as headlines, each with an answer.
    if summary.all_lines().filter(|(_, line)| is_question(line)).count() >= MIN_ANSWERED {
        return Err(RejectedSummary::Answer);
    }
    if let Some((_, line)) = summary.all_lines().find(|(_, line)| is_echo(line)) {
        return Err(RejectedSummary::Echo { line: short(line) });
    }
    if let Some(values) = grounds.invented(summary) {
        return Err(RejectedSummary::Invented { values });
    }
    let mut known = HashSet::new();
    let lines: Vec<&str> = summary.all_lines().map(|(_, line)| line).collect();
    let repeated: Vec<&&str> = lines.iter().filter(|line| !known.insert(words(line))).collect();
    let (least, divisor) = REPEATED;
    match repeated.first() {
        Some(line) if repeated.len() >= least && repeated.len() * divisor >= lines.len() => {
            Err(RejectedSummary::Repeated { line: short(line) })
        }
        _ => Ok(()),
    }
}

/// Returns whether a line repeats the length that the request asks for: a number of words that the conversation does not
/// name.
fn limits_length(said: &str, request: SummaryRequest<'_>) -> bool {
    let all: Vec<&str> = said.split(' ').collect();
    let mut pairs = all
        .windows(2)
        .filter(|pair| pair[1] == "words" && pair[0].chars().all(|char| char.is_ascii_digit()));
    pairs.any(|pair| {
        let limit = format!(" {} words ", pair[0]);
        let names = |text: &str| format!(" {} ", words(text)).contains(&limit);
        !names(request.material()) && !request.previous().iter().any(|one| names(&one.render()))
    })
}

/// Drops the few lines of a section that say the same as an earlier one.
fn drop_repeated(summary: &mut Summary) {
    for section in Section::ALL {
        let mut known = HashSet::new();
        summary.lines_mut(section).retain(|line| {
            let said = words(line);
            said.is_empty() || known.insert(said)
        });
    }
    drop_replaced(summary.lines_mut(Section::Progress));
}

fn first_missing(summary: &Summary) -> Option<Section> {
    REQUIRED.into_iter().find(|section| summary.lines(*section).is_empty())
}

fn cut_to_limits(
    whole: &Summary,
    counter: &Counter,
    limits: SummaryLimits,
) -> Result<Summary, RejectedSummary> {
    let SummaryLimits { replaced, target } = limits;
    let summary = fit(whole, counter, target.min(replaced.saturating_sub(1)));
    let is_lost =
        |section: &Section| summary.lines(*section).is_empty() && !whole.lines(*section).is_empty();
    if summary.is_empty() || REQUIRED.iter().any(is_lost) {
        let tokens = u64::from(counter.count_text(&summary.render()));
        return Err(RejectedSummary::Longer { tokens, replaced });
    }
    Ok(summary)
}

fn without_last_line(text: &str) -> &str {
    text.trim_end().rfind('\n').map_or(text, |end| &text[..end])
}

#[cfg(test)]
mod tests {
    use ollm_protocol::Seq;

    use super::super::request::TranscriptPiece;
    use super::*;

    const GOOD: &str =
        "## Goal\nBuild the parser.\n## Progress\n- lexer done\n## Next steps\n- tests";

    const OPTIONS: SummaryOptions<'_> =
        SummaryOptions { target: 0, goal: None, instructions: None, rejected: None, chat: None };

    fn piece(text: &str) -> TranscriptPiece {
        TranscriptPiece { from: Seq(1), to: Seq(9), text: text.to_owned() }
    }

    fn check(answer: &str, limits: (u64, u64)) -> Result<String, RejectedSummary> {
        let limits = SummaryLimits { replaced: limits.0, target: limits.1 };
        verified(answer, false, limits).map(|summary| summary.render())
    }

    fn verified(
        answer: &str,
        is_cut: bool,
        limits: SummaryLimits,
    ) -> Result<Summary, RejectedSummary> {
        let piece = piece("[#1 user] parse a.toml");
        let request = SummaryRequest::First(&piece);
        verify_summary(answer, is_cut, request, &OPTIONS, &Counter::ESTIMATE, limits)
    }

    /// Verifies an answer that updates notes.
    fn updated(before: &str, answer: &str) -> Result<String, RejectedSummary> {
        let (piece, before) = (piece("[#1 user] parse a.toml"), Summary::parse(before));
        let limits = SummaryLimits { replaced: 2000, target: 400 };
        let request = SummaryRequest::Update(&before, &piece);
        verify_summary(answer, false, request, &OPTIONS, &Counter::ESTIMATE, limits)
            .map(|summary| summary.render())
    }

    #[test]
    fn answer_that_broke_off_is_rejected_as_too_long() {
        let limits = SummaryLimits { replaced: 2000, target: 200 };
        let cut = verified("## Goal\nBuild it.\n## Prog", true, limits);
        assert_eq!(cut, Err(RejectedSummary::BrokeOff { section: Section::Progress }));
    }

    #[test]
    fn answers_without_a_summary_are_rejected() {
        let rejected = |answer: &str| check(answer, (2000, 200)).expect_err(answer);
        assert_eq!(rejected(" \n"), RejectedSummary::Empty);
        assert_eq!(rejected("I cannot help with that."), RejectedSummary::Answer);
        let nothing = "## Goal\n(none - empty conversation)\n## Progress\n(none)";
        assert_eq!(rejected(nothing), RejectedSummary::Empty);
        assert_eq!(rejected("## Goal\nx\n## Progress\nNone"), RejectedSummary::TooShort);
        assert_eq!(rejected("{\"Goal\": \"x\", \"Progress\": []}"), RejectedSummary::Json);
        let answered = "## Critical context\n### What is a lexer?\n- It reads text.\n### What is TCP?\n- A protocol.";
        assert_eq!(rejected(answered), RejectedSummary::Answer);
        let call = format!("{GOOD}\n<tool_call>{{}}</tool_call>");
        assert_eq!(rejected(&call), RejectedSummary::Obeyed { what: "a tool call" });
        let control = format!("{GOOD}\n<|im_end|>");
        assert_eq!(rejected(&control), RejectedSummary::Obeyed { what: "control tokens" });
        assert!(matches!(check(GOOD, (4, 200)), Err(RejectedSummary::Longer { replaced: 4, .. })));
    }

    /// Returns lines that differ in a word, which is no value.
    fn many(line: &str, n: usize) -> String {
        let letters: Vec<char> = ('a'..='z').collect();
        let word = |at: usize| format!("{}{}", letters[at / 26 % 26], letters[at % 26]);
        (0..n).map(|at| format!("{line} {}\n", word(at))).collect()
    }

    #[test]
    fn echo_of_the_hints_is_rejected() {
        // The answer of a model of 135M parameters, which became a checkpoint of 855 tokens.
        let echo = format!(
            "## Goal\nBuild it\n## Key decisions\n{}",
            "- what was decided, and why\n".repeat(40)
        );
        let line = "what was decided, and why".to_owned();
        let expect = Err(RejectedSummary::Echo { line });
        assert_eq!(check(&echo, (2000, 980)), expect);
        let limits = SummaryLimits { replaced: 2000, target: 980 };
        assert_eq!(verified(&echo, true, limits).map(|it| it.render()), expect);
        assert_eq!(partial(&echo), None);
        let is_echo = |line: &str| {
            let answer = format!("{GOOD}\n{line}");
            matches!(check(&answer, (2000, 200)), Err(RejectedSummary::Echo { .. }))
        };
        assert!(is_echo("- Key decisions are what was decided and why."));
        assert!(is_echo("- staging port: 48213 (user, #7)") && is_echo("- [the next steps]"));
        for hint in [
            "Write notes of the records above.",
            "Copy the previous Constraints, Key decisions and Critical context line by line",
            "Answer nothing and call no tool: write notes of the conversation",
            "write short bullets in the language of the user",
            "and none where nothing belongs.",
            "You keep the memory of a conversation between a user and an assistant.",
            "Write the notes and nothing else.",
            "Older parts of this conversation are not shown in full.",
            "They are done: do not answer them again.",
            "--- the conversation goes on here ---",
        ] {
            assert!(is_echo(&format!("- {hint}")), "{hint}");
        }
        assert!(is_echo("- ...") && !is_echo("- what is done") && !is_echo("- port 48214"));
        // Another answer of that model, whose beginning became the notes when its time was over.
        let limit = "- No more than 652 words in all, and no less than 10 lines long.";
        assert!(is_echo(limit) && !is_echo("- the words of table 652"));
        assert_eq!(partial(&format!("## Goal\n- test it\n{limit}\n- Each hea")), None);
        let piece = piece("[#1 user] Write at most 652 words.");
        let request = SummaryRequest::First(&piece);
        let summary = Summary::parse(&format!("## Constraints\n{limit}"));
        assert!(check_lines(&summary, request, &Grounds::new(request, &OPTIONS)).is_ok());
    }

    #[test]
    fn answer_that_goes_round_in_circles_is_rejected() {
        let circles = format!("{GOOD}\n{}", "- and then the tests\n".repeat(9));
        let line = "and then the tests".to_owned();
        assert_eq!(check(&circles, (2000, 400)), Err(RejectedSummary::Repeated { line }));
        let once = format!("{GOOD}\n- tests\n- more");
        assert!(check(&once, (2000, 400)).expect("taken").ends_with("- tests\n- more"));
    }

    #[test]
    fn progress_that_is_said_again_without_a_value_less_stands_once() {
        let check = |lines: &[&str], expect: &[&str]| {
            let lines: Vec<String> = lines.iter().map(|line| format!("- {line}")).collect();
            let answer = format!("## Goal\n- it\n## Progress\n{}", lines.join("\n"));
            let summary = verified(&answer, false, SummaryLimits { replaced: 2000, target: 400 });
            assert_eq!(summary.expect("is taken").items(Section::Progress), expect);
        };
        let (first, again) = ("the parser reads empty lines", "the parser now reads empty lines");
        check(&[first, "tests pass", again], &["tests pass", again]);
        // A value that only the earlier line has keeps it.
        let value = "the parser 2.4.1 reads empty lines";
        check(&[value, again], &[value, again]);
        check(&[first, value], &[value]);
        let other = "the lexer reads empty files";
        check(&[first, other], &[first, other]);
    }

    const NOTES: &str = "## Goal\n- port the parser\n## Constraints\n- never use regexes\n## Progress\n- begun\n\
        ## Critical context\n- staging port: 50123\n- key file: /etc/a.pem\n- the release is on 2026-03-05";

    #[test]
    fn summary_of_one_line_does_not_replace_a_good_one() {
        assert_eq!(updated(NOTES, "## Progress\n- all is well"), Err(RejectedSummary::TooShort));
        let weak = "## Goal\n- the parser\n## Progress\n- all is well\n## Next steps\n- tests";
        let lost = "2026-03-05, /etc/a.pem, 50123".to_owned();
        let found = updated(NOTES, weak).expect_err("lost everything");
        let RejectedSummary::Forgot { lost: found } = found else { panic!("{found}") };
        let sorted = |text: &str| {
            let mut values: Vec<_> = text.split(", ").map(str::to_owned).collect();
            values.sort();
            values
        };
        assert_eq!(sorted(&found), sorted(&lost));
    }

    #[test]
    fn lines_that_an_update_lost_are_carried_over() {
        let answer =
            "## Progress\n- lexer done\n## Critical context\n- staging port: 50777\n- /etc/a.pem";
        let kept = updated(NOTES, answer).expect("two of three values, one replaced");
        let expect = "## Goal\n- port the parser\n\n## Constraints\n- never use regexes\n\n## Progress\n- lexer done\n\n\
            ## Critical context\n- the release is on 2026-03-05\n- staging port: 50777\n- /etc/a.pem";
        assert_eq!(kept, expect);
    }

    #[test]
    fn long_summary_is_cut_to_its_target() {
        assert!(check(GOOD, (2000, 200)).expect("good").contains("- lexer done"));
        let verbose = format!("{GOOD}\n{}", many("- and one more thing that nobody needs", 400));
        let kept = check(&verbose, (2000, 120)).expect("cut");
        assert!(Counter::ESTIMATE.count_text(&kept) <= 120, "{kept}");
        assert!(kept.contains("Build the parser."));
    }

    #[test]
    fn last_line_of_a_cut_answer_is_dropped() {
        let limits = SummaryLimits { replaced: 2000, target: 200 };
        let cut = format!("{GOOD}\n- half of a sent");
        let kept = verified(&cut, true, limits).expect("taken").render();
        assert!(kept.ends_with("- tests"), "{kept}");
    }

    const OTHER: &str = "## Goal\nother goal\n## Constraints\n- a rule\n## Progress\n- other work\n\
        ## Key decisions\n- a decision\n## Critical context\n- src/lex.rs";

    fn partial(answer: &str) -> Option<Summary> {
        partial_summary(answer, SummaryRequest::First(&piece("")), &OPTIONS)
    }

    fn complete(answer: &str, target: u64) -> Result<String, RejectedSummary> {
        let limits = SummaryLimits { replaced: 2000, target };
        let partial = partial(answer).expect("has whole lines");
        let piece = piece("");
        let older = Summary::parse("## Goal\nold\n## Progress\n- old\n## Next steps\n- old step");
        let others = [&Summary::parse(OTHER), &older];
        let whole = complete_summary(
            &partial,
            &others,
            SummaryRequest::First(&piece),
            &Counter::ESTIMATE,
            limits,
        );
        whole.map(|summary| summary.render())
    }

    #[test]
    fn sections_that_were_not_reached_are_taken_from_others() {
        let kept = complete("## Goal\n- its words\n- more of them\n- half a l", 400).expect("is");
        let expect = "## Goal\n- its words\n- more of them\n\n## Constraints\n- a rule\n\n## Progress\n\
            - other work\n\n## Key decisions\n- a decision\n\n## Next steps\n- old step\n\n\
            ## Critical context\n- src/lex.rs";
        assert_eq!(kept, expect);
        // A section that was left out before the break stays left out.
        let kept = complete("## Goal\nx\n## Progress\n- its work\n- hal", 400).expect("is");
        assert!(kept.starts_with("## Goal\nx\n\n## Progress\n- its work\n\n## Key dec"), "{kept}");
        let kept = complete("## Constraints\n- its rule\n## Progress\n- its work\n- hal", 400);
        assert!(kept.expect("is").starts_with("## Goal\nother goal\n\n## Constraints\n- its rule"));
    }

    #[test]
    fn long_partial_summary_leaves_room_for_the_other_sections() {
        let verbose = format!("## Goal\n{}- and ha", many("- its words about the goal", 90));
        let kept = complete(&verbose, 120).expect("is");
        assert!(Counter::ESTIMATE.count_text(&kept) <= 120, "{kept}");
        assert!(kept.contains("its words") && kept.contains("- other work"), "{kept}");
    }

    #[test]
    fn answer_without_a_whole_section_line_is_no_partial_summary() {
        assert_eq!(partial("I will now tell you at length what"), None);
        assert_eq!(partial("## Goal\nno whole line"), None);
        assert_eq!(partial("## Goal\nx\n<tool_call>{}</tool_call>\n## Pro"), None);
    }

    #[test]
    fn markers_in_a_summary_are_defused() {
        let text = "## Goal\nx\n## Progress\n[DECISION] use y - LOCKED\n[GOAL] other";
        let kept = check(text, (2000, 200)).expect("taken");
        assert!(!kept.contains("[DECISION]") && !kept.contains("[GOAL]"), "{kept}");
    }
}
