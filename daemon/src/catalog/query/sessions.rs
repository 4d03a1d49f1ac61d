//! The tables with one or more rows for each session: `sessions`, `details`, `entries`, `keys` and `forgotten`.

use std::collections::HashSet;

use ollm_protocol::content::{Session, SessionStatus};
use ollm_protocol::{Seq, SessionId, short_id};
use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::titles::{self, TitleWords};
use super::{signed, unsigned};
use crate::session::index::{IndexProgress, IndexUpdate, ScanPoint};

/// The tables to be rewritten after a removal. All others have only numbers.
pub(crate) const REWRITTEN: [&str; 3] = ["sessions", "details", "keys"];

/// The small columns of a session.
#[derive(Clone, Debug)]
pub(crate) struct SessionRow {
    /// The session's number in the catalog, never reused for another session.
    pub num: i64,
    /// The part of the log that the catalog describes.
    pub known: IndexProgress,
    /// Number of records whose text is in the index.
    pub text_records: u64,
    /// The project that the session's documents carry.
    pub project: Option<String>,
}

/// The columns of a session that retention uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RetentionRow {
    pub session_id: SessionId,
    /// The time of the last record, in milliseconds since 1970.
    pub last_activity_ms: i64,
    pub status: SessionStatus,
    pub pinned: bool,
    pub imported: bool,
    pub project_hash: Option<String>,
}

/// The sessions to list.
#[derive(Clone, Debug)]
pub(crate) struct ListQuery<'a> {
    /// List only sessions of one project.
    pub project_hash: Option<&'a str>,
    /// List only sessions with one of these statuses.
    pub statuses: &'a [SessionStatus],
    /// List only sessions whose id has this prefix, in either case, with or without hyphens.
    pub id_prefix: Option<&'a str>,
    /// List only sessions with these words in their titles.
    pub title: Option<&'a TitleWords>,
    /// List only sessions whose id has this end, in the same way.
    pub id_end: Option<&'a str>,
    /// Maximum number of sessions.
    pub limit: usize,
    /// The size of the listed sessions in bytes of JSON after which no further one is listed.
    pub max_bytes: usize,
    /// List only sessions after this position: the last activity and the id of the previous page's last session.
    pub after: Option<(i64, SessionId)>,
    /// The sessions that the caller adds itself, because they are open.
    pub exclude: &'a HashSet<SessionId>,
}

/// A session of a list, in which it is placed by its last activity and its id.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListedRow {
    pub num: i64,
    pub id: SessionId,
    last_ms: i64,
}

impl ListedRow {
    fn from_row(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self { num: row.get(0)?, id: session_id(row, 1)?, last_ms: row.get(2)? })
    }

    /// Returns the position after which a list continues behind the session.
    pub(crate) const fn position(&self) -> (i64, SessionId) {
        (self.last_ms, self.id)
    }
}

/// The part of a stored session that search hits show; the other fields of the JSON are skipped.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SessionTitle {
    pub session_id: SessionId,
    pub title: String,
}

/// The part of one log that the catalog has read.
pub(crate) struct IndexedExtent {
    pub id: SessionId,
    /// Size of the log up to which it is described.
    pub bytes: u64,
    /// Whether the text of every record is in the index.
    pub has_all_text: bool,
    /// Whether the text of some records could not be read.
    pub has_gaps: bool,
    /// Whether damage was found in the log, or the fold lacks records. The log itself is to be read again.
    pub is_doubtful: bool,
}

