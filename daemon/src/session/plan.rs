//! One append as it will be: the bytes to write, and what to apply once they are durable.

use ollm_protocol::content::{GoalSource, RecordBody, RecordScope};
use ollm_protocol::{Seq, Timestamp};

use super::command::{BatchKeys, Command, Outcome, Reply, tell};
use super::index::{Entry, ScanPoint};
use super::live::Live;
use super::log::{self, Encoded, LineFields, LogError, Scanned};
use super::shared::Shared;
use super::{Draft, KeyUse, Parent, SessionError};

/// The records of one command, and who waits for them.
pub(super) struct Step {
    /// What to apply, each with its body.
    pub(super) records: Vec<Scanned>,
    /// Who waits, and for what; absent for the header that begins a log.
    pub(super) reply: Option<(Reply, Outcome)>,
}

/// Bytes to write, and the steps to apply once they are durable.
pub(super) struct Plan {
    /// How far the log was whole before.
    pub(super) start: ScanPoint,
    /// How far it is whole after.
    pub(super) end: ScanPoint,
    /// What to append; empty when nothing is to be written.
    pub(super) bytes: Vec<u8>,
    /// One step a command, in order.
    pub(super) steps: Vec<Step>,
    /// Whether this makes the log.
    pub(super) is_birth: bool,
}

/// Makes a plan from commands, on top of a fold.
pub(super) struct Planner<'a> {
    live: &'a Live,
    shared: &'a Shared,
    start: ScanPoint,
    bytes: Vec<u8>,
    steps: Vec<Step>,
    keys: BatchKeys,
    cursor: Cursor,
}

/// Where the next record goes.
#[derive(Clone, Copy)]
struct Cursor {
    next: Seq,
    leaf: Option<Seq>,
    last_at: Timestamp,
    crc: u32,
}

impl<'a> Planner<'a> {
    /// An empty plan; for a draft it begins with the header.
    pub(super) fn new(live: &'a Live, shared: &'a Shared) -> Self {
        let state = &live.state;
        let start = state.point();
        let born_at = live.birth.as_ref().map(|birth| birth.header.start_time);
        let last_at = state.last_at().or(born_at).unwrap_or(Timestamp::from_unix_ms(0));
        let cursor =
            Cursor { next: Seq(start.records), leaf: state.leaf(), last_at, crc: start.last_crc };
        let (bytes, steps, keys) = (Vec::new(), Vec::new(), BatchKeys::new());
        Self { live, shared, start, bytes, steps, keys, cursor }
    }

    /// Adds one command; one that cannot be encoded is refused alone.
    pub(super) fn add(&mut self, command: Command) {
        let Command { drafts, key, expected_leaf, reply } = command;
        if let Some(outcome) = key.as_ref().and_then(|key| self.known(key)) {
            self.steps.push(Step { records: Vec::new(), reply: Some((reply, outcome)) });
            return;
        }
        if expected_leaf.is_some_and(|leaf| leaf != self.cursor.leaf) {
            let refused = Outcome::Refused(SessionError::LeafMoved { id: self.live.state.id() });
            self.steps.push(Step { records: Vec::new(), reply: Some((reply, refused)) });
            return;
        }
        let (mark, cursor, steps) = (self.bytes.len(), self.cursor, self.steps.len());
        let planned = self.begin().and_then(|()| self.encode_all(drafts, key));
        let step = match planned {
            Ok((first, records)) => {
                let at = records.first().map_or(self.cursor.last_at, |scanned| scanned.at);
                Step { records, reply: Some((reply, Outcome::Written(first, at))) }
            }
            Err(error) => {
                self.bytes.truncate(mark);
                self.cursor = cursor;
                self.steps.truncate(steps);
                let refused = Outcome::Refused(SessionError::log(self.live.state.id(), &error));
                Step { records: Vec::new(), reply: Some((reply, refused)) }
            }
        };
        self.steps.push(step);
    }

