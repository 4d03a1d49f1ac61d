//! `ollmctl context compact` and `context checkpoints`.

use clap::Args;
use ollm_protocol::content::{
    Checkpoint, CompactStrategy, CompactionMethod, Reliability, ReliabilityLevel, Retention,
};
use ollm_protocol::method::{ContextCheckpoints, ContextCompact};
use ollm_protocol::methods::context::{
    ContextCheckpointsResult, ContextCompactParams, ContextCompactResult,
};
use ollm_protocol::methods::session::SessionIdParams;
use ollm_protocol::{EventKind, sanitize};
use serde_json::Value;

use crate::args::session::OptionalSessionArg;
use crate::args::wire_enum;
use crate::command_context::CommandContext;
use crate::command_error::CommandResult;
use crate::render::progress::Spinner;
use crate::render::units::{counted, grouped};
use crate::render::{Style, warning_line};

const STRATEGY_HELP: [&str; 3] = [
    "A model summarizes old turns",
    "Old turns are left out",
    "Old tool results are cut; if that is not enough, a model summarizes",
];

/// Shorten a context: cut old tool results, and let a model summarize old turns.
#[derive(Debug, Args)]
#[command(after_help = "\
The log keeps everything; only what the model is sent becomes shorter.
Ctrl-C cancels the compaction, and nothing is changed.

Examples:
  ollmctl context compact --dry-run
  ollmctl context compact last --instructions 'keep the error codes'
  ollmctl context compact last --strategy truncate")]
pub(crate) struct CompactArgs {
    #[command(flatten)]
    session: OptionalSessionArg,
    /// Only show what would be done.
    #[arg(long)]
    dry_run: bool,
    /// The way to shorten the context [default: as configured].
    #[arg(long, value_parser = wire_enum::<CompactStrategy>(&STRATEGY_HELP))]
    strategy: Option<CompactStrategy>,
    /// Instructions for the summary, for example what it must keep.
    #[arg(long, value_name = "TEXT")]
    instructions: Option<String>,
}

/// List the summaries that replace the beginning of a conversation in the context.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ollmctl context checkpoints
  ollmctl context checkpoints last --summaries")]
pub(crate) struct CheckpointsArgs {
    #[command(flatten)]
    session: OptionalSessionArg,
    /// Also print the summaries.
    #[arg(long)]
    summaries: bool,
}

/// Compacts a session, or shows what that would do, with its steps and its outcome.
pub(super) fn compact(args: CompactArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    let session_id = args.session.id_or_current("context compact", ctx)?;
    let params = ContextCompactParams {
        dry_run: args.dry_run,
        strategy: args.strategy,
        instructions: args.instructions,
        ..ContextCompactParams::new(session_id)
    };
    let mut spinner = Spinner::new("compacting the context".to_owned());
    let kind = EventKind::CompressionProgress;
    let reply = ctx.call_with_events::<ContextCompact>(
        &params,
        session_id,
        kind,
        &mut |event| match event.and_then(|event| step(&event.data)) {
            Some(step) => spinner.set(step),
            None => spinner.tick(),
        },
    )?;
    drop(spinner);
    match reply {
        Some(reply) => ctx.print(&reply, |result, _| render_outcome(result)),
        None => ctx.say_canceled("the context is unchanged"),
    }
}

pub(super) fn checkpoints(args: &CheckpointsArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    let session_id = args.session.id_or_current("context checkpoints", ctx)?;
    let params = SessionIdParams { session_id };
    ctx.show::<ContextCheckpoints>(&params, |found, _| render_checkpoints(found, args.summaries))
}

/// Returns the step of a compaction in words; `None` for a step that this version does not know.
fn step(data: &Value) -> Option<String> {
    let number = |name: &str| data[name].as_u64();
    Some(match data["step"].as_str()? {
        "planning" => "planning the compaction".to_owned(),
        "summarizing" => {
            let range = number("from").zip(number("to"));
            let range = range.map_or_else(String::new, |(from, to)| format!(" #{from} to #{to}"));
            let part = number("piece").zip(number("pieces")).filter(|(_, all)| *all > 1);
            let part = part.map_or_else(String::new, |(at, all)| format!(", part {at} of {all}"));
            format!("summarizing{range}{part}")
        }
        "merging" => "merging the two oldest summaries".to_owned(),
        "writing" => "recording the compaction".to_owned(),
        _ => return None,
    })
}

