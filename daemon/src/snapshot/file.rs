//! One snapshot file: its name, its content, and what lists show of it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ollm_protocol::content::{SnapshotDocument, SnapshotInfo};
use ollm_protocol::{SessionId, SnapshotId, Timestamp};
use serde::Deserialize;
use serde_json::{Value, json};

use super::SnapshotError;
use crate::fsutil::{self, FsError};

const PREFIX: &str = "snapshot-";
const SUFFIX: &str = ".json";
/// The largest file in bytes. A context has a few megabytes; records that it shows in part are in the file as a whole.
const MAX_BYTES: u64 = 512 * 1024 * 1024;
/// The reason of a snapshot of another program.
const OTHER_PROGRAM: &str = "import";

/// Returns the name of a snapshot's file.
pub(super) fn name(id: &str) -> String {
    format!("{PREFIX}{id}{SUFFIX}")
}

/// Returns the id of the snapshot in a file with this name; `None` for another file. Other programs have ids that are no
/// UUIDs: the id then follows from the name.
pub(super) fn id_of(name: &str) -> Option<SnapshotId> {
    let text = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
    Some(text.parse().unwrap_or_else(|_| {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&blake3::hash(text.as_bytes()).as_bytes()[..16]);
        SnapshotId::from_uuid(uuid::Builder::from_custom_bytes(bytes).into_uuid())
    }))
}

/// Returns the names and sizes of all snapshot files in a directory, which may be missing. Links and pipes are skipped.
pub(super) fn names(dir: &Path) -> Result<Vec<(String, u64)>, FsError> {
    let fail = |source| FsError::new("list", dir, source);
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(fail)?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(fail)?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        if id_of(&name).is_none() {
            continue;
        }
        if let Some(len) = fsutil::file_len(&entry.path()) {
            names.push((name, len));
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Returns the path of a snapshot's file, if there is one.
pub(super) fn find(dir: &Path, id: SnapshotId) -> Result<Option<PathBuf>, FsError> {
    let own = dir.join(name(&id.to_string()));
    if fsutil::file_len(&own).is_some() {
        return Ok(Some(own));
    }
    let names = names(dir)?;
    let found = names.into_iter().find(|(name, _)| id_of(name) == Some(id));
    Ok(found.map(|(name, _)| dir.join(name)))
}

/// The version of a file, which can be read even if nothing else can.
#[derive(Deserialize)]
struct VersionField {
    #[serde(default)]
    version: Option<u32>,
}

/// Reads a snapshot file of a session.
///
/// **Errors**: `Damaged`, `Newer`, `Storage`.
pub(super) fn read(
    path: &Path,
    session: SessionId,
) -> Result<(SnapshotInfo, SnapshotDocument), SnapshotError> {
    let damaged = |reason: String| SnapshotError::Damaged { path: path.to_owned(), reason };
    let bytes = match fsutil::read_derived(path, MAX_BYTES) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return Err(damaged(format!("it has more than {MAX_BYTES} bytes"))),
        Err(error) => return Err(error.into()),
    };
    let version = serde_json::from_slice::<VersionField>(&bytes);
    let version = version.map_err(|error| damaged(error.to_string()))?.version;
    let document = match version {
        Some(found) if found > SnapshotDocument::VERSION => {
            let (path, supported) = (path.to_owned(), SnapshotDocument::VERSION);
            return Err(SnapshotError::Newer { path, found, supported });
        }
        Some(_) => serde_json::from_slice(&bytes),
        None => serde_json::from_slice(&bytes)
            .and_then(|value| serde_json::from_value(current_shape(value, session))),
    };
    let document: SnapshotDocument = document.map_err(|error| damaged(error.to_string()))?;
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if document.session_id != session {
        return Err(damaged(format!("it belongs to session {}", document.session_id)));
    }
    if version.is_some() && name != self::name(&document.id) {
        return Err(damaged(format!("it is snapshot {}", document.id)));
    }
    let info = info(&document, session, path, bytes.len() as u64);
    Ok((info, document))
}

/// Returns what lists show of a snapshot.
pub(super) fn info(
    document: &SnapshotDocument,
    session: SessionId,
    path: &Path,
    size_bytes: u64,
) -> SnapshotInfo {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let nil = || SnapshotId::from_uuid(uuid::Uuid::nil());
    let metadata = &document.metadata;
    let mut goals = document.goal_stack.iter().flat_map(|stack| &stack.goals);
    let active = goals.find(|goal| Some(goal.id) == metadata.active_goal_id);
    let is_user = |message: &&ollm_protocol::content::SnapshotMessage| {
        message.message.role == ollm_protocol::content::Role::User
    };
    let old_user_messages = document.messages.iter().filter(is_user).count();
    let reason = match metadata.reason.as_str() {
        "" => OTHER_PROGRAM,
        reason => reason,
    };
    SnapshotInfo {
        snapshot_id: id_of(name).unwrap_or_else(nil),
        short_id: None,
        session_id: session,
        timestamp: document.timestamp.unwrap_or(Timestamp::from_unix_ms(0)),
        reason: reason.to_owned(),
        pinned: metadata.pinned,
        summary: document.summary.clone(),
        token_count: document.token_count,
        message_count: (document.user_messages.len() + document.messages.len()) as u64,
        user_message_count: (document.user_messages.len() + old_user_messages) as u64,
        checkpoint_count: document.checkpoints.len() as u64,
        mode: document.mode.clone(),
        goal: active.map(|goal| goal.description.clone()),
        seq: metadata.seq,
        leaf: metadata.leaf,
        size_bytes,
    }
}

/// Converts a file of another program: messages with a text in place of parts, and times in any form.
fn current_shape(mut value: Value, session: SessionId) -> Value {
    let Some(fields) = value.as_object_mut() else { return value };
    fields.entry("sessionId").or_insert_with(|| json!(session));
    fields.entry("messages").or_insert_with(|| json!([]));
    if let Some(time) = fields.remove("timestamp").as_ref().and_then(time_of) {
        fields.insert("timestamp".to_owned(), json!(time));
    }
    let at = fields.get("timestamp").and_then(time_of).unwrap_or(Timestamp::from_unix_ms(0));
    for list in ["userMessages", "messages"] {
        let Some(Value::Array(messages)) = fields.get_mut(list) else { continue };
        *messages = std::mem::take(messages).into_iter().map(|one| message(one, at)).collect();
    }
    // Another program may use other shapes in these fields.
    let own = ["goalStack", "reasoningStorage", "checkpoints", "contextEntries", "pins", "records"];
    own.iter().for_each(|name| drop(fields.remove(*name)));
    if let Some(Value::Object(metadata)) = fields.get_mut("metadata") {
        metadata.retain(|name, value| match name.as_str() {
            "model" => value.is_string(),
            "contextSize" | "totalUserMessages" => value.is_u64(),
            _ => false,
        });
    }
    value
}

fn message(mut value: Value, at: Timestamp) -> Value {
    let Some(fields) = value.as_object_mut() else { return value };
    if !fields.contains_key("parts")
        && let Some(Value::String(text)) = fields.remove("content")
    {
        fields.insert("parts".to_owned(), json!([{ "type": "text", "text": text }]));
    }
    let time = fields.get("timestamp").and_then(time_of).unwrap_or(at);
    fields.insert("timestamp".to_owned(), json!(time));
    value
}

/// Returns the time of a text, or of a number of milliseconds since 1970.
fn time_of(value: &Value) -> Option<Timestamp> {
    match value {
        Value::Number(ms) => ms.as_i64().map(Timestamp::from_unix_ms),
        text => serde_json::from_value(text.clone()).ok(),
    }
}
