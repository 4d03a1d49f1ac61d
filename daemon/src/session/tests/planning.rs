//! A planned change is planned once, on the state on which it is written.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

use ollm_protocol::content::Custom;
use serde_json::Value;

use super::*;
use crate::session::OpenSession;

/// The refusal of a planner in these tests.
#[derive(Debug)]
enum Refusal {
    NotNow,
    Session(SessionError),
}

impl From<SessionError> for Refusal {
    fn from(error: SessionError) -> Self {
        Self::Session(error)
    }
}

type Planned = Result<Vec<NewRecord>, Refusal>;

/// Carries out a planned change, as its caller does.
fn change(
    sessions: &Sessions,
    id: SessionId,
    key: Option<IdempotencyKey>,
    plan: impl FnOnce(&OpenSession) -> Planned + Send + 'static,
) -> Result<Option<Appended>, Refusal> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("builds");
    runtime.block_on(sessions.change(id, key, plan).expect("queues").done())
}

/// Plans a message whose text is the number of records that the planner sees.
fn count_of_records(session: &OpenSession) -> Planned {
    Ok(vec![message(&session.state().entries().len().to_string())])
}

#[test]
fn plan_sees_every_record_before_its_own() {
    const WRITERS: usize = 8;
    const EACH: usize = 25;
    let fixture = Fixture::new();
    let id = fixture.id;
    fixture.append(message("first"));
    std::thread::scope(|scope| {
        for _ in 0..WRITERS {
            let sessions = fixture.sessions.clone();
            scope.spawn(move || {
                for _ in 0..EACH {
                    append(&sessions, id, message("appended"), None).expect("records");
                    let planned = change(&sessions, id, None, count_of_records);
                    planned.expect("is not refused").expect("records");
                }
            });
        }
    });
    let texts = texts(&fixture.reopened(), id);
    assert_eq!(texts.len(), 1 + 2 * WRITERS * EACH);
    // The header is record 0, so a message has the number of its position plus one.
    for (at, text) in texts.iter().enumerate().skip(1).filter(|(_, text)| *text != "appended") {
        assert_eq!(*text, (at + 1).to_string());
    }
}

#[test]
fn refused_plan_writes_nothing_and_its_error_reaches_the_caller() {
    let fixture = Fixture::new();
    let (sessions, id) = (&fixture.sessions, fixture.id);
    fixture.append(message("one"));
    let refused = change(sessions, id, None, |_| Err(Refusal::NotNow));
    assert!(matches!(refused, Err(Refusal::NotNow)), "{refused:?}");
    let nothing = change(sessions, id, None, |_| Ok(Vec::new())).expect("is not refused");
    assert!(nothing.is_none());
    assert_eq!(texts(&fixture.reopened(), id), ["one"]);
}

#[test]
fn panic_of_a_planner_reaches_its_caller_and_no_other() {
    let fixture = Fixture::new();
    let (sessions, id) = (&fixture.sessions, fixture.id);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        change(sessions, id, None, |_| panic!("a bug of a planner"))
    }));
    assert!(panicked.is_err());
    fixture.append(message("one"));
    change(sessions, id, None, count_of_records).expect("is not refused");
    assert_eq!(texts(&fixture.reopened(), id), ["one", "2"]);
}

#[test]
fn known_key_is_answered_without_a_plan() {
    static PLANS: AtomicUsize = AtomicUsize::new(0);
    let fixture = Fixture::new();
    let id = fixture.id;
    let plan = |session: &OpenSession| {
        PLANS.fetch_add(1, Ordering::Relaxed);
        count_of_records(session)
    };
    fixture.append(message("one"));
    let first = change(&fixture.sessions, id, key("k", "payload"), plan).expect("is not refused");
    let seq = first.expect("records").seq;
    for sessions in [&fixture.sessions, &fixture.reopened()] {
        let again = change(sessions, id, key("k", "payload"), plan).expect("is known");
        let again = again.expect("was recorded");
        assert_eq!((again.seq, again.duplicate), (seq, true));
        let other = change(sessions, id, key("k", "another"), plan);
        let is_conflict = matches!(other, Err(Refusal::Session(SessionError::KeyConflict { .. })));
        assert!(is_conflict, "{other:?}");
    }
    assert_eq!(PLANS.load(Ordering::Relaxed), 1);
}

#[test]
fn plan_that_cannot_be_encoded_writes_nothing() {
    let fixture = Fixture::new();
    let (sessions, id) = (&fixture.sessions, fixture.id);
    fixture.append(message("one"));
    let too_deep = |_: &OpenSession| {
        let data = (0..500).fold(Value::Null, |inner, _| Value::Array(vec![inner]));
        let custom = Custom { name: "deep".to_owned(), data, context_text: None };
        Ok(vec![message("two"), NewRecord::new(RecordBody::Custom(custom), None)])
    };
    let refused = change(sessions, id, None, too_deep);
    assert!(matches!(refused, Err(Refusal::Session(_))), "{refused:?}");
    change(sessions, id, None, count_of_records).expect("is not refused");
    assert_eq!(texts(&fixture.reopened(), id), ["one", "2"]);
}
