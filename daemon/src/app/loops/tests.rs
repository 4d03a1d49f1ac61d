use ollm_protocol::content::LoopKind;
use ollm_protocol::methods::session::{SessionCreateParams, SessionRecordResult};
use serde_json::{Value, json};

use super::*;
use crate::app;
use crate::config::{Config, FlagOverrides};

/// A core with settings of the detection, and a session in it.
struct Bench {
    dir: tempfile::TempDir,
    core: Arc<Core>,
    id: SessionId,
}

fn configure(core: &Core, dir: &std::path::Path, settings: &[(&str, &str)]) {
    let settings =
        settings.iter().map(|(key, value)| (format!("loopDetection.{key}"), (*value).to_owned()));
    let flags = FlagOverrides(settings.collect());
    let no_variables = std::iter::empty::<(String, String)>();
    let (config, _) = Config::load(dir, None, no_variables, &flags).expect("is right");
    *core.config.write().expect("no panic") = Arc::new(config);
}

impl Bench {
    fn new(settings: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let core = app::scratch::core(dir.path());
        configure(&core, dir.path(), settings);
        let session = app::create(&core, SessionCreateParams::default()).expect("creates");
        Self { dir, core, id: session.session_id }
    }

    async fn say(&self, role: &str, text: &str) -> SessionRecordResult {
        let message = json!({ "role": role, "content": text });
        let params = json!({ "sessionId": self.id, "message": message });
        app::record(&self.core, serde_json::from_value(params).unwrap()).await.expect("records")
    }

    async fn ask(&self, calls: &[Value]) -> SessionRecordResult {
        let part =
            |args: &Value| json!({ "type": "toolCall", "id": "c", "name": "read", "args": args });
        let message =
            json!({ "role": "assistant", "parts": calls.iter().map(part).collect::<Vec<_>>() });
        let params = json!({ "sessionId": self.id, "message": message });
        app::record(&self.core, serde_json::from_value(params).unwrap()).await.expect("records")
    }

    async fn call(&self, args: Value) -> SessionRecordResult {
        let call =
            json!({ "id": "c", "name": "read", "args": args, "result": { "llmContent": "ok" } });
        let params = json!({ "sessionId": self.id, "toolCall": call });
        app::record_tool_call(&self.core, serde_json::from_value(params).unwrap())
            .await
            .expect("records")
    }

    async fn may_call(&self) -> Result<(), AppError> {
        may_call_model(&self.core, self.id).await
    }

    /// The marks in the log: what was found, or nothing for a reset.
    fn marks(&self) -> Vec<Option<LoopKind>> {
        let count = self.core.sessions.with(self.id, |live| live.state().entries().len()).unwrap();
        let seqs: Vec<Seq> = (0..count as u64).map(Seq).collect();
        let bodies = self.core.sessions.bodies(self.id, &seqs).unwrap();
        let marks = bodies.into_iter().filter_map(|body| match body {
            Some(RecordBody::Loop(mark)) => Some(mark.pattern.map(|pattern| pattern.kind)),
            _ => None,
        });
        marks.collect()
    }

    fn is_watched(&self) -> bool {
        self.core.loops.get(self.id).is_some()
    }
}

