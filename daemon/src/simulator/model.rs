//! What the daemon acknowledged, and when: the things that must be there after a crash, and those that may be.

use std::collections::BTreeMap;

use ollm_protocol::{Seq, SessionId, SnapshotId};

/// A number of steps of the trace.
pub(super) type Position = usize;

/// The time of a change: it may be on the disk from `started` on, and must be from `acked` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    /// `None` if it was before the last start.
    pub(super) started: Option<Position>,
    pub(super) acked: Option<Position>,
}

impl Span {
    pub(super) const fn started(at: Position) -> Self {
        Self { started: Some(at), acked: None }
    }

    pub(super) const fn is_acked(self) -> bool {
        self.acked.is_some()
    }

    /// Returns the change as a start after a crash sees it, or `None` if it had not begun.
    fn after_crash(self, at: Position) -> Option<Self> {
        let is_acked = self.acked.is_some_and(|acked| acked <= at);
        let is_started = self.started.is_none_or(|started| started < at);
        let after = Self { started: None, acked: is_acked.then_some(0) };
        (is_started || is_acked).then_some(after)
    }
}

/// The history of a value: its acknowledged states, and the requested ones without a reply.
#[derive(Clone, Debug)]
pub(super) struct Register<T>(Vec<(T, Span)>);

impl<T> Default for Register<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Clone + PartialEq> Register<T> {
    /// Sets the first value, which needs no change of the disk.
    pub(super) fn start_with(value: T) -> Self {
        Self(vec![(value, Span { started: None, acked: Some(0) })])
    }

    /// Adds the times of a change to the history of the values.
    pub(super) fn push(&mut self, value: T, span: Span) {
        self.0.push((value, span));
    }

    /// Returns the value that was asked for last.
    pub(super) fn newest(&self) -> T {
        self.0.last().expect("has a first value").0.clone()
    }

    /// Returns whether the value may be found: the newest acknowledged one, or a later one.
    pub(super) fn admits(&self, value: &T) -> bool {
        let newest = self.0.iter().rposition(|(_, span)| span.is_acked()).unwrap_or(0);
        self.0[newest..].iter().any(|(admitted, _)| admitted == value)
    }

    pub(super) fn after_crash(&self, at: Position) -> Self {
        let seen = |(value, span): &(T, Span)| Some((value.clone(), span.after_crash(at)?));
        Self(self.0.iter().filter_map(seen).collect())
    }
}

/// The kind of a record, with what makes it unique.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RecordContent {
    Message(String),
    ToolCall(String),
    /// A record of another kind, which is not compared.
    Other,
}

/// A record that was asked for.
#[derive(Clone, Debug)]
pub(super) struct ExpectedRecord {
    /// A word that occurs in this record only.
    pub(super) token: String,
    pub(super) content: RecordContent,
    pub(super) key: Option<String>,
    pub(super) span: Span,
    /// The number that the reply named.
    pub(super) seq: Option<Seq>,
}

/// An import of a file.
#[derive(Clone, Debug)]
pub(super) struct ExpectedImport {
    pub(super) file: String,
    pub(super) tokens: Vec<String>,
    pub(super) span: Span,
}

/// A move of the leaf that was acknowledged: its record, and the new leaf.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExpectedMove {
    pub(super) seq: Seq,
    pub(super) to: Option<Seq>,
    pub(super) span: Span,
}

/// A snapshot that was asked for.
#[derive(Clone, Debug)]
pub(super) struct ExpectedSnapshot {
    /// A text with the marker of the session, which no other snapshot has.
    pub(super) summary: String,
    pub(super) key: String,
    pub(super) span: Span,
    /// The reply: the id, and the leaf.
    pub(super) taken: Option<(SnapshotId, Option<Seq>)>,
    pub(super) deletion: Option<Span>,
}

/// A fork that was asked for. It holds the words of its source, which is therefore never deleted.
#[derive(Clone, Debug)]
pub(super) struct ExpectedFork {
    pub(super) source: SessionId,
    pub(super) title: String,
    pub(super) key: String,
    pub(super) span: Span,
    /// The reply: the id, and the records that the fork begins with.
    pub(super) created: Option<(SessionId, usize)>,
}

