//! The records of a command: its start, if its files are tracked, and its result.

use std::ffi::OsString;
use std::time::{SystemTime, UNIX_EPOCH};

use ollm_protocol::content::{Custom, ToolResult, ToolStart};
use ollm_protocol::method::{SessionRecordCustom, SessionRecordToolCall};
use ollm_protocol::methods::session::{
    SessionRecordCustomParams, SessionRecordResult, SessionRecordToolCallParams, ToolCallInput,
};
use ollm_protocol::{ErrorKind, Method, SessionId, Timestamp, sanitize};
use serde_json::{Value, json};

use super::ToolRun;
use crate::command_context::CommandContext;
use crate::command_error::CommandResult;
use crate::error::ClientError;
use crate::project::RecordTarget;
use crate::tracked_dir::TrackedWrites;

/// The parts of a tool call that are known before the command runs.
pub(super) struct CallStart {
    /// Identifies this run, also if it is recorded again after a broken connection.
    id: String,
    tool_name: String,
    args: Value,
    started_at: Timestamp,
}

impl CallStart {
    pub(super) fn new(tool_name: &str, command: &[OsString]) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let cwd = std::env::current_dir().unwrap_or_default().to_string_lossy().into_owned();
        let word = |word: &OsString| shell_quoted(&sanitize::text(&word.to_string_lossy()));
        let words: Vec<String> = command.iter().map(word).collect();
        Self {
            id: format!("exec_{}_{}", std::process::id(), now.as_nanos()),
            tool_name: tool_name.to_owned(),
            args: json!({ "command": words.join(" "), "cwd": sanitize::text(&cwd) }),
            started_at: Timestamp::from_unix_ms(i64::try_from(now.as_millis()).unwrap_or_default()),
        }
    }
}

/// Records that a command starts, and returns the session.
pub(super) fn record_start(
    call: &CallStart,
    target: RecordTarget,
    ctx: &mut CommandContext<'_>,
) -> CommandResult<RecordTarget> {
    let start =
        ToolStart { id: call.id.clone(), name: call.tool_name.clone(), args: call.args.clone() };
    let key = Some(call.id.clone());
    let session_id = target.record(None, key.clone(), ctx, |session_id, ctx| {
        let (name, data) = (Custom::TOOL_START.to_owned(), json!(start));
        let params = SessionRecordCustomParams { session_id, name, data, context_text: None, key };
        call_twice::<SessionRecordCustom>(&params, ctx)?;
        Ok(session_id)
    })?;
    Ok(RecordTarget::Session(session_id))
}

/// The session and the daemon's reply of a recorded tool call.
pub(super) struct RecordedCall {
    pub(super) session_id: SessionId,
    pub(super) result: SessionRecordResult,
}

/// Records a command that has ended, and the files that it wrote; without their contents if the daemon refuses those.
pub(super) fn record(
    target: RecordTarget,
    tool_run: &ToolRun,
    tracked: Option<TrackedWrites>,
    ctx: &mut CommandContext<'_>,
) -> CommandResult<RecordedCall> {
    let key = Some(tool_run.call.id.clone());
    target.record(None, key.clone(), ctx, |session_id, ctx| {
        let params = |tracked: Option<&TrackedWrites>| SessionRecordToolCallParams {
            session_id,
            tool_call: tool_call(tool_run, tracked),
            key: key.clone(),
        };
        let call = |tracked: Option<&TrackedWrites>, ctx: &mut CommandContext<'_>| {
            call_twice::<SessionRecordToolCall>(&params(tracked), ctx)
        };
        let recorded = call(tracked.as_ref(), ctx);
        let result = match (recorded, tracked) {
            // A result without contents, or without files, is better than none.
            (Err(error), Some(tracked)) if is_refused(&error) => {
                ctx.terminal.eprintln(&format!(
                    "warning: the contents of the files before the command are not recorded: {error}"
                ));
                match call(Some(&tracked.without_contents()), ctx) {
                    Err(error) if is_refused(&error) => call(None, ctx),
                    recorded => recorded,
                }
            }
            (recorded, _) => recorded,
        };
        Ok(RecordedCall { session_id, result: result? })
    })
}

fn tool_call(tool_run: &ToolRun, tracked: Option<&TrackedWrites>) -> ToolCallInput {
    let CallStart { id, tool_name, args, started_at } = &tool_run.call;
    ToolCallInput {
        id: id.clone(),
        name: tool_name.clone(),
        args: args.clone(),
        result: ToolResult {
            llm_content: tool_run.output(),
            display_content: None,
            success: Some(tool_run.code == 0),
            error: tool_run.error.clone(),
            exit_code: Some(tool_run.code),
        },
        timestamp: Some(*started_at),
        duration_ms: Some(tool_run.duration_ms()),
        message_seq: None,
        writes: tracked.map(|tracked| tracked.writes.clone()),
        writes_omitted: tracked.map_or(0, |tracked| tracked.omitted),
    }
}

/// Makes a call with a key. Repeats it once if it failed and is not refused, perhaps after the daemon recorded it: the key
/// makes that safe.
fn call_twice<M: Method>(
    params: &M::Params,
    ctx: &mut CommandContext<'_>,
) -> Result<M::Result, ClientError> {
    let made = match ctx.call::<M>(params) {
        Err(error) if !is_refused(&error) => {
            ctx.disconnect();
            ctx.call::<M>(params)
        }
        made => made,
    };
    made.map(|reply| reply.value)
}

/// Returns whether the daemon would refuse the same call again.
fn is_refused(error: &ClientError) -> bool {
    match error {
        ClientError::RequestTooLarge { .. } => true,
        ClientError::Rpc(failure) => {
            matches!(failure.kind, Some(ErrorKind::InvalidParams | ErrorKind::TooLarge))
        }
        _ => false,
    }
}

/// Returns a word as it would be typed in a shell.
pub(in crate::commands) fn shell_quoted(word: &str) -> String {
    let is_plain = |char: char| char.is_ascii_alphanumeric() || "_-./=:,@%+".contains(char);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_a_shell() {
        let check = |word: &str, expect: &str| assert_eq!(shell_quoted(word), expect);
        check("ls", "ls");
        check("--color=auto", "--color=auto");
        check("a-b=c", "a-b=c");
        check("", "''");
        check("two words", "'two words'");
        check("it's", r"'it'\''s'");
        check("$HOME", "'$HOME'");
        check("~/a", "'~/a'");
        check("a;b", "'a;b'");
    }
}
