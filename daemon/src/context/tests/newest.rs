//! The first law of a context: what is being answered is whole whenever it fits.

use super::*;

/// Returns lines of at most `n_tokens` tokens.
fn words(n_tokens: u64) -> String {
    let line = |n: u64| format!("line {n} of text that matters\n");
    let each = u64::from(Counter::ESTIMATE.count_text(&line(1000)));
    (0..n_tokens / each).map(line).collect()
}

/// Records exchanges of `tokens` tokens together.
fn history(session: &mut Session, tokens: u64) {
    let mut n = 0;
    let sum =
        |session: &Session| -> u64 { session.path.iter().map(|item| u64::from(item.tokens)).sum() };
    while sum(session) + 120 < tokens {
        session.say(Role::User, &format!("question {n}: {}", words(40)));
        session.say(Role::Assistant, &format!("answer {n}: {}", words(60)));
        n += 1;
    }
}

/// The part of the newest unit that is large.
#[derive(Clone, Copy, Debug)]
enum Large {
    Message,
    ToolResult,
}

/// Returns the newest records, the large one with `percent` of the prompt limit.
fn ask(session: &mut Session, large: Large, tokens: u64) -> String {
    let text = format!("BEGIN\n{}END", words(tokens));
    match large {
        Large::Message => {
            session.say(Role::User, &text);
        }
        Large::ToolResult => {
            session.say(Role::User, "What does the file say?");
            session.call("", &["1"]);
            session.ran("1", &text);
        }
    }
    text
}

#[test]
fn newest_unit_is_whole_whenever_it_fits() {
    let mut cut = Vec::new();
    for size in [4096, 8192, 16_384] {
        let limit = prompt_limit(size, 0);
        for filled in [30, 60, 78] {
            for percent in [30, 60, 85] {
                for large in [Large::Message, Large::ToolResult] {
                    let mut session = Session::default();
                    history(&mut session, limit * filled / 100);
                    session.build_auto(size);
                    let text = ask(&mut session, large, limit * percent / 100);
                    let built = session.build_auto(size);
                    check_laws_without_markers(&built);
                    if !all_text(&built).contains(&text) {
                        cut.push((size, filled, percent, large));
                    }
                    assert!(built.result.cut.is_empty() == all_text(&built).contains(&text));
                }
            }
        }
    }
    assert!(cut.is_empty(), "{} were cut: {cut:?}", cut.len());
}

#[test]
fn small_window_shows_task_files_and_last_message_beside_a_large_result() {
    let mut session = Session::default();
    session.say(Role::User, "TASK: port the parser");
    session.call("", &["1"]);
    session.ran("1", "a file");
    session.say(Role::Assistant, "done");
    history(&mut session, 3000);
    session.say(Role::User, "BEFORE: use the new lexer");
    session.say(Role::Assistant, &words(60));
    let limit = prompt_limit(2048, 0);
    let text = ask(&mut session, Large::ToolResult, limit * 60 / 100);
    let built = session.build_auto(2048);
    let shown = all_text(&built);
    assert!(shown.contains(&text) && built.result.cut.is_empty());
    for older in ["TASK: port", "BEFORE: use", "read: a.rs"] {
        assert!(shown.contains(older), "{older}: {shown}");
    }
    assert!(built.result.context_tokens * 100 <= limit * 95, "{}", built.result.context_tokens);
}

#[test]
fn earlier_message_with_a_pasted_text_keeps_its_ends_only() {
    let mut session = Session::default();
    session.say(Role::User, "the task");
    session.say(Role::Assistant, "done");
    history(&mut session, 6000);
    session.say(Role::User, &format!("ASKED about this:\n{}\nWHY?", words(600)));
    session.say(Role::Assistant, &words(600));
    session.say(Role::User, "and then?");
    session.say(Role::Assistant, &words(500));
    ask(&mut session, Large::ToolResult, 3000);
    let built = session.build_auto(8192);
    let first = &built.result.messages[1].content;
    let (_, earlier) = first.split_once("<earlier_requests>").expect("a block");
    let (_, pasted) = earlier.split_once("- ASKED about this:").expect("is quoted");
    let (pasted, _) = pasted.split_once("WHY?").expect("has its end");
    assert!(pasted.contains(" lines not shown ...]"), "{pasted}");
    assert!(Counter::ESTIMATE.count_text(pasted) <= 96, "{pasted}");
}

