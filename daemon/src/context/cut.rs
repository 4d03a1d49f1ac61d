//! Shortening one record: a cut keeps the beginning and the end, at ends of lines where there are some, with a marker
//! between them that says how much is missing; a stub replaces a result by one line. Pure.

use std::borrow::Cow;

use ollm_protocol::content::{Message, Part, RecordBody};
use serde_json::{Map, Value};

use crate::context::numbers::*;
use crate::tokens::Counter;

/// Steps by which the largest fitting cut is approached.
const REFINEMENTS: usize = 3;

/// The number of characters that are kept of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    pub head: u32,
    pub tail: u32,
}

impl Cut {
    /// The smallest cut.
    pub(super) const SMALLEST: Self = Self { head: MIN_CUT_CHARS / 2, tail: MIN_CUT_CHARS / 2 };

    /// Returns the cut of a quote in a head, or `None` for a whole quote.
    pub(super) fn of_chars(head: Option<u32>, tail: Option<u32>) -> Option<Self> {
        Some(Self { head: head?, tail: tail? })
    }
}

/// Returns the cut that brings a record to at most `tokens`, and its cost, or `None` if no cut does.
pub(super) fn fit(counter: &Counter, body: &RecordBody, tokens: u64) -> Option<(Cut, u64)> {
    let fitting = |chars: u32| {
        let cut = Cut { head: chars - chars / 2, tail: chars / 2 };
        let cost = u64::from(counter.count_record(&apply(body, cut)));
        (cost <= tokens).then_some((cut, cost))
    };
    // Common text reaches six characters a token at most.
    let mut too_many = u32::try_from(tokens.saturating_mul(6)).unwrap_or(u32::MAX);
    let mut chars = too_many;
    let mut best = loop {
        if let Some(found) = fitting(chars) {
            break found;
        }
        too_many = chars;
        chars -= chars.div_ceil(4);
        if chars < MIN_CUT_CHARS {
            return None;
        }
    };
    for _ in 0..REFINEMENTS {
        let middle = chars + (too_many - chars) / 2;
        match fitting(middle) {
            Some(found) => (best, chars) = (found, middle),
            None => too_many = middle,
        }
    }
    let at_words = between_words(body, best.0);
    let cost = u64::from(counter.count_record(&apply(body, at_words)));
    Some(if cost <= tokens { (at_words, cost) } else { best })
}

/// Returns a cut that divides no word of the text that it shortens.
fn between_words(body: &RecordBody, cut: Cut) -> Cut {
    let text = match body {
        RecordBody::Message(message) => Cow::Owned(message.sent_text()),
        RecordBody::ToolCall(call) => Cow::Borrowed(&*call.result.llm_content),
        _ => return cut,
    };
    let Some((head, _, tail)) = split_ends(&text, cut.head as usize, cut.tail as usize) else {
        return cut;
    };
    let n_chars = |text: &str| u32::try_from(text.chars().count()).unwrap_or(u32::MAX);
    Cut {
        head: n_chars(words_before(&text, head.len())),
        tail: n_chars(words_behind(&text, text.len() - tail.len())),
    }
}

/// Returns the record with its texts and arguments cut, without thinking and images.
pub(super) fn apply(body: &RecordBody, cut: Cut) -> RecordBody {
    // The images of a message are too large to be cloned first.
    if let RecordBody::Message(message) = body {
        return RecordBody::Message(cut_message(message, cut));
    }
    let mut kept = body.clone();
    let shorten = |text: &mut String| *text = cut_text(text, cut);
    match &mut kept {
        RecordBody::ToolCall(call) => {
            call.args = cut_args(&call.args, cut);
            shorten(&mut call.result.llm_content);
        }
        RecordBody::Delta(delta) => shorten(&mut delta.text),
        RecordBody::BranchSummary(branch) => shorten(&mut branch.summary),
        RecordBody::Compaction(compaction) => shorten(&mut compaction.summary),
        RecordBody::Custom(custom) => {
            if let Some(text) = &mut custom.context_text {
                shorten(text);
            }
        }
        _ => {}
    }
    kept
}

/// Returns the record with one line in place of its result.
pub(super) fn stub(body: &RecordBody, line: &str) -> RecordBody {
    let mut kept = body.clone();
    match &mut kept {
        RecordBody::Message(message) => {
            message.parts = vec![Part::Text { text: line.to_owned() }];
        }
        RecordBody::ToolCall(call) => line.clone_into(&mut call.result.llm_content),
        _ => {}
    }
    kept
}

fn cut_message(message: &Message, cut: Cut) -> Message {
    let text = cut_text(&message.sent_text(), cut);
    let mut kept = Message {
        tool_call_id: message.tool_call_id.clone(),
        tool_name: message.tool_name.clone(),
        ..Message::text(message.role, text, message.timestamp)
    };
    for part in &message.parts {
        if let Part::ToolCall { id, name, args } = part {
            let args = cut_args(args, cut);
            kept.parts.push(Part::ToolCall { id: id.clone(), name: name.clone(), args });
        }
    }
    kept
}

