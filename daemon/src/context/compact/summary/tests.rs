//! Tests of summaries and their sections.

use proptest::prelude::*;

use super::*;

fn parsed(text: &str) -> String {
    Summary::parse(text).render()
}

#[test]
fn headings_are_parsed_in_every_form() {
    let expect = "## Goal\nBuild it\n\n## Progress\n- half done\n\n## Next steps\n- go on";
    let check = |text: &str| assert_eq!(parsed(text), expect, "{text}");
    check("## Goal\nBuild it\n\n## Progress\n- half done\n\n## Next steps\n- go on\n");
    check("# GOAL\n\nBuild it\n### progress:\n- half done\n#### Next Steps\n- go on");
    check("**Goal**\nBuild it\n**Progress:**\n- half done\n__Next steps__:\n- go on");
    check("1. Goal: Build it\n2. Progress\n- half done\n3) Next step:\n- go on");
    check("Goal\nBuild it\nProgress so far\n- half done\nNext:\n- go on");
    check("Sure!\n\nGoal: Build it\nPROGRESS\n- half done\n**Next steps**\n- go on");
    check("```markdown\n## Goal\nBuild it\n## Progress\n- half done\n## Next steps\n- go on\n```");
    check(
        "<think>hm\n## Goal\nno</think>\n## Goal\nBuild it\n## Progress\n- half done\n## Next\n- go on",
    );
}

#[test]
fn kept_lines_end_the_critical_context_once() {
    let summary = Summary::parse("## Goal\nBuild it\n\n## Critical context\n- port 48213");
    let lines = ["- port 48213", "ends <|im_end|> here"].map(str::to_owned);
    let kept = summary.keeping(&lines).keeping(&lines);
    let expect = "## Goal\nBuild it\n\n## Critical context\n- port 48213\n- ends < |im_end|> here";
    assert_eq!(kept.render(), expect);
    let empty = Summary::default().keeping(&lines[..1]);
    assert_eq!(empty.render(), "## Critical context\n- port 48213");
}

#[test]
fn lines_that_resemble_headings_stay_text() {
    let text = "## Progress\nNext we look at it\n- Goal: found\n  Task: inner\n### Done\n- a";
    assert_eq!(parsed(text), text);
    assert!(Summary::parse("All went well, we are done.").is_empty());
    assert!(Summary::parse("").is_empty());
}

#[test]
fn numbers_of_lists_are_no_parts_of_addresses_and_versions() {
    let check = |line: &str, expect: &str| assert_eq!(without_bullet(line), expect, "{line}");
    check("1. the server", "the server");
    check("12) the server", "the server");
    check("2.**Bold**", "**Bold**");
    check("10.0.0.5 is the staging server", "10.0.0.5 is the staging server");
    check("- 3.14 is close enough", "3.14 is close enough");
    check("2.4.1 was released", "2.4.1 was released");
    check("2026. A year", "2026. A year");
}

#[test]
fn sections_without_content_are_left_out() {
    let text = "## Goal\nx\n## Constraints\n(none)\n## Progress\n- None.\n\n## Key decisions\nN/A";
    assert_eq!(parsed(text), "## Goal\nx");
    assert!(Summary::parse("## Goal\n(none - empty conversation)").is_empty());
}

#[test]
fn mark_of_an_open_code_block_is_removed() {
    assert_eq!(parsed("## Goal\n- ship it\n```"), "## Goal\n- ship it");
    let closed = "## Critical context\n```\nmake all\n```\n- done";
    assert_eq!(parsed(closed), closed);
}

#[test]
fn rendered_summary_parses_as_the_same() {
    let text = "## Goal\na\n\n## Constraints\n- b\n\n## Key decisions\n1. c\n\n\n2. d\n\n## Critical context\n`e`";
    let summary = Summary::parse(text);
    assert_eq!(Summary::parse(&summary.render()), summary);
    assert_eq!(summary.items(Section::Decisions), ["c", "d"]);
}

fn long() -> Summary {
    let lines = |what: &str, n: usize| {
        (0..n).map(|at| format!("- {what} number {at} is told here")).collect::<Vec<_>>().join("\n")
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
fn newest_progress_and_newest_values_are_kept() {
    let counter = Counter::ESTIMATE;
    let short = fit(&long(), &counter, 250);
    let text = short.render();
    assert!(counter.count_text(&text) <= 250, "{text}");
    assert!(text.contains("Build the parser") && text.contains("- test it"), "{text}");
    assert!(text.contains("- the last thing") && !text.contains("work number 0 "), "{text}");
    assert!(text.contains("decision number 19 ") && !text.contains("decision number 0 "), "{text}");
    assert!(text.contains("fact number 19 "), "{text}");
}

#[test]
fn oldest_lines_without_a_value_go_first() {
    let lines: Vec<String> = (0..40)
        .map(|at| match at {
            0 => "- the oldest line".to_owned(),
            3 => "- the staging port is 48213 there".to_owned(),
            at => format!("- words without any value {}", "x".repeat(at % 5 + 1)),
        })
        .collect();
    let text = format!("## Goal\nx\n## Critical context\n{}\n- the newest line", lines.join("\n"));
    let short = fit(&Summary::parse(&text), &Counter::ESTIMATE, 100).render();
    assert!(short.contains("48213") && short.contains("the newest line"), "{short}");
    assert!(!short.contains("the oldest line"), "{short}");
}

#[test]
fn rule_is_kept_whole_or_left_out() {
    let rules = [
        "Retries of any upload must stop after 7 attempts, and then the user is asked.",
        "Answers are short, and they are written without lists and without headings.",
        "Nothing that this crate exports is unsafe, and nothing that it calls is.",
    ];
    let text = format!("## Goal\nx\n## Critical context\n- {}", rules.join("\n- "));
    let counter = Counter::ESTIMATE;
    let whole = Summary::parse(&text);
    for target in 40..u64::from(counter.count_text(&whole.render())) {
        let short = fit(&whole, &counter, target).render();
        let mut lines = short.lines().filter_map(|line| line.strip_prefix("- "));
        assert!(lines.all(|line| rules.contains(&line)), "{target}: {short}");
    }
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
