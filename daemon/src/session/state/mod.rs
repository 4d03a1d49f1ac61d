//! What a session is: the fold of its log.
//!
//! Live appends and replay go through the same [`SessionState::apply`], so that a restart changes nothing.
//! Session-scope records fold in order; path-scope records count only between the root and the active leaf.

mod view;

pub(crate) use view::IDLE_CLOSE_MS;

use std::collections::HashMap;

use ollm_protocol::content::{
    MetaPatch, ModeChange, RecordBody, RecordKind, Role, Scope, SessionHeader, SessionUsage,
};
use ollm_protocol::{Seq, SessionId, Timestamp, sanitize};
use serde::{Deserialize, Serialize};

use super::index::{Entry, KeyEntry, OpenHint, ScanPoint};
use super::log::recover::{Fold, Found};
use super::log::{Scanned, folds_body};

/// Characters of the first user message that make a title.
const TITLE_CHARS: usize = 60;
/// Bytes of a message that are looked at for them; what begins with more white space has no title.
const LOOK_BYTES: usize = 8 * 1024;
/// Characters of the first user message that make a description.
const DESCRIPTION_CHARS: usize = 200;

/// The fold of one log up to a point.
#[derive(Debug)]
pub(crate) struct SessionState {
    id: SessionId,
    entries: Vec<Entry>,
    keys: Vec<KeyEntry>,
    by_key: HashMap<[u8; 16], u32>,
    point: ScanPoint,
    carry: Carry,
}

/// The part of the fold that is not one entry a record; small, stored by the catalog as JSON.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Carry {
    header: Option<SessionHeader>,
    create_key: Option<([u8; 16], [u8; 8])>,
    /// What was set since the header; later values win.
    patch: MetaPatch,
    auto_title: Option<String>,
    auto_description: Option<String>,
    leaf: Option<Seq>,
    mode_changes: Vec<(Seq, ModeChange)>,
    closed: bool,
    last_activity: Option<Timestamp>,
    last_at: Option<Timestamp>,
    first_at: Option<Timestamp>,
    message_count: u64,
    tool_call_count: u64,
    token_count: u64,
    compaction_records: u64,
    damaged: u64,
    /// Found while reading. Not stored, as the marks of their entries are not: it is found again.
    #[serde(skip)]
    unreadable: u64,
}

impl SessionState {
    /// The state of an empty log.
    pub(crate) fn new(id: SessionId) -> Self {
        Self {
            id,
            entries: Vec::new(),
            keys: Vec::new(),
            by_key: HashMap::new(),
            point: ScanPoint::default(),
            carry: Carry::default(),
        }
    }

    /// The state that a catalog stored; `None` when the parts do not belong together.
    pub(crate) fn from_hint(id: SessionId, hint: OpenHint) -> Option<Self> {
        let carry = serde_json::from_slice(&hint.carry).ok()?;
        if hint.entries.len() as u64 != hint.point.records {
            return None;
        }
        let by_key = hint.keys.iter().zip(0..).map(|(key, at)| (key.key, at)).collect();
        let OpenHint { point, entries, keys, .. } = hint;
        Some(Self { id, entries, keys, by_key, point, carry })
    }

