//! `ollmctl context status` and `inspect`: how full a window is and how it is divided, as a bar with a legend, and the
//! parts of a context.

use clap::Args;
use ollm_protocol::content::{
    ContextMessage, CountKind, RecordKind, Reliability, ReliabilityLevel, WindowLimits,
};
use ollm_protocol::method::{ContextInspect, ContextStatus};
use ollm_protocol::methods::context::{
    ContextInspectParams, ContextInspectResult, ContextItem, ContextPart, ContextStatusParams,
    ContextStatusResult,
};
use ollm_protocol::sanitize;

use crate::args::session::OptionalSessionArg;
use crate::command_context::CommandContext;
use crate::command_error::CommandResult;
use crate::render::table::TableColumn::{Number, Prose, Word};
use crate::render::units::{counted, grouped};
use crate::render::{RenderOptions, Style, table};

/// The widest bar: a terminal of 80 columns without the brackets of the bar.
const MAX_BAR_COLUMNS: usize = 78;

/// Show how full a session's context window is, part by part.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ollmctl context status
  ollmctl context status last --context-size 4096
  ollmctl context status --json")]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    session: OptionalSessionArg,
    /// The context window in tokens, at least 2048 [default: the session's own].
    #[arg(long, value_name = "TOKENS")]
    context_size: Option<u32>,
}

/// Show each part of a context, and each part that is left out with the reason.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ollmctl context inspect
  ollmctl context inspect last --messages
  ollmctl context inspect last --build 019ad1a2-7c51-7a90-8b41-6f1e5f0f2d11")]
pub(crate) struct InspectArgs {
    #[command(flatten)]
    session: OptionalSessionArg,
    /// A recent build of the session, by the id that `context build` and chat turns report [default: the context
    /// that a model would be sent now].
    #[arg(long, value_name = "BUILD")]
    build: Option<String>,
    /// Also print the exact messages.
    #[arg(long)]
    messages: bool,
}

pub(super) fn status(args: &StatusArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    let session_id = args.session.id_or_current("context status", ctx)?;
    let params = ContextStatusParams { session_id, context_size: args.context_size };
    ctx.show::<ContextStatus>(&params, render_status)
}

pub(super) fn inspect(args: InspectArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    let session_id = args.session.id_or_current("context inspect", ctx)?;
    let build_id = args.build;
    let params = ContextInspectParams { session_id, build_id, model: None, tools: None };
    ctx.show::<ContextInspect>(&params, |inspected, options| {
        let mut text = render_items(inspected, options);
        if args.messages {
            text.push_str(&render_messages(&inspected.build.messages));
        }
        text
    })
}

/// Returns how full a context is: a headline, the bar, its legend, and further properties.
fn render_status(status: &ContextStatusResult, options: &RenderOptions) -> String {
    let window = u64::from(status.context_size);
    let shares: Vec<WindowShare> = status.parts.iter().filter_map(window_share).collect();
    let mut text = format!("{}\n\n{}\n\n", headline(status), bar(&shares, window, options));
    text.push_str(&legend(&shares, window, options));
    text.push('\n');
    text.push_str(&table::wrapped_fields(&status_fields(status), options.prose_columns));
    text
}

fn headline(status: &ContextStatusResult) -> String {
    let compactions = match status.compression_count {
        0 => String::new(),
        count => format!(" {}", counted(count, "compaction")),
    };
    format!(
        "Context: {}/{} ({:.0} %){compactions}{}",
        grouped(status.context_tokens),
        grouped(status.prompt_limit),
        status.used_percent,
        reliability_suffix(status.reliability.as_ref())
    )
}

/// Returns the name, the icon and the score of a context's reliability after a comma; empty if the reliability is unknown.
pub(in crate::commands) fn reliability_suffix(reliability: Option<&Reliability>) -> String {
    reliability.map_or_else(String::new, |reliability| {
        format!(
            ", reliability {} {:.0} %",
            sanitize::one_line(&reliability.icon),
            reliability.score
        )
    })
}

