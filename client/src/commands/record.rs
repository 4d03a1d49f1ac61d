//! `ollmctl record`: one message into a session, which is begun if there is none.

use std::io::{IsTerminal as _, Read as _};

use ollm_protocol::SessionId;
use ollm_protocol::content::{CountKind, Role};
use ollm_protocol::method::{SessionCreate, SessionCurrent, SessionRecord, SessionSetCurrent};
use ollm_protocol::methods::session::{
    MessageInput, SessionCreateParams, SessionCurrentParams, SessionRecordParams,
    SessionSetCurrentParams,
};
use serde_json::Value;

use super::{CommandError, Cx, project};
use crate::cli::RecordArgs;
use crate::render::number::counted;

pub(super) fn run(args: RecordArgs, cx: &mut Cx<'_>) -> Result<(), CommandError> {
    let text = text(args.text.as_deref())?;
    let target = target(&args, cx)?;
    let role = Role::from(args.role);
    let params = SessionRecordParams {
        session_id: target.session_id,
        message: MessageInput {
            model: args.model.filter(|_| role == Role::Assistant),
            ..MessageInput::text(role, text)
        },
        key: args.key,
    };
    let reply = cx.call::<SessionRecord>(&params)?;
    // Only now: a session that nothing was recorded in is not worth going on with.
    if let Some(project_path) = target.make_current_of {
        let session_id = Some(target.session_id);
        cx.call::<SessionSetCurrent>(&SessionSetCurrentParams { project_path, session_id })?;
    }
    if cx.json() {
        // The result alone does not say which session was chosen.
        let mut result: Value = serde_json::from_str(reply.raw.get()).unwrap_or_default();
        result["sessionId"] = target.session_id.to_string().into();
        return cx.print_json(&result);
    }
    let recorded = &reply.value;
    let kind = match recorded.count_kind {
        CountKind::Exact => "",
        CountKind::Calibrated | CountKind::Estimated => ", estimated",
    };
    let again = if recorded.duplicate { ", recorded before" } else { "" };
    let tokens = counted(u64::from(recorded.tokens), "token");
    cx.print_text(&format!("{} #{}  {tokens}{kind}{again}\n", target.session_id, recorded.seq))
}

/// Where something is recorded.
pub(super) struct Target {
    /// The session.
    pub(super) session_id: SessionId,
    /// The project whose current session it becomes, once something is in it.
    pub(super) make_current_of: Option<String>,
}

/// The session that was named, else the project's current one, else a new one.
fn target(args: &RecordArgs, cx: &mut Cx<'_>) -> Result<Target, CommandError> {
    if let Some(session) = &args.session {
        return Ok(Target { session_id: cx.session(session)?, make_current_of: None });
    }
    let project_path = match &args.project {
        Some(given) => project::path(Some(given))?,
        None => here("record")?,
    };
    if !args.new
        && let Some(session_id) = current(&project_path, cx)?
    {
        return Ok(Target { session_id, make_current_of: None });
    }
    begin(project_path, args.model.clone(), args.key.clone(), cx)
}

/// The project of the current directory.
pub(super) fn here(command: &str) -> Result<String, CommandError> {
    project::path(None).map_err(|error| no_current_directory(command, &error))
}

/// The session that a project goes on with.
pub(super) fn current(
    project_path: &str,
    cx: &mut Cx<'_>,
) -> Result<Option<SessionId>, CommandError> {
    let params = SessionCurrentParams { project_path: project_path.to_owned() };
    let current = cx.call::<SessionCurrent>(&params)?.value.session;
    Ok(current.map(|session| session.session_id))
}

/// Begins a session of a project.
pub(super) fn begin(
    project_path: String,
    model: Option<String>,
    key: Option<String>,
    cx: &mut Cx<'_>,
) -> Result<Target, CommandError> {
    let params = SessionCreateParams {
        project_path: Some(project_path.clone()),
        model,
        key,
        ..SessionCreateParams::default()
    };
    let created = cx.call::<SessionCreate>(&params)?.value.session;
    Ok(Target { session_id: created.session_id, make_current_of: Some(project_path) })
}

/// The current directory is gone, or its path is no text: another way to say where to record is needed.
fn no_current_directory(command: &str, error: &CommandError) -> CommandError {
    let elsewhere = if command == "record" { "  # or --project DIR" } else { "" };
    CommandError::usage(
        format!("the current directory cannot be the project: {}", error.message()),
        &format!("ollmctl {command} --session ID ...{elsewhere}"),
    )
}

/// What a text is read for.
pub(super) struct TextUse {
    /// What is done with it.
    pub verb: &'static str,
    /// The command that does it.
    pub command: &'static str,
    /// How it is used.
    pub example: &'static str,
}

const RECORD: TextUse =
    TextUse { verb: "record", command: "record", example: "ollmctl record 'hello'" };

fn text(given: Option<&str>) -> Result<String, CommandError> {
    let text = text_or_stdin(given, &RECORD)?;
    if text.trim().is_empty() {
        return Err(CommandError::usage("the text to record is empty", RECORD.example));
    }
    Ok(text)
}

/// The text that was given, or what comes through stdin.
pub(super) fn text_or_stdin(given: Option<&str>, used: &TextUse) -> Result<String, CommandError> {
    match given {
        Some(text) if text != "-" => Ok(text.to_owned()),
        None if std::io::stdin().is_terminal() => {
            let problem = format!("there is no text to {}", used.verb);
            Err(CommandError::usage(problem, used.example))
        }
        _ => piped(used.command),
    }
}

/// All that comes through stdin, for a command.
pub(super) fn piped(command: &'static str) -> Result<String, CommandError> {
    let mut piped = Vec::new();
    std::io::stdin().read_to_end(&mut piped).map_err(|source| CommandError::File {
        action: "read",
        path: "-".into(),
        source,
    })?;
    from_stdin(piped, command)
}

fn from_stdin(piped: Vec<u8>, command: &'static str) -> Result<String, CommandError> {
    String::from_utf8(piped).map_err(|error| CommandError::NotUtf8 {
        path: "-".into(),
        offset: error.utf8_error().valid_up_to() as u64,
        command,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_piped_in_is_text() {
        assert_eq!(from_stdin("naïve".into(), "record").unwrap(), "naïve");
        let error = from_stdin(b"na\xefve".to_vec(), "record").unwrap_err();
        assert!(matches!(error, CommandError::NotUtf8 { offset: 2, command: "record", .. }));
    }

    #[test]
    fn a_missing_current_directory_names_the_flags_that_help() {
        let source = std::io::ErrorKind::NotFound.into();
        let error = CommandError::File { action: "find the project", path: ".".into(), source };
        let told = no_current_directory("record", &error).to_text();
        assert!(told.contains("--session ID") && told.contains("--project DIR"), "{told}");
    }

    #[test]
    fn a_message_is_verbatim_and_never_empty() {
        assert_eq!(text(Some(" two\n")).unwrap(), " two\n");
        assert!(matches!(text(Some(" \n")), Err(CommandError::Usage { .. })));
    }
}
