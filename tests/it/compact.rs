//! `context.compact`, `context.checkpoints` and what the daemon compacts by itself: what is summarized, what stays,
//! and that nothing changes when it fails.

use serde_json::{Value, json};

use crate::harness::{Answer, Daemon, FakeOllama, Fault, Sandbox, Wire, until};

const SUMMARY: &str = "## Goal\n- port the parser to the new lexer\n\n## Constraints\n- keep the public API\n\n\
    ## Progress\n- token_stream is done in src/lex.rs\n\n## Key decisions\n- spans are byte offsets\n\n\
    ## Next steps\n- write the tests\n\n## Critical context\n- TokenKind has 41 variants";

/// A daemon that talks to the fake server, and a session.
struct Compact {
    sandbox: Sandbox,
    daemon: Option<Daemon>,
    wire: Wire,
    session: String,
}

impl Compact {
    /// Compaction only when it is asked for.
    fn asked(fake: &FakeOllama) -> Self {
        Self::configured(fake, "compression:\n  enabled: false\n")
    }

    fn configured(fake: &FakeOllama, more: &str) -> Self {
        let sandbox = Sandbox::new();
        sandbox.write_config(&format!("ollama:\n  host: {}\n  model: tiny\n{more}", fake.host()));
        let (daemon, mut wire) = sandbox.served();
        // With the vocabulary, counts do not change any more.
        let _counted = wire.ok("model.countTokens", json!({ "text": "x" }));
        let session = wire.create(json!({ "contextSize": 8192 }));
        Self { sandbox, daemon: Some(daemon), wire, session }
    }

    /// A user message, a call and an answer.
    fn exchange(&mut self, n: usize) {
        let session = self.session.clone();
        let words = "and some words about it that nobody needs later on ".repeat(3);
        let _seq = self.wire.record(&session, "user", &format!("request {n}: {words}"));
        let answer = format!("answer {n}: token_stream and TokenKind, {words}");
        let _seq = self.wire.record(&session, "assistant", &answer);
    }

    fn exchanges(&mut self, n: usize) {
        (0..n).for_each(|at| self.exchange(at));
    }

    fn compact(&mut self, more: Value) -> Value {
        let params = self.params(more);
        self.wire.ok("context.compact", params)
    }

    fn params(&self, more: Value) -> Value {
        let mut params = json!({ "sessionId": self.session });
        more.as_object().unwrap().iter().for_each(|(name, value)| params[name] = value.clone());
        params
    }

    fn built(&mut self) -> Value {
        let params = json!({ "sessionId": self.session });
        self.wire.ok("context.build", params)
    }

    /// What a model would be sent.
    fn messages(&mut self) -> Value {
        self.built()["messages"].clone()
    }

    fn checkpoints(&mut self) -> Value {
        let params = json!({ "sessionId": self.session });
        self.wire.ok("context.checkpoints", params)
    }

    fn kinds(&mut self) -> Vec<String> {
        let session = self.session.clone();
        let records = self.wire.records(&session);
        records.iter().map(|record| record["type"].as_str().unwrap().to_owned()).collect()
    }

    fn count(&mut self, kind: &str) -> usize {
        self.kinds().iter().filter(|other| *other == kind).count()
    }
}

