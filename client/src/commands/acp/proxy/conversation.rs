//! The messages of ACP as steps to record. Pure: bytes in, steps out.
//!
//! Of each line only the envelope is parsed, and the rest where its method means something here; unknown methods and updates
//! say nothing. Memory is bounded: `contents` cuts texts and calls, and only the newest requests and sessions are kept.
//!
//! **Invariants**: the order of the steps is the order in which a person saw what they say. Of the params of a request that
//! opens a session only the directory is used: the rest has secrets, such as the variables of MCP servers.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};

use ollm_protocol::limits::{BoundedField, beginning};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::contents::{AcpCalls, EndedCall, append, ended_text, text_of_block, text_of_blocks};
use super::tap::AcpSide;

/// The requests whose responses are awaited, and the sessions.
const MAX_REQUESTS: usize = 256;
const MAX_SESSIONS: usize = 64;

/// Something to record in a session of the agent.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RecordStep {
    /// The name that the agent gave itself.
    pub(super) agent: Option<String>,
    /// The agent's id of the session.
    pub(super) session: String,
    /// Set if the agent repeats what a client said earlier: it is recorded only in a session that is new here.
    pub(super) is_replay: bool,
    pub(super) what: StepKind,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum StepKind {
    /// The session exists, in a directory.
    Open {
        cwd: Option<String>,
        /// Set if the agent began it now. Another one may have had the same id earlier.
        is_new: bool,
    },
    Title(String),
    User(String),
    Answer {
        thought: String,
        text: String,
        end: Option<String>,
    },
    Call(EndedCall),
}

/// The conversation of one editor with one agent.
pub(super) struct AcpConversation {
    /// The name of the agent, as it says itself.
    agent: Option<String>,
    /// The requests of the editor, by their ids.
    requests: VecDeque<(String, PendingRequest)>,
    sessions: HashMap<String, AcpSession>,
    order: VecDeque<String>,
}

enum PendingRequest {
    Initialize,
    New {
        cwd: Option<String>,
    },
    /// Also the reply to a request that opens a known session.
    Load {
        session: String,
    },
    Prompt {
        session: String,
    },
}

#[derive(Default)]
struct AcpSession {
    thought: String,
    text: String,
    /// A text of the user, during a replay.
    user: String,
    is_replaying: bool,
    calls: AcpCalls,
}

impl AcpSession {
    /// Returns whether nothing is lost if the session is forgotten.
    fn is_idle(&self) -> bool {
        let texts = [&self.thought, &self.text, &self.user];
        texts.iter().all(|text| text.is_empty()) && self.calls.is_empty() && !self.is_replaying
    }
}

#[derive(Deserialize)]
struct AcpLine<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
}

impl AcpConversation {
    pub(super) fn new() -> Self {
        Self {
            agent: None,
            requests: VecDeque::new(),
            sessions: HashMap::new(),
            order: VecDeque::new(),
        }
    }

