//! Writes before they reach the disk: the requests of a batch, and the plan made from them.
//!
//! A plan holds the bytes of one append and, for each request, the records to apply and the reply to send once the
//! bytes are durable. Making a plan changes neither the fold nor the log; it writes blobs only.

use std::collections::HashMap;

use ollm_protocol::content::{GoalSource, RecordBody, RecordScope};
use ollm_protocol::{Seq, Timestamp};
use tokio::sync::oneshot;

use super::error::SessionError;
use super::index::{IndexEntry, KeyEntry, ScanPoint};
use super::log::{self, EncodedLine, LineFields, LogError, ScannedRecord};
use super::open_session::OpenSession;
use super::shared::StoreShared;
use super::write::{Appended, IdempotencyKey, NewRecord, Parent};

/// The sender of the result of a write.
pub(super) type WriteReply = oneshot::Sender<Result<Appended, SessionError>>;

/// Sends the result of a write. The write stays durable if the caller is gone.
pub(super) fn send_reply(reply: WriteReply, result: Result<Appended, SessionError>) {
    drop(reply.send(result));
}

/// A request to append records that become durable together.
pub(super) struct WriteRequest {
    /// The records; empty only to look up a key.
    pub records: Vec<NewRecord>,
    /// The key of the first record; a known key makes the request write nothing.
    pub key: Option<IdempotencyKey>,
    /// The active leaf that the request requires; with another leaf it is refused.
    pub expected_leaf: Option<Option<Seq>>,
    pub reply: WriteReply,
}

/// The result of a request, known before its records are durable.
pub(super) enum WriteOutcome {
    /// The records are in the plan; the first one has this number and time.
    Written(Seq, Timestamp),
    /// The key had created this record before.
    Known(KeyEntry),
    /// The request was refused; other requests of the batch are not affected.
    Refused(SessionError),
}

impl WriteOutcome {
    /// Returns the reply, after the records were applied to the fold.
    pub(super) fn into_reply(self, session: &OpenSession) -> Result<Appended, SessionError> {
        let (seq, at, duplicate) = match self {
            Self::Written(seq, at) => (seq, Some(at), false),
            Self::Known(key) => (Seq(u64::from(key.seq)), None, true),
            Self::Refused(error) => return Err(error),
        };
        let (id, state) = (session.state.id(), &session.state);
        let entry = state.entry(seq).ok_or(SessionError::RecordNotFound { id, seq })?;
        let at = at
            .or_else(|| session.reader().read(entry).map(|record| record.at))
            .ok_or(SessionError::RecordNotFound { id, seq })?;
        Ok(Appended { seq, at, tokens: entry.tokens, usage: state.usage(), duplicate })
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
}

impl WritePlan {
    /// Replies to every request that nothing was written.
    pub(super) fn fail(self, error: &SessionError) {
        for (reply, outcome) in self.writes.into_iter().filter_map(|write| write.reply) {
            let error = match outcome {
                WriteOutcome::Refused(refused) => refused,
                WriteOutcome::Written(..) | WriteOutcome::Known(_) => error.clone(),
            };
            send_reply(reply, Err(error));
        }
    }
}

/// A builder that turns requests into a plan, on top of the fold of a session.
pub(super) struct WritePlanner<'a> {
    session: &'a OpenSession,
    shared: &'a StoreShared,
    start: ScanPoint,
    bytes: Vec<u8>,
    writes: Vec<PlannedWrite>,
    /// The keys that requests of this plan use for the first time.
    keys: HashMap<[u8; 16], KeyEntry>,
    cursor: PlanCursor,
}

/// The state of the session after the records planned so far.
#[derive(Clone, Copy)]
struct PlanCursor {
    next: Seq,
    leaf: Option<Seq>,
    last_at: Timestamp,
    crc: u32,
}

impl<'a> WritePlanner<'a> {
    pub(super) fn new(session: &'a OpenSession, shared: &'a StoreShared) -> Self {
        let state = &session.state;
        let start = state.point();
        let last_at = state.last_at().unwrap_or(Timestamp::from_unix_ms(0));
        let (next, crc) = (Seq(start.records), start.last_crc);
        let cursor = PlanCursor { next, leaf: state.leaf(), last_at, crc };
        let (bytes, writes, keys) = (Vec::new(), Vec::new(), HashMap::new());
        Self { session, shared, start, bytes, writes, keys, cursor }
    }

