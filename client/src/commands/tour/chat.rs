//! The tour's turn with a model: streamed, recorded, and compared, where a model server is reachable.

use std::process::Stdio;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use ollm_protocol::SessionId;
use ollm_protocol::content::{Part, Record, Role};
use ollm_protocol::method::{ModelList, SessionCreate, SessionGet};
use ollm_protocol::methods::chat::{ChatEvent, ChatSendParams, ChatUsage, Think};
use ollm_protocol::methods::daemon::NoParams;
use ollm_protocol::methods::model::ModelSummary;
use ollm_protocol::methods::session::{
    BranchFilter, MessageInput, SessionCreateParams, SessionGetParams,
};
use ollm_protocol::sanitize;
use serde_json::{Value, json};

use super::super::{CommandError, Cx};
use super::scratch::Scratch;
use super::{Steps, broken};
use crate::connection::{BlockingClient, Connector};
use crate::error::ClientError;
use crate::render::number::grouped;

/// What is asked: every model knows it in a word.
const QUESTION: &str = "What is the capital of France? Answer with one word.";
/// The longest answer in tokens; somebody is watching.
const MAX_TOKENS: u32 = 24;
/// How long the model server may take to say what it has.
const LISTING: Duration = Duration::from_secs(6);
/// How long the model may take to load and to answer; a slower one is left alone.
const ANSWERING: Duration = Duration::from_secs(20);
/// Events that wait to be counted.
const WAITING_EVENTS: usize = 64;

/// What a turn told.
#[derive(Default)]
struct Told {
    text: String,
    thinking: String,
    pieces: u64,
    usage: Option<ChatUsage>,
    first: Option<Duration>,
}

/// The model server that this user has configured; `None` where that is left to the environment, or cannot be told.
///
/// The daemon reads its configuration, so its program is asked to show it; that starts no daemon.
pub(super) fn configured_host(cx: &Cx<'_>) -> Option<String> {
    let connector = cx.connector();
    let mut command = connector.program().command(connector.address()).ok()?;
    let shown = command.args(["--show-config", "--json"]).stdin(Stdio::null()).output().ok()?;
    let config: Value = serde_json::from_slice(&shown.stdout).ok()?;
    let host = config["ollama"]["host"]["value"].as_str().filter(|host| !host.is_empty())?;
    Some(host.to_owned())
}

/// Has the smallest model answer; says what it would need where there is none.
pub(super) fn run(scratch: &mut Scratch, steps: &mut Steps<'_, '_>) -> Result<(), CommandError> {
    let mut client = scratch.connect()?;
    client.set_timeout(LISTING);
    let listed = match client.call::<ModelList>(&NoParams {}) {
        Ok(listed) => listed,
        Err(error) => return skip(&without_server(error), steps),
    };
    let host = sanitize::one_line(&listed.host);
    let Some(model) = smallest(&listed.data) else {
        return skip(&format!("{host} has no model: ollama pull qwen3:0.6b"), steps);
    };
    let name = sanitize::one_line(&model.model);
    let session_id =
        client.call::<SessionCreate>(&SessionCreateParams::default())?.session.session_id;
    let Some(told) = answer(scratch.connector(), params(session_id, model))? else {
        let seconds = ANSWERING.as_secs();
        return skip(&format!("{name} of {host} did not answer within {seconds} s"), steps);
    };
    let told = match told {
        Ok(told) => told,
        Err(error) => {
            let why = CommandError::from(error).message();
            return skip(&format!("{name} of {host} did not answer: {why}"), steps);
        }
    };
    if recorded(&mut client, session_id)? != (told.text.clone(), told.thinking.clone()) {
        return Err(broken("what was streamed is not what was recorded"));
    }
    tell(&name, &told, steps)
}

fn tell(name: &str, told: &Told, steps: &mut Steps<'_, '_>) -> Result<(), CommandError> {
    let said = sanitize::one_line(&told.text);
    let said: String = said.chars().take(60).collect();
    let said =
        if said.is_empty() { "(only thought so far)".to_owned() } else { format!("\"{said}\"") };
    let usage = told.usage.clone().unwrap_or_default();
    let first_ms = told.first.unwrap_or_default().as_millis();
    let text = format!(
        "{name} on being asked for the capital of France: {said}\n{} pieces streamed, the first after {} ms, and recorded as they were;\ncontext {} of {} tokens",
        grouped(told.pieces),
        grouped(u64::try_from(first_ms).unwrap_or(u64::MAX)),
        grouped(usage.context_tokens),
        grouped(usage.prompt_limit),
    );
    let numbers = json!({
        "model": name, "pieces": told.pieces, "firstMs": first_ms,
        "contextTokens": usage.context_tokens, "promptTokens": usage.prompt_tokens,
    });
    steps.tell("chat", &text, numbers)
}

