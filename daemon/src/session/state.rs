//! The fold of a session log: everything that a session is, except the contents of its records.
//!
//! Live appends and replay use the same [`SessionState::apply`], so a restart changes nothing. Session records apply in
//! the order of the log; path records count only between the root and the active leaf. FORMAT.md, "The fold".

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use ollm_protocol::content::{
    LeafMove, Message, Meta, MetaPatch, ModeChange, RecordBody, RecordKind, RecordScope, Role,
    Session, SessionHeader, SessionStatus, SessionUsage,
};
use ollm_protocol::{Seq, SessionId, Timestamp, limits};
use serde::{Deserialize, Serialize};

use super::index::{IndexEntry, KeyEntry, OpenHint, ScanPoint, ScannedRecord};
use super::log::recover::{ScanItem, ScanSink};
use super::write::NewSession;
use ollm_protocol::sanitize;

/// A session without activity for this long counts as closed, in milliseconds.
pub(crate) const IDLE_CLOSE_MS: i64 = 24 * 60 * 60 * 1000;

/// The name in a list of allowed servers that no server can have: such a list allows none, and an empty one would allow all.
pub(crate) const NO_SERVER: &str = "(none)";

/// Maximum length of the automatic title, in characters of the first paragraph of the first user message.
const TITLE_CHARS: usize = 60;
/// Maximum length of the automatic description, in characters of the first user message.
const DESCRIPTION_CHARS: usize = 200;
/// Length of the part of the first user message that both are taken from, in bytes.
const EXCERPT_BYTES: usize = 8 * 1024;

/// The fold of one log up to a point.
#[derive(Debug)]
pub(crate) struct SessionState {
    id: SessionId,
    entries: Vec<IndexEntry>,
    keys: Vec<KeyEntry>,
    /// The position in `keys` of each digest.
    by_key: HashMap<[u8; 16], u32>,
    point: ScanPoint,
    carry: Carry,
    /// Records that the fold lacks, because blobs of them are missing.
    lacking: Vec<Seq>,
}

/// The part of the fold besides entries and keys. It is small; the catalog stores it as JSON.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Carry {
    header: Option<SessionHeader>,
    /// The digests of the key of `session.create` and its payload.
    create_key: Option<([u8; 16], [u8; 8])>,
    /// The fields set since the header.
    patch: MetaPatch,
    auto_title: Option<String>,
    auto_description: Option<String>,
    leaf: Option<Seq>,
    mode_changes: Vec<(Seq, ModeChange)>,
    /// The moves of the active leaf.
    leaf_moves: Vec<(Seq, LeafMove)>,
    closed: bool,
    last_activity: Option<Timestamp>,
    last_at: Option<Timestamp>,
    first_at: Option<Timestamp>,
    message_count: u64,
    tool_call_count: u64,
    token_count: u64,
    compaction_records: u64,
    damaged: u64,
    /// Records that were known and are missing at the end of the log, until the next record takes their place.
    missing: u64,
}

impl SessionState {
    /// Returns the state of an empty log.
    pub(crate) fn new(id: SessionId) -> Self {
        Self {
            id,
            entries: Vec::new(),
            keys: Vec::new(),
            by_key: HashMap::new(),
            point: ScanPoint::default(),
            carry: Carry::default(),
            lacking: Vec::new(),
        }
    }

    /// Returns the state of a session without a log: it has the settings of its header and no records.
    ///
    /// Applying the header as the first record does not change these settings.
    pub(super) fn draft(session: &NewSession) -> Self {
        let NewSession { header, key } = session;
        let carry = Carry {
            header: Some(header.clone()),
            create_key: key.as_ref().map(|key| (key.digest.key, key.digest.payload)),
            last_activity: Some(header.start_time),
            ..Carry::default()
        };
        Self { carry, ..Self::new(header.session_id) }
    }

    /// Returns the state that a catalog stored, or `None` if its parts do not fit together.
    pub(crate) fn from_hint(id: SessionId, hint: OpenHint) -> Option<Self> {
        let carry = serde_json::from_slice(&hint.carry).ok()?;
        if hint.entries.len() as u64 != hint.point.records {
            return None;
        }
        let by_key = hint.keys.iter().zip(0..).map(|(key, at)| (key.key, at)).collect();
        let OpenHint { point, entries, keys, .. } = hint;
        Some(Self { id, entries, keys, by_key, point, carry, lacking: Vec::new() })
    }

