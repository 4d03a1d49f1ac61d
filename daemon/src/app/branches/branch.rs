//! `session.branch`: moving the active leaf to another record, with or without a summary of what is left.

use std::sync::Arc;

use ollm_protocol::content::{BranchSummary, LeafMove, RecordBody, RecordKind};
use ollm_protocol::methods::session::branches::{SessionBranchParams, SessionBranchResult};
use ollm_protocol::{Seq, SessionId, method};

use super::leaf_move::{MoveCall, Moved, PlannedMove, RecordedMove, carry_out};
use super::unit::unit_end;
use super::{count_change, path_change};
use crate::app::change::{FirstPhase, View, in_two_phases, preview};
use crate::app::compaction::summarize_branch;
use crate::app::core::{Core, blocking};
use crate::app::drafts::{MarkedChange, counted_for, mark_before, take_key};
use crate::app::error::Result;
use crate::app::put_back::FilesRequest;
use crate::session::IdempotencyKey;

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
    let first = if summarize {
        let (is_new, first) = move_with_summary(&core, id, key.as_ref(), to_seq).await?;
        first.map(|first| (first, is_new.is_none()))
    } else {
        let mark = mark_before(&core.clock, None, MarkedChange::Branch);
        let call = MoveCall { id, key, mark, files: FilesRequest::Skip, dry_run: false };
        let plan = move |view: &View<'_>| Ok((plan(view, to_seq)?, ()));
        match carry_out(&core, call, plan).await? {
            Moved::Done(first, _) => first,
            Moved::Previewed(..) => None,
        }
    };
    blocking(&core, move |core| result(core, id, to_seq, first)).await
}

/// Plans a move to the end of the unit of a record.
fn plan(view: &View<'_>, to_seq: Option<Seq>) -> Result<PlannedMove> {
    let to = to_seq.map(|seq| unit_end(view.state, seq, "toSeq")).transpose()?;
    Ok(PlannedMove::to_leaf(view.state, to, LeafMove::BRANCH))
}

/// Moves the leaf and records a summary of what leaves the path.
async fn move_with_summary(
    core: &Arc<Core>,
    id: SessionId,
    key: Option<&IdempotencyKey>,
    to_seq: Option<Seq>,
) -> Result<(Option<()>, Option<Seq>)> {
    let first_phase = |_| async {
        let (planned, leaf, removed) = blocking(core, move |core| {
            preview(core, id, |view: &View<'_>| {
                view.check_no_turn()?;
                let planned = plan(view, to_seq)?;
                let leaf = view.state.leaf();
                let (_, removed) = path_change(view.state, leaf, planned.to());
                Ok((planned, leaf, removed))
            })
        })
        .await?;
        let mut records = planned.records(mark_before(&core.clock, None, MarkedChange::Branch));
        if records.is_empty() {
            return Ok(FirstPhase::Nothing(()));
        }
        if let Some((summary, by)) = summarize_branch(core, id, removed).await? {
            let summary = BranchSummary { from: leaf, summary, by: Some(by) };
            records.push(counted_for(core, id, RecordBody::BranchSummary(summary)).0);
        }
        Ok(FirstPhase::Append(leaf, records, ()))
    };
    in_two_phases(core, id, key, first_phase).await
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
