//! Writing a compaction down: the new head is planned for the newest records, measured, and recorded as one record.
//!
//! **Invariant**: one record is one whole compaction; before it is written nothing has changed, and what was recorded
//! while a model summarized stays behind the head word for word.

use std::sync::Arc;

use ollm_protocol::content::{
    BuiltContext, Checkpoint, Compaction, CompactionMethod, RecordBody, Retention,
};
use ollm_protocol::{CheckpointId, Seq, SessionId};

use super::error::CompactError;
use super::plan::{Before, Ground, Order, survey};
use crate::app::mark::{self, Moment};
use crate::app::prepared::Records;
use crate::app::{AppError, Core, append, blocking};
use crate::context::compact::{measure_retention, retention_targets};
use crate::context::{self, Built, CutPlan};
use crate::session::{Draft, SessionError};

/// How often the head is planned anew because something was recorded meanwhile.
const MAX_TRIES: usize = 8;

/// What a compaction came to before it is written.
#[derive(Clone)]
pub(super) struct Made {
    /// How.
    pub(super) method: CompactionMethod,
    /// The range that was summarized.
    pub(super) cut: Option<CutPlan>,
    /// Every checkpoint in force after it.
    pub(super) checkpoints: Vec<Checkpoint>,
    /// The one that stands for the range.
    pub(super) created: Option<CheckpointId>,
    /// Those that became older or smaller.
    pub(super) aged: Vec<CheckpointId>,
    /// Who wrote the summary.
    pub(super) model: Option<String>,
    /// Identifiers of the range.
    pub(super) identifiers: Vec<String>,
}

/// What writing a compaction down came to.
pub(super) enum Committed {
    /// It is durable.
    Done(Box<Done>),
    /// Another compaction was recorded first: the session as it is now.
    Overtaken(Arc<Ground>),
}

/// A compaction that is durable, or that would be.
pub(super) struct Done {
    /// Its record; `None` where it was only tried out.
    pub(super) seq: Option<Seq>,
    /// What it is.
    pub(super) made: Made,
    /// The context before.
    pub(super) before: Before,
    /// The context after.
    pub(super) after: BuiltContext,
    /// What survived.
    pub(super) retention: Retention,
    /// The session as it was found.
    pub(super) ground: Arc<Ground>,
}

/// A head with what it was planned for.
struct Composed {
    built: Built,
    retention: Retention,
}

/// Marks the state before a compaction, so that it can be gone back to.
pub(super) async fn mark(core: &Core, id: SessionId, leaf: Option<Seq>) -> Result<(), AppError> {
    append(core, id, vec![mark::mark(core, leaf, Moment::Compaction)], None).await?;
    Ok(())
}

/// Plans the head and says what it would come to.
pub(super) async fn preview(
    core: &Arc<Core>,
    order: Order,
    ground: Arc<Ground>,
    made: Made,
) -> Result<Done, AppError> {
    blocking(core, move |core| {
        let Composed { built, retention } = compose(core, &order, &ground, &made)?;
        let (before, after) = (ground.before, built.result);
        Ok(Done { seq: None, made, before, after, retention, ground })
    })
    .await
}

/// Plans the head and records the compaction.
///
/// **Errors**: `Moved` when the session went to another branch; `NoGain` when the context would not be smaller.
/// **Cancel safety**: what was queued is written; nothing else was changed.
pub(super) async fn commit(
    core: &Arc<Core>,
    order: Order,
    ground: Arc<Ground>,
    made: Made,
) -> Result<Committed, AppError> {
    let id = ground.prepared.id;
    let mut at = ground;
    for _ in 0..MAX_TRIES {
        let (order_too, ground, made_too) = (order.clone(), Arc::clone(&at), made.clone());
        let Composed { built, retention } =
            blocking(core, move |core| compose(core, &order_too, &ground, &made_too)).await?;
        let compaction = record_of(&at, &made, &built, retention);
        let draft = Draft::new(RecordBody::Compaction(compaction), None);
        let answer = core.sessions.append_after(id, at.prepared.leaf, vec![draft])?;
        match answer.await.map_err(|_| SessionError::Stopping)? {
            Ok(appended) => {
                core.builds.gauge(id, Some(appended.seq), &built.result);
                core.documents.note(id);
                let (seq, before, after) = (Some(appended.seq), at.before, built.result);
                let done = Done { seq, made, before, after, retention, ground: at };
                return Ok(Committed::Done(Box::new(done)));
            }
            Err(SessionError::LeafMoved { .. }) => {
                let order = order.clone();
                let now = blocking(core, move |core| survey(core, &order)).await?;
                if at.prepared.leaf.is_some_and(|leaf| !now.prepared.has(leaf)) {
                    return Err(CompactError::Moved { id }.into());
                }
                let is_overtaken = at.prepared.compaction_at() != now.prepared.compaction_at();
                at = Arc::new(now);
                if is_overtaken {
                    return Ok(Committed::Overtaken(at));
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    Err(CompactError::Moved { id }.into())
}

/// The head for the records that there are now. Blocks on the disk.
fn compose(
    core: &Arc<Core>,
    order: &Order,
    ground: &Ground,
    made: &Made,
) -> Result<Composed, AppError> {
    let Ground { prepared, before } = ground;
    let contents = Records { sessions: &core.sessions, id: prepared.id };
    let input = prepared.input(&order.params, &made.checkpoints);
    let built = match made.method {
        CompactionMethod::Pruned => context::prune(&input, &contents)?,
        CompactionMethod::Truncated => context::truncate(&input, &contents)?,
        CompactionMethod::Summarized | CompactionMethod::Extracted => {
            context::with_checkpoints(&input, &contents)?
        }
    };
    let no_gain = |after| CompactError::NoGain { id: prepared.id, before: before.tokens, after };
    let built = built.ok_or_else(|| no_gain(before.tokens))?;
    if built.result.tokens_used >= before.tokens || built.new_epoch.is_none() {
        return Err(no_gain(built.result.tokens_used).into());
    }
    let files = made.checkpoints.iter().flat_map(|one| one.files_modified.iter().cloned());
    let kept = retention_targets(&input, &contents, files.collect(), made.identifiers.clone())
        .map_err(context::ContextError::from)?;
    let retention = measure_retention(&kept, &built.result.messages);
    Ok(Composed { built, retention })
}

fn record_of(ground: &Ground, made: &Made, built: &Built, retention: Retention) -> Compaction {
    let mut epoch = built.new_epoch.clone();
    if let Some(epoch) = &mut epoch {
        "compaction".clone_into(&mut epoch.cause);
    }
    Compaction {
        from: made.cut.as_ref().map(|cut| cut.from),
        to: made.cut.as_ref().map(|cut| cut.to),
        summary: String::new(),
        tokens_before: ground.before.tokens,
        tokens_after: Some(built.result.tokens_used),
        tokenizer: ground.prepared.counter.identity().to_string(),
        epoch,
        checkpoints: made.checkpoints.clone(),
        method: Some(made.method),
        model: made.model.clone(),
        retention: Some(retention),
    }
}
