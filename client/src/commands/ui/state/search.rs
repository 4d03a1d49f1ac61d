//! A search as one types: sessions by their titles, then messages by their words. Pure.
//!
//! Of each kind one request is under way; its reply is dropped if the text has changed since, and the newest text is
//! requested then. Until a reply arrives, the results before it stay.

use ollm_protocol::content::{SearchHit, Session};
use ollm_protocol::methods::session::{SessionListResult, SessionSearchResult};
use ollm_protocol::{Seq, SessionId};

use super::line_edit::LineEdit;
use super::window::scrolled;

/// The most sessions that are found by their titles. Messages come after them, and should be seen without scrolling far.
pub(in super::super) const MAX_TITLES: u32 = 20;
/// The hits of a page.
pub(in super::super) const PAGE_HITS: u32 = 50;
/// The most hits that are kept.
const MAX_HITS: usize = 1000;
/// The shortest beginning of a word that the daemon finds longer words by.
const MIN_PREFIX_CHARS: usize = 3;

/// A request that a search makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum SearchRequest {
    /// The sessions whose titles have the words of a text.
    Titles { text: String },
    /// A page of hits of a query.
    Hits { query: String, cursor: Option<String> },
}

/// A result of a search.
#[derive(Clone, Copy, Debug)]
pub(in super::super) enum FoundItem<'a> {
    Title(&'a Session),
    Hit(&'a SearchHit),
}

impl FoundItem<'_> {
    /// Returns what stays the same when results are replaced: the session and, for a hit, the record.
    fn key(self) -> (SessionId, Option<Seq>) {
        match self {
            Self::Title(session) => (session.session_id, None),
            Self::Hit(hit) => (hit.session_id, Some(hit.seq)),
        }
    }
}

/// A search and its results.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct SearchBox {
    pub(in super::super) input: LineEdit,
    /// Set if keys edit the text; otherwise they act on the results.
    pub(in super::super) is_edited: bool,
    titles: Vec<Session>,
    hits: Vec<SearchHit>,
    /// The cursor of the next page of hits.
    more: Option<String>,
    selected: usize,
    top: usize,
    /// The last request of each kind, and whether its reply is awaited.
    asked_titles: Option<(SearchRequest, bool)>,
    asked_hits: Option<(SearchRequest, bool)>,
    /// The daemon's answer to a text that cannot be searched for.
    pub(in super::super) problem: Option<String>,
}

impl SearchBox {
    pub(in super::super) fn len(&self) -> usize {
        self.titles.len() + self.hits.len()
    }

    pub(in super::super) fn has_more(&self) -> bool {
        self.more.is_some()
    }

    pub(in super::super) fn selected(&self) -> usize {
        self.selected
    }

    pub(in super::super) fn top(&self) -> usize {
        self.top
    }

