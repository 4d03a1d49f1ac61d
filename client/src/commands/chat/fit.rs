//! The check that a question fits into the model's window: a text from a pipe that is cut must not pass for the whole text.
//!
//! The daemon shows a model the beginning and the end of a message that does not fit. This module asks the daemon for the
//! count before anything is recorded, and refuses such a question.

use ollm_protocol::content::CutRecord;
use ollm_protocol::method::{ContextStatus, ModelCountTokens};
use ollm_protocol::methods::context::{ContextStatusParams, ContextStatusResult};
use ollm_protocol::methods::model::ModelCountTokensParams;

use super::session::ChatSession;
use crate::command_context::CommandContext;
use crate::command_error::{CommandError, CommandResult};
use crate::render::units::{counted, grouped};

/// A question with fewer bytes is not counted: only rare bytes would not fit into the smallest window, and the cut is still
/// reported.
const MIN_BYTES: usize = 2048;
/// The largest part of a question, in percent, that may be left out without `--allow-truncation`.
const MAX_LEFT_OUT_PERCENT: u64 = 10;

/// Refuses a question of which the model would not be shown enough.
///
/// If the daemon cannot count it, the turn decides.
pub(super) fn require_fit(
    question: &str,
    session: &mut ChatSession,
    ctx: &mut CommandContext<'_>,
) -> CommandResult {
    if question.len() < MIN_BYTES {
        return Ok(());
    }
    let Ok(mut status) = status(session, ctx) else { return Ok(()) };
    if status.model.is_none() {
        session.choose_model(ctx)?;
        match self::status(session, ctx) {
            Ok(again) => status = again,
            Err(_) => return Ok(()),
        }
    }
    let (model, text) = (status.model.clone(), Some(question.to_owned()));
    let count = ModelCountTokensParams { model, text, messages: None, tools: Vec::new() };
    let Ok(count) = ctx.call::<ModelCountTokens>(&count) else { return Ok(()) };
    let (tokens, room) = (count.value.tokens, status.available_tokens);
    if shown_percent(room, tokens) >= 100 - MAX_LEFT_OUT_PERCENT {
        return Ok(());
    }
    Err(CommandError::usage(
        format!(
            "the question has {}, and the model's window of {} has room for {} ({} %)",
            counted(tokens, "token"),
            grouped(status.context_size.into()),
            grouped(room),
            shown_percent(room, tokens)
        ),
        "ollmctl chat --allow-truncation ...  # shows the model the beginning and the end",
    ))
}

fn status(
    session: &mut ChatSession,
    ctx: &mut CommandContext<'_>,
) -> CommandResult<ContextStatusResult> {
    let params = ContextStatusParams { session_id: session.id(ctx)?, context_size: None };
    Ok(ctx.call::<ContextStatus>(&params)?.value)
}

/// Returns a warning for a person about a record of which the model is shown a part.
pub(super) fn cut_warning(cut: CutRecord) -> String {
    let CutRecord { seq, shown_tokens, total_tokens } = cut;
    format!(
        "warning: #{seq} does not fit into the window: the model is shown {} of {} ({} %)",
        grouped(shown_tokens),
        counted(total_tokens, "token"),
        shown_percent(shown_tokens, total_tokens)
    )
}

/// Returns the part that is shown, in percent, rounded down so that less than all is never 100.
fn shown_percent(shown: u64, total: u64) -> u64 {
    (shown.min(total) * 100).checked_div(total).unwrap_or(100)
}

#[cfg(test)]
mod tests {
    use ollm_protocol::Seq;

    use super::*;

    #[test]
    fn shown_part_is_rounded_down() {
        let check = |shown, total, expect| assert_eq!(shown_percent(shown, total), expect);
        check(0, 0, 100);
        check(10, 10, 100);
        check(11, 10, 100);
        check(9_999, 10_000, 99);
        check(2_900, 48_893, 5);
        check(0, 5, 0);
        let cut = CutRecord { seq: Seq(3), shown_tokens: 2_900, total_tokens: 48_893 };
        assert_eq!(
            cut_warning(cut),
            "warning: #3 does not fit into the window: the model is shown 2,900 of 48,893 tokens (5 %)"
        );
    }
}
