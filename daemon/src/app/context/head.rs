//! The epoch and the compaction that are in force on a path.

use std::sync::Arc;

use ollm_protocol::SessionId;
use ollm_protocol::content::{Compaction, Epoch, RecordBody};

use crate::app::cache::CachedHead;
use crate::app::core::Core;
use crate::app::error::Result;
use crate::app::path::ActivePath;
use crate::session::SessionError;

/// Returns the epoch in force on a path. Blocks on the disk.
pub(super) fn epoch_in_force(
    core: &Core,
    id: SessionId,
    path: &ActivePath,
) -> Result<Option<Arc<Epoch>>> {
    Ok(head_in_force(core, id, path)?.epoch.map(|(_, epoch)| epoch))
}

/// Reads the epoch and the compaction in force, unless they are cached.
pub(super) fn head_in_force(core: &Core, id: SessionId, path: &ActivePath) -> Result<CachedHead> {
    let mut head = core.cache.with(id, |session| session.head.clone());
    head.epoch.take_if(|(seq, _)| Some(*seq) != path.epoch_at);
    head.compaction.take_if(|(seq, _)| Some(*seq) != path.compaction_at);
    if let (None, Some(seq)) = (&head.compaction, path.compaction_at) {
        let Some(RecordBody::Compaction(compaction)) = core.body(id, seq)? else {
            return Err(SessionError::Damaged { id, seq }.into());
        };
        head.compaction = Some((seq, Arc::new(compaction)));
    }
    if let (None, Some(seq)) = (&head.epoch, path.epoch_at) {
        let opened = match &head.compaction {
            Some((at, compaction)) if *at == seq => compaction.epoch.clone(),
            _ => match core.body(id, seq)? {
                Some(RecordBody::Epoch(epoch)) => Some(epoch),
                Some(RecordBody::Compaction(Compaction { epoch, .. })) => epoch,
                _ => None,
            },
        };
        let epoch = opened.ok_or(SessionError::Damaged { id, seq })?;
        head.epoch = Some((seq, Arc::new(epoch)));
    }
    core.cache.with(id, |session| session.head = head.clone());
    Ok(head)
}