    pub(in super::super) fn items(&self) -> impl Iterator<Item = FoundItem<'_>> {
        let titles = self.titles.iter().map(FoundItem::Title);
        titles.chain(self.hits.iter().map(FoundItem::Hit))
    }

    pub(in super::super) fn selected_item(&self) -> Option<FoundItem<'_>> {
        self.items().nth(self.selected)
    }

    /// Returns whether a reply is awaited.
    pub(in super::super) fn is_waiting(&self) -> bool {
        [&self.asked_titles, &self.asked_hits].into_iter().flatten().any(|(_, waits)| *waits)
    }

    pub(in super::super) fn move_by(&mut self, rows: isize) {
        let last = self.len().saturating_sub(1);
        self.selected = self.selected.saturating_add_signed(rows).min(last);
    }

    pub(in super::super) fn scroll(&mut self, height: usize) {
        self.top = scrolled(self.top, self.selected, height, self.len());
    }

    /// Shows at once which of the sessions at hand have the words in their titles, after the text has changed.
    pub(in super::super) fn show_known<'a>(&mut self, known: impl Iterator<Item = &'a Session>) {
        (self.selected, self.top) = (0, 0);
        self.problem = None;
        let words = title_words(self.input.text());
        if words.is_empty() {
            self.titles.clear();
            self.hits.clear();
            self.more = None;
            self.refresh();
            return;
        }
        self.titles.retain(|session| has_words(&session.title, &words));
        for session in known.filter(|session| has_words(&session.title, &words)) {
            let is_new = self.titles.iter().all(|other| other.session_id != session.session_id);
            if is_new && self.titles.len() < MAX_TITLES as usize {
                self.titles.push(session.clone());
            }
        }
        self.titles.sort_by_key(|session| std::cmp::Reverse(session.last_activity));
    }

    /// Requests all results again: they may be older than the daemon's, or the connection was lost.
    pub(in super::super) fn refresh(&mut self) {
        (self.asked_titles, self.asked_hits) = (None, None);
    }

    /// Returns the requests to make now, for a screen of a number of rows.
    pub(in super::super) fn next_requests(&mut self, height: usize) -> Vec<SearchRequest> {
        let text = self.input.text().trim();
        if text.is_empty() {
            return Vec::new();
        }
        let titles = SearchRequest::Titles { text: text.to_owned() };
        let query = query_of(text);
        let is_near_end = self.selected + 2 * height >= self.len() && self.hits.len() < MAX_HITS;
        let is_same = |asked: &SearchRequest| matches!(asked, SearchRequest::Hits { query: asked, .. } if *asked == query);
        let hits = match &self.asked_hits {
            Some((asked, _)) if is_same(asked) => {
                let more = self.more.clone().filter(|_| is_near_end);
                more.map(|cursor| SearchRequest::Hits { query, cursor: Some(cursor) })
            }
            _ => Some(SearchRequest::Hits { query, cursor: None }),
        };
        let titles = ask(&mut self.asked_titles, Some(titles));
        let hits = ask(&mut self.asked_hits, hits);
        titles.into_iter().chain(hits).collect()
    }

    /// Shows the sessions that were found, unless the text has changed since.
    pub(in super::super) fn receive_titles(
        &mut self,
        request: &SearchRequest,
        found: Option<SessionListResult>,
    ) {
        if !self.is_current(request) {
            return;
        }
        if let Some(found) = found {
            self.replace(|search| search.titles = found.data);
        }
    }

    /// Shows the hits that were found, unless the text has changed since.
    pub(in super::super) fn receive_hits(
        &mut self,
        request: &SearchRequest,
        found: Result<SessionSearchResult, String>,
    ) {
        if !self.is_current(request) {
            return;
        }
        let is_first = matches!(request, SearchRequest::Hits { cursor: None, .. });
        match found {
            Ok(page) => {
                self.problem = None;
                self.more = page.next_cursor;
                self.replace(|search| match is_first {
                    true => search.hits = page.data,
                    false => search.hits.extend(page.data),
                });
            }
            Err(problem) => {
                self.problem = Some(problem);
                self.more = None;
                self.replace(|search| search.hits.clear());
            }
        }
    }

    /// Puts what is known of a session now into the results.
    pub(in super::super) fn put(&mut self, session: &Session) {
        for found in &mut self.titles {
            if found.session_id == session.session_id {
                found.clone_from(session);
            }
        }
        for hit in &mut self.hits {
            if hit.session_id == session.session_id {
                hit.title.clone_from(&session.title);
            }
        }
    }

    /// Removes a session from the results.
    pub(in super::super) fn remove(&mut self, id: SessionId) {
        self.replace(|search| {
            search.titles.retain(|session| session.session_id != id);
            search.hits.retain(|hit| hit.session_id != id);
        });
    }

    /// Notes that a reply arrived; returns whether it is about the text of now.
    fn is_current(&mut self, request: &SearchRequest) -> bool {
        let asked = match request {
            SearchRequest::Titles { .. } => &mut self.asked_titles,
            SearchRequest::Hits { .. } => &mut self.asked_hits,
        };
        match asked {
            Some((last, waits)) if last == request => *waits = false,
            _ => return false,
        }
        let text = self.input.text().trim();
        let is_current = match request {
            SearchRequest::Titles { text: asked } => asked == text,
            SearchRequest::Hits { query, .. } => *query == query_of(text),
        };
        is_current && !text.is_empty()
    }

    /// Changes the results; the selection stays with its result, if that is still there.
    fn replace(&mut self, change: impl FnOnce(&mut Self)) {
        let selected = self.selected_item().map(FoundItem::key).filter(|_| self.selected > 0);
        change(self);
        let at = selected.and_then(|key| self.items().position(|item| item.key() == key));
        self.selected = at.unwrap_or(self.selected).min(self.len().saturating_sub(1));
    }
}

/// Returns the request to make: the wanted one, unless a reply is awaited or it was made already.
fn ask(
    asked: &mut Option<(SearchRequest, bool)>,
    wanted: Option<SearchRequest>,
) -> Option<SearchRequest> {
    let wanted = wanted?;
    if asked.as_ref().is_some_and(|(last, waits)| *waits || *last == wanted) {
        return None;
    }
    *asked = Some((wanted.clone(), true));
    Some(wanted)
}

/// Returns the words of a text as the daemon compares titles with them.
fn title_words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_lowercase).collect()
}

fn has_words(title: &str, words: &[String]) -> bool {
    let title = title.to_lowercase();
    words.iter().all(|word| title.contains(word))
}

