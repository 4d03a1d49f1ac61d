//! The previews of files that can be put back, of which a call applies one. State without behavior.

use std::collections::VecDeque;
use std::sync::Arc;

use ollm_protocol::{PlanId, Seq, SessionId};
use parking_lot::Mutex;

use crate::put_back::plan::PlanItem;

/// The previews that are remembered; an older one must be made again.
const MAX_PREVIEWS: usize = 16;
/// The files of all remembered previews, each with about 300 bytes; the newest one may have more.
const MAX_PREVIEWED_FILES: usize = 20_000;

/// A move of the leaf that files follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileMove {
    pub(crate) id: SessionId,
    /// The active leaf.
    pub(crate) leaf: Option<Seq>,
    /// The leaf after the move.
    pub(crate) to: Option<Seq>,
    /// The records that leave the path.
    pub(crate) removed: Vec<Seq>,
    /// The records that join the path.
    pub(crate) added: Vec<Seq>,
    /// The call, as the record names it: `undo`, `redo` or `restore`.
    pub(crate) cause: &'static str,
}

/// The previews that can be applied.
#[derive(Default)]
pub(crate) struct Previews(Mutex<VecDeque<Arc<Preview>>>);

pub(super) struct Preview {
    pub(super) plan_id: PlanId,
    pub(super) file_move: FileMove,
    pub(super) items: Vec<PlanItem>,
}

impl Previews {
    pub(super) fn add(&self, preview: Preview) {
        let mut previews = self.0.lock();
        previews.push_back(Arc::new(preview));
        let n_files = |previews: &VecDeque<Arc<Preview>>| -> usize {
            previews.iter().map(|preview| preview.items.len()).sum()
        };
        while previews.len() > MAX_PREVIEWS
            || (previews.len() > 1 && n_files(&previews) > MAX_PREVIEWED_FILES)
        {
            previews.pop_front();
        }
    }

    pub(super) fn find(&self, plan_id: PlanId) -> Option<Arc<Preview>> {
        self.0.lock().iter().find(|preview| preview.plan_id == plan_id).cloned()
    }
}
