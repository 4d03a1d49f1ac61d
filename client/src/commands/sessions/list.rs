//! `ollmctl sessions list`.

use ollm_protocol::content::{Session, SessionStatus};
use ollm_protocol::method::SessionList;
use ollm_protocol::methods::session::{SessionListParams, SessionListResult};

use super::super::cx::settled;
use super::super::{CommandError, Cx, project};
use crate::cli::ListArgs;
use crate::error::ClientError;
use crate::render::sessions;

/// The most sessions of one page.
const PAGE: u32 = 1000;

pub(super) fn run(args: &ListArgs, cx: &mut Cx<'_>) -> Result<(), CommandError> {
    let params = SessionListParams {
        project_path: project::filter(args.project.as_deref())?,
        status: args.status.map(Into::into),
        ..SessionListParams::default()
    };
    let mut result = pages(&params, args.limit, cx)?;
    let mut more = result.next_cursor.is_some();
    if args.all {
        let params = SessionListParams { status: Some(SessionStatus::Archived), ..params };
        let archived = pages(&params, args.limit, cx)?;
        result.data.extend(archived.data);
        result.data.sort_by_key(|session| std::cmp::Reverse(session.last_activity));
        more |= archived.next_cursor.is_some() || result.data.len() > args.limit as usize;
        result.data.truncate(args.limit as usize);
        result.behind |= archived.behind;
        // It would go on in one of two lists only.
        result.next_cursor = None;
        if more && cx.json() {
            cx.terminal.note(sessions::MORE);
        }
    }
    if cx.json() {
        return cx.print_json(&result);
    }
    let remarks = sessions::Remarks { more, behind: result.behind };
    let text = sessions::list(&result.data, remarks, &cx.view());
    cx.print_text(&text)
}

/// Every session that matches, archived ones included.
pub(super) fn every(cx: &mut Cx<'_>) -> Result<Vec<Session>, CommandError> {
    let mut all = Vec::new();
    for status in [None, Some(SessionStatus::Archived)] {
        let params = SessionListParams { status, ..SessionListParams::default() };
        all.extend(pages(&params, u32::MAX, cx)?.data);
    }
    Ok(all)
}

/// Pages put together, up to a limit.
fn pages(
    params: &SessionListParams,
    limit: u32,
    cx: &mut Cx<'_>,
) -> Result<SessionListResult, ClientError> {
    let mut params = params.clone();
    let mut all = SessionListResult { data: Vec::new(), next_cursor: None, behind: false };
    loop {
        let missing = limit.saturating_sub(u32::try_from(all.data.len()).unwrap_or(u32::MAX));
        params.limit = Some(missing.min(PAGE));
        let page = settled(|| Ok(cx.call::<SessionList>(&params)?.value))?;
        all.behind |= page.behind;
        let got = page.data.len();
        all.data.extend(page.data);
        all.next_cursor = page.next_cursor;
        // An empty page with a cursor would be asked for again and again.
        if all.next_cursor.is_none() || got == 0 || all.data.len() >= limit as usize {
            return Ok(all);
        }
        params.cursor.clone_from(&all.next_cursor);
    }
}
