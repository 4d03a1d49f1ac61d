//! The policy of compactions: when a session is compacted, with which notes, and who waits for them.
//!
//! Pure functions of values: they call no model and no clock, take no lock, and read no session. Callers gather the values
//! and carry out the decisions.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::app::running::{CompactionCause, CompactionTrigger};

/// The shares of the threshold from which a conversation is compacted in a pause, at least and at most: so long before it
/// is full that a few more turns fit, because a message that comes meanwhile would have to wait. A conversation of short
/// turns is compacted late, because its context shows the less the sooner it is.
const PAUSE_SHARES: RangeInclusive<f64> = 0.9..=1.2;
/// Turns, each as large as the newest ones, that fit when a conversation is compacted in a pause.
pub(super) const PAUSE_TURNS: usize = 3;
/// The shares of a conversation's room from which the next message probably does not fit, at least and at most: the more, the
/// shorter its turns are. With more, messages that do not fit would come before the context is shortened; with less, a model
/// would have less time for its summary.
const NEARLY_FULL_SHARES: RangeInclusive<f64> = 0.9..=0.95;
/// The growth of a conversation before it is compacted again, in percent of the tokens that it may have.
const MIN_GROWTH_PERCENT: u64 = 10;
/// The records that can be without the notes of a model before a turn waits for some, in percent of the largest prompt. Up to
/// half a prompt of them are recent, and stay as they are.
const MAX_WAITING_PERCENT: u64 = 250;
/// The longest expected time for reading the request and writing the summary for which a turn waits before it answers the
/// user.
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// The longest such time between calls of tools, where no user waits for the first word of an answer.
const LONGEST_WAIT_BETWEEN_CALLS: Duration = Duration::from_secs(30);
/// The shortest reading of a new context that users notice, and that is worth a request in the pause.
const LEAST_READING: Duration = Duration::from_secs(1);
/// The failed compactions in a row after which a piece whose summary is refused is extracted for good, so that it does not
/// hold up the notes of everything behind it.
const MAX_FAILURES: u32 = 2;
/// The longest pause for which a summary waits, well below the limit of the wait itself.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(600);

/// The part of its room that a conversation takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fullness {
    Low,
    /// Enough for a compaction in the next pause.
    DueInPause,
    /// The next message of the user probably does not fit.
    NearlyFull,
    /// The context does not fit without leaving out records that were in it before.
    Overflow,
}

impl Fullness {
    /// Returns the fullness of a context that fits.
    ///
    /// `threshold`: the configured share. `newest_turns`: returns the share of its room that the newest [`PAUSE_TURNS`] turns
    /// take; called only if that may decide. `reaches`: whether the conversation takes a share of its room.
    #[expect(clippy::cast_precision_loss, reason = "there are three turns")]
    pub(super) fn of_fitting(
        threshold: f64,
        newest_turns: impl FnOnce() -> f64,
        reaches: impl Fn(f64) -> bool,
    ) -> Self {
        let [least, most] = [PAUSE_SHARES.start(), PAUSE_SHARES.end()].map(|part| threshold * part);
        if !reaches(least) {
            return Self::Low;
        }
        let newest_turns = newest_turns();
        let next_turn = newest_turns / PAUSE_TURNS as f64;
        let [least_full, most_full] = [NEARLY_FULL_SHARES.start(), NEARLY_FULL_SHARES.end()];
        if reaches((most - next_turn).clamp(*least_full, *most_full).max(threshold)) {
            Self::NearlyFull
        } else if reaches(most - newest_turns) {
            Self::DueInPause
        } else {
            Self::Low
        }
    }
}

/// Returns the share that some tokens are of a conversation's room.
#[expect(clippy::cast_precision_loss, reason = "token counts are small")]
pub(super) fn share_of(tokens: u64, available: u64) -> f64 {
    tokens as f64 / available.max(1) as f64
}

/// The need of a session for a compaction, as far as it is known without reading its log.
#[derive(Clone, Copy, Debug)]
pub(super) struct CompactionNeed {
    pub(super) fullness: Fullness,
    /// A checkpoint waits for the summary of a model.
    pub(super) has_provisional: bool,
    /// Compactions failed, so that automatic ones ask no model for a while.
    pub(super) awaits_retry: bool,
    /// Set if a summary failed or gave way to a chat, and nothing took its place: the time in which the model of the next
    /// chat reads a new context, zero if it is not known or has no need to.
    pub(super) missing_notes: Option<Duration>,
}

