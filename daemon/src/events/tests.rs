//! The events that a subscriber receives, by its position, its speed and its filter.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn ring(capacity: usize) -> EventRing {
    EventRing::with_limits(
        Arc::new(Clock::system()),
        RingLimits { events: capacity, data_bytes: 256 },
    )
}

fn draft(kind: EventKind, session_id: Option<SessionId>) -> EventDraft {
    let at = Timestamp::from_unix_ms(0);
    EventDraft { session_id, seq: None, kind, at, data: Value::Null }
}

fn publish(events: &EventRing, n: usize) {
    for _ in 0..n {
        events.publish(draft(EventKind::MessageRecorded, None));
    }
}

/// Takes all events in the ring, as `(kind, number)`.
fn taken(subscription: &mut EventSubscription) -> Vec<(EventKind, u64)> {
    std::iter::from_fn(|| subscription.take()).map(|event| (event.kind, event.event_seq)).collect()
}

fn cursor(events: &EventRing, event_seq: u64) -> EventCursor {
    EventCursor { epoch: events.epoch().to_owned(), event_seq }
}

#[test]
fn subscription_starts_after_since_or_resyncs() {
    use EventKind::{MessageRecorded as M, Resync as R};
    let check = |since: Option<u64>, expect: &[(EventKind, u64)]| {
        let events = ring(4);
        publish(&events, 6);
        let since = since.map(|number| cursor(&events, number));
        let mut subscription = events.subscribe(EventFilter::default(), since.as_ref());
        publish(&events, 1);
        assert_eq!(taken(&mut subscription), expect, "{since:?}");
    };
    check(None, &[(M, 7)]);
    check(Some(6), &[(M, 7)]);
    check(Some(4), &[(M, 5), (M, 6), (M, 7)]);
    check(Some(1), &[(R, 6), (M, 7)]);
    check(Some(7), &[(R, 6), (M, 7)]);
    check(Some(u64::MAX), &[(R, 6), (M, 7)]);
    check(Some(0), &[(R, 6), (M, 7)]);
}

#[test]
fn large_data_is_shortened() {
    let events = ring(4);
    let mut subscription = events.subscribe(EventFilter::default(), None);
    let data = json!({ "source": "marker", "actions": vec!["mark.checkpoint"; 100_000] });
    events.publish(EventDraft { data, ..draft(EventKind::GoalUpdated, None) });
    let event = subscription.take().expect("is published");
    assert!(event.data.to_string().len() <= MAX_DATA_BYTES);
    assert_eq!(event.data["source"], "marker");
    assert!(event.data["actions"].as_array().is_some_and(|actions| actions.len() > 1000));
}

#[test]
fn oldest_event_in_the_ring_is_replayed() {
    let events = ring(4);
    publish(&events, 5);
    let mut subscription = events.subscribe(EventFilter::default(), Some(&cursor(&events, 1)));
    assert_eq!(taken(&mut subscription).first(), Some(&(EventKind::MessageRecorded, 2)));
}

#[test]
fn cursor_of_another_epoch_causes_a_resync() {
    let events = ring(4);
    publish(&events, 1);
    let since = EventCursor { epoch: "another".to_owned(), event_seq: 1 };
    let mut subscription = events.subscribe(EventFilter::default(), Some(&since));
    assert_eq!(taken(&mut subscription), [(EventKind::Resync, 1)]);
}

#[test]
fn ring_of_large_events_keeps_the_newest_within_its_bytes() {
    let title = |n: u64| json!({ "title": format!("{n:0>4000}") });
    let events = EventRing::new(Arc::new(Clock::system()));
    for n in 1..=4096 {
        let data = title(n);
        events.publish(EventDraft { data, ..draft(EventKind::SessionCreated, None) });
    }
    let mut all = events.subscribe(EventFilter::default(), Some(&cursor(&events, 1)));
    assert_eq!(taken(&mut all), [(EventKind::Resync, 4096)], "the oldest events were dropped");
    let since = cursor(&events, 4096 - 250);
    let mut newest = events.subscribe(EventFilter::default(), Some(&since));
    for n in 4096 - 249..=4096 {
        let event = newest.take().expect("is in the ring");
        assert_eq!((event.event_seq, event.data), (n, title(n)));
    }
}

#[test]
fn event_larger_than_the_ring_is_received() {
    let events = ring(4);
    let mut subscription = events.subscribe(EventFilter::default(), None);
    let data = json!({ "title": "x".repeat(1000) });
    let large = EventDraft { data: data.clone(), ..draft(EventKind::SessionCreated, None) };
    events.publish(large);
    assert_eq!(subscription.take().expect("is in the ring").data, data);
    publish(&events, 1);
    assert_eq!(taken(&mut subscription), [(EventKind::MessageRecorded, 2)]);
}