pub(crate) fn read_row(conn: &Connection, id: SessionId) -> rusqlite::Result<Option<SessionRow>> {
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

/// Writes the summary of a session, as a new row where `old` is `None`, and returns its number.
pub(crate) fn write_summary(
    conn: &Connection,
    old: Option<&SessionRow>,
    update: &IndexUpdate,
    text_records: u64,
) -> rusqlite::Result<i64> {
    let session = &update.session;
    let key = update.create_key.as_ref();
    conn.prepare_cached(
        "INSERT INTO sessions (num, id, last_ms, status, project, pinned, imported, forked_from, bytes, records,
             last_crc, n_keys, text_records, create_key, create_payload, ending)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)
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
        signed(old.map_or(0, |row| row.known.keys) + update.keys.len() as u64),
        signed(text_records),
        key.map(|entry| entry.key),
        key.map(|entry| entry.payload),
        ending_of(short_id::reversed(session.session_id.as_uuid())),
    ])?;
    let num = old.map_or_else(|| conn.last_insert_rowid(), |row| row.num);
    let json = serde_json::to_string(session)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
    let keys = old.map_or(0, |row| row.known.keys) + update.keys.len() as u64;
    let known = IndexProgress { point: update.point, keys };
    let crc = details_crc(session.session_id, num, &known, &json, &update.carry);
    conn.prepare_cached(
        "INSERT OR REPLACE INTO details (num, session, carry, crc) VALUES (?1, ?2, ?3, ?4)",
    )?
    .execute(params![num, json, update.carry, crc])?;
    Ok(num)
}

/// Stores the number of records whose text is in the index.
pub(crate) fn set_text_records(
    conn: &Connection,
    num: i64,
    text_records: u64,
) -> rusqlite::Result<()> {
    conn.prepare_cached("UPDATE sessions SET text_records = ?2 WHERE num = ?1")?
        .execute(params![num, signed(text_records)])
        .map(drop)
}

/// Removes all rows of a session except its documents, which then lead nowhere, and lists it as forgotten.
pub(crate) fn remove(conn: &Connection, num: i64) -> rusqlite::Result<()> {
    remove_packed(conn, PackedTable::Entries, num)?;
    remove_packed(conn, PackedTable::Keys, num)?;
    remove_gaps(conn, num)?;
    titles::remove(conn, num)?;
    conn.prepare_cached("DELETE FROM details WHERE num = ?1")?.execute([num])?;
    conn.prepare_cached("DELETE FROM sessions WHERE num = ?1")?.execute([num])?;
    conn.prepare_cached("INSERT INTO forgotten (num) VALUES (?1)")?.execute([num]).map(drop)
}

/// Returns the numbers of removed sessions whose words may still be in the files.
pub(crate) fn forgotten(conn: &Connection) -> rusqlite::Result<Vec<i64>> {
    conn.prepare_cached("SELECT num FROM forgotten ORDER BY num")?
        .query_map([], |row| row.get(0))?
        .collect()
}

/// Removes a session from the list of forgotten ones, because no byte of it is left in the files.
pub(crate) fn remove_forgotten(conn: &Connection, num: i64) -> rusqlite::Result<()> {
    conn.prepare_cached("DELETE FROM forgotten WHERE num = ?1")?.execute([num]).map(drop)
}

/// Returns whether the catalog has no session.
pub(crate) fn is_empty(conn: &Connection) -> rusqlite::Result<bool> {
    conn.query_row("SELECT NOT EXISTS (SELECT 1 FROM sessions)", [], |row| row.get(0))
}

/// Returns the number of sessions.
pub(crate) fn count(conn: &Connection) -> rusqlite::Result<u64> {
    conn.prepare_cached("SELECT count(*) FROM sessions")?.query_row([], |row| unsigned(row, 0))
}

/// Returns the numbers of the sessions of a project, and of how many of their records the text is indexed.
pub(crate) fn of_project(conn: &Connection, project: &str) -> rusqlite::Result<Vec<(i64, u64)>> {
    conn.prepare_cached("SELECT num, text_records FROM sessions WHERE project = ?1")?
        .query_map([project], |row| Ok((row.get(0)?, unsigned(row, 1)?)))?
        .collect()
}

