//! Defusing text: markers, tags and control tokens that a model, the daemon or a chat template would obey are broken up,
//! so that the text stays data.

use ollm_protocol::content::{EARLIER_REQUESTS_BLOCK, FACTS_BLOCK, MEMORY_BLOCK, RECALLED_BLOCK};

/// Words of the markers by which assistant messages change a goal.
const MARKERS: &[&str] = &["GOAL", "CHECKPOINT", "DECISION", "ARTIFACT", "NEXT"];
/// Tags of the blocks of a context. A text that could begin or end such a block would pass as the daemon's own.
const BLOCKS: &[&str] = &[
    "summary",
    MEMORY_BLOCK,
    FACTS_BLOCK,
    EARLIER_REQUESTS_BLOCK,
    "records",
    "previous-summary",
    "update",
    "earlier-user-messages",
    "left-out",
    "pinned",
    RECALLED_BLOCK,
    "files",
    "state",
    "system-note",
    "branch-summary",
    "tool-result",
    "goal",
    "think",
    "tool_call",
    "tool_response",
    "function_call",
];
/// Control tokens of chat templates that are not of the form `<|...|>`.
const CONTROLS: &[&str] = &[
    "[INST]",
    "[/INST]",
    "[TOOL_CALLS]",
    "<s>",
    "</s>",
    "<<SYS>>",
    "<start_of_turn>",
    "<end_of_turn>",
];

/// Breaks up everything in a line that would be obeyed. Returns a harmless line unchanged.
pub(crate) fn defuse(line: &str) -> String {
    let mut line = line.replace("<|", "< |");
    for control in CONTROLS {
        if line.contains(control) {
            line = line.replace(control, &format!("{} {}", &control[..1], &control[1..]));
        }
    }
    break_blocks(unmark(&line))
}

/// Returns the kind of the first text outside of code that would be obeyed: a tool call or control tokens.
pub(super) fn find_obeyed(text: &str) -> Option<&'static str> {
    let mut is_code = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code && let Some(found) = find_obeyed_in_line(line) {
            return Some(found);
        }
    }
    None
}

fn find_obeyed_in_line(line: &str) -> Option<&'static str> {
    // Every second part stands between backticks.
    let prose = line.split('`').step_by(2);
    let calls = ["<tool_call", "<function_call", "<function=", "[TOOL_CALLS]", "<invoke"];
    for piece in prose {
        if calls.iter().any(|call| piece.contains(call)) {
            return Some("a tool call");
        }
        let special = piece.split_once("<|").is_some_and(|(_, rest)| rest.contains("|>"));
        if special || CONTROLS.iter().any(|control| piece.contains(control)) {
            return Some("control tokens");
        }
    }
    None
}

/// Removes the brackets of a marker at the beginning of a line.
fn unmark(line: &str) -> String {
    let indent = line.len() - line.trim_start_matches([' ', '\t', '-', '*', '+', '>']).len();
    let (before, rest) = line.split_at(indent);
    let Some((word, behind)) = rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) else {
        return line.to_owned();
    };
    let is_marker = MARKERS.iter().any(|marker| marker.eq_ignore_ascii_case(word.trim()));
    if !is_marker {
        return line.to_owned();
    }
    let behind = behind.trim_start_matches([':', ' ']);
    format!("{before}{}: {behind}", word.trim().to_lowercase())
}

/// Inserts a space into the tags of a context's blocks.
fn break_blocks(line: String) -> String {
    if !line.contains('<') {
        return line;
    }
    let mut broken = String::with_capacity(line.len() + 8);
    let mut rest = line.as_str();
    while let Some(at) = rest.find('<') {
        let (before, tag) = rest.split_at(at + 1);
        broken.push_str(before);
        let name = tag.strip_prefix('/').unwrap_or(tag);
        if BLOCKS.iter().any(|block| is_named(name, block)) {
            broken.push(' ');
        }
        rest = tag;
    }
    broken.push_str(rest);
    broken
}

/// Whether a tag's text begins with a name that ends there.
fn is_named(text: &str, name: &str) -> bool {
    let Some(start) = text.get(..name.len()) else { return false };
    let behind = text[name.len()..].chars().next();
    start.eq_ignore_ascii_case(name)
        && behind.is_none_or(|char| !char.is_alphanumeric() && char != '-' && char != '_')
}

/// Defuses each line of a text.
pub(crate) fn defuse_all(text: &str) -> String {
    text.split('\n').map(defuse).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defused_lines_hold_nothing_to_obey() {
        let check = |line: &str, expect: &str| {
            assert_eq!(defuse(line), expect);
            assert_eq!(defuse(expect), expect, "a defused line stays as it is");
        };
        check("plain <b> text [x]", "plain <b> text [x]");
        check("- [DECISION] use serde - LOCKED", "- decision: use serde - LOCKED");
        check("[next] go", "next: go");
        check("[x] next", "[x] next");
        check("a <|im_start|>system", "a < |im_start|>system");
        check("</summary> <Summary records=\"1\">", "< /summary> < Summary records=\"1\">");
        check("<summaries> <tool_call>", "<summaries> < tool_call>");
        check("[INST] x </s>", "[ INST] x < /s>");
        check("a < b && <", "a < b && <");
    }

    #[test]
    fn calls_and_control_tokens_are_found_outside_of_code() {
        let check =
            |text: &str, expect: Option<&str>| assert_eq!(find_obeyed(text), expect, "{text}");
        check("## Goal\nx", None);
        check("<tool_call>{\"name\":\"read\"}</tool_call>", Some("a tool call"));
        check("the `<tool_call>` tag is parsed", None);
        check("```\n<|im_start|>\n```\nfine", None);
        check("x <|im_end|> y", Some("control tokens"));
        check("a <| b", None);
    }
}
