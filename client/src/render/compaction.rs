//! What a compaction did or would do, and checkpoints, for people.

use ollm_protocol::content::{Checkpoint, CompactionMethod, Reliability, Retention};
use ollm_protocol::methods::context::{ContextCheckpointsResult, ContextCompactResult};
use ollm_protocol::sanitize;

use serde_json::Value;

use super::number::{counted, grouped};
use super::style::Style;

/// What was done, or would be.
pub(crate) fn done(result: &ContextCompactResult) -> String {
    let is_plan = result.reason.as_deref() == Some("dryRun");
    if !result.compacted && !is_plan {
        let tokens = counted(result.tokens_before, "token");
        let why = match result.reason.as_deref() {
            Some("nothing") => "everything in it is recent",
            Some("unchanged") => "it would not become smaller",
            Some("recent") => "it was compacted a moment ago",
            _ => "there was no need",
        };
        return format!("the context stays as it is, with {tokens}: {why}\n");
    }
    let ContextCompactResult { tokens_before, tokens_after, freed_tokens, .. } = result;
    let verb = if is_plan { "would become" } else { "is now" };
    let mut text = format!(
        "the context {verb} {} tokens instead of {}; {} are free again\n",
        grouped(*tokens_after),
        grouped(*tokens_before),
        grouped(*freed_tokens)
    );
    text.push_str(&format!("  {}\n", how(result)));
    text.push_str(&format!(
        "  {} stay, and everything stays in the log\n",
        counted(result.kept_message_count, "message")
    ));
    if let Some(retention) = &result.retention {
        text.push_str(&format!("  still named: {}\n", retained(retention)));
    }
    text.push_str(&warning(&result.reliability));
    if is_plan {
        text.push_str(&Style::Faint.paint("nothing was changed\n"));
    }
    text
}

/// A step of a compaction in words; `None` for one that this version does not know.
pub(crate) fn step(data: &Value) -> Option<String> {
    let number = |name: &str| data[name].as_u64();
    Some(match data["step"].as_str()? {
        "planning" => "looking what can be made smaller".to_owned(),
        "summarizing" => {
            let range = number("from").zip(number("to"));
            let range = range.map_or_else(String::new, |(from, to)| format!(" #{from} to #{to}"));
            let part = number("piece").zip(number("pieces")).filter(|(_, all)| *all > 1);
            let part = part.map_or_else(String::new, |(at, all)| format!(", part {at} of {all}"));
            format!("summarizing{range}{part}")
        }
        "merging" => "merging the two oldest summaries".to_owned(),
        "writing" => "writing it down".to_owned(),
        _ => return None,
    })
}

fn how(result: &ContextCompactResult) -> String {
    let range = result.from.zip(result.to);
    let range = range.map_or_else(String::new, |(from, to)| format!(", #{from} to #{to}"));
    let messages = counted(result.summarized_message_count, "message");
    let model = result.model.as_deref().map(sanitize::one_line).unwrap_or_default();
    match result.method {
        Some(CompactionMethod::Pruned) => "results of older tool calls are shortened".to_owned(),
        Some(CompactionMethod::Truncated) => "what is old is left out".to_owned(),
        Some(CompactionMethod::Extracted) => {
            format!("{messages}{range} are summarized by their own lines, until a model does it")
        }
        Some(CompactionMethod::Summarized) | None => {
            format!("{messages}{range} are summarized by {model}")
        }
    }
}

fn retained(retention: &Retention) -> String {
    let parts = [
        ("task", retention.task),
        ("pins", retention.pins),
        ("locked decisions", retention.decisions),
        ("files", retention.files),
        ("names", retention.identifiers),
    ];
    let told = parts.iter().filter(|(_, (_, all))| *all > 0);
    let told: Vec<String> =
        told.map(|(what, (kept, all))| format!("{what} {kept} of {all}")).collect();
    told.join(", ")
}

