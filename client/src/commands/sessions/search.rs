//! `ollmctl sessions search`.

use ollm_protocol::method::SessionSearch;
use ollm_protocol::methods::session::{SessionSearchParams, SessionSearchResult};

use super::super::{CommandError, Cx, project};
use crate::cli::SearchArgs;
use crate::render::search;
use crate::render::time::{self, DayEnd};

/// The most hits of one page.
const PAGE: u32 = 200;

pub(super) fn run(args: &SearchArgs, cx: &mut Cx<'_>) -> Result<(), CommandError> {
    let now = chrono::Local::now();
    let instant = |text: &Option<String>, end| {
        text.as_deref().map(|text| time::parse(text, end, &now)).transpose()
    };
    let mut params = SessionSearchParams {
        query: args.words.join(" "),
        session_id: None,
        project_path: project::filter(args.project.as_deref())?,
        role: args.role.map(Into::into),
        since: instant(&args.since, DayEnd::First)?,
        until: instant(&args.until, DayEnd::Next)?,
        sort: args.sort.into(),
        limit: None,
        cursor: None,
    };
    params.session_id = args.session.as_deref().map(|session| cx.session(session)).transpose()?;
    let mut all = SessionSearchResult { data: Vec::new(), next_cursor: None, behind: None };
    let limit = args.limit as usize;
    loop {
        let missing = u32::try_from(limit - all.data.len()).unwrap_or(PAGE);
        params.limit = Some(missing.min(PAGE));
        let page = cx.call::<SessionSearch>(&params)?.value;
        let got = page.data.len();
        all.data.extend(page.data);
        all.next_cursor = page.next_cursor;
        all.behind = all.behind.max(page.behind);
        if all.next_cursor.is_none() || got == 0 || all.data.len() >= limit {
            break;
        }
        params.cursor.clone_from(&all.next_cursor);
    }
    if cx.json() {
        return cx.print_json(&all);
    }
    let text = search::hits(&all, &cx.view());
    cx.print_text(&text)
}
