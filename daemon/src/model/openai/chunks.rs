//! The lines of a streamed answer: server-sent events, each with a chunk of JSON.
//!
//! Must not know how a request is sent.
//!
//! **Invariants**: an answer ends with a reason and then with `[DONE]`, and without one of them it is incomplete; what
//! comes behind the reason, except for counts, is not part of the answer.
//!
//! **Source**: the API reference of OpenAI; `to_json_oaicompat_chat_stream` of llama-server of mid-2026 (`timings`,
//! comments as signs of life, errors as events); vLLM 0.33, which sends thinking as `reasoning`.

use std::collections::BTreeMap;
use std::time::Duration;

use ollm_protocol::content::TokenLogprob;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::thinking::ThinkingSplitter;
use crate::model::chat::{AnswerCall, ChatDelta, ChatEnd, DoneReason, PromptCount};
use crate::model::error::{CallTarget, ModelError, sanitized};
use crate::model::line_stream::{LineFailure, LineParser, ParsedLine};
use crate::model::listed::absent_or_null;
use crate::nesting;

/// The line that ends a stream.
const DONE: &[u8] = b"[DONE]";
/// Maximum size of the tool calls of an answer, which are kept until it ends.
const MAX_CALL_BYTES: usize = 8 << 20;
/// The bytes of a tool call besides its texts.
const CALL_BYTES: usize = 64;

/// Reads the lines of one answer.
pub(super) struct ChatChunks {
    sent_at: Instant,
    first_at: Option<Instant>,
    splitter: ThinkingSplitter,
    /// The tool calls so far, by their index.
    calls: BTreeMap<u64, PartialCall>,
    /// The index of the call that pieces without an index continue.
    last_call: Option<u64>,
    n_call_bytes: usize,
    reason: Option<DoneReason>,
    usage: ChunkUsage,
    timings: ChunkTimings,
}

