//! A context window as a bar and a table, and what is in it piece by piece.

use ollm_protocol::content::{CountKind, RecordKind, Reliability};
use ollm_protocol::methods::context::{
    ContextInspectResult, ContextItem, ContextPart, ContextStatusResult,
};
use ollm_protocol::sanitize;

use super::View;
use super::number::{counted, grouped};
use super::style::Style;
use super::table::{self, Column};

/// The widest bar: a terminal of 80 columns, without its brackets.
const WIDEST: usize = 78;

/// One share of the window and the sign that stands for it in the bar, also without colors.
pub(super) struct Share {
    /// Its name.
    pub(super) name: &'static str,
    /// Its sign.
    pub(super) sign: char,
    /// Its tokens.
    pub(super) tokens: u64,
}

/// One sign per part of the window; a share that is not zero has at least one.
pub(super) fn bar(shares: &[Share], window: u64, view: &View) -> String {
    let window = window.max(1);
    let width = view.width.saturating_sub(2).clamp(10, WIDEST);
    let columns = width as u64;
    let mut bar = String::new();
    let mut passed = 0;
    for share in shares {
        passed += share.tokens;
        let drawn = bar.len() as u64;
        let until = (passed.min(window) * columns).div_ceil(window);
        let signs = until.saturating_sub(drawn).max(u64::from(share.tokens > 0));
        bar.extend(std::iter::repeat_n(share.sign, usize::try_from(signs).unwrap_or(0)));
    }
    bar.truncate(width);
    format!("[{bar}]")
}

/// What each sign of the bar stands for, with its tokens.
pub(super) fn legend(shares: &[Share], window: u64, view: &View) -> String {
    let row = |share: &Share| {
        vec![
            share.sign.to_string(),
            share.name.to_owned(),
            grouped(share.tokens),
            percent(share.tokens, window),
        ]
    };
    let whole = vec![String::new(), "window".to_owned(), grouped(window), String::new()];
    let rows: Vec<Vec<String>> = shares.iter().map(row).chain([whole]).collect();
    let columns = [
        ("", Column::Word),
        ("PART", Column::Word),
        ("TOKENS", Column::Number),
        ("SHARE", Column::Number),
    ];
    table::render(view.width, &columns, &rows)
}

#[expect(clippy::cast_precision_loss, reason = "one decimal is shown")]
fn percent(tokens: u64, window: u64) -> String {
    format!("{:.1} %", tokens as f64 * 100.0 / window.max(1) as f64)
}

/// How full a context is: one line, the bar, its parts, and what comes next.
pub(crate) fn status(status: &ContextStatusResult, view: &View) -> String {
    let window = u64::from(status.num_ctx);
    let shares: Vec<Share> = status.parts.iter().filter_map(share).collect();
    let mut text = format!("{}\n\n{}\n\n", headline(status), bar(&shares, window, view));
    text.push_str(&legend(&shares, window, view));
    text.push('\n');
    text.push_str(&table::fields(&facts(status)));
    text
}

fn headline(status: &ContextStatusResult) -> String {
    let compactions = match status.compression_count {
        0 => String::new(),
        count => format!(" {}", counted(count, "compaction")),
    };
    format!(
        "Context: {}/{} ({:.0} %){compactions}",
        grouped(status.tokens_used),
        grouped(status.prompt_limit),
        status.used_percent,
    ) + &level(status.reliability.as_ref())
}

/// The sign of the level with its score, once there is something to judge.
pub(crate) fn level(reliability: Option<&Reliability>) -> String {
    reliability.map_or_else(String::new, |one| {
        format!(" {} {:.0} %", sanitize::one_line(&one.icon), one.score)
    })
}

/// A part with the sign that it has in the bar; one that this version does not know is not drawn.
fn share(part: &ContextPart) -> Option<Share> {
    let (name, sign) = match part.name.as_str() {
        "system" => ("system prompt", '#'),
        "entries" => ("context entries", '@'),
        "goals" => ("goals", '!'),
        "tools" => ("tool definitions", '%'),
        "checkpoints" => ("checkpoints", '+'),
        "user" => ("user messages", 'u'),
        "recent" => ("answers and results", '='),
        "free" => ("free", '.'),
        "reserve" => ("kept for the answer", '~'),
        _ => return None,
    };
    // What is nowhere used needs no line, but the room that is left does.
    let is_shown = part.tokens > 0 || matches!(part.name.as_str(), "free" | "reserve");
    is_shown.then_some(Share { name, sign, tokens: part.tokens })
}

