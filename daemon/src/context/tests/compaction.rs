//! Repeated compactions, with a summarizer that fills its share.

use ollm_protocol::content::{Compaction, CompactionMethod};

use super::*;

/// The default of `compression.threshold`.
const THRESHOLD: f64 = 0.8;

impl Session {
    fn input_with_checkpoints(&self, size: u32) -> BuildInput<'_> {
        BuildInput { checkpoints: &self.checkpoints, ..self.input(size) }
    }

    /// Replaces all checkpoints and the next range by one checkpoint that fills its share.
    fn compact(&mut self, size: u32) -> Option<(Built, u64)> {
        let input = self.input_with_checkpoints(size);
        let before = build(&input, self).expect("builds").result.context_tokens;
        let cut = compaction_cut(&input, self, 1024, 4096).expect("can be planned")?;
        let words = usize::try_from(cut.target_tokens).expect("small") * 3 / 4;
        let from = self.checkpoints.first().map_or(cut.from, |first| first.from);
        let tokens = (cut.tokens, cut.target_tokens);
        let checkpoint = Checkpoint {
            id: CheckpointId::from_uuid(uuid::Uuid::from_u128(self.path.len() as u128)),
            ..checkpoint((from, cut.to), "word ".repeat(words), tokens)
        };
        let checkpoints = vec![checkpoint];
        let input = BuildInput { checkpoints: &checkpoints, ..self.input(size) };
        let built = with_checkpoints(&input, self).expect("can be built")?;
        let epoch = built.new_epoch.clone().expect("is a new one");
        self.checkpoints.clone_from(&checkpoints);
        let body = RecordBody::Compaction(Compaction {
            from: Some(cut.from),
            to: Some(cut.to),
            summary: String::new(),
            tokens_before: before,
            tokens_after: Some(built.result.context_tokens),
            tokenizer: "estimate-v1".to_owned(),
            epoch: Some(epoch.clone()),
            checkpoints,
            method: Some(CompactionMethod::Summarized),
            model: None,
            retention: None,
            asked: Vec::new(),
        });
        let seq = self.push(body);
        self.epoch = Some((seq, epoch));
        Some((built, before))
    }
}

/// Records the n-th turn: a question, a tool call in every third turn, and an answer.
fn turn(session: &mut Session, n: usize) {
    session.say(Role::User, &format!("«q{n}» please do {}", "this and that ".repeat(n % 17)));
    if n.is_multiple_of(3) {
        let id = format!("c{n}");
        session.call("I look.", &[&id]);
        session.tool(&id, &format!("line of output {n}\n").repeat(n % 90));
    }
    session.say(Role::Assistant, &format!("«a{n}» {}", "done so ".repeat(n % 43)));
}

#[test]
fn conversation_is_compacted_any_number_of_times() {
    for size in [2048, 4096, 8192, 32_768] {
        let mut session = Session::default();
        let mut n_compactions = 0;
        let mut last_compacted = 0;
        for n in 0..600 {
            turn(&mut session, n);
            let built =
                build(&session.input_with_checkpoints(size), &session).expect("always builds");
            check_turns(&built.result.messages);
            assert!(built.result.context_tokens <= built.result.prompt_limit);
            if !needs_compaction(&built, THRESHOLD) {
                continue;
            }
            let (after, before) = session.compact(size).expect("can be compacted");
            n_compactions += 1;
            assert!(n - last_compacted > 1, "compacted again after {} turns", n - last_compacted);
            last_compacted = n;
            let result = &after.result;
            assert!(
                result.context_tokens < before,
                "{} of {before} at {size}",
                result.context_tokens
            );
            assert!(!needs_compaction(&after, THRESHOLD));
            check_turns(&result.messages);
            let again = build(&session.input_with_checkpoints(size), &session).expect("builds");
            assert_eq!(again.result.messages, result.messages);
            assert!(again.new_epoch.is_none());
            let all = flat(&result.messages);
            assert!(all.contains("«q0»"), "the task is lost at {size}");
            assert!(all.contains(&format!("«q{n}»")) && all.contains(&format!("«a{n}»")));
            assert!(all.contains(&format!("«q{}»", n - 1)), "what the user said is lost");
            assert_eq!(result.strategy, "checkpointed");
            assert!(result.summarized_message_count > 0);
            assert!(result.budget.checkpoint_tokens > 0);
        }
        assert!(n_compactions > 0, "{n_compactions} at {size}");
    }
}

