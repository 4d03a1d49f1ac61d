//! Everything, verbatim.

use ollm_protocol::content::HeadItem;

use super::{Ground, Strategy};
use crate::context::contents::ContentsError;

/// Its name.
pub(super) const NAME: &str = "full-history";

/// Keeps every record of the path.
pub(super) struct FullHistory;

impl Strategy for FullHistory {
    fn name(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> &'static str {
        "every message, verbatim"
    }

    fn min_tokens(&self) -> u64 {
        0
    }

    fn keeps_all(&self) -> bool {
        true
    }

    fn shrinks(&self) -> bool {
        false
    }

    fn plan(
        &self,
        ground: &mut Ground<'_, '_>,
        _target: u64,
    ) -> Result<Option<Vec<HeadItem>>, ContentsError> {
        let ends = ground.path.first().zip(ground.path.last());
        Ok(Some(
            ends.map(|(first, last)| HeadItem::Range { from: first.seq, to: last.seq })
                .into_iter()
                .collect(),
        ))
    }
}