    /// Adds a line and returns what it lets record.
    pub(super) fn line(&mut self, direction: AcpSide, line: &[u8]) -> Vec<RecordStep> {
        let Ok(message) = serde_json::from_slice::<AcpLine<'_>>(line) else {
            return Vec::new();
        };
        let id = message.id.map(|id| id.get().trim().to_owned());
        match (message.method.as_deref(), direction, id) {
            (Some(method), AcpSide::FromEditor, Some(id)) => {
                self.request(method, id, &value(message.params, is_known_request(method)))
            }
            (Some("session/update"), AcpSide::FromAgent, None) => {
                self.update(value(message.params, true))
            }
            (None, AcpSide::FromAgent, Some(id)) => {
                let Some(request) = self.take_request(&id) else {
                    return Vec::new();
                };
                self.response(request, message.result.map(|result| value(Some(result), true)))
            }
            _ => Vec::new(),
        }
    }

    /// Returns what is left to record when the agent has ended.
    pub(super) fn end(&mut self) -> Vec<RecordStep> {
        let sessions: Vec<String> = self.order.iter().cloned().collect();
        sessions.iter().flat_map(|session| self.finish(session, Some("interrupted"))).collect()
    }

    fn request(&mut self, method: &str, id: String, params: &Value) -> Vec<RecordStep> {
        let text = |name: &str| params[name].as_str().map(str::to_owned);
        let (session, cwd) = (text("sessionId"), text("cwd"));
        let (request, steps) = match (method, session) {
            ("initialize", _) => (PendingRequest::Initialize, Vec::new()),
            ("session/new" | "session/fork", _) => (PendingRequest::New { cwd }, Vec::new()),
            ("session/load" | "session/resume", Some(session)) => {
                self.session(&session).is_replaying = method == "session/load";
                let step = self.step(&session, StepKind::Open { cwd, is_new: false });
                (PendingRequest::Load { session }, vec![step])
            }
            ("session/prompt", Some(session)) => {
                let mut steps = self.finish(&session, None);
                let asked = self.step(&session, StepKind::User(text_of_blocks(&params["prompt"])));
                // A person wrote it now, even if the agent still repeats what was said earlier.
                steps.push(RecordStep { is_replay: false, ..asked });
                (PendingRequest::Prompt { session }, steps)
            }
            _ => return Vec::new(),
        };
        if self.requests.len() == MAX_REQUESTS {
            self.requests.pop_front();
        }
        self.requests.push_back((id, request));
        steps
    }

    fn take_request(&mut self, id: &str) -> Option<PendingRequest> {
        let at = self.requests.iter().position(|(known, _)| known == id)?;
        self.requests.remove(at).map(|(_, request)| request)
    }

    /// Handles the response to a request; `result` is missing if it failed.
    fn response(&mut self, request: PendingRequest, result: Option<Value>) -> Vec<RecordStep> {
        match (request, result) {
            (PendingRequest::Initialize, Some(result)) => {
                let mut name = result["agentInfo"]["name"].as_str().map(str::to_owned);
                if let Some(name) = &mut name {
                    BoundedField::Provider.shorten(name);
                }
                self.agent = name.filter(|name| !name.is_empty());
                Vec::new()
            }
            (PendingRequest::New { cwd }, Some(result)) => match result["sessionId"].as_str() {
                Some(session) => {
                    self.session(session);
                    vec![self.step(session, StepKind::Open { cwd, is_new: true })]
                }
                None => Vec::new(),
            },
            (PendingRequest::Load { session }, _) => {
                let steps = self.finish(&session, None);
                self.session(&session).is_replaying = false;
                steps
            }
            (PendingRequest::Prompt { session }, result) => {
                let end =
                    result.as_ref().map_or(Some("error"), |result| result["stopReason"].as_str());
                let end = end.map(|end| match end {
                    "end_turn" => "stop",
                    end => beginning(end, BoundedField::FinishReason.max_bytes()),
                });
                self.finish(&session, end)
            }
            _ => Vec::new(),
        }
    }

    fn update(&mut self, mut params: Value) -> Vec<RecordStep> {
        let update = params.get_mut("update").map(Value::take).unwrap_or_default();
        let Some(id) = params["sessionId"].as_str() else { return Vec::new() };
        let chunk = || text_of_block(&update["content"]);
        let is_replaying = self.session(id).is_replaying;
        match update["sessionUpdate"].as_str().unwrap_or_default() {
            "user_message_chunk" if is_replaying => {
                let steps = if self.session(id).user.is_empty() {
                    self.finish(id, None)
                } else {
                    Vec::new()
                };
                append(&mut self.session(id).user, &chunk());
                steps
            }
            kind @ ("agent_message_chunk" | "agent_thought_chunk") => {
                let steps = self.finish_user(id);
                let session = self.session(id);
                let to = if kind == "agent_message_chunk" {
                    &mut session.text
                } else {
                    &mut session.thought
                };
                append(to, &chunk());
                steps
            }
            "tool_call" | "tool_call_update" => self.call(id, update),
            "session_info_update" => match update["title"].as_str() {
                Some(title) => {
                    let mut title = title.to_owned();
                    BoundedField::Title.shorten(&mut title);
                    vec![self.step(id, StepKind::Title(title))]
                }
                None => Vec::new(),
            },
            _ => Vec::new(),
        }
    }

    /// Merges the state of a call, and returns the call when it has ended.
    fn call(&mut self, id: &str, update: Value) -> Vec<RecordStep> {
        let Value::Object(update) = update else { return Vec::new() };
        let ended = self.session(id).calls.merge(update);
        if ended.is_empty() {
            return Vec::new();
        }
        let mut steps = self.finish_user(id);
        steps.extend(self.finish_answer(id, None));
        steps.extend(ended.into_iter().map(|call| self.step(id, StepKind::Call(call))));
        steps
    }

    /// Records everything of a session that is pending.
    fn finish(&mut self, id: &str, end: Option<&str>) -> Vec<RecordStep> {
        let mut steps = self.finish_user(id);
        let calls = self.session(id).calls.end();
        if !calls.is_empty() {
            steps.extend(self.finish_answer(id, None));
        }
        steps.extend(calls.into_iter().map(|call| self.step(id, StepKind::Call(call))));
        steps.extend(self.finish_answer(id, end));
        steps
    }

    fn finish_user(&mut self, id: &str) -> Vec<RecordStep> {
        let user = ended_text(std::mem::take(&mut self.session(id).user));
        if user.is_empty() { Vec::new() } else { vec![self.step(id, StepKind::User(user))] }
    }

    fn finish_answer(&mut self, id: &str, end: Option<&str>) -> Option<RecordStep> {
        let session = self.session(id);
        let thought = ended_text(std::mem::take(&mut session.thought));
        let text = ended_text(std::mem::take(&mut session.text));
        if thought.is_empty() && text.is_empty() {
            return None;
        }
        Some(self.step(id, StepKind::Answer { thought, text, end: end.map(str::to_owned) }))
    }

    fn step(&self, session: &str, what: StepKind) -> RecordStep {
        let is_replay = self.sessions.get(session).is_some_and(|session| session.is_replaying);
        RecordStep { agent: self.agent.clone(), session: session.to_owned(), is_replay, what }
    }

    fn session(&mut self, id: &str) -> &mut AcpSession {
        if !self.sessions.contains_key(id) {
            if self.order.len() == MAX_SESSIONS {
                let is_idle =
                    |name: &String| self.sessions.get(name).is_none_or(AcpSession::is_idle);
                let at = self.order.iter().position(is_idle).unwrap_or(0);
                if let Some(forgotten) = self.order.remove(at) {
                    self.sessions.remove(&forgotten);
                }
            }
            self.order.push_back(id.to_owned());
        }
        self.sessions.entry(id.to_owned()).or_default()
    }
}

