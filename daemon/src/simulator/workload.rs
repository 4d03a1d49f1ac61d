//! The use of a daemon: calls chosen by dice, and the model of what they acknowledged.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use ollm_protocol::content::{ExportFormat, RecordBody, RecordKind};
use ollm_protocol::methods::session::SessionRecordResult;
use ollm_protocol::{Seq, SessionId, Timestamp};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::dice::Dice;
use super::home::{CatalogCopies, CatalogFiles, OpenHome, scratch};
use super::model::{
    ExpectedFork, ExpectedImport, ExpectedMove, ExpectedRecord, ExpectedSession, ExpectedSnapshot,
    Model, Position, RecordContent, Register, Span,
};
use crate::app::branches::{branch, fork, restore, undo};
use crate::app::context::{build, entries};
use crate::app::core::Core;
use crate::app::error::AppError;
use crate::app::sessions::{
    create, delete, documents, export, import, input, list, retention, update,
};
use crate::app::snapshots;
use crate::app::testing::scratch_core;
use crate::projects::ProjectError;
use crate::session::SessionError;
use crate::session::index::IndexEntry;
use crate::snapshot::SnapshotError;

/// The attempts at a call while the disk fails.
const MAX_TRIES: usize = 12;
/// The keys of global context entries.
const ENTRY_KEYS: [&str; 2] = ["style", "tools"];

type Outcome<T> = Result<T, AppError>;
type PendingRecord = Pin<Box<dyn Future<Output = Outcome<SessionRecordResult>>>>;

/// A daemon in use.
pub(super) struct Workload {
    pub(super) home: OpenHome,
    pub(super) model: Model,
    /// What was called, and after how many steps.
    pub(super) story: Vec<(Position, String)>,
    pub(super) copies: CatalogCopies,
    dice: Dice,
    /// Whether calls may fail because the disk does.
    may_fail: bool,
}

impl Workload {
    pub(super) fn new(home: OpenHome, model: Model, dice: Dice, may_fail: bool) -> Self {
        Self { home, model, story: Vec::new(), copies: Vec::new(), dice, may_fail }
    }

    /// Makes this many calls.
    pub(super) fn run(&mut self, n_calls: usize) -> Result<(), String> {
        self.create()?;
        for _ in 1..n_calls {
            self.call()?;
            if self.dice.percent(30) {
                self.copy_catalog()?;
            }
        }
        self.copy_catalog()
    }

    fn call(&mut self) -> Result<(), String> {
        let usable = self.model.usable();
        if usable.is_empty() {
            return self.create();
        }
        let at = self.dice.pick(&usable);
        match self.dice.below(100) {
            0..10 => self.create(),
            10..30 => self.record_message(at, 1),
            30..36 => self.record_message(at, 70_000),
            36..38 => self.fork(at),
            38..44 => self.record_tool_call(at),
            44..50 => self.retry_key(at),
            50..59 => self.record_together(&usable),
            59..62 => self.move_leaf(at),
            62..66 => self.rename(at),
            66..69 => self.save(at),
            69..72 => self.close(at),
            72..74 => self.archive(at),
            74..77 => self.set_current(at),
            77..80 => self.set_entry(),
            80..82 => self.build_context(at),
            82..83 => self.record_compaction(at),
            83..85 => self.take_snapshot(at),
            85..86 => self.restore_snapshot(at),
            86..87 => self.delete_snapshot(at),
            87..88 => self.close_unused(),
            88..93 => self.delete(at),
            93..96 => self.import(),
            96..97 => self.import_again(),
            97..98 => self.learn(),
            98..99 => self.retain(),
            _ => self.clean_up(),
        }
    }

    pub(super) fn position(&self) -> Position {
        self.home.trace.position()
    }

    fn begin(&mut self, what: impl Into<String>) -> Span {
        let at = self.position();
        self.story.push((at, what.into()));
        Span::started(at)
    }

    fn acked(&self, span: Span) -> Span {
        Span { acked: Some(self.position()), ..span }
    }

    /// Returns a word that occurs nowhere else and of which the index drops nothing.
    pub(super) fn word(&mut self) -> String {
        (0..14).map(|_| char::from(b'a' + self.dice.below(26) as u8)).collect()
    }

