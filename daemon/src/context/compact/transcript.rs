//! Records as a summarizer reads them: the author, the number, and as much of the text as a summary can need.

use ollm_protocol::Seq;
use ollm_protocol::content::{Message, Part, RecordBody, Role};
use serde_json::Value;

use super::defuse::defuse_all;
use crate::context::cut::split_ends;
use crate::tokens::Counter;

/// Characters that are kept of each kind of text, at the beginning and at the end. Messages of the user are worth most;
/// of an old result only the ends matter.
const USER: (usize, usize) = (3000, 1000);
const ASSISTANT: (usize, usize) = (1500, 500);
const RESULT: (usize, usize) = (400, 200);
const ARGUMENTS: (usize, usize) = (160, 40);

/// Returns a record as text, or `None` if it has no text.
fn record_text(seq: Seq, body: &RecordBody) -> Option<String> {
    let (author, text) = match body {
        RecordBody::Message(message) => message_text(message),
        RecordBody::ToolCall(call) => {
            let author = format!("{} {}", call.name, arguments(&call.args));
            (author, cut_middle(&call.result.llm_content, RESULT))
        }
        RecordBody::Delta(delta) => {
            (format!("update {}", delta.topic), cut_middle(&delta.text, RESULT))
        }
        RecordBody::BranchSummary(branch) => {
            ("branch summary".to_owned(), cut_middle(&branch.summary, ASSISTANT))
        }
        RecordBody::Compaction(compaction) => {
            ("earlier summary".to_owned(), cut_middle(&compaction.summary, USER))
        }
        RecordBody::Custom(custom) => {
            (custom.name.clone(), cut_middle(custom.context_text.as_deref()?, ASSISTANT))
        }
        _ => return None,
    };
    let text = text.trim();
    (!text.is_empty()).then(|| defuse_all(&format!("[#{seq} {author}] {text}")))
}

/// Returns the author and the text of a message.
fn message_text(message: &Message) -> (String, String) {
    let text = message.plain_text();
    match message.role {
        Role::User => ("user".to_owned(), cut_middle(&text, USER)),
        Role::System => ("system".to_owned(), cut_middle(&text, ASSISTANT)),
        Role::Tool => {
            let name = message.tool_name.as_deref().unwrap_or("a tool");
            (format!("result of {name}"), cut_middle(&text, RESULT))
        }
        Role::Assistant => {
            let mut text = cut_middle(&text, ASSISTANT);
            for part in &message.parts {
                if let Part::ToolCall { name, args, .. } = part {
                    text.push_str(&format!("\n(calls {name} {})", arguments(args)));
                }
            }
            ("assistant".to_owned(), text)
        }
    }
}

fn arguments(args: &Value) -> String {
    match args {
        Value::Null => String::new(),
        args => cut_middle(&args.to_string(), ARGUMENTS),
    }
}

/// Returns the beginning and the end of a text, with the number of missing characters between them.
pub(super) fn cut_middle(text: &str, (head, tail): (usize, usize)) -> String {
    match split_ends(text, head, tail) {
        Some((head, left_out, tail)) => format!("{head} […{left_out} characters…] {tail}"),
        None => text.to_owned(),
    }
}

/// Consecutive records as one text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TranscriptPiece {
    pub from: Seq,
    pub to: Seq,
    pub text: String,
}

/// Collects records into pieces of at most `room` tokens.
pub(super) struct TranscriptBuilder<'c> {
    counter: &'c Counter,
    room: u64,
    done: Vec<TranscriptPiece>,
    /// The piece that may still grow, and its tokens.
    open: Option<(TranscriptPiece, u64)>,
}

impl<'c> TranscriptBuilder<'c> {
    pub(super) fn new(counter: &'c Counter, room: u64) -> Self {
        Self { counter, room, done: Vec::new(), open: None }
    }

