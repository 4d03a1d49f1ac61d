//! The hits of searches and recalls: where each was said, and the text that was found.

use std::fmt::Write as _;

use ollm_protocol::content::{RecallHit, Role, SearchHit};
use ollm_protocol::{Seq, SessionId, Timestamp, sanitize};

use super::session_table::{short_id, title};
use super::units::{ago, counted};
use super::wrap::wrap;
use super::{RenderOptions, Style, table};

/// The narrowest title that is shown; a shorter one says nothing.
const MIN_TITLE_COLUMNS: usize = 8;

/// A list of hits.
pub(crate) struct HitList<'a> {
    options: &'a RenderOptions,
    text: String,
    /// The lines of the excerpts so far, each with its session.
    shown: Vec<(SessionId, String)>,
}

/// The place of a hit.
struct HitPlace<'a> {
    id: String,
    title: &'a str,
    seq: Seq,
    role: Role,
    at: Timestamp,
    other_branch: bool,
}

impl<'a> HitList<'a> {
    pub(crate) const fn new(options: &'a RenderOptions) -> Self {
        Self { options, text: String::new(), shown: Vec::new() }
    }

    /// Adds a hit of a search, with its matches highlighted.
    pub(crate) fn add_found(&mut self, hit: &SearchHit) {
        let id = short_id(hit.short_id.as_deref(), hit.session_id);
        let title = hit.title.as_str();
        let (seq, role, at, other_branch) = (hit.seq, hit.role, hit.at, hit.other_branch);
        self.add_place(&HitPlace { id, title, seq, role, at, other_branch });
        self.add_line(&snippet(hit));
    }

    /// Adds a hit of a recall, unless an earlier hit has shown all of it: a question is shown with its answer, which
    /// is often the next hit. After the first hit, one without any word of the question is left out: it was found only
    /// because it stands beside another.
    pub(crate) fn add_recalled(&mut self, hit: &RecallHit) {
        if hit.matched.is_empty() && !self.text.is_empty() {
            return;
        }
        let excerpt = sanitize::text(&hit.excerpt).replace('\t', " ");
        let lines: Vec<&str> =
            excerpt.lines().map(str::trim_end).filter(|it| !it.is_empty()).collect();
        let session = hit.session_id;
        let is_shown = |line: &&str| {
            let said = without_role(line);
            self.shown.iter().any(|(other, text)| *other == session && text.contains(said))
        };
        if !lines.is_empty() && lines.iter().all(is_shown) {
            return;
        }
        let id = short_id(hit.short_id.as_deref(), session);
        let title = hit.title.as_str();
        let (seq, role, at, other_branch) = (hit.seq, hit.role, hit.at, hit.other_branch);
        self.add_place(&HitPlace { id, title, seq, role, at, other_branch });
        for line in lines {
            self.add_line(line);
            self.shown.push((session, line.to_owned()));
        }
    }

    fn add_place(&mut self, place: &HitPlace<'_>) {
        let id = &place.id;
        let age = ago(place.at, self.options.now);
        let branch = if place.other_branch { " (other branch)" } else { "" };
        let said = format!("#{} {}, {age}{branch}", place.seq, place.role.as_str());
        let room = self.options.width.saturating_sub(id.len() + said.len() + 4);
        let id = Style::Strong.paint(id);
        let title = match room {
            MIN_TITLE_COLUMNS.. => {
                format!("  {}", Style::Faint.paint(&table::clip(&title(place.title), room)))
            }
            _ => String::new(),
        };
        let _infallible = writeln!(self.text, "{id}  {said}{title}");
    }

    fn add_line(&mut self, line: &str) {
        let line = wrap(&format!("    {line}"), self.options.prose_columns, 0);
        let _infallible = writeln!(self.text, "{line}");
    }

    /// Returns the list with a remark if it is empty, has further pages, or may lack records of sessions that are not
    /// indexed yet.
    pub(crate) fn finish(mut self, has_more: bool, behind: Option<u64>) -> String {
        if self.text.is_empty() {
            self.text.push_str("nothing found\n");
        }
        if has_more {
            self.text.push_str("there are more hits: raise --limit or narrow the search\n");
        }
        if let Some(behind) = behind.filter(|behind| *behind > 0) {
            let sessions = counted(behind, "session");
            let _infallible =
                writeln!(self.text, "the latest records of {sessions} are not indexed yet");
        }
        self.text
    }
}

/// Returns a line without the role that it may begin with.
fn without_role(line: &str) -> &str {
    let roles = [Role::System, Role::User, Role::Assistant, Role::Tool];
    let mut said =
        roles.iter().filter_map(|role| line.strip_prefix(role.as_str())?.strip_prefix(": "));
    said.next().unwrap_or(line)
}

/// Returns the snippet with its matches highlighted.
fn snippet(hit: &SearchHit) -> String {
    let shown = |(is_match, text): (bool, String)| match is_match {
        true => Style::Strong.paint(&text),
        false => text,
    };
    pieces(hit, 0).into_iter().map(shown).collect()
}