fn is_known_request(method: &str) -> bool {
    matches!(
        method,
        "initialize"
            | "session/new"
            | "session/fork"
            | "session/load"
            | "session/resume"
            | "session/prompt"
    )
}

/// Parses a part of a message if it is wanted.
fn value(raw: Option<&RawValue>, is_wanted: bool) -> Value {
    raw.filter(|_| is_wanted)
        .and_then(|raw| serde_json::from_str(raw.get()).ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const EDITOR: AcpSide = AcpSide::FromEditor;
    const AGENT: AcpSide = AcpSide::FromAgent;

    fn say(
        conversation: &mut AcpConversation,
        direction: AcpSide,
        message: &Value,
    ) -> Vec<StepKind> {
        let steps = conversation.line(direction, message.to_string().as_bytes());
        steps.into_iter().map(|step| step.what).collect()
    }

    fn update(update: Value) -> Value {
        json!({ "jsonrpc": "2.0", "method": "session/update", "params": { "sessionId": "s", "update": update } })
    }

    fn chunk(kind: &str, text: &str) -> Value {
        update(json!({ "sessionUpdate": kind, "content": { "type": "text", "text": text } }))
    }

    fn opened() -> AcpConversation {
        let mut own = AcpConversation::new();
        say(&mut own, EDITOR, &json!({ "id": 0, "method": "initialize", "params": {} }));
        say(&mut own, AGENT, &json!({ "id": 0, "result": { "agentInfo": { "name": "stub" } } }));
        assert_eq!(own.agent.as_deref(), Some("stub"));
        say(
            &mut own,
            EDITOR,
            &json!({ "id": "n", "method": "session/new", "params": { "cwd": "/p" } }),
        );
        let open = say(&mut own, AGENT, &json!({ "id": "n", "result": { "sessionId": "s" } }));
        assert_eq!(open, [StepKind::Open { cwd: Some("/p".to_owned()), is_new: true }]);
        own
    }

    fn answer(thought: &str, text: &str, end: Option<&str>) -> StepKind {
        StepKind::Answer {
            thought: thought.to_owned(),
            text: text.to_owned(),
            end: end.map(str::to_owned),
        }
    }

    #[test]
    fn turn_is_recorded_in_the_order_in_which_it_was_seen() {
        let mut own = opened();
        let prompt = json!([{ "type": "text", "text": "Fix it" }, { "type": "resource_link", "uri": "file:///a.rs" },
            { "type": "resource", "resource": { "uri": "file:///b.rs", "text": "b" } }, { "type": "image", "data": "" }]);
        let asked = say(
            &mut own,
            EDITOR,
            &json!({ "id": 2, "method": "session/prompt", "params": { "sessionId": "s", "prompt": prompt } }),
        );
        assert_eq!(
            asked,
            [StepKind::User("Fix it\nfile:///a.rs\nfile:///b.rs\nb\n(a picture)".to_owned())]
        );
        for (kind, text) in [
            ("agent_thought_chunk", "hm"),
            ("agent_message_chunk", "I "),
            ("agent_message_chunk", "edit."),
            ("unknown_chunk", "x"),
        ] {
            assert_eq!(say(&mut own, AGENT, &chunk(kind, text)), []);
        }
        let call = json!({ "sessionUpdate": "tool_call", "toolCallId": "c", "title": "Edit a.rs", "kind": "edit",
            "status": "pending", "rawInput": { "old": 1 }, "locations": [{ "path": "/p/a.rs" }, { "path": "/p/c.rs" }] });
        assert_eq!(say(&mut own, AGENT, &update(call)), []);
        let done = json!({ "sessionUpdate": "tool_call_update", "toolCallId": "c", "status": "completed",
            "content": [{ "type": "diff", "path": "/p/a.rs", "oldText": "1\n", "newText": "2\n" }] });
        let steps = say(&mut own, AGENT, &update(done));
        let call = |id: &str, args: Value, output: &str| {
            StepKind::Call(EndedCall {
                id: id.to_owned(),
                name: "edit".to_owned(),
                args,
                output: output.to_owned(),
                success: Some(true),
            })
        };
        assert_eq!(
            steps,
            [
                answer("hm", "I edit.", None),
                call(
                    "c",
                    json!({ "old": 1, "title": "Edit a.rs", "path": "/p/a.rs" }),
                    "/p/a.rs\n-1\n+2\n"
                ),
                call("c/2", json!({ "path": "/p/c.rs" }), ""),
            ]
        );
        say(&mut own, AGENT, &chunk("agent_message_chunk", "Done."));
        let end = say(&mut own, AGENT, &json!({ "id": 2, "result": { "stopReason": "end_turn" } }));
        assert_eq!(end, [answer("", "Done.", Some("stop"))]);
        assert_eq!(own.end(), []);
    }

    #[test]
    fn what_an_agent_leaves_open_is_recorded_at_its_end() {
        let mut own = opened();
        say(&mut own, AGENT, &chunk("agent_message_chunk", "Half"));
        let call = json!({ "sessionUpdate": "tool_call", "toolCallId": "c", "kind": "execute", "status": "in_progress" });
        say(&mut own, AGENT, &update(call));
        let end: Vec<StepKind> = own.end().into_iter().map(|step| step.what).collect();
        assert_eq!(end[0], answer("", "Half", None));
        assert!(matches!(&end[1], StepKind::Call(call) if call.success.is_none()), "{end:?}");
        let failed = |own: &mut AcpConversation| {
            say(own, AGENT, &json!({ "id": 3, "error": { "code": -1 } }))
        };
        say(
            &mut own,
            EDITOR,
            &json!({ "id": 3, "method": "session/prompt", "params": { "sessionId": "s", "prompt": [] } }),
        );
        say(&mut own, AGENT, &chunk("agent_message_chunk", "x"));
        assert_eq!(failed(&mut own), [answer("", "x", Some("error"))]);
    }

    #[test]
    fn replay_of_a_loaded_session_is_marked() {
        let mut own = opened();
        let load = json!({ "id": 4, "method": "session/load", "params": { "sessionId": "s", "cwd": "/p" } });
        say(&mut own, EDITOR, &load);
        let mut replay = Vec::new();
        for (kind, text) in [
            ("user_message_chunk", "Hel"),
            ("user_message_chunk", "lo"),
            ("agent_message_chunk", "Hi"),
            ("user_message_chunk", "Bye"),
        ] {
            replay.extend(own.line(AGENT, chunk(kind, text).to_string().as_bytes()));
        }
        replay.extend(own.line(AGENT, br#"{"id":4,"result":{}}"#));
        assert!(replay.iter().all(|step| step.is_replay), "{replay:?}");
        let replay: Vec<StepKind> = replay.into_iter().map(|step| step.what).collect();
        assert_eq!(
            replay,
            [
                StepKind::User("Hello".to_owned()),
                answer("", "Hi", None),
                StepKind::User("Bye".to_owned())
            ]
        );
        // An echo of a prompt is not a second one.
        assert_eq!(say(&mut own, AGENT, &chunk("user_message_chunk", "Hello")), []);
    }

    #[test]
    fn prompt_during_a_replay_is_no_part_of_it() {
        let mut own = opened();
        let load = json!({ "id": 4, "method": "session/load", "params": { "sessionId": "s" } });
        say(&mut own, EDITOR, &load);
        own.line(AGENT, chunk("agent_message_chunk", "Hi").to_string().as_bytes());
        let prompt = json!([{ "type": "text", "text": "Go on" }]);
        let prompt = json!({ "id": 5, "method": "session/prompt", "params": { "sessionId": "s", "prompt": prompt } });
        let steps = own.line(EDITOR, prompt.to_string().as_bytes());
        let replays: Vec<bool> = steps.iter().map(|step| step.is_replay).collect();
        assert_eq!(replays, [true, false], "{steps:?}");
    }

    #[test]
    fn secrets_of_a_request_are_in_no_step() {
        let mut own = AcpConversation::new();
        let server = json!({ "name": "a", "command": "b", "args": ["hunter2"], "env": [{ "name": "T", "value": "hunter2" }] });
        let params =
            json!({ "cwd": "/p", "mcpServers": [server], "_meta": { "token": "hunter2" } });
        let new = json!({ "id": 1, "method": "session/new", "params": params });
        let mut steps = own.line(EDITOR, new.to_string().as_bytes());
        let authenticate =
            json!({ "id": 2, "method": "authenticate", "params": { "key": "hunter2" } });
        steps.extend(own.line(EDITOR, authenticate.to_string().as_bytes()));
        steps.extend(own.line(AGENT, br#"{"id":1,"result":{"sessionId":"s"}}"#));
        let load = json!({ "id": 3, "method": "session/load", "params": { "sessionId": "s", "mcpServers": [server] } });
        steps.extend(own.line(EDITOR, load.to_string().as_bytes()));
        assert_eq!(steps.len(), 2);
        assert!(!format!("{steps:?}").contains("hunter2"), "{steps:?}");
    }

    #[test]
    fn garbage_says_nothing_and_memory_is_bounded() {
        let mut own = opened();
        for line in [
            "",
            "{",
            "[]",
            "1",
            "{\"id\":1}",
            "{\"method\":3}",
            "{\"method\":\"session/update\",\"params\":[]}",
        ] {
            for direction in [EDITOR, AGENT] {
                assert_eq!(own.line(direction, line.as_bytes()), [], "{line}");
            }
        }
        for n in 0..1000 {
            say(
                &mut own,
                EDITOR,
                &json!({ "id": n, "method": "session/prompt", "params": { "sessionId": n.to_string(), "prompt": [] } }),
            );
            let call = json!({ "sessionUpdate": "tool_call", "toolCallId": n.to_string() });
            say(&mut own, AGENT, &update(call));
        }
        assert_eq!(
            (own.requests.len(), own.sessions.len(), own.order.len()),
            (MAX_REQUESTS, MAX_SESSIONS, MAX_SESSIONS)
        );
        assert!(
            !own.sessions["s"].calls.is_empty(),
            "a session with an open call is not forgotten"
        );
    }
}