    /// Returns the state of a session whose log begins with the first `n_records` of this one, before its own header; `None`
    /// if the log is damaged. The title and the description are left out, see [`SessionState::name_after`].
    pub(super) fn beginning(&self, id: SessionId, n_records: usize) -> Option<Self> {
        let entries = self.entries.get(..n_records)?;
        let is_whole = self.carry.missing == 0 && self.lacking.is_empty() && !self.is_damaged();
        if !is_whole {
            return None;
        }
        let end = Seq(n_records as u64);
        let mut state = Self::new(id);
        for entry in entries {
            state.count(entry.kind()?, entry);
        }
        state.entries = entries.to_vec();
        let before = |(seq, _): &&(Seq, _)| *seq < end;
        let modes = self.carry.mode_changes.iter().filter(before);
        state.carry.mode_changes = modes.cloned().collect();
        let moves = self.carry.leaf_moves.iter();
        state.carry.leaf_moves = moves.filter(|(seq, _)| *seq < end).cloned().collect();
        state.carry.first_at = self.carry.first_at;
        Some(state)
    }

    /// Takes the automatic title and description from a message of the user; returns whether it has a text.
    pub(super) fn name_after(&mut self, message: &Message) -> bool {
        let text = message.plain_text();
        // Files and pasted texts follow what a person wrote.
        let first = text.trim_start().split("\n\n").next().unwrap_or_default();
        self.carry.auto_title = excerpt(first, TITLE_CHARS);
        self.carry.auto_description = excerpt(&text, DESCRIPTION_CHARS);
        self.carry.auto_title.is_some()
    }

    /// Returns whether the leaf was ever moved, by the part of the state that a catalog stores.
    pub(crate) fn has_moves(carry: &[u8]) -> bool {
        serde_json::from_slice::<Carry>(carry).is_ok_and(|carry| !carry.leaf_moves.is_empty())
    }

    /// Returns the part of the state that a catalog stores beside entries and keys; nothing if the fold lacks records, so
    /// that the log is read again.
    pub(super) fn carry_bytes(&self) -> Vec<u8> {
        if !self.lacking.is_empty() {
            return Vec::new();
        }
        serde_json::to_vec(&self.carry).unwrap_or_default()
    }

    /// Applies the next record; its number must be the number of records so far.
    pub(crate) fn apply(&mut self, scanned: &ScannedRecord) {
        let ScannedRecord { seq, at, mut entry, key, ref body, lacks_body } = *scanned;
        debug_assert_eq!(seq.0, self.entries.len() as u64, "records come in order");
        let Some(kind) = entry.kind() else { return self.apply_hole(entry) };
        let carry = &mut self.carry;
        carry.first_at.get_or_insert(at);
        carry.last_at = carry.last_at.max(Some(at));
        if kind.scope() != RecordScope::Log {
            carry.missing = 0;
        }
        // Building a context is no activity, and neither is the snapshot mark before it, nor resting.
        if !matches!(kind, RecordKind::Epoch | RecordKind::Snapshot | RecordKind::Rest) {
            carry.last_activity = carry.last_activity.max(Some(at));
            carry.closed = false;
        }
        if kind.scope() == RecordScope::Path {
            if let Some(parent) = entry.parent()
                && self.entries.get(index(parent)).is_none_or(IndexEntry::is_damaged)
            {
                entry = entry.reparented(self.nearest_before(seq));
            }
            self.carry.leaf = Some(seq);
        }
        if kind == RecordKind::Session {
            self.begin_header();
        }
        // A scan asks for the body before the records that it holds back are applied.
        let lacks_body = lacks_body && self.wants_body(kind, entry.role());
        self.count(kind, &entry);
        if let Some(key) = key {
            self.add_key(key, kind);
        }
        self.entries.push(entry);
        if lacks_body {
            self.lacking.push(seq);
            if matches!(kind, RecordKind::Session | RecordKind::Meta) {
                self.forbid_servers();
            }
        }
        if let Some(body) = body {
            self.apply_body(seq, body);
        }
    }

