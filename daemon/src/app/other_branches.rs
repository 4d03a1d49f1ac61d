//! The found records that are on another branch than the active one of their session.
//!
//! A search finds records of many sessions, most of which are closed and have one branch. So no session is opened: a closed
//! one is judged by what the catalog knows of it, and the entries of its records are read only if its leaf ever moved.

use std::collections::{HashMap, HashSet};

use ollm_protocol::{Seq, SessionId};

use super::core::Core;
use crate::session::SessionState;

/// Returns those of some records that are on another branch than the active one. Blocks on the disk.
pub(crate) fn other_branches(
    core: &Core,
    records: impl Iterator<Item = (SessionId, Seq)>,
) -> HashSet<(SessionId, Seq)> {
    let mut by_session: HashMap<SessionId, Vec<Seq>> = HashMap::new();
    for (id, seq) in records {
        by_session.entry(id).or_default().push(seq);
    }
    let of_session = |(id, seqs): (SessionId, Vec<Seq>)| {
        let open = core.sessions.peek(id, |live| live.state().off_path(&seqs));
        let found = open.or_else(|| of_closed(core, id, &seqs)).unwrap_or_default();
        found.into_iter().map(move |seq| (id, seq))
    };
    by_session.into_iter().flat_map(of_session).collect()
}

fn of_closed(core: &Core, id: SessionId, seqs: &[Seq]) -> Option<Vec<Seq>> {
    let hint = core.catalog.hint_if(id, &SessionState::has_moves)?;
    Some(SessionState::from_hint(id, hint)?.off_path(seqs))
}
