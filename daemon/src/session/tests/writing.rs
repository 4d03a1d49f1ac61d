//! What is written is read back, once and in order.

use std::sync::Arc;

use ollm_protocol::Seq;
use ollm_protocol::content::{LeafMove, MetaPatch, RecordBody, Session, SessionStatus};

use super::*;
use crate::session::Hints;
use crate::session::index::{IndexSource, Known, OpenHint};

#[test]
fn a_draft_leaves_no_file_until_the_first_record() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let (sessions, notes) = sessions_with(dir.path(), Box::new(open_real));
    let birth = birth();
    let id = birth.header.session_id;
    assert!(sessions.create(birth).expect("creates").draft);
    assert_eq!(std::fs::read_dir(dir.path()).expect("lists").count(), 0);
    let appended = append(&sessions, id, says("hello there"), None).expect("records");
    assert_eq!((appended.seq, appended.usage.message_count), (Seq(1), 1));
    assert_eq!(notes.taken(), ["created hello there", "0 Session", "1 Message"]);
    let session = sessions.summary(id).expect("opens");
    assert_eq!((session.title.as_str(), session.draft), ("hello there", false));
}

#[test]
fn draft_has_the_settings_of_its_header() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let sessions = sessions(dir.path());
    let Birth { mut header, key } = birth();
    header.mode = Some("planning".to_owned());
    header.system_prompt = Some("be brief".to_owned());
    let id = header.session_id;
    sessions.create(Birth { header, key }).expect("creates");
    let settings = || {
        let of = |live: &crate::session::Live| {
            let state = live.state();
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
    let summary = |sessions: &Sessions| sessions.summary(id).expect("opens");
    let draft = summary(&sessions);
    let patch = RecordBody::Meta(MetaPatch::default());
    append(&sessions, id, Draft::new(patch, None), None).expect("records");
    assert_eq!(settings(), of_draft);
    let written = summary(&sessions);
    let last_activity = written.last_activity;
    assert_eq!(written, Session { draft: false, last_activity, ..draft });
}

#[test]
fn a_restart_gives_the_same_session() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let birth = birth();
    let id = birth.header.session_id;
    let first = sessions(dir.path());
    first.create(birth).expect("creates");
    append(&first, id, says("one"), None).expect("records");
    let patch = MetaPatch { title: Some("named".to_owned()), ..MetaPatch::default() };
    append(&first, id, Draft::new(RecordBody::Meta(patch), None), None).expect("records");
    append(&first, id, says("two"), None).expect("records");
    let moved = LeafMove { to: Some(Seq(1)), cause: "undo".to_owned() };
    append(&first, id, Draft::new(RecordBody::Leaf(moved), None), None).expect("records");
    append(&first, id, says("three"), None).expect("records");

    let path = |sessions: &Sessions| sessions.with(id, |live| live.state().path()).expect("opens");
    let second = sessions(dir.path());
    assert_eq!(second.summary(id).expect("opens"), first.summary(id).expect("opens"));
    assert_eq!(path(&second), path(&first));
    assert_eq!(path(&second), [Seq(1), Seq(5)]);
    assert_eq!(texts(&second, id), ["one", "two", "three"]);
    assert_eq!(second.summary(id).expect("opens").title, "named");
}

#[test]
fn a_retried_key_records_once_and_another_payload_conflicts() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let birth = birth();
    let id = birth.header.session_id;
    let first = sessions(dir.path());
    first.create(birth).expect("creates");
    let made = append(&first, id, says("one"), keyed("k", "one")).expect("records");
    for sessions in [first, sessions(dir.path())] {
        let again = append(&sessions, id, says("one"), keyed("k", "one")).expect("is known");
        assert!(again.duplicate);
        assert_eq!((again.seq, again.at), (made.seq, made.at));
        let other = append(&sessions, id, says("two"), keyed("k", "two"));
        assert!(matches!(other, Err(SessionError::KeyConflict { seq: Seq(1), .. })), "{other:?}");
        assert_eq!(texts(&sessions, id), ["one"]);
    }
}

