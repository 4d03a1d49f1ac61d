//! What others read: lists, cold-open hints, and what retention decides by.
//!
//! Each call takes the reading connection for one short statement or transaction and never waits for the writer.

use std::collections::HashSet;
use std::sync::PoisonError;

use ollm_protocol::SessionId;
use ollm_protocol::content::{Session, SessionStatus};
use rusqlite::Connection;

use super::query::packed::{self, Packed};
use super::query::{self, ListFilter};
use super::{Catalog, CatalogError, Shared};
use crate::session::index::{IndexEntry, KeyEntry, OpenHint};

/// Which sessions to list.
#[derive(Clone, Debug)]
pub(crate) struct ListQuery<'a> {
    /// Only those of one project.
    pub project_hash: Option<&'a str>,
    /// Only those of these statuses.
    pub statuses: &'a [SessionStatus],
    /// Only those whose id begins so, in either case, with or without hyphens.
    pub id_prefix: Option<&'a str>,
    /// The most sessions.
    pub limit: usize,
    /// Only what comes after this one: the last activity and id of the last session of the page before.
    pub after: Option<(i64, SessionId)>,
    /// Sessions that the caller knows better, because they are open.
    pub exclude: &'a HashSet<SessionId>,
}

/// What retention decides by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RetentionRow {
    /// The session.
    pub session_id: SessionId,
    /// When something was last recorded, in milliseconds since 1970.
    pub last_activity_ms: i64,
    /// Where it is in its life.
    pub status: SessionStatus,
    /// Exempt from retention.
    pub pinned: bool,
    /// It came from elsewhere.
    pub imported: bool,
    /// Its project.
    pub project_hash: Option<String>,
}

impl Catalog {
    /// What a cold open of a session needs; `None` when nothing is known, or nothing can be read.
    pub(crate) fn hint(&self, id: SessionId) -> Option<OpenHint> {
        self.shared
            .read(|conn| hint(conn, id))
            .inspect_err(|error| tracing::warn!(session = %id, error = error as &dyn std::error::Error, "no hint"))
            .ok()?
    }

    /// The session that a key of `session.create` made, with the hash of its params.
    pub(crate) fn find_create_key(
        &self,
        key: [u8; 16],
    ) -> Result<Option<(SessionId, [u8; 8])>, CatalogError> {
        self.shared.read(|conn| query::by_create_key(conn, key))
    }

    /// Sessions, the most recently active first, and by id where that is equal.
    pub(crate) fn list(&self, query: &ListQuery<'_>) -> Result<Vec<Session>, CatalogError> {
        let Some(ids) = id_range(query.id_prefix.unwrap_or_default()) else {
            return Ok(Vec::new());
        };
        let statuses =
            query.statuses.iter().fold(0, |bits, status| bits | 1 << query::status_code(*status));
        let filter = ListFilter { project: query.project_hash, statuses, ids, after: query.after };
        let hidden = self.shared.queue.hidden();
        self.shared.read(|conn| {
            let mut page = Vec::new();
            if query.limit == 0 {
                return Ok(page);
            }
            query::each_listed(conn, &filter, |num, id| {
                if !query.exclude.contains(&id) && !hidden.contains(&id) {
                    page.extend(query::session_json(conn, num)?);
                }
                Ok(page.len() < query.limit)
            })?;
            Ok(page)
        })
    }

    /// What retention decides by, of every session, in no order.
    pub(crate) fn retention_rows(&self) -> Result<Vec<RetentionRow>, CatalogError> {
        let hidden = self.shared.queue.hidden();
        let mut rows = self.shared.read(query::retention_rows)?;
        rows.retain(|row| !hidden.contains(&row.session_id));
        Ok(rows)
    }

    /// The sessions that were forked from one, by id.
    pub(crate) fn forks_of(&self, id: SessionId) -> Result<Vec<SessionId>, CatalogError> {
        self.shared.read(|conn| query::forks_of(conn, id))
    }
}

impl Shared {
    /// Reads in one transaction, so that all of it is of one moment.
    pub(super) fn read<T>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, CatalogError> {
        let reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        let conn = reader.as_ref().ok_or(CatalogError::Closed)?;
        let outcome = conn.unchecked_transaction().and_then(|transaction| {
            let value = read(conn)?;
            transaction.commit()?;
            Ok(value)
        });
        outcome.map_err(|source| self.database_error("read", source))
    }
}

fn hint(conn: &Connection, id: SessionId) -> rusqlite::Result<Option<OpenHint>> {
    let Some(row) = query::session(conn, id)? else { return Ok(None) };
    let (n_entries, n_keys) = (n_items(row.known.point.records), n_items(row.known.keys));
    let mut entries = Vec::with_capacity(n_entries);
    packed::each_block(conn, Packed::Entries, row.num, |packed| {
        let (items, _) = packed.as_chunks();
        entries.extend(items.iter().map(IndexEntry::from_bytes));
    })?;
    let mut keys = Vec::with_capacity(n_keys);
    packed::each_block(conn, Packed::Keys, row.num, |packed| {
        let (items, _) = packed.as_chunks();
        keys.extend(items.iter().map(KeyEntry::from_bytes));
    })?;
    if entries.len() != n_entries || keys.len() != n_keys {
        // Never seen; a hint that does not describe the log is worse than none.
        tracing::error!(session = %id, "the catalog's entries of a session are not complete");
        return Ok(None);
    }
    let carry = query::carry(conn, row.num)?;
    Ok(Some(OpenHint { point: row.known.point, entries, keys, carry }))
}

fn n_items(count: u64) -> usize {
    usize::try_from(count).unwrap_or_default()
}

/// The least and the greatest id that begin with `prefix`; `None` when no id can.
fn id_range(prefix: &str) -> Option<([u8; 16], [u8; 16])> {
    let digits: Option<Vec<u8>> = prefix
        .chars()
        .filter(|char| *char != '-')
        .map(|char| char.to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
        .collect();
    let digits = digits.filter(|digits| digits.len() <= 32)?;
    let (mut least, mut greatest) = ([0; 16], [u8::MAX; 16]);
    for (at, digit) in digits.into_iter().enumerate() {
        let shift = if at % 2 == 0 { 4 } else { 0 };
        least[at / 2] |= digit << shift;
        greatest[at / 2] &= (digit << shift) | (0x0F << (4 - shift));
    }
    Some((least, greatest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_a_range_of_ids() {
        let check = |prefix: &str, least: u8, greatest: u8| {
            let (from, to) = id_range(prefix).expect("a prefix of ids");
            assert_eq!((from[0], to[0], from[15], to[15]), (least, greatest, 0, 255), "{prefix}");
        };
        check("", 0, 255);
        check("A", 0xA0, 0xAF);
        check("a1", 0xA1, 0xA1);
        assert_eq!(id_range("0-1-2").expect("valid").0[..2], [0x01, 0x20]);
        assert_eq!(id_range("xyz"), None);
        assert_eq!(id_range(&"0".repeat(33)), None);
    }
}