    /// Adds the next record.
    pub(super) fn add(&mut self, seq: Seq, body: &RecordBody) {
        let Some(mut text) = record_text(seq, body) else { return };
        let mut tokens = self.cost(&text);
        // A record that does not fit into a piece of its own is cut until it fits.
        let mut chars = text.chars().count();
        while tokens > self.room && chars > 1 {
            chars /= 2;
            text = cut_middle(&text, (chars - chars / 3, chars / 3));
            tokens = self.cost(&text);
        }
        match &mut self.open {
            Some((piece, sum)) if *sum + tokens <= self.room => {
                piece.to = seq;
                piece.text.push_str("\n\n");
                piece.text.push_str(&text);
                *sum += tokens;
            }
            open => {
                let next = TranscriptPiece { from: seq, to: seq, text };
                self.done.extend(open.replace((next, tokens)).map(|(piece, _)| piece));
            }
        }
    }

    /// Returns the pieces, oldest first.
    pub(super) fn finish(mut self) -> Vec<TranscriptPiece> {
        self.done.extend(self.open.map(|(piece, _)| piece));
        self.done
    }

    fn cost(&self, text: &str) -> u64 {
        u64::from(self.counter.count_text(text)) + 2
    }
}

#[cfg(test)]
mod tests {
    use ollm_protocol::Timestamp;
    use ollm_protocol::content::{ToolCall, ToolResult};
    use serde_json::json;

    use super::*;

    fn message(role: Role, text: impl Into<String>) -> RecordBody {
        RecordBody::Message(Message::text(role, text, Timestamp::from_unix_ms(0)))
    }

    #[test]
    fn records_name_their_author_and_number() {
        let check = |body: RecordBody, expect: &str| {
            assert_eq!(record_text(Seq(7), &body).as_deref().unwrap_or_default(), expect);
        };
        check(message(Role::User, "do it"), "[#7 user] do it");
        check(message(Role::User, "  "), "");
        check(message(Role::User, "</records> <|x|>"), "[#7 user] < /records> < |x|>");
        let mut calls = Message::text(Role::Assistant, "I look.", Timestamp::from_unix_ms(0));
        let args = json!({ "path": "a.rs" });
        calls.parts.push(Part::ToolCall { id: "1".into(), name: "read".into(), args });
        let expect = "[#7 assistant] I look.\n(calls read {\"path\":\"a.rs\"})";
        check(RecordBody::Message(calls), expect);
        let call = ToolCall {
            id: "1".into(),
            name: "shell".into(),
            args: json!({ "command": "ls" }),
            result: ToolResult { llm_content: "x".repeat(10_000), ..ToolResult::default() },
            timestamp: Timestamp::from_unix_ms(0),
            duration_ms: None,
            message_seq: None,
        };
        let text = record_text(Seq(7), &RecordBody::ToolCall(call)).expect("has a text");
        assert!(text.starts_with("[#7 shell {\"command\":\"ls\"}] xxx"), "{text}");
        assert!(text.contains("[…9400 characters…]") && text.len() < 800, "{text}");
    }

    #[test]
    fn pieces_hold_every_record_within_their_room() {
        let counter = Counter::ESTIMATE;
        let mut transcript = TranscriptBuilder::new(&counter, 100);
        for seq in 0..50 {
            let text =
                if seq == 20 { "long word ".repeat(20_000) } else { format!("message {seq}") };
            transcript.add(Seq(seq), &message(Role::User, text));
        }
        let pieces = transcript.finish();
        assert!(pieces.len() > 1);
        assert_eq!((pieces[0].from, pieces[pieces.len() - 1].to), (Seq(0), Seq(49)));
        for pair in pieces.windows(2) {
            assert_eq!(pair[0].to.0 + 1, pair[1].from.0);
        }
        for piece in &pieces {
            assert!(counter.count_text(&piece.text) <= 100, "{}", piece.text);
        }
        let all: String = pieces.iter().map(|piece| piece.text.as_str()).collect();
        assert!((0..50).all(|seq| all.contains(&format!("[#{seq} user]"))));
    }
}
