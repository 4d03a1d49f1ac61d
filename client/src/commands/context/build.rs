//! `ollmctl context build`: one context, as a model would be sent it.

use clap::Args;
use ollm_protocol::content::{BuiltContext, CompactMode, OmittedItem};
use ollm_protocol::method::ContextBuild;
use ollm_protocol::methods::context::ContextBuildParams;
use ollm_protocol::sanitize;

use super::window::{WindowShare, bar, count_kind, legend, render_messages, window_note};
use crate::args::session::OptionalSessionArg;
use crate::command_context::CommandContext;
use crate::command_error::CommandResult;
use crate::render::table::TableColumn::{Number, Prose, Word};
use crate::render::units::{counted, grouped};
use crate::render::{RenderOptions, table};

/// Rows of omitted records that are shown; `--json` has all.
const SHOWN_OMITTED: usize = 12;

/// Build a context that fits a window, and show how the window is divided.
#[derive(Debug, Args)]
#[command(after_help = "\
Records nothing unless --auto is given.

Examples:
  ollmctl context build last --context-size 4096
  ollmctl context build last --pending 'And in Rust?' --messages
  ollmctl context build last --pending 'Which port was it?' --recall --messages
  ollmctl context build last --json")]
pub(crate) struct BuildArgs {
    #[command(flatten)]
    session: OptionalSessionArg,
    /// The context window in tokens, at least 2048 [default: the session's own].
    #[arg(long, value_name = "TOKENS")]
    context_size: Option<u32>,
    /// A strategy by its name: full-history, pruned-tools, checkpointed, minimal-state or floor. The first keeps
    /// everything, the last only the original task and the latest turns [default: the first that fits].
    #[arg(long)]
    strategy: Option<String>,
    /// A further user message, which is not recorded.
    #[arg(long, value_name = "TEXT")]
    pending: Option<String>,
    /// Add earlier messages that the pending message asks for; without --pending, those that the newest user message asks
    /// for.
    #[arg(long)]
    recall: bool,
    /// Record the plan of this build, so that later contexts begin with it.
    #[arg(long)]
    auto: bool,
    /// Also print the messages.
    #[arg(long)]
    messages: bool,
}

pub(super) fn build(args: BuildArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    let session_id = args.session.id_or_current("context build", ctx)?;
    let params = ContextBuildParams {
        context_size: args.context_size,
        strategy: args.strategy,
        pending: args.pending,
        recall: args.recall,
        compact: if args.auto { CompactMode::Auto } else { CompactMode::Never },
        ..ContextBuildParams::new(session_id)
    };
    ctx.show::<ContextBuild>(&params, |built, options| {
        let mut text = render_build(built, options);
        if args.messages {
            text.push_str(&render_messages(&built.messages));
        }
        text
    })
}

fn render_build(built: &BuiltContext, options: &RenderOptions) -> String {
    let window = built.budget.context_size;
    let shares = window_shares(built);
    let mut text = format!(
        "{} of {} used, {} by {}\n\n{}\n\n",
        counted(built.context_tokens, "token"),
        grouped(built.prompt_limit),
        count_kind(built.count_kind),
        sanitize::one_line(&built.strategy),
        bar(&shares, window, options),
    );
    text.push_str(&legend(&shares, window, options));
    text.push('\n');
    text.push_str(&table::wrapped_fields(&build_fields(built), options.prose_columns));
    if !built.omitted.is_empty() {
        text.push('\n');
        text.push_str(&render_omitted(&built.omitted, options));
    }
    text
}

fn window_shares(built: &BuiltContext) -> Vec<WindowShare> {
    let budget = &built.budget;
    let used = [
        budget.system_prompt_tokens,
        budget.tool_definition_tokens,
        budget.checkpoint_tokens,
        budget.conversation_tokens,
    ];
    let free = budget.prompt_limit.saturating_sub(used.iter().sum());
    [
        ("system", '#', budget.system_prompt_tokens),
        ("tools", '%', budget.tool_definition_tokens),
        ("checkpoints", '+', budget.checkpoint_tokens),
        ("conversation", '=', budget.conversation_tokens),
        ("free", '.', free),
        ("answer reserve", '~', budget.reserve_for_response),
    ]
    .map(|(name, symbol, tokens)| WindowShare { name, symbol, tokens })
    .into()
}

