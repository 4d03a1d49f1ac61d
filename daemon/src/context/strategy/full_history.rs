//! The strategy `full-history`: every record, verbatim.

use ollm_protocol::content::HeadItem;

use super::plan::{PlanInput, Strategy};
use crate::context::error::ContentsError;

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
        input: &mut PlanInput<'_, '_>,
        _target: u64,
    ) -> Result<Option<Vec<HeadItem>>, ContentsError> {
        let ends = input.path.first().zip(input.path.last());
        let range = ends.map(|(first, last)| HeadItem::Range { from: first.seq, to: last.seq });
        Ok(Some(range.into_iter().collect()))
    }
}
