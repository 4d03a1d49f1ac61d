//! `ollmctl sessions options`: the options of each answer that a session keeps.

use clap::Args;
use ollm_protocol::content::{Meta, Session};
use ollm_protocol::method::{SessionGet, SessionUpdate};
use ollm_protocol::methods::session::{BranchFilter, SessionGetParams, SessionUpdateParams};
use ollm_protocol::{SessionId, sanitize};
use serde_json::Value;

use crate::args::session::SessionFlag;
use crate::command_context::CommandContext;
use crate::command_error::{CommandError, CommandResult};
use crate::completion;
use crate::project::session_or_current;

/// The command in the hint of an option that cannot be read.
const EXAMPLE: &str = "ollmctl sessions options last temperature=0.2";

/// Show or set the options of each answer that a session keeps.
#[derive(Debug, Args)]
#[command(after_help = "\
The options are the sampling options of the model server, and think, format and answerLimit. Every client of the \
session has them, and a chat can set others for itself. A value is JSON, or else a text.

Examples:
  ollmctl sessions options
  ollmctl sessions options temperature=0.2
  ollmctl sessions options last temperature=0.2 seed=7 think=false
  ollmctl sessions options last 'stop=[\"END\"]' temperature=")]
pub(crate) struct OptionsArgs {
    /// The session, unless it is the current one, then the options to set; an empty value removes one.
    #[arg(value_name = "SESSION|NAME=VALUE", add = completion::sessions())]
    words: Vec<String>,
    #[command(flatten)]
    session: SessionFlag,
}

pub(super) fn run(args: &OptionsArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    let (session, options) = match args.words.split_first() {
        Some((first, rest)) if args.session.given().is_none() && !first.contains('=') => {
            (Some(first.as_str()), rest)
        }
        _ => (args.session.given(), args.words.as_slice()),
    };
    let session_id = session_or_current(session, "sessions options", ctx)?;
    if options.is_empty() {
        return ctx.show::<SessionGet>(&of_session(session_id), |result, _| shown(&result.session));
    }
    let options: CommandResult<Meta> = options.iter().map(|text| option(text, EXAMPLE)).collect();
    let options = Some(options?);
    let params = SessionUpdateParams { options, ..SessionUpdateParams::new(session_id) };
    ctx.show::<SessionUpdate>(&params, |result, _| shown(&result.session))
}

/// Returns the params that read a session with its first record, which is small.
pub(crate) fn of_session(session_id: SessionId) -> SessionGetParams {
    let branch = BranchFilter::default();
    SessionGetParams { session_id, from: None, limit: Some(1), branch }
}

/// Reads `NAME=VALUE`. `example`: a command that sets an option, for the hint of an error.
pub(in crate::commands) fn option(text: &str, example: &str) -> CommandResult<(String, Value)> {
    let Some((name, value)) = text.split_once('=').filter(|(name, _)| !name.is_empty()) else {
        let problem = format!("{} is not NAME=VALUE", sanitize::one_line(text));
        return Err(CommandError::usage(problem, example));
    };
    let value = match value {
        "" => Value::Null,
        value => serde_json::from_str(value).unwrap_or_else(|_| Value::from(value)),
    };
    Ok((name.to_owned(), value))
}

fn shown(session: &Session) -> String {
    if session.options.is_empty() {
        return "no options\n".to_owned();
    }
    let line = |(name, value): (&String, &Value)| {
        format!("{} = {}\n", sanitize::one_line(name), sanitize::one_line(&value.to_string()))
    };
    session.options.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn value_of_an_option_is_json_or_a_text() {
        let check = |text: &str, expect: Value| {
            let (name, value) = option(text, EXAMPLE).unwrap();
            assert_eq!((name.as_str(), value), ("a", expect), "{text}");
        };
        check("a=0.5", json!(0.5));
        check("a=json", json!("json"));
        check("a=[\"x=y\"]", json!(["x=y"]));
        check("a=", Value::Null);
        assert!(option("a", EXAMPLE).is_err() && option("=1", EXAMPLE).is_err());
    }
}