    /// Ends what held before a header: a later one begins a fork, with fields and idempotency keys of its own.
    fn begin_header(&mut self) {
        if self.entries.is_empty() {
            return;
        }
        self.keys.clear();
        self.by_key.clear();
        self.carry.create_key = None;
        self.carry.patch = MetaPatch::default();
    }

    fn apply_hole(&mut self, entry: IndexEntry) {
        self.entries.push(entry);
        self.carry.damaged += 1;
        self.forbid_servers();
    }

    /// Allows no server until a later record sets the list: a lost record may have set it.
    fn forbid_servers(&mut self) {
        self.carry.patch.allowed_servers = Some(vec![NO_SERVER.to_owned()]);
    }

    fn add_key(&mut self, key: KeyEntry, kind: RecordKind) {
        if kind == RecordKind::Session {
            self.carry.create_key = Some((key.key, key.payload));
            return;
        }
        let at = u32::try_from(self.keys.len()).unwrap_or(u32::MAX);
        self.keys.push(key);
        self.by_key.insert(key.key, at);
    }

    fn count(&mut self, kind: RecordKind, entry: &IndexEntry) {
        let carry = &mut self.carry;
        match kind {
            RecordKind::Message => carry.message_count += 1,
            RecordKind::ToolCall => carry.tool_call_count += 1,
            RecordKind::Compaction => {
                carry.compaction_records += 1;
                return;
            }
            _ => return,
        }
        carry.token_count += u64::from(entry.tokens);
        // A conversation that continues brings an archived session back.
        carry.patch.archived = None;
    }

    fn apply_body(&mut self, seq: Seq, body: &RecordBody) {
        let carry = &mut self.carry;
        match body {
            RecordBody::Session(header) => {
                // An imported fork is itself imported; one of an imported session is not.
                let own = carry.header.take().filter(|before| before.session_id == self.id);
                let imported_from = own.and_then(|before| before.imported_from);
                let mut header = header.clone();
                header.imported_from = header.imported_from.or(imported_from);
                carry.header = Some(header);
            }
            RecordBody::Meta(patch) => {
                carry.patch = merged(std::mem::take(&mut carry.patch), patch.clone());
            }
            RecordBody::ModeChange(change) => carry.mode_changes.push((seq, change.clone())),
            RecordBody::Leaf(moved) => {
                carry.leaf = moved.to;
                carry.leaf_moves.push((seq, moved.clone()));
            }
            RecordBody::Close(_) => carry.closed = true,
            RecordBody::Message(message)
                if message.role == Role::User && carry.auto_title.is_none() =>
            {
                self.name_after(message);
            }
            _ => {}
        }
    }

    /// Returns the newest readable path record before `seq`.
    fn nearest_before(&self, seq: Seq) -> Option<Seq> {
        let before = &self.entries[..index(seq).min(self.entries.len())];
        let at = before.iter().rposition(|entry| {
            entry.kind().is_some_and(|kind| kind.scope() == RecordScope::Path)
        })?;
        Some(Seq(at as u64))
    }

    pub(super) fn set_point(&mut self, point: ScanPoint) {
        self.point = point;
    }

    /// Raises the number of damaged records to the number of damaged places of a scan: a place in which no number was
    /// lost leaves no hole.
    pub(super) fn note_damage(&mut self, places: u64) {
        self.carry.damaged = self.carry.damaged.max(places);
    }

    /// Sets the number of records that are missing at the end of the log, if there are any.
    pub(super) fn note_missing(&mut self, records: u64) {
        self.carry.missing = self.carry.missing.max(records);
        if records > 0 {
            self.forbid_servers();
        }
    }

    /// Returns the records that the fold lacks, because blobs of them are missing.
    pub(super) fn lacking(&self) -> &[Seq] {
        &self.lacking
    }

    /// Returns the number of damaged and missing records.
    pub(super) const fn n_damaged(&self) -> u64 {
        self.carry.damaged + self.carry.missing
    }

    /// Returns whether the log is damaged.
    pub(super) fn is_damaged(&self) -> bool {
        self.carry.damaged > 0 || self.entries.iter().any(IndexEntry::is_damaged)
    }

    /// Returns whether the entries cover the log up to the point without gaps, as those of an intact log do.
    pub(super) fn is_contiguous(&self) -> bool {
        let end = self
            .entries
            .iter()
            .try_fold(0, |end, entry| (entry.offset == end).then_some(end + u64::from(entry.len)));
        end == Some(self.point.bytes)
    }