#[test]
fn newest_unit_that_does_not_fit_keeps_its_ends_and_says_so() {
    for large in [Large::Message, Large::ToolResult] {
        let mut session = Session::default();
        history(&mut session, 2000);
        let text = ask(&mut session, large, 5000);
        let built = session.build_auto(4096);
        let shown = all_text(&built);
        assert!(!shown.contains(&text) && shown.contains("BEGIN\nline 0 of"), "{large:?}");
        assert!(shown.contains("matters\nEND") && shown.contains(" lines not shown ...]"));
        let [cut] = built.result.cut.as_slice() else { panic!("{:?}", built.result.cut) };
        assert_eq!(cut.seq, session.path[session.path.len() - 2].seq);
        let total = u64::from(session.path[session.path.len() - 2].tokens);
        assert_eq!(cut.total_tokens, total);
        let limit = built.result.prompt_limit;
        assert!(cut.shown_tokens * 100 > limit * 75, "{} of {limit}", cut.shown_tokens);
        let next = session.build(4096);
        assert_eq!(next.result.cut, built.result.cut, "as long as it is being answered");
        session.say(Role::Assistant, "done");
        session.say(Role::User, "thanks");
        assert!(session.build(4096).result.cut.is_empty(), "it is no longer the newest unit");
    }
}

#[test]
fn long_turn_keeps_its_question_and_its_newest_results() {
    let mut session = Session::default();
    history(&mut session, 3000);
    let question = format!("the question {}", words(200));
    session.say(Role::User, &question);
    for n in 0..12 {
        session.call("", &["1"]);
        session.ran("1", &format!("result {n}: {}", words(500)));
        let built = session.build_auto(4096);
        let shown = all_text(&built);
        assert!(
            shown.contains(&question) && shown.contains(&format!("result {n}: {}", words(500)))
        );
        assert!(built.result.context_tokens <= built.result.prompt_limit);
    }
    let built = session.build(4096);
    assert!(all_text(&built).contains("messages not shown ...]"));
}

#[test]
fn window_that_grew_opens_an_epoch_planned_from_the_log() {
    let mut session = Session::default();
    history(&mut session, 3000);
    let small = session.build_auto(2048).result.context_tokens;
    let grown = session.build_auto(8192);
    assert_eq!(grown.new_epoch.expect("a new one").cause, "window");
    assert!(grown.result.context_tokens > 2 * small, "{}", grown.result.context_tokens);
    assert!(grown.result.omitted.is_empty(), "the whole history fits");
    assert!(session.build_auto(8192).new_epoch.is_none());
    let back = session.build_auto(2048);
    assert!(back.new_epoch.is_some() && back.result.context_tokens <= back.result.prompt_limit);
}

#[test]
fn shortened_history_is_explained_and_earlier_questions_are_marked() {
    let mut session = Session::default();
    session.say(Role::User, "the task");
    session.say(Role::Assistant, "done");
    history(&mut session, 3000);
    session.say(Role::User, "a question that was canceled");
    for _ in 0..3 {
        session.say(Role::User, "go on with it");
        session.say(Role::Assistant, "done");
    }
    history(&mut session, 5000);
    session.say(Role::User, "the newest question");
    let built = session.build_auto(4096);
    let messages = &built.result.messages;
    assert!(messages[0].content.starts_with("You are helpful.\n\nOlder parts of this conv"));
    assert!(messages[0].content.ends_with("Answer only the newest message."));
    let first = &messages[1].content;
    assert!(first.contains("<earlier_requests>\n- the task\n"), "{first}");
    assert!(first.contains("- [not answered] a question that was canceled\n"), "{first}");
    assert_eq!(first.matches("- go on with it\n").count(), 1, "{first}");
    assert!(first.contains("</earlier_requests>\n\n--- the conversation goes on here ---"));
    assert!(messages.last().is_some_and(|last| last.content.ends_with("the newest question")));
    let all = all_text(&built);
    assert!(!all.contains("session.get") && !all.contains("[#"), "{all}");

    let mut short = Session::default();
    short.say(Role::User, "hello");
    assert_eq!(short.build_auto(4096).result.messages[0].content, "You are helpful.");
}

