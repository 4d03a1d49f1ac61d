//! `ollmctl record`: records one message, in a new session if there is none.

use std::path::PathBuf;

use clap::Args;
use ollm_protocol::content::{CountKind, Role};
use ollm_protocol::method::SessionRecord;
use ollm_protocol::methods::session::{MessageInput, SessionRecordParams};

use crate::args::{role_parser, text_or_stdin};
use crate::command_context::CommandContext;
use crate::command_error::{CommandError, CommandResult};
use crate::completion;
use crate::project::{self, RecordTarget};
use crate::render::units::counted;

/// Record a message, by default in the project's current session.
#[derive(Debug, Args)]
#[command(after_help = "\
Prints the session's id and the number of the record. The message is on disk when the command returns.

Examples:
  ollmctl record 'How do I reverse a list?'
  ollmctl record --role assistant --model qwen3:8b 'Use reversed().'
  ollmctl record --new --project . 'Another matter.'
  git diff | ollmctl record -")]
pub(crate) struct RecordArgs {
    /// The session: an id, a unique end or beginning of one, or `last` [default: the current session of the project, else a new
    /// one].
    #[arg(long, value_name = "SESSION", conflicts_with = "new", add = completion::sessions())]
    session: Option<String>,
    /// Create a new session and make it the project's current one.
    #[arg(long)]
    new: bool,
    /// The author of the message.
    #[arg(long, default_value = "user", value_parser = role_parser())]
    role: Role,
    /// The model that wrote the message; also the model of a new session.
    #[arg(long)]
    model: Option<String>,
    /// The project's directory [default: the current directory].
    #[arg(long, value_name = "DIR")]
    project: Option<PathBuf>,
    /// A key of your choice; repeating the command with the same key records the message once.
    #[arg(long)]
    key: Option<String>,
    /// The message; read from stdin if it is `-`, or if it is missing and stdin is a pipe.
    text: Option<String>,
}

pub(super) fn run(args: RecordArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    let text = message_text(args.text.as_deref())?;
    let target = target(&args, ctx)?;
    let message = MessageInput {
        model: args.model.clone().filter(|_| args.role == Role::Assistant),
        ..MessageInput::text(args.role, text)
    };
    let key = args.key;
    let (session_id, reply) = target.record(args.model, key.clone(), ctx, |session_id, ctx| {
        let params = SessionRecordParams { session_id, message, key };
        Ok((session_id, ctx.call::<SessionRecord>(&params)?))
    })?;
    if ctx.json() {
        // The daemon's result does not name the session that was chosen here.
        let mut result = reply.to_json();
        result["sessionId"] = session_id.to_string().into();
        return ctx.print_json(&result);
    }
    let recorded = &reply.value;
    let kind = match recorded.count_kind {
        CountKind::Exact => "",
        CountKind::Calibrated | CountKind::Estimated => ", estimated",
    };
    let duplicate = if recorded.duplicate { ", recorded before" } else { "" };
    let tokens = counted(u64::from(recorded.tokens), "token");
    ctx.print_text(&format!("{session_id} #{}  {tokens}{kind}{duplicate}\n", recorded.seq))
}

fn target(args: &RecordArgs, ctx: &mut CommandContext<'_>) -> CommandResult<RecordTarget> {
    if let Some(session) = &args.session {
        return Ok(RecordTarget::Session(ctx.session(session)?));
    }
    let project_path = match &args.project {
        Some(given) => project::canonical_path(Some(given))?,
        None => project::of_current_directory("record")?,
    };
    if args.new {
        return Ok(RecordTarget::NewSession { project_path });
    }
    RecordTarget::in_project(project_path, ctx)
}

fn message_text(given: Option<&str>) -> CommandResult<String> {
    let text = text_or_stdin(given, "record", "ollmctl record 'hello'")?;
    if text.trim().is_empty() {
        return Err(CommandError::usage("the text is empty", "ollmctl record 'hello'"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{SESSION_ID, run_against, session_json};

    fn recorded() -> Value {
        json!({
            "seq": 3, "at": "2026-01-27T10:00:00Z", "tokens": 2, "countKind": "estimated",
            "usage": {"messageCount": 2, "tokenCount": 4}
        })
    }

    #[test]
    fn message_is_verbatim_and_not_empty() {
        assert_eq!(message_text(Some(" two\n")).unwrap(), " two\n");
        assert!(matches!(message_text(Some(" \n")), Err(CommandError::Usage { .. })));
    }

    #[test]
    fn without_current_session_a_new_one_is_created_and_made_current() {
        let run = run_against(&["record", "--key", "k", "--model", "m", "hello"], |method, _| {
            Some(match method {
                "session.current" => json!({}),
                "session.record" => recorded(),
                _ => json!({ "session": session_json() }),
            })
        });
        assert!(run.error.is_none());
        assert_eq!(run.stdout, format!("{SESSION_ID} #3  2 tokens, estimated\n"));
        assert_eq!(
            run.methods(),
            ["session.current", "session.create", "session.record", "session.setCurrent"]
        );
        let here = std::env::current_dir().unwrap().canonicalize().unwrap();
        assert_eq!(run.calls[1].1, json!({"projectPath": here, "model": "m", "key": "k"}));
        let message = json!({"role": "user", "content": "hello"});
        assert_eq!(
            run.calls[2].1,
            json!({"sessionId": SESSION_ID, "message": message, "key": "k"})
        );
        assert_eq!(run.calls[3].1, json!({"projectPath": here, "sessionId": SESSION_ID}));
    }

    #[test]
    fn json_names_the_current_session_that_was_used() {
        let run = run_against(&["--json", "record", "--role", "assistant", "hi"], |method, _| {
            Some(match method {
                "session.record" => recorded(),
                _ => json!({ "session": session_json() }),
            })
        });
        assert_eq!(run.methods(), ["session.current", "session.record"]);
        let printed: Value = serde_json::from_str(&run.stdout).unwrap();
        assert_eq!((&printed["sessionId"], &printed["seq"]), (&json!(SESSION_ID), &json!(3)));
    }
}
