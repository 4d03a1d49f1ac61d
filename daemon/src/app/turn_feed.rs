//! The feed of a running turn: the answer that is being written, and the followers of the turn.
//!
//! A turn publishes each of its events once. A client that joins gets the state of the turn, then every later event.
//!
//! **Invariants**: publishing never waits; joining and publishing exclude each other, so that a follower misses no piece
//! and gets none twice; a follower that is too slow loses its place and joins again; an answer that is being written exists
//! here only.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ollm_protocol::methods::chat::{ChatEvent, ChatToolCall, FollowEvent};
use ollm_protocol::{Seq, Timestamp};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::error::{AppError, Result};

/// The most followers of a turn: more than a person has windows. Each has a queue of its own.
const MAX_FOLLOWERS: usize = 64;
/// The most events that wait for a follower. It is some seconds of a fast answer; the events are shared by all followers.
const MAX_WAITING_EVENTS: usize = 256;

/// The feed of a turn.
#[derive(Default)]
pub(crate) struct TurnFeed(Mutex<FeedState>);

#[derive(Default)]
struct FeedState {
    /// The user's message.
    seq: Option<Seq>,
    /// The last event of a phase, until a piece of the answer arrives or the call ends.
    phase: Option<ChatEvent>,
    /// The newest answer so far.
    answer: AnswerText,
    /// The record of that answer.
    answer_seq: Option<Seq>,
    /// The message whose tool calls the turn waits for, and the end of its wait.
    tool_calls: Option<(Seq, Instant)>,
    followers: Vec<mpsc::Sender<Arc<ChatEvent>>>,
    last: Option<Result<ChatEvent>>,
}

/// The text of an answer, or a part of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AnswerText {
    pub(crate) thinking: String,
    pub(crate) text: String,
}

/// The size of an [`AnswerText`] in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AnswerBytes {
    thinking: usize,
    text: usize,
}

/// A place in a feed.
pub(crate) struct JoinedFeed {
    /// The state of the turn, and the events that belong to it.
    pub(crate) first: Vec<FollowEvent>,
    /// The events from then on. The channel is closed when the follower has lost its place.
    pub(crate) events: mpsc::Receiver<Arc<ChatEvent>>,
}

impl TurnFeed {
    /// Passes an event on to all followers.
    pub(crate) fn publish(&self, event: &ChatEvent) {
        let mut state = self.0.lock();
        state.fold(event);
        if state.followers.is_empty() {
            return;
        }
        let event = Arc::new(event.clone());
        state.followers.retain(|follower| follower.try_send(Arc::clone(&event)).is_ok());
    }

    /// Forgets the answer before, because the model is called again.
    pub(crate) fn begin_answer(&self) {
        let mut state = self.0.lock();
        state.answer = AnswerText::default();
        (state.answer_seq, state.tool_calls) = (None, None);
    }

    /// Notes that the answer is recorded.
    pub(crate) fn note_recorded(&self, seq: Seq) {
        self.0.lock().answer_seq = Some(seq);
    }

    /// Returns the answer so far.
    pub(crate) fn answer(&self) -> AnswerText {
        self.0.lock().answer.clone()
    }

    /// Returns the size of the answer so far.
    pub(crate) fn answer_bytes(&self) -> AnswerBytes {
        let AnswerText { thinking, text } = &self.0.lock().answer;
        AnswerBytes { thinking: thinking.len(), text: text.len() }
    }

    /// Returns the part of the answer behind its first `known` bytes.
    pub(crate) fn answer_since(&self, known: AnswerBytes) -> AnswerText {
        let AnswerText { thinking, text } = &self.0.lock().answer;
        let (thinking, text) =
            (thinking[known.thinking..].to_owned(), text[known.text..].to_owned());
        AnswerText { thinking, text }
    }

    /// Sets the last event, which the followers get when the turn has given its session free.
    pub(crate) fn end(&self, last: Result<ChatEvent>) {
        self.0.lock().last = Some(last);
    }

    /// Returns the last event, if it is set; `as_event` makes it of an error.
    pub(crate) fn last(&self, as_event: impl FnOnce(AppError) -> ChatEvent) -> Option<ChatEvent> {
        let mut state = self.0.lock();
        let last = state.last.take()?.unwrap_or_else(as_event);
        state.last = Some(Ok(last.clone()));
        Some(last)
    }