#[test]
fn many_writers_share_syncs_and_each_keeps_its_order() {
    const WRITERS: usize = 16;
    const EACH: usize = 40;
    let dir = tempfile::tempdir().expect("a scratch directory");
    let birth = birth();
    let id = birth.header.session_id;
    let sessions = sessions(dir.path());
    sessions.create(birth).expect("creates");
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let sessions = sessions.clone();
            scope.spawn(move || {
                for at in 0..EACH {
                    let text = format!("{writer} {at:03}");
                    append(&sessions, id, says(&text), None).expect("records");
                }
            });
        }
    });
    for sessions in [sessions.clone(), super::sessions(dir.path())] {
        let texts = texts(&sessions, id);
        assert_eq!(texts.len(), WRITERS * EACH);
        for writer in 0..WRITERS {
            let prefix = format!("{writer} ");
            let own: Vec<_> = texts.iter().filter(|text| text.starts_with(&prefix)).collect();
            assert_eq!(own.len(), EACH);
            assert!(own.is_sorted(), "the order of one writer is the order in the log");
        }
    }
    let status = sessions.status();
    assert_eq!(status.records_written, (WRITERS * EACH + 1) as u64);
    assert!(status.syncs <= status.records_written);
}

/// Gives back what one update said.
struct Stored(OpenHint);

impl Hints for Stored {
    fn hint(&self, _: SessionId) -> Option<OpenHint> {
        Some(self.0.clone())
    }
}

#[test]
fn a_hint_spares_the_scan_and_a_wrong_one_is_not_believed() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let birth = birth();
    let id = birth.header.session_id;
    let first = sessions(dir.path());
    first.create(birth).expect("creates");
    append(&first, id, says("one"), keyed("k", "one")).expect("records");
    let update = first.update(id, Known::default()).expect("reads").expect("has a log");
    append(&first, id, says("two"), None).expect("records");
    let hint = OpenHint {
        point: update.point,
        entries: update.entries,
        keys: update.keys,
        carry: update.carry,
    };
    let mut wrong = hint.clone();
    wrong.point.last_crc ^= 1;
    for hint in [hint, wrong] {
        let second = sessions(dir.path());
        second.set_hints(Arc::new(Stored(hint)));
        assert_eq!(second.summary(id).expect("opens"), first.summary(id).expect("opens"));
        assert_eq!(texts(&second, id), ["one", "two"]);
        let again = append(&second, id, says("one"), keyed("k", "one")).expect("is known");
        assert!(again.duplicate);
    }
}

#[test]
fn a_deletion_can_be_finished_after_a_crash_and_leaves_no_file() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let birth = birth();
    let id = birth.header.session_id;
    let first = sessions(dir.path());
    first.create(birth).expect("creates");
    append(&first, id, says(&"long ".repeat(20_000)), None).expect("records");
    first.begin_delete(id).expect("begins");
    let refused = append(&first, id, says("late"), None);
    assert!(matches!(refused, Err(SessionError::NotFound { .. })));

    let second = sessions(dir.path());
    assert!(matches!(second.summary(id), Err(SessionError::NotFound { .. })));
    assert_eq!(second.unfinished_deletions().expect("lists"), [id]);
    second.strip(id).expect("removes what was said");
    let left: Vec<_> = std::fs::read_dir(dir.path()).expect("lists").flatten().collect();
    assert_eq!(left.len(), 1, "only the mark is left");
    assert_eq!(left[0].metadata().expect("exists").len(), 0);
    assert_eq!(second.unfinished_deletions().expect("lists"), [id]);
    second.strip(id).expect("is idempotent");
    second.finish_delete(id).expect("finishes");
    second.finish_delete(id).expect("is idempotent");
    assert_eq!(std::fs::read_dir(dir.path()).expect("lists").count(), 0);
}

#[test]
fn an_archived_session_says_so() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let birth = birth();
    let id = birth.header.session_id;
    let sessions = sessions(dir.path());
    sessions.create(birth).expect("creates");
    let patch = MetaPatch { archived: Some(true), ..MetaPatch::default() };
    append(&sessions, id, Draft::new(RecordBody::Meta(patch), None), None).expect("records");
    assert_eq!(sessions.summary(id).expect("opens").status, SessionStatus::Archived);
}