#[test]
fn task_is_quoted_unless_a_line_of_the_notes_is_the_task() {
    let task = "Write a parser\nfor the logs.";
    let mut session = Session::default();
    let from = session.say(Role::User, task);
    let mut to = from;
    for n in 0..60 {
        to = session.say(Role::Assistant, &format!("Part {n} is done. {}", "so ".repeat(60)));
        session.say(Role::User, &format!("Now part {}.", n + 1));
    }
    for (goal, is_quoted) in [
        ("Write a parser for the logs.", false),
        ("- Write a parser for the logs.", false),
        ("- Write a parser for the logs. Then a lexer.", true),
        ("- a parser", true),
    ] {
        let summary = format!("## Goal\n{goal}\n## Progress\n- begun");
        let checkpoints = [checkpoint((from, to), summary, (4000, 20))];
        let input = BuildInput { checkpoints: &checkpoints, ..session.input(4096) };
        let built = with_checkpoints(&input, &session).expect("can be built").expect("fits");
        let text = flat(&built.result.messages);
        let quote = "<earlier_requests>\n- Write a parser\nfor the logs.";
        assert_eq!(text.contains(quote), is_quoted, "{goal}: {text}");
    }
}

#[test]
fn pruning_shortens_old_results() {
    let mut session = Session::default();
    session.say(Role::User, "«q» read them all");
    for n in 0..6 {
        let id = format!("c{n}");
        session.call("I read.", &[&id]);
        session.tool(&id, &format!("file {n}\n").repeat(200));
    }
    session.say(Role::Assistant, "read");
    let pruned =
        prune(&session.input_with_checkpoints(4096), &session).expect("works").expect("makes room");
    let result = &pruned.result;
    assert_eq!(result.strategy, "pruned-tools");
    check_turns(&result.messages);
    // All calls read the same file, so all but the newest are superseded.
    let tools: Vec<&str> = result
        .messages
        .iter()
        .filter(|message| message.role == Role::Tool)
        .map(|message| message.content.as_str())
        .collect();
    assert_eq!(tools[0], "[read again below]");
    assert!(tools[5].starts_with("file 5") && tools[5].len() > 1000);
    assert!(result.omitted.iter().any(|item| item.reason == "cut"));
}

#[test]
fn single_message_is_not_compacted() {
    let mut session = Session::default();
    session.say(Role::User, &"one long message ".repeat(3000));
    assert_eq!(
        compaction_cut(&session.input_with_checkpoints(2048), &session, 1024, 4096).expect("works"),
        None
    );
    assert!(prune(&session.input_with_checkpoints(2048), &session).expect("works").is_none());
}

/// Returns the cause of the epoch that a changed input opens, and the system message of the build.
fn cause<'s>(
    session: &'s Session,
    change: impl FnOnce(&mut BuildInput<'s>),
) -> (Option<String>, String) {
    let mut input = session.input(4096);
    change(&mut input);
    let built = build(&input, session).expect("builds");
    (built.new_epoch.map(|epoch| epoch.cause), built.result.messages[0].content.clone())
}

#[test]
fn changed_front_opens_an_epoch_and_new_entry_does_not() {
    let entries = [("a".to_owned(), "1".to_owned()), ("b".to_owned(), "2".to_owned())];
    let mut session = Session::default();
    session.say(Role::User, "hello");
    let first = session.build_auto(4096);
    assert_eq!(first.new_epoch.map(|epoch| epoch.cause).as_deref(), Some("start"));
    session.say(Role::Assistant, "hi");
    let (opened, system) = cause(&session, |_| {});
    assert_eq!((opened, system.as_str()), (None, "You are helpful."));
    let (opened, system) = cause(&session, |input| input.system_prompt = Some("Be brief."));
    assert_eq!((opened.as_deref(), system.as_str()), (Some("systemPrompt"), "Be brief."));
    let (opened, _) = cause(&session, |input| input.model = Some("other"));
    assert_eq!(opened.as_deref(), Some("model"));
    let (opened, system) = cause(&session, |input| {
        input.additions = "A and B";
        input.entries = &entries;
    });
    assert_eq!((opened, system.as_str()), (None, "You are helpful."), "it is sent as a delta");
    let opened = cause(&session, |input| input.sent_entries = &entries).0;
    assert_eq!(opened.as_deref(), Some("entries"), "a removed entry was sent");
}

#[test]
fn window_that_grows_back_shows_the_whole_history_again_if_that_leaves_room() {
    for (history, is_whole) in [(4000, true), (4700, true), (9000, false)] {
        let mut session = Session::default();
        let tokens = |session: &Session| -> u64 {
            session.path.iter().map(|item| u64::from(item.tokens)).sum()
        };
        let mut n = 0;
        while tokens(&session) < history {
            turn(&mut session, n);
            n += 1;
        }
        session.compact(2048).expect("is worth a summary");
        let small = build(&session.input_with_checkpoints(2048), &session).expect("builds");
        assert!(!small.result.omitted.is_empty());
        let grown = build(&session.input_with_checkpoints(8192), &session).expect("builds");
        let epoch = grown.new_epoch.expect("a new one");
        assert_eq!(epoch.cause, "window");
        assert_eq!(epoch.strategy == "full-history", is_whole, "{history}");
        assert_eq!(grown.result.omitted.is_empty(), is_whole, "{history}");
        assert!(!needs_compaction(
            &build(&session.input_with_checkpoints(8192), &session).expect("builds"),
            THRESHOLD * 0.9
        ));
    }
}
