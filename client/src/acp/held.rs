//! The prompts that the daemon has not accepted yet, so that no word of a person is lost when the editor leaves.
//!
//! A prompt is held from the moment it is read: while it waits for earlier prompts of its session, for tool servers, or for
//! the answer to another client. It is released when the daemon has recorded its message, or when its request has ended.
//! The prompts that are still held when the agent ends are recorded without answers, in the order in which they were read.
//! Canceled prompts and commands are not recorded.
//!
//! **Invariant**: a message is recorded once. No prompt is sent while the held ones are recorded, and each has the key with
//! which it was sent or would have been.

use std::collections::BTreeMap;
use std::process;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ollm_protocol::method::SessionRecord;
use ollm_protocol::methods::session::{MessageInput, SessionRecordParams};
use parking_lot::Mutex;
use serde_json::value::RawValue;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::agent::{Agent, RequestResult, decode, log};
use super::cancel::Cancellation;
use super::schema::{ContentBlock, Prompt};
use super::{commands, prompt, turn};

/// The longest wait until a held prompt is recorded. A daemon that needs longer does not answer at all.
const RECORD_LIMIT: Duration = Duration::from_secs(5);
/// The longest wait for the files that a held prompt links to, within [`RECORD_LIMIT`].
const FILES_LIMIT: Duration = Duration::from_secs(2);

/// The held prompts of all sessions.
pub(super) struct HeldPrompts {
    /// The beginning of the keys of prompts for which the editor chose none. No other process has the same.
    key_prefix: String,
    state: Mutex<HoldState>,
    /// Notified when the daemon has answered an attempt to send a prompt.
    answered: Notify,
}

#[derive(Default)]
struct HoldState {
    /// The prompts by the numbers of their requests, which are counted in the order in which they were read.
    prompts: BTreeMap<u64, UnacceptedPrompt>,
    /// Set when the editor has left: nobody reads an error any more.
    is_unread: bool,
    /// Set when the agent ends: no prompt is sent any more.
    is_closed: bool,
}

struct UnacceptedPrompt {
    params: Arc<RawValue>,
    cancellation: Cancellation,
    /// The message, once the files that the prompt links to were read.
    message: Option<MessageInput>,
    /// Set while the daemon has not answered an attempt.
    is_on_its_way: bool,
}

/// A prompt that is being answered, and held until the daemon has accepted it.
pub(super) struct HeldPrompt<'a> {
    held: &'a HeldPrompts,
    number: u64,
}

impl HeldPrompts {
    pub(super) fn new() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let key_prefix = format!("prompt-{:x}-{:x}", since.as_nanos(), process::id());
        Self { key_prefix, state: Mutex::default(), answered: Notify::new() }
    }

    /// Holds a prompt that was read just now. Numbers must be given in the order of reading.
    pub(super) fn hold(&self, number: u64, params: Arc<RawValue>, cancellation: Cancellation) {
        let prompt = UnacceptedPrompt { params, cancellation, message: None, is_on_its_way: false };
        drop(self.state.lock().prompts.insert(number, prompt));
    }

    /// Returns a prompt for its turn.
    pub(super) fn prompt(&self, number: u64) -> HeldPrompt<'_> {
        HeldPrompt { held: self, number }
    }

    /// Releases a prompt whose request has ended, unless it failed after the editor had left: nobody reads that error.
    pub(super) fn ended(&self, number: u64, has_failed: bool) {
        let mut state = self.state.lock();
        if !(has_failed && state.is_unread) {
            drop(state.prompts.remove(&number));
        }
    }

    /// Keeps the prompts that fail from now on, because the editor has left.
    pub(super) fn editor_left(&self) {
        self.state.lock().is_unread = true;
    }

    /// Lets no more prompts be sent, and waits until the daemon has answered the attempts that are on their way.
    pub(super) async fn close(&self) {
        self.editor_left();
        self.state.lock().is_closed = true;
        while self.has_attempt() {
            self.answered.notified().await;
        }
    }

    fn has_attempt(&self) -> bool {
        self.state.lock().prompts.values().any(|prompt| prompt.is_on_its_way)
    }

    /// Records the prompts that are still held, the oldest first. Nothing must be sending prompts any more.
    pub(super) async fn record(&self, agent: &Agent) {
        let mut left = std::mem::take(&mut self.state.lock().prompts);
        while let Some((number, held)) = left.pop_first() {
            if held.cancellation.is_canceled() {
                continue;
            }
            match timeout(RECORD_LIMIT, record_one(agent, held, self.own_key(number))).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => log(&format!("a prompt is not recorded: {}", error.message)),
                Err(_) => {
                    let n_prompts = left.len() + 1;
                    return log(&format!(
                        "ollmd does not answer: prompts not recorded: {n_prompts}"
                    ));
                }
            }
        }
    }

    /// Returns the key of a prompt for which the editor chose none.
    fn own_key(&self, number: u64) -> String {
        format!("{}-{number:x}", self.key_prefix)
    }
}