    /// Adds a follower; `missing` returns the tool calls without a result. Returns `None` if there are too many followers.
    pub(crate) fn join(
        &self,
        model: &str,
        started_at: Timestamp,
        missing: impl FnOnce() -> Vec<ChatToolCall>,
    ) -> Option<JoinedFeed> {
        let mut state = self.0.lock();
        state.followers.retain(|follower| !follower.is_closed());
        if state.followers.len() >= MAX_FOLLOWERS {
            return None;
        }
        let (follower, events) = mpsc::channel(MAX_WAITING_EVENTS);
        state.followers.push(follower);
        let AnswerText { thinking, text } = state.answer.clone();
        let (seq, answer_seq, model) = (state.seq, state.answer_seq, model.to_owned());
        let running = FollowEvent::Running { seq, model, started_at, thinking, text, answer_seq };
        let tool_calls = state.tool_calls.and_then(|(seq, until)| {
            let calls = missing();
            let left = until.saturating_duration_since(Instant::now());
            let timeout_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
            (!calls.is_empty()).then_some(ChatEvent::ToolCalls { seq, calls, timeout_ms, by: None })
        });
        let more = state.phase.clone().into_iter().chain(tool_calls).map(FollowEvent::Event);
        Some(JoinedFeed { first: [running].into_iter().chain(more).collect(), events })
    }
}

impl FeedState {
    fn fold(&mut self, event: &ChatEvent) {
        match event {
            ChatEvent::Accepted { seq, .. } => self.seq = *seq,
            ChatEvent::Phase { .. } => self.phase = Some(event.clone()),
            // An answer that only calls tools has no pieces.
            ChatEvent::Usage { .. } => self.phase = None,
            ChatEvent::Delta { text, thinking } => {
                self.phase = None;
                self.answer.text.push_str(text.as_deref().unwrap_or_default());
                self.answer.thinking.push_str(thinking.as_deref().unwrap_or_default());
            }
            ChatEvent::ToolCalls { seq, timeout_ms, by: None, .. } => {
                self.tool_calls = Some((*seq, Instant::now() + Duration::from_millis(*timeout_ms)));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use ollm_protocol::methods::chat::{ChatPhase, ChatUsage};

    use super::*;

    fn delta(text: &str) -> ChatEvent {
        ChatEvent::Delta { text: Some(text.to_owned()), thinking: None }
    }

    fn join(feed: &TurnFeed) -> JoinedFeed {
        feed.join("m", Timestamp::from_unix_ms(0), Vec::new).expect("has room")
    }

    /// Returns the text that a follower knows, and whether it lost its place.
    fn text_of(joined: &mut JoinedFeed) -> (String, bool) {
        let FollowEvent::Running { text, .. } = &joined.first[0] else { panic!("not the state") };
        let mut known = text.clone();
        loop {
            match joined.events.try_recv().map(|event| (*event).clone()) {
                Ok(ChatEvent::Delta { text, .. }) => known.push_str(&text.unwrap_or_default()),
                Ok(_) => {}
                Err(error) => return (known, error == mpsc::error::TryRecvError::Disconnected),
            }
        }
    }

    #[test]
    fn followers_that_join_at_any_point_know_the_whole_answer() {
        let feed = TurnFeed::default();
        let mut joined = vec![join(&feed)];
        for piece in ["a", "bc", "", "déf", "g"] {
            feed.publish(&delta(piece));
            joined.push(join(&feed));
        }
        for one in &mut joined {
            assert_eq!(text_of(one), ("abcdéfg".to_owned(), false));
        }
        feed.begin_answer();
        feed.publish(&delta("next"));
        assert_eq!(text_of(&mut join(&feed)).0, "next");
        assert_eq!(feed.answer_since(AnswerBytes { thinking: 0, text: 2 }).text, "xt");
    }

    #[test]
    fn phase_is_repeated_until_the_answer_begins() {
        let feed = TurnFeed::default();
        let (name, tokens) = (ChatPhase::Reading, Some(7));
        let phase =
            ChatEvent::Phase { name, tokens, expected_ms: None, ahead: None, waits_for: None };
        feed.publish(&phase);
        assert_eq!(join(&feed).first[1..], [FollowEvent::Event(phase.clone())]);
        feed.publish(&delta("a"));
        assert_eq!(join(&feed).first.len(), 1);
        // An answer that only calls tools has ended when its usage is reported.
        feed.publish(&phase);
        feed.publish(&ChatEvent::Usage { usage: ChatUsage::default() });
        assert_eq!(join(&feed).first.len(), 1);
    }

    #[test]
    fn slow_follower_loses_its_place_and_a_full_feed_has_none() {
        let feed = TurnFeed::default();
        let mut slow = join(&feed);
        let pieces = MAX_WAITING_EVENTS + 1;
        (0..pieces).for_each(|_| feed.publish(&delta("x")));
        let (text, is_lost) = text_of(&mut slow);
        assert!(is_lost && text.len() == MAX_WAITING_EVENTS);
        assert_eq!(text_of(&mut join(&feed)), ("x".repeat(pieces), false));
        let _all: Vec<_> = (0..MAX_FOLLOWERS).map(|_| join(&feed)).collect();
        assert!(feed.join("m", Timestamp::from_unix_ms(0), Vec::new).is_none());
        drop(_all);
        let _joined = join(&feed);
    }
}
