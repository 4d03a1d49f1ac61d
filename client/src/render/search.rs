//! Hits of a search.

use ollm_protocol::content::SearchHit;
use ollm_protocol::methods::session::SessionSearchResult;
use ollm_protocol::sanitize;

use super::View;
use super::number::counted;
use super::sessions::short_id;
use super::style::Style;
use super::{table, time};

/// Each hit as where it is and what stands there.
pub(crate) fn hits(result: &SessionSearchResult, view: &View) -> String {
    let mut text = String::new();
    for hit in &result.data {
        let title = sanitize::one_line(&hit.title);
        let title = if title.is_empty() { "(untitled)" } else { title.as_str() };
        let id = short_id(&hit.session_id);
        let place = format!("#{} {}, {}", hit.seq, hit.role.as_str(), time::ago(hit.at, view.now));
        let room = view.width.saturating_sub(id.len() + place.len() + 4);
        text.push_str(&format!(
            "{}  {place}  {}\n    {}\n",
            Style::Strong.paint(&id),
            Style::Faint.paint(&table::clip(title, room)),
            snippet(hit),
        ));
    }
    if result.data.is_empty() {
        text.push_str("nothing found\n");
    }
    if result.next_cursor.is_some() {
        text.push_str("there is more: raise --limit or narrow the search\n");
    }
    if let Some(behind) = result.behind.filter(|behind| *behind > 0) {
        let behind = counted(behind, "session");
        text.push_str(&format!("the newest records of {behind} are not searched yet\n"));
    }
    text
}

/// The snippet with its matches set off. Offsets count characters of the original, so each piece is cleaned
/// after it is cut out; offsets that make no sense are ignored.
fn snippet(hit: &SearchHit) -> String {
    let chars: Vec<char> = hit.snippet.chars().collect();
    let piece = |from: usize, to: usize| {
        let text: String = chars[from..to].iter().collect();
        sanitize::text(&text).replace(['\n', '\t'], " ")
    };
    let mut text = String::new();
    let mut done = 0;
    for (start, end) in &hit.matches {
        let (start, end) = (*start as usize, *end as usize);
        if start < done || end <= start || end > chars.len() {
            continue;
        }
        text.push_str(&piece(done, start));
        text.push_str(&Style::Strong.paint(&piece(start, end)));
        done = end;
    }
    text.push_str(&piece(done, chars.len()));
    text
}

#[cfg(test)]
mod tests {
    use anstream::adapter::strip_str;

    use super::*;

    fn hit(snippet: &str, matches: &[(u32, u32)]) -> SearchHit {
        serde_json::from_value(serde_json::json!({
            "sessionId": "0192f0c1-9a3b-7000-8000-000000000001", "title": "Lists", "seq": 3,
            "role": "user", "at": "2026-01-27T09:00:00Z", "snippet": snippet,
            "matches": matches, "score": 1.0
        }))
        .unwrap()
    }

    #[test]
    fn matches_are_set_off_by_characters_and_nonsense_is_ignored() {
        let check = |text: &str, matches: &[(u32, u32)], expect: &str| {
            assert_eq!(snippet(&hit(text, matches)), expect);
        };
        check("日本 foo bar", &[(3, 6)], "日本 \u{1b}[1mfoo\u{1b}[0m bar");
        check("foo", &[(0, 9), (2, 1), (1, 1)], "foo");
        check("a\u{1b}[31mb", &[], "ab");
        check("aa bb", &[(0, 2), (1, 4), (3, 5)], "\u{1b}[1maa\u{1b}[0m \u{1b}[1mbb\u{1b}[0m");
    }

    #[test]
    fn a_long_title_leaves_the_head_on_its_line() {
        let view = View { width: 60, now: "2026-01-27T10:00:00Z".parse().unwrap(), full: false };
        let long = SearchHit { title: "word ".repeat(40), ..hit("x", &[]) };
        let result = SessionSearchResult { data: vec![long], next_cursor: None, behind: None };
        let text = strip_str(&hits(&result, &view)).to_string();
        let head = text.lines().next().unwrap();
        assert_eq!((head.chars().count(), head.ends_with('…')), (60, true), "{head}");
    }

    #[test]
    fn hits_say_where_they_are() {
        let view = View { width: 80, now: "2026-01-27T10:00:00Z".parse().unwrap(), full: false };
        let result = SessionSearchResult {
            data: vec![hit("reverse a list", &[(0, 7)])],
            next_cursor: Some("c".into()),
            behind: Some(2),
        };
        assert_eq!(
            strip_str(&hits(&result, &view)).to_string(),
            "\
0192f0c1-9a3b  #3 user, 1 h ago  Lists
    reverse a list
there is more: raise --limit or narrow the search
the newest records of 2 sessions are not searched yet
"
        );
    }
}
