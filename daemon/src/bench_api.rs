//! The parts of the daemon that the benchmark programs measure without a socket.
//!
//! It is not an interface for other programs. No code of the daemon uses it, and it holds no logic of its own.

use std::path::Path;
use std::sync::Arc;

use ollm_protocol::content::{Message, Record, RecordBody, Role, SessionHeader};
use ollm_protocol::{Seq, SessionId, Timestamp};

use crate::clock::Clock;
use crate::facts::{
    EXAM, FactFold, feature_names, for_each_word, judge, judge_pairs, pair_feature_names,
};
use crate::session::{NewRecord, NewSession, Sessions};
use crate::tokens::Counter;
pub use crate::tokens::{Engine, Tokenizer, TokenizerError, Vocabulary, VocabularyError};

/// The sessions of a directory, as the daemon holds them, without observers.
#[derive(Clone)]
pub struct BenchSessions {
    sessions: Sessions,
    clock: Arc<Clock>,
}

impl BenchSessions {
    /// Opens the sessions of a directory that exists.
    #[must_use]
    pub fn open(dir: &Path) -> Self {
        let clock = Arc::new(Clock::system());
        let sessions = Sessions::new(dir.to_owned(), Arc::clone(&clock), Arc::new(()));
        Self { sessions, clock }
    }

    /// Creates a session; its file is created by the first record.
    #[must_use]
    pub fn create(&self) -> Option<SessionId> {
        let session_id = self.clock.session_id();
        let header = SessionHeader::new(session_id, self.clock.now());
        self.sessions.create(NewSession { header, key: None }).ok().map(|_| session_id)
    }

    /// Counts and records one message; returns whether it is synced.
    pub async fn record(&self, id: SessionId, text: &str) -> bool {
        let message = Message::text(Role::User, text, self.clock.now());
        let tokens = (Counter::ESTIMATE.count_message(&message), Counter::ESTIMATE.identity());
        let record = NewRecord::new(RecordBody::Message(message), Some(tokens));
        match self.sessions.append(id, vec![record], None) {
            Ok(pending) => pending.await.is_ok(),
            Err(_) => false,
        }
    }
}

/// A sentence as the scorer of facts sees it.
#[derive(Debug)]
pub struct JudgedSentence {
    /// The names of its features.
    pub features: Vec<&'static str>,
    /// Its words, as they have points.
    pub words: Vec<String>,
    /// The logarithm of the odds that it states something that lasts.
    pub score: f32,
}

/// Returns the sentences by which a model shows that it can choose facts, and whether each lasts.
pub fn exam() -> impl Iterator<Item = (&'static str, bool)> {
    EXAM.into_iter()
}

/// The facts of a session of user messages.
#[derive(Default)]
pub struct BenchFacts {
    fold: FactFold,
    next: u64,
}

impl BenchFacts {
    /// Judges a sentence behind another text; returns `None` if it is data or says nothing.
    #[must_use]
    pub fn judge(sentence: &str, before: &str) -> Option<JudgedSentence> {
        let (features, score) = judge(sentence, before)?;
        let mut words = Vec::new();
        for_each_word(sentence, |word| words.push(word.to_owned()));
        Some(JudgedSentence { features: features.names().collect(), words, score })
    }

    /// Returns the names of all features.
    pub fn feature_names() -> impl Iterator<Item = &'static str> {
        feature_names()
    }

    /// Judges whether a later sentence takes the place of earlier ones, each with the number of the user's message that it
    /// is in. Returns the features of each pair by the number of the earlier sentence.
    #[must_use]
    pub fn judge_pairs(
        earlier: &[(u32, &str)],
        later: (u32, &str),
    ) -> Vec<(usize, Vec<&'static str>)> {
        judge_pairs(earlier, later)
    }

    /// Returns the names of all features of pairs.
    pub fn pair_feature_names() -> impl Iterator<Item = &'static str> {
        pair_feature_names()
    }

    /// Folds the next message of the user.
    pub fn fold(&mut self, text: &str) {
        self.fold_message(Role::User, text);
    }

    /// Folds the next answer of the assistant.
    pub fn fold_answer(&mut self, text: &str) {
        self.fold_message(Role::Assistant, text);
    }

    fn fold_message(&mut self, role: Role, text: &str) {
        let (seq, at) = (Seq(self.next), Timestamp::from_unix_ms(0));
        self.next += 1;
        let body = RecordBody::Message(Message::text(role, text, at));
        self.fold.apply(Record::new(seq, None, at, body));
    }

    /// Returns the texts of the facts that hold, the best first.
    #[must_use]
    pub fn listed(&self) -> Vec<String> {
        let mut ranked = self.fold.ranked(&[]);
        ranked.sort_by(|one, other| other.score.total_cmp(&one.score));
        ranked.into_iter().map(|ranked| ranked.fact.text.clone()).collect()
    }

    /// Returns the number of facts that hold.
    #[must_use]
    pub fn count(&self) -> usize {
        self.fold.ranked(&[]).len()
    }
}
