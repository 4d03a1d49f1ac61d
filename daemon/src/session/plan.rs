//! Writes before they reach the disk: the requests of a batch, and the plan made from them.
//!
//! A plan holds the bytes of one append and, for each request, the records to apply and the reply to send once the
//! bytes are durable. Making a plan changes neither the fold nor the log; it writes blobs only.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ollm_protocol::content::{GoalSource, NotKept, RecordBody, RecordScope};
use ollm_protocol::{Seq, Timestamp};
use tokio::sync::oneshot;

use super::error::{LogError, SessionError};
use super::index::{IndexEntry, KeyEntry, ScanPoint, ScannedRecord};
use super::kept_files::{self, NewContents};
use super::log::{self, EncodedLine, LineFields};
use super::open_session::OpenSession;
use super::pending::Plan;
use super::shared::StoreShared;
use super::write::{Appended, IdempotencyKey, NewRecord, Parent};

/// The sender of the result of a write.
pub(super) type WriteReply = oneshot::Sender<Result<Option<Appended>, SessionError>>;

/// Sends the result of a write. The write stays durable if its caller has stopped waiting.
///
/// Sending wakes the caller's runtime, and tokio panics when the system refuses that. The result is there by then, and
/// the results of other callers follow.
pub(super) fn send_reply(reply: WriteReply, result: Result<Option<Appended>, SessionError>) {
    if catch_unwind(AssertUnwindSafe(|| drop(reply.send(result)))).is_err() {
        tracing::error!("the caller of a write could not be woken");
    }
}

/// A request to change a session by records that become durable together.
pub(super) struct WriteRequest {
    pub change: RequestedChange,
    /// The key of the first record; a known key makes the request write nothing.
    pub key: Option<IdempotencyKey>,
    pub reply: WriteReply,
}

/// The forms of a change.
pub(super) enum RequestedChange {
    /// Records that are known beforehand.
    Append(Vec<NewRecord>),
    /// Records that were planned for this active leaf; they are refused if another one is active.
    AppendAfter(Option<Seq>, Vec<NewRecord>),
    /// Records that are planned when all earlier requests are applied.
    Plan(Plan),
}

impl WriteRequest {
    /// Returns whether the request begins a new append, because its plan depends on everything before it.
    pub(super) const fn is_planned(&self) -> bool {
        matches!(self.change, RequestedChange::Plan(_))
    }
}

/// The result of a request, known before its records are durable.
pub(super) enum WriteOutcome {
    /// The records are in the plan; the first one has this number and time. Some contents of files may not be kept.
    Written(Seq, Timestamp, NotKept),
    /// The key had created this record before.
    Known(KeyEntry),
    /// There was nothing to change.
    Nothing,
    /// The request was refused; other requests of the batch are not affected.
    Refused(SessionError),
}

impl WriteOutcome {
    /// Returns the reply, after the records were applied to the fold.
    pub(super) fn into_reply(
        self,
        session: &OpenSession,
    ) -> Result<Option<Appended>, SessionError> {
        let (seq, at, duplicate, not_kept) = match self {
            Self::Written(seq, at, not_kept) => (seq, Some(at), false, not_kept),
            Self::Known(key) => (Seq(u64::from(key.seq)), None, true, NotKept::default()),
            Self::Nothing => return Ok(None),
            Self::Refused(error) => return Err(error),
        };
        let (id, state) = (session.state.id(), &session.state);
        let entry = state.entry(seq).ok_or(SessionError::RecordNotFound { id, seq })?;
        let at = match at {
            Some(at) => at,
            None => {
                let record =
                    session.reader().read(entry).map_err(|error| SessionError::fs(id, &error))?;
                record.ok_or(SessionError::Damaged { id, seq })?.at
            }
        };
        let (tokens, usage) = (entry.tokens, state.usage());
        Ok(Some(Appended { seq, at, tokens, usage, duplicate, not_kept }))
    }
}

/// The records of one request, and its reply.
pub(super) struct PlannedWrite {
    pub(super) records: Vec<ScannedRecord>,
    /// Absent for the header of a new log.
    pub(super) reply: Option<(WriteReply, WriteOutcome)>,
}

/// The bytes of one append, and the writes to apply once they are durable.
pub(super) struct WritePlan {
    /// The end of the log before the append.
    pub(super) start: ScanPoint,
    /// The end of the log after the append.
    pub(super) end: ScanPoint,
    /// The bytes to append, which may be none.
    pub(super) bytes: Vec<u8>,
    /// The writes in the order of their requests.
    pub(super) writes: Vec<PlannedWrite>,
    /// Whether the append begins a new log.
    pub(super) is_birth: bool,
    /// The contents of files that were not kept before. Only lines of this plan can name them.
    new_contents: NewContents,
}

impl WritePlan {
    /// Removes the blobs that only this plan needs. The caller knows that none of its lines is in the log.
    pub(super) fn remove_new_blobs(&mut self) {
        self.new_contents.remove();
    }