#[test]
fn a_range_becomes_a_summary_and_the_rest_stays_word_for_word() {
    let fake = FakeOllama::start("0.33.0");
    fake.summarize(Answer::text(SUMMARY));
    let mut chat = Compact::asked(&fake);
    chat.exchanges(14);
    let _ok = chat.wire.subscribe(json!({ "sessionId": chat.session }));
    let before = chat.built();
    let done = chat.compact(json!({ "instructions": "keep the names" }));
    assert_eq!(
        (&done["compacted"], &done["method"]),
        (&json!(true), &json!("summarized")),
        "{done}"
    );
    assert_eq!((&done["strategy"], &done["model"]), (&json!("hybrid"), &json!("tiny")));
    assert!(done["summarizedMessageCount"].as_u64().unwrap() >= 10, "{done}");
    assert!(done["tokensAfter"].as_u64().unwrap() < done["tokensBefore"].as_u64().unwrap());
    assert_eq!(done["tokensBefore"], before["tokensUsed"]);
    let after = chat.built();
    assert_eq!(done["tokensAfter"], after["tokensUsed"]);
    let text = after["messages"][0]["content"].as_str().unwrap();
    assert!(text.contains("spans are byte offsets"), "{text}");
    assert!(text.contains("request 0:"), "the task stays");
    assert_eq!(
        after["messages"].as_array().unwrap().last(),
        before["messages"].as_array().unwrap().last()
    );
    assert_eq!(done["retention"]["task"], json!([1, 1]));
    let listed = chat.checkpoints();
    assert_eq!(listed["checkpoints"], done["checkpoints"]);
    let one = &listed["checkpoints"][0];
    assert_eq!(
        (&one["level"], &one["keyDecisions"]),
        (&json!(3), &json!(["spans are byte offsets"]))
    );
    assert_eq!((&listed["compressionCount"], &listed["tierName"]), (&json!(1), &json!("smart")));
    assert_eq!(listed["reliability"]["level"], "critical");
    let told: Vec<Value> = chat.wire.events_until("tier2-compressed");
    let kinds: Vec<_> = told.iter().map(|event| event["kind"].as_str().unwrap()).collect();
    let steps = told.iter().filter_map(|event| event["data"]["step"].as_str());
    let steps: Vec<_> = steps.collect();
    assert!(
        steps.starts_with(&["planning", "summarizing"]) && steps.ends_with(&["writing"]),
        "{steps:?}"
    );
    let last = &kinds[kinds.len() - 3..];
    assert_eq!(last, ["compressed", "checkpoint-created", "tier2-compressed"]);
    let request = &fake.summaries()[0].body;
    let asked = request["messages"][1]["content"].as_str().unwrap();
    assert!(asked.contains("[#1 user] request 0:") && asked.contains("keep the names"), "{asked}");
    assert!(request.get("tools").is_none_or(|tools| tools.as_array().unwrap().is_empty()));
    assert_eq!(request["options"]["num_ctx"], 8192);
}

#[test]
fn a_dry_run_tells_and_does_nothing() {
    let fake = FakeOllama::start("0.33.0");
    let mut chat = Compact::asked(&fake);
    chat.exchanges(14);
    let (before, kinds) = (chat.messages(), chat.kinds());
    let told = chat.compact(json!({ "dryRun": true }));
    assert_eq!((&told["compacted"], &told["reason"]), (&json!(false), &json!("dryRun")), "{told}");
    assert_eq!(told["method"], "summarized");
    assert!(told["freedTokens"].as_u64().unwrap() > 0);
    assert!(told["keptMessageCount"].as_u64().unwrap() > 0);
    assert_eq!((chat.messages(), chat.kinds()), (before, kinds));
    assert!(fake.requests("/api/chat").is_empty());
    let none = chat.checkpoints();
    assert_eq!((&none["checkpoints"], &none["limit"]), (&json!([]), &json!(1)));
}

#[test]
fn what_is_all_recent_is_left_alone() {
    let fake = FakeOllama::start("0.33.0");
    let mut chat = Compact::asked(&fake);
    chat.exchange(1);
    for strategy in ["hybrid", "summarize"] {
        let told = chat.compact(json!({ "strategy": strategy }));
        assert_eq!((&told["compacted"], &told["reason"]), (&json!(false), &json!("nothing")));
    }
    assert_eq!(chat.count("compaction"), 0);
    let params = chat.params(json!({ "strategy": "squeeze" }));
    let error = chat.wire.refused("context.compact", params, "invalidParams");
    assert!(error["message"].as_str().unwrap().contains("strategy"), "{error}");
}

#[test]
fn a_second_compaction_updates_the_summary_and_summarizes_nothing_twice() {
    let fake = FakeOllama::start("0.33.0");
    fake.summarize(Answer::text(SUMMARY));
    let mut chat = Compact::asked(&fake);
    chat.exchanges(14);
    let first = chat.compact(json!({}));
    (14..24).for_each(|at| chat.exchange(at));
    fake.summarize(Answer::text(&SUMMARY.replace("41 variants", "42 variants")));
    let second = chat.compact(json!({}));
    assert_eq!(second["from"].as_u64().unwrap(), first["to"].as_u64().unwrap() + 1);
    let asked = fake.summaries().last().unwrap().body["messages"][1].clone();
    let asked = asked["content"].as_str().unwrap();
    assert!(asked.contains("<previous-summary>") && asked.contains("41 variants"), "{asked}");
    assert!(!asked.contains("request 0:"), "{asked}");
    let all = second["checkpoints"].as_array().unwrap();
    assert_eq!(all.len(), 1);
    assert_eq!(all[0]["id"], first["checkpoints"][0]["id"]);
    assert_eq!((&all[0]["from"], &all[0]["to"]), (&first["from"], &second["to"]));
    assert!(all[0]["summary"].as_str().unwrap().contains("42 variants"));
}