/// Returns the size of the described part of a session's log; `None` for a removed number.
pub(crate) fn log_bytes(conn: &Connection, num: i64) -> rusqlite::Result<Option<u64>> {
    conn.prepare_cached("SELECT bytes FROM sessions WHERE num = ?1")?
        .query_row([num], |row| unsigned(row, 0))
        .optional()
}

/// Returns the stored JSON of a session as a `Session` or as a [`SessionTitle`]; `None` for a removed number.
pub(crate) fn details<T: DeserializeOwned>(
    conn: &Connection,
    num: i64,
) -> rusqlite::Result<Option<T>> {
    conn.prepare_cached("SELECT session FROM details WHERE num = ?1")?
        .query_row([num], |row| {
            serde_json::from_str(row.get_ref(0)?.as_str()?).map_err(|error| {
                rusqlite::Error::FromSqlConversionFailure(0, Type::Text, Box::new(error))
            })
        })
        .optional()
}

/// Returns the stored title of a session; `None` for a removed number.
pub(crate) fn title(conn: &Connection, num: i64) -> rusqlite::Result<Option<String>> {
    Ok(details::<SessionTitle>(conn, num)?.map(|session| session.title))
}

/// Returns the folded state of a session, after checking it and the session's row.
pub(crate) fn carry(
    conn: &Connection,
    id: SessionId,
    row: &SessionRow,
) -> rusqlite::Result<Vec<u8>> {
    let (session, carry, crc): (String, Vec<u8>, u32) = conn
        .prepare_cached("SELECT session, carry, crc FROM details WHERE num = ?1")?
        .query_row([row.num], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    if details_crc(id, row.num, &row.known, &session, &carry) == crc {
        Ok(carry)
    } else {
        Err(wrong_checksum("details"))
    }
}

/// Returns the checksum of the details of a session and of the part of its log that they describe.
fn details_crc(id: SessionId, num: i64, known: &IndexProgress, session: &str, carry: &[u8]) -> u32 {
    let IndexProgress { point, keys } = known;
    let numbers = [num.cast_unsigned(), point.bytes, point.records, point.last_crc.into(), *keys];
    let mut crc = crc32c::crc32c(&id_bytes(id));
    for number in numbers.into_iter().chain([session.len() as u64]) {
        crc = crc32c::crc32c_append(crc, &number.to_le_bytes());
    }
    crc32c::crc32c_append(crc32c::crc32c_append(crc, session.as_bytes()), carry)
}

/// Returns the error of a row that contradicts another one.
fn wrong_row(table: &'static str) -> rusqlite::Error {
    let error = format!("rows of {table} contradict others");
    rusqlite::Error::FromSqlConversionFailure(0, Type::Null, error.into())
}

/// Returns the error of a row whose content differs from the written one.
fn wrong_checksum(table: &'static str) -> rusqlite::Error {
    let error = format!("a row of {table} has a wrong checksum");
    rusqlite::Error::FromSqlConversionFailure(0, Type::Blob, error.into())
}

/// Checks the rows of all sessions, and that no row belongs to a session that does not exist.
pub(crate) fn check_rows(conn: &Connection) -> rusqlite::Result<()> {
    let has_orphans = format!(
        "SELECT EXISTS (SELECT 1 FROM details WHERE num NOT IN (SELECT num FROM sessions))
             OR EXISTS (SELECT 1 FROM entries WHERE id >> {BLOCK_BITS} NOT IN (SELECT num FROM sessions))
             OR EXISTS (SELECT 1 FROM keys WHERE id >> {BLOCK_BITS} NOT IN (SELECT num FROM sessions))
             OR EXISTS (SELECT 1 FROM gaps WHERE num NOT IN (SELECT num FROM sessions))
             OR EXISTS (SELECT 1 FROM docs WHERE session NOT IN
                 (SELECT num FROM sessions UNION SELECT num FROM forgotten))"
    );
    if conn.query_row(&has_orphans, [], |row| row.get(0))? {
        return Err(wrong_row("sessions"));
    }
    for extent in extents(conn)? {
        let Some(row) = read_row(conn, extent.id)? else { return Err(wrong_checksum("sessions")) };
        carry(conn, extent.id, &row)?;
        let _session: Option<Session> = details(conn, row.num)?;
        let entries = read_packed(conn, PackedTable::Entries, row.num, |_: &[u8; 24]| ())?;
        let keys = read_packed(conn, PackedTable::Keys, row.num, |_: &[u8; 28]| ())?;
        let known = row.known;
        if (entries.len() as u64, keys.len() as u64) != (known.point.records, known.keys) {
            return Err(wrong_checksum("entries"));
        }
    }
    Ok(())
}

/// Notes that the text of a record could not be read.
pub(crate) fn add_gap(conn: &Connection, num: i64, seq: Seq) -> rusqlite::Result<()> {
    conn.prepare_cached("INSERT OR IGNORE INTO gaps (num, seq) VALUES (?1, ?2)")?
        .execute(params![num, signed(seq.0)])
        .map(drop)
}

/// Returns the records of a session whose text could not be read.
pub(crate) fn gaps(conn: &Connection, num: i64) -> rusqlite::Result<Vec<Seq>> {
    conn.prepare_cached("SELECT seq FROM gaps WHERE num = ?1 ORDER BY seq")?
        .query_map([num], |row| unsigned(row, 0).map(Seq))?
        .collect()
}

/// Notes that the text of a record was read after all.
pub(crate) fn remove_gap(conn: &Connection, num: i64, seq: Seq) -> rusqlite::Result<()> {
    conn.prepare_cached("DELETE FROM gaps WHERE num = ?1 AND seq = ?2")?
        .execute(params![num, signed(seq.0)])
        .map(drop)
}

/// Forgets all gaps of a session.
pub(crate) fn remove_gaps(conn: &Connection, num: i64) -> rusqlite::Result<()> {
    conn.prepare_cached("DELETE FROM gaps WHERE num = ?1")?.execute([num]).map(drop)
}

/// Calls `each` with sessions, the most recently active first, until it returns false. A session with a whole id is looked
/// up; the other statements are answered from their index alone.
pub(crate) fn each_listed(
    conn: &Connection,
    query: &ListQuery<'_>,
    mut each: impl FnMut(ListedRow) -> rusqlite::Result<bool>,
) -> rusqlite::Result<()> {
    let Some(ids) = id_range(query.id_prefix.unwrap_or_default()) else { return Ok(()) };
    let (last_ms, last_id) = end_of_page_before(query);
    if let Some(end) = query.id_end {
        return each_with_end(conn, query, ids, end, each);
    }
    let (least, greatest) = ids;
    let mut statement = conn.prepare_cached(if least == greatest {
        "SELECT num, id, last_ms FROM sessions
         WHERE id = ?4 AND ?5 = ?4 AND (last_ms, id) < (?1, ?2) AND (?3 >> status) & 1
             AND (?6 IS NULL OR project = ?6)"
    } else if query.project_hash.is_some() {
        "SELECT num, id, last_ms FROM sessions
         WHERE project = ?6 AND (last_ms, id) < (?1, ?2) AND (?3 >> status) & 1 AND id BETWEEN ?4 AND ?5
         ORDER BY last_ms DESC, id DESC"
    } else {
        "SELECT num, id, last_ms FROM sessions
         WHERE (last_ms, id) < (?1, ?2) AND (?3 >> status) & 1 AND +id BETWEEN ?4 AND ?5 AND ?6 IS NULL
         ORDER BY last_ms DESC, id DESC"
    })?;
    let mut rows = statement.query(params![
        last_ms,
        last_id,
        status_bits(query),
        least,
        greatest,
        query.project_hash
    ])?;
    while let Some(row) = rows.next()? {
        if !each(ListedRow::from_row(row)?)? {
            break;
        }
    }
    Ok(())
}

/// Calls `each` like [`each_listed`] with the sessions whose titles match an expression of [`TitleWords`]. The statement
/// finds them all in the index of titles before it orders them, so it does not depend on the number of sessions.
pub(crate) fn each_with_title(
    conn: &Connection,
    query: &ListQuery<'_>,
    expression: &str,
    mut each: impl FnMut(ListedRow) -> rusqlite::Result<bool>,
) -> rusqlite::Result<()> {
    let ids = id_range(query.id_prefix.unwrap_or_default());
    let ends = short_id::with_end(query.id_end.unwrap_or_default());
    let (Some((least, greatest)), Some(ends)) = (ids, ends) else { return Ok(()) };
    let (last_ms, last_id) = end_of_page_before(query);
    // CROSS JOIN keeps the order of the tables: the planner does not know how few titles match.
    let mut statement = conn.prepare_cached(
        "SELECT s.num, s.id, s.last_ms FROM titles CROSS JOIN sessions AS s ON s.num = titles.rowid
         WHERE titles MATCH ?1 AND (s.last_ms, s.id) < (?2, ?3) AND (?4 >> s.status) & 1
             AND s.id BETWEEN ?5 AND ?6 AND (?7 IS NULL OR s.project = ?7)
         ORDER BY s.last_ms DESC, s.id DESC",
    )?;
    let mut rows = statement.query(params![
        expression,
        last_ms,
        last_id,
        status_bits(query),
        least,
        greatest,
        query.project_hash
    ])?;
    while let Some(row) = rows.next()? {
        let row = ListedRow::from_row(row)?;
        if ends.contains(&short_id::reversed(row.id.as_uuid())) && !each(row)? {
            break;
        }
    }
    Ok(())
}

/// Calls `each` like [`each_listed`] with the sessions whose id is in a range and has an end. There are few with any end
/// of some digits, so the statement finds them all before it orders them.
fn each_with_end(
    conn: &Connection,
    query: &ListQuery<'_>,
    (least, greatest): ([u8; 16], [u8; 16]),
    end: &str,
    mut each: impl FnMut(ListedRow) -> rusqlite::Result<bool>,
) -> rusqlite::Result<()> {
    let Some(range) = short_id::with_end(end) else { return Ok(()) };
    let mut found: Vec<ListedRow> = conn
        .prepare_cached(
            "SELECT num, id, last_ms FROM sessions
             WHERE ending BETWEEN ?1 AND ?2 AND (?3 >> status) & 1 AND (?4 IS NULL OR project = ?4)
                 AND +id BETWEEN ?5 AND ?6",
        )?
        .query_map(
            params![
                ending_of(*range.start()),
                ending_of(*range.end()),
                status_bits(query),
                query.project_hash,
                least,
                greatest
            ],
            ListedRow::from_row,
        )?
        .collect::<rusqlite::Result<_>>()?;
    found.retain(|row| {
        range.contains(&short_id::reversed(row.id.as_uuid()))
            && query.after.is_none_or(|after| row.position() < after)
    });
    found.sort_by_key(|row| std::cmp::Reverse(row.position()));
    for row in found {
        if !each(row)? {
            break;
        }
    }
    Ok(())
}

/// Returns the position after which the page begins.
fn end_of_page_before(query: &ListQuery<'_>) -> (i64, [u8; 16]) {
    query.after.map_or((i64::MAX, [u8::MAX; 16]), |(ms, id)| (ms, id_bytes(id)))
}

fn status_bits(query: &ListQuery<'_>) -> i64 {
    query.statuses.iter().fold(0, |bits, status| bits | 1 << status_code(*status))
}

/// Returns the part of an id's reversed digits that the table has.
fn ending_of(reversed: u128) -> [u8; 8] {
    let mut ending = [0; 8];
    ending.copy_from_slice(&reversed.to_be_bytes()[..8]);
    ending
}

/// Returns the short form of a session's id: the neighbors in the index of ends decide its length.
pub(crate) fn short_id(conn: &Connection, id: SessionId) -> rusqlite::Result<String> {
    let ending = ending_of(short_id::reversed(id.as_uuid()));
    let mut neighbors = Vec::new();
    for sql in [
        "SELECT id FROM sessions WHERE (ending, id) < (?1, ?2) ORDER BY ending DESC, id DESC LIMIT 1",
        "SELECT id FROM sessions WHERE (ending, id) > (?1, ?2) ORDER BY ending, id LIMIT 1",
    ] {
        let neighbor = conn
            .prepare_cached(sql)?
            .query_row(params![ending, id_bytes(id)], |row| session_id(row, 0))
            .optional()?;
        neighbors.extend(neighbor.map(|id| id.as_uuid()));
    }
    // Ids that share all digits of the column are told apart by the whole id.
    let has_twin = neighbors.iter().any(|other| ending_of(short_id::reversed(*other)) == ending);
    Ok(if has_twin { id.to_string() } else { short_id::shorten(id.as_uuid(), neighbors) })
}

/// Returns the smallest and the largest id with a prefix; `None` if no id can have it.
pub(crate) fn id_range(prefix: &str) -> Option<([u8; 16], [u8; 16])> {
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

/// Returns a retention row for every session, in no order.
pub(crate) fn retention_rows(conn: &Connection) -> rusqlite::Result<Vec<RetentionRow>> {
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

/// Returns the sessions that were forked from `id`.
pub(crate) fn forks_of(conn: &Connection, id: SessionId) -> rusqlite::Result<Vec<SessionId>> {
    conn.prepare_cached("SELECT id FROM sessions WHERE forked_from = ?1 ORDER BY id")?
        .query_map([id_bytes(id)], |row| session_id(row, 0))?
        .collect()
}

/// Returns the session that was created with a key, and the hash of its params.
pub(crate) fn by_create_key(
    conn: &Connection,
    key: [u8; 16],
) -> rusqlite::Result<Option<(SessionId, [u8; 8])>> {
    conn.prepare_cached("SELECT id, create_payload FROM sessions WHERE create_key = ?1")?
        .query_row([key], |row| Ok((session_id(row, 0)?, row.get(1)?)))
        .optional()
}

/// Returns the indexed extent of every session.
pub(crate) fn extents(conn: &Connection) -> rusqlite::Result<Vec<IndexedExtent>> {
    let sql = format!(
        "SELECT id, bytes, text_records = records,
             num IN (SELECT num FROM gaps),
             status = {} OR num IN (SELECT num FROM details WHERE length(carry) = 0)
         FROM sessions",
        status_code(SessionStatus::Corrupted)
    );
    conn.prepare(&sql)?
        .query_map([], |row| {
            Ok(IndexedExtent {
                id: session_id(row, 0)?,
                bytes: unsigned(row, 1)?,
                has_all_text: row.get(2)?,
                has_gaps: row.get(3)?,
                is_doubtful: row.get(4)?,
            })
        })?
        .collect()
}

/// Returns the number of a status in the table, and of its bit in the statement of [`each_listed`].
const fn status_code(status: SessionStatus) -> u8 {
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

/// Number of items in one row, which is then about 50 KB: a cold open reads few rows and an append rewrites little.
pub(crate) const BLOCK_ITEMS: u64 = 2_048;
/// Bits of a row's id that number the blocks of one session: 2^32 records in blocks of 2^11.
const BLOCK_BITS: u32 = 21;

/// A table of packed items.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PackedTable {
    /// Items of type [`crate::session::index::IndexEntry`].
    Entries,
    /// Items of type [`crate::session::index::KeyEntry`].
    Keys,
}

impl PackedTable {
    const fn name(self) -> &'static str {
        match self {
            Self::Entries => "entries",
            Self::Keys => "keys",
        }
    }
}

/// Appends packed items of `item_bytes` each, the first of which has number `first`. Only the last block is
/// rewritten.
pub(crate) fn append_packed(
    conn: &Connection,
    table: PackedTable,
    num: i64,
    (first, item_bytes): (u64, usize),
    mut items: &[u8],
) -> rusqlite::Result<()> {
    let sql = format!("INSERT OR REPLACE INTO {} (id, packed) VALUES (?1, ?2)", table.name());
    let mut next = first;
    while !items.is_empty() {
        let in_block = next % BLOCK_ITEMS;
        let free_items = usize::try_from(BLOCK_ITEMS - in_block).unwrap_or(usize::MAX);
        let (fitting, remaining) =
            items.split_at(items.len().min(free_items.saturating_mul(item_bytes)));
        let block = next / BLOCK_ITEMS;
        let mut packed = match in_block {
            0 => Vec::new(),
            _ => read_block(conn, table, num, block)?,
        };
        packed.truncate(usize::try_from(in_block).unwrap_or_default() * item_bytes);
        packed.extend_from_slice(fitting);
        seal_block(block_id(num, block), &mut packed);
        conn.prepare_cached(&sql)?.execute(params![block_id(num, block), packed])?;
        next += (fitting.len() / item_bytes) as u64;
        items = remaining;
    }
    Ok(())
}

/// Returns one block of packed items, empty where there is none.
pub(crate) fn read_block(
    conn: &Connection,
    table: PackedTable,
    num: i64,
    block: u64,
) -> rusqlite::Result<Vec<u8>> {
    let id = block_id(num, block);
    let packed: Option<Vec<u8>> = conn
        .prepare_cached(&format!("SELECT packed FROM {} WHERE id = ?1", table.name()))?
        .query_row([id], |row| row.get(0))
        .optional()?;
    let Some(mut packed) = packed else { return Ok(Vec::new()) };
    let n_bytes = block_items(table, id, &packed)?.len();
    packed.truncate(n_bytes);
    Ok(packed)
}

/// Appends the checksum of a block, which covers its id too.
fn seal_block(id: i64, packed: &mut Vec<u8>) {
    packed.extend_from_slice(&block_crc(id, packed).to_le_bytes());
}

/// Returns the items of a block whose checksum is correct.
fn block_items(table: PackedTable, id: i64, packed: &[u8]) -> rusqlite::Result<&[u8]> {
    match packed.split_last_chunk() {
        Some((items, crc)) if block_crc(id, items) == u32::from_le_bytes(*crc) => Ok(items),
        _ => Err(wrong_checksum(table.name())),
    }
}

fn block_crc(id: i64, items: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&id.to_le_bytes()), items)
}

