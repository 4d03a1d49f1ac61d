//! What a compaction does when the session is not any more as it found it.

use ollm_protocol::Seq;
use ollm_protocol::content::{LeafMove, RecordBody};
use ollm_protocol::methods::session::SessionCreateParams;

use super::*;
use crate::app;
use crate::session::NewRecord;

/// A core whose model server is away, and a session that has something to leave out.
struct Bench {
    _dir: tempfile::TempDir,
    core: Arc<Core>,
    id: SessionId,
}

impl Bench {
    async fn new() -> Self {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let core = app::scratch::core(dir.path());
        let session = app::create(&core, SessionCreateParams::default()).expect("creates");
        let bench = Self { _dir: dir, core, id: session.session_id };
        bench.talk(40).await;
        bench
    }

    async fn talk(&self, n_exchanges: usize) {
        for n in 0..n_exchanges {
            for role in ["user", "assistant"] {
                let text = format!("{role} {n}: {}", "words that nobody needs later ".repeat(8));
                let message = json!({ "role": role, "content": text });
                let params = json!({ "sessionId": self.id, "message": message });
                let params = serde_json::from_value(params).expect("params");
                app::record(&self.core, params).await.expect("records");
            }
        }
    }

    fn task(&self) -> Task<'_> {
        let order = configured(&self.core, ContextBuildParams::new(self.id), None);
        let order = Order { strategy: CompactStrategy::Truncate, ..order };
        let seat = Seat::Own(Priority::Chat);
        Task { core: &self.core, order, cause: Cause::Requested, seat, must: false }
    }

    async fn ground(&self) -> Arc<Ground> {
        let order = self.task().order;
        let ground = blocking(&self.core, move |core| survey(core, &order)).await;
        Arc::new(ground.expect("looks"))
    }

    fn compactions(&self) -> u64 {
        self.core.summary(self.id).expect("is there").compression_count
    }
}

fn seq_of(outcome: &Outcome) -> Option<Seq> {
    match outcome {
        Outcome::Done(done) => done.seq,
        Outcome::Skipped(..) | Outcome::Failed => None,
    }
}

#[tokio::test]
async fn a_compaction_that_was_recorded_meanwhile_is_gone_on_from() {
    let bench = Bench::new().await;
    let stale = bench.ground().await;
    // Its owner is gone before it is written, so nobody waits for it and the place is free.
    let other = bench.task().run(bench.id).await.expect("compacts");
    assert!(seq_of(&other).is_some());
    bench.talk(20).await;
    let never = CancellationToken::new();
    let outcome = bench.task().carry_out(bench.id, stale, &never).await.expect("compacts too");
    assert!(seq_of(&outcome) > seq_of(&other), "a record behind the other one");
    assert_eq!(bench.compactions(), 2);
    let Outcome::Done(done) = outcome else { panic!("is done") };
    assert_eq!(done.ground.prepared.compaction_at(), seq_of(&other));
}

#[tokio::test]
async fn where_the_other_one_left_nothing_to_do_nothing_is_done() {
    let bench = Bench::new().await;
    let stale = bench.ground().await;
    let other = bench.task().run(bench.id).await.expect("compacts");
    assert!(seq_of(&other).is_some());
    let never = CancellationToken::new();
    let outcome = bench.task().carry_out(bench.id, stale, &never).await.expect("is no failure");
    assert!(matches!(outcome, Outcome::Skipped("nothing", _)));
    assert_eq!(bench.compactions(), 1);
}

#[tokio::test]
async fn another_branch_is_left_alone() {
    let bench = Bench::new().await;
    let stale = bench.ground().await;
    let back = LeafMove { to: Some(Seq(5)), cause: "undo".to_owned() };
    let draft = NewRecord::new(RecordBody::Leaf(back), None);
    app::append(&bench.core, bench.id, vec![draft], None).await.expect("moves");
    let never = CancellationToken::new();
    let outcome = bench.task().carry_out(bench.id, stale, &never).await;
    assert!(matches!(outcome, Err(AppError::Compact(CompactError::Moved { .. }))));
    assert_eq!(bench.compactions(), 0);
}

#[tokio::test]
async fn who_is_to_give_way_writes_nothing() {
    let bench = Bench::new().await;
    let canceled = CancellationToken::new();
    canceled.cancel();
    let ground = bench.ground().await;
    let outcome = bench.task().carry_out(bench.id, ground, &canceled).await.expect("no error");
    assert!(matches!(outcome, Outcome::Failed));
    assert_eq!(bench.compactions(), 0);
}
