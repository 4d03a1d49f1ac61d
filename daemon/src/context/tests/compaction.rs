//! Compactions in a row, with a summarizer that says as much as it may.

use ollm_protocol::CheckpointId;
use ollm_protocol::content::{Checkpoint, Compaction, CompactionMethod};

use super::*;
use crate::context::{compaction_cut, needs_compaction, prune, with_checkpoints};

/// Of `compression.threshold`.
const THRESHOLD: f64 = 0.8;

impl Session {
    fn growing(&self, size: u32) -> BuildInput<'_> {
        BuildInput { checkpoints: &self.checkpoints, ..self.input(size) }
    }

    /// Replaces all checkpoints and the next range by one that says `word` until its share is full.
    fn compact(&mut self, size: u32) -> Option<(Built, u64)> {
        let input = self.growing(size);
        let before = build(&input, self).expect("builds").result.tokens_used;
        let cut = compaction_cut(&input, 1024, 4096).expect("can be planned")?;
        let words = usize::try_from(cut.target_tokens).expect("small") * 3 / 4;
        let checkpoint = Checkpoint {
            id: CheckpointId::from_uuid(uuid::Uuid::from_u128(self.path.len() as u128)),
            level: 3,
            from: self.checkpoints.first().map_or(cut.from, |first| first.from),
            to: cut.to,
            summary: "word ".repeat(words),
            created_at: at(),
            compressed_at: None,
            original_tokens: cut.tokens,
            current_tokens: cut.target_tokens,
            compression_count: 1,
            key_decisions: Vec::new(),
            files_modified: Vec::new(),
            files_read: Vec::new(),
            next_steps: Vec::new(),
            sources: Vec::new(),
            provisional: false,
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
            tokens_after: Some(built.result.tokens_used),
            tokenizer: "estimate-v1".to_owned(),
            epoch: Some(epoch.clone()),
            checkpoints,
            method: Some(CompactionMethod::Summarized),
            model: None,
            retention: None,
        });
        let seq = self.push(body);
        self.epoch = Some((seq, epoch));
        Some((built, before))
    }
}

/// Says something like what is said to an agent, by number.
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
fn a_conversation_is_compacted_for_ever() {
    for size in [2048, 4096, 8192, 32_768] {
        let mut session = Session::default();
        let mut n_compactions = 0;
        let mut last_compacted = 0;
        for n in 0..600 {
            turn(&mut session, n);
            let built = build(&session.growing(size), &session).expect("always builds");
            check_turns(&built.result.messages);
            assert!(built.result.tokens_used <= built.result.token_budget);
            if !needs_compaction(&built, THRESHOLD) {
                continue;
            }
            let (after, before) = session.compact(size).expect("can be compacted");
            n_compactions += 1;
            assert!(n - last_compacted > 1, "compacted again after {} turns", n - last_compacted);
            last_compacted = n;
            let result = &after.result;
            assert!(result.tokens_used < before, "{} of {before} at {size}", result.tokens_used);
            assert!(!needs_compaction(&after, THRESHOLD));
            check_turns(&result.messages);
            let again = build(&session.growing(size), &session).expect("builds");
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
fn old_results_make_room_before_anything_is_summarized() {
    let mut session = Session::default();
    session.say(Role::User, "«q» read them all");
    for n in 0..6 {
        let id = format!("c{n}");
        session.call("I read.", &[&id]);
        session.tool(&id, &format!("file {n}\n").repeat(200));
    }
    session.say(Role::Assistant, "read");
    let pruned = prune(&session.growing(4096), &session).expect("works").expect("makes room");
    let result = &pruned.result;
    assert_eq!(result.strategy, "pruned-tools");
    check_turns(&result.messages);
    // The tool is given one and the same file, so all but the newest read are superseded.
    let tools: Vec<&str> = result
        .messages
        .iter()
        .filter(|message| message.role == Role::Tool)
        .map(|message| message.content.as_str())
        .collect();
    assert_eq!(tools[0], "[superseded: see #25]");
    assert!(tools[5].starts_with("file 5") && tools[5].len() > 1000);
    assert!(result.omitted.iter().any(|item| item.reason == "cut"));
}

#[test]
fn what_cannot_be_cut_is_not_compacted() {
    let mut session = Session::default();
    session.say(Role::User, &"one long message ".repeat(3000));
    assert_eq!(compaction_cut(&session.growing(2048), 1024, 4096).expect("works"), None);
    assert!(prune(&session.growing(2048), &session).expect("works").is_none());
}

/// Why a changed build opens an epoch, and its system message.
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
fn a_changed_front_opens_an_epoch_and_a_new_entry_does_not() {
    let entries = [("a".to_owned(), "1".to_owned()), ("b".to_owned(), "2".to_owned())];
    let mut session = Session::default();
    session.say(Role::User, "hello");
    let first = session.build_auto(4096);
    assert_eq!(first.new_epoch.map(|epoch| epoch.cause).as_deref(), Some("start"));
    session.say(Role::Assistant, "hi");
    let (told, system) = cause(&session, |_| {});
    assert_eq!((told, system.as_str()), (None, "You are helpful."));
    let (told, system) = cause(&session, |input| input.system_prompt = Some("Be brief."));
    assert_eq!((told.as_deref(), system.as_str()), (Some("systemPrompt"), "Be brief."));
    let (told, _) = cause(&session, |input| input.model = Some("other"));
    assert_eq!(told.as_deref(), Some("model"));
    let (told, system) = cause(&session, |input| {
        input.additions = "A and B";
        input.entries = &entries;
    });
    assert_eq!((told, system.as_str()), (None, "You are helpful."), "it is told as a delta");
    let told = cause(&session, |input| input.told_entries = &entries).0;
    assert_eq!(told.as_deref(), Some("entries"), "what is gone cannot be untold");
}
