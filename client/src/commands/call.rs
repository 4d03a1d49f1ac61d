//! `ollmctl call`: any method by its name.

use clap::Args;
use ollm_protocol::method::{ChatFollow, ChatSend, SessionCleanup, SessionClear, SessionDelete};
use ollm_protocol::methods::chat::ChatEvent;
use ollm_protocol::{ErrorKind, Life, METHODS, Method as _};
use serde_json::Value;
use strsim::levenshtein;

use crate::args::read_stdin;
use crate::command_context::CommandContext;
use crate::command_error::{CommandError, CommandResult};
use crate::completion;
use crate::error::ClientError;

/// The maximum number of suggestions for an unknown method.
const MAX_SUGGESTIONS: usize = 4;
/// The maximum number of edits between an unknown method and a suggestion.
const MAX_EDITS: usize = 4;
/// Methods that are never suggested: a line that is pasted carelessly must not delete anything.
const DESTRUCTIVE: [&str; 3] = [SessionDelete::NAME, SessionClear::NAME, SessionCleanup::NAME];

/// Call any method of the daemon and print its result as JSON.
#[derive(Debug, Args)]
#[command(after_help = "\
`rpc.discover` describes every method with its parameters. A subscription prints its events, one a line, until it ends: \
those of `chat.send` and `chat.follow` with the last event of the turn, others with the daemon.

Examples:
  ollmctl call daemon.status
  ollmctl call session.list '{\"limit\": 3}'
  echo '{\"limit\": 3}' | ollmctl call session.list -
  ollmctl call event.subscribe '{\"kinds\": [\"message-recorded\"]}'")]
pub(crate) struct CallArgs {
    /// The method, for example `session.list`.
    #[arg(add = completion::methods())]
    method: String,
    /// The parameters as a JSON object; `-` reads them from stdin.
    #[arg(value_name = "JSON")]
    params: Option<String>,
}

pub(super) fn run(args: &CallArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    let known = METHODS.iter().find(|method| method.name == args.method);
    let name = known.map_or("METHOD", |method| method.name);
    let params = params(args.params.as_deref(), name)?;
    if known.is_some_and(|method| method.life == Life::Stream) {
        return follow(name, &params, ctx);
    }
    // An unknown name is sent too: the daemon may be newer.
    match ctx.client()?.call_raw(&args.method, &params) {
        Ok(result) => ctx.print_raw_json(&result),
        Err(ClientError::Rpc(failure)) if failure.kind == Some(ErrorKind::MethodNotFound) => {
            let suggestions = suggestions(&args.method);
            let mut message = format!("ollmd has no method {:?}", args.method);
            if suggestions.len() > 1 {
                message.push_str(&format!("; similar ones are {}", suggestions.join(", ")));
            }
            let first = suggestions.first().copied().unwrap_or("rpc.discover");
            Err(CommandError::usage(message, &format!("ollmctl call {first}")))
        }
        Err(error) => Err(error.into()),
    }
}

/// Prints the events of a subscription until it ends.
///
/// **Errors**: that of a chat turn; for other subscriptions, that the stream ended.
fn follow(method: &'static str, params: &Value, ctx: &mut CommandContext<'_>) -> CommandResult {
    let mut events = ctx.take_client()?.subscribe_raw(method, params)?;
    while let Some(raw) = events.next_raw()? {
        ctx.print_json_line(&raw)?;
        ctx.terminal.flush()?;
        if ![ChatSend::NAME, ChatFollow::NAME].contains(&method) {
            continue;
        }
        match serde_json::from_str(raw.get()) {
            Ok(ChatEvent::Done { .. }) => return Ok(()),
            Ok(ChatEvent::Error { code, message, data }) => {
                return Err(ClientError::of_turn(code, message, data).into());
            }
            _ => {}
        }
    }
    Err(CommandError::StreamEnded)
}

fn params(given: Option<&str>, method: &str) -> CommandResult<Value> {
    let text = match given {
        None => "{}".to_owned(),
        Some("-") => read_stdin(&format!("call {method}"))?,
        Some(text) => text.to_owned(),
    };
    let wrong =
        |message| CommandError::usage(message, "ollmctl call session.list '{\"limit\": 3}'");
    let value: Value = serde_json::from_str(&text)
        .map_err(|error| wrong(format!("the parameters are not JSON: {error}")))?;
    if !value.is_object() && !value.is_array() {
        return Err(wrong("the parameters must be a JSON object".to_owned()));
    }
    Ok(value)
}

