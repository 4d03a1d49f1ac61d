//! The situations in which a session is compacted, and how.

use super::*;
use CompactionTrigger::{Background, ChatTurn, Client};
use Fullness::{DueInPause, Low, NearlyFull, Overflow};

const SLOW: Duration = Duration::from_secs(60);
const FAST: Duration = Duration::from_secs(5);

/// A session without earlier compactions and with a fast model.
const fn situation(trigger: CompactionTrigger, fullness: Fullness) -> Situation {
    let need = CompactionNeed {
        fullness,
        has_provisional: false,
        awaits_retry: false,
        missing_notes: None,
    };
    Situation {
        trigger,
        need,
        grown_percent: None,
        waiting_tokens: 1000,
        prompt_limit: 1000,
        expected_wait: Some(FAST),
        answers_user: true,
        has_waited: false,
        n_failures: 0,
    }
}

fn with(mut situation: Situation, change: impl FnOnce(&mut Situation)) -> Situation {
    change(&mut situation);
    situation
}

#[test]
fn every_situation_has_its_action() {
    let ask = |in_turn, on_failure, extracts_refused| {
        Action::Ask(AskPlan { in_turn, on_failure, extracts_refused })
    };
    let (extract, skip) = (Action::Extract, Action::Skip);
    let ask_in_turn = ask(true, OnFailure::Extract, false);
    let ask_in_background = ask(false, OnFailure::TryLater, false);
    let growth = situation(ChatTurn(CompactionCause::Growth), Overflow);
    let new_form = situation(ChatTurn(CompactionCause::NewForm), Overflow);
    let refusal = situation(ChatTurn(CompactionCause::Refusal), Low);
    let late = with(growth, |it| it.waiting_tokens = 2501);
    let between_calls = with(late, |it| it.answers_user = false);
    let pause = situation(Background, DueInPause);
    let recent = with(pause, |it| it.grown_percent = Some(9));
    let urgent = with(situation(Background, NearlyFull), |it| {
        it.need.missing_notes = Some(Duration::from_secs(2));
    });
    #[rustfmt::skip]
        let cases = [
            ("a client asks, however empty the context is", situation(Client, Low), ask(false, OnFailure::Fail, false)),
            ("a client asks while summaries fail", with(situation(Client, Low), |it| it.need.awaits_retry = true), ask(false, OnFailure::Fail, false)),
            ("turn: the context fits by now", situation(ChatTurn(CompactionCause::Growth), NearlyFull), skip(SkipReason::NotDue)),
            ("turn: the next message does not fit", growth, extract),
            ("turn: not too much waits for notes", with(growth, |it| it.waiting_tokens = 2500), extract),
            ("turn: no pauses, fast model", late, ask_in_turn),
            ("turn: no pauses, unknown model", with(late, |it| it.expected_wait = None), ask_in_turn),
            ("turn: no pauses, model at the limit", with(late, |it| it.expected_wait = Some(LONGEST_WAIT)), ask_in_turn),
            ("turn: no pauses, slower model", with(late, |it| it.expected_wait = Some(LONGEST_WAIT * 2)), extract),
            ("turn: the same model between tool calls", with(between_calls, |it| it.expected_wait = Some(LONGEST_WAIT * 2)), ask_in_turn),
            ("turn: slow model between tool calls", with(between_calls, |it| it.expected_wait = Some(SLOW)), extract),
            ("turn: no pauses, and the turn has waited", with(late, |it| it.has_waited = true), extract),
            ("turn: no pauses, and summaries fail", with(late, |it| it.need.awaits_retry = true), extract),
            ("turn: the window shrank, or tools or model changed", new_form, ask_in_turn),
            ("turn: the window shrank, slow model", with(new_form, |it| it.expected_wait = Some(SLOW)), ask_in_turn),
            ("turn: the form changed, and the context fits", situation(ChatTurn(CompactionCause::NewForm), NearlyFull), skip(SkipReason::NotDue)),
            ("turn: the server refused the prompt", refusal, ask_in_turn),
            ("turn: the server refused twice", with(refusal, |it| it.has_waited = true), extract),
            ("turn: refused, and summaries fail", with(refusal, |it| it.need.awaits_retry = true), extract),
            ("pause: far from full", situation(Background, Low), skip(SkipReason::NotDue)),
            ("pause: extracted lines wait for notes", with(situation(Background, Low), |it| it.need.has_provisional = true), ask_in_background),
            ("pause: nearly due", pause, ask_in_background),
            ("pause: hardly anything since the last compaction", recent, skip(SkipReason::Recent)),
            ("pause: recent, but extracted", with(recent, |it| it.need.has_provisional = true), ask_in_background),
            ("pause: recent, but the window shrank", with(recent, |it| it.need.fullness = Overflow), ask_in_background),
            ("pause: enough since the last compaction", with(pause, |it| it.grown_percent = Some(10)), ask_in_background),
            ("pause: summaries fail", with(pause, |it| it.need.awaits_retry = true), skip(SkipReason::Paused)),
            ("pause: refused twice", with(pause, |it| it.n_failures = 2), ask(false, OnFailure::TryLater, true)),
            ("pause: refused once", with(pause, |it| it.n_failures = 1), ask_in_background),
            ("pause: nearly full, and notes are missing", urgent, extract),
            ("pause: the same while summaries fail", with(urgent, |it| it.need.awaits_retry = true), extract),
            ("pause: notes are missing, and the next message fits", with(urgent, |it| it.need.fullness = DueInPause), ask_in_background),
            ("pause: notes are missing, and the model reads fast", with(urgent, |it| it.need.missing_notes = Some(Duration::ZERO)), ask_in_background),
            ("pause: nearly full, no notes missing", with(urgent, |it| it.need.missing_notes = None), ask_in_background),
        ];
    for (name, situation, expected) in cases {
        assert_eq!(decide(&situation), expected, "{name}");
    }
}