    /// Repeats a call until it succeeds. It may fail only with errors of the disk.
    fn attempt<T>(
        &mut self,
        what: &str,
        mut call: impl FnMut(&OpenHome) -> Outcome<T>,
    ) -> Result<T, String> {
        for _ in 0..MAX_TRIES {
            match call(&self.home) {
                Ok(done) => return Ok(done),
                Err(error) => self.admit_failure(what, &error)?,
            }
        }
        Err(format!("law 41: {what} never works again"))
    }

    /// Accepts a storage error while the disk may fail.
    fn admit_failure(&mut self, what: &str, error: &AppError) -> Result<(), String> {
        let is_storage = matches!(
            error,
            AppError::Storage(_)
                | AppError::Session(SessionError::Storage { .. })
                | AppError::Project(ProjectError::Storage(_))
                | AppError::Snapshot(SnapshotError::Storage(_))
        );
        if self.may_fail && is_storage {
            self.begin(format!("  {what} failed: {error}"));
            return Ok(());
        }
        Err(format!("law 41: {what} failed: {error:?}"))
    }

    fn create(&mut self) -> Result<(), String> {
        let marker = self.word();
        let key = self.dice.percent(40).then(|| self.word());
        self.begin(format!("create {marker}"));
        let params = json!({ "key": key, "systemPrompt": format!("be {marker}") });
        let created = self.attempt("create", |home| create::create(&home.core, of(&params)))?;
        self.model.sessions.push(ExpectedSession {
            id: created.session.session_id,
            marker,
            create_key: key,
            records: Vec::new(),
            import: None,
            title: Register::start_with(None),
            moves: Vec::new(),
            snapshots: Vec::new(),
            saved: Vec::new(),
            deletion: None,
        });
        self.record_message(self.model.sessions.len() - 1, 1)
    }

    /// Adds a record to the model, and returns its place.
    fn expect_record(&mut self, at: usize, content: Option<usize>, key: bool) -> (usize, Value) {
        let token = self.word();
        let key = key.then(|| format!("key-{token}"));
        let id = self.model.sessions[at].id;
        let marker = self.model.sessions[at].marker.clone();
        let (content, params) = match content {
            Some(bytes) => {
                let text = format!("{marker} {token} {}", ".".repeat(bytes));
                let message = json!({ "role": "user", "content": text });
                let params = json!({ "sessionId": id, "message": message, "key": key });
                (RecordContent::Message(text), params)
            }
            None => {
                let text = format!("{marker} {token} done");
                let call = json!({ "id": token, "name": "read", "args": { "path": token },
                    "result": { "llmContent": text } });
                let params = json!({ "sessionId": id, "toolCall": call, "key": key });
                (RecordContent::ToolCall(text), params)
            }
        };
        let span = self.begin(format!("record {token} in {marker}"));
        let records = &mut self.model.sessions[at].records;
        records.push(ExpectedRecord { token, content, key, span, seq: None });
        (records.len() - 1, params)
    }

    /// Notes the reply about a record, and checks the order of numbers.
    fn ack_record(&mut self, at: usize, number: usize, seq: Seq) -> Result<(), String> {
        let position = self.position();
        let records = &mut self.model.sessions[at].records;
        let earlier = records[..number].iter().filter_map(|record| record.seq).max();
        if earlier.is_some_and(|earlier| earlier >= seq) {
            return Err(format!("law 4: record {} has the number {seq}", records[number].token));
        }
        records[number].seq = Some(seq);
        records[number].span.acked.get_or_insert(position);
        Ok(())
    }

    fn record(&mut self, at: usize, content: Option<usize>) -> Result<(), String> {
        let has_key = self.dice.percent(50);
        let (mut number, mut params) = self.expect_record(at, content, has_key);
        for _ in 0..MAX_TRIES {
            match self.send(&params) {
                Ok(reply) => return self.ack_record(at, number, reply.seq),
                Err(error) => self.admit_failure("record", &error)?,
            }
            // Without a key, another attempt is another record.
            if !has_key {
                (number, params) = self.expect_record(at, content, false);
            }
        }
        Err("law 41: recording never works again".to_owned())
    }

    fn send(&self, params: &Value) -> Outcome<SessionRecordResult> {
        self.home.runtime.block_on(record_call(&self.home.core, params))
    }

    /// Records a message whose text has about this many bytes.
    pub(super) fn record_message(&mut self, at: usize, bytes: usize) -> Result<(), String> {
        let bytes = bytes + self.dice.below(bytes);
        self.record(at, Some(bytes))
    }