fn render_outcome(result: &ContextCompactResult) -> String {
    let is_plan = result.reason.as_deref() == Some("dryRun");
    if !result.compacted && !is_plan {
        let tokens = counted(result.tokens_before, "token");
        let reason = match result.reason.as_deref() {
            Some("nothing") => "everything in it is recent",
            Some("unchanged") => "a compaction would not make it shorter",
            Some("recent") => "it was compacted a moment ago",
            _ => "a compaction is not needed",
        };
        return format!("the context stays as it is, with {tokens}: {reason}\n");
    }
    let ContextCompactResult { tokens_before, tokens_after, freed_tokens, .. } = result;
    let verb = if is_plan { "would have" } else { "now has" };
    let mut text = format!(
        "the context {verb} {} tokens instead of {}, {} less\n",
        grouped(*tokens_after),
        grouped(*tokens_before),
        grouped(*freed_tokens)
    );
    text.push_str(&format!("  {}\n", method(result)));
    text.push_str(&format!(
        "  {} stay as they are; the log keeps everything\n",
        counted(result.kept_message_count, "message")
    ));
    if let Some(retention) = &result.retention {
        text.push_str(&format!("  still mentioned: {}\n", retained(retention)));
    }
    text.push_str(&result.reliability.as_ref().map_or_else(String::new, reliability_warning));
    if is_plan {
        text.push_str(&Style::Faint.paint("nothing was changed\n"));
    }
    text
}

fn method(result: &ContextCompactResult) -> String {
    let range = result.from.zip(result.to);
    let range = range.map_or_else(String::new, |(from, to)| format!(" (#{from} to #{to})"));
    let messages = counted(result.summarized_message_count, "message");
    let model = result.model.as_deref().map(sanitize::one_line).unwrap_or_default();
    match result.method {
        Some(CompactionMethod::Pruned) => "old tool results are cut".to_owned(),
        Some(CompactionMethod::Truncated) => "old turns are left out".to_owned(),
        Some(CompactionMethod::Extracted) => {
            format!("{messages}{range} are replaced by excerpts until a model summarizes them")
        }
        Some(CompactionMethod::Summarized) | None => {
            format!("{messages}{range} are summarized by {model}")
        }
    }
}

fn retained(retention: &Retention) -> String {
    let counts = [
        ("task", retention.task),
        ("pins", retention.pins),
        ("locked decisions", retention.decisions),
        ("files", retention.files),
        ("names", retention.identifiers),
        ("values of the notes", retention.values),
        ("facts", retention.facts),
    ];
    let shown = counts.iter().filter(|(_, (_, all))| *all > 0);
    let shown: Vec<String> =
        shown.map(|(noun, (kept, all))| format!("{noun} {kept} of {all}")).collect();
    shown.join(", ")
}

fn reliability_warning(reliability: &Reliability) -> String {
    match reliability.level {
        ReliabilityLevel::High => String::new(),
        _ => warning_line(&reliability.reason),
    }
}

/// Returns each checkpoint on a line, and its summary if wanted.
fn render_checkpoints(result: &ContextCheckpointsResult, summaries: bool) -> String {
    let mut text = format!(
        "{} with {}, after {}; a window of this size keeps {} ({})\n",
        counted(result.checkpoints.len() as u64, "checkpoint"),
        counted(result.tokens, "token"),
        counted(result.compression_count, "compaction"),
        result.checkpoint_limit,
        sanitize::one_line(&result.tier_name)
    );
    for checkpoint in &result.checkpoints {
        text.push_str(&checkpoint_line(checkpoint));
        if summaries {
            for line in sanitize::text(&checkpoint.summary).lines() {
                text.push_str(&format!("    {line}\n"));
            }
        }
    }
    if let Some(reliability) = &result.reliability {
        let Reliability { score, icon, .. } = reliability;
        text.push_str(&format!("reliability {} {score:.0} %\n", sanitize::one_line(icon)));
        text.push_str(&reliability_warning(reliability));
    }
    text
}