    /// Returns the end of the part of the log that is folded.
    pub(crate) const fn point(&self) -> ScanPoint {
        self.point
    }

    pub(crate) const fn id(&self) -> SessionId {
        self.id
    }

    /// Returns one entry for each record, by number.
    pub(crate) fn entries(&self) -> &[IndexEntry] {
        &self.entries
    }

    /// Returns the records of a range that clients know, damaged ones included.
    pub(crate) fn client_records(
        &self,
        range: Range<u64>,
    ) -> impl DoubleEndedIterator<Item = (Seq, IndexEntry)> {
        let end = index(Seq(range.end)).min(self.entries.len());
        let start = index(Seq(range.start)).min(end);
        let records = self.entries[start..end].iter().enumerate();
        let records = records.map(move |(at, entry)| (Seq((start + at) as u64), *entry));
        records.filter(|(_, entry)| !entry.is_of_log())
    }

    pub(crate) fn entry(&self, seq: Seq) -> Option<IndexEntry> {
        self.entries.get(index(seq)).copied()
    }

    /// Returns the idempotency keys in the order of their first use.
    pub(super) fn keys(&self) -> &[KeyEntry] {
        &self.keys
    }

    /// Returns the entry of a key by its digest.
    pub(crate) fn key(&self, key: &[u8; 16]) -> Option<KeyEntry> {
        self.by_key.get(key).and_then(|at| self.keys.get(*at as usize)).copied()
    }

    /// Returns the key of `session.create`.
    pub(super) fn create_key(&self) -> Option<KeyEntry> {
        self.carry.create_key.map(|(key, payload)| KeyEntry { key, payload, seq: 0 })
    }

    /// Returns the active leaf.
    pub(crate) const fn leaf(&self) -> Option<Seq> {
        self.carry.leaf
    }

    /// Returns the target and the cause of a move of the leaf, by its record.
    pub(crate) fn leaf_move(&self, seq: Seq) -> Option<(Option<Seq>, &str)> {
        let moves = &self.carry.leaf_moves;
        let at = moves.binary_search_by_key(&seq, |(seq, _)| *seq).ok()?;
        let moved = &moves[at].1;
        Some((moved.to, &moved.cause))
    }

    /// Returns the leaf with which a fork began; `None` for a session that is no fork.
    pub(crate) fn forked_leaf(&self) -> Option<Seq> {
        let moves = self.carry.leaf_moves.iter().rev();
        moves
            .clone()
            .find(|(_, moved)| moved.cause == LeafMove::FORK)
            .and_then(|(_, moved)| moved.to)
    }

    /// Returns the header that a session with the fields of this one would have now.
    pub(crate) fn current_header(&self, id: SessionId, now: Timestamp) -> SessionHeader {
        let (header, patch) = (self.carry.header.as_ref(), &self.carry.patch);
        let of_header = |get: fn(&SessionHeader) -> Option<String>| header.and_then(get);
        SessionHeader {
            project_path: self.project_path().map(str::to_owned),
            model: self.model().map(str::to_owned),
            provider: patch
                .provider
                .clone()
                .or_else(|| of_header(|header| header.provider.clone())),
            system_prompt: self.system_prompt().map(str::to_owned),
            context_size: self.context_size(),
            keep_alive_seconds: self.keep_alive_seconds(),
            allowed_servers: self.allowed_servers().to_vec(),
            options: self.options(),
            mode: of_header(|header| header.mode.clone()),
            metadata: self.metadata(),
            ..SessionHeader::new(id, now)
        }
    }

    /// Returns the numbers from the root to the active leaf, oldest first.
    pub(crate) fn path(&self) -> Vec<Seq> {
        self.path_to(self.carry.leaf)
    }

    /// Returns the numbers from the root to a record, oldest first.
    pub(crate) fn path_to(&self, leaf: Option<Seq>) -> Vec<Seq> {
        let mut path: Vec<Seq> = self.walk(leaf).map(|(seq, _)| seq).collect();
        path.reverse();
        path
    }