    fn record_tool_call(&mut self, at: usize) -> Result<(), String> {
        self.record(at, None)
    }

    /// Sends an acknowledged request with a key again.
    fn retry_key(&mut self, at: usize) -> Result<(), String> {
        let is_keyed = |record: &ExpectedRecord| record.key.is_some() && record.seq.is_some();
        let records = self.model.sessions[at].records.iter().enumerate();
        let keyed: Vec<usize> =
            records.filter(|(_, record)| is_keyed(record)).map(|(number, _)| number).collect();
        if keyed.is_empty() {
            return self.record_message(at, 1);
        }
        let number = self.dice.pick(&keyed);
        self.retry_record(at, number)
    }

    /// Sends a request with a key again, whether it was acknowledged or not.
    pub(super) fn retry_record(&mut self, at: usize, number: usize) -> Result<(), String> {
        let session = &self.model.sessions[at];
        let record = session.records[number].clone();
        let params = match &record.content {
            RecordContent::Message(text) => json!({ "sessionId": session.id, "key": record.key,
                "message": { "role": "user", "content": text } }),
            RecordContent::ToolCall(text) => json!({ "sessionId": session.id, "key": record.key,
                "toolCall": { "id": record.token, "name": "read", "args": { "path": record.token },
                    "result": { "llmContent": text } } }),
            RecordContent::Other => return Ok(()),
        };
        self.begin(format!("retry {}", record.token));
        let reply =
            self.attempt("retry", |home| home.runtime.block_on(record_call(&home.core, &params)))?;
        match record.seq {
            Some(seq) if reply.seq != seq || !reply.duplicate => {
                let token = &record.token;
                Err(format!("law 4: the retry of {token} (record {seq}) gave {}", reply.seq))
            }
            Some(_) => Ok(()),
            None => {
                let position = self.position();
                let record = &mut self.model.sessions[at].records[number];
                record.seq = Some(reply.seq);
                record.span.acked = Some(position);
                Ok(())
            }
        }
    }

    /// Records in several sessions at once: their changes of the disk alternate, and later requests share a batch.
    fn record_together(&mut self, usable: &[usize]) -> Result<(), String> {
        let n_sessions = usable.len().min(3);
        let mut places = usable.to_vec();
        while places.len() > n_sessions {
            places.remove(self.dice.below(places.len()));
        }
        let trace = Arc::clone(&self.home.trace);
        trace.hold(true);
        let mut pending: Vec<(usize, usize, Option<PendingRecord>)> = Vec::new();
        let rounds = 1 + self.dice.below(3);
        for round in 0..rounds {
            for at in &places {
                let has_key = self.dice.percent(50);
                let (number, params) = self.expect_record(*at, Some(20), has_key);
                let core = Arc::clone(&self.home.core);
                let call = async move { record_call(&core, &params).await };
                pending.push((*at, number, Some(Box::pin(call))));
                self.poll(&mut pending)?;
            }
            // The first request of each session is in the hands of its writer; later ones wait for the next batch.
            while round == 0 && trace.waiting().len() < unanswered(&pending) {
                trace.wait_briefly();
                self.poll(&mut pending)?;
            }
        }
        loop {
            self.poll(&mut pending)?;
            let n_unanswered = unanswered(&pending);
            if n_unanswered == 0 {
                break;
            }
            let waiting = trace.waiting();
            if waiting.len() < n_unanswered {
                trace.wait_briefly();
                continue;
            }
            let mut order: Vec<usize> = (0..waiting.len()).collect();
            order.sort_by_key(|place| &waiting[*place]);
            trace.admit(self.dice.pick(&order));
        }
        trace.hold(false);
        Ok(())
    }

    /// Notes the replies that came.
    fn poll(
        &mut self,
        pending: &mut [(usize, usize, Option<PendingRecord>)],
    ) -> Result<(), String> {
        let mut context = Context::from_waker(Waker::noop());
        for (at, number, call) in pending {
            let Some(running) = call else { continue };
            let entered = self.home.runtime.enter();
            let polled = running.as_mut().poll(&mut context);
            drop(entered);
            let Poll::Ready(reply) = polled else { continue };
            *call = None;
            match reply {
                Ok(reply) => self.ack_record(*at, *number, reply.seq)?,
                Err(error) => self.admit_failure("record", &error)?,
            }
        }
        Ok(())
    }

