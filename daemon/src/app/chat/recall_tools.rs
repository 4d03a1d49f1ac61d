//! The tools by which a model recalls earlier messages itself: `recall_search` and `recall_read`.
//!
//! The daemon answers them within the turn. Their calls and results are recorded like all others. A result is data: it is
//! defused, and bounded by a share of the prompt.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Instant;

use ollm_protocol::content::{RecordBody, RecordKind, Role, ToolCall, ToolResult};
use ollm_protocol::methods::chat::{ChatEvent, ChatToolCall, ToolExecutor};
use ollm_protocol::{Seq, SessionId};
use serde_json::Value;

use super::recall_offer::is_recall_tool;
use super::turn::{Turn, as_ms};
use crate::app::context::recall::{AskedSessions, recall_for_prompt};
use crate::app::context::recalled_block::numbered_piece;
use crate::app::core::{Core, blocking};
use crate::app::drafts::counted_for;
use crate::app::error::Result;
use crate::app::models::window::window_of;
use crate::app::path::ActivePath;
use crate::catalog::{RECALL_SEARCH, RecallPeriod, RecallQuery};
use crate::context::{RECALL_RESULT_PERCENT, defuse_all, prompt_limit};
use crate::tokens::Counter;

/// Number of messages that a search returns by default, and at most.
const DEFAULT_HITS: usize = 4;
const MAX_HITS: usize = 8;

impl Turn {
    /// Answers the calls of the daemon's tools and returns the others.
    pub(super) async fn answer_recall_calls(
        &self,
        message: Seq,
        calls: Vec<ChatToolCall>,
    ) -> Result<Vec<ChatToolCall>> {
        if !self.request.offers_recall {
            return Ok(calls);
        }
        let (own, others): (Vec<_>, Vec<_>) =
            calls.into_iter().partition(|call| is_recall_tool(&call.name));
        if own.is_empty() {
            return Ok(others);
        }
        let by = Some(ToolExecutor::Daemon);
        let event = ChatEvent::ToolCalls { seq: message, calls: own.clone(), timeout_ms: 0, by };
        self.report(event).await;
        let (id, model) = (self.request.id, self.request.model.clone());
        let size = self.request.context_size;
        let drafts = blocking(&self.core, move |core| {
            let reader = RecallReader::new(core, id, &model, size)?;
            let record = |call| {
                let body = RecordBody::ToolCall(reader.answer(call, message));
                counted_for(core, id, body).0
            };
            Ok(own.into_iter().map(record).collect::<Vec<_>>())
        });
        let drafts = self.unless_ended(drafts).await??;
        self.core.append(id, drafts, None).await?;
        Ok(others)
    }
}

/// The means to answer calls in one session.
struct RecallReader<'a> {
    core: &'a Arc<Core>,
    id: SessionId,
    path: Arc<ActivePath>,
    counter: Counter,
    /// The tokens that a result may have.
    most: u64,
}

impl<'a> RecallReader<'a> {
    fn new(core: &'a Arc<Core>, id: SessionId, model: &str, size: Option<u32>) -> Result<Self> {
        let path = core.sessions.with(id, |live| {
            let state = live.state();
            core.cache.path_to(state, state.leaf())
        })?;
        let counter = core.counts.load(Some(model), None, &[]);
        let window = window_of(core, Some(model), size).size;
        let limit = prompt_limit(window, core.config().context.answer_reserve);
        Ok(Self { core, id, path, counter, most: limit * RECALL_RESULT_PERCENT / 100 })
    }

    fn answer(&self, call: ChatToolCall, message: Seq) -> ToolCall {
        let started = Instant::now();
        let answer = match call.name.as_str() {
            RECALL_SEARCH => self.search(&call.args),
            _ => self.read(&call.args),
        };
        let result = match answer {
            Ok(text) => {
                ToolResult { llm_content: text, success: Some(true), ..ToolResult::default() }
            }
            Err(problem) => ToolResult {
                llm_content: problem.clone(),
                success: Some(false),
                error: Some(problem),
                ..ToolResult::default()
            },
        };
        ToolCall {
            id: call.id,
            name: call.name,
            args: call.args,
            result,
            timestamp: self.core.clock.now(),
            duration_ms: Some(as_ms(started.elapsed())),
            message_seq: Some(message),
            writes: None,
            writes_root: None,
            writes_omitted: 0,
        }
    }

