//! A new session from a snapshot file, for snapshots whose log is lost, and for files of other programs.
//!
//! The records of the file are written in their order with new numbers, and references between them follow. So the context
//! is that of the snapshot: its head with the checkpoints, what followed it, the goals, entries, pins and the mode.

use std::sync::Arc;

use ollm_protocol::content::{
    ContextEntryChange, ContextScope, Goal, GoalChange, GoalDecision, GoalSource, GoalStatus,
    GoalStep, Message, Part, PathRecords, Pin, RecordBody, Role, Session, SessionHeader,
    SnapshotDocument, SnapshotMessage, SnapshotToolCall, ToolCall,
};
use ollm_protocol::event::SnapshotRestoredData;
use ollm_protocol::limits::shorten_header;
use ollm_protocol::methods::snapshot::SnapshotRestoreResult;
use ollm_protocol::{Seq, SessionId, SnapshotId, Timestamp};

use crate::app::core::Core;
use crate::app::drafts::uncounted;
use crate::app::error::{AppError, Result};
use crate::goal::GoalState;
use crate::session::import::SeqMap;
use crate::session::{IdempotencyKey, NO_SERVER, NewRecord, NewSession, SessionError};
use crate::tokens::Counter;

/// Creates a session from a snapshot file, or returns the one that the same key created. Blocks on the disk.
///
/// **Errors**: `Invalid` for a file without messages; `Storage`.
pub(in crate::app) fn restore(
    core: &Arc<Core>,
    snapshot_id: SnapshotId,
    document: SnapshotDocument,
    key: Option<IdempotencyKey>,
    dry_run: bool,
) -> Result<SnapshotRestoreResult> {
    let from = document.session_id;
    let n_messages = (document.user_messages.len() + document.messages.len()) as u64;
    let added = PathRecords {
        records: n_messages + document.tool_calls.len() as u64,
        messages: n_messages,
        tool_calls: document.tool_calls.len() as u64,
        file_calls: 0,
        tokens: document.token_count,
    };
    let result = |session_id, session: Option<Session>, duplicate| SnapshotRestoreResult {
        snapshot_id,
        session_id,
        session,
        new_session: true,
        seq: None,
        leaf: None,
        saved_as: None,
        before: None,
        after: None,
        added,
        removed: PathRecords::default(),
        files: None,
        duplicate,
    };
    if dry_run {
        return Ok(result(from, None, false));
    }
    let _one_at_a_time = key.is_some().then(|| core.creating.lock());
    if let Some(key) = &key
        && let Some(session) = core.created_before(key)?
    {
        return Ok(result(session.session_id, Some(session), true));
    }
    let id = create(core, snapshot_id, document, key)?;
    core.publish(id, None, &SnapshotRestoredData { snapshot_id, from: Some(from) });
    Ok(result(id, Some(core.summary(id)?), false))
}

fn create(
    core: &Core,
    snapshot_id: SnapshotId,
    document: SnapshotDocument,
    key: Option<IdempotencyKey>,
) -> Result<SessionId> {
    let id = core.clock.session_id();
    let mut header = header(core, id, snapshot_id, &document);
    let now = match core
        .sessions
        .with(document.session_id, |live| live.state().allowed_servers().to_vec())
    {
        Err(SessionError::NotFound { .. }) => Vec::new(),
        now => now?,
    };
    header.allowed_servers = allowed_by_both(header.allowed_servers, now);
    let counter = core.counts.load(header.model.as_deref(), None, &[]);
    let records = records(document, &counter);
    if records.is_empty() {
        return Err(AppError::invalid("snapshotId", "the file has no messages"));
    }
    core.sessions.create(NewSession { header, key })?;
    core.sessions.append(id, records, None)?.wait()?;
    Ok(id)
}

/// Returns the servers that two lists allow; an empty list allows all.
fn allowed_by_both(mut one: Vec<String>, other: Vec<String>) -> Vec<String> {
    if one.is_empty() || other.is_empty() {
        one.extend(other);
        return one;
    }
    one.retain(|server| other.contains(server));
    if one.is_empty() { vec![NO_SERVER.to_owned()] } else { one }
}

