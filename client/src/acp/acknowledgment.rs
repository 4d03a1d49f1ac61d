//! The acknowledgment of a prompt, in versions of the protocol that have one: the reply as soon as the message is recorded.
//! The answer and its end arrive as updates of the session then. In the other versions, the reply to a prompt says how its
//! answer ended.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::agent::Agent;
use super::schema::SessionUpdate;
use super::sessions::EditorSession;

pub(super) struct Acknowledgment<'a> {
    agent: &'a Agent,
    /// The number of the running request.
    number: u64,
    id: &'a Value,
    /// The content of the message for the editor; `None` if it was sent, or the version has no acknowledgment.
    content: Mutex<Option<Vec<Value>>>,
    is_sent: AtomicBool,
}

impl<'a> Acknowledgment<'a> {
    pub(super) fn new(agent: &'a Agent, number: u64, id: &'a Value, params: &RawValue) -> Self {
        let content = Mutex::new(agent.version().echo(params));
        Self { agent, number, id, content, is_sent: AtomicBool::new(false) }
    }

    pub(super) fn is_sent(&self) -> bool {
        self.is_sent.load(Ordering::Relaxed)
    }

    /// Replies that the message is recorded, and shows it. Only the first call has an effect.
    pub(super) async fn send(&self, session: &EditorSession, message_id: String) {
        let Some(content) = self.content.lock().take() else { return };
        self.is_sent.store(true, Ordering::Relaxed);
        self.agent.forget_id(self.number);
        let editor = &self.agent.editor;
        editor.answer(self.id, &Ok(json!({ "messageId": message_id }))).await;
        editor.update(&session.name, SessionUpdate::UserMessage { message_id, content }).await;
    }
}