    /// The part of the state that a catalog stores beside entries and keys.
    pub(crate) fn carry_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(&self.carry).unwrap_or_default()
    }

    /// Takes the next record; its number must be the number of records so far.
    pub(crate) fn apply(&mut self, scanned: &Scanned) {
        let Scanned { seq, at, mut entry, key, ref body } = *scanned;
        debug_assert_eq!(seq.0, self.entries.len() as u64, "records come in order");
        let Some(kind) = entry.kind() else { return self.apply_hole(entry) };
        let carry = &mut self.carry;
        carry.first_at.get_or_insert(at);
        carry.last_at = carry.last_at.max(Some(at));
        // A context that was built, or the mark before it, is nothing that happened in the conversation.
        if !matches!(kind, RecordKind::Epoch | RecordKind::Snapshot) {
            carry.last_activity = carry.last_activity.max(Some(at));
            carry.closed = false;
        }
        if kind.scope() == Scope::Path {
            if let Some(parent) = entry.parent()
                && self.entries.get(index(parent)).is_none_or(Entry::is_damaged)
            {
                entry = entry.reparented(self.nearest_before(seq));
            }
            self.carry.leaf = Some(seq);
        }
        self.count(kind, &entry);
        if let Some(key) = key {
            self.note_key(key, kind);
        }
        self.entries.push(entry);
        if let Some(body) = body {
            self.fold(seq, body);
        }
    }

    fn apply_hole(&mut self, entry: Entry) {
        self.entries.push(entry);
        self.carry.damaged += 1;
    }

    fn note_key(&mut self, key: KeyEntry, kind: RecordKind) {
        if kind == RecordKind::Session {
            self.carry.create_key = Some((key.key, key.payload));
            return;
        }
        let at = u32::try_from(self.keys.len()).unwrap_or(u32::MAX);
        self.keys.push(key);
        self.by_key.insert(key.key, at);
    }

    fn count(&mut self, kind: RecordKind, entry: &Entry) {
        let carry = &mut self.carry;
        match kind {
            RecordKind::Message => {
                carry.message_count += 1;
            }
            RecordKind::ToolCall => carry.tool_call_count += 1,
            RecordKind::Compaction => {
                carry.compaction_records += 1;
                return;
            }
            _ => return,
        }
        carry.token_count += u64::from(entry.tokens);
        // Who goes on with a session that was put away has it back.
        carry.patch.archived = None;
    }

    fn fold(&mut self, seq: Seq, body: &RecordBody) {
        let carry = &mut self.carry;
        match body {
            RecordBody::Session(header) => carry.header = Some(header.clone()),
            RecordBody::Meta(patch) => merge(&mut carry.patch, patch.clone()),
            RecordBody::ModeChange(change) => carry.mode_changes.push((seq, change.clone())),
            RecordBody::Leaf(moved) => carry.leaf = moved.to,
            RecordBody::Close(_) => carry.closed = true,
            RecordBody::Message(message)
                if message.role == Role::User && carry.auto_title.is_none() =>
            {
                let text = message.plain_text();
                carry.auto_title = beginning(&text, TITLE_CHARS);
                carry.auto_description = beginning(&text, DESCRIPTION_CHARS);
            }
            _ => {}
        }
    }

    /// The newest readable path-scope record before `seq`.
    fn nearest_before(&self, seq: Seq) -> Option<Seq> {
        let before = &self.entries[..index(seq).min(self.entries.len())];
        let at = before
            .iter()
            .rposition(|entry| entry.kind().is_some_and(|kind| kind.scope() == Scope::Path))?;
        Some(Seq(at as u64))
    }

    /// Notes how far the log is whole.
    pub(crate) fn set_point(&mut self, point: ScanPoint) {
        self.point = point;
    }

    /// Notes damage that took no number with it.
    pub(crate) fn note_damage(&mut self, places: u64) {
        self.carry.damaged = self.carry.damaged.max(places);
    }

    /// Notes that a record that was whole cannot be read any more; false when that was known.
    pub(super) fn note_unreadable(&mut self, seq: Seq) -> bool {
        let Some(entry) = self.entries.get_mut(index(seq)).filter(|entry| !entry.is_damaged())
        else {
            return false;
        };
        entry.mark_unreadable();
        self.carry.unreadable += 1;
        true
    }

    /// How far the log is whole.
    pub(crate) const fn point(&self) -> ScanPoint {
        self.point
    }

    /// The session.
    pub(crate) const fn id(&self) -> SessionId {
        self.id
    }

    /// One entry a record, by number.
    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The entry of one record.
    pub(crate) fn entry(&self, seq: Seq) -> Option<Entry> {
        self.entries.get(index(seq)).copied()
    }

    /// The idempotency keys, in the order of their use.
    pub(crate) fn keys(&self) -> &[KeyEntry] {
        &self.keys
    }

    /// The use of one key.
    pub(crate) fn key(&self, key: &[u8; 16]) -> Option<KeyEntry> {
        self.by_key.get(key).and_then(|at| self.keys.get(*at as usize)).copied()
    }

    /// The key of `session.create`.
    pub(crate) fn create_key(&self) -> Option<KeyEntry> {
        self.carry.create_key.map(|(key, payload)| KeyEntry { key, payload, seq: 0 })
    }

    /// The active leaf.
    pub(crate) const fn leaf(&self) -> Option<Seq> {
        self.carry.leaf
    }

    /// The numbers from the root to the active leaf, oldest first.
    ///
    /// A walk that damage turned into a loop ends, because a parent always has a lower number.
    pub(crate) fn path(&self) -> Vec<Seq> {
        self.path_to(self.carry.leaf)
    }

    /// The numbers from the root to a record, oldest first.
    pub(crate) fn path_to(&self, leaf: Option<Seq>) -> Vec<Seq> {
        let mut path = Vec::new();
        let mut next = leaf;
        while let Some(seq) = next {
            path.push(seq);
            next = self.entry(seq).and_then(|entry| entry.parent()).filter(|parent| *parent < seq);
        }
        path.reverse();
        path
    }

    /// Whether every path-scope record lies on the active path, which spares walks their bookkeeping.
    pub(crate) fn is_on_path(&self, seq: Seq, path: &[Seq]) -> bool {
        match self.entry(seq).and_then(|entry| entry.kind()) {
            Some(kind) if kind.scope() == Scope::Path => path.binary_search(&seq).is_ok(),
            _ => true,
        }
    }

    /// The newest record of a kind on the active path.
    pub(crate) fn newest_on_path(&self, wanted: RecordKind) -> Option<Seq> {
        self.newest_where(self.carry.leaf, |entry| entry.kind() == Some(wanted))
    }

    /// The newest record on the path to a record, itself included, of which something is true.
    pub(crate) fn newest_where(
        &self,
        leaf: Option<Seq>,
        wanted: impl Fn(&Entry) -> bool,
    ) -> Option<Seq> {
        let mut next = leaf;
        while let Some(seq) = next {
            let entry = self.entry(seq)?;
            if wanted(&entry) {
                return Some(seq);
            }
            next = entry.parent().filter(|parent| *parent < seq);
        }
        None
    }

    /// The model in force.
    pub(crate) fn model(&self) -> Option<&str> {
        let header = self.carry.header.as_ref();
        self.carry.patch.model.as_deref().or_else(|| header?.model.as_deref())
    }

    /// The system prompt in force.
    pub(crate) fn system_prompt(&self) -> Option<&str> {
        let carry = &self.carry;
        let set = carry.patch.system_prompt.as_deref();
        set.or_else(|| carry.header.as_ref()?.system_prompt.as_deref())
            .filter(|text| !text.is_empty())
    }

    /// The context window in force, in tokens.
    pub(crate) fn context_size(&self) -> Option<u32> {
        let header = self.carry.header.as_ref();
        self.carry.patch.context_size.or_else(|| header?.context_size)
    }

    /// The time of the newest record, activity or not; the next one has none before it.
    pub(crate) fn last_at(&self) -> Option<Timestamp> {
        self.carry.last_at.max(self.carry.last_activity)
    }

    /// The totals that replies carry.
    pub(crate) const fn usage(&self) -> SessionUsage {
        SessionUsage {
            message_count: self.carry.message_count,
            token_count: self.carry.token_count,
        }
    }
}