/// Returns the beginning and the end of a text with a marker between them, or a short text whole.
///
/// Lines are kept whole unless they are long.
fn cut_text(text: &str, cut: Cut) -> String {
    let Some((head, _, tail)) = split_ends(text, cut.head as usize, cut.tail as usize) else {
        return text.to_owned();
    };
    let (head, tail) =
        (lines_before(text, head.len()), lines_behind(text, text.len() - tail.len()));
    let missing = &text[head.len()..text.len() - tail.len()];
    let marker = match missing.trim_matches('\n').matches('\n').count() {
        0 => format!("[... {} characters not shown ...]", missing.chars().count()),
        n_breaks => format!("[... {} lines not shown ...]", n_breaks + 1),
    };
    let (head, tail) = (head.trim_end_matches('\n'), tail.trim_start_matches('\n'));
    format!("{head}\n{marker}\n{tail}").trim_end_matches('\n').to_owned()
}

/// Returns the text before `end`, without the beginning of a line that goes on behind it, unless that is much text.
fn lines_before(text: &str, end: usize) -> &str {
    let start = text[..end].rfind('\n').map_or(0, |at| at + 1);
    let line_end = text[end..].find('\n').map_or(text.len(), |at| end + at);
    let is_short = start > 0 && line_end - start <= MAX_LINE_BYTES;
    if is_short || start * 2 >= end { &text[..start] } else { &text[..end] }
}

/// Returns the text from `start` on, without the end of a line that begins before it, unless that is much text.
fn lines_behind(text: &str, start: usize) -> &str {
    let line_start = text[..start].rfind('\n').map_or(0, |at| at + 1);
    if line_start == start {
        return &text[start..];
    }
    let end = text[start..].find('\n').map_or(text.len(), |at| start + at + 1);
    let is_short = end < text.len() && end - line_start <= MAX_LINE_BYTES;
    let is_little = (end - start) * 2 <= text.len() - start;
    if is_short || is_little { &text[end..] } else { &text[start..] }
}

/// Returns the text before `end`, without the beginning of a word that goes on behind it.
pub(super) fn words_before(text: &str, end: usize) -> &str {
    let (before, behind) = text.split_at(end);
    if before.ends_with(char::is_whitespace) || behind.starts_with(char::is_whitespace) {
        return before.trim_end_matches(' ');
    }
    let whole = before.trim_end_matches(|char: char| !char.is_whitespace());
    let is_word = !whole.is_empty() && before.len() - whole.len() <= MAX_WORD_BYTES;
    if is_word { whole.trim_end_matches(' ') } else { before }
}

/// Returns the text from `start` on, without the end of a word that begins before it.
pub(super) fn words_behind(text: &str, start: usize) -> &str {
    let (before, behind) = text.split_at(start);
    if before.ends_with(char::is_whitespace) || behind.starts_with(char::is_whitespace) {
        return behind.trim_start_matches(' ');
    }
    let whole = behind.trim_start_matches(|char: char| !char.is_whitespace());
    let is_word = !whole.is_empty() && behind.len() - whole.len() <= MAX_WORD_BYTES;
    if is_word { whole.trim_start_matches(' ') } else { behind }
}

/// Returns the first and the last characters of a text and the number of those between them, or `None` if there are
/// none between them.
pub(super) fn split_ends(text: &str, head: usize, tail: usize) -> Option<(&str, usize, &str)> {
    // A text has no more characters than bytes, so short texts need not be counted.
    if text.len() <= head + tail {
        return None;
    }
    let left_out = text.chars().count().checked_sub(head + tail).filter(|n| *n > 0)?;
    let head_end = text.char_indices().nth(head).map_or(text.len(), |(at, _)| at);
    let tail_start = match tail {
        0 => text.len(),
        tail => text.char_indices().nth_back(tail - 1).map_or(0, |(at, _)| at),
    };
    Some((&text[..head_end], left_out, &text[tail_start..]))
}

/// Cuts long arguments; they keep their names, so that the call is still readable.
fn cut_args(args: &Value, cut: Cut) -> Value {
    let json = args.to_string();
    if json.chars().count() <= cut.head as usize + cut.tail as usize {
        return args.clone();
    }
    match args {
        Value::Object(named)
            if named.len() <= MAX_CUT_ARGS && named.keys().all(|name| name.len() <= 64) =>
        {
            let parts = u32::try_from(named.len().max(1)).unwrap_or(u32::MAX);
            let each = Cut { head: cut.head / parts, tail: cut.tail / parts };
            let kept = named.iter().map(|(name, value)| (name.clone(), cut_value(value, each)));
            Value::Object(kept.collect())
        }
        _ => {
            let whole = Value::String(cut_text(&json, cut));
            Value::Object(Map::from_iter([("cut".to_owned(), whole)]))
        }
    }
}