    /// Adds one request. A request that cannot be encoded is refused alone.
    pub(super) fn add(&mut self, request: WriteRequest) {
        let WriteRequest { records, key, expected_leaf, reply } = request;
        let id = self.session.state.id();
        let known = key.as_ref().and_then(|key| self.outcome_of_known(key));
        let (records, outcome) = if let Some(outcome) = known {
            (Vec::new(), outcome)
        } else if expected_leaf.is_some_and(|leaf| leaf != self.cursor.leaf) {
            (Vec::new(), WriteOutcome::Refused(SessionError::LeafMoved { id }))
        } else {
            let (n_bytes, cursor, n_writes) = (self.bytes.len(), self.cursor, self.writes.len());
            match self.begin_log().and_then(|()| self.encode_all(records, key)) {
                Ok((first, records)) => {
                    let at = records.first().map_or(self.cursor.last_at, |record| record.at);
                    (records, WriteOutcome::Written(first, at))
                }
                Err(error) => {
                    self.bytes.truncate(n_bytes);
                    self.cursor = cursor;
                    self.writes.truncate(n_writes);
                    self.keys.retain(|_, key| u64::from(key.seq) < cursor.next.0);
                    (Vec::new(), WriteOutcome::Refused(SessionError::log(id, &error)))
                }
            }
        };
        self.writes.push(PlannedWrite { records, reply: Some((reply, outcome)) });
    }

    /// Returns the plan of all requests so far.
    pub(super) fn into_plan(self) -> WritePlan {
        let end = ScanPoint {
            bytes: self.start.bytes + self.bytes.len() as u64,
            records: self.cursor.next.0,
            last_crc: self.cursor.crc,
        };
        let is_birth = self.session.draft.is_some() && !self.bytes.is_empty();
        WritePlan { start: self.start, end, bytes: self.bytes, writes: self.writes, is_birth }
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
        let Some(draft) = self.session.draft.as_ref().filter(|_| self.bytes.is_empty()) else {
            return Ok(());
        };
        let header = NewRecord {
            at: Some(draft.header.start_time),
            key: draft.key.clone(),
            ..NewRecord::new(RecordBody::Session(draft.header.clone()), None)
        };
        let record = self.encode(header, None)?;
        self.writes.push(PlannedWrite { records: vec![record], reply: None });
        Ok(())
    }

    fn encode_all(
        &mut self,
        records: Vec<NewRecord>,
        mut key: Option<IdempotencyKey>,
    ) -> Result<(Seq, Vec<ScannedRecord>), LogError> {
        let first = self.cursor.next;
        let mut encoded: Vec<ScannedRecord> = Vec::with_capacity(records.len());
        for mut record in records {
            let parent = match record.parent {
                Parent::Leaf => self.cursor.leaf,
                Parent::Root => None,
                Parent::Record(seq) => Some(seq),
            };
            if let Some(key) = key.take() {
                record.key = Some(key);
            }
            // Goal markers are written together with their message, whose number is known only here.
            if let RecordBody::Goal(change) = &mut record.body
                && change.source == GoalSource::Marker
                && record.at.is_none()
                && !encoded.is_empty()
            {
                change.message_seq.get_or_insert(first);
            }
            encoded.push(self.encode(record, parent)?);
        }
        Ok((first, encoded))
    }

    fn encode(
        &mut self,
        record: NewRecord,
        parent: Option<Seq>,
    ) -> Result<ScannedRecord, LogError> {
        let NewRecord { body, tokens, at, key, .. } = record;
        let seq = self.cursor.next;
        let at = at.unwrap_or_else(|| self.shared.clock.now().max(self.cursor.last_at));
        let digest = key.as_ref().map(|key| {
            let seq = u32::try_from(seq.0).unwrap_or(u32::MAX);
            KeyEntry { seq, ..key.digest }
        });
        let fields = LineFields {
            seq,
            parent,
            durable: self.start.records.checked_sub(1).map(Seq),
            at,
            tokens: tokens.as_ref().map(|(tokens, tokenizer)| (*tokens, &**tokenizer)),
            key: key.as_ref().zip(digest).map(|(key, digest)| (key.text.as_str(), digest)),
            body: &body,
        };
        let offset = self.start.bytes + self.bytes.len() as u64;
        let blobs = self.shared.paths.blobs(self.session.state.id());
        let EncodedLine { len, crc, has_blobs } =
            log::encode_line(&fields, &blobs, &mut self.bytes)?;
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
        self.advance(&body, at, crc);
        Ok(ScannedRecord { seq, at, entry, key: digest, body: Some(body) })
    }

    /// Advances the cursor past a record, as the fold will.
    fn advance(&mut self, body: &RecordBody, at: Timestamp, crc: u32) {
        let seq = self.cursor.next;
        match body {
            RecordBody::Leaf(moved) => self.cursor.leaf = moved.to,
            _ if body.kind().scope() == RecordScope::Path => self.cursor.leaf = Some(seq),
            _ => {}
        }
        self.cursor.next = seq.next();
        self.cursor.last_at = self.cursor.last_at.max(at);
        self.cursor.crc = crc;
    }
}
