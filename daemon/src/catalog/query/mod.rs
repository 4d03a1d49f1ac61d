//! Every statement on the tables of sessions, records and documents, one typed function each.
//!
//! The functions take part in the transaction that their caller has open. Numbers that SQLite keeps as signed
//! are converted here and nowhere else. The full-text index is in [`text`] and
//! [`shards`], the records' positions in [`packed`].

pub(super) mod packed;
pub(super) mod shards;
pub(super) mod text;

use ollm_protocol::SessionId;
use ollm_protocol::content::{Session, SessionStatus};
use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{RetentionRow, schema};
use crate::session::index::{IndexProgress, IndexUpdate, ScanPoint};
use packed::Packed;

/// What the catalog holds of one session, without its large values.
#[derive(Clone, Debug)]
pub(super) struct SessionRow {
    /// Its number here, which is never used for another session.
    pub num: i64,
    /// How far its log is described.
    pub known: IndexProgress,
    /// How many records have their text in the index.
    pub text_records: u64,
    /// The project that its documents carry.
    pub project: Option<String>,
}

/// Begins a transaction that writes.
pub(super) fn begin(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute_batch("BEGIN IMMEDIATE")
}

/// Ends it.
pub(super) fn commit(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute_batch("COMMIT")
}

/// Gives a transaction up. One that SQLite itself gave up is no error.
pub(super) fn rollback(conn: &Connection) {
    if !conn.is_autocommit()
        && let Err(error) = conn.execute_batch("ROLLBACK")
    {
        tracing::error!(%error, "cannot give up a transaction of the catalog");
    }
}

/// Empties the WAL into the database and cuts it to nothing; false when a reader was in the way.
pub(super) fn truncate_wal(conn: &Connection) -> rusqlite::Result<bool> {
    conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, i64>(0))
        .map(|busy| busy == 0)
}

/// Gives cached pages back to the system.
pub(super) fn shrink_memory(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute_batch("PRAGMA shrink_memory")
}

/// The numbers of sessions that are gone and whose words may still be in the files.
pub(super) fn forgotten(conn: &Connection) -> rusqlite::Result<Vec<i64>> {
    conn.prepare_cached("SELECT num FROM forgotten ORDER BY num")?
        .query_map([], |row| row.get(0))?
        .collect()
}

/// Nothing of a session that is gone is in the files any more.
pub(super) fn set_clean(conn: &Connection, num: i64) -> rusqlite::Result<()> {
    conn.prepare_cached("DELETE FROM forgotten WHERE num = ?1")?.execute([num]).map(drop)
}

/// Whether no session is left.
pub(super) fn is_without_sessions(conn: &Connection) -> rusqlite::Result<bool> {
    conn.query_row("SELECT NOT EXISTS (SELECT 1 FROM sessions)", [], |row| row.get(0))
}

/// The row of a session.
pub(super) fn session(conn: &Connection, id: SessionId) -> rusqlite::Result<Option<SessionRow>> {
    conn.prepare_cached(
        "SELECT num, bytes, records, last_crc, n_keys, text_records, project
         FROM sessions WHERE id = ?1",
    )?
    .query_row([id_bytes(id)], |row| {
        let point = ScanPoint {
            bytes: unsigned(row, 1)?,
            records: unsigned(row, 2)?,
            last_crc: row.get(3)?,
        };
        Ok(SessionRow {
            num: row.get(0)?,
            known: IndexProgress { point, keys: unsigned(row, 4)? },
            text_records: unsigned(row, 5)?,
            project: row.get(6)?,
        })
    })
    .optional()
}

