//! The part of the list of sessions that is loaded: some pages around the selected session. Pure.
//!
//! **Invariants**: the rows are in the order of the daemon's list, the most recently active first, each once; at most
//! [`MAX_ROWS`] and one page are kept; the selection stays with its session while rows come and go.

use std::collections::VecDeque;

use ollm_protocol::SessionId;
use ollm_protocol::content::Session;
use ollm_protocol::methods::session::SessionListResult;

/// Sessions of a page: more than a tall screen shows.
const PAGE_ROWS: u32 = 100;
/// The rows that are kept, about 1 KiB each; a page of them is dropped at the end that is farther from the selection.
const MAX_ROWS: usize = 600;
/// The most sessions that the daemon returns at once.
const MAX_PAGE: usize = 1000;

/// The place of a requested page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum PagePlace {
    /// The page takes the place of all rows.
    Whole,
    /// The page comes before the rows.
    Above,
    /// The page comes after the rows.
    Below,
}

/// A request of a page: its place, its cursor and its limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct PageRequest {
    pub(in super::super) place: PagePlace,
    pub(in super::super) cursor: Option<String>,
    pub(in super::super) limit: u32,
}

/// A page: its cursor, and its rows.
#[derive(Clone, Debug, Default)]
struct SessionPage {
    start: Option<String>,
    rows: Vec<Session>,
}

/// The loaded rows.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct SessionWindow {
    pages: VecDeque<SessionPage>,
    /// The cursors of the pages before the rows, the first page's first.
    above: Vec<Option<String>>,
    /// The cursor of the page after the rows; `None` at the end of the list.
    below: Option<String>,
    selected: usize,
    /// The first row on the screen.
    top: usize,
    /// The request that has no reply yet.
    waiting: Option<PageRequest>,
    /// Set once the daemon has sent the list, which may be empty.
    is_loaded: bool,
    /// Set if the rows are to be requested again.
    is_stale: bool,
    /// Set if a request failed, so that nothing is requested before a refresh.
    is_held: bool,
}

impl SessionWindow {
    pub(in super::super) fn len(&self) -> usize {
        self.pages.iter().map(|page| page.rows.len()).sum()
    }

    pub(in super::super) fn is_loaded(&self) -> bool {
        self.is_loaded
    }

    pub(in super::super) fn rows(&self) -> impl Iterator<Item = &Session> {
        self.pages.iter().flat_map(|page| &page.rows)
    }

    pub(in super::super) fn selected(&self) -> usize {
        self.selected
    }

    pub(in super::super) fn top(&self) -> usize {
        self.top
    }

    /// Returns whether there are sessions before or after the rows.
    pub(in super::super) fn has_more(&self) -> (bool, bool) {
        (!self.above.is_empty(), self.below.is_some())
    }

    pub(in super::super) fn selected_session(&self) -> Option<&Session> {
        self.rows().nth(self.selected)
    }

    /// Moves the selection by a number of rows.
    pub(in super::super) fn move_by(&mut self, rows: isize) {
        let last = self.len().saturating_sub(1);
        self.selected = self.selected.saturating_add_signed(rows).min(last);
    }

    /// Selects the session, if it is loaded.
    pub(in super::super) fn select(&mut self, id: SessionId) {
        let at = self.rows().position(|session| session.session_id == id);
        self.selected = at.unwrap_or(self.selected);
    }

    /// Keeps the selection on a screen of a number of rows.
    pub(in super::super) fn scroll(&mut self, height: usize) {
        self.top = scrolled(self.top, self.selected, height, self.len());
    }

    /// Requests all rows again: they may be older than the daemon's.
    pub(in super::super) fn refresh(&mut self) {
        self.is_stale = true;
        self.is_held = false;
        self.waiting = None;
    }

    /// Notes that a request failed: the same one would fail at once again.
    pub(in super::super) fn hold(&mut self) {
        self.is_held = true;
        self.waiting = None;
    }

    /// Forgets that a reply is awaited: the connection was lost.
    pub(in super::super) fn stop_waiting(&mut self) {
        self.waiting = None;
    }

    /// Returns the next page to request, for a screen of a number of rows; `None` if a reply is awaited or nothing is
    /// missing.
    pub(in super::super) fn next_request(&mut self, height: usize) -> Option<PageRequest> {
        if self.waiting.is_some() || self.is_held {
            return None;
        }
        let is_near_end = self.selected + 2 * height >= self.len();
        let is_near_start = self.selected < height;
        let request = if self.is_stale || !self.is_loaded {
            self.is_stale = false;
            let rows = self.len().clamp(PAGE_ROWS as usize, MAX_PAGE);
            let cursor = self.pages.front().and_then(|page| page.start.clone());
            let limit = u32::try_from(rows).unwrap_or(PAGE_ROWS);
            PageRequest { place: PagePlace::Whole, cursor, limit }
        } else if is_near_end && self.below.is_some() {
            let cursor = self.below.clone();
            PageRequest { place: PagePlace::Below, cursor, limit: PAGE_ROWS }
        } else if is_near_start && !self.above.is_empty() {
            let cursor = self.above.last().cloned().flatten();
            PageRequest { place: PagePlace::Above, cursor, limit: PAGE_ROWS }
        } else {
            return None;
        };
        self.waiting = Some(request.clone());
        Some(request)
    }

