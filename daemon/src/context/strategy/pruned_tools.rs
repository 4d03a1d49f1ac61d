//! The strategy `pruned-tools`: every turn, with the results of older tool calls shortened by the kind of tool.
//!
//! A file that was read again later, and a result that occurs again, become one line that names the later record. The
//! newest messages stay as they are. Checkpoints in force stand before the turns.

use std::collections::HashMap;

use ollm_protocol::Seq;
use ollm_protocol::content::{HeadItem, Part, RecordBody};
use serde_json::Value;

use super::head::{HeadBuilder, turn};
use super::opening::Reserved;
use super::plan::{PlanInput, PlannedHead, Strategy};
use crate::context::cut::Cut;
use crate::context::ledger::{FileUse, file_of};
use crate::context::numbers::*;
use crate::context::path::{PathItem, PathRole};

/// Words in the names of tools that run commands.
const SHELLS: &[&str] = &["bash", "shell", "exec", "run", "command", "terminal"];

/// Shortens old tool results.
pub(in crate::context) static PRUNED_TOOLS: Strategy = Strategy {
    name: "pruned-tools",
    about: "every message, with older tool results shortened",
    min_tokens: 2000,
    keeps_all: false,
    has_checkpoints: true,
    shrinks: false,
    plan,
};

fn plan(input: &mut PlanInput<'_, '_>, target: u64) -> PlannedHead {
    let start = input.summarized_until().unwrap_or(0);
    let path = input.build.path;
    // Contents are not read if the messages would not fit without any result.
    let messages = path[start..].iter().filter(|item| item.path_role() != PathRole::ToolResult);
    let tokens: u64 = messages.map(|item| u64::from(item.tokens)).sum();
    if tokens > target.saturating_mul(2) {
        return Ok(None);
    }
    let newest = input.newest_start();
    let is_whole = (newest..path.len()).all(|at| input.newest.items.contains_key(&at));
    input.bodies.load(&path[start..])?;
    let mut pruned = prune(input, start);
    if pruned.is_empty() || !is_whole {
        return Ok(None);
    }
    let mut head = HeadBuilder::new(input, target);
    // No record is left out.
    head.left = target + target / 10;
    let reserved = if start > 0 { head.reserve(start)? } else { Reserved::default() };
    let share = head.left / 2;
    if start > 0 && !head.keep_turn_start(start, share)? {
        return Ok(None);
    }
    for at in start..newest.max(start) {
        if !head.keep_as(at, pruned.remove(&at)) {
            return Ok(None);
        }
    }
    if start > 0 {
        head.keep_opening(&reserved)?;
        head.keep_earlier(start, &reserved)?;
    }
    Ok(Some(head.into_items()))
}

/// Returns the items of the results that are not kept whole, by index.
fn prune(input: &PlanInput<'_, '_>, start: usize) -> HashMap<usize, HeadItem> {
    let path = input.build.path;
    let is_turn = |at: &usize| {
        let role = path[*at].path_role();
        matches!(role, PathRole::User | PathRole::Assistant | PathRole::ToolResult)
    };
    let mut newest = (start..path.len()).rev().filter(is_turn);
    let recent = newest.nth(RECENT_MESSAGES - 1).unwrap_or(start).min(input.newest_start());
    let calls = requested_calls(input, start);
    let mut reads: HashMap<&str, Seq> = HashMap::new();
    let mut texts: HashMap<blake3::Hash, Seq> = HashMap::new();
    let mut pruned = HashMap::new();
    // The newest record comes first, so that later reads and equal results are known.
    for at in (start..path.len()).rev() {
        let item = &path[at];
        let Some((call, text)) = result_of(input, item, &calls) else { continue };
        let file = call.and_then(|call| file_of(call.name, call.args));
        let read = file.filter(|(used, _)| *used == FileUse::Read).map(|(_, file)| file);
        let later_read = read.and_then(|file| later_record(&mut reads, file, item.seq));
        let equal = later_record(&mut texts, blake3::hash(text.as_bytes()), item.seq);
        let is_pinned = input.build.pins.contains(&item.seq);
        if at >= recent || is_pinned || text.len() < MIN_PRUNED_BYTES {
            continue;
        }
        let seq = item.seq;
        let stub = |reason: &str, by| HeadItem::Stub { seq, reason: reason.to_owned(), by };
        let item = match (later_read, equal) {
            (_, Some(by)) => Some(stub("duplicate", by)),
            (Some(by), None) => Some(stub("superseded", by)),
            (None, None) => {
                let cut = shortened(call.map(|call| call.name), file.is_some(), text);
                cut.map(|cut| turn(seq, Some(cut)))
            }
        };
        pruned.extend(item.map(|item| (at, item)));
    }
    pruned
}