fn facts(status: &ContextStatusResult) -> Vec<(&'static str, String)> {
    let left = status.trigger_tokens.saturating_sub(status.conversation_tokens);
    let trigger = grouped(status.trigger_tokens);
    let compaction = if left == 0 {
        format!("due: the conversation has passed {trigger} tokens")
    } else {
        format!("at {trigger} tokens of conversation, in {}", counted(left, "token"))
    };
    let mut facts = vec![("compaction", compaction)];
    let reliability = status.reliability.as_ref();
    if let Some(percent) = reliability.and_then(|one| one.retained_percent) {
        let what = "of task, pins, decisions, files and names survived the last compaction";
        facts.push(("retained", format!("{percent} % {what}")));
    }
    if let Some(warning) = reliability.and_then(|one| one.warning.as_deref()) {
        facts.push(("warning", Style::Bad.paint(&sanitize::one_line(warning))));
    }
    if status.checkpoint_count > 0 {
        facts.push(("checkpoints", grouped(status.checkpoint_count)));
    }
    let strategy = sanitize::one_line(&status.strategy);
    facts.push(match &status.epoch {
        Some(epoch) => {
            let cause = sanitize::one_line(&epoch.cause);
            ("chosen by", format!("{strategy}, since #{} ({cause})", epoch.seq))
        }
        None => ("chosen by", strategy),
    });
    let model = status.model.as_deref().map(sanitize::one_line);
    let model = model.map_or_else(String::new, |model| format!(" for {model}"));
    facts.push(("counts", format!("{}{model}", count_word(status.count_kind))));
    facts
}

/// Everything in a context and everything left out, one line each.
pub(crate) fn items(result: &ContextInspectResult, view: &View) -> String {
    let rows: Vec<Vec<String>> = result.items.iter().map(row).collect();
    let columns = [
        ("MESSAGE", Column::Number),
        ("WHAT", Column::Word),
        ("RECORDS", Column::Word),
        ("TOKENS", Column::Number),
        ("HOW", Column::Prose),
    ];
    let mut text = table::render(view.width, &columns, &rows);
    let total: u64 = result.message_tokens.iter().map(|tokens| u64::from(*tokens)).sum();
    text.push_str(&format!(
        "\n{} in {}, {}, by {}\n",
        counted(total, "token"),
        counted(result.message_tokens.len() as u64, "message"),
        count_word(result.build.count_kind),
        sanitize::one_line(&result.build.strategy),
    ));
    if result.changed {
        let warning = "the prompt, the settings or the way of counting changed since this build; it would be so now";
        text.push_str(&format!("{}\n", Style::Bad.paint(warning)));
    }
    text
}

fn row(item: &ContextItem) -> Vec<String> {
    let what = match (item.kind, item.role) {
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
    let how = match item.reason.as_deref().map(sanitize::one_line) {
        Some(reason) => format!("{form}: {reason}"),
        None => form,
    };
    let message = item.message.map(|at| at.to_string()).unwrap_or_default();
    vec![message, what, records, grouped(item.tokens), how]
}

pub(super) const fn count_word(kind: CountKind) -> &'static str {
    match kind {
        CountKind::Exact => "counted exactly",
        CountKind::Calibrated => "estimated and calibrated",
        CountKind::Estimated => "estimated",
    }
}

#[cfg(test)]
mod tests {
    use anstream::adapter::strip_str;
    use ollm_protocol::Timestamp;

    use super::*;

    #[test]
    fn the_window_reads_without_colors_on_80_columns() {
        let part = |name: &str, tokens: u64| serde_json::json!({ "name": name, "tokens": tokens });
        let status: ContextStatusResult = serde_json::from_value(serde_json::json!({
            "model": "qwen3:8b", "numCtx": 8192, "promptLimit": 6963, "tokensUsed": 5234,
            "availableTokens": 4463, "conversationTokens": 2900, "triggerTokens": 3570,
            "usedPercent": 75.2, "countKind": "exact", "strategy": "checkpointed",
            "epoch": { "seq": 412, "strategy": "checkpointed", "cause": "overflow", "headTokens": 2500 },
            "compressionCount": 2, "checkpointCount": 1,
            "parts": [part("system", 300), part("entries", 0), part("goals", 200), part("tools", 0),
                part("checkpoints", 1834), part("user", 900), part("recent", 2000),
                part("free", 1729), part("reserve", 1229)],
        }))
        .expect("a status");
        let view = View { width: 80, now: Timestamp::from_unix_ms(0), full: false };
        let text = strip_str(&super::status(&status, &view)).to_string();
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        assert_eq!(lines[0], "Context: 5,234/6,963 (75 %) 2 compactions");
        assert_eq!(
            lines[2],
            "[###!!++++++++++++++++++uuuuuuuu===================.................~~~~~~~~~~~]"
        );
        assert!(text.contains("+  checkpoints           1,834  22.4 %"), "{text}");
        assert!(!text.contains("tool definitions"), "{text}");
        assert!(text.contains("at 3,570 tokens of conversation, in 670 tokens"), "{text}");
        assert!(text.contains("checkpointed, since #412 (overflow)"), "{text}");
    }
}
