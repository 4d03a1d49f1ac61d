//! The answer of a running turn that the view follows, as far as no record has it. Pure.

use ollm_protocol::SessionId;
use ollm_protocol::methods::chat::{ChatEvent, FollowEvent};

/// The answer that is being written in a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct LiveAnswer {
    pub(in super::super) session_id: SessionId,
    pub(in super::super) thinking: String,
    pub(in super::super) text: String,
    /// Set if the answer has ended, so that the next piece belongs to another one.
    is_whole: bool,
}

impl LiveAnswer {
    pub(in super::super) fn new(session_id: SessionId) -> Self {
        Self { session_id, thinking: String::new(), text: String::new(), is_whole: false }
    }

    /// Adds an event of the turn. Returns whether the records have something that they had not before.
    pub(in super::super) fn add(&mut self, event: FollowEvent) -> bool {
        match event {
            FollowEvent::Running { thinking, text, answer_seq, .. } => {
                self.clear();
                if answer_seq.is_none() {
                    (self.thinking, self.text) = (thinking, text);
                }
                true
            }
            FollowEvent::Event(ChatEvent::Delta { text, thinking }) => {
                if self.is_whole {
                    self.clear();
                }
                self.thinking.push_str(thinking.as_deref().unwrap_or_default());
                self.text.push_str(text.as_deref().unwrap_or_default());
                false
            }
            FollowEvent::Event(ChatEvent::Usage { .. }) => {
                self.is_whole = true;
                false
            }
            FollowEvent::Event(ChatEvent::ToolCalls { .. }) => {
                self.clear();
                true
            }
            FollowEvent::Event(_) => false,
        }
    }

    fn clear(&mut self) {
        *self = Self::new(self.session_id);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::SESSION_ID;

    #[test]
    fn answer_is_what_no_record_has() {
        let mut answer = LiveAnswer::new(SESSION_ID.parse().unwrap());
        let mut check = |event: Value, is_recorded: bool, expect: &str| {
            let event: FollowEvent = serde_json::from_value(event).unwrap();
            assert_eq!(answer.add(event), is_recorded);
            assert_eq!(format!("{}{}", answer.thinking, answer.text), expect);
        };
        let running = json!({ "kind": "running", "model": "m", "startedAt": "2026-01-27T10:00:00Z",
            "thinking": "Hm. ", "text": "Half" });
        let usage = json!({ "kind": "usage", "usage": {
            "contextTokens": 1, "promptLimit": 2, "countKind": "exact", "contextSize": 3 } });
        check(running.clone(), true, "Hm. Half");
        check(json!({ "kind": "delta", "text": " of it" }), false, "Hm. Half of it");
        check(usage, false, "Hm. Half of it");
        check(json!({ "kind": "delta", "text": "Next" }), false, "Next");
        check(json!({ "kind": "toolCalls", "seq": 4, "calls": [], "timeoutMs": 1 }), true, "");
        let recorded = json!({ "answerSeq": 7 });
        let mut running = running;
        running["answerSeq"] = recorded["answerSeq"].clone();
        check(running, true, "");
    }
}