/// Returns the share of a part; `None` for a part that is empty or unknown to this version.
fn window_share(part: &ContextPart) -> Option<WindowShare> {
    let (name, symbol) = match part.name.as_str() {
        "system" => ("system prompt", '#'),
        "entries" => ("context entries", '@'),
        "goals" => ("goals", '!'),
        "tools" => ("tool definitions", '%'),
        "checkpoints" => ("checkpoints", '+'),
        "user" => ("user messages", 'u'),
        "recent" => ("answers and results", '='),
        "free" => ("free", '.'),
        "reserve" => ("answer reserve", '~'),
        _ => return None,
    };
    // The remaining room is shown even if it is empty.
    let is_shown = part.tokens > 0 || matches!(part.name.as_str(), "free" | "reserve");
    is_shown.then_some(WindowShare { name, symbol, tokens: part.tokens })
}

fn status_fields(status: &ContextStatusResult) -> Vec<(&'static str, String)> {
    let left = status.trigger_tokens.saturating_sub(status.conversation_tokens);
    let trigger = grouped(status.trigger_tokens);
    let compaction = if left == 0 {
        format!("due: the conversation is longer than {trigger} tokens")
    } else {
        format!("at {trigger} tokens of conversation, {} from now", counted(left, "token"))
    };
    let mut fields = vec![("compaction", compaction)];
    fields.extend(window_note(status.context_size, &status.window).map(|note| ("window", note)));
    if let Some(reliability) = &status.reliability {
        let reason = sanitize::one_line(&reliability.reason);
        fields.push(match reliability.level {
            ReliabilityLevel::High => ("reliability", reason),
            _ => ("warning", Style::Bad.paint(&reason)),
        });
    }
    if status.checkpoint_count > 0 {
        fields.push(("checkpoints", grouped(status.checkpoint_count)));
    }
    let strategy = sanitize::one_line(&status.strategy);
    let strategy = match &status.epoch {
        Some(epoch) => {
            format!("{strategy}, since #{} ({})", epoch.seq, sanitize::one_line(&epoch.cause))
        }
        None => strategy,
    };
    fields.push(("strategy", strategy));
    let model = status.model.as_deref().map(sanitize::one_line);
    let model = model.map_or_else(String::new, |model| format!(" for {model}"));
    fields.push(("counts", format!("{}{model}", count_kind(status.count_kind))));
    fields
}

/// Returns why a window has its size, if it is smaller than somebody wanted or not verified.
pub(super) fn window_note(size: u32, limits: &WindowLimits) -> Option<String> {
    let tokens = format!("{} tokens", grouped(u64::from(size)));
    let Some(wanted) = limits.wanted_context else {
        let note = || format!("{tokens}, not verified: the model may have a smaller window");
        return (!limits.verified).then(note);
    };
    let reason = match limits.trained_context {
        Some(trained) if trained == size => "the model was trained for no more",
        _ => "the server gives no more",
    };
    Some(format!("{tokens} instead of {}: {reason}", grouped(u64::from(wanted))))
}

/// Returns everything in a context and everything left out, one line each.
fn render_items(inspected: &ContextInspectResult, options: &RenderOptions) -> String {
    let columns = [
        ("MESSAGE", Number),
        ("CONTENT", Word),
        ("RECORDS", Word),
        ("TOKENS", Number),
        ("FORM", Prose),
    ];
    let mut text = table::render(options.width, &columns, inspected.items.iter().map(item_row));
    let total: u64 = inspected.message_tokens.iter().map(|tokens| u64::from(*tokens)).sum();
    text.push_str(&format!(
        "\n{} in {}, {}, by {}\n",
        counted(total, "token"),
        counted(inspected.message_tokens.len() as u64, "message"),
        count_kind(inspected.build.count_kind),
        sanitize::one_line(&inspected.build.strategy),
    ));
    if inspected.changed {
        let warning = "the prompt, the settings or the way of counting changed since this build; \
                       this is how it would be built now";
        text.push_str(&format!("{}\n", Style::Bad.paint(warning)));
    }
    text
}