    /// Adds a page. Returns false, and changes nothing, if it was not awaited any more.
    pub(in super::super) fn receive(
        &mut self,
        request: &PageRequest,
        page: SessionListResult,
    ) -> bool {
        if self.waiting.as_ref() != Some(request) {
            return false;
        }
        self.waiting = None;
        let selected = self.selected_session().map(|session| session.session_id);
        let rows: Vec<Session> = match request.place {
            PagePlace::Whole => page.data,
            _ => page.data.into_iter().filter(|session| !self.has(session.session_id)).collect(),
        };
        let new = SessionPage { start: request.cursor.clone(), rows };
        match request.place {
            PagePlace::Whole => {
                self.pages = VecDeque::from([new]);
                self.below = page.next_cursor;
                self.is_loaded = true;
            }
            PagePlace::Below => {
                self.pages.push_back(new);
                self.below = page.next_cursor;
            }
            PagePlace::Above => {
                self.above.pop();
                self.top += new.rows.len();
                self.pages.push_front(new);
            }
        }
        // Rows were added before the selected one, or all of them are new.
        self.selected = self.selected.min(self.len().saturating_sub(1));
        if let Some(id) = selected {
            self.select(id);
        }
        self.drop_far_pages();
        true
    }

    /// Puts a session in its place, with what is known of it now.
    pub(in super::super) fn put(&mut self, session: Session) {
        if !self.is_loaded {
            return;
        }
        let selected = self.selected_session().map(|session| session.session_id);
        self.take(session.session_id);
        let at = self.rows().position(|other| order(other) < order(&session));
        let at = at.unwrap_or_else(|| self.len());
        // A session beyond the loaded rows is loaded with its page.
        let is_above = at == 0 && !self.above.is_empty();
        let is_below = at == self.len() && self.below.is_some();
        if !is_above && !is_below {
            self.insert(at, session);
        }
        if let Some(id) = selected {
            self.select(id);
        }
        self.selected = self.selected.min(self.len().saturating_sub(1));
    }

    /// Removes a session from the rows.
    pub(in super::super) fn remove(&mut self, id: SessionId) {
        let selected = self.selected_session().map(|session| session.session_id);
        self.take(id);
        if let Some(id) = selected {
            self.select(id);
        }
        self.selected = self.selected.min(self.len().saturating_sub(1));
    }

    fn has(&self, id: SessionId) -> bool {
        self.rows().any(|session| session.session_id == id)
    }

    fn take(&mut self, id: SessionId) {
        for page in &mut self.pages {
            page.rows.retain(|session| session.session_id != id);
        }
    }

    fn insert(&mut self, mut at: usize, session: Session) {
        if self.pages.is_empty() {
            self.pages.push_back(SessionPage::default());
        }
        let last = self.pages.len() - 1;
        for (number, page) in self.pages.iter_mut().enumerate() {
            if at <= page.rows.len() && (at < page.rows.len() || number == last) {
                page.rows.insert(at, session);
                return;
            }
            at -= page.rows.len();
        }
    }

    /// Drops pages that are far from the selection.
    fn drop_far_pages(&mut self) {
        while self.pages.len() > 1 && self.len() > MAX_ROWS {
            let first = self.pages.front().map_or(0, |page| page.rows.len());
            if self.selected >= self.len() / 2 {
                if let Some(page) = self.pages.pop_front() {
                    self.above.push(page.start);
                    self.selected -= first.min(self.selected);
                    self.top -= first.min(self.top);
                }
            } else if let Some(page) = self.pages.pop_back() {
                self.below = page.start;
            }
        }
    }
}

/// Returns the first row on a screen of a number of rows that shows the selected row and no emptiness at its end.
pub(in super::super) fn scrolled(top: usize, selected: usize, height: usize, len: usize) -> usize {
    let height = height.max(1);
    let most = len.saturating_sub(height);
    let top = top.min(selected).max((selected + 1).saturating_sub(height));
    top.min(most)
}

