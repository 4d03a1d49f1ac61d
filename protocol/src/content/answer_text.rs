//! The text of an answer that is sent to a model again: without thinking between tags, and without the blocks of the
//! prompt that small models repeat and would then repeat again.

use crate::code_fence::CodeFence;

/// The tags between which some models think in their answers.
const THINK: &str = "<think>";
const END_THINK: &str = "</think>";

/// The block of a prompt with notes about the conversation.
pub const MEMORY_BLOCK: &str = "memory";
/// The block of a prompt with things that the user said.
pub const FACTS_BLOCK: &str = "facts";
/// The block of a prompt with earlier messages of the user.
pub const EARLIER_REQUESTS_BLOCK: &str = "earlier_requests";
/// The block of a prompt with messages that were recalled.
pub const RECALLED_BLOCK: &str = "recalled";
/// The line of a prompt behind these blocks.
pub const OPENING_END: &str = "--- the conversation goes on here ---";

/// The blocks that are removed from answers.
const BLOCKS: [&str; 4] = [MEMORY_BLOCK, FACTS_BLOCK, EARLIER_REQUESTS_BLOCK, RECALLED_BLOCK];

/// An answer of which a part is not sent.
pub(super) struct SplitAnswer<'t> {
    /// The blocks of thinking.
    pub(super) thinking: Vec<&'t str>,
    /// The text without thinking and repeated blocks.
    pub(super) sent: String,
}

impl<'t> SplitAnswer<'t> {
    /// Splits an answer; returns `None` if all of it is sent.
    ///
    /// Thinking at the beginning may have no end. Later thinking begins a line and has an end. A repeated block begins with a
    /// line that has only its tag, and goes on to its end tag, or to the end of the answer without one. In a closed code
    /// fence, everything is sent; in one that is never closed, everything but repeated blocks.
    pub(super) fn new(text: &'t str) -> Option<Self> {
        if !text.contains(THINK) && !text.lines().any(is_of_prompt) {
            return None;
        }
        let (mut thinking, mut rest) = (Vec::new(), text);
        while let Some(inside) = rest.trim_start().strip_prefix(THINK) {
            let (block, behind) = inside.split_once(END_THINK).unwrap_or((inside, ""));
            thinking.push(block);
            rest = behind.trim_start();
        }
        let mut sent = String::with_capacity(rest.len());
        let mut fence: Option<CodeFence> = None;
        // The place in `sent` at which a fence begins that is never closed.
        let mut open_fence = None;
        let mut is_repeating = false;
        while !rest.is_empty() {
            let line = rest.trim_start_matches(' ');
            let later = line.strip_prefix(THINK).filter(|_| fence.is_none());
            if let Some((block, behind)) = later.and_then(|inside| inside.split_once(END_THINK)) {
                thinking.push(block);
                rest = behind.trim_start();
                continue;
            }
            let is_protected = fence.is_some() && open_fence.is_none();
            if let Some(behind) = behind_repeated(rest).filter(|_| !is_protected) {
                is_repeating = true;
                rest = behind.trim_start();
                continue;
            }
            let (whole_line, behind) = split_line(rest);
            let bare = whole_line.trim();
            fence = match fence {
                Some(open) => Some(open).filter(|open| !open.is_closed_by(bare)),
                None => CodeFence::opened_by(bare).inspect(|open| {
                    let is_closed = behind.lines().any(|line| open.is_closed_by(line.trim()));
                    open_fence = (!is_closed).then_some(sent.len());
                }),
            };
            sent.push_str(whole_line);
            rest = behind;
        }
        if is_repeating {
            sent.truncate(sent.trim_end().len());
            // A fence that only held the blocks.
            if let Some(at) = open_fence.filter(|at| !sent[*at..].contains('\n')) {
                sent.truncate(sent[..at].trim_end().len());
            }
        }
        (is_repeating || !thinking.is_empty()).then_some(Self { thinking, sent })
    }
}

