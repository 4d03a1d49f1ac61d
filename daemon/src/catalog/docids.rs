//! Numbers for documents, in the order of time.

use std::collections::HashMap;

use ollm_protocol::Timestamp;
use rusqlite::Connection;

use super::query::text;

/// Hands out document ids: the hour's next one, or one of a later hour when an import filled it.
#[derive(Default)]
pub(super) struct DocIds {
    /// The next free id for each hour's first id; forgotten when it grows, because it can be read again.
    next: HashMap<i64, i64>,
    spill_hours: Option<i64>,
}

impl DocIds {
    /// Hours that are kept in mind.
    const MAX_HOURS: usize = 1_024;

    /// An id that no document has, as near to its hour as one is free.
    pub(super) fn allocate(&mut self, conn: &Connection, at: Timestamp) -> rusqlite::Result<i64> {
        let first = text::first_docid(at);
        if self.next.len() > Self::MAX_HOURS {
            self.next.clear();
        }
        let mut docid = match self.next.get(&first) {
            Some(next) => *next,
            None => first,
        };
        // An id that lies in a later hour may have been given to a document of that hour meanwhile.
        loop {
            let hour = docid - docid % text::HOUR_IDS;
            match text::greatest_docid(conn, docid, hour + text::HOUR_IDS - 1)? {
                None => break,
                Some(taken) => docid = taken + 1,
            }
        }
        self.next.insert(first, docid + 1);
        self.remember_spill(conn, (docid - first) / text::HOUR_IDS)?;
        Ok(docid)
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