/// A tool call as far as it arrived.
#[derive(Default)]
struct PartialCall {
    id: Option<String>,
    name: String,
    arguments: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Chunk {
    error: Option<Value>,
    #[serde(deserialize_with = "absent_or_null")]
    choices: Vec<Choice>,
    usage: Option<ChunkUsage>,
    timings: Option<ChunkTimings>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Choice {
    index: u64,
    #[serde(deserialize_with = "absent_or_null")]
    delta: ChunkDelta,
    finish_reason: Option<String>,
    #[serde(deserialize_with = "absent_or_null")]
    logprobs: ChoiceLogprobs,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ChunkDelta {
    #[serde(deserialize_with = "text_or_nothing")]
    content: String,
    // llama-server, SGLang and LM Studio.
    #[serde(deserialize_with = "text_or_nothing")]
    reasoning_content: String,
    // vLLM since the end of 2025.
    #[serde(deserialize_with = "text_or_nothing")]
    reasoning: String,
    #[serde(deserialize_with = "absent_or_null")]
    tool_calls: Vec<CallDelta>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct CallDelta {
    index: Option<u64>,
    id: Option<String>,
    #[serde(deserialize_with = "absent_or_null")]
    function: FunctionDelta,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct FunctionDelta {
    name: Option<String>,
    arguments: Value,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ChoiceLogprobs {
    #[serde(deserialize_with = "absent_or_null")]
    content: Vec<ChunkLogprob>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ChunkLogprob {
    token: String,
    logprob: f64,
    bytes: Option<Vec<u8>>,
    #[serde(deserialize_with = "absent_or_null")]
    top_logprobs: Vec<ChunkLogprob>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct ChunkUsage {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    #[serde(deserialize_with = "absent_or_null")]
    prompt_tokens_details: PromptDetails,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct PromptDetails {
    cached_tokens: Option<u64>,
}

/// The counts and times of llama-server.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct ChunkTimings {
    cache_n: Option<u64>,
    prompt_n: Option<u64>,
    prompt_ms: Option<f64>,
    predicted_n: Option<u64>,
    predicted_ms: Option<f64>,
}

impl ChatChunks {
    /// Begins an answer to a request that is sent now.
    pub(super) fn new() -> Self {
        Self {
            sent_at: Instant::now(),
            first_at: None,
            splitter: ThinkingSplitter::default(),
            calls: BTreeMap::new(),
            last_call: None,
            n_call_bytes: 0,
            reason: None,
            usage: ChunkUsage::default(),
            timings: ChunkTimings::default(),
        }
    }

    fn chunk(&mut self, to: &CallTarget, chunk: Chunk) -> ParsedLine {
        if let Some(error) = chunk.error {
            return ParsedLine::failed(LineFailure::Sent(error));
        }
        self.first_at.get_or_insert_with(Instant::now);
        if let Some(usage) = chunk.usage {
            self.usage = usage;
        }
        if let Some(timings) = chunk.timings {
            self.timings = timings;
        }
        let mut deltas = Vec::new();
        for choice in chunk.choices.into_iter().filter(|choice| choice.index == 0) {
            if self.reason.is_some() {
                continue;
            }
            if !self.add_delta(choice.delta, &mut deltas) {
                let (to, limit_bytes) = (to.clone(), MAX_CALL_BYTES);
                let what = "tool calls";
                return ParsedLine::failed(ModelError::TooLarge { to, what, limit_bytes });
            }
            if !choice.logprobs.content.is_empty() {
                let tokens = choice.logprobs.content.into_iter().map(ChunkLogprob::into_token);
                deltas.push(ChatDelta::Logprobs(tokens.collect()));
            }
            let Some(reason) = choice.finish_reason.filter(|reason| !reason.is_empty()) else {
                continue;
            };
            self.splitter.finish(&mut deltas);
            if matches!(reason.as_str(), "abort" | "error") {
                let message = format!("it ended with the reason {reason}");
                let failed = Some(ModelError::BrokeOff { to: to.clone(), message }.into());
                return ParsedLine { deltas, failed, ..ParsedLine::default() };
            }
            let reason = done_reason(&reason);
            let calls = std::mem::take(&mut self.calls).into_values();
            // The limit cuts a call off anywhere.
            let is_cut = |call: &PartialCall| reason == DoneReason::Length && !call.is_whole();
            let calls = calls.filter(|call| !is_cut(call));
            let calls: Vec<_> = calls.map(PartialCall::into_call).collect();
            if !calls.is_empty() {
                deltas.push(ChatDelta::ToolCalls(calls));
            }
            self.reason = Some(reason);
        }
        ParsedLine { deltas, ..ParsedLine::default() }
    }

    /// Returns the index of the call that a piece belongs to. Without an index, a new id begins a call, and a piece without
    /// an id continues the last one, unless it is the further of several in one chunk.
    fn index_of(&self, call: &CallDelta, at: usize) -> u64 {
        let after = |last: u64| last.saturating_add(1);
        let next = || self.calls.last_key_value().map_or(0, |(last, _)| after(*last));
        match (call.index, call.id.as_deref().filter(|id| !id.is_empty())) {
            (Some(index), _) => index,
            (None, Some(id)) => {
                let mut known = self.calls.iter();
                let known = known.find(|(_, call)| call.id.as_deref() == Some(id));
                known.map_or_else(next, |(index, _)| *index)
            }
            (None, None) if at == 0 => self.last_call.unwrap_or(0),
            (None, None) if call.function.name.is_some() => next(),
            (None, None) => at as u64,
        }
    }

    /// Adds a piece; returns false if the tool calls are too large.
    fn add_delta(&mut self, delta: ChunkDelta, deltas: &mut Vec<ChatDelta>) -> bool {
        for thinking in [delta.reasoning_content, delta.reasoning] {
            if !thinking.is_empty() {
                deltas.push(ChatDelta::Thinking(thinking));
            }
        }
        if !delta.content.is_empty() {
            self.splitter.push(&delta.content, deltas);
        }
        for (at, call) in delta.tool_calls.into_iter().enumerate() {
            let index = self.index_of(&call, at);
            self.last_call = Some(index);
            let partial = self.calls.entry(index).or_default();
            let id = call.id.filter(|id| !id.is_empty());
            self.n_call_bytes += id.as_ref().map_or(0, String::len);
            partial.id = id.or(partial.id.take());
            let name = call.function.name.unwrap_or_default();
            let arguments = match call.function.arguments {
                Value::Null => String::new(),
                Value::String(piece) => piece,
                other => other.to_string(),
            };
            partial.name.push_str(&name);
            partial.arguments.push_str(&arguments);
            self.n_call_bytes += name.len() + arguments.len() + CALL_BYTES;
        }
        self.n_call_bytes <= MAX_CALL_BYTES
    }

    fn end(&mut self, reason: DoneReason) -> ChatEnd {
        let ChunkTimings { cache_n, prompt_n, prompt_ms, predicted_n, predicted_ms } =
            self.timings.clone();
        let of_timings = prompt_n.map(|new| new.saturating_add(cache_n.unwrap_or(0)));
        let prompt = self.usage.prompt_tokens.filter(|tokens| *tokens > 0).or(of_timings);
        let (waited, answered) = match self.first_at {
            Some(at) => (Some(at - self.sent_at), Some(at.elapsed())),
            None => (None, None),
        };
        ChatEnd {
            reason,
            prompt: prompt.map_or(PromptCount::Unknown, PromptCount::Whole),
            cached_tokens: self.usage.prompt_tokens_details.cached_tokens.or(cache_n),
            answer_tokens: self.usage.completion_tokens.or(predicted_n),
            load_time: None,
            // Without the server's report, the time includes its queue.
            prompt_time: prompt_ms.and_then(milliseconds).or(waited),
            answer_time: predicted_ms.and_then(milliseconds).or(answered),
        }
    }
}

impl LineParser for ChatChunks {
    fn parse(&mut self, to: &CallTarget, number: u64, line: &[u8]) -> ParsedLine {
        let data = match field(line) {
            Some((b"data" | b"error", value)) => value,
            // Comments, and names and numbers of events.
            Some((b"" | b"event" | b"id" | b"retry", _)) => return ParsedLine::empty(),
            _ => line,
        };
        if data == DONE {
            return match self.reason.clone() {
                Some(reason) => {
                    let end = Some(self.end(reason));
                    ParsedLine { end, ..ParsedLine::default() }
                }
                None => ParsedLine::failed(ModelError::Incomplete { to: to.clone() }),
            };
        }
        match parse_chunk(data) {
            Some(chunk) => self.chunk(to, chunk),
            None => ParsedLine::failed(unreadable(to, number, data)),
        }
    }
}

/// Divides a line of an event into the name of a field and its value.
fn field(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    let name = &line[..colon];
    let is_name = name.iter().all(u8::is_ascii_lowercase);
    is_name.then(|| (name, line[colon + 1..].trim_ascii()))
}

fn parse_chunk(data: &[u8]) -> Option<Chunk> {
    // serde would read an array as the fields of a struct.
    (data.first() == Some(&b'{')).then(|| serde_json::from_slice(data).ok()).flatten()
}

/// Returns the error for a line that is no chunk. Its text is not repeated, because it may be part of a conversation.
fn unreadable(to: &CallTarget, number: u64, data: &[u8]) -> ModelError {
    let to = to.clone();
    if data.first() == Some(&b'<') {
        return ModelError::OtherServer { to, found: "it returns a page".to_owned() };
    }
    if nesting::is_unparsable(data) {
        return ModelError::TooDeep { to };
    }
    let problem = format!("line {number} ({} bytes) cannot be parsed", data.len());
    ModelError::Garbage { to, problem }
}

fn done_reason(word: &str) -> DoneReason {
    match word {
        "stop" | "tool_calls" | "function_call" | "eos" => DoneReason::Stop,
        "length" => DoneReason::Length,
        other => DoneReason::Other(sanitized(other)),
    }
}

fn milliseconds(number: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(number / 1000.0).ok()
}

/// Reads anything but a text as an empty one.
fn text_or_nothing<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    Ok(match Value::deserialize(from)? {
        Value::String(text) => text,
        _ => String::new(),
    })
}

impl ChunkLogprob {
    fn into_token(self) -> TokenLogprob {
        let Self { token, logprob, bytes, top_logprobs } = self;
        let top = top_logprobs.into_iter().map(Self::into_token).collect();
        TokenLogprob { token, logprob, bytes, top }
    }
}

impl PartialCall {
    /// Returns whether the arguments are complete. Empty ones are not, because a call without arguments has `{}`.
    fn is_whole(&self) -> bool {
        serde_json::from_str::<Value>(&self.arguments).is_ok()
    }

    fn into_call(self) -> AnswerCall {
        let Self { id, name, arguments } = self;
        let args = match arguments.trim() {
            "" => Value::Object(Map::new()),
            text => serde_json::from_str(text).unwrap_or(Value::String(arguments)),
        };
        AnswerCall { id, name, args }
    }
}

#[cfg(test)]
mod tests {
    use ollm_protocol::model_host::ModelHost;
    use serde_json::json;

    use super::super::Dialect;
    use super::*;
    use crate::model::http::HttpAddress;

    fn to() -> CallTarget {
        let (host, model) = ("http://h:1".to_owned(), Some("m".to_owned()));
        CallTarget { host, model, advice: &Dialect::Plain.rules().advice }
    }

    /// Returns the pieces of an answer, and its end or error.
    fn read(lines: &[&str]) -> (Vec<ChatDelta>, Option<ChatEnd>, Option<ModelError>) {
        let (mut chunks, mut deltas) = (ChatChunks::new(), Vec::new());
        for (at, line) in lines.iter().enumerate() {
            let parsed = chunks.parse(&to(), at as u64 + 1, line.as_bytes());
            deltas.extend(parsed.deltas);
            if parsed.end.is_some() || parsed.failed.is_some() {
                let address = HttpAddress::new(ModelHost::parse("h:1").expect("an address"));
                let failed = parsed.failed.map(|failure| failure.into_error(&to(), &address));
                return (deltas, parsed.end, failed);
            }
        }
        (deltas, None, None)
    }

    fn text(text: &str) -> ChatDelta {
        ChatDelta::Text(text.to_owned())
    }

    const STOP: &str =
        r#"data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop","logprobs":null}]}"#;

    #[test]
    fn answer_of_llama_server_has_text_and_counts() {
        // Recorded from llama-server b1-0c1e570 and shortened.
        let (deltas, end, failed) = read(&[
            r#"data: {"choices":[{"finish_reason":null,"index":0,"delta":{"role":"assistant","content":null}}],"object":"chat.completion.chunk"}"#,
            ":",
            r#"data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":"Hi"}}]}"#,
            r#"data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":" there"}}]}"#,
            r#"data: {"choices":[{"finish_reason":"length","index":0,"delta":{}}]}"#,
            r#"data: {"choices":[],"usage":{"completion_tokens":6,"prompt_tokens":32,"total_tokens":38,"prompt_tokens_details":{"cached_tokens":20}},"timings":{"cache_n":20,"prompt_n":12,"prompt_ms":482.033,"predicted_n":6,"predicted_ms":144.838}}"#,
            "data: [DONE]",
        ]);
        assert_eq!(deltas, [text("Hi"), text(" there")]);
        assert_eq!(failed, None);
        let end = end.expect("an end");
        assert_eq!((end.reason, end.prompt), (DoneReason::Length, PromptCount::Whole(32)));
        assert_eq!((end.cached_tokens, end.answer_tokens), (Some(20), Some(6)));
        assert_eq!(end.prompt_time, Some(Duration::from_micros(482_033)));
        assert_eq!(end.answer_time, Some(Duration::from_micros(144_838)));
    }

    #[test]
    fn thinking_has_three_spellings() {
        let check = |delta: Value| {
            let line = format!("data: {}", json!({ "choices": [{ "index": 0, "delta": delta }] }));
            let (deltas, end, _) = read(&[
                &line,
                r#"data: {"choices":[{"index":0,"delta":{"content":"Yes."}}]}"#,
                STOP,
                "data: [DONE]",
            ]);
            assert_eq!(deltas, [ChatDelta::Thinking("so".to_owned()), text("Yes.")], "{line}");
            assert!(end.is_some());
        };
        check(json!({ "reasoning_content": "so" }));
        check(json!({ "reasoning": "so", "content": null }));
        check(json!({ "content": "<think>so</think>\n" }));
    }

    #[test]
    fn tool_calls_are_joined_by_their_index() {
        let (deltas, end, _) = read(&[
            r#"data: {"choices":[{"index":0,"delta":{"content":null,"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"read","arguments":""}}]}}]}"#,
            r#"data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"id":"c2","function":{"name":"list","arguments":"{\"a\""}}]}}]}"#,
            r#"data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{}"}},{"index":1,"function":{"arguments":":1}"}}]}}]}"#,
            r#"data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":2,"function":{"name":"odd","arguments":"{nonsense"}}]}}]}"#,
            r#"data: {"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}"#,
            "data: [DONE]",
        ]);
        let call = |id: Option<&str>, name: &str, args| {
            let (id, name) = (id.map(str::to_owned), name.to_owned());
            AnswerCall { id, name, args }
        };
        let expect = vec![
            call(Some("c1"), "read", json!({})),
            call(Some("c2"), "list", json!({ "a": 1 })),
            call(None, "odd", json!("{nonsense")),
        ];
        assert_eq!(deltas, [ChatDelta::ToolCalls(expect)]);
        assert_eq!(end.map(|end| end.reason), Some(DoneReason::Stop));
    }

    #[test]
    fn call_without_an_index_begins_with_its_id() {
        let piece = |call: Value| {
            let delta = json!({ "choices": [{ "index": 0, "delta": { "tool_calls": [call] } }] });
            format!("data: {delta}")
        };
        let first = piece(json!({ "id": "c1", "function": { "name": "a", "arguments": "{" } }));
        let rest = piece(json!({ "function": { "arguments": "}" } }));
        let again = piece(json!({ "id": "c1", "function": { "arguments": "" } }));
        let second =
            piece(json!({ "id": "c2", "function": { "name": "b", "arguments": "{\"n\":1" } }));
        let (deltas, ..) = read(&[&first, &again, &rest, &second, &rest, STOP, "data: [DONE]"]);
        let call = |id: &str, name: &str, args| AnswerCall {
            id: Some(id.to_owned()),
            name: name.to_owned(),
            args,
        };
        let expect = vec![call("c1", "a", json!({})), call("c2", "b", json!({ "n": 1 }))];
        assert_eq!(deltas, [ChatDelta::ToolCalls(expect)]);
        // The limit cuts the second call off.
        let length = STOP.replace("stop", "length");
        let (deltas, end, _) = read(&[&first, &rest, &second, &length, "data: [DONE]"]);
        assert_eq!(deltas, [ChatDelta::ToolCalls(vec![call("c1", "a", json!({}))])]);
        assert_eq!(end.map(|end| end.reason), Some(DoneReason::Length));
    }

    #[test]
    fn reason_can_be_empty_or_a_failure() {
        let empty = STOP.replace("stop", "");
        let late = r#"data: {"choices":[{"index":0,"delta":{"content":"late"}}]}"#;
        let (deltas, end, _) = read(&[&empty, late, STOP, "data: [DONE]"]);
        assert_eq!(
            (deltas, end.map(|end| end.reason)),
            (vec![text("late")], Some(DoneReason::Stop))
        );
        for word in ["abort", "error"] {
            let failed = read(&[&STOP.replace("stop", word), "data: [DONE]"]).2;
            assert_eq!(failed.map(|error| error.reason()), Some("brokeOff"), "{word}");
        }
    }

    #[test]
    fn answer_needs_a_reason_and_the_end_marker() {
        let half = r#"data: {"choices":[{"index":0,"delta":{"content":"half"}}]}"#;
        let (deltas, end, failed) = read(&[half, "data: [DONE]"]);
        assert_eq!((deltas.len(), end), (1, None));
        assert_eq!(failed.map(|error| error.reason()), Some("incomplete"));
        let (_, end, failed) = read(&[half, STOP]);
        assert_eq!((end, failed), (None, None), "the stream reports the missing marker");
    }

    #[test]
    fn what_follows_the_reason_is_not_part_of_the_answer() {
        let late = r#"data: {"choices":[{"index":0,"delta":{"content":"late"}}]}"#;
        let other = r#"data: {"choices":[{"index":1,"delta":{"content":"other"}}]}"#;
        let usage = r#"data: {"choices":[],"usage":{"prompt_tokens":9}}"#;
        let early = r#"data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":0}}"#;
        let (deltas, end, _) = read(&[early, other, STOP, STOP, late, usage, "data: [DONE]"]);
        assert_eq!(deltas, []);
        assert_eq!(end.map(|end| end.prompt), Some(PromptCount::Whole(9)));
        let nothing = read(&[STOP, r#"data: {"usage":{"prompt_tokens":0}}"#, "data: [DONE]"]).1;
        assert_eq!(nothing.map(|end| end.prompt), Some(PromptCount::Unknown));
    }

    #[test]
    fn error_in_an_answer_is_told_apart() {
        let check = |line: &str, reason: &str| {
            let failed = read(&[line]).2.expect("fails");
            assert_eq!(failed.reason(), reason, "{failed}");
            assert!(!failed.to_string().contains("private"), "{failed}");
        };
        check(r#"data: {"error":{"message":"no","code":500}}"#, "brokeOff");
        // Earlier releases of llama-server.
        check(r#"error: {"error":{"message":"no","code":500}}"#, "brokeOff");
        // vLLM, with status 200.
        check(r#"{"error":{"message":"no","code":500}}"#, "brokeOff");
        let long = r#"data: {"error":{"code":400,"type":"exceed_context_size_error","n_prompt_tokens":9,"n_ctx":5,"message":"x"}}"#;
        check(long, "overflow");
        check("<html>private</html>", "otherServer");
        check("private words", "garbage");
        check("data: private", "garbage");
        check("data: {\"private", "garbage");
        check("data: [1]", "garbage");
    }

    #[test]
    fn ids_of_tool_calls_count_for_the_limit_of_an_answer() {
        let id = "x".repeat(MAX_CALL_BYTES / 2);
        let call = |index: u32| {
            let calls = json!([{ "index": index, "id": id, "function": { "name": "f" } }]);
            format!(
                "data: {}",
                json!({ "choices": [{ "index": 0, "delta": { "tool_calls": calls } }] })
            )
        };
        let (_, _, failed) = read(&[&call(0), &call(1)]);
        assert!(matches!(failed, Some(ModelError::TooLarge { .. })), "{failed:?}");
    }

    #[test]
    fn counts_beyond_all_numbers_are_the_largest_one() {
        let timings = json!({ "choices": [], "timings": { "cache_n": 1, "prompt_n": u64::MAX } });
        let (_, end, failed) = read(&[STOP, &format!("data: {timings}"), "data: [DONE]"]);
        assert_eq!((end.map(|end| end.prompt), failed), (Some(PromptCount::Whole(u64::MAX)), None));
    }
}