fn header(
    core: &Core,
    id: SessionId,
    snapshot_id: SnapshotId,
    document: &SnapshotDocument,
) -> SessionHeader {
    let metadata = &document.metadata;
    let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let title = given(&metadata.title).or_else(|| given(&document.summary));
    let mut header = SessionHeader {
        project_path: metadata.project_path.clone(),
        model: given(&metadata.model),
        title: title.map(|title| format!("{title} (restored)")),
        system_prompt: metadata.system_prompt.clone(),
        context_size: u32::try_from(metadata.context_size)
            .ok()
            .filter(|size| crate::app::error::check_context_size(Some(*size)).is_ok()),
        allowed_servers: metadata.allowed_servers.clone(),
        mode: document.mode.clone(),
        imported_from: Some(format!("snapshot:{snapshot_id}")),
        ..SessionHeader::new(id, core.clock.now())
    };
    drop(shorten_header(&mut header));
    header
}

/// Returns the records of a file in their order, with the numbers that they get behind the header.
fn records(document: SnapshotDocument, counter: &Counter) -> Vec<NewRecord> {
    let SnapshotDocument { context_entries, goal_stack, pins, reasoning_storage, .. } = document;
    let mut bodies: Vec<(Option<Timestamp>, RecordBody)> =
        goal_stack.map(|stack| goal_records(&stack.goals)).unwrap_or_default();
    let own = context_entries.into_iter().filter(|entry| entry.scope == ContextScope::Session);
    bodies.extend(own.map(|entry| {
        let change = ContextEntryChange {
            key: entry.key,
            content: Some(entry.content),
            priority: Some(entry.priority),
            source: Some(entry.source),
        };
        (None, RecordBody::ContextEntry(change))
    }));
    let traces = reasoning_storage.map(|storage| storage.traces).unwrap_or_default();
    let mut said: Vec<(Option<Seq>, Option<Timestamp>, RecordBody)> = Vec::new();
    for SnapshotMessage { seq, message } in
        document.user_messages.into_iter().chain(document.messages)
    {
        let mut parts = message.parts;
        for trace in traces.iter().filter(|trace| Some(trace.seq) == seq) {
            let at = (trace.part as usize).min(parts.len());
            parts.insert(at, Part::Thinking { text: trace.text.clone() });
        }
        let message = Message {
            role: message.role,
            parts,
            timestamp: message.timestamp,
            tool_call_id: message.tool_call_id,
            tool_name: message.tool_name,
            model: message.model,
            finish_reason: message.finish_reason,
            duration_ms: message.duration_ms,
        };
        said.push((seq, Some(message.timestamp), RecordBody::Message(message)));
    }
    said.extend(document.tool_calls.into_iter().map(
        |SnapshotToolCall { seq, message_seq, call }| {
            let call = ToolCall {
                id: call.id,
                name: call.name,
                args: call.args,
                result: call.result,
                timestamp: call.timestamp,
                duration_ms: call.duration_ms,
                message_seq,
                // As with imports, no file is ever put back for another session's writes.
                writes: None,
                writes_root: None,
                writes_omitted: 0,
            };
            (Some(seq), Some(call.timestamp), RecordBody::ToolCall(call))
        },
    ));
    let others = document.records.into_iter();
    said.extend(others.filter_map(|one| Some((Some(one.seq), Some(one.at), one.into_body()?))));
    match said.iter().all(|(seq, ..)| seq.is_some()) {
        true => said.sort_by_key(|(seq, ..)| *seq),
        // Another program's file: its two lists are merged by their times.
        false => said.sort_by_key(|(_, at, body)| (*at, is_system(body) == Some(false))),
    }
    renumbered(bodies, said, &pins, counter)
}

fn is_system(body: &RecordBody) -> Option<bool> {
    match body {
        RecordBody::Message(message) => Some(message.role == Role::System),
        _ => None,
    }
}