    fn rename(&mut self, at: usize) -> Result<(), String> {
        let (id, marker) = self.id_and_marker(at);
        let title = format!("title {} {marker}", self.word());
        let span = self.begin(format!("rename {marker} to {title}"));
        self.model.sessions[at].title.push(Some(title.clone()), span);
        let params = json!({ "sessionId": id, "title": title });
        self.attempt("update", |home| {
            home.runtime.block_on(update::update(Arc::clone(&home.core), of(&params)))
        })?;
        let span = self.acked(span);
        self.model.sessions[at].title.push(Some(title), span);
        Ok(())
    }

    fn save(&mut self, at: usize) -> Result<(), String> {
        let (id, marker) = self.id_and_marker(at);
        let span = self.begin(format!("save {marker}"));
        let session = &self.model.sessions[at];
        let n_saved = session.records.iter().filter(|record| record.span.is_acked()).count();
        let params = json!({ "sessionId": id });
        self.attempt("save", |home| documents::save(&home.core, of(&params)))?;
        let span = self.acked(span);
        self.model.sessions[at].saved.push((n_saved, span));
        Ok(())
    }

    fn close(&mut self, at: usize) -> Result<(), String> {
        let (id, marker) = self.id_and_marker(at);
        self.begin(format!("close {marker}"));
        let params = json!({ "sessionId": id });
        self.attempt("close", |home| {
            home.runtime.block_on(update::close(Arc::clone(&home.core), of(&params)))
        })
        .map(drop)
    }

    fn archive(&mut self, at: usize) -> Result<(), String> {
        let (id, marker) = self.id_and_marker(at);
        self.begin(format!("archive and unarchive {marker}"));
        let params = json!({ "sessionId": id });
        self.attempt("archive", |home| {
            let core = || Arc::clone(&home.core);
            home.runtime.block_on(update::archive(core(), of(&params)))?;
            home.runtime.block_on(update::unarchive(core(), of(&params)))
        })
        .map(drop)
    }

    fn set_current(&mut self, at: usize) -> Result<(), String> {
        let id = self.dice.percent(80).then(|| self.model.sessions[at].id);
        let span = self.begin(format!("set the current session to {id:?}"));
        self.model.current.push(id, span);
        let params = json!({ "projectPath": "/", "sessionId": id });
        self.attempt("setCurrent", |home| list::set_current(&home.core, of(&params)))?;
        let span = self.acked(span);
        self.model.current.push(id, span);
        Ok(())
    }

    fn set_entry(&mut self) -> Result<(), String> {
        let key = self.dice.pick(&ENTRY_KEYS);
        let content = self.dice.percent(70).then(|| self.word());
        self.change_entry(key, content)
    }

    /// Sets the newest value of an entry again, whether it was acknowledged or not.
    pub(super) fn repeat_entry(&mut self, key: &str) -> Result<(), String> {
        let newest = self.model.entries[key].newest();
        self.change_entry(key, newest)
    }

    fn change_entry(&mut self, key: &str, content: Option<String>) -> Result<(), String> {
        let span = self.begin(format!("set the entry {key} to {content:?}"));
        let values = self.model.entries.entry(key.to_owned());
        values.or_insert_with(|| Register::start_with(None)).push(content.clone(), span);
        let params = json!({ "scope": "global", "key": key, "content": content });
        self.attempt("an entry", |home| {
            let core = Arc::clone(&home.core);
            if params["content"].is_null() {
                home.runtime.block_on(entries::remove(core, of(&params))).map(drop)
            } else {
                home.runtime.block_on(entries::add(core, of(&params))).map(drop)
            }
        })?;
        let span = self.acked(span);
        self.model.entries.get_mut(key).expect("has values").push(content, span);
        Ok(())
    }

    fn build_context(&mut self, at: usize) -> Result<(), String> {
        let (id, marker) = self.id_and_marker(at);
        self.begin(format!("build a context of {marker}"));
        let params = json!({ "sessionId": id, "compact": "auto", "contextSize": 65_536 });
        self.attempt("build", |home| {
            let built = build::build(Arc::clone(&home.core), of(&params));
            match home.runtime.block_on(built) {
                // Whether everything fits is not the question here.
                Err(AppError::Context(_)) => Ok(()),
                other => other.map(drop),
            }
        })
    }