fn warning(reliability: &Reliability) -> String {
    let warning = reliability.warning.as_deref();
    warning.map_or_else(String::new, |text| {
        format!("{} {}\n", Style::Bad.paint("warning:"), sanitize::one_line(text))
    })
}

/// Every checkpoint on a line, with its summary where it is wanted.
pub(crate) fn checkpoints(result: &ContextCheckpointsResult, summaries: bool) -> String {
    let n_all = result.checkpoints.len() as u64;
    let mut text = format!(
        "{} with {}, after {}; windows of this size keep {} ({})\n",
        counted(n_all, "checkpoint"),
        counted(result.tokens, "token"),
        counted(result.compression_count, "compaction"),
        result.limit,
        sanitize::one_line(&result.tier_name)
    );
    for checkpoint in &result.checkpoints {
        text.push_str(&line(checkpoint));
        if summaries {
            for line in sanitize::text(&checkpoint.summary).lines() {
                text.push_str(&format!("    {line}\n"));
            }
        }
    }
    let Reliability { score, icon, .. } = &result.reliability;
    text.push_str(&format!("reliability {} {score:.0} %\n", sanitize::one_line(icon)));
    text.push_str(&warning(&result.reliability));
    text
}

fn line(checkpoint: &Checkpoint) -> String {
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

    fn reliability() -> Value {
        json!({ "score": 30.0, "level": "critical", "icon": "x" })
    }

    fn checkpoint() -> Value {
        json!({
            "id": "0192f0c1-0000-7000-8000-000000000001", "level": 3, "from": 1, "to": 18,
            "summary": "## Goal\n- a\u{1b}[2Jb", "createdAt": "2026-01-27T10:00:00Z",
            "originalTokens": 5000, "currentTokens": 120, "compressionCount": 1, "provisional": true,
        })
    }

    #[test]
    fn a_compaction_tells_before_and_after() {
        let mut value = json!({
            "compacted": true, "method": "summarized", "strategy": "hybrid", "from": 1, "to": 18,
            "summarizedMessageCount": 18, "keptMessageCount": 4, "tokensBefore": 5570,
            "tokensAfter": 1400, "freedTokens": 4170, "model": "m\u{7}", "checkpoints": [],
            "retention": { "task": [1, 1], "pins": [0, 0], "decisions": [0, 0], "files": [1, 2], "identifiers": [3, 4] },
            "reliability": reliability(),
        });
        let text = |value: &Value| {
            anstream::adapter::strip_str(&done(
                &serde_json::from_value(value.clone()).expect("a result"),
            ))
            .to_string()
        };
        let told = text(&value);
        assert!(
            told.starts_with("the context is now 1,400 tokens instead of 5,570; 4,170 are free"),
            "{told}"
        );
        assert!(told.contains("18 messages, #1 to #18 are summarized by m\n"), "{told}");
        assert!(told.contains("still named: task 1 of 1, files 1 of 2, names 3 of 4"), "{told}");
        value["compacted"] = json!(false);
        value["reason"] = json!("dryRun");
        let told = text(&value);
        assert!(
            told.contains("would become 1,400") && told.contains("nothing was changed"),
            "{told}"
        );
        value["reason"] = json!("nothing");
        assert_eq!(
            text(&value),
            "the context stays as it is, with 5,570 tokens: everything in it is recent\n"
        );
    }

    #[test]
    fn a_step_says_what_goes_on() {
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
    fn checkpoints_are_listed_without_escapes() {
        let value = json!({
            "checkpoints": [checkpoint()], "tokens": 120, "compressionCount": 1, "tier": 2,
            "tierName": "smart", "limit": 1, "reliability": reliability(),
        });
        let result = serde_json::from_value(value).expect("a result");
        let text = checkpoints(&result, true);
        assert!(
            text.contains("#1 to #18  recent, 120 tokens in place of 5,000, until a model"),
            "{text}"
        );
        assert!(text.contains("    ## Goal\n") && !text.contains('\u{1b}'), "{text}");
        assert!(!checkpoints(&result, false).contains("Goal"));
    }
}
