//! Numbers for documents, in the order of time.

use std::collections::HashMap;

use ollm_protocol::Timestamp;
use rusqlite::Connection;

use super::query::text;

/// Hands out document ids: the hour's next one, or one of a later hour when an import filled it.
///
/// **Invariant**: nobody else hands them out, so an hour is looked up in the database once.
#[derive(Default)]
pub(super) struct DocIds {
    /// The next free id of an hour, by the hour's first; forgotten when it grows, because it can be read again.
    next: HashMap<i64, i64>,
    /// For an hour that is full, the later one in which an id was free last.
    later: HashMap<i64, i64>,
    spill_hours: Option<i64>,
}

impl DocIds {
    /// Hours that are kept in mind.
    const MAX_HOURS: usize = 1_024;

    /// An id that no document has, as near to its hour as one is free.
    pub(super) fn allocate(&mut self, conn: &Connection, at: Timestamp) -> rusqlite::Result<i64> {
        if self.next.len() > Self::MAX_HOURS {
            self.next.clear();
            self.later.clear();
        }
        let first = text::first_docid(at);
        let mut hour = self.later.get(&first).copied().unwrap_or(first);
        let docid = loop {
            let docid = self.next_of(conn, hour)?;
            if docid < hour + text::HOUR_IDS {
                break docid;
            }
            hour += text::HOUR_IDS;
        };
        self.next.insert(hour, docid + 1);
        if hour != first {
            self.later.insert(first, hour);
        }
        self.remember_spill(conn, (hour - first) / text::HOUR_IDS)?;
        Ok(docid)
    }

    /// The next id of an hour, which is the first of the hour after it where there is none.
    fn next_of(&mut self, conn: &Connection, hour: i64) -> rusqlite::Result<i64> {
        if let Some(next) = self.next.get(&hour) {
            return Ok(*next);
        }
        let greatest = text::greatest_docid(conn, hour, hour + text::HOUR_IDS - 1)?;
        let next = greatest.map_or(hour, |greatest| greatest + 1);
        self.next.insert(hour, next);
        Ok(next)
    }

    fn remember_spill(&mut self, conn: &Connection, hours: i64) -> rusqlite::Result<()> {
        let known = match self.spill_hours {
            Some(known) => known,
            None => text::spill_hours(conn)?,
        };
        if hours > known {
            text::set_spill_hours(conn, hours)?;
        }
        self.spill_hours = Some(known.max(hours));
        Ok(())
    }
}