#[tokio::test]
async fn a_loop_is_recorded_once_and_refuses_the_model_until_the_user_speaks() {
    let bench = Bench::new(&[]);
    bench.say("user", "read it").await;
    for _ in 0..2 {
        assert_eq!(bench.call(json!({ "p": 1 })).await.r#loop, None);
        bench.may_call().await.expect("not yet");
    }
    let found = bench.call(json!({ "p": 1.0 })).await.r#loop.expect("the third one");
    assert_eq!((found.kind, found.count), (LoopKind::Call, 3));
    for _ in 0..2 {
        assert_eq!(bench.call(json!({ "p": 1 })).await.r#loop, Some(found.clone()));
        let refused = bench.may_call().await.expect_err("it repeats itself");
        assert!(matches!(refused, AppError::LoopDetected { pattern, .. } if pattern == found));
    }
    assert_eq!(bench.marks(), [Some(LoopKind::Call)]);
    bench.say("user", "something else").await;
    bench.may_call().await.expect("the user said something");
    assert_eq!(bench.call(json!({ "p": 1 })).await.r#loop, None);
    assert_eq!(bench.marks(), [Some(LoopKind::Call)]);
}

#[tokio::test]
async fn a_reset_lets_go_on_and_leaves_a_mark_where_there_was_something_to_forget() {
    let bench = Bench::new(&[]);
    bench.say("user", "read it").await;
    loop_reset(&bench.core, bench.id).await.expect("resets nothing");
    assert_eq!(bench.marks(), []);
    for _ in 0..3 {
        bench.call(json!({})).await;
    }
    let status = loop_reset(&bench.core, bench.id).await.expect("resets");
    assert_eq!((status.detected, status.recent.len(), status.turns_since_user), (None, 0, 0));
    bench.may_call().await.expect("was reset");
    assert_eq!(bench.marks(), [Some(LoopKind::Call), None]);
    for repetition in 0..3 {
        assert_eq!(bench.call(json!({})).await.r#loop.is_some(), repetition == 2);
    }
    assert_eq!(bench.marks(), [Some(LoopKind::Call), None, Some(LoopKind::Call)]);
}

#[tokio::test]
async fn a_watch_that_is_lost_is_made_again_from_the_log() {
    // Forgets after every record what the other one keeps.
    let (kept, lost) = (Bench::new(&[]), Bench::new(&[]));
    let mut found = 0;
    for (round, args) in [1, 2, 1, 1, 2, 1, 2, 1, 1, 1, 3, 3].into_iter().enumerate() {
        for bench in [&kept, &lost] {
            if round == 8 {
                loop_reset(&bench.core, bench.id).await.unwrap();
            }
            bench.ask(&[json!({ "p": args })]).await;
        }
        lost.core.loops.forget(lost.id);
        let (one, other) =
            (kept.call(json!({ "p": args })).await, lost.call(json!({ "p": args })).await);
        assert_eq!(one.r#loop, other.r#loop, "round {round}");
        found += usize::from(one.r#loop.is_some());
        let status = |bench: &Bench| loop_status(&bench.core, bench.id).unwrap();
        let (one, other) = (status(&kept), status(&lost));
        assert_eq!(
            (one.detected, one.turns_since_user),
            (other.detected, other.turns_since_user),
            "{round}"
        );
        lost.core.loops.forget(lost.id);
    }
    assert_eq!(kept.marks(), lost.marks());
    assert!(found > 0 && kept.marks().len() >= 2, "{:?}", kept.marks());
}

#[tokio::test]
async fn turns_are_limited_before_the_call_that_is_one_too_many() {
    let bench = Bench::new(&[("maxTurns", "4")]);
    bench.say("user", "go").await;
    for turn in 0..4 {
        bench.may_call().await.unwrap_or_else(|error| panic!("{turn}: {error}"));
        assert_eq!(
            bench.say("assistant", &format!("step {}", "x".repeat(turn))).await.r#loop,
            None
        );
    }
    let refused = bench.may_call().await.expect_err("four were allowed");
    assert!(refused.to_string().contains("4 model calls"), "{refused}");
    assert_eq!(bench.marks(), [Some(LoopKind::Turns)]);
    bench.may_call().await.expect_err("still");
    assert_eq!(bench.marks(), [Some(LoopKind::Turns)]);
    // A client that does not ask is told.
    let alone = Bench::new(&[("maxTurns", "1")]);
    assert_eq!(alone.say("assistant", "one").await.r#loop, None);
    assert_eq!(alone.say("assistant", "two").await.r#loop.expect("one too many").count, 2);
}

#[tokio::test]
async fn turned_off_it_is_silent_and_settings_hold_at_once() {
    let bench = Bench::new(&[("enabled", "false")]);
    for _ in 0..9 {
        assert_eq!(bench.call(json!({})).await.r#loop, None);
        bench.may_call().await.expect("off");
    }
    assert!(!loop_status(&bench.core, bench.id).unwrap().enabled);
    assert_eq!(bench.marks(), []);
    configure(&bench.core, bench.dir.path(), &[("repeatThreshold", "12")]);
    assert_eq!(bench.call(json!({})).await.r#loop, None);
    configure(&bench.core, bench.dir.path(), &[("repeatThreshold", "4")]);
    assert!(bench.call(json!({})).await.r#loop.is_some());
}

#[tokio::test]
async fn who_says_little_is_not_watched() {
    let bench = Bench::new(&[]);
    for _ in 0..4 {
        bench.say("user", "and?").await;
        bench.say("assistant", "so").await;
        bench.call(json!({})).await;
        assert!(!bench.is_watched());
    }
    bench.call(json!({})).await;
    assert!(bench.is_watched(), "three records in a row may be a loop");
    bench.say("user", "enough").await;
    assert!(!bench.is_watched());
    // One message may hold a whole loop.
    let found = bench.ask(&[json!(1), json!(1), json!(1)]).await.r#loop.expect("three equal calls");
    assert_eq!(found.kind, LoopKind::Call);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn calls_that_are_recorded_at_once_count_in_the_order_of_the_log() {
    let bench = Arc::new(Bench::new(&[("repeatThreshold", "20")]));
    let tasks: Vec<_> = (0..40)
        .map(|_| {
            let bench = Arc::clone(&bench);
            crate::shutdown::Tasks::new().spawn(async move { bench.call(json!({})).await.r#loop })
        })
        .collect();
    let mut found = 0;
    for task in tasks {
        found += usize::from(task.await.expect("no panic").is_some());
    }
    assert!(found >= 21, "from the 20th on all are told: {found}");
    bench.call(json!({})).await;
    assert_eq!(bench.marks(), [Some(LoopKind::Call)]);
}

#[tokio::test]
async fn a_session_that_is_not_there_is_an_error_and_keeps_no_place() {
    let bench = Bench::new(&[]);
    let missing = SessionId::from_uuid(bench.core.clock.uuid());
    assert!(loop_status(&bench.core, missing).is_err());
    assert!(bench.core.loops.get(missing).is_none());
}