    /// Returns the excerpts that answer a question, each with the number of its message; an error for the model if the
    /// arguments cannot be used.
    fn search(&self, args: &Value) -> Result<String, String> {
        let question = args["query"].as_str().unwrap_or_default();
        if question.trim().is_empty() {
            return Err("the argument query is missing: a question in plain words".to_owned());
        }
        let limit = number(&args["limit"]).map_or(DEFAULT_HITS, |limit| {
            usize::try_from(limit).unwrap_or(MAX_HITS).clamp(1, MAX_HITS)
        });
        // The message that is being answered cannot be the answer.
        let newest = self
            .path
            .items
            .iter()
            .rfind(|item| item.kind == RecordKind::Message && item.role == Some(Role::User));
        let newest = newest.map_or(Seq(u64::MAX), |item| item.seq);
        let scope = self.core.config().recall.scope;
        let page = AskedSessions::of_turn(self.core, self.id, scope).and_then(|asked| {
            let query = RecallQuery {
                question,
                scope: asked.scope(),
                period: RecallPeriod::default(),
                limit,
                turn: None,
                wants: &|session, seq| {
                    session != self.id || seq < newest && self.path.contains(seq)
                },
            };
            recall_for_prompt(self.core, self.id, &query)
        });
        let page = page.map_err(|error| format!("the search failed: {error}"))?;
        let mut text = String::new();
        for message in &page.messages {
            let piece = numbered_piece(message, message.session_id != self.id);
            let more = format!("{text}{piece}\n");
            if self.count(&more) > self.most && !text.is_empty() {
                break;
            }
            text = more;
        }
        if text.is_empty() {
            text.push_str("Nothing was found. Try other words.\n");
        }
        if page.behind > 0 {
            text.push_str("The newest messages are not searched yet.\n");
        }
        Ok(self.cut(text.trim_end(), 0))
    }

    /// Returns the text of a message from a character on; an error for the model if there is none.
    fn read(&self, args: &Value) -> Result<String, String> {
        let seq = [&args["message"], &args["seq"]].into_iter().find_map(number).map(Seq);
        let seq = seq.ok_or("the argument message is missing: the number of a message")?;
        let body = if self.path.contains(seq) {
            self.core.body(self.id, seq).map_err(|error| error.to_string())?
        } else {
            None
        };
        let text = match body {
            Some(RecordBody::Message(message)) => message.sent_text(),
            Some(RecordBody::ToolCall(call)) => call.result.llm_content,
            Some(RecordBody::Custom(custom)) => custom.context_text.unwrap_or_default(),
            _ => return Err(format!("there is no message {seq} in this conversation")),
        };
        let text = defuse_all(&text);
        let from =
            number(&args["from"]).map_or(0, |from| usize::try_from(from).unwrap_or(usize::MAX));
        Ok(self.cut(&text, from))
    }

    /// Returns the characters of a text from `from` on, as many as fit, and where the rest begins.
    fn cut(&self, text: &str, from: usize) -> String {
        let at = |chars: usize| text.char_indices().nth(chars).map_or(text.len(), |(at, _)| at);
        let rest = &text[at(from)..];
        if self.count(rest) <= self.most {
            return rest.to_owned();
        }
        let n_chars = rest.chars().count();
        let (mut low, mut high) = (1, n_chars);
        // The number of tokens grows with the text but for single tokens at its end.
        while low + 16 < high {
            let middle = usize::midpoint(low, high);
            let end = at(from + middle) - at(from);
            if self.count(&rest[..end]) <= self.most { low = middle } else { high = middle }
        }
        let end = at(from + low) - at(from);
        let mut cut = rest[..end].to_owned();
        let _infallible =
            write!(cut, "\n[... {} more characters, from {} on ...]", n_chars - low, from + low);
        cut
    }

    fn count(&self, text: &str) -> u64 {
        u64::from(self.counter.count_text(text))
    }
}

/// Returns a number, which models also write as a string, or with the mark of a message.
fn number(value: &Value) -> Option<u64> {
    match value {
        Value::String(text) => text.trim().trim_start_matches('#').parse().ok(),
        _ => value.as_u64(),
    }
}
