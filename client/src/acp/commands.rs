//! Prompts that begin with a slash: commands of `ollmctl` about the session, answered without a model.

use std::process::Stdio;

use anstream::adapter::strip_str;
use ollm_protocol::SessionId;
use serde_json::{Value, json};
use tokio::process::Command;

use super::acknowledgment::Acknowledgment;
use super::agent::{Agent, RequestResult};
use super::cancel::Cancellation;
use super::schema::{PromptEnd, RequestError, StopReason, code};
use super::sessions::EditorSession;
use super::updates;
use crate::commands::chat::fenced;
use crate::own_program;

/// A command: its name, a hint for its text, and its help.
type Row = (&'static str, Option<&'static str>, &'static str);

const ROWS: [Row; 7] = [
    ("compact", Some("what the notes must keep"), "Replace older messages by notes now"),
    ("recall", Some("question"), "Find what was said about a question, in all sessions"),
    ("remember", Some("text"), "Keep a text in every prompt of this session"),
    ("goal", Some("aim"), "Set a goal, or show the goals of this session"),
    ("undo", Some("number of steps"), "Take the last question and its answer back"),
    ("redo", Some("number of steps"), "Bring back what was undone"),
    ("context", None, "Show how full the model's window is, and what fills it"),
];

/// Returns the commands for the list of the editor.
pub(super) fn available() -> Vec<Value> {
    let command = |(name, hint, description): &Row| -> Value {
        match hint {
            Some(hint) => {
                json!({ "name": name, "description": description, "input": { "hint": hint } })
            }
            None => json!({ "name": name, "description": description }),
        }
    };
    ROWS.iter().map(command).collect()
}

/// Returns the command that a prompt is, with its text; `None` for a prompt for the model.
pub(super) fn parse(prompt: &str) -> Option<(&'static str, &str)> {
    let line = prompt.trim().strip_prefix('/')?;
    let (name, text) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let row = ROWS.iter().find(|(known, ..)| *known == name)?;
    Some((row.0, text.trim()))
}

/// Runs a command and answers with its output.
pub(super) async fn run(
    agent: &Agent,
    session: &EditorSession,
    (name, text): (&str, &str),
    key: Option<String>,
    acknowledgment: &Acknowledgment<'_>,
    cancellation: &Cancellation,
) -> RequestResult<PromptEnd> {
    let id = session.prepare(agent).await?;
    let (message_id, has_run) = session.command_id(key);
    acknowledgment.send(session, message_id.clone()).await;
    if has_run {
        return Ok(PromptEnd::of(StopReason::EndTurn));
    }
    let failed = |error| RequestError::new(code::INTERNAL, format!("/{name} cannot run: {error}"));
    let mut command = Command::from(own_program::command().map_err(failed)?);
    command.args(&agent.flags).args(line(name, text, id)).current_dir(&session.cwd);
    // Without its caller the command ends, and what it asked the daemon for is canceled.
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let child = command.spawn().map_err(failed)?;
    let Some(output) = cancellation.unless(child.wait_with_output()).await else {
        return Ok(PromptEnd::of(StopReason::Cancelled));
    };
    let output = output.map_err(failed)?;
    let printed = [output.stdout, output.stderr]
        .map(|bytes| strip_str(&String::from_utf8_lossy(&bytes)).to_string().trim_end().to_owned());
    let text = printed.iter().filter(|text| !text.is_empty()).map(|text| fenced(text));
    let mut text = text.collect::<Vec<_>>().join("\n");
    if output.status.success() && (name == "undo" || name == "redo") {
        text.push_str(
            "\nThis changes what the model is shown; the messages above stay on the screen.",
        );
    }
    agent.editor.update(&session.name, updates::answer_chunk(&text, message_id)).await;
    Ok(PromptEnd::of(StopReason::EndTurn))
}

/// Returns the command line of `ollmctl`. The text is one word, whatever it begins with.
fn line(name: &str, text: &str, id: SessionId) -> Vec<String> {
    let id = id.to_string();
    let words: Vec<&str> = match (name, text) {
        ("compact", "") => vec!["context", "compact", &id],
        ("compact", text) => {
            let instructions = format!("--instructions={text}");
            return ["context", "compact", &id, &instructions].map(str::to_owned).to_vec();
        }
        ("recall", text) => vec!["recall", "--", text],
        ("remember", text) => vec!["remember", "--session", &id, "--", text],
        ("goal", "") => vec!["goal", "list", "--session", &id],
        ("goal", text) => vec!["goal", "create", "--session", &id, "--", text],
        ("context", _) => vec!["context", "status", &id],
        (step, "") => vec![step, "--session", &id],
        (step, number) => vec![step, "--session", &id, "--", number],
    };
    words.into_iter().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::Cli;
    use crate::testing::SESSION_ID;

    #[test]
    fn only_known_commands_are_taken_from_the_model() {
        let check = |prompt: &str, expect: Option<(&str, &str)>| {
            assert_eq!(parse(prompt), expect, "{prompt}");
        };
        check("/undo", Some(("undo", "")));
        check(" /remember  never touch\nlegacy/ \n", Some(("remember", "never touch\nlegacy/")));
        check("/undoing", None);
        check("/etc/passwd is broken", None);
        check("what is /undo?", None);
    }

    #[test]
    fn every_command_is_a_command_line_that_parses() {
        let id: SessionId = SESSION_ID.parse().unwrap();
        for (name, hint, _) in ROWS {
            let texts: &[&str] = match (name, hint) {
                ("undo" | "redo", _) => &["", "2"],
                (_, Some(_)) => &["", "a b", "-x --json", "--"],
                (_, None) => &[""],
            };
            for text in texts {
                let line = line(name, text, id);
                let parsed =
                    Cli::try_parse_from([vec!["ollmctl".to_owned()], line.clone()].concat());
                assert!(parsed.is_ok(), "{line:?}: {}", parsed.unwrap_err());
            }
        }
    }
}
