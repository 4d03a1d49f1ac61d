//! `snapshot.create`: a snapshot that a client asks for.

use std::sync::Arc;

use ollm_protocol::content::{RecordBody, SnapshotMark};
use ollm_protocol::limits::BoundedField;
use ollm_protocol::methods::snapshot::{SnapshotCreateParams, SnapshotResult};
use ollm_protocol::{SnapshotId, method};

use super::files::{publish_unrecorded, save};
use crate::app::change::{View, change};
use crate::app::core::{Core, blocking};
use crate::app::drafts::take_key;
use crate::app::error::{AppError, Result};
use crate::app::schedule::TakenSnapshot;
use crate::session::{Appended, SessionError};

/// The longest reason in bytes.
const MAX_REASON_BYTES: usize = 64;

/// Takes a snapshot (`snapshot.create`).
///
/// **Errors**: `SnapshotsDisabled`; `Invalid` for a session without records and for a reason of the daemon; `Storage` if the file cannot be written, and
/// then only the record of the snapshot is left.
pub(crate) async fn create(
    core: Arc<Core>,
    mut params: SnapshotCreateParams,
) -> Result<SnapshotResult> {
    let key = take_key::<method::SnapshotCreate>(&mut params, |params| &mut params.key)?;
    let SnapshotCreateParams { session_id: id, reason, pinned, summary, .. } = params;
    let reason = reason.unwrap_or_else(|| SnapshotMark::MANUAL.to_owned());
    check_reason(&reason)?;
    let summary = summary.filter(|text| !text.trim().is_empty());
    BoundedField::SnapshotSummary.check(summary.as_ref().map_or(0, String::len))?;
    if !core.config().snapshots.enabled {
        return Err(AppError::SnapshotsDisabled);
    }
    let snapshot_id = SnapshotId::from_uuid(core.clock.uuid());
    let mark = SnapshotMark { summary, pinned, ..SnapshotMark::new(snapshot_id, None, &reason) };
    let plan = move |view: &View<'_>| match view.state.entries().is_empty() {
        true => Err(AppError::invalid("sessionId", "the session has no records yet")),
        false => Ok(vec![view.snapshot(mark)]),
    };
    let appended = change(&core, id, key, plan).await;
    let appended = appended
        .inspect_err(|error| publish_unrecorded(&core, id, snapshot_id, error))?
        .expect("a snapshot is always recorded");
    blocking(&core, move |core| {
        let Appended { seq, at, .. } = appended;
        let Some(RecordBody::Snapshot(mark)) = core.body(id, seq)? else {
            return Err(SessionError::Damaged { id, seq }.into());
        };
        let taken = TakenSnapshot { seq, at, mark };
        let saved = save(core, id, &taken)?.ok_or(AppError::SnapshotsDisabled)?;
        core.snapshots.save_map();
        Ok(SnapshotResult { snapshot: saved })
    })
    .await
}

/// Refuses a reason that is no word, or that is one of the daemon's own.
fn check_reason(reason: &str) -> Result<()> {
    let is_word = |char: char| char.is_ascii_alphanumeric() || "-_.".contains(char);
    if reason.is_empty() || reason.len() > MAX_REASON_BYTES || !reason.chars().all(is_word) {
        let problem =
            "must be a word of 1 to 64 letters, digits and `-_.`; use `summary` for a text";
        return Err(AppError::invalid("reason", problem));
    }
    if SnapshotMark::is_requested(reason) {
        return Ok(());
    }
    Err(AppError::invalid(
        "reason",
        format!("`{reason}` is a reason of snapshots that the daemon takes"),
    ))
}