/// Writes what an update says of a session, and gives its number.
pub(super) fn put_session(
    conn: &Connection,
    old: Option<&SessionRow>,
    update: &IndexUpdate,
    text_records: u64,
) -> rusqlite::Result<i64> {
    let session = &update.session;
    let key = update.create_key.as_ref();
    conn.prepare_cached(
        "INSERT INTO sessions (num, id, last_ms, status, project, pinned, imported, forked_from, bytes, records,
             last_crc, n_keys, text_records, create_key, create_payload)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)
         ON CONFLICT (num) DO UPDATE SET last_ms = ?3, status = ?4, project = ?5, pinned = ?6, imported = ?7,
             forked_from = ?8, bytes = ?9, records = ?10, last_crc = ?11, n_keys = ?12, text_records = ?13,
             create_key = ?14, create_payload = ?15",
    )?
    .execute(params![
        old.map(|row| row.num),
        id_bytes(session.session_id),
        session.last_activity.unix_ms(),
        status_code(session.status),
        session.project_hash,
        session.pinned,
        session.imported_from.is_some(),
        session.forked_from.map(id_bytes),
        signed(update.point.bytes),
        signed(update.point.records),
        update.point.last_crc,
        signed(update.first_key + update.keys.len() as u64),
        signed(text_records),
        key.map(|entry| entry.key),
        key.map(|entry| entry.payload),
    ])?;
    let num = old.map_or_else(|| conn.last_insert_rowid(), |row| row.num);
    let json = serde_json::to_string(session)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
    conn.prepare_cached(
        "INSERT OR REPLACE INTO details (num, session, carry) VALUES (?1, ?2, ?3)",
    )?
    .execute(params![num, json, update.carry])?;
    Ok(num)
}

/// Says how many records have their text in the index.
pub(super) fn set_text_records(
    conn: &Connection,
    num: i64,
    text_records: u64,
) -> rusqlite::Result<()> {
    conn.prepare_cached("UPDATE sessions SET text_records = ?2 WHERE num = ?1")?
        .execute(params![num, signed(text_records)])
        .map(drop)
}

/// Removes all rows of a session but its documents, which lead nowhere from then on and are taken out later.
pub(super) fn remove_session(conn: &Connection, num: i64) -> rusqlite::Result<()> {
    for table in [Packed::Entries, Packed::Keys] {
        packed::remove(conn, table, num)?;
    }
    conn.prepare_cached("DELETE FROM details WHERE num = ?1")?.execute([num])?;
    conn.prepare_cached("DELETE FROM sessions WHERE num = ?1")?.execute([num])?;
    conn.prepare_cached("INSERT INTO forgotten (num) VALUES (?1)")?.execute([num]).map(drop)
}

/// A session as lists show it; `None` for a number that is gone.
pub(super) fn session_json(conn: &Connection, num: i64) -> rusqlite::Result<Option<Session>> {
    conn.prepare_cached("SELECT session FROM details WHERE num = ?1")?
        .query_row([num], |row| from_json(row.get_ref(0)?.as_str()?))
        .optional()
}

/// What a hit shows of its session; `None` for a number that is gone.
pub(super) fn session_name(conn: &Connection, num: i64) -> rusqlite::Result<Option<SessionName>> {
    conn.prepare_cached("SELECT session FROM details WHERE num = ?1")?
        .query_row([num], |row| from_json(row.get_ref(0)?.as_str()?))
        .optional()
}

/// The part of a stored session that hits show; the rest of the JSON is passed over.
#[derive(Clone, Debug, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SessionName {
    /// The session.
    pub session_id: SessionId,
    /// Its title.
    pub title: String,
}

/// The folded state of a session.
pub(super) fn carry(conn: &Connection, num: i64) -> rusqlite::Result<Vec<u8>> {
    conn.prepare_cached("SELECT carry FROM details WHERE num = ?1")?
        .query_row([num], |row| row.get(0))
}

/// Which sessions a page of the list may show.
#[derive(Clone, Debug)]
pub(super) struct ListFilter<'a> {
    /// Only those of one project.
    pub project: Option<&'a str>,
    /// One bit for each status by [`status_code`].
    pub statuses: u8,
    /// The least and the greatest id.
    pub ids: ([u8; 16], [u8; 16]),
    /// Only what comes after this one.
    pub after: Option<(i64, SessionId)>,
}