    /// Moves the leaf: back, forward, or to the first record.
    fn move_leaf(&mut self, at: usize) -> Result<(), String> {
        let (id, marker) = self.id_and_marker(at);
        let move_name = self.dice.pick(&["undo", "redo", "branch"]);
        let span = self.begin(format!("{move_name} in {marker}"));
        let (step, to) = (json!({ "sessionId": id }), json!({ "sessionId": id, "toSeq": 1 }));
        let moved = self.attempt(move_name, |home| {
            let core = || Arc::clone(&home.core);
            let result = match move_name {
                "undo" => home
                    .runtime
                    .block_on(undo::undo(core(), of(&step), CancellationToken::new()))
                    .map(drop),
                "redo" => home
                    .runtime
                    .block_on(undo::redo(core(), of(&step), CancellationToken::new()))
                    .map(drop),
                _ => home.runtime.block_on(branch::branch(core(), of(&to))).map(drop),
            };
            match result {
                Ok(()) => Ok(true),
                // There is nothing to undo, or the first record is no part of the tree.
                Err(
                    AppError::Invalid { .. }
                    | AppError::Session(SessionError::RecordNotFound { .. }),
                ) => Ok(false),
                Err(error) => Err(error),
            }
        })?;
        if moved {
            self.ack_move(at, span)?;
            self.write_automatic_snapshots();
        }
        Ok(())
    }

    /// Writes the files of automatic snapshots now or later, and removes older ones.
    fn write_automatic_snapshots(&mut self) {
        if self.dice.percent(50) {
            self.begin("write the files of automatic snapshots");
            snapshots::automatic::write_due(&self.home.core);
        }
    }

    /// Notes that the newest move of the leaf was acknowledged.
    fn ack_move(&mut self, at: usize, span: Span) -> Result<(), String> {
        let id = self.model.sessions[at].id;
        let newest = self.home.core.sessions.with(id, |live| {
            let state = live.state();
            let is_leaf = |entry: &IndexEntry| entry.kind() == Some(RecordKind::Leaf);
            let seq = Seq(state.entries().iter().rposition(is_leaf)? as u64);
            Some((seq, state.leaf_move(seq)?.0))
        });
        if let Some((seq, to)) = newest.map_err(|error| error.to_string())? {
            let span = self.acked(span);
            self.model.sessions[at].moves.push(ExpectedMove { seq, to, span });
        }
        Ok(())
    }

    fn take_snapshot(&mut self, at: usize) -> Result<(), String> {
        let (_, marker) = self.id_and_marker(at);
        let (summary, key) = (format!("{marker} {}", self.word()), self.word());
        let span = self.begin(format!("take the snapshot {summary}"));
        let snapshot = ExpectedSnapshot { summary, key, span, taken: None, deletion: None };
        self.model.sessions[at].snapshots.push(snapshot);
        let number = self.model.sessions[at].snapshots.len() - 1;
        self.send_snapshot(at, number)?;
        self.write_automatic_snapshots();
        Ok(())
    }

    /// Asks for a snapshot, for the first time or again.
    pub(super) fn send_snapshot(&mut self, at: usize, number: usize) -> Result<(), String> {
        let session = &self.model.sessions[at];
        let ExpectedSnapshot { summary, key, taken: known, .. } = session.snapshots[number].clone();
        let params = json!({ "sessionId": session.id, "summary": summary, "key": key });
        let taken = self.attempt("snapshot", |home| {
            let taken = snapshots::create::create(Arc::clone(&home.core), of(&params));
            home.runtime.block_on(taken)
        })?;
        let taken = (taken.snapshot.snapshot_id, taken.snapshot.leaf);
        if known.is_some_and(|known| known != taken) {
            return Err(format!("law 4: the retry of {summary} gave another snapshot"));
        }
        let position = self.position();
        let snapshot = &mut self.model.sessions[at].snapshots[number];
        snapshot.taken = Some(taken);
        snapshot.span.acked.get_or_insert(position);
        Ok(())
    }

    /// Returns the place of a snapshot of a session that is not deleted.
    fn pick_snapshot(&mut self, at: usize) -> Option<usize> {
        let snapshots = self.model.sessions[at].snapshots.iter().enumerate();
        let usable = |one: &ExpectedSnapshot| one.taken.is_some() && one.deletion.is_none();
        let usable: Vec<usize> =
            snapshots.filter(|(_, one)| usable(one)).map(|(number, _)| number).collect();
        (!usable.is_empty()).then(|| self.dice.pick(&usable))
    }