/// Returns the snippet from a character on, in pieces, each with whether it is a match. Match offsets count characters of
/// the original, so each piece is sanitized after it is cut out; invalid offsets are ignored.
pub(crate) fn pieces(hit: &SearchHit, from: usize) -> Vec<(bool, String)> {
    let chars: Vec<char> = hit.snippet.chars().collect();
    let piece = |from: usize, to: usize| {
        let text: String = chars[from..to].iter().collect();
        sanitize::text(&text).replace(['\n', '\t'], " ")
    };
    let mut pieces = Vec::new();
    let mut done = from.min(chars.len());
    for (start, end) in &hit.matches {
        let (start, end) = (*start as usize, *end as usize);
        if start < done || end <= start || end > chars.len() {
            continue;
        }
        pieces.push((false, piece(done, start)));
        pieces.push((true, piece(start, end)));
        done = end;
    }
    pieces.push((false, piece(done, chars.len())));
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{SESSION_ID, plain, render_options};

    fn found(snippet: &str, matches: &[(u32, u32)]) -> SearchHit {
        serde_json::from_value(serde_json::json!({
            "sessionId": SESSION_ID, "title": "Lists", "seq": 3, "role": "user",
            "at": "2026-01-27T09:00:00Z", "snippet": snippet, "matches": matches, "score": 1.0
        }))
        .unwrap()
    }

    fn recalled(session: &str, seq: u64, excerpt: &str) -> RecallHit {
        serde_json::from_value(serde_json::json!({
            "sessionId": session, "title": "Ports", "seq": seq, "role": "assistant",
            "at": "2026-01-27T09:00:00Z", "excerpt": excerpt, "score": 1.0, "matched": ["port"]
        }))
        .unwrap()
    }

    #[test]
    fn matches_are_highlighted_and_invalid_ones_ignored() {
        let check = |text: &str, matches: &[(u32, u32)], expect: &str| {
            assert_eq!(snippet(&found(text, matches)), expect);
        };
        check("日本 foo bar", &[(3, 6)], "日本 \u{1b}[1mfoo\u{1b}[0m bar");
        check("foo", &[(0, 9), (2, 1), (1, 1)], "foo");
        check("a\u{1b}[31mb", &[], "ab");
        check("aa bb", &[(0, 2), (1, 4), (3, 5)], "\u{1b}[1maa\u{1b}[0m \u{1b}[1mbb\u{1b}[0m");
    }

    #[test]
    fn long_title_is_cut_at_the_width() {
        let options = render_options(60);
        let mut list = HitList::new(&options);
        list.add_found(&SearchHit { title: "word ".repeat(40), ..found("x", &[]) });
        let text = plain(&list.finish(false, None));
        let first = text.lines().next().unwrap();
        assert_eq!((first.chars().count(), first.ends_with('…')), (60, true), "{first}");
    }

    #[test]
    fn hit_has_its_place_and_the_list_its_remarks() {
        let options = render_options(80);
        let mut list = HitList::new(&options);
        list.add_found(&found("reverse a list", &[(0, 7)]));
        list.add_recalled(&recalled(
            SESSION_ID,
            4,
            "user: Which port?\n\nassistant: 6100\u{1b}[31m.\n",
        ));
        assert_eq!(
            plain(&list.finish(true, Some(2))),
            "\
00000001  #3 user, 1 h ago  Lists
    reverse a list
00000001  #4 assistant, 1 h ago  Ports
    user: Which port?
    assistant: 6100.
there are more hits: raise --limit or narrow the search
the latest records of 2 sessions are not indexed yet
"
        );
        assert_eq!(HitList::new(&options).finish(false, None), "nothing found\n");
    }

    #[test]
    fn hit_without_a_word_of_the_question_is_listed_only_first() {
        let beside = |seq| RecallHit { matched: Vec::new(), ..recalled(SESSION_ID, seq, "beside") };
        let seqs = |hits: &[RecallHit]| {
            let options = render_options(80);
            let mut list = HitList::new(&options);
            hits.iter().for_each(|hit| list.add_recalled(hit));
            plain(&list.finish(false, None)).matches('#').count()
        };
        assert_eq!(seqs(&[recalled(SESSION_ID, 4, "port 6100"), beside(5)]), 1);
        assert_eq!(seqs(&[beside(5), recalled(SESSION_ID, 4, "port 6100")]), 2);
    }

    #[test]
    fn answer_that_its_question_has_shown_is_not_listed_again() {
        let options = render_options(80);
        let mut list = HitList::new(&options);
        let other = "0192f0c1-9a3b-7000-8000-000000000002";
        let both = "user: Which port?\nassistant: It is 6100.";
        list.add_recalled(&recalled(SESSION_ID, 3, both));
        list.add_recalled(&recalled(SESSION_ID, 4, both));
        list.add_recalled(&recalled(SESSION_ID, 4, "It is 6100."));
        list.add_recalled(&recalled(SESSION_ID, 4, "It is 6100. Mind the firewall."));
        list.add_recalled(&recalled(other, 4, both));
        let text = plain(&list.finish(false, None));
        let places: Vec<&str> = text.lines().filter(|line| line.contains('#')).collect();
        assert_eq!(places.len(), 3, "{text}");
        assert!(places[1].contains("#4") && text.contains("firewall"), "{text}");
    }
}
