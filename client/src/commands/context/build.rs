//! `ollmctl context build`: builds a context and shows how the window is divided, as a bar with a legend.

use clap::Args;
use ollm_protocol::content::{BuiltContext, CompactMode, ContextMessage, CountKind, OmittedItem};
use ollm_protocol::method::ContextBuild;
use ollm_protocol::methods::context::ContextBuildParams;
use ollm_protocol::sanitize;

use crate::args::session::OptionalSessionArg;
use crate::command_context::CommandContext;
use crate::command_error::CommandResult;
use crate::project::session_or_current;
use crate::render::table;
use crate::render::table::TableColumn::{Number, Prose, Word};
use crate::render::units::{counted, grouped};
use crate::render::{RenderOptions, Style};

/// The widest bar: a terminal of 80 columns without the brackets of the bar.
const MAX_BAR_COLUMNS: usize = 78;
/// The maximum number of rows of omitted records.
const SHOWN_OMITTED: usize = 12;

/// Build a context that fits a window, and show how the window is divided.
#[derive(Debug, Args)]
#[command(after_help = "\
Records nothing unless --auto is given.

Examples:
  ollmctl context build last --size 4096
  ollmctl context build last --pending 'And in Rust?' --messages
  ollmctl context build last --json")]
pub(crate) struct BuildArgs {
    #[command(flatten)]
    session: OptionalSessionArg,
    /// The context window in tokens, at least 2048 [default: the session's own].
    #[arg(long, value_name = "TOKENS")]
    size: Option<u32>,
    /// A strategy by its name: full-history, pruned-tools, checkpointed, minimal-state or floor. The first keeps
    /// everything, the last only the original task and the latest turns [default: the first that fits].
    #[arg(long)]
    strategy: Option<String>,
    /// A further user message, which is not recorded.
    #[arg(long, value_name = "TEXT")]
    pending: Option<String>,
    /// Record the plan of this build, so that later contexts begin with it.
    #[arg(long)]
    auto: bool,
    /// Also print the messages.
    #[arg(long)]
    messages: bool,
}

pub(super) fn run(args: BuildArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    let session_id = session_or_current(args.session.given(), "context build", ctx)?;
    let params = ContextBuildParams {
        context_size: args.size,
        strategy: args.strategy,
        pending: args.pending,
        compact: if args.auto { CompactMode::Auto } else { CompactMode::Never },
        ..ContextBuildParams::new(session_id)
    };
    ctx.show::<ContextBuild>(&params, |built, options| {
        let mut text = render(built, options);
        if args.messages {
            text.push_str(&render_messages(&built.messages));
        }
        text
    })
}

/// A share of the window, and its symbol in the bar.
pub(super) struct WindowShare {
    pub(super) name: &'static str,
    pub(super) symbol: char,
    pub(super) tokens: u64,
}

/// Returns the window as a bar. Each share that is not empty has at least one symbol.
pub(super) fn bar(shares: &[WindowShare], window: u64, options: &RenderOptions) -> String {
    let window = window.max(1);
    let width = options.width.saturating_sub(2).clamp(10, MAX_BAR_COLUMNS);
    let columns = width as u64;
    let mut bar = String::new();
    let mut tokens = 0;
    for share in shares {
        tokens += share.tokens;
        let drawn = bar.len() as u64;
        let end = (tokens.min(window) * columns).div_ceil(window);
        let symbols = end.saturating_sub(drawn).max(u64::from(share.tokens > 0));
        bar.extend(std::iter::repeat_n(share.symbol, usize::try_from(symbols).unwrap_or(0)));
    }
    bar.truncate(width);
    format!("[{bar}]")
}

/// Returns a table of the symbols in the bar, with their tokens.
pub(super) fn legend(shares: &[WindowShare], window: u64, options: &RenderOptions) -> String {
    let rows = shares.iter().map(|share| {
        [
            share.symbol.to_string(),
            share.name.to_owned(),
            grouped(share.tokens),
            percent(share.tokens, window),
        ]
    });
    let total = [String::new(), "window".to_owned(), grouped(window), String::new()];
    let columns = [("", Word), ("PART", Word), ("TOKENS", Number), ("SHARE", Number)];
    table::render(options.width, &columns, rows.chain([total]))
}

pub(super) const fn count_kind(kind: CountKind) -> &'static str {
    match kind {
        CountKind::Exact => "counted exactly",
        CountKind::Calibrated => "estimated and calibrated",
        CountKind::Estimated => "estimated",
    }
}