/// Returns what follows a repeated block, end tag or closing line at the beginning of a text; `None` if the text begins
/// with something else.
fn behind_repeated(text: &str) -> Option<&str> {
    let (line, behind) = split_line(text);
    if !is_of_prompt(line) {
        return None;
    }
    let tag = line.trim().strip_prefix('<').and_then(|tag| tag.strip_suffix('>'));
    let Some(name) = tag.filter(|tag| !tag.starts_with('/')) else { return Some(behind) };
    let end = format!("</{name}>");
    Some(behind.split_once(&end).map_or("", |(_, behind)| behind))
}

/// Returns whether a line has only a tag of a repeated block, or ends the blocks.
fn is_of_prompt(line: &str) -> bool {
    let line = line.trim();
    let tag = line.strip_prefix('<').and_then(|tag| tag.strip_suffix('>'));
    let name = tag.map(|tag| tag.strip_prefix('/').unwrap_or(tag));
    line == OPENING_END || name.is_some_and(|name| BLOCKS.contains(&name))
}

/// Splits a text behind its first line break.
fn split_line(text: &str) -> (&str, &str) {
    text.split_at(text.find('\n').map_or(text.len(), |at| at + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, sent: &str, thinking: &[&str]) {
        let split = SplitAnswer::new(text);
        let (found, thought) =
            split.map_or((text.to_owned(), Vec::new()), |split| (split.sent, split.thinking));
        assert_eq!((found.as_str(), thought.as_slice()), (sent, thinking), "{text}");
    }

    #[test]
    fn thinking_between_tags_is_not_sent() {
        check("Hello", "Hello", &[]);
        check("<think>a</think>\n\nHello", "Hello", &["a"]);
        check("<think>a</think> <think>b</think>\nHello", "Hello", &["a", "b"]);
        check("Hello\n<think>a</think>\nBye", "Hello\nBye", &["a"]);
        check("<think>cut off", "", &["cut off"]);
        // A later block without an end, or in code, is text.
        check("Hello\n<think>cut off", "Hello\n<think>cut off", &[]);
        let code = "Write it so:\n```\n<think>a</think>\n```\n";
        check(code, code, &[]);
        check("The tag `<think>a</think>` is hidden", "The tag `<think>a</think>` is hidden", &[]);
    }

    #[test]
    fn repeated_blocks_of_the_prompt_are_not_sent() {
        check("<recalled>\nuser: hi\n</recalled>\nThe port is 1.", "The port is 1.", &[]);
        check("Sure.\n\n<memory>\n## Goal\n- none\n</memory>\n\nDone.", "Sure.\n\nDone.", &[]);
        check("Sure.\n<facts>\n- cut o", "Sure.", &[]);
        check("It helps.\n</recalled>\n\n", "It helps.", &[]);
        let all =
            format!("<memory>\nx\n</memory>\n\n<facts>\ny\n</facts>\n\n{OPENING_END}\n\nYes.");
        check(&all, "Yes.", &[]);
        check("<think>a</think>\n<earlier_requests>\n- b\n</earlier_requests>", "", &["a"]);
        // A code fence that is never closed.
        check("It does.\n\n```\n<earlier_requests>\n- b", "It does.", &[]);
        check("```rust\nf()\n```\n~~~xml\n<facts>\n- a\n```", "```rust\nf()\n```", &[]);
        check("```\n<facts>\n- a\n</facts>\nYes.", "```\nYes.", &[]);
        let other = "```\n<facts>\n- a\n</facts>\nSo:\n```rust\nf()\n";
        check(other, "```\nSo:\n```rust\nf()", &[]);
        check("~~~\n```\n~~~\n```\nf()\n```\n<facts>\n- a", "~~~\n```\n~~~\n```\nf()\n```", &[]);
        // Other text about such tags.
        for text in [
            "<memory>1024</memory>\n",
            "<memory unit=\"KiB\">\n1024\n</memory unit>\n",
            "The block <facts> has facts.",
            "```xml\n<memory>\n1024\n</memory>\n```\n",
            "~~~\n```\n<memory>\n1024\n~~~\n",
            "````\n```\n<memory>\n1024\n````\n",
            "```\n<think>a</think>\n",
            "```f()```\n```\n<memory>\n1024\n```\n",
            "<memories>\nx\n</memories>\n",
        ] {
            check(text, text, &[]);
        }
    }
}