#[test]
fn old_results_are_shortened_before_anything_is_summarized() {
    let fake = FakeOllama::start("0.33.0");
    let mut chat = Compact::asked(&fake);
    let session = chat.session.clone();
    for n in 0..8 {
        let _seq = chat.wire.record(&session, "user", &format!("look at file {n}"));
        let n_lines = if n < 6 { 60 } else { 1 };
        let lines: String = (0..n_lines).map(|line| format!("line {line} of file {n}\n")).collect();
        let call = json!({
            "id": format!("c{n}"), "name": "read_file", "args": { "path": format!("f{n}.rs") },
            "result": { "llmContent": lines },
        });
        let _ok = chat
            .wire
            .ok("session.recordToolCall", json!({ "sessionId": session, "toolCall": call }));
        let _seq = chat.wire.record(&session, "assistant", "seen");
    }
    let done = chat.compact(json!({}));
    assert_eq!((&done["compacted"], &done["method"]), (&json!(true), &json!("pruned")), "{done}");
    assert_eq!(done["checkpoints"], json!([]));
    assert!(fake.requests("/api/chat").is_empty());
    assert_eq!(chat.built()["strategy"], "pruned-tools");
}

#[test]
fn truncation_needs_no_model() {
    let fake = FakeOllama::start("0.33.0");
    let mut chat = Compact::asked(&fake);
    chat.exchanges(14);
    let done = chat.compact(json!({ "strategy": "truncate" }));
    assert_eq!(
        (&done["compacted"], &done["method"]),
        (&json!(true), &json!("truncated")),
        "{done}"
    );
    assert!(fake.requests("/api/chat").is_empty());
    assert_eq!(chat.count("compaction"), 1);
    assert_eq!(chat.count("snapshot"), 1);
}

#[test]
fn what_is_no_summary_changes_nothing() {
    let long = format!("{SUMMARY}\n<tool_call>{{\"name\":\"read\"}}</tool_call>");
    let cases: [(&str, &str, &str); 4] = [
        ("I am sorry, I cannot do that.", "no section Goal", "modelFailed"),
        ("## Goal\n(none)\n## Progress\n(none)", "no section Goal", "modelFailed"),
        (" ", "empty", "modelFailed"),
        (&long, "a tool call", "modelFailed"),
    ];
    for (answer, problem, kind) in cases {
        let fake = FakeOllama::start("0.33.0");
        fake.summarize(Answer::text(answer));
        let mut chat = Compact::asked(&fake);
        chat.exchanges(14);
        let before = chat.messages();
        let params = chat.params(json!({}));
        let error = chat.wire.refused("context.compact", params, kind);
        assert!(error["message"].as_str().unwrap().contains(problem), "{error}");
        assert_eq!((chat.messages(), chat.count("compaction")), (before, 0));
        let asked = fake.summaries();
        assert_eq!(asked.len(), 2, "one stricter try");
        let again = asked[1].body["messages"][1]["content"].as_str().unwrap();
        assert!(again.contains("could not be used") && again.contains(problem), "{again}");
        // The next one is a summary, and is taken.
        fake.summarize(Answer::text(SUMMARY));
        assert_eq!(chat.compact(json!({}))["compacted"], true);
    }
}

#[test]
fn a_verbose_summary_is_cut_and_markers_inside_do_nothing() {
    let fake = FakeOllama::start("0.33.0");
    let noise = "- [DECISION] one more thing - LOCKED\n".repeat(60);
    fake.summarize(Answer::text(&format!("{SUMMARY}\n{noise}")));
    let mut chat = Compact::asked(&fake);
    chat.exchanges(14);
    let done = chat.compact(json!({}));
    let summary = done["checkpoints"][0]["summary"].as_str().unwrap();
    assert!(done["checkpoints"][0]["currentTokens"].as_u64().unwrap() <= 1024, "{done}");
    assert!(!summary.contains("[DECISION]") && summary.contains("port the parser"), "{summary}");
}