#[test]
fn without_a_system_message_the_explanation_of_the_notes_stands_before_them() {
    let mut session = Session::default();
    session.say(Role::User, "the task");
    session.say(Role::Assistant, "done");
    history(&mut session, 6000);
    session.say(Role::User, "the newest question");
    let mut input = session.input(4096);
    input.system_prompt = None;
    let built = build(&input, &session).expect("builds");
    let first = &built.result.messages[0];
    // A system message would replace the one that the model comes with.
    assert_eq!(first.role, Role::User);
    assert!(first.content.starts_with("<notice>\nOlder parts of this conv"), "{}", first.content);
    let notes = &first.content;
    assert!(notes.contains("</notice>\n\n<") && notes.contains("\n- the task\n"), "{notes}");
    check_laws_without_markers(&built);
    let epoch = built.new_epoch.expect("a new one");
    let seq = session.push(RecordBody::Epoch(epoch.clone()));
    session.epoch = Some((seq, epoch));
    let mut input = session.input(4096);
    input.system_prompt = None;
    let again = build(&input, &session).expect("builds");
    assert_eq!(again.result.messages, built.result.messages);
}

fn check_laws_without_markers(built: &Built) {
    let result = &built.result;
    assert!(result.context_tokens <= result.prompt_limit);
    assert!(
        result.context_tokens + u64::from(result.answer_limit) < u64::from(result.context_size)
    );
    check_turns(&result.messages);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn newest_unit_of_any_shape_is_whole_whenever_it_fits(
        ops in ops(), size in 2048..40_000_u32, results in prop::collection::vec(0..6000_usize, 0..5),
        message in 0..9000_usize, parallel in any::<bool>(),
    ) {
        let mut session = Session::default();
        ops.iter().for_each(|op| apply(&mut session, op));
        session.build_auto(size);
        let text = |n: usize, size: usize| format!("<<{n}>>{}", "some words\n".repeat(size / 11));
        session.say(Role::User, &text(9, message));
        let ids: Vec<String> = (0..results.len()).map(|n| n.to_string()).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        if parallel && !ids.is_empty() {
            session.call("", &ids);
        }
        for (n, size) in results.iter().enumerate() {
            if !parallel {
                session.call("", &[ids[n]]);
            }
            session.ran(ids[n], &text(n, *size));
        }
        let mut alone = Session::default();
        let first = session.path.iter().rposition(PathItem::is_user_message).expect("a message");
        for item in &session.path[first..] {
            alone.push(session.bodies[&item.seq].clone());
        }
        let limit = prompt_limit(size, 0);
        let mut input = alone.input(262_144);
        input.system_prompt = None;
        let unit = build(&input, &alone).expect("fits").result.context_tokens;
        let system = session.build(size).result.budget.system_prompt_tokens;
        let built = session.build_auto(size);
        check_laws_without_markers(&built);
        let shown = all_text(&built);
        let is_whole = shown.contains(&text(9, message))
            && results.iter().enumerate().all(|(n, size)| shown.contains(&text(n, *size)));
        prop_assert_eq!(is_whole, built.result.cut.is_empty());
        if unit + system + limit.div_ceil(10) + 120 <= limit {
            prop_assert!(is_whole, "{} of {} tokens", unit, limit);
        }
        let again = session.build(size);
        prop_assert_eq!(again.result.messages, built.result.messages);
    }
}
