//! Every turn, with the results of older tool calls shortened by the kind of tool.
//!
//! A file that was read again later, and a result that came again, are one line that names where it stands; the
//! newest messages stay as they are. Checkpoints in force stay before it.

use std::collections::HashMap;

use ollm_protocol::Seq;
use ollm_protocol::content::{HeadItem, Part, RecordBody};
use serde_json::Value;

use super::checkpointed::summarized;
use super::keep::{Form, Keeper};
use super::opening::Reserve;
use super::{Ground, Strategy};
use crate::context::contents::ContentsError;
use crate::context::cut::Cut;
use crate::context::ledger::{FileUse, file_of};
use crate::context::units::{PathItem, Place};

/// Messages at the end that stay as they are: the last three exchanges.
const RECENT_MESSAGES: usize = 6;
/// Lines of a file that are kept at each end.
const FILE_LINES: usize = 10;
/// Characters of a command's output that are kept at each end, and from which on it is cut.
const SHELL_CHARS: u32 = 400;
const SHELL_FROM_CHARS: usize = 1000;
/// Characters that are kept of other results, and from which on they are cut.
const OTHER_CHARS: u32 = 600;
const OTHER_FROM_CHARS: usize = 800;
/// Words in the names of tools that run commands.
const SHELLS: &[&str] = &["bash", "shell", "exec", "run", "command", "terminal"];

/// Shortens old tool results.
pub(super) struct PrunedTools;

impl Strategy for PrunedTools {
    fn name(&self) -> &'static str {
        "pruned-tools"
    }

    fn about(&self) -> &'static str {
        "every message, with older tool results shortened"
    }

    fn min_tokens(&self) -> u64 {
        2000
    }

    fn has_checkpoints(&self) -> bool {
        true
    }

    fn shrinks(&self) -> bool {
        false
    }

    fn plan(
        &self,
        ground: &mut Ground<'_, '_>,
        target: u64,
    ) -> Result<Option<Vec<HeadItem>>, ContentsError> {
        let start = summarized(ground).unwrap_or(0);
        let path = ground.path;
        // What cannot fit even if all results were gone need not be read.
        let said = path[start..].iter().filter(|item| item.place() != Place::Result);
        if said.map(|item| u64::from(item.tokens)).sum::<u64>() > target.saturating_mul(2) {
            return Ok(None);
        }
        ground.bodies.load(&path[start..])?;
        let pruned = prune(ground, start);
        if pruned.is_empty() {
            return Ok(None);
        }
        // Nothing is left out, so what says so needs no room, and nothing is cut that could turn out longer.
        let mut keeper = Keeper::new(ground, target);
        keeper.left = target + target / 10;
        let reserve = if start > 0 { keeper.reserve(start)? } else { Reserve::default() };
        let share = keeper.left / 2;
        if start > 0 && !keeper.keep_begun(start, share)? {
            return Ok(None);
        }
        for at in start..path.len() {
            let form = pruned.get(&at).cloned().unwrap_or(Form::Whole);
            // What leaves no room for what must be there is no plan.
            if !keeper.put(at, form) {
                return Ok(None);
            }
        }
        if start > 0 {
            keeper.keep_opening(&reserve)?;
            keeper.keep_earlier(start, &reserve)?;
        }
        Ok(Some(keeper.into_head(true)))
    }
}

