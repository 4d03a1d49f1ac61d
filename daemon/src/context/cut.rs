//! Shortening one record: a cut keeps the beginning and the end, with a marker between them that says how much is
//! missing and how to get it; a stub replaces a result by one line. Pure.

use ollm_protocol::Seq;
use ollm_protocol::content::{Message, Part, RecordBody};
use serde_json::{Map, Value};

use crate::tokens::Counter;

/// Characters of the smallest cut. Anything smaller would be little more than its marker.
const MIN_CHARS: u32 = 16;
/// Maximum number of arguments of a call that are cut one by one; more of them are cut as one text.
const MAX_CUT_ARGS: usize = 16;

/// The number of characters that are kept of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    pub head: u32,
    pub tail: u32,
}

impl Cut {
    /// Returns the cut of a quote in a head, or `None` for a whole quote.
    pub(super) fn of_chars(head: Option<u32>, tail: Option<u32>) -> Option<Self> {
        Some(Self { head: head?, tail: tail? })
    }
}

/// Returns the cut that brings a record to at most `tokens`, and its cost, or `None` if no cut does.
pub(super) fn fit(
    counter: &Counter,
    seq: Seq,
    body: &RecordBody,
    tokens: u64,
) -> Option<(Cut, u64)> {
    // Common text reaches four characters a token at most.
    let mut chars = u32::try_from(tokens.saturating_mul(4)).unwrap_or(u32::MAX);
    while chars >= MIN_CHARS {
        let cut = Cut { head: chars - chars / 2, tail: chars / 2 };
        let cost = u64::from(counter.count_record(&apply(seq, body, cut)));
        if cost <= tokens {
            return Some((cut, cost));
        }
        chars -= chars.div_ceil(4);
    }
    None
}

/// Returns the record with its texts and arguments cut, without thinking and images.
pub(super) fn apply(seq: Seq, body: &RecordBody, cut: Cut) -> RecordBody {
    // The images of a message are too large to be cloned first.
    if let RecordBody::Message(message) = body {
        return RecordBody::Message(cut_message(seq, message, cut));
    }
    let mut kept = body.clone();
    let shorten = |text: &mut String| *text = cut_text(seq, text, cut);
    match &mut kept {
        RecordBody::ToolCall(call) => {
            call.args = cut_args(seq, &call.args, cut);
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

fn cut_message(seq: Seq, message: &Message, cut: Cut) -> Message {
    let text = cut_text(seq, &message.plain_text(), cut);
    let mut kept = Message {
        tool_call_id: message.tool_call_id.clone(),
        tool_name: message.tool_name.clone(),
        ..Message::text(message.role, text, message.timestamp)
    };
    for part in &message.parts {
        if let Part::ToolCall { id, name, args } = part {
            let args = cut_args(seq, args, cut);
            kept.parts.push(Part::ToolCall { id: id.clone(), name: name.clone(), args });
        }
    }
    kept
}

/// Returns the beginning and the end of a text with a marker between them, or a short text whole.
fn cut_text(seq: Seq, text: &str, cut: Cut) -> String {
    match split_ends(text, cut.head as usize, cut.tail as usize) {
        Some((head, left_out, tail)) => {
            format!("{head}\n[cut: {left_out} characters left out; session.get from {seq}]\n{tail}")
        }
        None => text.to_owned(),
    }
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
fn cut_args(seq: Seq, args: &Value, cut: Cut) -> Value {
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
            let kept =
                named.iter().map(|(name, value)| (name.clone(), cut_value(seq, value, each)));
            Value::Object(kept.collect())
        }
        _ => {
            let whole = Value::String(cut_text(seq, &json, cut));
            Value::Object(Map::from_iter([("cut".to_owned(), whole)]))
        }
    }
}

fn cut_value(seq: Seq, value: &Value, cut: Cut) -> Value {
    let limit = cut.head as usize + cut.tail as usize;
    match value {
        Value::String(text) => Value::String(cut_text(seq, text, cut)),
        other => {
            let json = other.to_string();
            if json.len() <= limit { other.clone() } else { cut_text(seq, &json, cut).into() }
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
            assert_eq!(cut_text(Seq(7), text, Cut { head, tail }), expect);
        };
        check("short", 3, 2, "short");
        check("abcdefghij", 3, 2, "abc\n[cut: 5 characters left out; session.get from 7]\nij");
        check("äöüßäöüß", 2, 1, "äö\n[cut: 5 characters left out; session.get from 7]\nß");
        check("abc", 1, 0, "a\n[cut: 2 characters left out; session.get from 7]\n");
    }

    #[test]
    fn cut_arguments_keep_their_names() {
        let args = json!({"path": "a.rs", "content": "x".repeat(500), "list": vec![1; 200]});
        let kept = cut_args(Seq(1), &args, Cut { head: 60, tail: 60 });
        assert_eq!(kept["path"], "a.rs");
        assert!(kept["content"].as_str().is_some_and(|text| text.starts_with(&"x".repeat(20))));
        assert!(kept["list"].as_str().is_some_and(|text| text.contains("left out")));
        assert!(
            cut_args(Seq(1), &json!("y".repeat(900)), Cut { head: 8, tail: 8 })["cut"].is_string()
        );
    }

    proptest! {
        #[test]
        fn fitted_cut_costs_no_more_than_its_tokens(text in "[a-z \\n字é]{0,4000}", tokens in 48_u64..400) {
            let at = Timestamp::from_unix_ms(0);
            let body = RecordBody::Message(Message::text(Role::User, text, at));
            let (_, cost) = fit(&Counter::ESTIMATE, Seq(123_456), &body, tokens).expect("48 tokens suffice");
            prop_assert!(cost <= tokens);
        }
    }
}
