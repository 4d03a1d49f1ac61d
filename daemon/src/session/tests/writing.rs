//! Written records are read back once, in order, and by a restarted daemon as well.

use std::sync::Arc;

use ollm_protocol::Seq;
use ollm_protocol::content::{LeafMove, MetaPatch, RecordBody, Session, SessionStatus};

use super::*;
use crate::session::OpenSession;
use crate::session::index::{IndexProgress, IndexSource, OpenHint, UpdateScope};

fn meta(patch: MetaPatch) -> NewRecord {
    NewRecord::new(RecordBody::Meta(patch), None)
}

#[test]
fn draft_has_no_file_until_its_first_record() {
    let fixture = Fixture::new();
    assert_eq!(fixture.files().len(), 0);
    let appended = fixture.append(message("hello there"));
    assert_eq!((appended.seq, appended.usage.message_count), (Seq(1), 1));
    assert_eq!(fixture.changes.lines(), ["created hello there", "0 Session", "1 Message"]);
    let session = fixture.sessions.summary(fixture.id).expect("opens");
    assert_eq!((session.title.as_str(), session.draft), ("hello there", false));
}

#[test]
fn draft_whose_first_write_is_refused_is_created_by_the_next_one() {
    let fixture = Fixture::new();
    let (sessions, id) = (&fixture.sessions, fixture.id);
    let refused = sessions.append_after(id, Some(Seq(9)), vec![message("refused")], None);
    let refused = refused.expect("queues").wait();
    assert!(matches!(refused, Err(SessionError::LeafMoved { .. })));
    assert_eq!(fixture.append(message("one")).seq, Seq(1));
    assert_eq!(fixture.append(message("two")).seq, Seq(2));
    assert!(!sessions.summary(id).expect("opens").draft);
    assert_eq!(texts(sessions, id), ["one", "two"]);
    assert_eq!(texts(&fixture.reopened(), id), ["one", "two"]);
}

#[test]
fn draft_has_the_settings_of_its_header() {
    let fixture = Fixture::new();
    let NewSession { mut header, key } = new_session();
    header.mode = Some("planning".to_owned());
    header.system_prompt = Some("be brief".to_owned());
    let (sessions, id) = (&fixture.sessions, header.session_id);
    sessions.create(NewSession { header, key }).expect("creates");
    let settings = || {
        let of = |session: &OpenSession| {
            let state = session.state();
            let owned = |text: Option<&str>| text.map(str::to_owned);
            (state.mode(), owned(state.system_prompt()), owned(state.model()))
        };
        sessions.with(id, of).expect("opens")
    };
    let of_draft = settings();
    assert_eq!(
        of_draft,
        (Some("planning".into()), Some("be brief".into()), Some("tiny:1b".into()))
    );
    let draft = sessions.summary(id).expect("opens");
    append(sessions, id, meta(MetaPatch::default()), None).expect("records");
    assert_eq!(settings(), of_draft);
    let written = sessions.summary(id).expect("opens");
    let last_activity = written.last_activity;
    assert_eq!(written, Session { draft: false, last_activity, ..draft });
}

#[test]
fn restart_gives_the_same_session() {
    let fixture = Fixture::new();
    let id = fixture.id;
    fixture.append(message("one"));
    fixture.append(meta(MetaPatch { title: Some("named".to_owned()), ..MetaPatch::default() }));
    fixture.append(message("two"));
    let moved = LeafMove { to: Some(Seq(1)), cause: "undo".to_owned() };
    fixture.append(NewRecord::new(RecordBody::Leaf(moved), None));
    fixture.append(message("three"));

    let path =
        |sessions: &Sessions| sessions.with(id, |session| session.state().path()).expect("opens");
    let (first, second) = (&fixture.sessions, fixture.reopened());
    assert_eq!(second.summary(id).expect("opens"), first.summary(id).expect("opens"));
    assert_eq!(path(&second), path(first));
    assert_eq!(path(&second), [Seq(1), Seq(5)]);
    assert_eq!(texts(&second, id), ["one", "two", "three"]);
    assert_eq!(second.summary(id).expect("opens").title, "named");
}