    /// Returns the records among `seqs` that are not on the active path.
    pub(crate) fn off_path(&self, seqs: &[Seq]) -> Vec<Seq> {
        let Some(first) = seqs.iter().min() else { return Vec::new() };
        let path = self.walk(self.carry.leaf).map(|(seq, _)| seq).take_while(|seq| seq >= first);
        let mut path: Vec<Seq> = path.collect();
        path.reverse();
        seqs.iter().copied().filter(|seq| !self.is_on_path(*seq, &path)).collect()
    }

    /// Returns whether a record is on the active path or outside of all paths.
    pub(crate) fn is_on_path(&self, seq: Seq, path: &[Seq]) -> bool {
        match self.entry(seq).and_then(|entry| entry.kind()) {
            Some(kind) if kind.scope() == RecordScope::Path => path.binary_search(&seq).is_ok(),
            _ => true,
        }
    }

    /// Returns the newest record of a kind on the active path.
    pub(crate) fn newest_on_path(&self, kind: RecordKind) -> Option<Seq> {
        self.newest_where(self.carry.leaf, |entry| entry.kind() == Some(kind))
    }

    /// Returns the newest record on the path to `leaf`, inclusive, for which `wanted` returns true.
    pub(crate) fn newest_where(
        &self,
        leaf: Option<Seq>,
        wanted: impl Fn(&IndexEntry) -> bool,
    ) -> Option<Seq> {
        self.walk(leaf).find(|(_, entry)| entry.as_ref().is_some_and(&wanted)).map(|(seq, _)| seq)
    }

    /// Returns the numbers and entries from a record to the root, newest first.
    ///
    /// A parent has a lower number than its child. Other parents, which damage could cause, end the walk.
    pub(crate) fn walk(
        &self,
        leaf: Option<Seq>,
    ) -> impl Iterator<Item = (Seq, Option<IndexEntry>)> {
        let with_entry = |seq| (seq, self.entry(seq));
        std::iter::successors(leaf.map(with_entry), move |(seq, entry)| {
            let parent = entry.as_ref()?.parent().filter(|parent| parent < seq)?;
            Some(with_entry(parent))
        })
    }

    /// Returns the model in force.
    pub(crate) fn model(&self) -> Option<&str> {
        let carry = &self.carry;
        carry.patch.model.as_deref().or_else(|| carry.header.as_ref()?.model.as_deref())
    }

    /// Returns the system prompt in force.
    pub(crate) fn system_prompt(&self) -> Option<&str> {
        let carry = &self.carry;
        let patched = carry.patch.system_prompt.as_deref();
        patched
            .or_else(|| carry.header.as_ref()?.system_prompt.as_deref())
            .filter(|text| !text.is_empty())
    }

    /// Returns the context window in force, in tokens.
    pub(crate) fn context_size(&self) -> Option<u32> {
        let carry = &self.carry;
        carry.patch.context_size.or_else(|| carry.header.as_ref()?.context_size)
    }

    fn keep_alive_seconds(&self) -> Option<u32> {
        let carry = &self.carry;
        carry.patch.keep_alive_seconds.or_else(|| carry.header.as_ref()?.keep_alive_seconds)
    }

    /// Returns the time for which the model server keeps the model in memory after a request of the session.
    pub(crate) fn keep_alive(&self) -> Option<Duration> {
        self.keep_alive_seconds().map(|seconds| Duration::from_secs(seconds.into()))
    }

    /// Returns whether no server may get texts of the session until the list is set again: its record may be lost.
    pub(crate) fn has_lost_servers(&self) -> bool {
        self.allowed_servers() == [NO_SERVER]
    }

    /// Returns the model servers that may get texts of the session; empty for all.
    pub(crate) fn allowed_servers(&self) -> &[String] {
        let carry = &self.carry;
        let of_header = || carry.header.as_ref().map(|header| header.allowed_servers.as_slice());
        carry.patch.allowed_servers.as_deref().or_else(of_header).unwrap_or_default()
    }

    /// Returns the canonical path of the project directory.
    pub(crate) fn project_path(&self) -> Option<&str> {
        let carry = &self.carry;
        let patched = carry.patch.project_path.as_deref();
        patched.or_else(|| carry.header.as_ref()?.project_path.as_deref())
    }

    /// Returns the mode in force.
    pub(crate) fn mode(&self) -> Option<String> {
        let path = if self.carry.mode_changes.is_empty() { Vec::new() } else { self.path() };
        self.mode_on(|seq| path.binary_search(&seq).is_ok())
    }