    fn restore_snapshot(&mut self, at: usize) -> Result<(), String> {
        let Some(number) = self.pick_snapshot(at) else { return self.take_snapshot(at) };
        let ExpectedSnapshot { summary, taken, .. } =
            self.model.sessions[at].snapshots[number].clone();
        let Some((id, leaf)) = taken else { return Ok(()) };
        let span = self.begin(format!("restore {summary}"));
        let params = json!({ "snapshotId": id, "key": self.word() });
        let restored = self.attempt("restore", |home| {
            let restored =
                restore::restore(Arc::clone(&home.core), of(&params), CancellationToken::new());
            home.runtime.block_on(restored)
        })?;
        let session = self.model.sessions[at].id;
        let now = self.home.core.sessions.with(session, |live| live.state().leaf());
        if now.map_err(|error| error.to_string())? != leaf {
            return Err(format!("law 27: the restore of {summary} moved elsewhere"));
        }
        if restored.seq.is_some() { self.ack_move(at, span) } else { Ok(()) }
    }

    fn delete_snapshot(&mut self, at: usize) -> Result<(), String> {
        let Some(number) = self.pick_snapshot(at) else { return self.take_snapshot(at) };
        let snapshot = self.model.sessions[at].snapshots[number].clone();
        let Some((id, _)) = snapshot.taken else { return Ok(()) };
        let span = self.begin(format!("delete the snapshot {}", snapshot.summary));
        self.model.sessions[at].snapshots[number].deletion = Some(span);
        let params = json!({ "snapshotId": id });
        self.attempt("delete a snapshot", |home| {
            match snapshots::manage::delete(&home.core, of(&params)) {
                // An attempt that failed at the end may have removed it.
                Err(AppError::Snapshot(SnapshotError::NotFound { .. })) if has_failed(home) => {
                    Ok(())
                }
                other => other.map(drop),
            }
        })?;
        let span = self.acked(span);
        self.model.sessions[at].snapshots[number].deletion = Some(span);
        Ok(())
    }

    /// Forks a session at its end.
    fn fork(&mut self, at: usize) -> Result<(), String> {
        let source = self.model.sessions[at].id;
        let n_records = self.home.core.sessions.with(source, |live| live.state().leaf());
        if n_records.is_ok_and(|leaf| leaf.is_none()) {
            return Ok(());
        }
        let (title, key) = (format!("fork {}", self.word()), self.word());
        let span = self.begin(format!("{title} of {}", self.model.sessions[at].marker));
        self.model.forks.push(ExpectedFork { source, title, key, span, created: None });
        self.send_fork(self.model.forks.len() - 1)
    }

    /// Asks for a fork, for the first time or again.
    pub(super) fn send_fork(&mut self, number: usize) -> Result<(), String> {
        let ExpectedFork { source, title, key, created, .. } = self.model.forks[number].clone();
        let params = json!({ "sessionId": source, "title": title, "key": key });
        let forked = self.attempt("fork", |home| fork::fork(&home.core, of(&params)))?;
        let id = forked.session.session_id;
        if created.is_some_and(|(known, _)| known != id) {
            return Err(format!("law 4: the retry of {title} made another session"));
        }
        let n_records = self.home.core.sessions.with(id, |live| {
            // Without its own header and move.
            let leaf =
                live.state().entries().iter().position(|entry| {
                    entry.kind() == Some(RecordKind::Session) && entry.offset > 0
                });
            leaf.unwrap_or_default()
        });
        let n_records = n_records.map_err(|error| error.to_string())?;
        let position = self.position();
        let fork = &mut self.model.forks[number];
        fork.created.get_or_insert((id, n_records));
        fork.span.acked.get_or_insert(position);
        Ok(())
    }

    fn record_compaction(&mut self, at: usize) -> Result<(), String> {
        let (id, marker) = self.id_and_marker(at);
        let token = self.word();
        let body = json!({ "summary": format!("{marker} {token}"), "tokensBefore": 100,
            "tokenizer": "estimate-v1" });
        self.begin(format!("record a compaction of {marker}"));
        self.attempt("compact", |home| {
            let body = RecordBody::Compaction(of(&body));
            home.runtime.block_on(home.core.append_one(id, body))
        })?;
        Ok(())
    }