    /// Keeps the blobs, because the lines of this plan are durable.
    pub(super) fn keep_new_blobs(&mut self) {
        self.new_contents.keep();
    }

    /// Leaves the blobs to the next start, because the log may have lines of this plan.
    pub(super) fn leave_new_blobs(&mut self) {
        self.new_contents.leave();
    }

    /// Replies to every request that nothing was written.
    pub(super) fn fail(self, error: &SessionError) {
        for (reply, outcome) in self.writes.into_iter().filter_map(|write| write.reply) {
            let error = match outcome {
                WriteOutcome::Refused(refused) => refused,
                _ => error.clone(),
            };
            send_reply(reply, Err(error));
        }
    }
}

/// A builder that turns requests into a plan, on top of the fold of a session.
pub(super) struct WritePlanner<'a> {
    session: &'a OpenSession,
    shared: &'a StoreShared,
    plan: WritePlan,
    /// The keys that requests of this plan use for the first time.
    keys: HashMap<[u8; 16], KeyEntry>,
    /// The active leaf after the planned records.
    leaf: Option<Seq>,
    /// The time of the newest record after the planned ones are applied.
    last_at: Timestamp,
}

impl<'a> WritePlanner<'a> {
    pub(super) fn new(session: &'a OpenSession, shared: &'a StoreShared) -> Self {
        let state = &session.state;
        let (start, end) = (state.point(), state.point());
        let (bytes, writes, new_contents) = (Vec::new(), Vec::new(), NewContents::default());
        let plan = WritePlan { start, end, bytes, writes, is_birth: false, new_contents };
        let last_at = state.last_at().unwrap_or(Timestamp::from_unix_ms(0));
        Self { session, shared, plan, keys: HashMap::new(), leaf: state.leaf(), last_at }
    }

    /// Adds one request. A request that cannot be encoded is refused alone. A request that is planned comes first.
    pub(super) fn add(&mut self, request: WriteRequest) {
        let WriteRequest { change, key, reply } = request;
        let (records, outcome) = match key.as_ref().and_then(|key| self.outcome_of_known(key)) {
            Some(outcome) => (Vec::new(), outcome),
            None => self.add_change(change, key),
        };
        self.plan.writes.push(PlannedWrite { records, reply: Some((reply, outcome)) });
    }

    fn add_change(
        &mut self,
        change: RequestedChange,
        key: Option<IdempotencyKey>,
    ) -> (Vec<ScannedRecord>, WriteOutcome) {
        let id = self.session.state.id();
        let records = match change {
            RequestedChange::Append(records) => records,
            RequestedChange::AppendAfter(leaf, _) if leaf != self.leaf => {
                return (Vec::new(), WriteOutcome::Refused(SessionError::LeafMoved { id }));
            }
            RequestedChange::AppendAfter(_, records) => records,
            RequestedChange::Plan(plan) => plan(self.session),
        };
        if records.is_empty() {
            return (Vec::new(), WriteOutcome::Nothing);
        }
        let (end, leaf, last_at) = (self.plan.end, self.leaf, self.last_at);
        let (n_bytes, n_writes) = (self.plan.bytes.len(), self.plan.writes.len());
        match self.begin_log().and_then(|()| self.encode_all(records, key)) {
            Ok((first, records, not_kept)) => {
                let at = records.first().map_or(self.last_at, |record| record.at);
                (records, WriteOutcome::Written(first, at, not_kept))
            }
            Err(error) => {
                (self.plan.end, self.leaf, self.last_at) = (end, leaf, last_at);
                self.plan.bytes.truncate(n_bytes);
                self.plan.writes.truncate(n_writes);
                self.keys.retain(|_, key| u64::from(key.seq) < end.records);
                (Vec::new(), WriteOutcome::Refused(SessionError::log(id, &error)))
            }
        }
    }

    /// Returns the plan of all requests so far.
    pub(super) fn into_plan(self) -> WritePlan {
        let is_birth = self.session.draft.is_some() && !self.plan.bytes.is_empty();
        WritePlan { is_birth, ..self.plan }
    }

    /// Returns the outcome for a key that was used before, in this plan or in the log.
    fn outcome_of_known(&self, key: &IdempotencyKey) -> Option<WriteOutcome> {
        let state = &self.session.state;
        let used =
            state.key(&key.digest.key).or_else(|| self.keys.get(&key.digest.key).copied())?;
        if used.payload == key.digest.payload {
            return Some(WriteOutcome::Known(used));
        }
        let (id, seq) = (state.id(), Seq(u64::from(used.seq)));
        Some(WriteOutcome::Refused(SessionError::KeyConflict { id, seq }))
    }