/// Returns the record that was seen first with a key, unless it is `seq`.
fn later_record<K: Eq + std::hash::Hash>(
    seen: &mut HashMap<K, Seq>,
    key: K,
    seq: Seq,
) -> Option<Seq> {
    let first = *seen.entry(key).or_insert(seq);
    (first != seq).then_some(first)
}

/// The name and the arguments of a tool call.
#[derive(Clone, Copy)]
struct CallRef<'b> {
    name: &'b str,
    args: &'b Value,
}

/// Returns the calls that assistant messages request, by id.
fn requested_calls<'i>(
    input: &'i PlanInput<'_, '_>,
    start: usize,
) -> HashMap<&'i str, CallRef<'i>> {
    let bodies = input.build.path[start..].iter().filter_map(|item| input.bodies.get(item.seq));
    let parts = bodies.flat_map(|body| match body {
        RecordBody::Message(message) => message.parts.as_slice(),
        _ => &[],
    });
    parts
        .filter_map(|part| match part {
            Part::ToolCall { id, name, args } => Some((id.as_str(), CallRef { name, args })),
            _ => None,
        })
        .collect()
}

/// Returns the text of a result, with its call if that is known.
fn result_of<'i>(
    input: &'i PlanInput<'_, '_>,
    item: &PathItem,
    calls: &HashMap<&'i str, CallRef<'i>>,
) -> Option<(Option<CallRef<'i>>, &'i str)> {
    if item.path_role() != PathRole::ToolResult {
        return None;
    }
    match input.bodies.get(item.seq)? {
        RecordBody::ToolCall(call) => {
            let own = CallRef { name: &call.name, args: &call.args };
            Some((Some(own), call.result.llm_content.as_str()))
        }
        RecordBody::Message(message) => {
            let call = message.tool_call_id.as_deref().and_then(|id| calls.get(id).copied());
            let text = message.parts.iter().find_map(|part| match part {
                Part::Text { text } => Some(text.as_str()),
                _ => None,
            })?;
            Some((call, text))
        }
        _ => None,
    }
}

/// Returns the cut of a result by the kind of its tool, or `None` if the result is short enough.
fn shortened(tool: Option<&str>, is_file: bool, text: &str) -> Option<Cut> {
    if is_file {
        return file_ends(text);
    }
    let n_chars = text.chars().count();
    let tool = tool.unwrap_or_default().to_lowercase();
    if SHELLS.iter().any(|word| tool.contains(word)) {
        return (n_chars > SHELL_WHOLE_CHARS)
            .then_some(Cut { head: SHELL_CHARS, tail: SHELL_CHARS });
    }
    (n_chars > OTHER_WHOLE_CHARS).then_some(Cut { head: OTHER_CHARS, tail: 0 })
}

/// Returns the cut that keeps the first and the last lines of a file, or `None` if it has no more lines.
fn file_ends(text: &str) -> Option<Cut> {
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let chars = |lines: &[&str]| {
        let n_chars: usize = lines.iter().map(|line| line.chars().count()).sum();
        // Long lines are cut like any other text.
        u32::try_from(n_chars).unwrap_or(u32::MAX).min(4 * OTHER_CHARS)
    };
    if lines.len() <= 2 * FILE_LINES {
        let is_long = text.chars().count() > 8 * OTHER_WHOLE_CHARS;
        return is_long.then_some(Cut { head: OTHER_CHARS, tail: OTHER_CHARS });
    }
    let (head, tail) = (&lines[..FILE_LINES], &lines[lines.len() - FILE_LINES..]);
    Some(Cut { head: chars(head), tail: chars(tail) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_shortened_by_the_kind_of_tool() {
        let check = |tool, is_file, text: &str, expect: Option<(u32, u32)>| {
            let cut = shortened(Some(tool), is_file, text).map(|cut| (cut.head, cut.tail));
            assert_eq!(cut, expect, "{tool} {}", text.len());
        };
        let lines = |n: usize| (0..n).map(|_| "abc\n").collect::<String>();
        check("read_file", true, &lines(20), None);
        check("read_file", true, &lines(21), Some((40, 40)));
        check("read_file", true, &"x".repeat(10_000), Some((600, 600)));
        check("Bash", false, &"x".repeat(1000), None);
        check("Bash", false, &"x".repeat(1001), Some((400, 400)));
        check("grep", false, &"x".repeat(800), None);
        check("grep", false, &"é".repeat(801), Some((600, 0)));
        check("other", false, &"x".repeat(900), Some((600, 0)));
    }
}