impl HeldPrompt<'_> {
    /// Returns the key of the prompt, if the editor chose none.
    pub(super) fn own_key(&self) -> String {
        self.held.own_key(self.number)
    }

    /// Keeps the message of the prompt, with the files as they were read for it.
    pub(super) fn keep(&self, message: &MessageInput) {
        if let Some(prompt) = self.held.state.lock().prompts.get_mut(&self.number) {
            prompt.message = Some(message.clone());
        }
    }

    /// Waits for the reply to an attempt to send the prompt, which is released if the daemon accepts it. Never returns if the
    /// agent is ending, without an attempt.
    pub(super) async fn send<T, E>(
        &self,
        attempt: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        if !self.begin_attempt() {
            return std::future::pending().await;
        }
        let sent = attempt.await;
        self.end_attempt(sent.is_ok());
        sent
    }

    /// Notes an attempt; returns false if none may begin.
    fn begin_attempt(&self) -> bool {
        let mut state = self.held.state.lock();
        if state.is_closed {
            return false;
        }
        if let Some(prompt) = state.prompts.get_mut(&self.number) {
            prompt.is_on_its_way = true;
        }
        true
    }

    fn end_attempt(&self, is_accepted: bool) {
        let mut state = self.held.state.lock();
        if is_accepted {
            drop(state.prompts.remove(&self.number));
        } else if let Some(prompt) = state.prompts.get_mut(&self.number) {
            prompt.is_on_its_way = false;
        }
        drop(state);
        self.held.answered.notify_one();
    }
}

/// Records a prompt without an answer, unless it is a command.
async fn record_one(agent: &Agent, held: UnacceptedPrompt, own_key: String) -> RequestResult<()> {
    let Prompt { session_id, prompt: content, idempotency_key } = decode(&held.params)?;
    if prompt::only_text(&content).and_then(commands::parse).is_some() {
        return Ok(());
    }
    let session = agent.open.find(&session_id)?;
    let key = agent.version().prompt_key(&idempotency_key)?;
    // The daemon records a message with its key once, also if an attempt to send it was accepted.
    let key = key.unwrap_or(own_key);
    let message = match held.message {
        Some(message) => message,
        None => message_in_time(content, &held.params).await?,
    };
    // Choices that the daemon refuses cost no words.
    let session_id = session.prepare(agent).await.unwrap_or_else(|_| session.id());
    let params = SessionRecordParams { session_id, message, key: Some(key) };
    let _recorded = agent.daemon.call::<SessionRecord>(&params).await?;
    session.mark_written();
    Ok(())
}

/// Returns the message of a prompt; without the files that it links to, if their disk hangs.
async fn message_in_time(
    content: Vec<ContentBlock>,
    params: &RawValue,
) -> RequestResult<MessageInput> {
    match timeout(FILES_LIMIT, turn::message(content)).await {
        Ok(message) => message,
        Err(_) => prompt::message(prompt::without_files(decode::<Prompt>(params)?.prompt)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompt_is_held_until_it_is_accepted_or_its_request_has_ended() {
        let held = HeldPrompts::new();
        for number in 1..=5 {
            held.hold(number, RawValue::NULL.to_owned().into(), Cancellation::new());
        }
        let numbers = || held.state.lock().prompts.keys().copied().collect::<Vec<_>>();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let send = async |number: u64, reply: Result<(), ()>| {
            let prompt = held.prompt(number);
            timeout(Duration::ZERO, prompt.send(std::future::ready(reply))).await
        };
        runtime.block_on(async {
            assert_eq!(send(1, Err(())).await, Ok(Err(())));
            assert_eq!(send(2, Ok(())).await, Ok(Ok(())));
            held.ended(3, true);
            assert_eq!(numbers(), [1, 4, 5], "the editor was sent the error");
            held.close().await;
            assert!(send(1, Ok(())).await.is_err(), "no attempt begins any more");
            held.ended(4, true);
            held.ended(5, false);
        });
        assert_eq!(numbers(), [1, 4], "nobody reads an error after the end");
    }

    #[test]
    fn prompt_that_fails_after_the_editor_has_left_stays_held() {
        let held = HeldPrompts::new();
        held.hold(1, RawValue::NULL.to_owned().into(), Cancellation::new());
        held.editor_left();
        held.ended(1, true);
        assert!(held.state.lock().prompts.contains_key(&1));
        held.ended(1, false);
        assert!(held.state.lock().prompts.is_empty());
    }
}