#[test]
fn filter_admits_its_session_and_kinds_and_always_lagged() {
    let events = ring(4);
    let clock = Clock::system();
    let (mine, other) = (clock.session_id(), clock.session_id());
    let kinds = vec![EventKind::SessionSaved];
    let filter = EventFilter { session_id: Some(mine), kinds, ..EventFilter::default() };
    let mut subscription = events.subscribe(filter, None);
    events.publish(draft(EventKind::SessionSaved, Some(other)));
    events.publish(draft(EventKind::SessionClosed, Some(mine)));
    events.publish(draft(EventKind::SessionSaved, Some(mine)));
    assert_eq!(taken(&mut subscription), [(EventKind::SessionSaved, 3)]);
    publish(&events, 5);
    assert_eq!(taken(&mut subscription), [(EventKind::Lagged, 4)]);
    assert_eq!(subscription.next, 9, "continues after the missed events");
}

fn filter_with(thresholds: &[f64]) -> EventFilter {
    EventFilter { thresholds: thresholds.to_vec(), ..EventFilter::default() }
}

/// Publishes one event for every share in force.
fn publish_thresholds(events: &EventRing) {
    for share in events.thresholds() {
        let data = json!({ "threshold": share });
        events.publish(EventDraft { data, ..draft(EventKind::ContextThreshold, None) });
    }
}

fn shares(subscription: &mut EventSubscription) -> Vec<f64> {
    let events = std::iter::from_fn(|| subscription.take());
    events.map(|event| event.data["threshold"].as_f64().expect("a share")).collect()
}

#[test]
fn subscription_receives_its_own_thresholds_and_the_default() {
    let events = ring(16);
    let mut default = events.subscribe(filter_with(&[]), None);
    let mut half = events.subscribe(filter_with(&[0.5, 1.0]), None);
    let mut other = events.subscribe(filter_with(&[0.6]), None);
    publish_thresholds(&events);
    assert_eq!(shares(&mut default), [0.85]);
    assert_eq!(shares(&mut half), [0.5, 0.85, 1.0]);
    assert_eq!(shares(&mut other), [0.6, 0.85]);
}

#[test]
fn reconnected_subscription_receives_the_thresholds_it_missed() {
    let events = ring(4);
    publish(&events, 1);
    drop(events.subscribe(filter_with(&[0.5]), None));
    publish_thresholds(&events);
    let since = cursor(&events, 1);
    assert_eq!(shares(&mut events.subscribe(filter_with(&[0.5]), Some(&since))), [0.5, 0.85]);
    assert_eq!(shares(&mut events.subscribe(filter_with(&[]), Some(&since))), [0.85]);
    publish(&events, 5);
    assert_eq!(
        events.thresholds(),
        [0.85],
        "the end of the subscription can no longer be replayed"
    );
}

#[test]
fn open_subscriptions_are_counted() {
    let events = ring(4);
    let first = events.subscribe(EventFilter::default(), None);
    let second = events.subscribe(EventFilter::default(), None);
    // What the daemon follows itself is not counted.
    drop(events.subscribe_daemon(EventFilter::default()));
    assert_eq!(events.subscriptions(), 2);
    drop((first, second));
    assert_eq!(events.subscriptions(), 0);
}

#[tokio::test]
async fn event_of_another_thread_wakes_a_waiting_subscriber() {
    let events = ring(4);
    let mut subscription = events.subscribe(EventFilter::default(), None);
    let publisher = events.clone();
    let thread = std::thread::spawn(move || publish(&publisher, 1));
    assert_eq!(subscription.next().await.event_seq, 1);
    thread.join().expect("publishes");
}

proptest! {
    #[test]
    fn received_and_missed_events_equal_the_published_events(steps in prop::collection::vec((0_usize..12, any::<bool>()), 0..20)) {
        let events = ring(5);
        let mut subscription = events.subscribe(EventFilter::default(), None);
        let (mut sent, mut seen, mut last) = (0_u64, 0_u64, 0);
        for (n, take_all) in steps.into_iter().chain([(0, true)]) {
            publish(&events, n);
            sent += n as u64;
            while let Some(event) = subscription.take() {
                prop_assert!(event.event_seq > last);
                last = event.event_seq;
                seen += match event.kind {
                    EventKind::Lagged => event.data["missed"].as_u64().expect("a number"),
                    _ => 1,
                };
                if !take_all {
                    break;
                }
            }
        }
        prop_assert_eq!(seen, sent);
    }
}
