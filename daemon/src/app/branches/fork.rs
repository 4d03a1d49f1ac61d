//! `session.fork`: a new session that begins as another one does.

use std::sync::Arc;

use ollm_protocol::content::{Role, Session};
use ollm_protocol::limits::{BoundedField, check_header};
use ollm_protocol::methods::session::branches::{SessionForkParams, SessionForkResult};
use ollm_protocol::{Seq, SessionId, method};

use super::unit::unit_end;
use crate::app::change::check_no_turn;
use crate::app::core::Core;
use crate::app::drafts::take_key;
use crate::app::error::{AppError, Result};
use crate::app::partial::read_settled;
use crate::session::{NewFork, SessionState};

/// Creates a session from the beginning of another one, or returns the one that the same key created (`session.fork`).
/// Blocks on the disk.
///
/// **Errors**: `Conflict` if the records to copy include those of a turn that is answering; `RecordNotFound`, `Damaged`;
/// `Invalid` for a record that is on no branch, or a session without records.
pub(crate) fn fork(core: &Arc<Core>, mut params: SessionForkParams) -> Result<SessionForkResult> {
    let key = take_key::<method::SessionFork>(&mut params, |params| &mut params.key)?;
    let SessionForkParams { session_id: source, at_seq, title, .. } = params;
    let _one_at_a_time = key.is_some().then(|| core.creating.lock());
    if let Some(key) = &key
        && let Some(session) = core.created_before(key)?
    {
        // Perhaps by a process that ended before it was durable.
        core.sessions.sync(session.session_id)?;
        let leaf = core.sessions.with(session.session_id, |live| live.state().forked_leaf())?;
        let leaf = leaf.unwrap_or(Seq(0));
        let moved_to_unit_end = at_seq.is_some_and(|at| at != leaf);
        return Ok(SessionForkResult { session, leaf, moved_to_unit_end });
    }
    // A deletion would empty the log while it is copied.
    let _no_deletion = core.deleting.lock();
    let turn = core.turns.get(source);
    let (id, now) = (core.clock.session_id(), core.clock.now());
    let (leaf, last, holds_turn, mut header) = read_settled(core, source, |live| {
        let state = live.state();
        let (leaf, last) = fork_point(state, at_seq)?;
        let newest = state.newest_where(state.leaf(), |entry| entry.role() == Some(Role::User));
        let holds_turn = newest.is_some_and(|question| leaf >= question);
        Ok::<_, AppError>((leaf, last, holds_turn, state.current_header(id, now)))
    })??;
    if holds_turn {
        check_no_turn(source, turn.as_deref())?;
    }
    header.forked_from = Some(source);
    header.title = match title.filter(|title| !title.is_empty()) {
        Some(title) => Some(title),
        None => Some(fork_title(&core.summary(source)?.title, n_forks(core, source)?)),
    };
    check_header(&mut header)?;
    let session = core.sessions.fork(NewFork { source, last, leaf, header, key })?;
    Ok(SessionForkResult { session, leaf, moved_to_unit_end: at_seq.is_some_and(|at| at != leaf) })
}

/// Returns the leaf of a fork, and the last record to copy.
fn fork_point(state: &SessionState, at_seq: Option<Seq>) -> Result<(Seq, Seq)> {
    if let Some(at) = at_seq {
        let end = unit_end(state, at, "atSeq")?;
        return Ok((end, end));
    }
    let leaf = state
        .leaf()
        .ok_or_else(|| AppError::invalid("atSeq", "is needed: no record is on the active path"))?;
    let readable = state.entries().iter().rposition(|entry| !entry.is_damaged());
    Ok((leaf, readable.map_or(leaf, |last| Seq(last as u64))))
}

/// Returns the number of sessions that were forked from one.
fn n_forks(core: &Core, source: SessionId) -> Result<usize> {
    let mut forks = core.catalog.forks_of(source)?;
    // The catalog does not know the newest ones yet.
    let is_fork = |session: &&Session| session.forked_from == Some(source);
    let open = core.sessions.open_summaries();
    forks.extend(open.iter().filter(is_fork).map(|session| session.session_id));
    forks.sort_unstable_by_key(ToString::to_string);
    forks.dedup();
    Ok(forks.len())
}

/// Returns the title of the next fork of a session with a title and a number of forks. The session itself counts as the
/// first.
fn fork_title(title: &str, n_forks: usize) -> String {
    let numbered = title.rsplit_once(" (fork ").and_then(|(base, rest)| {
        let number: usize = rest.strip_suffix(')')?.parse().ok()?;
        Some((base, number))
    });
    let (base, number) = numbered.unwrap_or((title, 1));
    let suffix = format!(" (fork {})", number.saturating_add(n_forks).saturating_add(1));
    let room = BoundedField::Title.max_bytes().saturating_sub(suffix.len());
    let end = (0..=room.min(base.len())).rev().find(|end| base.is_char_boundary(*end));
    let base = &base[..end.unwrap_or_default()];
    if base.is_empty() { suffix.trim_start().to_owned() } else { format!("{base}{suffix}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn title_of_a_fork_has_the_next_number() {
        let check = |title: &str, n_forks, expect: &str| {
            assert_eq!(fork_title(title, n_forks), expect);
        };
        check("The parser", 0, "The parser (fork 2)");
        check("The parser", 1, "The parser (fork 3)");
        check("The parser (fork 2)", 0, "The parser (fork 3)");
        check("The parser (fork x)", 0, "The parser (fork x) (fork 2)");
        check("", 0, "(fork 2)");
        let long = fork_title(&"é".repeat(4000), 0);
        assert!(long.len() <= BoundedField::Title.max_bytes() && long.ends_with("é (fork 2)"));
    }
}