#[expect(clippy::cast_precision_loss, reason = "one decimal is shown")]
fn percent(tokens: u64, window: u64) -> String {
    format!("{:.1} %", tokens as f64 * 100.0 / window.max(1) as f64)
}

/// Returns the messages as they are sent to a model.
pub(in crate::commands) fn render_messages(messages: &[ContextMessage]) -> String {
    let mut text = String::new();
    for message in messages {
        let mut author = message.role.as_str().to_owned();
        if let Some(tool) = &message.tool_name {
            author = format!("{author} {}", sanitize::one_line(tool));
        }
        text.push_str(&format!("\n{}\n", Style::of_role(message.role).paint(&author)));
        let content = sanitize::text(&message.content);
        if !content.is_empty() {
            text.push_str(content.trim_end_matches('\n'));
            text.push('\n');
        }
        for call in &message.tool_calls {
            let args = sanitize::one_line(&call.function.arguments.to_string());
            text.push_str(&format!("-> {} {args}\n", sanitize::one_line(&call.function.name)));
        }
        if !message.images.is_empty() {
            text.push_str(&format!("[{}]\n", counted(message.images.len() as u64, "image")));
        }
    }
    text
}

fn render(built: &BuiltContext, options: &RenderOptions) -> String {
    let window = built.budget.model_context_window;
    let shares = window_shares(built);
    let mut text = format!(
        "{} of {} used, {} by {}\n\n{}\n\n",
        counted(built.tokens_used, "token"),
        grouped(built.token_budget),
        count_kind(built.count_kind),
        sanitize::one_line(&built.strategy),
        bar(&shares, window, options),
    );
    text.push_str(&legend(&shares, window, options));
    text.push('\n');
    text.push_str(&table::fields(&build_fields(built)));
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
        budget.current_conversation_tokens,
    ];
    let free = budget.prompt_limit.saturating_sub(used.iter().sum());
    [
        ("system", '#', budget.system_prompt_tokens),
        ("tools", '%', budget.tool_definition_tokens),
        ("checkpoints", '+', budget.checkpoint_tokens),
        ("conversation", '=', budget.current_conversation_tokens),
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
    let request = format!("num_ctx {}, num_predict {}", built.num_ctx, built.num_predict);
    let mut fields = vec![
        ("messages", messages),
        ("reused", reused),
        ("request", request),
        ("build", sanitize::one_line(&built.build_id)),
    ];
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
        [records, grouped(item.tokens), sanitize::one_line(&item.reason)]
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
            "strategy": "full-history", "tokensUsed": 1500, "tokenBudget": 3481,
            "budget": {
                "modelContextWindow": 4096, "promptLimit": 3481, "systemPromptTokens": 300,
                "toolDefinitionTokens": 0, "checkpointTokens": 0, "reserveForResponse": 615,
                "availableTokens": 3181, "currentConversationTokens": 1200,
                "utilizationPercent": 37.7
            },
            "originalMessageCount": 120, "includedMessageCount": 34, "summarizedMessageCount": 0,
            "omitted": [{"seq": 3, "throughSeq": 40, "tokens": 12000, "reason": "budget"}],
            "countKind": "estimated", "prefixTokens": 900, "transient": true,
            "numCtx": 4096, "numPredict": 614, "buildId": "b1"
        }))
        .unwrap()
    }

    #[test]
    fn build_is_readable_without_colors() {
        assert_eq!(
            plain(&render(&built(), &render_options(80))),
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

    #[test]
    fn bar_has_the_requested_width_for_any_tokens() {
        let check = |parts: &[u64], window, expect: &str| {
            let shares: Vec<WindowShare> = parts
                .iter()
                .zip("#=.~".chars())
                .map(|(tokens, symbol)| WindowShare { name: "", symbol, tokens: *tokens })
                .collect();
            assert_eq!(bar(&shares, window, &render_options(12)), format!("[{expect}]"));
        };
        check(&[1, 1, 1, 1], 4, "###==...~~");
        check(&[1, 0, 998, 1], 1000, "#.........");
        check(&[0, 0, 10, 0], 10, "..........");
        check(&[50, 50, 50, 50], 100, "#####=====");
        check(&[0, 0, 0, 0], 0, "");
    }

    #[test]
    fn messages_are_sanitized() {
        let text = plain(&render_messages(&built().messages));
        assert_eq!(text, "\nuser\nhi\n");
    }
}
