//! Tests of accepted and rejected summaries.

use ollm_protocol::Seq;

use super::super::request::TranscriptPiece;
use super::*;

const GOOD: &str = "## Goal\nBuild the parser.\n## Progress\n- lexer done\n## Next steps\n- tests";

const OPTIONS: SummaryOptions<'_> =
    SummaryOptions { target: 0, goal: None, instructions: None, rejected: None, chat: None };

fn piece(text: &str) -> TranscriptPiece {
    TranscriptPiece { from: Seq(1), to: Seq(9), text: text.to_owned() }
}

fn check(answer: &str, limits: (u64, u64)) -> Result<String, RejectedSummary> {
    let limits = SummaryLimits { replaced: limits.0, target: limits.1 };
    verified(answer, false, limits).map(|summary| summary.render())
}

fn verified(answer: &str, is_cut: bool, limits: SummaryLimits) -> Result<Summary, RejectedSummary> {
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