#[test]
fn sessions_are_due_when_the_background_may_find_something_to_do() {
    let low = situation(Background, Low).need;
    let full = CompactionNeed { fullness: NearlyFull, ..low };
    let missing = Some(Duration::from_secs(2));
    for (need, is_due, is_urgent) in [
        (low, false, false),
        (CompactionNeed { has_provisional: true, ..low }, true, false),
        (CompactionNeed { fullness: DueInPause, ..low }, true, false),
        (CompactionNeed { awaits_retry: true, ..full }, false, false),
        (CompactionNeed { missing_notes: missing, ..full }, true, true),
        (CompactionNeed { missing_notes: missing, awaits_retry: true, ..full }, true, true),
        (CompactionNeed { missing_notes: Some(Duration::ZERO), ..full }, true, false),
        (CompactionNeed { missing_notes: missing, ..low }, false, false),
    ] {
        assert_eq!((need.is_due(), need.is_urgent()), (is_due, is_urgent), "{need:?}");
    }
}

#[test]
fn fullness_follows_the_share_the_threshold_and_the_size_of_turns() {
    for (share, threshold, newest_turns, expected) in [
        (0.71, 0.8, 0.3, Low),
        (0.72, 0.8, 0.3, DueInPause),
        (0.89, 0.8, 0.06, Low),
        (0.9, 0.8, 0.06, DueInPause),
        (0.93, 0.8, 0.06, DueInPause),
        (0.94, 0.8, 0.06, NearlyFull),
        (0.94, 0.8, 0.0, Low),
        (0.95, 0.8, 0.0, NearlyFull),
        (0.89, 0.8, 0.3, DueInPause),
        (0.9, 0.8, 0.3, NearlyFull),
        (0.94, 0.95, 0.3, DueInPause),
        (0.95, 0.95, 0.3, NearlyFull),
    ] {
        // Shares are products of other shares.
        let found = Fullness::of_fitting(threshold, || newest_turns, |least| share >= least - 1e-9);
        assert_eq!(found, expected, "{share} of {threshold} with turns of {newest_turns}");
    }
}

#[test]
fn contexts_of_turns_are_measured_unless_they_certainly_fit() {
    assert!(!may_overflow(false, true));
    assert!(may_overflow(false, false), "the window may have become smaller");
    assert!(may_overflow(true, true) && may_overflow(true, false));
}

#[test]
fn request_waits_for_the_time_that_it_takes_from_chats() {
    let (none, writing) = (Duration::ZERO, Duration::from_secs(2));
    for (is_background, displaces_chat, reads_on, expected) in [
        (false, true, true, none),
        (true, false, false, none),
        (true, true, false, FAST),
        (true, false, true, FAST + writing),
        (true, true, true, FAST + writing),
    ] {
        let start =
            StartSituation { is_background, displaces_chat, reads_on, reading: FAST, writing };
        assert_eq!(needed_quiet(&start), expected, "{start:?}");
    }
}

#[test]
fn pieces_go_behind_the_chat_if_that_needs_no_more_requests_or_pauses_are_too_short() {
    for (n_behind, n_own, spares_chat, lacks_pauses, expected) in [
        (2, Some(2), false, false, true),
        (3, Some(2), true, false, false),
        (3, Some(2), true, true, true),
        (3, Some(2), false, true, false),
        (3, None, false, false, true),
    ] {
        let forms = PieceForms { n_behind, n_own, spares_chat, lacks_pauses };
        assert_eq!(forms.prefers_chat(), expected, "{forms:?}");
    }
}

#[test]
fn pauses_are_as_long_as_the_reading_and_double() {
    let zero = Duration::ZERO;
    assert_eq!(first_pause(zero, SLOW), zero, "the chat's prompt stays in the cache");
    assert_eq!((first_pause(FAST, zero), first_pause(FAST, SLOW)), (FAST, SLOW));
    assert_eq!(first_pause(Duration::MAX, zero), LONGEST_PAUSE);
    assert_eq!(next_pause(FAST, zero, zero), FAST * 2);
    assert_eq!((next_pause(zero, FAST, zero), next_pause(zero, zero, FAST)), (FAST * 2, FAST * 2));
    assert_eq!(next_pause(LONGEST_PAUSE, zero, zero), LONGEST_PAUSE);
}
