//! The path of a session as a build sees it: light values of the records, the units that no cut separates, and the
//! contents of the records, which are read when a build needs them, each at most once.

use std::collections::HashMap;
use std::ops::{ControlFlow, Range};

use ollm_protocol::Seq;
use ollm_protocol::content::{HeadItem, RecordBody, RecordKind, Role};

use crate::session::SessionError;

/// Maximum number of records of one read: enough to make its fixed cost small, few enough to stop early.
const BATCH_RECORDS: usize = 64;
/// Finish reasons of answers that were cut off.
const INCOMPLETE: &[&str] = &["canceled", "timeout", "interrupted"];

/// A record on the path from the root to the active leaf, with the values that planning needs.
///
/// A damaged record whose kind is lost is a `Message` without a role: it is listed as omitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PathItem {
    pub seq: Seq,
    pub kind: RecordKind,
    /// The role of a message.
    pub role: Option<Role>,
    /// Tokens that the record costs in a context, as counted when it was recorded.
    pub tokens: u32,
    /// Whether an assistant message calls tools.
    pub calls_tools: bool,
    /// Whether a custom record has a text for the context, or a compaction was made by another program and is a note.
    pub in_context: bool,
}

/// The part that a record plays in a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PathRole {
    /// A turn of the user, or of a client in the user's place.
    User,
    /// A turn of the model.
    Assistant,
    /// The result of a tool.
    ToolResult,
    /// A text that joins the next user turn.
    Note,
    /// The record never enters a context.
    Outside,
}

impl PathItem {
    pub(super) const fn path_role(&self) -> PathRole {
        match (self.kind, self.role) {
            (RecordKind::Message, Some(Role::User)) => PathRole::User,
            (RecordKind::Message, Some(Role::Assistant)) => PathRole::Assistant,
            (RecordKind::Message, Some(Role::Tool)) | (RecordKind::ToolCall, _) => {
                PathRole::ToolResult
            }
            (RecordKind::Message, _) | (RecordKind::Delta | RecordKind::BranchSummary, _) => {
                PathRole::Note
            }
            (RecordKind::Compaction, _) if self.in_context => PathRole::Note,
            (RecordKind::Custom, _) if self.in_context => PathRole::User,
            _ => PathRole::Outside,
        }
    }

    /// Whether the record can enter a context.
    pub(super) const fn enters(&self) -> bool {
        !matches!(self.path_role(), PathRole::Outside)
    }

    pub(super) const fn is_message(&self) -> bool {
        matches!(self.kind, RecordKind::Message)
    }

    pub(crate) const fn is_user_message(&self) -> bool {
        matches!((self.kind, self.role), (RecordKind::Message, Some(Role::User)))
    }

    /// Whether the record may hold the arguments of a tool call.
    pub(super) const fn may_call(&self) -> bool {
        self.calls_tools || matches!(self.kind, RecordKind::ToolCall)
    }
}

/// Records that stay together, as indices into the path.
///
/// An assistant message that calls tools and everything up to the next turn (its results, and notes between them)
/// are one unit; any other record is a unit with the records behind it that never enter a context.
pub(super) type Unit = Range<usize>;

/// Splits the whole path into units, in order.
pub(super) fn split_units(path: &[PathItem]) -> Vec<Unit> {
    let mut units: Vec<Unit> = Vec::new();
    let mut has_open_call = false;
    for (at, item) in path.iter().enumerate() {
        let joins = match item.path_role() {
            PathRole::User | PathRole::Assistant => false,
            PathRole::ToolResult | PathRole::Note => has_open_call,
            PathRole::Outside => true,
        };
        match units.last_mut() {
            Some(unit) if joins => unit.end = at + 1,
            _ => units.push(at..at + 1),
        }
        match item.path_role() {
            PathRole::User => has_open_call = false,
            PathRole::Assistant => has_open_call = item.calls_tools,
            PathRole::ToolResult | PathRole::Note | PathRole::Outside => {}
        }
    }
    units
}

/// Returns a head item that shows all of some consecutive records, or `None` if there are no records.
pub(super) fn whole_range(path: &[PathItem]) -> Option<HeadItem> {
    Some(HeadItem::Range { from: path.first()?.seq, to: path.last()?.seq })
}

/// Returns the number of turns and results among records that a context leaves out.
pub(super) fn n_turns(path: &[PathItem]) -> usize {
    path.iter().filter(|item| item.enters() && item.path_role() != PathRole::Note).count()
}

/// Returns the tokens of the newest turns of a path, `n` at most. A turn begins with a message of the user.
pub(crate) fn newest_tokens(path: &[PathItem], n: usize) -> u64 {
    let mut starts = path.iter().enumerate().rev().filter(|(_, item)| item.is_user_message());
    let start = starts.nth(n - 1).map_or(0, |(at, _)| at);
    path[start..].iter().filter(|item| item.enters()).map(|item| u64::from(item.tokens)).sum()
}

