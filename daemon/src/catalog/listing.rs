//! Pages of sessions, the most recently active first.
//!
//! Titles with the words of a query are looked for in two ways. First the titles of the newest sessions are read: words
//! that many titles have fill a page at once, and the index would return all those titles before it orders them. If
//! that does not fill the page, the words are rare, and the index finds the few other titles with them.
//!
//! **Invariant**: the read connection is held for one part of a page, whose cost does not depend on the number of
//! sessions, except for words that are common only in the titles of old ones: about 1 us for each such title.

use std::collections::HashSet;

use ollm_protocol::content::Session;
use ollm_protocol::{SessionId, limits};
use rusqlite::Connection;

use super::query::sessions::{self, ListQuery, ListedRow};
use super::query::titles::TitleWords;
use super::reading;

/// Number of sessions of one part of a list without words: 10 to 20 ms, and more than the longest page of a call has.
const PART_SESSIONS: usize = if cfg!(test) { 8 } else { 1_024 };
/// Number of titles that are read before the index is asked: 2.5 ms. In a catalog of 100,000 sessions, the index then
/// has about 5,000 titles with words that do not fill a page of 25, and returns them in about 6 ms. With twice or half
/// as many, the sum would hardly be less.
const READ_TITLES: usize = if cfg!(test) { 4 } else { 512 };

/// A page that is being filled.
pub(super) struct ListPage<'a> {
    query: &'a ListQuery<'a>,
    /// The sessions that must not be shown although they still have rows.
    hidden: &'a HashSet<SessionId>,
    /// The position behind the last session that was examined.
    after: Option<(i64, SessionId)>,
    sessions: Vec<Session>,
    /// The size of the sessions in bytes of JSON.
    bytes: usize,
}

impl<'a> ListPage<'a> {
    pub(super) fn new(query: &'a ListQuery<'a>, hidden: &'a HashSet<SessionId>) -> Self {
        Self { query, hidden, after: query.after, sessions: Vec::new(), bytes: 0 }
    }

    pub(super) fn into_sessions(self) -> Vec<Session> {
        self.sessions
    }

    /// Reads the next part of the page; returns whether there may be another one.
    pub(super) fn read_part(&mut self, conn: &Connection) -> rusqlite::Result<bool> {
        let expression = self.query.title.and_then(TitleWords::expression);
        let mut left = if expression.is_some() { READ_TITLES } else { PART_SESSIONS };
        let query = ListQuery { after: self.after, ..self.query.clone() };
        sessions::each_listed(conn, &query, |row| {
            if left == 0 {
                return Ok(false);
            }
            left -= 1;
            self.add(conn, row)
        })?;
        if left > 0 || self.is_full() {
            return Ok(false);
        }
        let Some(expression) = expression else { return Ok(true) };
        let query = ListQuery { after: self.after, ..query };
        sessions::each_with_title(conn, &query, &expression, |row| self.add(conn, row))?;
        Ok(false)
    }

    /// Adds a session if it is to be shown; returns false when the page is full.
    fn add(&mut self, conn: &Connection, row: ListedRow) -> rusqlite::Result<bool> {
        if self.is_full() {
            return Ok(false);
        }
        self.after = Some(row.position());
        if !self.query.exclude.contains(&row.id)
            && !self.hidden.contains(&row.id)
            && self.has_title(conn, row.num)?
            && let Some(mut session) = sessions::details::<Session>(conn, row.num)?
        {
            // A log can have fields of any size.
            limits::shorten_session(&mut session);
            self.bytes += limits::json_bytes(&session) + ",".len();
            self.sessions.push(session);
        }
        Ok(true)
    }

    fn is_full(&self) -> bool {
        self.sessions.len() >= self.query.limit || self.bytes > self.query.max_bytes
    }

    /// Returns whether the title of a session has the wanted words.
    fn has_title(&self, conn: &Connection, num: i64) -> rusqlite::Result<bool> {
        let Some(words) = self.query.title else { return Ok(true) };
        let title = reading::session_title(conn, num, self.hidden)?;
        Ok(title.is_some_and(|session| words.are_in(&session.title)))
    }
}