/// Returns all packed items of a session in order.
pub(crate) fn read_packed<const ITEM_BYTES: usize, T>(
    conn: &Connection,
    table: PackedTable,
    num: i64,
    from_bytes: impl Fn(&[u8; ITEM_BYTES]) -> T,
) -> rusqlite::Result<Vec<T>> {
    let name = table.name();
    let sql = format!("SELECT id, packed FROM {name} WHERE id BETWEEN ?1 AND ?2 ORDER BY id");
    let mut statement = conn.prepare_cached(&sql)?;
    let mut rows = statement.query([block_id(num, 0), block_id(num + 1, 0) - 1])?;
    let mut items = Vec::new();
    while let Some(row) = rows.next()? {
        let (packed, _) = block_items(table, row.get(0)?, row.get_ref(1)?.as_blob()?)?.as_chunks();
        items.extend(packed.iter().map(&from_bytes));
    }
    Ok(items)
}

fn remove_packed(conn: &Connection, table: PackedTable, num: i64) -> rusqlite::Result<()> {
    conn.prepare_cached(&format!("DELETE FROM {} WHERE id BETWEEN ?1 AND ?2", table.name()))?
        .execute([block_id(num, 0), block_id(num + 1, 0) - 1])
        .map(drop)
}

const fn block_id(num: i64, block: u64) -> i64 {
    num << BLOCK_BITS | block.cast_signed()
}
