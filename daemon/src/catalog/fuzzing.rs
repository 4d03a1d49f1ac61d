//! The check of the catalog on arbitrary bytes in its rows, for fuzz targets and property tests.
//!
//! A row with other bytes is found, or it is as good as the row that was written: no hint hides a record.

use std::path::PathBuf;

use ollm_protocol::content::{Record, Session};
use rusqlite::{Connection, params_from_iter, types::Value};

use super::database::{Damage, damage_of};
use super::query::schema;
use super::query::sessions::{self, PackedTable};
use super::read_hint;
use crate::session::fuzzing::{LogFixture, open_with_hint, update_of_log};
use crate::session::index::{IndexEntry, IndexUpdate, KeyEntry, OpenHint};

/// The columns with checksums, as statements that replace their value.
const COLUMNS: [&str; 9] = [
    "UPDATE details SET session = ?1",
    "UPDATE details SET carry = ?1",
    "UPDATE entries SET packed = ?1",
    "UPDATE keys SET packed = ?1",
    "UPDATE sessions SET bytes = ?1",
    "UPDATE sessions SET records = ?1",
    "UPDATE sessions SET last_crc = ?1",
    "UPDATE sessions SET n_keys = ?1",
    "UPDATE details SET crc = ?1",
];

/// Checks one changed row.
///
/// **Shape**: the first byte selects the column, or a hint with correct checksums; the second selects the type of the
/// value, and whether the others are the value or are added to the value that was written.
pub(crate) fn check_rows_of(bytes: &[u8]) {
    let [column, kind, value @ ..] = bytes else { return };
    let log = CatalogLog::new();
    match COLUMNS.get(usize::from(*column) % (COLUMNS.len() + 1)) {
        Some(statement) => log.check_column(statement, *kind, value),
        None => log.check_hint(*kind, value),
    }
}

/// A log, and the row that a catalog has of it.
struct CatalogLog {
    _fixture: LogFixture,
    path: PathBuf,
    update: IndexUpdate,
    records: Vec<Option<Record>>,
}

impl CatalogLog {
    fn new() -> Self {
        let fixture = LogFixture::new();
        let path = fixture.write(&fixture.bytes);
        let update = update_of_log(&path);
        let records = fixture.records.iter().cloned().map(Some).collect();
        Self { _fixture: fixture, path, update, records }
    }

    /// Returns a catalog with the rows of the log.
    fn catalog(&self) -> Connection {
        let conn = Connection::open_in_memory().expect("opens");
        schema::create(&conn).expect("creates");
        let update = &self.update;
        let num = sessions::write_summary(&conn, None, update, 0).expect("writes");
        let entries = update.entries.iter().flat_map(|entry| entry.to_bytes()).collect::<Vec<_>>();
        let keys = update.keys.iter().flat_map(|key| key.to_bytes()).collect::<Vec<_>>();
        for (table, item_bytes, items) in [
            (PackedTable::Entries, IndexEntry::BYTES, entries),
            (PackedTable::Keys, KeyEntry::BYTES, keys),
        ] {
            sessions::append_packed(&conn, table, num, (0, item_bytes), &items).expect("writes");
        }
        conn
    }

    fn check_column(&self, statement: &str, kind: u8, value: &[u8]) {
        let conn = self.catalog();
        let (column, table) = column_of(statement);
        let old: Value = conn
            .query_row(&format!("SELECT {column} FROM {table}"), [], |row| row.get(0))
            .expect("reads");
        // A refused statement leaves the row as it is.
        let _refused = conn.execute(statement, params_from_iter([changed(old, kind, value)]));
        let id = LogFixture::id();
        let hint = read_hint(&conn, id, &|_| true);
        if let Ok(Some(hint)) = &hint {
            assert_eq!(open_with_hint(&self.path, hint.clone()), self.records);
        }
        let rows = sessions::read_row(&conn, id).and_then(|row| {
            row.map_or(Ok(None), |row| sessions::details::<Session>(&conn, row.num))
        });
        match sessions::check_rows(&conn) {
            Ok(()) => {
                let hint = hint.expect("is readable").expect("is known");
                let IndexUpdate { point, entries, keys, carry, session, .. } = &self.update;
                assert_eq!((&hint.point, &hint.entries, &hint.keys), (point, entries, keys));
                assert_eq!(hint.carry, *carry);
                assert_eq!(rows.expect("is readable").as_ref(), Some(session));
            }
            Err(error) => {
                assert_eq!(damage_of(&error), Damage::Certain, "leads to a rebuild: {error}");
                for error in [hint.err(), rows.err()].into_iter().flatten() {
                    assert_eq!(damage_of(&error), Damage::Certain, "leads to a rebuild: {error}");
                }
            }
        }
    }

    /// Opens the log with a hint that no checksum refuses.
    fn check_hint(&self, kind: u8, value: &[u8]) {
        let IndexUpdate { point, entries, keys, carry, .. } = self.update.clone();
        let mut hint = OpenHint { point, entries, keys, carry };
        match kind % 4 {
            0 => {
                let mut packed: Vec<u8> =
                    hint.entries.iter().flat_map(|entry| entry.to_bytes()).collect();
                xor(&mut packed, value);
                hint.entries = packed.as_chunks().0.iter().map(IndexEntry::from_bytes).collect();
            }
            1 => hint.entries = value.as_chunks().0.iter().map(IndexEntry::from_bytes).collect(),
            2 => hint.keys = value.as_chunks().0.iter().map(KeyEntry::from_bytes).collect(),
            _ => hint.carry = value.to_vec(),
        }
        if kind % 4 == 1 {
            hint.point.records = hint.entries.len() as u64;
        }
        drop(open_with_hint(&self.path, hint));
    }
}

/// Returns the column and the table of a statement of [`COLUMNS`].
fn column_of(statement: &str) -> (&str, &str) {
    let mut words = statement.split(' ').skip(1);
    let table = words.next().expect("a table");
    (words.nth(1).expect("a column"), table)
}

/// Returns the new value of a column.
fn changed(old: Value, kind: u8, value: &[u8]) -> Value {
    match (kind % 6, old) {
        (0, _) => Value::Null,
        (1, _) => Value::Real(f64::from_le_bytes(first_eight(value))),
        (2, Value::Integer(old)) => Value::Integer(old ^ i64::from_le_bytes(first_eight(value))),
        (2, _) => Value::Integer(i64::from_le_bytes(first_eight(value))),
        (3, _) => Value::Text(String::from_utf8_lossy(value).into_owned()),
        (4, Value::Text(old)) => {
            let mut bytes = old.into_bytes();
            xor(&mut bytes, value);
            Value::Text(String::from_utf8_lossy(&bytes).into_owned())
        }
        (4, Value::Blob(mut old)) => {
            xor(&mut old, value);
            Value::Blob(old)
        }
        _ => Value::Blob(value.to_vec()),
    }
}

fn first_eight(value: &[u8]) -> [u8; 8] {
    let mut eight = [0; 8];
    let n_bytes = value.len().min(8);
    eight[..n_bytes].copy_from_slice(&value[..n_bytes]);
    eight
}

/// Changes bytes from a position that the first two bytes of `value` give.
fn xor(bytes: &mut [u8], value: &[u8]) {
    let [low, high, mask @ ..] = value else { return };
    let at = usize::from(u16::from_le_bytes([*low, *high])) % bytes.len().max(1);
    for (byte, mask) in bytes.iter_mut().skip(at).zip(mask) {
        *byte ^= mask;
    }
}