fn item_row(item: &ContextItem) -> [String; 5] {
    let content = match (item.kind, item.role) {
        (_, Some(role)) => role.as_str().to_owned(),
        (Some(RecordKind::ToolCall), None) => "tool call".to_owned(),
        (Some(RecordKind::Delta), None) => "update".to_owned(),
        _ => sanitize::one_line(&item.what),
    };
    let records = match (item.seq, item.through_seq) {
        (Some(from), Some(to)) => format!("#{from} to #{to}"),
        (Some(seq), None) => format!("#{seq}"),
        _ => String::new(),
    };
    let form = sanitize::one_line(&item.form);
    let form = match item.reason.as_deref().map(sanitize::one_line) {
        Some(reason) => format!("{form}: {reason}"),
        None => form,
    };
    let form = if item.stale { form + ", the file changed since" } else { form };
    let message = item.message.map(|at| at.to_string()).unwrap_or_default();
    [message, content, records, grouped(item.tokens), form]
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

pub(in crate::commands) const fn count_kind(kind: CountKind) -> &'static str {
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
pub(super) fn render_messages(messages: &[ContextMessage]) -> String {
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

#[cfg(test)]
mod tests {
    use ollm_protocol::content::Role;

    use super::*;
    use crate::testing::{plain, render_options};

    #[test]
    fn window_note_names_the_reason_for_the_size() {
        let check = |wanted_context, trained_context, verified, expect: Option<&str>| {
            let limits = WindowLimits { wanted_context, trained_context, verified };
            assert_eq!(window_note(8192, &limits).as_deref(), expect);
        };
        check(None, Some(40_960), true, None);
        let trained = "8,192 tokens instead of 32,768: the model was trained for no more";
        check(Some(32_768), Some(8192), true, Some(trained));
        let server = "8,192 tokens instead of 32,768: the server gives no more";
        check(Some(32_768), Some(40_960), true, Some(server));
        let unknown = "8,192 tokens, not verified: the model may have a smaller window";
        check(None, None, false, Some(unknown));
    }

    #[test]
    fn status_fits_eighty_columns_without_colors() {
        let part = |name: &str, tokens: u64| serde_json::json!({ "name": name, "tokens": tokens });
        let status: ContextStatusResult = serde_json::from_value(serde_json::json!({
            "model": "qwen3:8b", "contextSize": 8192, "promptLimit": 6963, "contextTokens": 5234,
            "availableTokens": 4463, "conversationTokens": 2900, "triggerTokens": 3570,
            "usedPercent": 75.2, "countKind": "exact", "strategy": "checkpointed",
            "epoch": { "seq": 412, "strategy": "checkpointed", "cause": "overflow", "headTokens": 2500 },
            "compressionCount": 2, "checkpointCount": 1,
            "parts": [part("system", 300), part("entries", 0), part("goals", 200), part("tools", 0),
                part("checkpoints", 1834), part("user", 900), part("recent", 2000),
                part("free", 1729), part("reserve", 1229)],
        }))
        .expect("a status");
        let text = plain(&render_status(&status, &render_options(80)));
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        assert_eq!(lines[0], "Context: 5,234/6,963 (75 %) 2 compactions");
        assert_eq!(
            lines[2],
            "[###!!++++++++++++++++++uuuuuuuu===================.................~~~~~~~~~~~]"
        );
        assert!(text.contains("+  checkpoints           1,834  22.4 %"), "{text}");
        assert!(!text.contains("tool definitions"), "{text}");
        assert!(text.contains("at 3,570 tokens of conversation, 670 tokens from now"), "{text}");
        assert!(text.contains("checkpointed, since #412 (overflow)"), "{text}");
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
        let text = plain(&render_messages(&[ContextMessage::text(Role::User, "hi\u{1b}[2J")]));
        assert_eq!(text, "\nuser\nhi\n");
    }
}