fn skip(why: &str, steps: &mut Steps<'_, '_>) -> Result<(), CommandError> {
    let text = format!(
        "left out: {why}\nwith Ollama and a model this step has it answer; `ollama.host` or OLLAMA_HOST says where it is"
    );
    steps.tell("chat", &text, json!({ "skipped": why }))
}

/// What is missing for a turn: the daemon's own words, and what to type.
fn without_server(error: ClientError) -> String {
    let hint = error.hint().unwrap_or_else(|| "ollama serve".to_owned());
    format!("{} (try: {})", CommandError::from(error).message(), sanitize::one_line(&hint))
}

/// The smallest model that answers, and does so on this machine.
fn smallest(models: &[ModelSummary]) -> Option<&ModelSummary> {
    let answers = |model: &&ModelSummary| {
        let can = &model.capabilities;
        model.remote_host.is_none() && (can.is_empty() || can.iter().any(|can| can == "completion"))
    };
    models.iter().filter(answers).min_by_key(|model| model.size_bytes)
}

fn params(session_id: SessionId, model: &ModelSummary) -> ChatSendParams {
    let thinks = model.capabilities.iter().any(|can| can == "thinking");
    ChatSendParams {
        message: Some(MessageInput::text(Role::User, QUESTION)),
        model: Some(model.model.clone()),
        max_tokens: Some(MAX_TOKENS),
        think: thinks.then_some(Think::Flag(false)),
        ..ChatSendParams::new(session_id)
    }
}

/// Follows a turn to its end; `None` when that takes too long.
fn answer(
    connector: Connector,
    params: ChatSendParams,
) -> Result<Option<Result<Told, ClientError>>, CommandError> {
    let (send, events) = sync_channel(WAITING_EVENTS);
    let follow = move || {
        let follow = || {
            let mut turn = BlockingClient::connect(&connector)?.send_chat(&params)?;
            while let Some(event) = turn.next_event()? {
                // Nobody waits any more: the turn ends with its connection.
                if send.send(Ok(event)).is_err() {
                    break;
                }
            }
            Ok(())
        };
        if let Err(error) = follow() {
            drop(send.send(Err(error)));
        }
    };
    let thread = std::thread::Builder::new().name("ollmctl-turn".to_owned());
    drop(thread.spawn(follow).map_err(CommandError::Signals)?);
    let began = Instant::now();
    let mut told = Told::default();
    loop {
        match events.recv_timeout(ANSWERING.saturating_sub(began.elapsed())) {
            Ok(Ok(ChatEvent::Delta { text, thinking })) => {
                told.first.get_or_insert_with(|| began.elapsed());
                told.pieces += 1;
                told.text.push_str(text.as_deref().unwrap_or_default());
                told.thinking.push_str(thinking.as_deref().unwrap_or_default());
            }
            Ok(Ok(ChatEvent::Done { usage, .. })) => {
                told.usage = usage;
                return Ok(Some(Ok(told)));
            }
            Ok(Ok(ChatEvent::Error { code, message, data })) => {
                return Ok(Some(Err(ClientError::of_turn(code, message, data))));
            }
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return Ok(Some(Err(error))),
            Err(RecvTimeoutError::Timeout) => return Ok(None),
            Err(RecvTimeoutError::Disconnected) => return Err(broken("the turn just ended")),
        }
    }
}

/// The answer as the session has it: its text and its thinking.
fn recorded(
    client: &mut BlockingClient,
    session_id: SessionId,
) -> Result<(String, String), CommandError> {
    let params =
        SessionGetParams { session_id, from: None, limit: Some(100), branch: BranchFilter::Active };
    let page = client.call::<SessionGet>(&params)?;
    let answer = |record: Record| record.message.filter(|said| said.role == Role::Assistant);
    let said = page.records.into_iter().rev().find_map(answer);
    let Some(said) = said else { return Ok(Default::default()) };
    let thought = said.parts.iter().filter_map(|part| match part {
        Part::Thinking { text } => Some(text.as_str()),
        _ => None,
    });
    Ok((said.plain_text(), thought.collect()))
}