/// Returns the indices of the records from one number to another, both included.
pub(super) fn between(path: &[PathItem], from: Seq, to: Seq) -> Range<usize> {
    let start = path.partition_point(|item| item.seq < from);
    let end = path.partition_point(|item| item.seq <= to);
    start..end.max(start)
}

/// The records of a context could not be read at all, for example because their session is being deleted.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(crate) struct ContentsError(#[from] pub(crate) SessionError);

/// A source of the contents of records.
pub(crate) trait Contents {
    /// Returns the contents of some records in the same order, `None` for a damaged record.
    fn bodies(&self, seqs: &[Seq]) -> Result<Vec<Option<RecordBody>>, ContentsError>;
}

/// Reads records in batches, without damaged ones, until `visit` breaks.
pub(super) fn for_each_record(
    contents: &dyn Contents,
    records: &[Seq],
    mut visit: impl FnMut(Seq, &RecordBody) -> ControlFlow<()>,
) -> Result<(), ContentsError> {
    for batch in records.chunks(BATCH_RECORDS) {
        let bodies = contents.bodies(batch)?;
        let read = batch.iter().zip(bodies).filter_map(|(seq, body)| Some((*seq, body?)));
        for (seq, body) in read {
            if visit(seq, &body).is_break() {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Returns whether the user message at an index got a complete answer before the next turn of the user.
///
/// Other records got one too: only questions are marked as unanswered.
pub(super) fn is_answered(
    path: &[PathItem],
    at: usize,
    bodies: &mut Bodies<'_>,
) -> Result<bool, ContentsError> {
    if !path[at].is_user_message() {
        return Ok(true);
    }
    let later = path[at + 1..].iter().take_while(|item| item.path_role() != PathRole::User);
    let answer = later.filter(|item| item.path_role() == PathRole::Assistant).last();
    let Some(answer) = answer.filter(|answer| !answer.calls_tools) else { return Ok(false) };
    bodies.load(std::slice::from_ref(answer))?;
    let Some(RecordBody::Message(message)) = bodies.get(answer.seq) else { return Ok(true) };
    let reason = message.finish_reason.as_deref().unwrap_or_default();
    Ok(!INCOMPLETE.contains(&reason))
}

/// The contents that one build has read so far.
pub(super) struct Bodies<'a> {
    source: &'a dyn Contents,
    read: HashMap<Seq, Option<RecordBody>>,
}

impl<'a> Bodies<'a> {
    pub(super) fn new(source: &'a dyn Contents) -> Self {
        Self { source, read: HashMap::new() }
    }

    /// Reads the records of `items` that enter a context and were not read before.
    pub(super) fn load(&mut self, items: &[PathItem]) -> Result<(), ContentsError> {
        let missing: Vec<Seq> = items
            .iter()
            .filter(|item| item.enters() && !self.read.contains_key(&item.seq))
            .map(|item| item.seq)
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        let mut bodies = self.source.bodies(&missing)?;
        bodies.resize_with(missing.len(), || None);
        self.read.extend(missing.into_iter().zip(bodies));
        Ok(())
    }

    /// Returns the contents of a record that was loaded and is not damaged.
    pub(super) fn get(&self, seq: Seq) -> Option<&RecordBody> {
        self.read.get(&seq).and_then(Option::as_ref)
    }
}

/// Returns the number of records to read at once, from the first on: together they exceed `tokens` by one record at most.
pub(super) fn batch_len<'i>(items: impl Iterator<Item = &'i PathItem>, tokens: u64) -> usize {
    let mut sum = 0;
    let mut n_items = 0;
    for item in items.take(BATCH_RECORDS) {
        n_items += 1;
        sum += u64::from(item.tokens);
        if sum > tokens {
            break;
        }
    }
    n_items
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A path by letters: `u` user, `a` assistant, `c` assistant that calls, `t` tool message, `r` tool call record,
    /// `d` delta, `.` a record that never enters a context.
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
                in_context: false,
            }
        };
        kinds.chars().enumerate().map(item).collect()
    }

    #[test]
    fn calls_and_their_results_are_one_unit() {
        let check = |kinds: &str, expect: &[&str]| {
            let units = split_units(&path(kinds));
            let got: Vec<_> = units.iter().map(|unit| &kinds[unit.clone()]).collect();
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
    fn between_returns_the_range_on_the_path() {
        let path = path("uuuuu");
        assert_eq!(between(&path, Seq(1), Seq(3)), 1..4);
        assert_eq!(between(&path, Seq(4), Seq(99)), 4..5);
        assert_eq!(between(&path, Seq(7), Seq(9)), 5..5);
        assert!(between(&path, Seq(3), Seq(1)).is_empty());
    }
}