#[derive(Clone, Debug)]
pub(super) struct ExpectedSession {
    pub(super) id: SessionId,
    /// A word that occurs in every text of this session and nowhere else.
    pub(super) marker: String,
    pub(super) create_key: Option<String>,
    pub(super) records: Vec<ExpectedRecord>,
    pub(super) import: Option<ExpectedImport>,
    pub(super) title: Register<Option<String>>,
    pub(super) moves: Vec<ExpectedMove>,
    pub(super) snapshots: Vec<ExpectedSnapshot>,
    /// The number of acknowledged messages that a saved document must have.
    pub(super) saved: Vec<(usize, Span)>,
    pub(super) deletion: Option<Span>,
}

impl ExpectedSession {
    /// Returns whether something of the session must be on the disk.
    pub(super) fn must_exist(&self) -> bool {
        let is_recorded = self.records.iter().any(|record| record.span.is_acked());
        let is_imported = self.import.as_ref().is_some_and(|import| import.span.is_acked());
        self.deletion.is_none() && (is_recorded || is_imported)
    }

    pub(super) fn is_deleted(&self) -> bool {
        self.deletion.is_some_and(Span::is_acked)
    }

    /// Returns whether the session can be used: it was not deleted, and its deletion was not begun.
    pub(super) fn is_usable(&self) -> bool {
        self.deletion.is_none()
    }

    fn after_crash(&self, at: Position) -> Option<Self> {
        let records = self.records.iter().filter_map(|record| {
            let span = record.span.after_crash(at)?;
            let seq = record.seq.filter(|_| span.is_acked());
            Some(ExpectedRecord { span, seq, ..record.clone() })
        });
        let import = self.import.as_ref().and_then(|import| {
            Some(ExpectedImport { span: import.span.after_crash(at)?, ..import.clone() })
        });
        let saved = self.saved.iter().filter_map(|(n, span)| Some((*n, span.after_crash(at)?)));
        let moves = self.moves.iter().filter_map(|moved| {
            let span = moved.span.after_crash(at).filter(|span| span.is_acked())?;
            Some(ExpectedMove { span, ..*moved })
        });
        let snapshots = self.snapshots.iter().filter_map(|snapshot| {
            let span = snapshot.span.after_crash(at)?;
            let taken = snapshot.taken.filter(|_| span.is_acked());
            let deletion = snapshot.deletion.and_then(|span| span.after_crash(at));
            Some(ExpectedSnapshot { span, taken, deletion, ..snapshot.clone() })
        });
        let seen = Self {
            snapshots: snapshots.collect(),
            records: records.collect(),
            title: self.title.after_crash(at),
            moves: moves.collect(),
            saved: saved.collect(),
            deletion: self.deletion.and_then(|span| span.after_crash(at)),
            import,
            ..self.clone()
        };
        (!seen.records.is_empty() || seen.import.is_some()).then_some(seen)
    }
}

/// All that was asked for and acknowledged.
#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    pub(super) sessions: Vec<ExpectedSession>,
    pub(super) forks: Vec<ExpectedFork>,
    /// The current session of the project.
    pub(super) current: Register<Option<SessionId>>,
    /// The global context entries by key.
    pub(super) entries: BTreeMap<String, Register<Option<String>>>,
}

impl Model {
    pub(super) fn new() -> Self {
        Self { current: Register::start_with(None), ..Self::default() }
    }

    /// Returns the model as a start after a crash sees it, with `at` steps made.
    pub(super) fn after_crash(&self, at: Position) -> Self {
        let sessions = self.sessions.iter().filter_map(|session| session.after_crash(at));
        let entries =
            self.entries.iter().map(|(key, values)| (key.clone(), values.after_crash(at)));
        let forks = self.forks.iter().filter_map(|fork| {
            let span = fork.span.after_crash(at)?;
            let created = fork.created.filter(|_| span.is_acked());
            Some(ExpectedFork { span, created, ..fork.clone() })
        });
        Self {
            sessions: sessions.collect(),
            forks: forks.collect(),
            current: self.current.after_crash(at),
            entries: entries.collect(),
        }
    }

    /// Returns the places of the sessions that can be used.
    pub(super) fn usable(&self) -> Vec<usize> {
        let usable = |(_, session): &(usize, &ExpectedSession)| session.is_usable();
        self.sessions.iter().enumerate().filter(usable).map(|(at, _)| at).collect()
    }
}
