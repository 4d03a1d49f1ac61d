//! The fold as others see it: the session of lists and replies.

use ollm_protocol::Timestamp;
use ollm_protocol::content::{Meta, RecordKind, Session, SessionHeader, SessionStatus};

use super::SessionState;
use crate::session::project;

/// A session at rest for this long counts as closed.
pub(crate) const IDLE_CLOSE_MS: i64 = 24 * 60 * 60 * 1000;

impl SessionState {
    /// The mode that the records of a path left in force.
    pub(crate) fn mode_on(&self, on_path: impl Fn(ollm_protocol::Seq) -> bool) -> Option<String> {
        let header = self.carry.header.as_ref();
        let mut changes = self.carry.mode_changes.iter().rev();
        let changed = changes.find(|(seq, _)| on_path(*seq)).map(|(_, change)| change.to.clone());
        changed.or_else(|| header.and_then(|header| header.mode.clone()))
    }

    /// The mode in force.
    pub(crate) fn mode(&self) -> Option<String> {
        let path = if self.carry.mode_changes.is_empty() { Vec::new() } else { self.path() };
        self.mode_on(|seq| path.binary_search(&seq).is_ok())
    }

    /// The directory of its project, as a canonical path.
    pub(crate) fn project_path(&self) -> Option<&str> {
        let header = self.carry.header.as_ref();
        self.carry.patch.project_path.as_deref().or_else(|| header?.project_path.as_deref())
    }

    /// The session as lists show it; `now` decides whether it is at rest.
    pub(crate) fn summary(&self, now: Timestamp) -> Session {
        let carry = &self.carry;
        let header = carry.header.as_ref();
        let patch = &carry.patch;
        let of_header = |get: fn(&SessionHeader) -> Option<String>| header.and_then(get);
        let project_path = self.project_path().map(str::to_owned);
        let title = patch.title.clone().or_else(|| of_header(|header| header.title.clone()));
        let set = |text: Option<String>| text.filter(|text| !text.is_empty());
        let start = header.map(|header| header.start_time).or(carry.first_at).unwrap_or(now);
        Session {
            session_id: self.id,
            title: set(title).or_else(|| carry.auto_title.clone()).unwrap_or_default(),
            description: set(patch.description.clone())
                .or_else(|| carry.auto_description.clone())
                .unwrap_or_default(),
            project_hash: project_path.as_deref().map(project::hash),
            project_name: project_path.as_deref().map(project::name),
            project_path,
            model: patch.model.clone().or_else(|| of_header(|header| header.model.clone())),
            provider: patch
                .provider
                .clone()
                .or_else(|| of_header(|header| header.provider.clone())),
            mode: self.mode(),
            context_size: self.context_size(),
            status: self.status(now),
            pinned: patch.pinned.unwrap_or_default(),
            start_time: start,
            last_activity: carry.last_activity.unwrap_or(start),
            message_count: carry.message_count,
            tool_call_count: carry.tool_call_count,
            token_count: carry.token_count,
            compression_count: self.compression_count(),
            forked_from: header.and_then(|header| header.forked_from),
            imported_from: of_header(|header| header.imported_from.clone()),
            damaged_records: carry.damaged + carry.unreadable,
            draft: false,
            metadata: self.metadata(),
        }
    }

    fn metadata(&self) -> Meta {
        let header = self.carry.header.as_ref();
        let mut metadata = header.map(|header| header.metadata.clone()).unwrap_or_default();
        for (name, value) in &self.carry.patch.metadata {
            if value.is_null() {
                metadata.remove(name);
            } else {
                metadata.insert(name.clone(), value.clone());
            }
        }
        metadata
    }

    /// Compactions on the active path.
    pub(crate) fn compression_count(&self) -> u64 {
        let mut count = 0;
        if self.carry.compaction_records == 0 {
            return 0;
        }
        let mut next = self.newest_on_path(RecordKind::Compaction);
        while let Some(seq) = next {
            let Some(entry) = self.entry(seq) else { break };
            if entry.kind() == Some(RecordKind::Compaction) {
                count += 1;
            }
            next = entry.parent().filter(|parent| *parent < seq);
        }
        count
    }

    fn status(&self, now: Timestamp) -> SessionStatus {
        let carry = &self.carry;
        let rest_ms = now.unix_ms() - carry.last_activity.unwrap_or(now).unix_ms();
        if carry.damaged + carry.unreadable > 0 {
            SessionStatus::Corrupted
        } else if carry.patch.archived.unwrap_or_default() {
            SessionStatus::Archived
        } else if carry.closed || rest_ms > IDLE_CLOSE_MS {
            SessionStatus::Closed
        } else {
            SessionStatus::Active
        }
    }
}