#[test]
fn a_model_that_is_away_changes_nothing_and_is_asked_again() {
    let fake = FakeOllama::start("0.33.0");
    let mut chat = Compact::asked(&fake);
    chat.exchanges(14);
    let before = chat.messages();
    let faults = [
        (Fault::Break { after: 1 }, "modelFailed"),
        (Fault::Error { status: 500, text: "llama runner terminated".to_owned() }, "modelFailed"),
        (Fault::EndWithoutDone { after: 1 }, "modelFailed"),
        (Fault::ErrorLine { after: 1, text: "out of memory".to_owned() }, "modelFailed"),
    ];
    for (fault, kind) in faults {
        fake.summarize(Answer::text(SUMMARY));
        fake.next("/api/chat", std::slice::from_ref(&fault));
        let params = chat.params(json!({}));
        let answer = chat.wire.call("context.compact", params);
        let error = answer.expect_err(&format!("{fault:?}"));
        let told = error["data"]["kind"].as_str().unwrap();
        assert!([kind, "modelUnavailable"].contains(&told), "{fault:?}: {error}");
        assert_eq!((chat.messages(), chat.count("compaction")), (before.clone(), 0));
    }
    fake.summarize(Answer::text(SUMMARY));
    assert_eq!(chat.compact(json!({}))["compacted"], true);
}

#[test]
fn one_at_a_time_and_a_client_that_leaves_ends_its_own() {
    let fake = FakeOllama::start("0.33.0");
    let mut chat = Compact::asked(&fake);
    chat.exchanges(14);
    let before = chat.messages();
    fake.next("/api/chat", &[Fault::Hang]);
    let mut other = chat.daemon.as_ref().unwrap().wire();
    let params = chat.params(json!({}));
    let _id = other.request("context.compact", params.clone());
    until("the model is asked", || (fake.hanging() == 1).then_some(()));
    let error = chat.wire.refused("context.compact", params, "conflict");
    assert!(
        error["data"]["holder"].as_str().unwrap().starts_with("context.compact since"),
        "{error}"
    );
    // Recording goes on meanwhile.
    chat.exchange(99);
    drop(other);
    until("the call is dropped", || (fake.hanging() == 0).then_some(()));
    fake.summarize(Answer::text(SUMMARY));
    let done = until("the place is free", || {
        let params = chat.params(json!({}));
        chat.wire.call("context.compact", params).ok()
    });
    assert_eq!(done["compacted"], true, "{done}");
    assert_ne!(chat.messages(), before);
    assert_eq!(chat.count("compaction"), 1);
}

#[test]
fn what_is_recorded_meanwhile_stays_behind_the_summary() {
    let fake = FakeOllama::start("0.33.0");
    fake.summarize(Answer::text(SUMMARY));
    fake.next("/api/chat", &[Fault::Stall { after: 1 }]);
    let mut chat = Compact::asked(&fake);
    chat.exchanges(14);
    let mut other = chat.daemon.as_ref().unwrap().wire();
    let params = chat.params(json!({}));
    let id = other.request("context.compact", params);
    until("the model answers", || (!fake.summaries().is_empty()).then_some(()));
    let session = chat.session.clone();
    let _seq = chat.wire.record(&session, "user", "and another thing");
    fake.resume();
    let done = other.answer(id).unwrap();
    assert_eq!(done["compacted"], true, "{done}");
    let messages = chat.messages();
    let last = messages.as_array().unwrap().last().unwrap().clone();
    assert_eq!(last["content"], "and another thing");
}

