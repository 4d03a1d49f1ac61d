//! `ollmctl sessions view`: page after page, so that a long session begins to show at once.

use ollm_protocol::method::SessionGet;
use ollm_protocol::methods::session::{BranchFilter, SessionGetParams};
use serde_json::Value;

use super::super::{CommandError, Cx};
use crate::cli::{BranchArg, ViewArgs};
use crate::render::View;
use crate::render::transcript::{self, Transcript};

/// Records of one page.
const PAGE: u32 = 500;

pub(super) fn run(args: &ViewArgs, cx: &mut Cx<'_>) -> Result<(), CommandError> {
    let mut params = SessionGetParams {
        session_id: cx.session(&args.id)?,
        from: args.from,
        limit: None,
        branch: match args.branch {
            BranchArg::Active => BranchFilter::Active,
            BranchArg::All => BranchFilter::All,
        },
    };
    let view = View { full: args.full, ..cx.view() };
    let mut transcript = Transcript::new(&chrono::Local, &view);
    let mut missing = args.limit.unwrap_or(u32::MAX);
    let mut merged: Option<Value> = None;
    let mut first = true;
    loop {
        params.limit = Some(missing.min(PAGE));
        let reply = cx.call::<SessionGet>(&params)?;
        let page = reply.value;
        missing = missing.saturating_sub(u32::try_from(page.records.len()).unwrap_or(u32::MAX));
        let end = page.records.is_empty() || page.next_from.is_none() || missing == 0;
        params.from = page.next_from;
        if cx.json() && first && end {
            return cx.print_raw_json(&reply.raw);
        } else if cx.json() {
            merge(&mut merged, serde_json::from_str(reply.raw.get()).unwrap_or_default());
        } else {
            if first {
                cx.print_text(&transcript::head(&page.session, &view))?;
            }
            for record in page.records {
                cx.print_text(&transcript.record(record))?;
            }
        }
        first = false;
        if end {
            break;
        }
    }
    merged.map_or(Ok(()), |merged| cx.print_json(&merged))
}

/// Appends the records of a page; everything else is as the last page has it.
fn merge(merged: &mut Option<Value>, mut page: Value) {
    if let Some(earlier) = merged
        && let Some(Value::Array(mut records)) = earlier.get_mut("records").map(Value::take)
        && let Some(Value::Array(more)) = page.get_mut("records")
    {
        records.append(more);
        page["records"] = Value::Array(records);
    }
    *merged = Some(page);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pages_become_one_object() {
        let mut merged = None;
        merge(&mut merged, json!({"session": 1, "records": [1, 2], "nextFrom": 2}));
        merge(&mut merged, json!({"session": 2, "records": [3]}));
        assert_eq!(merged, Some(json!({"session": 2, "records": [1, 2, 3]})));
    }
}