#[test]
fn retried_key_records_once_and_another_payload_is_a_conflict() {
    let fixture = Fixture::new();
    let id = fixture.id;
    let first = append(&fixture.sessions, id, message("one"), key("k", "one")).expect("records");
    for sessions in [&fixture.sessions, &fixture.reopened()] {
        let again = append(sessions, id, message("one"), key("k", "one")).expect("is known");
        assert!(again.duplicate);
        assert_eq!((again.seq, again.at), (first.seq, first.at));
        let other = append(sessions, id, message("two"), key("k", "two"));
        assert!(matches!(other, Err(SessionError::KeyConflict { seq: Seq(1), .. })), "{other:?}");
        assert_eq!(texts(sessions, id), ["one"]);
    }
}

#[test]
fn concurrent_writers_share_syncs_and_keep_their_order() {
    const WRITERS: usize = 16;
    const EACH: usize = 40;
    let fixture = Fixture::new();
    let id = fixture.id;
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let sessions = fixture.sessions.clone();
            scope.spawn(move || {
                for at in 0..EACH {
                    let text = format!("{writer} {at:03}");
                    append(&sessions, id, message(&text), None).expect("records");
                }
            });
        }
    });
    for sessions in [&fixture.sessions, &fixture.reopened()] {
        let texts = texts(sessions, id);
        assert_eq!(texts.len(), WRITERS * EACH);
        for writer in 0..WRITERS {
            let prefix = format!("{writer} ");
            let own: Vec<_> = texts.iter().filter(|text| text.starts_with(&prefix)).collect();
            assert_eq!(own.len(), EACH);
            assert!(own.is_sorted(), "the log keeps the order of each writer");
        }
    }
    let status = fixture.sessions.status();
    assert_eq!(status.records_written, (WRITERS * EACH + 1) as u64);
    assert!(status.syncs <= status.records_written);
}

#[test]
fn hint_is_used_if_it_describes_the_log_and_ignored_otherwise() {
    let fixture = Fixture::new();
    let (first, id) = (&fixture.sessions, fixture.id);
    append(first, id, message("one"), key("k", "one")).expect("records");
    let none = IndexProgress::default();
    let update = first.update(id, none, UpdateScope::New).expect("reads").expect("has a log");
    fixture.append(message("two"));
    let hint = OpenHint {
        point: update.point,
        entries: update.entries,
        keys: update.keys,
        carry: update.carry,
    };
    let mut wrong = hint.clone();
    wrong.point.last_crc ^= 1;
    for hint in [hint, wrong] {
        let second = fixture.reopened();
        second.set_hints(Arc::new(StoredHint(hint)));
        assert_eq!(second.summary(id).expect("opens"), first.summary(id).expect("opens"));
        assert_eq!(texts(&second, id), ["one", "two"]);
        let again = append(&second, id, message("one"), key("k", "one")).expect("is known");
        assert!(again.duplicate);
    }
}

#[test]
fn interrupted_deletion_is_finished_and_leaves_no_file() {
    let fixture = Fixture::new();
    let (first, id) = (&fixture.sessions, fixture.id);
    fixture.append(message(&"long ".repeat(20_000)));
    first.begin_delete(id).expect("begins");
    let refused = append(first, id, message("late"), None);
    assert!(matches!(refused, Err(SessionError::NotFound { .. })));

    let second = fixture.reopened();
    assert!(matches!(second.summary(id), Err(SessionError::NotFound { .. })));
    assert_eq!(second.unfinished_deletions().expect("lists"), [id]);
    second.remove_contents(id).expect("removes");
    let left = fixture.files();
    assert_eq!(left.len(), 1, "only the mark is left: {left:?}");
    let mark = std::fs::metadata(fixture.dir.path().join(&left[0])).expect("exists");
    assert_eq!(mark.len(), 0);
    assert_eq!(second.unfinished_deletions().expect("lists"), [id]);
    second.remove_contents(id).expect("is idempotent");
    second.finish_delete(id).expect("finishes");
    second.finish_delete(id).expect("is idempotent");
    assert_eq!(fixture.files().len(), 0);
}

#[test]
fn archived_session_has_the_status_archived() {
    let fixture = Fixture::new();
    fixture.append(meta(MetaPatch { archived: Some(true), ..MetaPatch::default() }));
    let session = fixture.sessions.summary(fixture.id).expect("opens");
    assert_eq!(session.status, SessionStatus::Archived);
}