/// Returns the drafts of `first`, of `said` with converted references, and of the pins.
fn renumbered(
    first: Vec<(Option<Timestamp>, RecordBody)>,
    said: Vec<(Option<Seq>, Option<Timestamp>, RecordBody)>,
    pins: &[Seq],
    counter: &Counter,
) -> Vec<NewRecord> {
    // The header is record 0.
    let mut next = first.len() as u64 + 1;
    let mut map = SeqMap::default();
    let mut drafts: Vec<NewRecord> =
        first.into_iter().map(|(at, body)| NewRecord { at, ..uncounted(body) }).collect();
    for (seq, at, mut body) in said {
        if map.apply(&mut body).is_err() {
            continue;
        }
        seq.into_iter().for_each(|seq| map.insert(seq, Seq(next)));
        next += 1;
        let tokens = Some((counter.count_record(&body), counter.identity()));
        drafts.push(NewRecord { at, ..NewRecord::new(body, tokens) });
    }
    for pin in pins {
        let mut body = RecordBody::Pin(Pin { target: *pin, pinned: true });
        if map.apply(&mut body).is_ok() {
            drafts.push(uncounted(body));
        }
    }
    drafts
}

/// Returns records whose fold has these goals. A step that the fold would refuse is left out.
fn goal_records(goals: &[Goal]) -> Vec<(Option<Timestamp>, RecordBody)> {
    let (mut state, mut records) = (GoalState::default(), Vec::new());
    let mut add = |at: Timestamp, steps: Vec<GoalStep>| {
        let change = |steps| GoalChange { source: GoalSource::Client, message_seq: None, steps };
        let kept: Vec<GoalStep> = steps
            .into_iter()
            .filter(|step| state.apply(at, &change(vec![step.clone()])).is_ok())
            .collect();
        if !kept.is_empty() {
            records.push((Some(at), RecordBody::Goal(change(kept))));
        }
    };
    for goal in goals {
        add(goal.created_at, goal_steps(goal));
    }
    if let Some(active) = goals.iter().find(|goal| goal.status == GoalStatus::Active)
        && let Some(last) = goals.last()
    {
        add(last.created_at, vec![with_status(active)]);
    }
    records
}

fn with_status(goal: &Goal) -> GoalStep {
    let status = Some(goal.status);
    GoalStep::Update { goal: goal.id, description: None, priority: None, status }
}

/// Returns the source of a goal or decision if a model's marker made it; that of a client is the default.
fn by_marker(source: GoalSource) -> Option<GoalSource> {
    (source == GoalSource::Marker).then_some(source)
}

fn goal_steps(goal: &Goal) -> Vec<GoalStep> {
    let Goal { id, description, priority, .. } = goal;
    let mut steps = vec![GoalStep::Create {
        id: *id,
        description: description.clone(),
        priority: *priority,
        source: by_marker(goal.source),
    }];
    steps.extend(goal.checkpoints.iter().map(|one| GoalStep::AddCheckpoint {
        goal: *id,
        id: one.id,
        description: one.description.clone(),
        status: one.status,
    }));
    let replaced_by = |new: &GoalDecision| {
        let mut old = goal.decisions.iter();
        old.find(|old| old.superseded_by == Some(new.id)).map(|old| old.id)
    };
    steps.extend(goal.decisions.iter().map(|one| GoalStep::AddDecision {
        goal: *id,
        id: one.id,
        kind: one.kind.clone(),
        description: one.description.clone(),
        locked: one.locked,
        supersedes: replaced_by(one),
        source: by_marker(one.source),
    }));
    steps.extend(goal.artifacts.iter().map(|one| GoalStep::AddArtifact {
        goal: *id,
        kind: one.kind.clone(),
        path: one.path.clone(),
        did: one.action,
    }));
    if !goal.next_steps.is_empty() {
        steps.push(GoalStep::SetNextSteps { goal: *id, next_steps: goal.next_steps.clone() });
    }
    if goal.status != GoalStatus::Active {
        steps.push(with_status(goal));
    }
    steps
}