    /// Returns the mode in force on the path whose records `on_path` accepts.
    pub(crate) fn mode_on(&self, on_path: impl Fn(Seq) -> bool) -> Option<String> {
        let mut changes = self.carry.mode_changes.iter().rev();
        let changed = changes.find(|(seq, _)| on_path(*seq)).map(|(_, change)| change.to.clone());
        changed.or_else(|| self.carry.header.as_ref()?.mode.clone())
    }

    /// Returns the time of the newest record, which no later record may precede.
    pub(super) fn last_at(&self) -> Option<Timestamp> {
        self.carry.last_at.max(self.carry.last_activity)
    }

    /// Returns the totals that replies to writes contain.
    pub(crate) const fn usage(&self) -> SessionUsage {
        SessionUsage {
            message_count: self.carry.message_count,
            token_count: self.carry.token_count,
        }
    }

    /// Returns the number of compactions on the active path.
    pub(crate) fn compression_count(&self) -> u64 {
        if self.carry.compaction_records == 0 {
            return 0;
        }
        let is_compaction = |entry: IndexEntry| entry.kind() == Some(RecordKind::Compaction);
        let path = self.walk(self.carry.leaf);
        path.filter(|(_, entry)| entry.is_some_and(is_compaction)).count() as u64
    }

    /// Returns the session as lists show it; `now` decides whether it counts as closed.
    pub(crate) fn summary(&self, now: Timestamp) -> Session {
        let Carry { header, patch, .. } = &self.carry;
        let header = header.as_ref();
        let of_header = |get: fn(&SessionHeader) -> Option<String>| header.and_then(get);
        let project_path = self.project_path().map(str::to_owned);
        let title = patch.title.clone().or_else(|| of_header(|header| header.title.clone()));
        let given = |text: Option<String>| text.filter(|text| !text.is_empty());
        let start = header.map(|header| header.start_time).or(self.carry.first_at).unwrap_or(now);
        let mut session = Session {
            session_id: self.id,
            short_id: None,
            title: given(title).or_else(|| self.carry.auto_title.clone()).unwrap_or_default(),
            description: given(patch.description.clone())
                .or_else(|| self.carry.auto_description.clone())
                .unwrap_or_default(),
            project_hash: project_path.as_deref().map(project_hash),
            project_name: project_path.as_deref().map(project_name),
            project_path,
            model: self.model().map(str::to_owned),
            provider: patch
                .provider
                .clone()
                .or_else(|| of_header(|header| header.provider.clone())),
            mode: self.mode(),
            context_size: self.context_size(),
            keep_alive_seconds: self.keep_alive_seconds(),
            allowed_servers: self.allowed_servers().to_vec(),
            options: self.options(),
            status: self.status(now),
            pinned: patch.pinned.unwrap_or_default(),
            start_time: start,
            last_activity: self.carry.last_activity.unwrap_or(start),
            message_count: self.carry.message_count,
            tool_call_count: self.carry.tool_call_count,
            token_count: self.carry.token_count,
            compression_count: self.compression_count(),
            forked_from: header.and_then(|header| header.forked_from),
            imported_from: of_header(|header| header.imported_from.clone()),
            damaged_records: self.n_damaged(),
            draft: false,
            metadata: self.metadata(),
            shortened: Vec::new(),
        };
        limits::shorten_session(&mut session);
        session
    }

    fn metadata(&self) -> Meta {
        let header = self.carry.header.as_ref().map(|header| &header.metadata);
        changed(header, &self.carry.patch.metadata)
    }

    /// Returns the options of each answer.
    pub(crate) fn options(&self) -> Meta {
        let header = self.carry.header.as_ref().map(|header| &header.options);
        changed(header, &self.carry.patch.options)
    }

    fn status(&self, now: Timestamp) -> SessionStatus {
        let carry = &self.carry;
        let idle_ms = now.unix_ms() - carry.last_activity.unwrap_or(now).unix_ms();
        if self.n_damaged() > 0 {
            SessionStatus::Corrupted
        } else if carry.patch.archived.unwrap_or_default() {
            SessionStatus::Archived
        } else if carry.closed || idle_ms > IDLE_CLOSE_MS {
            SessionStatus::Closed
        } else {
            SessionStatus::Active
        }
    }
}

