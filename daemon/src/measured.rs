//! What the benchmark programs measure beneath the socket; not an interface.
//!
//! Nothing of the daemon uses it, and it holds no logic of its own.

use std::path::Path;
use std::sync::Arc;

use ollm_protocol::SessionId;
use ollm_protocol::content::{Message, RecordBody, Role, SessionHeader};

use crate::clock::Clock;
use crate::session::{Birth, Change, Draft, Observer, Sessions, SessionsOptions};
use crate::tokens::Counter;
pub use crate::tokens::{Tokenizer, TokenizerError, Vocabulary, VocabularyError};

/// Sessions of a directory, as the daemon holds them, told to nobody.
#[derive(Clone)]
pub struct InProcess {
    sessions: Sessions,
    clock: Arc<Clock>,
}

struct Nobody;

impl Observer for Nobody {
    fn changed(&self, _: SessionId, _: &Change<'_>) {}
}

impl InProcess {
    /// The sessions of a directory that exists.
    #[must_use]
    pub fn open(dir: &Path) -> Self {
        let clock = Arc::new(Clock::system());
        let options = SessionsOptions {
            dir: dir.to_owned(),
            clock: Arc::clone(&clock),
            observer: Arc::new(Nobody),
        };
        Self { sessions: Sessions::new(options), clock }
    }

    /// Begins a session; its file comes with the first record.
    #[must_use]
    pub fn create(&self) -> Option<SessionId> {
        let session_id = self.clock.session_id();
        let header = SessionHeader::new(session_id, self.clock.now());
        self.sessions.create(Birth { header, key: None }).ok().map(|_| session_id)
    }

    /// Counts and records one message; true when it is synced.
    pub async fn record(&self, id: SessionId, text: &str) -> bool {
        let message = Message::text(Role::User, text, self.clock.now());
        let tokens = (Counter::ESTIMATE.count_message(&message), Counter::ESTIMATE.identity());
        let draft = Draft::new(RecordBody::Message(message), Some(tokens));
        match self.sessions.append(id, vec![draft], None) {
            Ok(answer) => matches!(answer.await, Ok(Ok(_))),
            Err(_) => false,
        }
    }
}