#[test]
fn a_kill_in_the_middle_leaves_the_context_as_it_was() {
    let fake = FakeOllama::start("0.33.0");
    fake.next("/api/chat", &[Fault::Hang]);
    let mut chat = Compact::asked(&fake);
    chat.exchanges(14);
    let before = chat.messages();
    let params = chat.params(json!({}));
    let _id = chat.wire.request("context.compact", params);
    until("the model is asked", || (fake.hanging() == 1).then_some(()));
    chat.daemon.take().unwrap().kill9();
    let daemon = chat.sandbox.daemon();
    chat.wire = daemon.wire();
    chat.daemon = Some(daemon);
    assert_eq!(chat.messages(), before);
    assert_eq!((chat.count("compaction"), chat.count("snapshot")), (0, 1));
    fake.summarize(Answer::text(SUMMARY));
    assert_eq!(chat.compact(json!({}))["compacted"], true);
}

#[test]
fn a_client_that_only_records_is_compacted_for_in_the_background() {
    let fake = FakeOllama::start("0.33.0");
    fake.summarize(Answer::text(SUMMARY));
    let mut chat = Compact::configured(&fake, "");
    let _ok = chat.wire.subscribe(
        json!({ "sessionId": chat.session, "kinds": ["compressed", "auto-summary-created"] }),
    );
    chat.exchanges(17);
    let event = chat.wire.event();
    assert_eq!(
        (&event["kind"], &event["data"]["automatic"]),
        (&json!("compressed"), &json!(true)),
        "{event}"
    );
    assert_eq!(chat.wire.event()["kind"], "auto-summary-created");
    let fits = chat.built();
    assert_eq!(fits["strategy"], "checkpointed");
    assert_eq!(chat.count("compaction"), 1);
}

#[test]
fn without_a_model_the_background_waits_and_says_so_once() {
    let fake = FakeOllama::start("0.33.0");
    let unavailable = Fault::Error { status: 500, text: "no".to_owned() };
    fake.next("/api/chat", &vec![unavailable; 8]);
    let mut chat = Compact::configured(&fake, "");
    let kinds = json!(["compressed", "compression-error", "compression-skipped"]);
    let _ok = chat.wire.subscribe(json!({ "sessionId": chat.session, "kinds": kinds }));
    chat.exchanges(17);
    let event = chat.wire.event();
    assert_eq!(
        (&event["kind"], &event["data"]["provisional"]),
        (&json!("compression-error"), &json!(false)),
        "{event}"
    );
    assert_eq!(chat.count("compaction"), 0);
    assert_eq!(chat.built()["strategy"], "full-history");
}

#[test]
fn a_chat_compacts_before_its_model_is_called_and_after_that_not_again() {
    let fake = FakeOllama::start("0.33.0");
    let mut chat = Compact::configured(&fake, "");
    fake.summarize(Answer::text(SUMMARY));
    let text = "some words of a user who talks a lot about the parser ".repeat(10);
    let mut n_compactions = 0;
    for n in 0..24 {
        let params = json!({ "sessionId": chat.session, "message": { "role": "user", "content": format!("{n} {text}") } });
        let _subscription = chat.wire.ok("chat.send", params);
        loop {
            let event = chat.wire.told("chat.event");
            if event["kind"] == "phase" && event["name"] == "compacting" {
                n_compactions += 1;
            }
            if ["done", "error"].contains(&event["kind"].as_str().unwrap()) {
                assert_eq!(event["kind"], "done", "{event}");
                break;
            }
        }
    }
    assert!((2..=6).contains(&n_compactions), "{n_compactions}");
    assert_eq!(chat.count("compaction"), n_compactions);
    let listed = chat.checkpoints();
    assert_eq!(listed["compressionCount"], n_compactions);
    assert_eq!(fake.loads(), 1, "one window for answers and summaries");
    for seen in fake.requests("/api/chat") {
        assert_eq!(seen.body["options"]["num_ctx"], 8192);
    }
}