impl Fold for SessionState {
    fn wants(&self, kind: RecordKind, role: Option<Role>) -> bool {
        let makes_title = role == Some(Role::User) && self.carry.auto_title.is_none();
        folds_body(kind) || makes_title
    }

    fn take(&mut self, found: Found) {
        match found {
            Found::Record(scanned) => self.apply(&scanned),
            Found::Damaged(offset) => self.apply_hole(Entry::damaged(offset)),
        }
    }
}

/// The position of a record in the list of entries.
fn index(seq: Seq) -> usize {
    usize::try_from(seq.0).unwrap_or(usize::MAX)
}

/// Lets the later patch win field by field.
fn merge(into: &mut MetaPatch, patch: MetaPatch) {
    let MetaPatch {
        title,
        description,
        model,
        provider,
        system_prompt,
        context_size,
        project_path,
        pinned,
        archived,
        metadata,
    } = patch;
    fn later<T>(into: &mut Option<T>, value: Option<T>) {
        if value.is_some() {
            *into = value;
        }
    }
    later(&mut into.title, title);
    later(&mut into.description, description);
    later(&mut into.model, model);
    later(&mut into.provider, provider);
    later(&mut into.system_prompt, system_prompt);
    later(&mut into.context_size, context_size);
    later(&mut into.project_path, project_path);
    later(&mut into.pinned, pinned);
    later(&mut into.archived, archived);
    into.metadata.extend(metadata);
}

/// The beginning of a text on one line, harmless to show; `None` when there is nothing to show.
fn beginning(text: &str, chars: usize) -> Option<String> {
    let end = (0..=LOOK_BYTES.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    let text = sanitize::text(&text[..end.unwrap_or_default()]);
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    if let Some((cut, _)) = line.char_indices().nth(chars) {
        line.truncate(cut);
        line.push('\u{2026}');
    }
    (!line.is_empty()).then_some(line)
}
