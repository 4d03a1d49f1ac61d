//! A panic while a session is written ends one write at most, and the session continues from its log.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};

use tokio::sync::oneshot;

use super::*;
use crate::session::log::LogFile;
use crate::session::plan::send_reply;

/// An observer with a bug.
struct PanickingObserver;

impl Observer for PanickingObserver {
    fn changed(&self, _: SessionId, _: &SessionChange<'_>) {
        panic!("a bug of an observer");
    }
}

#[test]
fn records_are_acknowledged_when_the_observer_panics() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let (clock, observer) = (Arc::new(Clock::system()), Arc::new(PanickingObserver));
    let sessions =
        Sessions::with_files(dir.path().to_owned(), clock, observer, Box::new(open_real));
    let session = new_session();
    let id = session.header.session_id;
    sessions.create(session).expect("creates");
    for text in ["one", "two"] {
        append(&sessions, id, message(text), None).expect("records");
    }
    assert_eq!(texts(&open_with(dir.path(), Box::new(open_real)).0, id), ["one", "two"]);
}

/// A waker like that of a runtime whose event descriptor cannot be written.
struct BrokenWaker;

impl Wake for BrokenWaker {
    fn wake(self: Arc<Self>) {
        panic!("failed to wake I/O driver");
    }
}

#[test]
fn result_arrives_when_its_caller_cannot_be_woken() {
    let (reply, mut result) = oneshot::channel();
    let waker = Waker::from(Arc::new(BrokenWaker));
    let waiting = Pin::new(&mut result).poll(&mut Context::from_waker(&waker));
    assert!(waiting.is_pending());
    send_reply(reply, Ok(None));
    assert!(matches!(result.try_recv(), Ok(Ok(None))));
}

/// A real file whose next sync panics if its switch is on.
struct PanickingLogFile {
    real: Box<dyn LogFile>,
    panics: Arc<AtomicBool>,
}

impl LogFile for PanickingLogFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.real.append(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        assert!(!self.panics.swap(false, Ordering::SeqCst), "a bug of the disk's driver");
        self.real.sync()
    }

    fn rename_new(&mut self, to: &Path) -> io::Result<()> {
        self.real.rename_new(to)
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.real.truncate(len)
    }

    fn len(&self) -> io::Result<u64> {
        self.real.len()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.real.read_at(buffer, offset)
    }
}

#[test]
fn session_continues_from_its_log_after_a_panic_of_its_writer() {
    let panics = Arc::new(AtomicBool::new(false));
    let switch = Arc::clone(&panics);
    let fixture = Fixture::with_files(Box::new(move |path, is_new| {
        let (real, panics) = (open_real(path, is_new)?, Arc::clone(&panics));
        Ok(Box::new(PanickingLogFile { real, panics }))
    }));
    fixture.append(message("one"));
    switch.store(true, Ordering::SeqCst);
    let lost = append(&fixture.sessions, fixture.id, message("two"), None);
    assert!(matches!(lost, Err(SessionError::Stopping)), "{lost:?}");
    fixture.append(message("three"));
    let texts_of = |sessions: &Sessions| texts(sessions, fixture.id);
    assert_eq!(texts_of(&fixture.sessions), texts_of(&fixture.reopened()));
    assert_eq!(texts_of(&fixture.reopened()).last().map(String::as_str), Some("three"));
}
