//! The content of a snapshot file: what the context of a session held at a leaf, with every message in full.
//!
//! The cost depends on the context and not on the session: records that the head left out are not read.

use std::collections::BTreeSet;
use std::sync::Arc;

use ollm_protocol::content::{
    Goal, GoalStack, GoalStatus, HeadItem, Part, ReasoningStorage, ReasoningTrace, Record,
    RecordBody, RecordKind, Role, Session, SnapshotDocument, SnapshotMessage, SnapshotMetadata,
    SnapshotToolCall,
};
use ollm_protocol::{Seq, SessionId, sanitize};

use crate::app::context::inputs::{self, BuildLeaf, Inputs, request_like_last};
use crate::app::core::Core;
use crate::app::error::Result;
use crate::app::path::ActivePath;
use crate::app::schedule::TakenSnapshot;
use crate::context::PathItem;
use crate::session::document::{document_call, document_message};

/// The most characters of a summary that the daemon makes.
const SUMMARY_CHARS: usize = 100;
/// The bytes of a message that its summary is made from.
const SUMMARY_BYTES: usize = 4096;
/// The records behind a head that are still its context, in windows.
const MAX_GROWTH: u64 = 2;

/// Makes the content of the file of a snapshot. Blocks on the disk.
pub(super) fn document(
    core: &Arc<Core>,
    id: SessionId,
    taken: &TakenSnapshot,
) -> Result<SnapshotDocument> {
    let request = request_like_last(core, id);
    let inputs = inputs::load(core, &request, None, BuildLeaf::Earlier(taken.mark.leaf))?;
    let (seqs, tokens) = shown_records(&inputs);
    let records = core.sessions.records(id, &seqs)?.into_iter().flatten();
    let session = core.summary(id)?;
    let mut document = empty(id, taken);
    let mut traces = Vec::new();
    for record in records {
        add_record(&mut document, &mut traces, record);
    }
    if document.summary.is_empty() {
        document.summary = summary_of(&document);
    }
    let goals = inputs.goals();
    document.goal_stack = Some(GoalStack { goals: goals.goals().to_vec() });
    document.checkpoints.clone_from(&inputs.checkpoints);
    document.context_entries = inputs.context_entries().to_vec();
    document.pins = inputs.pins().to_vec();
    document.mode = inputs.mode().map(str::to_owned);
    let whole: u64 = inputs.path.items.iter().map(|item| u64::from(item.tokens)).sum();
    document.token_count = tokens;
    let thinking: u64 =
        traces.iter().map(|one| u64::from(inputs.counter.count_user_text(&one.text))).sum();
    document.metadata = SnapshotMetadata {
        compression_ratio: ratio(document.token_count, whole, inputs.checkpoints.is_empty()),
        is_reasoning_model: !traces.is_empty(),
        total_thinking_tokens: thinking,
        ..metadata(core, &inputs, taken, session)
    };
    document.reasoning_storage = (!traces.is_empty()).then_some(ReasoningStorage { traces });
    Ok(document)
}

/// Returns the metadata besides what the messages tell.
fn metadata(
    core: &Core,
    inputs: &Inputs,
    taken: &TakenSnapshot,
    session: Session,
) -> SnapshotMetadata {
    let goals = inputs.goals();
    let is_completed = |goal: &&Goal| goal.status == GoalStatus::Completed;
    SnapshotMetadata {
        // Not the server of an alias that the session uses now.
        model: core.model_or_default(session.model).unwrap_or_default(),
        context_size: u64::from(inputs.window.size),
        total_user_messages: inputs.path.items.iter().filter(|item| item.is_user_message()).count()
            as u64,
        active_goal_id: goals.active().map(|goal| goal.id),
        total_goals_completed: goals.goals().iter().filter(is_completed).count() as u64,
        total_checkpoints: inputs.checkpoints.len() as u64,
        reason: taken.mark.reason.clone(),
        pinned: taken.mark.pinned,
        seq: Some(taken.seq),
        leaf: taken.mark.leaf,
        system_prompt: inputs.system_prompt().map(str::to_owned),
        title: session.title,
        project_path: session.project_path,
        allowed_servers: session.allowed_servers,
        ..SnapshotMetadata::default()
    }
}

fn empty(id: SessionId, taken: &TakenSnapshot) -> SnapshotDocument {
    SnapshotDocument {
        version: Some(SnapshotDocument::VERSION),
        id: taken.mark.snapshot_id.to_string(),
        session_id: id,
        timestamp: Some(taken.at),
        token_count: 0,
        summary: taken.mark.summary.clone().unwrap_or_default(),
        user_messages: Vec::new(),
        archived_user_messages: Vec::new(),
        messages: Vec::new(),
        tool_calls: Vec::new(),
        goal_stack: None,
        reasoning_storage: None,
        checkpoints: Vec::new(),
        context_entries: Vec::new(),
        pins: Vec::new(),
        mode: None,
        records: Vec::new(),
        metadata: SnapshotMetadata::default(),
    }
}

