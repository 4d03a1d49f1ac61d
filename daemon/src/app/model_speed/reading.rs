//! Prompts while a server reads them, and those that their callers left unread.
//!
//! A server that does not notice the end of a connection reads a prompt to its end, and the next request waits for that
//! in silence. Whether a server does is learned from how long the next request waited.

use std::time::Duration;

use ollm_protocol::SessionId;
use tokio::time::Instant;

use super::MeasuredModels;
use crate::model::{CallPhase, ChatEnd, ModelError};

/// The shortest rest of an unread prompt from which a wait for it can be told from others.
const LEAST_REST: Duration = Duration::from_millis(500);

/// A prompt that is sent to a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SentPrompt {
    /// The session whose chat continues from the prompt; `None` for a prompt of its own.
    pub(crate) session: Option<SessionId>,
    pub(crate) tokens: u64,
    /// Its first tokens, which the last prompt of the session began with.
    pub(crate) prefix_tokens: u64,
}

/// The prompts of a model that their callers left before an answer began.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UnreadPrompts {
    /// The moment at which a server that reads on has read the last one.
    until: Option<Instant>,
    /// The answer to whether the server reads on; `None` until it was seen to do one or the other.
    reads_on: Option<bool>,
}

impl UnreadPrompts {
    /// Returns the time for which the server probably reads an unread prompt.
    pub(super) fn rest(&self) -> Duration {
        if self.reads_on == Some(false) { Duration::ZERO } else { self.possible_rest() }
    }

    #[cfg(test)]
    pub(super) fn see_reading_on(&mut self) {
        self.reads_on = Some(true);
    }

    pub(super) fn reads_on(&self) -> bool {
        self.reads_on == Some(true)
    }

    fn possible_rest(&self) -> Duration {
        let until = self.until.map(|until| until.saturating_duration_since(Instant::now()));
        until.unwrap_or_default()
    }

    /// Adds a prompt that the server would read for this time.
    fn leave(&mut self, rest: Duration) {
        self.until = Some(Instant::now() + rest.min(Duration::from_secs(86_400)));
    }

    /// Learns from a request that waited for `queued`, when the rest of an unread prompt took `rest`.
    fn learn(&mut self, rest: Duration, queued: Duration) {
        if rest >= LEAST_REST && queued * 2 >= rest {
            self.reads_on = Some(true);
        } else if rest >= LEAST_REST && queued * 4 <= rest {
            self.reads_on = Some(false);
        }
    }

    /// Forgets the last one: the server has ended its process, or answered a later request.
    pub(super) fn clear(&mut self) {
        self.until = None;
    }
}

/// A prompt that a server reads. Dropped between [`Self::sent`] and [`Self::begun`], it is left unread.
pub(crate) struct PromptReading {
    models: MeasuredModels,
    model: String,
    prompt: SentPrompt,
    /// The prompts of the model since the last one of the session.
    age: Option<usize>,
    new_tokens: u64,
    /// The expected time for reading the new tokens.
    expected: Option<Duration>,
    /// The rest of an unread prompt that the server may have read first.
    behind: Duration,
    /// `None` before the prompt is sent.
    sent_at: Option<Instant>,
    /// The time until the answer began, or the request failed.
    waited: Option<Duration>,
}

impl MeasuredModels {
    /// Notes that a model will be sent a prompt.
    pub(crate) fn begin_reading(&self, model: &str, prompt: SentPrompt) -> PromptReading {
        let measured = self.get(model);
        let age = prompt.session.and_then(|id| measured.slots.age(id));
        let is_held = prompt.session.is_some_and(|id| measured.slots.hold(id));
        let held = if is_held { prompt.prefix_tokens } else { 0 };
        let new_tokens = prompt.tokens.saturating_sub(held);
        self.change(model, |measured| measured.slots.push(prompt.session));
        PromptReading {
            models: self.clone(),
            model: model.to_owned(),
            prompt,
            age,
            new_tokens,
            expected: measured.reading_or_guess(new_tokens),
            behind: measured.unread.possible_rest(),
            sent_at: None,
            waited: None,
        }
    }
}

impl PromptReading {
    /// Returns the tokens that the server has to read.
    pub(crate) const fn new_tokens(&self) -> u64 {
        self.new_tokens
    }

    /// Notes that the prompt is sent; only the first call counts.
    pub(crate) fn sent(&mut self) {
        self.sent_at.get_or_insert_with(Instant::now);
    }

    /// Notes that the answer began, or that the server refused the request.
    pub(crate) fn begun(&mut self) {
        let sent_at = self.sent_at;
        self.waited.get_or_insert_with(|| sent_at.map_or(Duration::ZERO, |at| at.elapsed()));
    }

    /// Notes the end of the wait for an answer. A server that did not begin one in time may still read the prompt.
    pub(crate) fn waited_for<T>(&mut self, sent: &Result<T, ModelError>) {
        if !matches!(sent, Err(ModelError::Timeout { phase: CallPhase::FirstToken, .. })) {
            self.begun();
        }
    }

    /// Adds the observations of the whole answer.
    pub(crate) fn ended(&self, end: &ChatEnd) {
        let busy = end.prompt_time.map(|reading| reading + end.load_time.unwrap_or_default());
        let queued = self.waited.zip(busy).map(|(waited, busy)| waited.saturating_sub(busy));
        self.models.change(&self.model, |measured| {
            if let Some(queued) = queued {
                measured.unread.learn(self.behind, queued);
            }
            measured.unread.clear();
            measured.note(end, &self.prompt, self.age);
        });
    }
}