fn build_fields(built: &BuiltContext) -> Vec<(&'static str, String)> {
    let messages = format!(
        "{} of {} included, {} as summaries",
        grouped(built.included_message_count),
        grouped(built.original_message_count),
        grouped(built.summarized_message_count),
    );
    let reused = format!("{} from the previous build", counted(built.prefix_tokens, "token"));
    let request = format!("num_ctx {}, num_predict {}", built.context_size, built.answer_limit);
    let mut fields = vec![
        ("messages", messages),
        ("reused", reused),
        ("request", request),
        ("build", sanitize::one_line(&built.build_id)),
    ];
    if !built.recalled.is_empty() {
        let recalled = built.recalled.iter().map(|record| match record.session_id {
            Some(session) => format!("#{} of {session}", record.seq),
            None => format!("#{}", record.seq),
        });
        fields.push(("recalled", recalled.collect::<Vec<_>>().join(", ")));
    }
    fields.extend(window_note(built.context_size, &built.window).map(|note| ("window", note)));
    if built.transient {
        let text = "this plan is not recorded, so the next one may differ; --auto records it";
        fields.push(("transient", text.to_owned()));
    }
    fields
}

fn render_omitted(items: &[OmittedItem], options: &RenderOptions) -> String {
    let tokens: u64 = items.iter().map(|item| item.tokens).sum();
    let mut text = format!("left out: {}\n", counted(tokens, "token"));
    let columns = [("RECORDS", Word), ("TOKENS", Number), ("REASON", Prose)];
    let rows = items.iter().take(SHOWN_OMITTED).map(|item| {
        let records = match item.through_seq {
            Some(through) => format!("#{} to #{through}", item.seq),
            None => format!("#{}", item.seq),
        };
        let reason = match item.item_count {
            Some(items) => format!("{}: {} not shown", item.reason, grouped(items)),
            None => item.reason.clone(),
        };
        [records, grouped(item.tokens), sanitize::one_line(&reason)]
    });
    text.push_str(&table::render(options.width, &columns, rows));
    if let Some(more) = items.len().checked_sub(SHOWN_OMITTED).filter(|more| *more > 0) {
        text.push_str(&format!("and {} more: --json lists all\n", grouped(more as u64)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{plain, render_options};

    fn built() -> BuiltContext {
        serde_json::from_value(serde_json::json!({
            "messages": [{"role": "user", "content": "hi\u{1b}[2J"}],
            "strategy": "full-history", "contextTokens": 1500, "promptLimit": 3481,
            "budget": {
                "contextSize": 4096, "promptLimit": 3481, "systemPromptTokens": 300,
                "toolDefinitionTokens": 0, "checkpointTokens": 0, "reserveForResponse": 615,
                "availableTokens": 3181, "conversationTokens": 1200,
                "utilizationPercent": 37.7
            },
            "originalMessageCount": 120, "includedMessageCount": 34, "summarizedMessageCount": 0,
            "omitted": [{"seq": 3, "throughSeq": 40, "tokens": 12000, "reason": "budget"}],
            "countKind": "estimated", "prefixTokens": 900, "transient": true,
            "contextSize": 4096, "window": {"verified": true}, "answerLimit": 614, "buildId": "b1"
        }))
        .unwrap()
    }

    #[test]
    fn build_is_readable_without_colors() {
        assert_eq!(
            plain(&render_build(&built(), &render_options(80))),
            "\
1,500 tokens of 3,481 used, estimated by full-history

[######=======================......................................~~~~~~~~~~~]

   PART            TOKENS   SHARE
#  system             300   7.3 %
%  tools                0   0.0 %
+  checkpoints          0   0.0 %
=  conversation     1,200  29.3 %
.  free             1,981  48.4 %
~  answer reserve     615  15.0 %
   window           4,096

messages   34 of 120 included, 0 as summaries
reused     900 tokens from the previous build
request    num_ctx 4096, num_predict 614
build      b1
transient  this plan is not recorded, so the next one may differ; --auto records it

left out: 12,000 tokens
RECORDS    TOKENS  REASON
#3 to #40  12,000  budget
"
        );
    }
}
