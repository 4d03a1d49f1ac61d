//! `ollmctl sessions search`.

use std::path::PathBuf;

use clap::Args;
use ollm_protocol::content::{Role, SearchHit, SearchSort};
use ollm_protocol::method::SessionSearch;
use ollm_protocol::methods::session::{SessionSearchParams, SessionSearchResult};
use ollm_protocol::sanitize;

use crate::args::{role_parser, wire_enum};
use crate::command_context::CommandContext;
use crate::command_error::{CommandError, CommandResult};
use crate::completion;
use crate::project;
use crate::render::session_table::{short_id, title};
use crate::render::units::{DayBoundary, ago, counted, parse_time};
use crate::render::{RenderOptions, Style, table};

/// The maximum number of hits of one page.
const PAGE_HITS: u32 = 200;

/// Find messages and tool results by their text.
#[derive(Debug, Args)]
#[command(after_help = "\
All words must occur. word* matches words that begin with `word`, from three letters on.
Words in \"quotes\" must occur in that order, and so must words joined by dots or hyphens, like os.path and 2024-06-01.
Names like foo_bar and camelCase are found as a whole and by their parts.

Examples:
  ollmctl sessions search parse config
  ollmctl sessions search '\"connection refused\"' --since 7d
  ollmctl sessions search foo_bar --role assistant --sort relevance
  ollmctl sessions search deadline --since 2026-01-01 --until 2026-01-31")]
pub(crate) struct SearchArgs {
    /// The words to find.
    #[arg(required = true, value_name = "WORDS")]
    words: Vec<String>,
    /// Only in one session: an id, a unique prefix of one, or `last`.
    #[arg(long, value_name = "SESSION", add = completion::sessions())]
    session: Option<String>,
    /// Only in sessions of the project in DIR.
    #[arg(long, value_name = "DIR")]
    project: Option<PathBuf>,
    /// Only messages of this role.
    #[arg(long, value_parser = role_parser())]
    role: Option<Role>,
    /// Only from this time on: 3d, 12h, 2026-01-27, 2026-01-27T10:00:00Z.
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only before this time; a date includes its day.
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// The order of the hits.
    #[arg(long, default_value = "newest", value_parser = wire_enum::<SearchSort>(&["Newest first", "Best match first"]))]
    sort: SearchSort,
    /// The maximum number of hits.
    #[arg(long, value_name = "N", default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
}

pub(super) fn run(args: &SearchArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    let now = chrono::Local::now();
    let time = |given: &Option<String>, boundary| {
        let Some(text) = given else { return Ok(None) };
        let time = parse_time(text, boundary, &now);
        time.map(Some).ok_or_else(|| {
            let forms = "write 3d, 12h, 30m, 2026-01-27 or 2026-01-27T10:00:00Z";
            let text = sanitize::one_line(text);
            CommandError::usage(format!("{text:?} is not a time; {forms}"), "")
        })
    };
    let mut params = SessionSearchParams {
        query: args.words.join(" "),
        session_id: None,
        project_path: project::filter_path(args.project.as_deref())?,
        role: args.role,
        since: time(&args.since, DayBoundary::Start)?,
        until: time(&args.until, DayBoundary::End)?,
        sort: args.sort,
        limit: None,
        cursor: None,
    };
    params.session_id = args.session.as_deref().map(|session| ctx.session(session)).transpose()?;
    let mut all = SessionSearchResult { data: Vec::new(), next_cursor: None, behind: None };
    let limit = args.limit as usize;
    loop {
        let missing = u32::try_from(limit - all.data.len()).unwrap_or(PAGE_HITS);
        params.limit = Some(missing.min(PAGE_HITS));
        let page = ctx.call::<SessionSearch>(&params)?.value;
        let is_empty = page.data.is_empty();
        all.data.extend(page.data);
        all.next_cursor = page.next_cursor;
        all.behind = all.behind.max(page.behind);
        if all.next_cursor.is_none() || is_empty || all.data.len() >= limit {
            break;
        }
        params.cursor.clone_from(&all.next_cursor);
    }
    if ctx.json() {
        return ctx.print_json(&all);
    }
    let text = render(&all, &ctx.render_options());
    ctx.print_text(&text)
}

/// Returns the place and the snippet of each hit.
fn render(result: &SessionSearchResult, options: &RenderOptions) -> String {
    let mut text = String::new();
    for hit in &result.data {
        let id = short_id(&hit.session_id);
        let place = format!("#{} {}, {}", hit.seq, hit.role.as_str(), ago(hit.at, options.now));
        let room = options.width.saturating_sub(id.len() + place.len() + 4);
        text.push_str(&format!(
            "{}  {place}  {}\n    {}\n",
            Style::Strong.paint(&id),
            Style::Faint.paint(&table::clip(&title(&hit.title), room)),
            snippet(hit),
        ));
    }
    if result.data.is_empty() {
        text.push_str("nothing found\n");
    }
    if result.next_cursor.is_some() {
        text.push_str("there are more hits: raise --limit or narrow the search\n");
    }
    if let Some(behind) = result.behind.filter(|behind| *behind > 0) {
        let sessions = counted(behind, "session");
        text.push_str(&format!("the latest records of {sessions} are not indexed yet\n"));
    }
    text
}

/// Returns the snippet with its matches highlighted. Match offsets count characters of the original, so each piece is
/// sanitized after it is cut out; invalid offsets are ignored.
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
    use super::*;
    use crate::testing::{plain, render_options};

    fn hit(snippet: &str, matches: &[(u32, u32)]) -> SearchHit {
        serde_json::from_value(serde_json::json!({
            "sessionId": "0192f0c1-9a3b-7000-8000-000000000001", "title": "Lists", "seq": 3,
            "role": "user", "at": "2026-01-27T09:00:00Z", "snippet": snippet,
            "matches": matches, "score": 1.0
        }))
        .unwrap()
    }

    #[test]
    fn matches_are_highlighted_and_invalid_ones_ignored() {
        let check = |text: &str, matches: &[(u32, u32)], expect: &str| {
            assert_eq!(snippet(&hit(text, matches)), expect);
        };
        check("日本 foo bar", &[(3, 6)], "日本 \u{1b}[1mfoo\u{1b}[0m bar");
        check("foo", &[(0, 9), (2, 1), (1, 1)], "foo");
        check("a\u{1b}[31mb", &[], "ab");
        check("aa bb", &[(0, 2), (1, 4), (3, 5)], "\u{1b}[1maa\u{1b}[0m \u{1b}[1mbb\u{1b}[0m");
    }

    #[test]
    fn long_title_is_cut_at_the_width() {
        let long = SearchHit { title: "word ".repeat(40), ..hit("x", &[]) };
        let result = SessionSearchResult { data: vec![long], next_cursor: None, behind: None };
        let text = plain(&render(&result, &render_options(60)));
        let first = text.lines().next().unwrap();
        assert_eq!((first.chars().count(), first.ends_with('…')), (60, true), "{first}");
    }

    #[test]
    fn hit_has_its_place_and_the_list_its_remarks() {
        let result = SessionSearchResult {
            data: vec![hit("reverse a list", &[(0, 7)])],
            next_cursor: Some("c".into()),
            behind: Some(2),
        };
        assert_eq!(
            plain(&render(&result, &render_options(80))),
            "\
0192f0c1-9a3b  #3 user, 1 h ago  Lists
    reverse a list
there are more hits: raise --limit or narrow the search
the latest records of 2 sessions are not indexed yet
"
        );
    }
}