impl Drop for PromptReading {
    fn drop(&mut self) {
        let (Some(sent_at), None, Some(expected)) = (self.sent_at, self.waited, self.expected)
        else {
            return;
        };
        let rest = (self.behind + expected).saturating_sub(sent_at.elapsed());
        self.models.change(&self.model, |measured| measured.unread.leave(rest));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ADVICE, CallTarget, DoneReason, PromptCount};

    fn prompt(session: u128, tokens: u64, prefix_tokens: u64) -> SentPrompt {
        let session = Some(SessionId::from_uuid(uuid::Uuid::from_u128(session)));
        SentPrompt { session, tokens, prefix_tokens }
    }

    /// Returns the end of an answer to a prompt that was read for a time.
    const fn end(tokens: u64, cached: Option<u64>, reading: Duration) -> ChatEnd {
        ChatEnd {
            reason: DoneReason::Stop,
            prompt: PromptCount::Whole(tokens),
            cached_tokens: cached,
            answer_tokens: None,
            load_time: None,
            prompt_time: Some(reading),
            answer_time: None,
        }
    }

    /// Sends a prompt that is answered after a wait and its reading.
    async fn answer(models: &MeasuredModels, prompt: SentPrompt, wait: u64, end: ChatEnd) {
        let mut reading = models.begin_reading("m", prompt);
        reading.sent();
        tokio::time::advance(Duration::from_secs(wait) + end.prompt_time.unwrap_or_default()).await;
        reading.begun();
        reading.ended(&end);
    }

    #[tokio::test(start_paused = true)]
    async fn prompt_behind_that_of_another_session_is_read_whole() {
        let models = MeasuredModels::default();
        let second = Duration::from_secs(1);
        let new_tokens = |prompt| models.begin_reading("m", prompt).new_tokens();
        answer(&models, prompt(1, 1000, 0), 0, end(1000, None, 10 * second)).await;
        assert_eq!(new_tokens(prompt(1, 1024, 1000)), 24);
        answer(&models, prompt(2, 455, 0), 0, end(455, None, 5 * second)).await;
        assert_eq!(models.begin_reading("m", prompt(1, 1024, 1000)).new_tokens(), 1024);
        // The server had the prompt of the other session nevertheless: it has several slots.
        answer(&models, prompt(2, 480, 455), 0, end(480, Some(455), second / 4)).await;
        answer(&models, prompt(1, 1050, 1024), 0, end(1050, Some(1024), second / 4)).await;
        assert_eq!(new_tokens(prompt(2, 500, 480)), 20);
        // Without a report, the time says so.
        answer(&models, prompt(1, 1100, 1050), 0, end(1100, None, 11 * second)).await;
        assert_eq!(models.begin_reading("m", prompt(2, 520, 500)).new_tokens(), 520);
    }

    #[tokio::test(start_paused = true)]
    async fn server_that_reads_on_is_known_by_the_wait_of_the_next_request() {
        for (wait, reads_on, rest) in [(0, false, 0), (20, true, 24)] {
            let models = MeasuredModels::default();
            let rest_now = || models.get("m").unread_rest().as_secs();
            answer(&models, prompt(1, 100, 0), 0, end(100, Some(0), Duration::from_secs(1))).await;
            let own = |tokens| SentPrompt { tokens, ..SentPrompt::default() };
            let mut left = models.begin_reading("m", own(2600));
            left.sent();
            tokio::time::advance(Duration::from_secs(2)).await;
            assert_eq!(rest_now(), 0, "it is being read by its own request");
            drop(left);
            assert_eq!(rest_now(), 24, "nothing is known");
            answer(&models, prompt(1, 100, 0), wait, end(100, Some(0), Duration::from_secs(1)))
                .await;
            assert_eq!(models.get("m").reads_on(), reads_on);
            models.begin_reading("m", own(2400)).sent();
            assert_eq!(rest_now() / 3, rest / 3, "{wait}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn answered_or_refused_prompt_leaves_nothing_unread() {
        let models = MeasuredModels::default();
        answer(&models, prompt(1, 100, 0), 0, end(100, Some(0), Duration::from_secs(1))).await;
        let mut refused = models.begin_reading("m", prompt(1, 5000, 0));
        refused.sent();
        refused.begun();
        drop(refused);
        drop(models.begin_reading("m", prompt(1, 5000, 0)));
        assert!(models.get("m").unread_rest().is_zero(), "the last one was not sent");
    }

    #[tokio::test(start_paused = true)]
    async fn prompt_without_a_first_token_in_time_is_left_unread() {
        let models = MeasuredModels::default();
        answer(&models, prompt(1, 100, 0), 0, end(100, Some(0), Duration::from_secs(1))).await;
        let check = |phase, is_unread| {
            let host = "http://h:1".to_owned();
            let to = CallTarget { host, model: None, advice: &ADVICE };
            let after = Duration::from_secs(1);
            let mut reading = models.begin_reading("m", prompt(1, 5000, 0));
            reading.sent();
            reading.waited_for(&Err::<(), _>(ModelError::Timeout { to, phase, after }));
            drop(reading);
            assert_eq!(!models.get("m").unread_rest().is_zero(), is_unread, "{phase}");
        };
        check(CallPhase::Connect, false);
        check(CallPhase::FirstToken, true);
    }
}