fn checkpoint_line(checkpoint: &Checkpoint) -> String {
    let Checkpoint { from, to, level, current_tokens, original_tokens, .. } = checkpoint;
    let age = match level {
        0 => "merged",
        1 => "ancient",
        2 => "old",
        _ => "recent",
    };
    let provisional = if checkpoint.provisional { ", until a model summarizes it" } else { "" };
    format!(
        "  #{from} to #{to}  {age}, {} tokens in place of {}{provisional}\n",
        grouped(*current_tokens),
        grouped(*original_tokens)
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::plain;

    fn reliability() -> Value {
        json!({ "score": 100.0, "level": "high", "icon": "x", "reason": "the task is shown" })
    }

    fn checkpoint() -> Value {
        json!({
            "id": "0192f0c1-0000-7000-8000-000000000001", "level": 3, "from": 1, "to": 18,
            "summary": "## Goal\n- a\u{1b}[2Jb", "createdAt": "2026-01-27T10:00:00Z",
            "originalTokens": 5000, "currentTokens": 120, "compressionCount": 1, "provisional": true,
        })
    }

    #[test]
    fn outcome_has_tokens_before_and_after() {
        let mut value = json!({
            "compacted": true, "method": "summarized", "strategy": "hybrid", "from": 1, "to": 18,
            "summarizedMessageCount": 18, "keptMessageCount": 4, "tokensBefore": 5570,
            "tokensAfter": 1400, "freedTokens": 4170, "model": "m\u{7}", "checkpoints": [],
            "retention": { "task": [1, 1], "pins": [0, 0], "decisions": [0, 0], "files": [1, 2], "identifiers": [3, 4] },
            "reliability": reliability(),
        });
        let text = |value: &Value| {
            let result = serde_json::from_value(value.clone()).expect("a result");
            plain(&render_outcome(&result))
        };
        assert_eq!(
            text(&value),
            "\
the context now has 1,400 tokens instead of 5,570, 4,170 less
  18 messages (#1 to #18) are summarized by m
  4 messages stay as they are; the log keeps everything
  still mentioned: task 1 of 1, files 1 of 2, names 3 of 4
"
        );
        value["compacted"] = json!(false);
        value["reason"] = json!("dryRun");
        let plan = text(&value);
        assert!(
            plan.contains("would have 1,400") && plan.contains("nothing was changed"),
            "{plan}"
        );
        value["reason"] = json!("nothing");
        assert_eq!(
            text(&value),
            "the context stays as it is, with 5,570 tokens: everything in it is recent\n"
        );
    }

    #[test]
    fn step_has_its_range_and_part() {
        let check = |data: Value, expect: Option<&str>| {
            assert_eq!(step(&data).as_deref(), expect, "{data}");
        };
        let mut data =
            json!({ "step": "summarizing", "piece": 2, "pieces": 3, "from": 12, "to": 80 });
        check(data.clone(), Some("summarizing #12 to #80, part 2 of 3"));
        data["pieces"] = json!(1);
        check(data, Some("summarizing #12 to #80"));
        check(json!({ "step": "merging" }), Some("merging the two oldest summaries"));
        check(json!({ "step": "pondering" }), None);
        check(json!({}), None);
    }

    #[test]
    fn checkpoints_are_sanitized() {
        let value = json!({
            "checkpoints": [checkpoint()], "tokens": 120, "compressionCount": 1, "tier": 2,
            "tierName": "smart", "checkpointLimit": 1, "reliability": reliability(),
        });
        let result = serde_json::from_value(value).expect("a result");
        let text = render_checkpoints(&result, true);
        assert!(
            text.contains("#1 to #18  recent, 120 tokens in place of 5,000, until a model"),
            "{text}"
        );
        assert!(text.contains("    ## Goal\n") && !text.contains('\u{1b}'), "{text}");
        assert!(!render_checkpoints(&result, false).contains("Goal"));
        assert!(text.ends_with("reliability x 100 %\n"), "{text}");
        let mut lost = result;
        let reliability =
            json!({ "score": 50.0, "level": "low", "icon": "x", "reason": "pin\u{7} it" });
        lost.reliability = serde_json::from_value(reliability).expect("a reliability");
        assert!(plain(&render_checkpoints(&lost, false)).ends_with("50 %\nwarning: pin it\n"));
    }
}
