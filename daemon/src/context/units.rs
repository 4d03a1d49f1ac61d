//! The path of a session as light values, and the pieces of it that no cut may separate. Pure; reads no contents.

use ollm_protocol::Seq;
use ollm_protocol::content::{RecordKind, Role};

/// What planning must know of one record on the path from the root to the active leaf.
///
/// A damaged record whose kind is lost is a `Message` without a role: it is then listed as left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PathItem {
    /// The record.
    pub seq: Seq,
    /// What it is.
    pub kind: RecordKind,
    /// For a message: who said it.
    pub role: Option<Role>,
    /// Tokens that it costs in a context, as counted when it was recorded.
    pub tokens: u32,
    /// For an assistant message: it calls tools.
    pub calls_tools: bool,
    /// For a message: it has thinking parts.
    pub has_thinking: bool,
    /// For a custom record: it has a text for the context. For a compaction: another program made it, so it is no more
    /// than a note.
    pub in_context: bool,
}

/// What a record does to a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The person speaks, or a client for it.
    User,
    /// The model speaks.
    Assistant,
    /// What a tool gave back.
    Result,
    /// A text that joins the next user turn.
    Note,
    /// Nothing: it never enters.
    Outside,
}

impl PathItem {
    /// What the record does to the conversation.
    pub(super) const fn place(&self) -> Place {
        match (self.kind, self.role) {
            (RecordKind::Message, Some(Role::User)) => Place::User,
            (RecordKind::Message, Some(Role::Assistant)) => Place::Assistant,
            (RecordKind::Message, Some(Role::Tool)) | (RecordKind::ToolCall, _) => Place::Result,
            (RecordKind::Message, _) | (RecordKind::Delta | RecordKind::BranchSummary, _) => {
                Place::Note
            }
            (RecordKind::Compaction, _) if self.in_context => Place::Note,
            (RecordKind::Custom, _) if self.in_context => Place::User,
            _ => Place::Outside,
        }
    }

    /// Whether the record can enter a context.
    pub(super) const fn enters(&self) -> bool {
        !matches!(self.place(), Place::Outside)
    }

    /// Whether it is an utterance.
    pub(super) const fn is_message(&self) -> bool {
        matches!(self.kind, RecordKind::Message)
    }

    /// Whether it may say what a tool was called with.
    pub(super) const fn may_call(&self) -> bool {
        self.calls_tools || matches!(self.kind, RecordKind::ToolCall)
    }

    /// Whether it is something that a user said.
    pub(super) const fn is_user_message(&self) -> bool {
        matches!((self.kind, self.role), (RecordKind::Message, Some(Role::User)))
    }
}

/// Records that stay together: indices into the path, the end not included.
///
/// An assistant message that calls tools and everything up to the next turn (its results, and notes between them)
/// are one unit; any other record is one of its own, with the records behind it that never enter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unit {
    /// The first record.
    pub start: usize,
    /// After the last record.
    pub end: usize,
}

/// The path in units, in order; together they are the whole path.
pub(super) fn split(path: &[PathItem]) -> Vec<Unit> {
    let mut units: Vec<Unit> = Vec::new();
    let mut open = false;
    for (at, item) in path.iter().enumerate() {
        let joins = match item.place() {
            Place::User | Place::Assistant => false,
            Place::Result | Place::Note => open,
            Place::Outside => true,
        };
        match units.last_mut() {
            Some(unit) if joins => unit.end = at + 1,
            _ => units.push(Unit { start: at, end: at + 1 }),
        }
        match item.place() {
            Place::User => open = false,
            Place::Assistant => open = item.calls_tools,
            Place::Result | Place::Note | Place::Outside => {}
        }
    }
    units
}

/// The records of the path with numbers from one to another, both included.
pub(super) fn between(path: &[PathItem], from: Seq, to: Seq) -> std::ops::Range<usize> {
    let start = path.partition_point(|item| item.seq < from);
    let end = path.partition_point(|item| item.seq <= to);
    start..end.max(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `u` user, `a` assistant, `c` assistant that calls, `t` tool message, `r` tool call record, `d` delta, `.`
    /// something that never enters.
    fn path(kinds: &str) -> Vec<PathItem> {
        let item = |(at, kind)| {
            let (kind, role) = match kind {
                'u' => (RecordKind::Message, Some(Role::User)),
                'a' | 'c' => (RecordKind::Message, Some(Role::Assistant)),
                't' => (RecordKind::Message, Some(Role::Tool)),
                'r' => (RecordKind::ToolCall, None),
                'd' => (RecordKind::Delta, None),
                _ => (RecordKind::Usage, None),
            };
            PathItem {
                seq: Seq(at as u64),
                kind,
                role,
                tokens: 1,
                calls_tools: kinds.as_bytes()[at] == b'c',
                has_thinking: false,
                in_context: false,
            }
        };
        kinds.chars().enumerate().map(item).collect()
    }

    #[test]
    fn calls_and_results_are_one_unit() {
        let check = |kinds: &str, expect: &[&str]| {
            let units = split(&path(kinds));
            let got: Vec<_> = units.iter().map(|unit| &kinds[unit.start..unit.end]).collect();
            assert_eq!(got, expect, "{kinds}");
        };
        check("", &[]);
        check("ua", &["u", "a"]);
        check("uctta", &["u", "ctt", "a"]);
        check("uct.dra", &["u", "ct.dr", "a"]);
        check("ucut", &["u", "c", "u", "t"]);
        check("urr.a", &["u", "r", "r.", "a"]);
        check("..u", &["..", "u"]);
        check("udda", &["u", "d", "d", "a"]);
    }

    #[test]
    fn a_range_takes_what_lies_on_the_path() {
        let path = path("uuuuu");
        assert_eq!(between(&path, Seq(1), Seq(3)), 1..4);
        assert_eq!(between(&path, Seq(4), Seq(99)), 4..5);
        assert_eq!(between(&path, Seq(7), Seq(9)), 5..5);
        assert!(between(&path, Seq(3), Seq(1)).is_empty());
    }
}