/// The forms of the results that are not kept whole.
fn prune(ground: &Ground<'_, '_>, start: usize) -> HashMap<usize, Form> {
    let path = ground.path;
    let speaks =
        |at: &usize| matches!(path[*at].place(), Place::User | Place::Assistant | Place::Result);
    let mut newest = (start..path.len()).rev().filter(speaks);
    let recent = newest.nth(RECENT_MESSAGES - 1).unwrap_or(start);
    let calls = calls(ground, start);
    let mut reads: HashMap<&str, Seq> = HashMap::new();
    let mut texts: HashMap<blake3::Hash, Seq> = HashMap::new();
    let mut pruned = HashMap::new();
    // From the newest on, so that what stands later is known.
    for at in (start..path.len()).rev() {
        let item = &path[at];
        let Some((call, text)) = result_of(ground, item, &calls) else { continue };
        let file = call.and_then(|call| file_of(call.name, call.args));
        let read = file.filter(|(used, _)| *used == FileUse::Read).map(|(_, file)| file);
        let later = read.and_then(|file| first(&mut reads, file, item.seq));
        let equal = first(&mut texts, blake3::hash(text.as_bytes()), item.seq);
        if at >= recent || ground.pins.contains(&item.seq) {
            continue;
        }
        // What is shorter than a line that says where it stands stays.
        let stub = |reason, by| Form::Stub { reason, by };
        let form = match (later, equal) {
            _ if text.len() < 64 => None,
            (_, Some(by)) => Some(stub("duplicate", by)),
            (Some(by), None) => Some(stub("superseded", by)),
            (None, None) => {
                shortened(call.map(|call| call.name), file.is_some(), text).map(Form::Cut)
            }
        };
        pruned.extend(form.map(|form| (at, form)));
    }
    pruned
}

/// Notes who came first with a key; says who, where it was somebody else.
fn first<K: Eq + std::hash::Hash>(seen: &mut HashMap<K, Seq>, key: K, seq: Seq) -> Option<Seq> {
    let first = *seen.entry(key).or_insert(seq);
    (first != seq).then_some(first)
}

/// A tool call of an assistant message.
#[derive(Clone, Copy)]
struct Call<'b> {
    name: &'b str,
    args: &'b Value,
}

fn calls<'g>(ground: &'g Ground<'_, '_>, start: usize) -> HashMap<&'g str, Call<'g>> {
    let bodies = ground.path[start..].iter().filter_map(|item| ground.bodies.get(item.seq));
    let parts = bodies.flat_map(|body| match body {
        RecordBody::Message(message) => message.parts.as_slice(),
        _ => &[],
    });
    parts
        .filter_map(|part| match part {
            Part::ToolCall { id, name, args } => Some((id.as_str(), Call { name, args })),
            _ => None,
        })
        .collect()
}

/// The text of a result, with the call that it answers where that is known.
fn result_of<'g>(
    ground: &'g Ground<'_, '_>,
    item: &PathItem,
    calls: &HashMap<&'g str, Call<'g>>,
) -> Option<(Option<Call<'g>>, &'g str)> {
    if item.place() != Place::Result {
        return None;
    }
    match ground.bodies.get(item.seq)? {
        RecordBody::ToolCall(call) => {
            let own = Call { name: &call.name, args: &call.args };
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

/// What of a result is kept, by the kind of its tool; `None` where it is short enough.
fn shortened(tool: Option<&str>, is_file: bool, text: &str) -> Option<Cut> {
    let n_chars = text.chars().count();
    let tool = tool.unwrap_or_default().to_lowercase();
    if is_file {
        let (head, tail) = ends(text)?;
        return Some(Cut { head, tail });
    }
    if SHELLS.iter().any(|word| tool.contains(word)) {
        return (n_chars > SHELL_FROM_CHARS)
            .then_some(Cut { head: SHELL_CHARS, tail: SHELL_CHARS });
    }
    (n_chars > OTHER_FROM_CHARS).then_some(Cut { head: OTHER_CHARS, tail: 0 })
}

/// Characters of the first and of the last lines of a file; `None` where it has no more lines than these.
fn ends(text: &str) -> Option<(u32, u32)> {
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let chars = |lines: &[&str]| {
        let n_chars: usize = lines.iter().map(|line| line.chars().count()).sum();
        // A file of few and endless lines is no better than any other text.
        u32::try_from(n_chars).unwrap_or(u32::MAX).min(4 * OTHER_CHARS)
    };
    if lines.len() <= 2 * FILE_LINES {
        let is_long = text.chars().count() > 8 * OTHER_FROM_CHARS;
        return is_long.then_some((OTHER_CHARS, OTHER_CHARS));
    }
    Some((chars(&lines[..FILE_LINES]), chars(&lines[lines.len() - FILE_LINES..])))
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