impl CompactionNeed {
    /// Returns whether a compaction in the background may find something to do.
    pub(super) fn is_due(&self) -> bool {
        self.is_full_or_provisional() && (!self.awaits_retry || self.is_urgent())
    }

    /// Returns whether lines are extracted before the next message comes: a model had its chance to write notes, the
    /// message probably does not fit, and its user would wait until the model has read the new context.
    pub(super) fn is_urgent(&self) -> bool {
        self.fullness >= Fullness::NearlyFull && self.missing_notes.is_some_and(is_noticed)
    }

    fn is_full_or_provisional(&self) -> bool {
        self.fullness > Fullness::Low || self.has_provisional
    }
}

/// Returns whether users notice that a model needs a time to read a new context, so that it reads ahead in a pause.
pub(in crate::app) fn is_noticed(reading: Duration) -> bool {
    reading >= LEAST_READING
}

/// Returns whether the context of a turn may be too large for its model, so that it has to be measured.
///
/// `reaches_threshold`: whether the conversation takes the configured share of its room, as far as that is known.
/// `is_like_last`: whether the turn has the window, the model and the tools for which it is known.
pub(super) const fn may_overflow(reaches_threshold: bool, is_like_last: bool) -> bool {
    !is_like_last || reaches_threshold
}

/// The values on which a compaction depends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Situation {
    pub(super) trigger: CompactionTrigger,
    pub(super) need: CompactionNeed,
    /// The records that the last compaction could not summarize, in percent of the room; `None` before the first one.
    pub(super) grown_percent: Option<u64>,
    /// The tokens of the records without a summary of a model, except a message of the user that waits for its answer.
    pub(super) waiting_tokens: u64,
    /// The tokens that a prompt may have.
    pub(super) prompt_limit: u64,
    /// The expected time for the largest request for a summary and its answer; `None` if nothing was measured.
    pub(super) expected_wait: Option<Duration>,
    /// The next call of the model answers a message of the user, and not the result of a tool.
    pub(super) answers_user: bool,
    /// The turn has waited for a summary before.
    pub(super) has_waited: bool,
    /// The compactions that failed in a row.
    pub(super) n_failures: u32,
}

/// The way in which a compaction continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Skip(SkipReason),
    /// Lines are extracted from the records, and no model is asked.
    Extract,
    /// A model is asked for a summary.
    Ask(AskPlan),
}

/// The reason to leave a context as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SkipReason {
    /// Nothing asked for a compaction any more.
    NotDue,
    /// Hardly anything was recorded since the last compaction.
    Recent,
    /// Compactions failed a short time ago.
    Paused,
    /// Every record is recent.
    Nothing,
    /// The new context would not be smaller.
    Unchanged,
}

impl SkipReason {
    /// Returns the name that results and events show.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::NotDue => "notDue",
            Self::Recent => "recent",
            Self::Paused => "paused",
            Self::Nothing => "nothing",
            Self::Unchanged => "unchanged",
        }
    }
}

/// The rules for asking a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AskPlan {
    /// A user waits for the answer behind the summary: one request, for a limited time; the background does the rest.
    pub(super) in_turn: bool,
    pub(super) on_failure: OnFailure,
    /// A piece whose summary is refused is extracted for good.
    pub(super) extracts_refused: bool,
}

/// The next step if no model writes a usable summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnFailure {
    /// The call fails.
    Fail,
    /// The context stays as it is, and the background tries again after a while.
    TryLater,
    /// Lines are extracted.
    Extract,
}

/// Decides how a compaction continues after its survey.
pub(super) fn decide(situation: &Situation) -> Action {
    match situation.trigger {
        CompactionTrigger::Client => Action::Ask(AskPlan {
            in_turn: false,
            on_failure: OnFailure::Fail,
            extracts_refused: false,
        }),
        CompactionTrigger::ChatTurn(cause) => decide_in_turn(situation, cause),
        CompactionTrigger::Background => decide_in_background(situation),
    }
}

/// A turn compacts only a context that does not fit or was refused, so it always makes room.
///
/// A user who waits for an answer does not wait for notes as well: they are extracted, and the background replaces them in
/// the next pause. If the pauses are too short for that and the model is fast enough, or the context has another form, the
/// turn waits for one summary; for none while summaries fail.
fn decide_in_turn(situation: &Situation, cause: CompactionCause) -> Action {
    let Situation { need, waiting_tokens, prompt_limit, .. } = *situation;
    if need.fullness < Fullness::Overflow && cause != CompactionCause::Refusal {
        return Action::Skip(SkipReason::NotDue);
    }
    let longest = match situation.answers_user {
        true => LONGEST_WAIT,
        false => LONGEST_WAIT_BETWEEN_CALLS,
    };
    let lacks_pauses = waiting_tokens * 100 > prompt_limit * MAX_WAITING_PERCENT;
    let is_fast = situation.expected_wait.is_none_or(|wait| wait <= longest);
    let may_wait = cause != CompactionCause::Growth || (lacks_pauses && is_fast);
    if !may_wait || need.awaits_retry || situation.has_waited {
        return Action::Extract;
    }
    let on_failure = OnFailure::Extract;
    Action::Ask(AskPlan { in_turn: true, on_failure, extracts_refused: false })
}