/// Returns the query of a text whose last word may not be typed to its end.
fn query_of(text: &str) -> String {
    let text = text.trim();
    let last = text.rsplit(char::is_whitespace).next().unwrap_or_default();
    let is_word = last.chars().all(char::is_alphanumeric);
    let is_in_phrase = text.matches('"').count() % 2 == 1;
    if is_word && !is_in_phrase && last.chars().count() >= MIN_PREFIX_CHARS {
        return format!("{text}*");
    }
    // A phrase that is still being typed.
    if is_in_phrase { format!("{text}\"") } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{SESSION_ID, session_named};

    fn typed(search: &mut SearchBox, text: &str, known: &[Session]) {
        search.input = LineEdit::new(text);
        search.show_known(known.iter());
    }

    fn session(number: u64, title: &str) -> Session {
        session_named(&format!("0192f0c1-9a3b-7000-8000-{number:012x}"), title)
    }

    fn titles(data: Vec<Session>) -> Option<SessionListResult> {
        Some(SessionListResult { data, next_cursor: None, behind: false })
    }

    fn hits(seqs: &[u64], next_cursor: Option<&str>) -> Result<SessionSearchResult, String> {
        let hit = |seq: &u64| {
            json!({
                "sessionId": SESSION_ID, "title": "Lists", "seq": seq, "role": "user",
                "at": "2026-01-27T09:00:00Z", "snippet": "a list", "matches": [], "score": 1.0
            })
        };
        let data: Vec<_> = seqs.iter().map(hit).collect();
        Ok(serde_json::from_value(json!({ "data": data, "nextCursor": next_cursor })).unwrap())
    }

    #[test]
    fn last_word_may_be_unfinished() {
        let check = |text: &str, expect: &str| assert_eq!(query_of(text), expect);
        check("reverse lis", "reverse lis*");
        check("re", "re");
        check("日本語", "日本語*");
        check("foo_bar", "foo_bar");
        check("\"reverse a li", "\"reverse a li\"");
        check("\"a list\" rev", "\"a list\" rev*");
        check("word*", "word*");
    }

    #[test]
    fn titles_at_hand_are_shown_at_once() {
        let known =
            [session(1, "Reverse a List"), session(2, "Ports"), session(3, "LISTS reversed")];
        let mut search = SearchBox::default();
        typed(&mut search, "list rev", &known);
        let shown: Vec<_> = search.items().map(|item| item.key().0).collect();
        assert_eq!(shown, [known[0].session_id, known[2].session_id]);
        typed(&mut search, "", &known);
        assert_eq!(search.len(), 0);
        assert!(search.next_requests(10).is_empty());
    }

    #[test]
    fn reply_to_an_older_text_is_dropped() {
        let mut search = SearchBox::default();
        typed(&mut search, "rev", &[]);
        let first = search.next_requests(10);
        assert_eq!(first.len(), 2);
        typed(&mut search, "reve", &[]);
        assert!(search.next_requests(10).is_empty(), "the replies are awaited");
        typed(&mut search, "revers", &[]);
        search.receive_titles(&first[0], titles(vec![session(1, "old")]));
        search.receive_hits(&first[1], hits(&[1], None));
        assert_eq!(search.len(), 0);
        let second = search.next_requests(10);
        assert_eq!(second[0], SearchRequest::Titles { text: "revers".to_owned() });
        assert!(search.is_waiting());
        search.receive_titles(&second[0], titles(vec![session(1, "reverse")]));
        search.receive_hits(&second[1], hits(&[7], None));
        assert_eq!((search.len(), search.is_waiting()), (2, false));
    }

    #[test]
    fn results_stay_until_others_arrive() {
        let mut search = SearchBox::default();
        typed(&mut search, "list", &[]);
        let requests = search.next_requests(10);
        search.receive_titles(&requests[0], titles(Vec::new()));
        search.receive_hits(&requests[1], hits(&[9, 8, 7], None));
        search.move_by(2);
        typed(&mut search, "lists", &[]);
        assert_eq!((search.len(), search.selected()), (3, 0));
        let requests = search.next_requests(10);
        search.move_by(1);
        search.receive_hits(&requests[1], hits(&[10, 9, 8], None));
        assert_eq!(search.selected(), 2, "the selection stays with hit 8");
        search.receive_hits(&requests[1], Err("the query is empty".to_owned()));
        assert_eq!(search.len(), 0);
        assert!(search.problem.is_some());
    }

    #[test]
    fn further_hits_are_requested_near_the_end() {
        let mut search = SearchBox::default();
        typed(&mut search, "list", &[]);
        let requests = search.next_requests(2);
        let first: Vec<u64> = (1..=10).rev().map(|seq| seq + 10).collect();
        search.receive_hits(&requests[1], hits(&first, Some("c")));
        assert!(search.next_requests(2).is_empty());
        search.move_by(9);
        let more = search.next_requests(2);
        let [SearchRequest::Hits { cursor: Some(cursor), .. }] = more.as_slice() else {
            panic!("{more:?}")
        };
        assert_eq!(cursor, "c");
        search.receive_hits(&more[0], hits(&[5, 4], None));
        assert_eq!((search.len(), search.has_more()), (12, false));
        assert!(search.next_requests(2).is_empty());
    }

    #[test]
    fn changed_sessions_change_in_the_results() {
        let mut search = SearchBox::default();
        typed(&mut search, "list", &[session(1, "My list")]);
        let requests = search.next_requests(10);
        search.receive_hits(&requests[1], hits(&[9], None));
        search.put(&session(1, "Other list"));
        let renamed = session_named(SESSION_ID, "Renamed");
        search.put(&renamed);
        let titles: Vec<_> = search
            .items()
            .map(|item| match item {
                FoundItem::Title(session) => session.title.clone(),
                FoundItem::Hit(hit) => hit.title.clone(),
            })
            .collect();
        // Both have the id of the renamed session.
        assert_eq!(titles, ["Renamed", "Renamed"]);
        search.remove(renamed.session_id);
        assert_eq!(search.len(), 0);
    }
}