/// Returns the records of which the context shows anything of the content, with the record of its head, and their tokens in
/// the context.
///
/// Plans no head: that reads every message of the user. Without a head that is in force, these are the newest records
/// that fit into the window, and the pinned ones.
fn shown_records(inputs: &Inputs) -> (Vec<Seq>, u64) {
    let path = &inputs.path;
    let window = u64::from(inputs.window.size);
    let sum = |items: &[PathItem]| items.iter().map(|item| u64::from(item.tokens)).sum::<u64>();
    if let Some((at, epoch)) = &inputs.epoch {
        let later = path.after(*at);
        let tokens = sum(later);
        // The context may have outgrown the window before a compaction; but without builds it can grow for ever.
        if tokens <= MAX_GROWTH * window {
            let mut shown = head_records(path, &epoch.head);
            shown.insert(*at);
            shown.extend(later.iter().map(|item| item.seq));
            return (shown.into_iter().collect(), epoch.head_tokens + tokens);
        }
    }
    let mut tokens = 0;
    let newest = path.items.iter().rev().take_while(|item| {
        // A message that is larger than the window is there nevertheless.
        let is_newest = tokens == 0;
        tokens += u64::from(item.tokens);
        is_newest || tokens <= window
    });
    let first = newest.last().map_or(Seq(u64::MAX), |item| item.seq);
    let from = path.items.partition_point(|item| item.seq < first);
    let mut shown: BTreeSet<Seq> = path.items[from..].iter().map(|item| item.seq).collect();
    shown.extend(inputs.pins());
    (shown.into_iter().collect(), sum(&path.items[from..]))
}

fn head_records(path: &ActivePath, head: &[HeadItem]) -> BTreeSet<Seq> {
    let mut shown = BTreeSet::new();
    for item in head {
        match item {
            HeadItem::Range { from, to } => {
                let first = path.items.partition_point(|item| item.seq < *from);
                let range = path.items[first..].iter().take_while(|item| item.seq <= *to);
                shown.extend(range.map(|item| item.seq));
            }
            HeadItem::Cut { seq, .. }
            | HeadItem::Stub { seq, .. }
            | HeadItem::Earlier { seq, .. }
            | HeadItem::Pinned { seq, .. } => drop(shown.insert(*seq)),
            HeadItem::Handle { .. } | HeadItem::Checkpoint { .. } | HeadItem::Block { .. } => {}
        }
    }
    shown
}

/// Adds a record to the list that its kind belongs to.
fn add_record(document: &mut SnapshotDocument, traces: &mut Vec<ReasoningTrace>, record: Record) {
    let seq = record.seq;
    match record.kind {
        RecordKind::Message | RecordKind::ToolCall => {}
        // Goals, entries, pins and the mode are in fields of their own, as they were in force.
        RecordKind::Compaction
        | RecordKind::Epoch
        | RecordKind::Delta
        | RecordKind::BranchSummary
        | RecordKind::Custom => {
            document.records.push(record);
            return;
        }
        _ => return,
    }
    match record.into_body() {
        Some(RecordBody::Message(mut message)) => {
            let parts = std::mem::take(&mut message.parts);
            for (part, content) in (0..).zip(parts) {
                match content {
                    Part::Thinking { text } => traces.push(ReasoningTrace { seq, part, text }),
                    other => message.parts.push(other),
                }
            }
            let is_user = message.role == Role::User;
            let message =
                SnapshotMessage { seq: Some(seq), message: document_message(message, true) };
            let list = if is_user { &mut document.user_messages } else { &mut document.messages };
            list.push(message);
        }
        Some(RecordBody::ToolCall(call)) => {
            let message_seq = call.message_seq;
            let call = document_call(call, true, None);
            document.tool_calls.push(SnapshotToolCall { seq, message_seq, call });
        }
        _ => {}
    }
}

/// Returns the beginning of the newest message of the user on one line.
fn summary_of(document: &SnapshotDocument) -> String {
    let text = document.user_messages.iter().rev().find_map(|message| {
        message.message.parts.iter().find_map(|part| match part {
            Part::Text { text } if !text.trim().is_empty() => Some(text),
            _ => None,
        })
    });
    let Some(text) = text else { return String::new() };
    let end = (0..=SUMMARY_BYTES.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    let mut line = sanitize::one_line(&text[..end.unwrap_or_default()]);
    if let Some((cut, _)) = line.char_indices().nth(SUMMARY_CHARS) {
        line.truncate(cut);
        line.push('\u{2026}');
    }
    line
}

#[expect(clippy::cast_precision_loss, reason = "token counts are small")]
fn ratio(tokens: u64, whole: u64, is_whole: bool) -> f64 {
    if is_whole || whole == 0 { 1.0 } else { tokens as f64 / whole as f64 }
}