    /// What becomes of a key that was used before, in this batch or ever.
    fn known(&self, key: &KeyUse) -> Option<Outcome> {
        let state = &self.live.state;
        let used =
            state.key(&key.digest.key).or_else(|| self.keys.get(&key.digest.key).copied())?;
        if used.payload == key.digest.payload {
            return Some(Outcome::Known(used));
        }
        let (id, seq) = (state.id(), Seq(u64::from(used.seq)));
        Some(Outcome::Refused(SessionError::KeyConflict { id, seq }))
    }

    /// Writes a draft's header before its first record.
    fn begin(&mut self) -> Result<(), LogError> {
        let Some(birth) = self.live.birth.as_ref().filter(|_| self.bytes.is_empty()) else {
            return Ok(());
        };
        let body = RecordBody::Session(birth.header.clone());
        let draft = Draft {
            at: Some(birth.header.start_time),
            key: birth.key.clone(),
            ..Draft::new(body, None)
        };
        let record = self.encode(draft, None)?;
        self.steps.push(Step { records: vec![record], reply: None });
        Ok(())
    }

    fn encode_all(
        &mut self,
        drafts: Vec<Draft>,
        key: Option<KeyUse>,
    ) -> Result<(Seq, Vec<Scanned>), LogError> {
        let first = self.cursor.next;
        let mut records: Vec<Scanned> = Vec::with_capacity(drafts.len());
        let mut key = key;
        for mut draft in drafts {
            let parent = match draft.parent {
                Parent::Leaf => self.cursor.leaf,
                Parent::Root => None,
                Parent::Record(seq) => Some(seq),
            };
            if let Some(key) = key.take() {
                draft.key = Some(key);
            }
            // The markers of a message that is written with them: only here its number is known.
            if let RecordBody::Goal(change) = &mut draft.body
                && change.source == GoalSource::Marker
                && draft.at.is_none()
                && !records.is_empty()
            {
                change.message_seq.get_or_insert(first);
            }
            records.push(self.encode(draft, parent)?);
        }
        Ok((first, records))
    }

    fn encode(&mut self, draft: Draft, parent: Option<Seq>) -> Result<Scanned, LogError> {
        let Draft { body, tokens, at, key, .. } = draft;
        let seq = self.cursor.next;
        let at = at.unwrap_or_else(|| self.shared.clock.now().max(self.cursor.last_at));
        let digest = key.as_ref().map(|key| {
            let mut digest = key.digest;
            digest.seq = u32::try_from(seq.0).unwrap_or(u32::MAX);
            digest
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
        let blobs = self.shared.paths.blobs(self.live.state.id());
        let Encoded { len, crc, has_blobs } = log::encode_line(&fields, &blobs, &mut self.bytes)?;
        let mut flags = log::flags_of(&body);
        if has_blobs {
            flags |= Entry::HAS_BLOBS;
        }
        let count = tokens.as_ref().map(|(count, _)| *count).unwrap_or_default();
        let role = log::role_of(&body);
        let entry = Entry::new((offset, len), parent, body.kind(), role, count, flags);
        if let Some(digest) = digest {
            self.keys.insert(digest.key, digest);
        }
        self.advance(&body, at, crc);
        Ok(Scanned { seq, at, entry, key: digest, body: Some(body) })
    }

    /// Moves the cursor as the fold will move the leaf.
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

    /// The plan for all commands so far.
    pub(super) fn into_plan(self) -> Plan {
        let end = ScanPoint {
            bytes: self.start.bytes + self.bytes.len() as u64,
            records: self.cursor.next.0,
            last_crc: self.cursor.crc,
        };
        let is_birth = self.live.birth.is_some() && !self.bytes.is_empty();
        Plan { start: self.start, end, bytes: self.bytes, steps: self.steps, is_birth }
    }
}

impl Plan {
    /// Tells everyone that nothing was written.
    pub(super) fn fail(self, error: &SessionError) {
        for (reply, outcome) in self.steps.into_iter().filter_map(|step| step.reply) {
            let told = match outcome {
                Outcome::Refused(refused) => refused,
                Outcome::Written(..) | Outcome::Known(_) => error.clone(),
            };
            tell(reply, Err(told));
        }
    }
}
