//! `session.branch`: moving the active leaf to another record, with or without a summary of what is left.

use std::sync::Arc;

use ollm_protocol::content::{BranchSummary, LeafMove, RecordBody, RecordKind};
use ollm_protocol::methods::session::branches::{SessionBranchParams, SessionBranchResult};
use ollm_protocol::{Seq, SessionId, method};
use tokio_util::sync::CancellationToken;

use super::leaf_move::{MoveCall, Moved, PlannedMove, RecordedMove, carry_out};
use super::unit::unit_end;
use super::{count_change, path_change};
use crate::app::change::{View, known, preview};
use crate::app::compaction::summarize_branch;
use crate::app::core::{Core, blocking};
use crate::app::drafts::{MarkedChange, counted_for, mark_before, take_key};
use crate::app::error::Result;
use crate::app::put_back::FilesRequest;
use crate::session::{NewRecord, SessionError};

/// Moves the active leaf (`session.branch`).
///
/// **Errors**: `Conflict` while a turn answers; `RecordNotFound`, `Damaged`; `Invalid` for a record that is on no
/// branch; with a summary, `LeafMoved` if the session changed concurrently.
pub(crate) async fn branch(
    core: Arc<Core>,
    mut params: SessionBranchParams,
) -> Result<SessionBranchResult> {
    let key = take_key::<method::SessionBranch>(&mut params, |params| &mut params.key)?;
    let SessionBranchParams { session_id: id, to_seq, summarize, .. } = params;
    // No model is asked for a move that was made before.
    let seen = match summarize && known(&core, id, key.as_ref()).await?.is_none() {
        true => Some(summarize_removed(&core, id, to_seq).await?),
        false => None,
    };
    let mark = mark_before(&core.clock, None, MarkedChange::Branch);
    let call = MoveCall {
        id,
        key,
        mark,
        files: FilesRequest::Skip,
        dry_run: false,
        left: CancellationToken::new(),
    };
    let plan = move |view: &View<'_>| {
        let planned = plan(view, to_seq)?;
        match seen {
            // The summary is not that of what leaves the path now.
            Some(seen) if seen.leaf != view.state.leaf() => {
                Err(SessionError::LeafMoved { id }.into())
            }
            Some(seen) => Ok((planned.followed_by(seen.summary), ())),
            None => Ok((planned, ())),
        }
    };
    let first = match carry_out(&core, call, plan).await? {
        Moved::Done(first, _) => first,
        Moved::Previewed(..) => None,
    };
    blocking(&core, move |core| result(core, id, to_seq, first)).await
}

/// Plans a move to the end of the unit of a record.
fn plan(view: &View<'_>, to_seq: Option<Seq>) -> Result<PlannedMove> {
    let to = to_seq.map(|seq| unit_end(view.state, seq, "toSeq")).transpose()?;
    Ok(PlannedMove::to_leaf(view.state, to, LeafMove::BRANCH))
}

/// The summary of the records that a move takes off the path.
struct RemovedSummary {
    /// The leaf that was active then.
    leaf: Option<Seq>,
    /// The record of the summary; `None` if nothing was said in them.
    summary: Option<NewRecord>,
}

/// Summarizes the records that would leave the path. A model takes its time, so the move is planned again behind it.
async fn summarize_removed(
    core: &Arc<Core>,
    id: SessionId,
    to_seq: Option<Seq>,
) -> Result<RemovedSummary> {
    let (leaf, removed) = blocking(core, move |core| {
        preview(core, id, |view: &View<'_>| {
            view.check_no_turn()?;
            let (leaf, planned) = (view.state.leaf(), plan(view, to_seq)?);
            let (_, removed) = path_change(view.state, leaf, planned.to());
            Ok((leaf, removed))
        })
    })
    .await?;
    let summary = match removed.is_empty() {
        true => None,
        false => summarize_branch(core, id, removed).await?,
    };
    let summary = summary.map(|(summary, by)| {
        let summary = BranchSummary { from: leaf, summary, by: Some(by) };
        counted_for(core, id, RecordBody::BranchSummary(summary)).0
    });
    Ok(RemovedSummary { leaf, summary })
}

/// Returns the result of a move whose first record is given, with whether an earlier call wrote it. Blocks on the disk.
fn result(
    core: &Core,
    id: SessionId,
    to_seq: Option<Seq>,
    first: Option<(Seq, bool)>,
) -> Result<SessionBranchResult> {
    let Some((first, duplicate)) = first else {
        let leaf = core.sessions.with(id, |live| live.state().leaf())?;
        let moved_to_unit_end = leaf != to_seq;
        return Ok(SessionBranchResult {
            leaf,
            moved_to_unit_end,
            ..SessionBranchResult::default()
        });
    };
    let RecordedMove { mark, steps, to } = RecordedMove::read(core, id, first)?;
    let seq = steps.last().copied();
    let ((added, removed), summary_seq) = core.sessions.with(id, |live| {
        let state = live.state();
        let is_summary = |seq: &Seq| {
            state.entry(*seq).is_some_and(|entry| entry.kind() == Some(RecordKind::BranchSummary))
        };
        (count_change(state, mark.leaf, to), seq.map(Seq::next).filter(is_summary))
    })?;
    let summary_by = match summary_seq.map(|seq| core.body(id, seq)).transpose()?.flatten() {
        Some(RecordBody::BranchSummary(summary)) => summary.by,
        _ => None,
    };
    let moved_to_unit_end = to != to_seq;
    let leaf = to;
    Ok(SessionBranchResult {
        leaf,
        moved_to_unit_end,
        seq,
        summary_seq,
        summary_by,
        added,
        removed,
        duplicate,
    })
}
