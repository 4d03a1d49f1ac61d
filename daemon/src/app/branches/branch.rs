//! `session.branch`: moving the active leaf to another record, with or without a summary of what is left.

use std::sync::Arc;

use ollm_protocol::content::{BranchSummary, LeafMove, RecordBody, RecordKind};
use ollm_protocol::methods::session::branches::{
    SessionBranchParams, SessionBranchResult, SummaryAuthor,
};
use ollm_protocol::{Seq, SessionId, method};

use super::unit::unit_end;
use super::{check_no_turn, count_change, path_change};
use crate::app::compaction::summarize_branch;
use crate::app::core::{Core, blocking};
use crate::app::drafts::{MarkedChange, counted_for, snapshot_mark, take_key, uncounted};
use crate::app::error::Result;
use crate::app::partial::settle;
use crate::session::{Appended, IdempotencyKey, NewRecord, OpenSession, SessionState};

/// A move of the leaf that was planned for a state of the session.
struct BranchPlan {
    leaf: Option<Seq>,
    to: Option<Seq>,
    result: SessionBranchResult,
    /// The records that leave the path.
    removed: Vec<Seq>,
}

/// Moves the active leaf (`session.branch`).
///
/// **Errors**: `Conflict` while a turn answers; `RecordNotFound`, `Damaged`; `Invalid` for a record that is on no
/// branch; `LeafMoved` if the session changed concurrently.
pub(crate) async fn branch(
    core: Arc<Core>,
    mut params: SessionBranchParams,
) -> Result<SessionBranchResult> {
    let key = take_key::<method::SessionBranch>(&mut params, |params| &mut params.key)?;
    let SessionBranchParams { session_id: id, to_seq, summarize, .. } = params;
    if let Some(key) = &key
        && let Some(result) = done_before(&core, id, key, to_seq).await?
    {
        return Ok(result);
    }
    let plan = blocking(&core, move |core| {
        settle(core, id)?;
        check_no_turn(core, id)?;
        core.sessions.with(id, |live| plan(live.state(), to_seq))?
    })
    .await?;
    let BranchPlan { leaf, to, mut result, removed } = plan;
    if leaf == to {
        // The reply confirms an earlier move.
        blocking(&core, move |core| Ok(core.sessions.sync(id)?)).await?;
        return Ok(result);
    }
    let summary = match summarize {
        true => summarize_branch(&core, id, removed).await?,
        false => None,
    };
    let mut drafts = vec![
        snapshot_mark(&core.clock, leaf, MarkedChange::Branch),
        uncounted(RecordBody::Leaf(LeafMove { to, cause: LeafMove::BRANCH.to_owned() })),
    ];
    if let Some((summary, by_model)) = summary {
        let body = RecordBody::BranchSummary(BranchSummary { from: leaf, summary });
        drafts.push(counted_for(&core, id, body).0);
        result.summary_by =
            Some(if by_model { SummaryAuthor::Model } else { SummaryAuthor::Daemon });
    }
    check_no_turn(&core, id)?;
    let appended = append(&core, id, leaf, drafts, key).await?;
    result.seq = Some(Seq(appended.seq.0 + 1));
    result.summary_seq = result.summary_by.map(|_| Seq(appended.seq.0 + 2));
    Ok(result)
}

/// Appends the records of a move if `leaf` is still active.
pub(super) async fn append(
    core: &Core,
    id: SessionId,
    leaf: Option<Seq>,
    drafts: Vec<NewRecord>,
    key: Option<IdempotencyKey>,
) -> Result<Appended> {
    Ok(core.sessions.append_after(id, leaf, drafts, key)?.await?)
}

fn plan(state: &SessionState, to_seq: Option<Seq>) -> Result<BranchPlan> {
    let leaf = state.leaf();
    let to = to_seq.map(|seq| unit_end(state, seq, "toSeq")).transpose()?;
    let (_, removed) = path_change(state, leaf, to);
    let (n_added, n_removed) = count_change(state, leaf, to);
    let result = SessionBranchResult {
        leaf: to,
        moved_to_unit_end: to != to_seq,
        seq: None,
        summary_seq: None,
        summary_by: None,
        added: n_added,
        removed: n_removed,
        duplicate: false,
    };
    Ok(BranchPlan { leaf, to, result, removed })
}

/// Returns the result of an earlier call with the same key.
async fn done_before(
    core: &Arc<Core>,
    id: SessionId,
    key: &IdempotencyKey,
    to_seq: Option<Seq>,
) -> Result<Option<SessionBranchResult>> {
    let digest = key.digest.key;
    let is_used = blocking(core, move |core| {
        Ok(core.sessions.with(id, |live| live.state().key(&digest).is_some())?)
    });
    if !is_used.await? {
        return Ok(None);
    }
    // Without records, the write only compares the key and its payload.
    let known = core.sessions.append(id, Vec::new(), Some(key.clone()))?.await?;
    let seq = Seq(known.seq.0 + 1);
    blocking(core, move |core| {
        let moved = core.body(id, seq)?;
        let leaf = match moved {
            Some(RecordBody::Leaf(moved)) => moved.to,
            _ => to_seq,
        };
        let summary_seq = core.sessions.with(id, |live| summary_behind(live, seq))?;
        Ok(Some(SessionBranchResult {
            leaf,
            moved_to_unit_end: leaf != to_seq,
            seq: Some(seq),
            summary_seq,
            summary_by: None,
            added: Default::default(),
            removed: Default::default(),
            duplicate: true,
        }))
    })
    .await
}

fn summary_behind(live: &OpenSession, seq: Seq) -> Option<Seq> {
    let next = Seq(seq.0 + 1);
    let entry = live.state().entry(next)?;
    (entry.kind() == Some(RecordKind::BranchSummary)).then_some(next)
}