impl ScanSink for SessionState {
    fn wants_body(&self, kind: RecordKind, role: Option<Role>) -> bool {
        let is_folded = matches!(
            kind,
            RecordKind::Session
                | RecordKind::Meta
                | RecordKind::ModeChange
                | RecordKind::Leaf
                | RecordKind::Close
        );
        let may_name_session = kind == RecordKind::Message && role == Some(Role::User);
        is_folded || (may_name_session && self.carry.auto_title.is_none())
    }

    fn receive(&mut self, item: ScanItem) {
        match item {
            ScanItem::Record(scanned) => self.apply(&scanned),
            ScanItem::Damaged(offset) => self.apply_hole(IndexEntry::damaged(offset)),
        }
    }
}

/// Returns the id of a project: the first 16 hex digits of blake3 over the canonical path of its directory.
pub(crate) fn project_hash(path: &str) -> String {
    blake3::hash(path.as_bytes()).to_hex()[..16].to_owned()
}

/// Returns the name of a project: the last component of its path.
fn project_name(path: &str) -> String {
    let last = Path::new(path).file_name();
    last.map_or_else(|| path.to_owned(), |name| name.to_string_lossy().into_owned())
}

/// Returns the position of a record in the list of entries.
fn index(seq: Seq) -> usize {
    usize::try_from(seq.0).unwrap_or(usize::MAX)
}

/// Returns values with changes, of which null removes one.
fn changed(values: Option<&Meta>, changes: &Meta) -> Meta {
    let mut values = values.cloned().unwrap_or_default();
    for (name, value) in changes {
        if value.is_null() {
            values.remove(name);
        } else {
            values.insert(name.clone(), value.clone());
        }
    }
    values
}

/// Returns `old` with every field that `new` sets.
fn merged(old: MetaPatch, new: MetaPatch) -> MetaPatch {
    let mut metadata = old.metadata;
    metadata.extend(new.metadata);
    let mut options = old.options;
    options.extend(new.options);
    MetaPatch {
        title: new.title.or(old.title),
        description: new.description.or(old.description),
        model: new.model.or(old.model),
        provider: new.provider.or(old.provider),
        system_prompt: new.system_prompt.or(old.system_prompt),
        context_size: new.context_size.or(old.context_size),
        keep_alive_seconds: new.keep_alive_seconds.or(old.keep_alive_seconds),
        allowed_servers: new.allowed_servers.or(old.allowed_servers),
        options,
        project_path: new.project_path.or(old.project_path),
        pinned: new.pinned.or(old.pinned),
        archived: new.archived.or(old.archived),
        metadata,
    }
}

/// Returns the beginning of a text on one line without control sequences, or `None` if it has no visible text.
fn excerpt(text: &str, max_chars: usize) -> Option<String> {
    let end = (0..=EXCERPT_BYTES.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    let text = sanitize::text(&text[..end.unwrap_or_default()]);
    let mut line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((cut, _)) = line.char_indices().nth(max_chars) {
        line.truncate(cut);
        line.push('\u{2026}');
    }
    (!line.is_empty()).then_some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_is_named_after_the_first_paragraph() {
        let named = |text: &str| {
            let mut state = SessionState::new(SessionId::from_uuid(uuid::Uuid::nil()));
            let message = Message::text(Role::User, text, Timestamp::from_unix_ms(0));
            assert_eq!(state.name_after(&message), state.carry.auto_title.is_some());
            (state.carry.auto_title, state.carry.auto_description)
        };
        let (title, description) =
            named("\n\nExplain @a.rs,\nplease.\n\na.rs:\n```\nfn a() {}\n```");
        assert_eq!(title.as_deref(), Some("Explain @a.rs, please."));
        assert!(description.unwrap().starts_with("Explain @a.rs, please. a.rs: ```"));
        assert_eq!(named(" \n\n"), (None, None));
    }

    #[test]
    fn project_is_named_by_the_last_component_of_its_path() {
        assert_eq!(project_name("/home/ada/engine"), "engine");
        assert_eq!(project_name("/"), "/");
        assert_eq!(project_hash("/home/ada/engine").len(), 16);
        assert_ne!(project_hash("/a"), project_hash("/b"));
    }
}