fn cut_value(value: &Value, cut: Cut) -> Value {
    let limit = cut.head as usize + cut.tail as usize;
    match value {
        Value::String(text) => Value::String(cut_text(text, cut)),
        other => {
            let json = other.to_string();
            if json.len() <= limit { other.clone() } else { cut_text(&json, cut).into() }
        }
    }
}

#[cfg(test)]
mod tests {
    use ollm_protocol::Timestamp;
    use ollm_protocol::content::Role;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn cut_text_keeps_both_ends_around_a_marker() {
        let check = |text: &str, head, tail, expect: &str| {
            assert_eq!(cut_text(text, Cut { head, tail }), expect);
        };
        check("short", 3, 2, "short");
        check("abcdefghij", 3, 2, "abc\n[... 5 characters not shown ...]\nij");
        check("äöüßäöüß", 2, 1, "äö\n[... 5 characters not shown ...]\nß");
        check("abc", 1, 0, "a\n[... 2 characters not shown ...]");
    }

    #[test]
    fn cut_text_keeps_whole_lines() {
        let text: String = (1..=20).map(|n| format!("line {n}\n")).collect();
        let cut = cut_text(&text, Cut { head: 17, tail: 21 });
        assert_eq!(cut, "line 1\nline 2\n[... 16 lines not shown ...]\nline 19\nline 20");
        let long = format!("{}\n{}", "a".repeat(50), "b".repeat(50));
        let cut = cut_text(&long, Cut { head: 60, tail: 10 });
        assert!(cut.starts_with(&format!("{}\n[...", "a".repeat(50))), "{cut}");
        // A short first and last line stand without the parts of the code between them; parts of paragraphs stay.
        let pasted = format!("Fix this:\n{}What is wrong?", "let x = f(y, z);\n".repeat(9));
        let cut = cut_text(&pasted, Cut { head: 24, tail: 28 });
        assert_eq!(cut, "Fix this:\n[... 9 lines not shown ...]\nWhat is wrong?");
        let prose = format!("Hello,\n{}\nBye", "so it goes ".repeat(40));
        let cut = cut_text(&prose, Cut { head: 30, tail: 16 });
        assert!(cut.starts_with("Hello,\nso it goes so it goes s\n[... 405 characters"), "{cut}");
    }

    #[test]
    fn cut_arguments_keep_their_names() {
        let args = json!({"path": "a.rs", "content": "x".repeat(500), "list": vec![1; 200]});
        let kept = cut_args(&args, Cut { head: 60, tail: 60 });
        assert_eq!(kept["path"], "a.rs");
        assert!(kept["content"].as_str().is_some_and(|text| text.starts_with(&"x".repeat(20))));
        assert!(kept["list"].as_str().is_some_and(|text| text.contains("not shown")));
        assert!(cut_args(&json!("y".repeat(900)), Cut { head: 8, tail: 8 })["cut"].is_string());
    }

    #[test]
    fn fitted_cut_divides_no_word() {
        let words: Vec<String> = (0..400).map(|n| format!("word{n}")).collect();
        let text = words.join(" ");
        let body =
            RecordBody::Message(Message::text(Role::User, &text, Timestamp::from_unix_ms(0)));
        for tokens in 60..90 {
            let (cut, _) = fit(&Counter::ESTIMATE, &body, tokens).expect("fits");
            let shown = cut_text(&text, cut);
            let (head, rest) = shown.split_once("\n[...").expect("is cut");
            let (_, tail) = rest.split_once("...]\n").expect("has an end");
            let is_whole = |word: &str| words.iter().any(|one| one == word);
            assert!(head.split(' ').chain(tail.split(' ')).all(is_whole), "{tokens}: {shown}");
        }
    }

    #[test]
    fn long_word_is_divided() {
        let text = "字".repeat(100);
        assert_eq!(words_before(&text, 30), &text[..30]);
        assert_eq!(words_behind(&text, 30), &text[30..]);
        assert_eq!(words_before("abcdef", 3), "abc");
        assert_eq!(words_before("a word here", 4), "a");
        assert_eq!(words_behind("a word here", 4), "here");
        assert_eq!(words_behind("a word here", 6), "here");
    }

    proptest! {
        #[test]
        fn fitted_cut_costs_no_more_than_its_tokens(text in "[a-z \\n字é]{0,4000}", tokens in 48_u64..400) {
            let at = Timestamp::from_unix_ms(0);
            let body = RecordBody::Message(Message::text(Role::User, text, at));
            let (_, cost) = fit(&Counter::ESTIMATE, &body, tokens).expect("48 tokens suffice");
            prop_assert!(cost <= tokens);
        }
    }
}
