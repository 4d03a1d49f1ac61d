//! What a record says to the detection.

use std::sync::Arc;

use ollm_protocol::content::{LoopPattern, Message, Part, RecordBody, Role, ToolCall, ToolResult};

use super::canonical;
use super::output::Output;
use super::runs::Call;
use crate::plain::plain;

/// Characters of a tool's name that are kept.
const MAX_NAME: usize = 64;

/// What one record says to the detection.
#[derive(Clone, Debug)]
pub(crate) enum Observation {
    /// The user said something: everything begins anew.
    User,
    /// The model was called.
    Model {
        /// What it said beside its calls, unless nothing.
        answer: Option<Arc<Output>>,
        /// The calls that it asks for.
        calls: Vec<Asked>,
    },
    /// A call came to its end.
    Result(Answered),
    /// A loop was noted, or reset.
    Mark(Option<LoopPattern>),
}

/// A call that a message asks for.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(super) id: String,
    pub(super) call: Call,
}

/// A result.
#[derive(Clone, Debug)]
pub(crate) struct Answered {
    /// The id of the call; a result without one answers the oldest that waits.
    pub(super) id: Option<String>,
    /// The call where the record has it: a tool call does, a message of role `tool` does not.
    pub(super) call: Option<Call>,
    pub(super) output: Arc<Output>,
}

/// What a record says to the detection, if anything.
pub(crate) fn observe(body: &RecordBody) -> Option<Observation> {
    match body {
        RecordBody::Message(message) => of_message(message),
        RecordBody::ToolCall(ToolCall { id, name, args, result, .. }) => {
            let output = Arc::new(of_result(result));
            let digest = canonical::call(name, args);
            let call = Call { tool: shown(name), digest, output: Some(Arc::clone(&output)) };
            Some(Observation::Result(Answered { id: Some(id.clone()), call: Some(call), output }))
        }
        RecordBody::Loop(mark) => Some(Observation::Mark(mark.pattern.clone())),
        _ => None,
    }
}

fn of_message(message: &Message) -> Option<Observation> {
    match message.role {
        Role::System => None,
        Role::User => Some(Observation::User),
        Role::Assistant => {
            let text = message.plain_text();
            let answer = (!text.trim().is_empty()).then(|| Arc::new(Output::new(&text, false)));
            let calls = message.parts.iter().filter_map(|part| match part {
                Part::ToolCall { id, name, args } => {
                    let digest = canonical::call(name, args);
                    let call = Call { tool: shown(name), digest, output: None };
                    Some(Asked { id: id.clone(), call })
                }
                _ => None,
            });
            Some(Observation::Model { answer, calls: calls.collect() })
        }
        Role::Tool => {
            let output = Arc::new(Output::new(&message.plain_text(), false));
            let id = message.tool_call_id.clone();
            Some(Observation::Result(Answered { id, call: None, output }))
        }
    }
}

fn of_result(result: &ToolResult) -> Output {
    let ToolResult { llm_content, success, error, exit_code, .. } = result;
    let failed = *success == Some(false)
        || error.is_some()
        || (success.is_none() && exit_code.is_some_and(|code| code != 0));
    match error {
        Some(error) if llm_content.trim().is_empty() => Output::new(error, failed),
        _ => Output::new(llm_content, failed),
    }
}

/// A name as it goes into events and errors.
fn shown(name: &str) -> String {
    plain(name).chars().take(MAX_NAME).collect()
}