    /// Closes the sessions that no call uses, once no thread uses one.
    fn close_unused(&mut self) -> Result<(), String> {
        self.begin("close unused sessions");
        self.home.wait_for_quiet_sessions()?;
        let later = Timestamp::from_unix_ms(self.home.core.clock.now().unix_ms() + 1);
        self.home.core.sessions.close_unused(later);
        Ok(())
    }

    fn delete(&mut self, at: usize) -> Result<(), String> {
        let (id, marker) = self.id_and_marker(at);
        // The words of a deleted session may be nowhere, and a fork keeps them.
        if self.model.forks.iter().any(|fork| fork.source == id) {
            return self.move_leaf(at);
        }
        let span = self.begin(format!("delete {marker}"));
        // An attempt that failed may have removed the session, so it may be absent since then.
        let span = *self.model.sessions[at].deletion.get_or_insert(span);
        self.forget_current(id, span);
        let params = json!({ "sessionId": id });
        self.attempt("delete", |home| {
            match delete::delete(&home.core, of(&params)) {
                // An attempt that failed at the end may have removed everything.
                Err(AppError::Session(SessionError::NotFound { .. })) if has_failed(home) => Ok(()),
                other => other.map(drop),
            }
        })?;
        let span = self.acked(span);
        self.model.sessions[at].deletion = Some(span);
        self.forget_current(id, span);
        Ok(())
    }

    /// Notes that a deleted session is no current session any more.
    fn forget_current(&mut self, id: SessionId, span: Span) {
        if self.model.current.admits(&Some(id)) {
            self.model.current.push(None, span);
        }
    }

    fn clean_up(&mut self) -> Result<(), String> {
        if !self.model.forks.is_empty() {
            return Ok(());
        }
        self.use_one_by_one()?;
        self.home.wait_for_quiet_sessions()?;
        let keep = 1 + self.dice.below(3);
        let usable = self.model.usable();
        let span = self.begin(format!("delete all but {keep} sessions"));
        let before: Vec<_> =
            usable.iter().map(|at| (*at, self.model.sessions[*at].clone())).collect();
        for at in &usable {
            self.model.sessions[*at].deletion = Some(span);
        }
        let params = json!({ "keep": keep });
        let result = self.attempt("cleanup", |home| delete::cleanup(&home.core, of(&params)))?;
        if !result.failed.is_empty() && !self.may_fail {
            return Err(format!("law 41: cleanup failed for {:?}", result.failed));
        }
        let failed: Vec<SessionId> = result.failed.iter().map(|failed| failed.session_id).collect();
        let deleted: Vec<SessionId> = result.deleted.iter().map(|one| one.session_id).collect();
        for (at, session) in before {
            if deleted.contains(&session.id) {
                let span = self.acked(span);
                self.model.sessions[at].deletion = Some(span);
                self.forget_current(session.id, span);
            } else if failed.contains(&session.id) {
                self.forget_current(session.id, span);
                self.delete(at)?;
            } else {
                // It was kept: no crash during the call may have deleted it.
                self.model.sessions[at].deletion = None;
            }
        }
        Ok(())
    }

    /// Uses each session at a time of its own, so that the order by time does not depend on the threads' speed.
    fn use_one_by_one(&mut self) -> Result<(), String> {
        for at in self.model.usable() {
            let before = self.home.core.clock.now();
            while self.home.core.clock.now() == before {
                std::thread::yield_now();
            }
            self.record_message(at, 1)?;
        }
        Ok(())
    }

    /// Closes all sessions and applies their limit, which archives the oldest ones.
    fn retain(&mut self) -> Result<(), String> {
        self.use_one_by_one()?;
        for at in self.model.usable() {
            self.close(at)?;
        }
        self.home.wait_for_quiet_sessions()?;
        self.begin("apply the limits of retention");
        retention::apply(&self.home.core).map(drop).map_err(|error| format!("law 8: {error}"))
    }

    fn learn(&mut self) -> Result<(), String> {
        let think = self.word();
        self.begin("learn a property of a model");
        self.home.core.counts.store_think("m", &think);
        Ok(())
    }