/// Returns the methods that the user may have meant, the most similar first: those with the same noun or verb, or with
/// few edits.
fn suggestions(wrong: &str) -> Vec<&'static str> {
    let lower = wrong.to_lowercase();
    let noun = lower.split('.').next().unwrap_or_default();
    let mut similar: Vec<(usize, &'static str)> = METHODS
        .iter()
        .map(|method| (levenshtein(&lower, &method.name.to_lowercase()), method.name))
        .filter(|(edits, name)| {
            *edits <= MAX_EDITS
                || name.split('.').next() == Some(noun)
                || name.ends_with(&format!(".{lower}"))
        })
        .filter(|(_, name)| !DESTRUCTIVE.contains(name))
        .collect();
    similar.sort_unstable();
    similar.into_iter().take(MAX_SUGGESTIONS).map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::address::Environment;
    use crate::error::Exit;
    use crate::testing::{TestHome, plain, reply, run_against, run_at, send};

    #[test]
    fn params_must_be_an_object() {
        assert_eq!(params(None, "m").unwrap(), json!({}));
        assert_eq!(params(Some("{\"a\": 1}"), "m").unwrap(), json!({"a": 1}));
        let fails = |text: &str, message: &str| {
            let error = params(Some(text), "m").unwrap_err().to_string();
            assert!(error.starts_with(message), "{error}");
        };
        fails("{", "the parameters are not JSON: EOF");
        fails("3", "the parameters must be a JSON object");
    }

    #[test]
    fn misspelled_method_gets_suggestions() {
        let check = |wrong, expect| {
            assert_eq!(suggestions(wrong).first().copied(), expect, "{wrong}");
        };
        check("session.lst", Some("session.list"));
        check("sesion.list", Some("session.list"));
        check("Session.List", Some("session.list"));
        check("daemon.staus", Some("daemon.status"));
        check("build", Some("context.build"));
        check("utterly.different.thing", None);
        assert!(suggestions("session.zzzzzzzzzz").len() <= MAX_SUGGESTIONS);
        for wrong in ["session.delte", "session.claer", "session.cleanp", "delete", "clear"] {
            let suggestions = suggestions(wrong);
            assert!(!suggestions.iter().any(|name| DESTRUCTIVE.contains(name)), "{suggestions:?}");
        }
    }

    #[test]
    fn subscription_is_followed_to_its_end() {
        let run = |line: &[&str], events: Vec<Value>| {
            let home = TestHome::new();
            let _server = home.serve(move |request, stream| {
                reply(stream, request, &json!(7));
                for event in &events {
                    let params = json!({"subscription": 7, "result": event});
                    send(stream, &json!({"jsonrpc": "2.0", "method": "x.event", "params": params}));
                }
                let params = json!({"subscription": 7, "error": "leaving"});
                send(stream, &json!({"jsonrpc": "2.0", "method": "x.event", "params": params}));
            });
            run_at(&home.socket(), line, &Environment::default())
        };
        let (out, error) =
            run(&["call", "event.subscribe"], vec![json!({"a": 1}), json!({"b": "\u{9b}"})]);
        assert_eq!(out, "{\"a\":1}\n{\"b\":\"\\u009b\"}\n");
        assert!(matches!(error, Some(CommandError::StreamEnded)), "{error:?}");
        let chat = ["call", "chat.send", "{\"sessionId\":\"x\"}"];
        let delta = json!({"kind": "delta", "text": "hi"});
        let done = json!({"kind": "done", "seq": 2, "finishReason": "stop"});
        let (out, error) = run(&chat, vec![delta, done]);
        assert_eq!(out.lines().count(), 2, "{out}");
        assert!(error.is_none(), "{error:?}");
        let data = json!({"kind": "modelUnavailable"});
        let failed = json!({"kind": "error", "code": 1012, "message": "no server", "data": data});
        let error = run(&chat, vec![failed]).1.unwrap();
        assert_eq!((error.exit(), error.to_string().as_str()), (Exit::ModelServer, "no server"));
    }

    #[test]
    fn unknown_method_is_sent_before_suggestions_are_made() {
        let run = run_against(&["call", "session.lst"], |_, _| None);
        assert_eq!(run.methods(), ["session.lst"]);
        let text = plain(&run.error.unwrap().to_text());
        assert!(text.ends_with("try: ollmctl call session.list"), "{text}");
        let run = run_against(&["call", "future.method", "{\"a\":1}"], |_, _| {
            Some(json!({"b": "\u{9b}"}))
        });
        assert_eq!(run.stdout, "{\"b\":\"\\u009b\"}\n");
    }
}