/// No call waits for the background, so it can leave every context as it is.
fn decide_in_background(situation: &Situation) -> Action {
    let Situation { need, grown_percent, n_failures, .. } = *situation;
    if !need.is_full_or_provisional() {
        return Action::Skip(SkipReason::NotDue);
    }
    // A context that does not fit had a larger window at the last compaction.
    let has_grown = grown_percent.is_none_or(|grown| grown >= MIN_GROWTH_PERCENT);
    if !has_grown && !need.has_provisional && need.fullness < Fullness::Overflow {
        return Action::Skip(SkipReason::Recent);
    }
    if need.is_urgent() {
        return Action::Extract;
    }
    if need.awaits_retry {
        return Action::Skip(SkipReason::Paused);
    }
    let (on_failure, extracts_refused) = (OnFailure::TryLater, n_failures >= MAX_FAILURES);
    Action::Ask(AskPlan { in_turn: false, on_failure, extracts_refused })
}

/// The two forms of requests for a summary in pieces: behind the chat's own prompt, or with a prompt of their own, which
/// displaces the chat's from the server's cache.
#[derive(Clone, Copy, Debug)]
pub(super) struct PieceForms {
    /// The requests that are needed behind the chat's prompt.
    pub(super) n_behind: u64,
    /// The requests with a prompt of their own; `None` if that leaves no room for records.
    pub(super) n_own: Option<u64>,
    /// Requests in the background behind the chat's prompt leave it in the server's cache. They do not if they name another
    /// mode of thinking.
    pub(super) spares_chat: bool,
    /// No pause was long enough for a request with a prompt of its own.
    pub(super) lacks_pauses: bool,
}

impl PieceForms {
    /// Returns whether requests go behind the chat's prompt. A prompt of their own must need fewer requests, and long
    /// enough pauses.
    pub(super) fn prefers_chat(&self) -> bool {
        self.n_own.is_none_or(|own| self.n_behind <= own) || self.spares_chat && self.lacks_pauses
    }
}

/// The values on which the start of a request for notes depends.
#[derive(Clone, Copy, Debug)]
pub(super) struct StartSituation {
    pub(super) is_background: bool,
    /// The prompt takes the place of one in the server's cache that a chat sends again.
    pub(super) displaces_chat: bool,
    /// The server reads a prompt to its end if a chat comes back meanwhile.
    pub(super) reads_on: bool,
    /// The expected time for reading the prompt.
    pub(super) reading: Duration,
    /// The expected time for writing the longest answer; zero if it is not known.
    pub(super) writing: Duration,
}

/// Returns the time that a request needs without chats. In a shorter pause a chat would come back, and would find its prompt
/// displaced, or would wait until the server has read that of the request.
pub(super) fn needed_quiet(start: &StartSituation) -> Duration {
    let StartSituation { is_background, displaces_chat, reads_on, reading, writing } = *start;
    match (is_background, reads_on, displaces_chat) {
        (false, ..) | (true, false, false) => Duration::ZERO,
        (true, true, _) => reading + writing,
        (true, false, true) => reading,
    }
}

/// Returns the pause without chats before a request in the background that needs some time without them. A pause that has
/// lasted as long probably lasts as long again.
///
/// `longer`: the pause that is needed since shorter ones did not suffice.
pub(super) fn first_pause(needed: Duration, longer: Duration) -> Duration {
    if needed.is_zero() { Duration::ZERO } else { needed.max(longer).min(LONGEST_PAUSE) }
}

/// Returns the time for reading a piece that probably fits into a pause like one in which a request did not fit: the wait
/// before it, its reading and its answer.
pub(super) fn piece_reading(short: Duration) -> Duration {
    short / 4
}

/// Returns the pause before the next attempt of a request that gave way to a chat after some time. A chat that came as soon
/// after its answer again would wait again, and read its own prompt again.
pub(super) fn next_pause(pause: Duration, needed: Duration, lasted: Duration) -> Duration {
    (pause.max(needed).max(lasted) * 2).min(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests;