    fn import(&mut self) -> Result<(), String> {
        let n_records = self.dice.pick(&[3, 8, 8, 8, 8, 270]);
        let (marker, has_blob) = (self.word(), self.dice.percent(30));
        let tokens: Vec<String> = (0..n_records).map(|_| self.word()).collect();
        let (id, file) = exported(&marker, &tokens, has_blob)?;
        let span = self.begin(format!("import {marker} with {n_records} records"));
        self.model.sessions.push(ExpectedSession {
            id,
            marker,
            create_key: None,
            records: Vec::new(),
            import: Some(ExpectedImport { file, tokens, span }),
            title: Register::start_with(None),
            moves: Vec::new(),
            snapshots: Vec::new(),
            saved: Vec::new(),
            deletion: None,
        });
        self.send_import(self.model.sessions.len() - 1)
    }

    /// Imports the file of a session, for the first time or again.
    pub(super) fn send_import(&mut self, at: usize) -> Result<(), String> {
        let Some(import) = self.model.sessions[at].import.clone() else { return Ok(()) };
        let params = json!({ "data": import.file, "last": true });
        self.attempt("import", |home| import::import(&home.core, of(&params)))?;
        let position = self.position();
        let import = self.model.sessions[at].import.as_mut().expect("has an import");
        import.span.acked.get_or_insert(position);
        Ok(())
    }

    fn import_again(&mut self) -> Result<(), String> {
        let usable = self.model.usable();
        let imported = usable.into_iter().find(|at| {
            let session = &self.model.sessions[*at];
            session.import.is_some() && session.records.is_empty()
        });
        let Some(at) = imported else { return Ok(()) };
        self.begin("import the same file again");
        self.send_import(at)
    }

    pub(super) fn copy_catalog(&mut self) -> Result<(), String> {
        self.home.wait_for_catalog()?;
        self.copies.push((self.position(), CatalogFiles::copy_of(&self.home.dir)));
        Ok(())
    }

    fn id_and_marker(&self, at: usize) -> (SessionId, String) {
        let session = &self.model.sessions[at];
        (session.id, session.marker.clone())
    }
}

/// Returns whether some change of the disk failed on purpose.
fn has_failed(home: &OpenHome) -> bool {
    home.trace.counts().1 > 0
}

/// Returns the number of sessions with calls that were not answered.
fn unanswered(pending: &[(usize, usize, Option<PendingRecord>)]) -> usize {
    let mut places: Vec<usize> =
        pending.iter().filter(|(.., call)| call.is_some()).map(|(at, ..)| *at).collect();
    places.sort_unstable();
    places.dedup();
    places.len()
}

async fn record_call(core: &Arc<Core>, params: &Value) -> Outcome<SessionRecordResult> {
    let core = Arc::clone(core);
    if params.get("toolCall").is_some() {
        input::record_tool_call(core, of(params)).await
    } else {
        input::record(core, of(params)).await
    }
}

/// Returns params from JSON, so that a new optional field changes nothing here.
pub(super) fn of<T: DeserializeOwned>(params: &Value) -> T {
    let mut params = params.clone();
    if let Value::Object(fields) = &mut params {
        fields.retain(|_, value| !value.is_null());
    }
    serde_json::from_value(params).expect("valid params")
}

/// Returns a session with these words as a file, as another home exported it.
pub(super) fn exported(
    marker: &str,
    tokens: &[String],
    has_blob: bool,
) -> Result<(SessionId, String), String> {
    let dir = scratch();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let _entered = runtime.enter();
    let core = scratch_core(dir.path());
    let session = create::create(&core, of(&json!({}))).map_err(|error| error.to_string())?;
    let id = session.session.session_id;
    for (number, token) in tokens.iter().enumerate() {
        let filler = ".".repeat(if has_blob && number == 1 { 70_000 } else { 1 });
        let text = format!("{marker} {token} {filler}");
        let message = json!({ "role": "user", "content": text });
        let params = json!({ "sessionId": id, "message": message });
        let recorded = runtime.block_on(record_call(&core, &params));
        recorded.map_err(|error| error.to_string())?;
    }
    let mut file = String::new();
    let mut cursor = None;
    loop {
        let params = json!({ "sessionId": id, "format": ExportFormat::Jsonl, "cursor": cursor });
        let page = export::export(&core, of(&params)).map_err(|error| error.to_string())?;
        file.push_str(&page.data);
        cursor = page.next_cursor;
        if cursor.is_none() {
            return Ok((id, file));
        }
    }
}
