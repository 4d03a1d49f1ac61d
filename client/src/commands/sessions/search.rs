//! `ollmctl sessions search`.

use std::path::PathBuf;

use clap::Args;
use ollm_protocol::content::{Role, SearchSort};
use ollm_protocol::method::SessionSearch;
use ollm_protocol::methods::session::{SessionSearchParams, SessionSearchResult};

use crate::args::{given_time, role_parser, wire_enum};
use crate::command_context::CommandContext;
use crate::command_error::CommandResult;
use crate::completion;
use crate::project;
use crate::render::RenderOptions;
use crate::render::hit::HitList;
use crate::render::units::DayBoundary;

/// The maximum number of hits of one page.
const PAGE_HITS: u32 = 200;

/// Find messages and tool results by their text.
#[derive(Debug, Args)]
#[command(after_help = "\
All words must occur. word* matches words that begin with `word`, from three letters on.
Words in \"quotes\" must occur in that order, and so must words joined by dots or hyphens, like os.path and 2024-06-01.
Names like foo_bar and camelCase are found as a whole and by their parts: UserName finds getUserName and user_name.

Examples:
  ollmctl sessions search parse config
  ollmctl sessions search '\"connection refused\"' --since 7d
  ollmctl sessions search foo_bar --role assistant --sort relevance
  ollmctl sessions search deadline --since 2026-01-01 --until 2026-01-31")]
pub(crate) struct SearchArgs {
    /// The words to find.
    #[arg(required = true, value_name = "WORDS")]
    words: Vec<String>,
    /// Only in one session: an id, a unique end or beginning of one, or `last`.
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
    let time = |given: &Option<String>, boundary| {
        given.as_deref().map(|text| given_time(text, boundary)).transpose()
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
    ctx.print_value(&all, render)
}

/// Returns the place and the snippet of each hit.
fn render(result: &SessionSearchResult, options: &RenderOptions) -> String {
    let mut list = HitList::new(options);
    result.data.iter().for_each(|hit| list.add_found(hit));
    list.finish(result.next_cursor.is_some(), result.behind)
}