    /// Encodes the header of a draft before its first record.
    fn begin_log(&mut self) -> Result<(), LogError> {
        let Some(draft) = self.session.draft.as_ref().filter(|_| self.plan.bytes.is_empty()) else {
            return Ok(());
        };
        let header = NewRecord {
            at: Some(draft.header.start_time),
            key: draft.key.clone(),
            ..NewRecord::new(RecordBody::Session(draft.header.clone()), None)
        };
        let record = self.encode(header, None)?;
        self.plan.writes.push(PlannedWrite { records: vec![record], reply: None });
        Ok(())
    }

    fn encode_all(
        &mut self,
        records: Vec<NewRecord>,
        mut key: Option<IdempotencyKey>,
    ) -> Result<(Seq, Vec<ScannedRecord>, NotKept), LogError> {
        let first = Seq(self.plan.end.records);
        let begins_with_message =
            records.first().is_some_and(|record| matches!(record.body, RecordBody::Message(_)));
        let mut not_kept = NotKept::default();
        let mut encoded: Vec<ScannedRecord> = Vec::with_capacity(records.len());
        for mut record in records {
            let parent = match record.parent {
                Parent::Leaf => self.leaf,
                Parent::Root => None,
                Parent::Record(seq) => Some(seq),
            };
            record.key = key.take().or(record.key);
            // Goal markers are written together with their message, whose number is known only here.
            if let RecordBody::Goal(change) = &mut record.body
                && change.source == GoalSource::Marker
                && record.at.is_none()
                && begins_with_message
            {
                change.message_seq.get_or_insert(first);
            }
            self.keep_files(&mut record, &mut not_kept)?;
            encoded.push(self.encode(record, parent)?);
        }
        Ok((first, encoded, not_kept))
    }

    /// Stores the contents of files that a record refers to, and notes in the record which are not kept.
    fn keep_files(
        &mut self,
        record: &mut NewRecord,
        not_kept: &mut NotKept,
    ) -> Result<(), LogError> {
        let state = &self.session.state;
        let blobs = self.shared.paths.blobs(state.id());
        self.shared.with_descriptors(|| {
            let new = &mut self.plan.new_contents;
            kept_files::keep(record, state.project_path(), &blobs, not_kept, new)
                .map_err(LogError::from)
        })
    }

    fn encode(
        &mut self,
        record: NewRecord,
        parent: Option<Seq>,
    ) -> Result<ScannedRecord, LogError> {
        let NewRecord { body, tokens, at, key, .. } = record;
        let ScanPoint { records, bytes: offset, .. } = self.plan.end;
        let seq = Seq(records);
        // Resting is no activity, so its mark has the time of the newest record.
        let is_of_log = body.kind().scope() == RecordScope::Log;
        let now =
            || if is_of_log { self.last_at } else { self.shared.clock.now().max(self.last_at) };
        let at = at.unwrap_or_else(now);
        let digest = key.as_ref().map(|key| {
            let seq = u32::try_from(seq.0).unwrap_or(u32::MAX);
            KeyEntry { seq, ..key.digest }
        });
        let fields = LineFields {
            seq,
            parent,
            durable: self.plan.start.records.checked_sub(1).map(Seq),
            at,
            tokens: tokens.as_ref().map(|(tokens, tokenizer)| (*tokens, &**tokenizer)),
            key: key.as_ref().zip(digest).map(|(key, digest)| (key.text.as_str(), digest)),
            body: &body,
        };
        let blobs = self.shared.paths.blobs(self.session.state.id());
        let start = self.plan.bytes.len();
        let EncodedLine { len, crc, has_blobs } = self.shared.with_descriptors(|| {
            self.plan.bytes.truncate(start);
            log::encode_line(&fields, &blobs, &mut self.plan.bytes)
        })?;
        let mut flags = IndexEntry::flags_of(&body);
        if has_blobs {
            flags |= IndexEntry::HAS_BLOBS;
        }
        let role = match &body {
            RecordBody::Message(message) => Some(message.role),
            _ => None,
        };
        let tokens = tokens.map_or(0, |(tokens, _)| tokens);
        let entry = IndexEntry::new((offset, len), parent, body.kind(), role, tokens, flags);
        if let Some(digest) = digest {
            self.keys.insert(digest.key, digest);
        }
        self.advance(seq, &body, at);
        let bytes = offset + u64::from(len);
        self.plan.end = ScanPoint { bytes, records: records + 1, last_crc: crc };
        Ok(ScannedRecord { seq, at, entry, key: digest, body: Some(body), lacks_body: false })
    }

    /// Moves the leaf and the time of the newest record past a record, as the fold will.
    fn advance(&mut self, seq: Seq, body: &RecordBody, at: Timestamp) {
        match body {
            RecordBody::Leaf(moved) => self.leaf = moved.to,
            _ if body.kind().scope() == RecordScope::Path => self.leaf = Some(seq),
            _ => {}
        }
        self.last_at = self.last_at.max(at);
    }
}
