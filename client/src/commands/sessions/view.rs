//! `ollmctl sessions view`: prints page after page, so that a long session begins to show at once.

use clap::Args;
use ollm_protocol::method::SessionGet;
use ollm_protocol::methods::session::{BranchFilter, SessionGetParams};
use serde_json::Value;

use crate::args::session::OptionalSessionArg;
use crate::args::wire_enum;
use crate::command_context::CommandContext;
use crate::command_error::CommandResult;
use crate::render::RenderOptions;
use crate::render::session_table::heading;
use crate::render::transcript::Transcript;

/// Records of one page.
const PAGE_RECORDS: u32 = 500;

/// Read a session as a transcript.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ollmctl sessions view
  ollmctl sessions view last
  ollmctl sessions view last --from -20
  ollmctl sessions view 0192f0c1 --from 100 --limit 50 --branch all")]
pub(crate) struct ViewArgs {
    #[command(flatten)]
    session: OptionalSessionArg,
    /// The number of the first record; a negative number counts from the end.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    from: Option<i64>,
    /// The maximum number of records [default: all].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// The branches to show.
    #[arg(
        long,
        default_value = "active",
        value_parser = wire_enum::<BranchFilter>(&["All branches", "The active branch"])
    )]
    branch: BranchFilter,
    /// Print long tool outputs and thinking in full, and token counts.
    #[arg(long)]
    full: bool,
}

pub(super) fn run(args: &ViewArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    let mut params = SessionGetParams {
        session_id: args.session.id_or_current("sessions view", ctx)?,
        from: args.from,
        limit: None,
        branch: args.branch,
    };
    let options = RenderOptions { full: args.full, ..ctx.render_options() };
    let mut transcript = Transcript::new(&options);
    let mut missing = args.limit.unwrap_or(u32::MAX);
    let mut joined: Option<Value> = None;
    let mut is_first = true;
    loop {
        params.limit = Some(missing.min(PAGE_RECORDS));
        let mut reply = ctx.call::<SessionGet>(&params)?;
        ctx.fetch_contents(&mut reply)?;
        let page = &reply.value;
        missing = missing.saturating_sub(u32::try_from(page.records.len()).unwrap_or(u32::MAX));
        let is_last = page.records.is_empty() || page.next_from.is_none() || missing == 0;
        params.from = page.next_from;
        if ctx.json() {
            if is_first && is_last {
                return ctx.print_raw_json(&reply.raw);
            }
            join_page(&mut joined, reply.to_json());
        } else {
            if is_first {
                ctx.print_text(&heading(&page.session, &options))?;
            }
            for record in reply.value.records {
                ctx.print_text(&transcript.record(record))?;
            }
        }
        if is_last {
            return joined.map_or(Ok(()), |joined| ctx.print_json(&joined));
        }
        is_first = false;
    }
}

/// Appends the records of a page; all other fields are those of the last page.
fn join_page(joined: &mut Option<Value>, mut page: Value) {
    if let Some(earlier) = joined
        && let Some(Value::Array(mut records)) = earlier.get_mut("records").map(Value::take)
        && let Some(Value::Array(more)) = page.get_mut("records")
    {
        records.append(more);
        page["records"] = Value::Array(records);
    }
    *joined = Some(page);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pages_become_one_object() {
        let mut joined = None;
        join_page(&mut joined, json!({"session": 1, "records": [1, 2], "nextFrom": 2}));
        join_page(&mut joined, json!({"session": 2, "records": [3]}));
        assert_eq!(joined, Some(json!({"session": 2, "records": [1, 2, 3]})));
    }
}