fn order(session: &Session) -> (i64, SessionId) {
    (session.last_activity.unix_ms(), session.session_id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::session_named;

    /// Returns a session; a larger number is more recently active.
    fn session(number: u64) -> Session {
        let mut session =
            session_named(&format!("0192f0c1-9a3b-7000-8000-{number:012x}"), &number.to_string());
        session.last_activity =
            ollm_protocol::Timestamp::from_unix_ms(i64::try_from(number).unwrap());
        session
    }

    /// Returns the daemon's reply for a list of sessions with these numbers, the greatest first.
    fn reply(numbers: &[u64], request: &PageRequest) -> SessionListResult {
        let after: u64 =
            request.cursor.as_deref().map_or(u64::MAX, |cursor| cursor.parse().unwrap());
        let rest: Vec<u64> = numbers.iter().copied().filter(|number| *number < after).collect();
        let data: Vec<Session> =
            rest.iter().take(request.limit as usize).copied().map(session).collect();
        let next_cursor = (rest.len() > data.len()).then(|| rest[data.len() - 1].to_string());
        SessionListResult { data, next_cursor, behind: false }
    }

    fn loaded(numbers: &[u64], height: usize) -> SessionWindow {
        let mut window = SessionWindow::default();
        answer(&mut window, numbers, height);
        window
    }

    /// Answers requests until nothing is missing.
    fn answer(window: &mut SessionWindow, numbers: &[u64], height: usize) {
        while let Some(request) = window.next_request(height) {
            assert!(window.receive(&request, reply(numbers, &request)));
        }
        window.scroll(height);
    }

    fn numbers(window: &SessionWindow) -> Vec<u64> {
        window.rows().map(|session| session.title.parse().unwrap()).collect()
    }

    #[test]
    fn whole_list_can_be_walked_in_bounded_memory() {
        let all: Vec<u64> = (1..=3000).rev().collect();
        let mut window = loaded(&all, 20);
        let selected = |window: &SessionWindow| -> u64 {
            window.selected_session().unwrap().title.parse().unwrap()
        };
        for expect in &all {
            assert_eq!(selected(&window), *expect);
            assert!(window.len() <= MAX_ROWS + PAGE_ROWS as usize, "{}", window.len());
            window.move_by(1);
            answer(&mut window, &all, 20);
            assert!((window.top..window.top + 20).contains(&window.selected));
        }
        assert_eq!((selected(&window), window.has_more()), (1, (true, false)));
        for expect in all.iter().rev() {
            assert_eq!(selected(&window), *expect);
            window.move_by(-1);
            answer(&mut window, &all, 20);
            assert!(window.len() <= MAX_ROWS + PAGE_ROWS as usize);
        }
        assert_eq!((selected(&window), window.has_more()), (3000, (false, true)));
        assert!(numbers(&window).is_sorted_by(|one, other| one > other));
    }

    #[test]
    fn session_that_changes_is_put_in_its_place() {
        let mut window = loaded(&[50, 40, 30], 10);
        window.select(session(40).session_id);
        window.put(session(60));
        window.put(session(45));
        assert_eq!(numbers(&window), [60, 50, 45, 40, 30]);
        assert_eq!(window.selected_session().unwrap().title, "40");
        let moved = Session { last_activity: session(99).last_activity, ..session(40) };
        window.put(moved);
        assert_eq!(numbers(&window), [40, 60, 50, 45, 30]);
        assert_eq!(window.selected(), 0, "the selection follows its session");
        window.remove(session(40).session_id);
        assert_eq!((numbers(&window)[0], window.selected()), (60, 0));
    }

    #[test]
    fn session_beyond_the_rows_is_not_put_at_their_ends() {
        let all: Vec<u64> = (1..=3000).rev().map(|number| number * 2).collect();
        let mut window = loaded(&all, 20);
        window.put(session(3));
        assert!(!numbers(&window).contains(&3));
        for _ in 0..2000 {
            window.move_by(1);
            answer(&mut window, &all, 20);
        }
        window.put(session(9999));
        assert!(!numbers(&window).contains(&9999));
        let selected: u64 = window.selected_session().unwrap().title.parse().unwrap();
        window.put(session(selected + 1));
        assert!(numbers(&window).contains(&(selected + 1)));
    }

    #[test]
    fn refresh_replaces_the_rows_and_keeps_the_selection() {
        let mut window = loaded(&[50, 40, 30, 20], 10);
        window.select(session(30).session_id);
        window.refresh();
        answer(&mut window, &[60, 50, 30, 20], 10);
        assert_eq!(numbers(&window), [60, 50, 30, 20]);
        assert_eq!(window.selected_session().unwrap().title, "30");
        window.refresh();
        answer(&mut window, &[60], 10);
        assert_eq!(window.selected_session().unwrap().title, "60");
        window.refresh();
        answer(&mut window, &[], 10);
        assert!(window.is_loaded() && window.selected_session().is_none());
        window.put(session(1));
        assert_eq!(numbers(&window), [1]);
    }

    #[test]
    fn reply_that_is_not_awaited_is_dropped() {
        let mut window = SessionWindow::default();
        let request = window.next_request(10).unwrap();
        assert_eq!(window.next_request(10), None, "one request at a time");
        window.stop_waiting();
        assert!(!window.receive(&request, reply(&[1], &request)));
        assert_eq!(window.len(), 0);
    }

    #[test]
    fn selected_row_is_on_the_screen() {
        let check = |top, selected, height, len, expect| {
            assert_eq!(scrolled(top, selected, height, len), expect);
        };
        check(0, 0, 5, 3, 0);
        check(0, 5, 5, 9, 1);
        check(7, 2, 5, 9, 2);
        check(8, 8, 5, 9, 4);
        check(0, 0, 0, 0, 0);
    }
}