#[test]
fn a_chat_whose_summarizer_fails_goes_on_and_the_summary_is_made_anew_later() {
    let fake = FakeOllama::start("0.33.0");
    let mut chat = Compact::configured(&fake, "");
    chat.daemon.as_ref().unwrap().assert_serves();
    let text = "some words of a user who talks a lot about the parser ".repeat(10);
    let mut methods = Vec::new();
    for n in 0..30 {
        let params = json!({ "sessionId": chat.session, "message": { "role": "user", "content": format!("{n} {text}") } });
        let _subscription = chat.wire.ok("chat.send", params);
        loop {
            let event = chat.wire.told("chat.event");
            if event["kind"] == "phase" && event["name"] == "compacting" {
                // Nonsense until a summary was made without a model.
                let answer = if methods.is_empty() { "nonsense" } else { SUMMARY };
                fake.summarize(Answer::text(answer));
            }
            if ["done", "error"].contains(&event["kind"].as_str().unwrap()) {
                assert_eq!(event["kind"], "done", "{event}");
                break;
            }
        }
        let session = chat.session.clone();
        let records = chat.wire.records(&session);
        let found = records.iter().filter_map(|record| record["compaction"]["method"].as_str());
        methods = found.map(str::to_owned).collect();
        if methods.len() == 2 {
            break;
        }
    }
    assert_eq!(methods, ["extracted", "summarized"]);
    let listed = chat.checkpoints();
    let all = listed["checkpoints"].as_array().unwrap();
    assert_eq!(all.len(), 1, "{listed}");
    assert!(
        all[0].get("provisional").is_none() && all[0]["from"].as_u64().unwrap() <= 1,
        "{listed}"
    );
}

#[test]
fn a_turn_that_is_canceled_while_it_compacts_leaves_everything_as_it_was() {
    let fake = FakeOllama::start("0.33.0");
    let mut chat = Compact::asked(&fake);
    chat.exchanges(14);
    chat.sandbox.write_config(&format!("ollama:\n  host: {}\n  model: tiny\n", fake.host()));
    let _ok = chat.wire.ok("daemon.reload", json!({}));
    fake.next("/api/chat", &[Fault::Hang]);
    let message = json!({ "role": "user", "content": "go on" });
    let params = chat.params(json!({ "message": message }));
    let _subscription = chat.wire.ok("chat.send", params);
    until("the summarizer is asked", || (fake.hanging() == 1).then_some(()));
    let params = chat.params(json!({}));
    assert_eq!(chat.wire.ok("chat.cancel", params)["canceled"], true);
    let last = loop {
        let event = chat.wire.told("chat.event");
        if event["kind"] == "error" {
            break event;
        }
    };
    assert_eq!(last["data"]["kind"], "cancelled", "{last}");
    assert_eq!(chat.count("compaction"), 0);
    until("the call is dropped", || (fake.hanging() == 0).then_some(()));
}

#[test]
fn the_command_tells_before_and_after() {
    let fake = FakeOllama::start("0.33.0");
    fake.summarize(Answer::text(SUMMARY));
    let mut chat = Compact::asked(&fake);
    chat.exchanges(14);
    let session = chat.session.clone();
    let plan = chat.sandbox.ctl(["context", "compact", &session, "--dry-run"]).ok();
    assert!(plan.contains("would become") && plan.contains("nothing was changed"), "{plan}");
    assert_eq!(chat.count("compaction"), 0);
    let done = chat.sandbox.ctl(["context", "compact", &session]).ok();
    assert!(
        done.contains("the context is now") && done.contains("are summarized by tiny"),
        "{done}"
    );
    assert!(done.contains("still named: task 1 of 1"), "{done}");
    let listed = chat.sandbox.ctl(["context", "checkpoints", &session, "--summaries"]).ok();
    assert!(
        listed.starts_with("1 checkpoint with") && listed.contains("spans are byte offsets"),
        "{listed}"
    );
}

#[test]
fn a_context_that_nears_its_end_is_told_once() {
    let fake = FakeOllama::start("0.33.0");
    let mut chat = Compact::asked(&fake);
    let kinds = json!(["context-threshold", "before-overflow", "tool-call-recorded"]);
    let _ok = chat.wire.subscribe(json!({ "sessionId": chat.session, "kinds": kinds }));
    chat.exchange(0);
    let _built = chat.built();
    (1..20).for_each(|at| chat.exchange(at));
    let session = chat.session.clone();
    let call = json!({ "id": "c", "name": "read", "args": {}, "result": { "llmContent": "end" } });
    let _ok =
        chat.wire.ok("session.recordToolCall", json!({ "sessionId": session, "toolCall": call }));
    let told: Vec<String> =
        (0..3).map(|_| chat.wire.event()["kind"].as_str().unwrap().to_owned()).collect();
    assert_eq!(told, ["context-threshold", "before-overflow", "tool-call-recorded"]);
}
