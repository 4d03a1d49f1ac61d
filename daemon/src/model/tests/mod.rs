//! The connection to a model server, tested with a server that sends scripted bytes.

mod answers;
mod faults;
mod handle;
mod openai;
mod server;

use std::sync::Arc;
use std::time::Duration;

use ollm_protocol::content::{ContextMessage, Role};
use ollm_protocol::model_host::ModelHost;

use super::address::OwnNames;
use super::backend::Backend;
use super::http::HttpAddress;
use super::ollama::Ollama;
use super::window::Window;
use super::*;
use crate::clock::Clock;

use server::{BEGIN, ScriptedServer, Step, response};

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(60);
/// A limit that a test reaches.
const SHORT: Duration = Duration::from_millis(40);

/// Limits that no test reaches.
const PATIENT: Timeouts =
    Timeouts { connect: LONG, first_token: LONG, idle: LONG, response: LONG, probe: LONG };

fn connect(server: &ScriptedServer, timeouts: Timeouts) -> Ollama {
    let host = ModelHost::parse(&server.host()).expect("an address");
    connect_to(HttpAddress::new(host), timeouts)
}

fn connect_to(address: HttpAddress, timeouts: Timeouts) -> Ollama {
    Ollama::new(address, timeouts, Arc::new(Clock::system()), OwnNames::default())
}

fn question(text: &str) -> ContextMessage {
    ContextMessage::text(Role::User, text)
}

fn request() -> ChatRequest {
    ChatRequest {
        model: "m:7b".to_owned(),
        messages: vec![question("hello")],
        tools: vec![],
        num_ctx: 4096,
        num_predict: None,
        sampling: Sampling::default(),
        think: None,
        format: None,
        logprobs: None,
        keep_alive: Duration::from_secs(300),
        affinity: None,
    }
}

/// Returns the deltas of an answer, and its end or error.
async fn collect(ollama: &Ollama) -> (Vec<ChatDelta>, Result<ChatEnd, ModelError>) {
    let mut deltas = Vec::new();
    let mut stream = match ollama.stream(&request()).await {
        Ok(stream) => stream,
        Err(error) => return (deltas, Err(error)),
    };
    loop {
        match stream.next().await {
            Ok(ChatItem::Delta(delta)) => deltas.push(delta),
            Ok(ChatItem::End(end)) => return (deltas, Ok(end)),
            Err(error) => return (deltas, Err(error)),
        }
    }
}

/// Returns the same for a server that runs some steps.
async fn chat(steps: Vec<Step>) -> (Vec<ChatDelta>, Result<ChatEnd, ModelError>) {
    let server = ScriptedServer::new("0.33.0", steps);
    collect(&connect(&server, PATIENT)).await
}
