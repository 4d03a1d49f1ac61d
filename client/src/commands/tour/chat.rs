//! The chat turn of the tour: streamed, recorded and compared, if a model server with a model is reachable.

use std::process::Stdio;
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
use ollm_protocol::sanitize::one_line;
use serde_json::{Value, json};

use super::home::TourHome;
use super::report::{StepReport, check};
use crate::command_context::CommandContext;
use crate::command_error::{CommandError, CommandResult};
use crate::commands::models::can_chat;
use crate::connection::{BlockingClient, Connector};
use crate::error::ClientError;
use crate::render::units::grouped;

/// A question that every model answers with one word.
const QUESTION: &str = "What is the capital of France? Answer with one word.";
/// The longest answer in tokens; short, because people watch the tour.
const ANSWER_LIMIT: u32 = 24;
/// The longest wait for the list of models.
const LIST_TIMEOUT: Duration = Duration::from_secs(6);
/// The longest wait for the model to load and to answer; a slower one is skipped.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// An answer as it was streamed.
#[derive(Default)]
struct TourAnswer {
    text: String,
    thinking: String,
    pieces: u64,
    usage: ChatUsage,
    first_piece_after: Duration,
}

/// Returns the model server in the user's configuration; `None` if it is not configured, or unknown.
///
/// The daemon's program reads the configuration and shows it, without starting a daemon.
pub(super) fn configured_model_server(ctx: &CommandContext<'_>) -> Option<String> {
    let mut command = ctx.connector().daemon_command().ok()?;
    let shown = command.args(["--show-config", "--json"]).stdin(Stdio::null()).output().ok()?;
    let config: Value = serde_json::from_slice(&shown.stdout).ok()?;
    let host = config["ollama"]["host"]["value"].as_str().filter(|host| !host.is_empty())?;
    Some(host.to_owned())
}

/// Lets the smallest model answer; without a model, explains what is needed.
pub(super) fn chat(home: &mut TourHome) -> CommandResult<StepReport> {
    let mut client = home.connect()?;
    client.set_timeout(LIST_TIMEOUT);
    let list = match client.call::<ModelList>(&NoParams {}) {
        Ok(list) => list,
        Err(error) => {
            let hint = error.hint().map(|hint| format!(" (try: {})", one_line(&hint)));
            return Ok(skipped(&(message_of(error) + &hint.unwrap_or_default())));
        }
    };
    let host = one_line(&list.host);
    let Some(model) = smallest(&list.data) else {
        let command = one_line(&list.get_small_model);
        return Ok(skipped(&format!("{host} has no model (try: {command})")));
    };
    let name = one_line(&model.model);
    let created = client.call::<SessionCreate>(&SessionCreateParams::default())?;
    let id = created.session.session_id;
    let answer = match stream_answer(&home.connector(), &chat_params(id, model)) {
        Ok(answer) => answer,
        Err(ClientError::Timeout { .. }) => {
            let seconds = ANSWER_TIMEOUT.as_secs();
            let reason = format!("{name} at {host} did not answer within {seconds} s");
            return Ok(skipped(&reason));
        }
        Err(error) => {
            let reason = message_of(error);
            return Ok(skipped(&format!("{name} at {host} did not answer: {reason}")));
        }
    };
    let is_same =
        recorded_answer(&mut client, id)? == (answer.text.clone(), answer.thinking.clone());
    check(is_same, "the recorded answer differs from the streamed one")?;
    Ok(answered(&name, &answer))
}

fn answered(name: &str, answer: &TourAnswer) -> StepReport {
    let words: String = one_line(&answer.text).chars().take(60).collect();
    let words =
        if words.is_empty() { "(only thinking)".to_owned() } else { format!("\"{words}\"") };
    let TourAnswer { pieces, usage, .. } = answer;
    let first_ms = u64::try_from(answer.first_piece_after.as_millis()).unwrap_or(u64::MAX);
    let text = format!(
        "{name}, asked for the capital of France: {words}\n{} pieces streamed, the first after {} ms, and recorded unchanged;\nthe context has {} of {} tokens",
        grouped(*pieces),
        grouped(first_ms),
        grouped(usage.context_tokens),
        grouped(usage.prompt_limit),
    );
    let numbers = json!({
        "model": name, "pieces": pieces, "firstMs": first_ms,
        "contextTokens": usage.context_tokens, "promptTokens": usage.prompt_tokens,
    });
    (text, numbers)
}

fn skipped(reason: &str) -> StepReport {
    let text = format!(
        "skipped: {reason}\nwith a model server and a model this step shows an answer; `ollmctl config list` names the settings"
    );
    (text, json!({ "skipped": reason }))
}

fn message_of(error: ClientError) -> String {
    CommandError::from(error).message()
}

/// Returns the smallest local model that can chat.
fn smallest(models: &[ModelSummary]) -> Option<&ModelSummary> {
    let local = models.iter().filter(|model| model.remote_host.is_none() && can_chat(model));
    local.min_by_key(|model| model.size_bytes)
}

fn chat_params(id: SessionId, model: &ModelSummary) -> ChatSendParams {
    let thinks = model.capabilities.iter().any(|capability| capability == "thinking");
    ChatSendParams {
        message: Some(MessageInput::text(Role::User, QUESTION)),
        model: Some(model.model.clone()),
        answer_limit: Some(ANSWER_LIMIT),
        think: thinks.then_some(Think::Flag(false)),
        ..ChatSendParams::new(id)
    }
}

/// Follows a turn to its end.
///
/// **Errors**: [`ClientError::Timeout`] after [`ANSWER_TIMEOUT`], and the error with which the turn ended.
fn stream_answer(
    connector: &Connector,
    params: &ChatSendParams,
) -> Result<TourAnswer, ClientError> {
    let started = Instant::now();
    let mut client = BlockingClient::connect(connector)?;
    client.set_timeout(ANSWER_TIMEOUT);
    let mut events = client.send_chat(params)?;
    let mut answer = TourAnswer::default();
    loop {
        match events.next_event_before(started + ANSWER_TIMEOUT)? {
            ChatEvent::Delta { text, thinking } => {
                if answer.pieces == 0 {
                    answer.first_piece_after = started.elapsed();
                }
                answer.pieces += 1;
                answer.text.push_str(text.as_deref().unwrap_or_default());
                answer.thinking.push_str(thinking.as_deref().unwrap_or_default());
            }
            ChatEvent::Done { usage, .. } => {
                answer.usage = usage.unwrap_or_default();
                return Ok(answer);
            }
            ChatEvent::Error { code, message, data } => {
                return Err(ClientError::of_turn(code, message, data));
            }
            _ => {}
        }
    }
}

/// Returns text and thinking of the answer as recorded.
fn recorded_answer(client: &mut BlockingClient, id: SessionId) -> CommandResult<(String, String)> {
    let branch = BranchFilter::Active;
    let params = SessionGetParams { session_id: id, from: None, limit: Some(100), branch };
    let page = client.call::<SessionGet>(&params)?;
    let answer = |record: Record| record.message.filter(|message| message.role == Role::Assistant);
    let Some(message) = page.records.into_iter().rev().find_map(answer) else {
        return Ok(Default::default());
    };
    let thinking = message.parts.iter().filter_map(|part| match part {
        Part::Thinking { text } => Some(text.as_str()),
        _ => None,
    });
    Ok((message.plain_text(), thinking.collect()))
}