/// Gives sessions, the most recently active first, until `each` returns false. Both statements are answered from
/// their index alone.
pub(super) fn each_listed(
    conn: &Connection,
    filter: &ListFilter<'_>,
    mut each: impl FnMut(i64, SessionId) -> rusqlite::Result<bool>,
) -> rusqlite::Result<()> {
    let (last_ms, last_id) =
        filter.after.map_or((i64::MAX, [u8::MAX; 16]), |(ms, id)| (ms, id_bytes(id)));
    let (least, greatest) = filter.ids;
    let mut statement = conn.prepare_cached(if filter.project.is_some() {
        "SELECT num, id FROM sessions
         WHERE project = ?6 AND (last_ms, id) < (?1, ?2) AND (?3 >> status) & 1 AND id BETWEEN ?4 AND ?5
         ORDER BY last_ms DESC, id DESC"
    } else {
        "SELECT num, id FROM sessions
         WHERE (last_ms, id) < (?1, ?2) AND (?3 >> status) & 1 AND +id BETWEEN ?4 AND ?5 AND ?6 IS NULL
         ORDER BY last_ms DESC, id DESC"
    })?;
    let mut rows = statement.query(params![
        last_ms,
        last_id,
        filter.statuses,
        least,
        greatest,
        filter.project
    ])?;
    while let Some(row) = rows.next()? {
        if !each(row.get(0)?, session_id(row, 1)?)? {
            break;
        }
    }
    Ok(())
}

/// What retention decides by, in no order.
pub(super) fn retention_rows(conn: &Connection) -> rusqlite::Result<Vec<RetentionRow>> {
    conn.prepare_cached("SELECT id, last_ms, status, pinned, imported, project FROM sessions")?
        .query_map([], |row| {
            Ok(RetentionRow {
                session_id: session_id(row, 0)?,
                last_activity_ms: row.get(1)?,
                status: status_of(row.get(2)?),
                pinned: row.get(3)?,
                imported: row.get(4)?,
                project_hash: row.get(5)?,
            })
        })?
        .collect()
}

/// The sessions that were forked from one.
pub(super) fn forks_of(conn: &Connection, id: SessionId) -> rusqlite::Result<Vec<SessionId>> {
    conn.prepare_cached("SELECT id FROM sessions WHERE forked_from = ?1 ORDER BY id")?
        .query_map([id_bytes(id)], |row| session_id(row, 0))?
        .collect()
}

/// The session that a create key made, with the hash of its params.
pub(super) fn by_create_key(
    conn: &Connection,
    key: [u8; 16],
) -> rusqlite::Result<Option<(SessionId, [u8; 8])>> {
    conn.prepare_cached("SELECT id, create_payload FROM sessions WHERE create_key = ?1")?
        .query_row([key], |row| Ok((session_id(row, 0)?, row.get(1)?)))
        .optional()
}

/// How much of one log the catalog has read.
pub(super) struct Extent {
    /// The session.
    pub id: SessionId,
    /// Bytes of its log.
    pub bytes: u64,
    /// Every record has its text in the index.
    pub complete: bool,
}

/// The extent of every session.
pub(super) fn extents(conn: &Connection) -> rusqlite::Result<Vec<Extent>> {
    conn.prepare("SELECT id, bytes, text_records = records FROM sessions")?
        .query_map([], |row| {
            Ok(Extent { id: session_id(row, 0)?, bytes: unsigned(row, 1)?, complete: row.get(2)? })
        })?
        .collect()
}

/// The number of a status in the table and in [`ListFilter::statuses`].
pub(super) const fn status_code(status: SessionStatus) -> u8 {
    match status {
        SessionStatus::Active => 0,
        SessionStatus::Closed => 1,
        SessionStatus::Archived => 2,
        SessionStatus::Corrupted => 3,
    }
}

const fn status_of(code: u8) -> SessionStatus {
    match code {
        0 => SessionStatus::Active,
        1 => SessionStatus::Closed,
        2 => SessionStatus::Archived,
        _ => SessionStatus::Corrupted,
    }
}

fn id_bytes(id: SessionId) -> [u8; 16] {
    id.as_uuid().into_bytes()
}

fn session_id(row: &Row<'_>, column: usize) -> rusqlite::Result<SessionId> {
    row.get(column).map(|bytes| SessionId::from_uuid(uuid::Uuid::from_bytes(bytes)))
}

fn from_json<T: serde::de::DeserializeOwned>(json: &str) -> rusqlite::Result<T> {
    serde_json::from_str(json)
        .map_err(|error| rusqlite::Error::FromSqlConversionFailure(0, Type::Text, Box::new(error)))
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn unsigned(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    row.get::<_, i64>(column).map(|value| u64::try_from(value).unwrap_or_default())
}
