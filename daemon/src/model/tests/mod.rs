//! The connection against a server that sends exactly the bytes that a test says.

mod answers;
mod faults;
mod handle;
mod server;

use std::sync::Arc;
use std::time::Duration;

use ollm_protocol::content::{ContextMessage, Role};

use super::backend::Backend;
use super::chat::WarmRequest;
use super::host::Host;
use super::info::HiddenMessage;
use super::ollama::Ollama;
use super::window::Window;
use super::*;
use crate::clock::Clock;

use server::{Server, Step, answer};

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(60);
/// A limit that is to be reached.
const SHORT: Duration = Duration::from_millis(40);

/// Nothing runs out of time.
const PATIENT: Timeouts =
    Timeouts { connect: LONG, first_token: LONG, idle: LONG, answer: LONG, probe: LONG };

fn connect(server: &Server, timeouts: Timeouts) -> Ollama {
    let host = Host::parse(&server.host()).expect("an address");
    Ollama::new(host, None, timeouts, Arc::new(Clock::system()))
}

fn question(text: &str) -> ContextMessage {
    ContextMessage {
        role: Role::User,
        content: text.to_owned(),
        tool_calls: vec![],
        tool_name: None,
        tool_call_id: None,
        images: vec![],
    }
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
        keep_alive: Duration::from_secs(300),
    }
}

/// Everything up to the end or the error.
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

/// What a server of this version answers to a chat, and what comes of it.
async fn chat(steps: Vec<Step>) -> (Vec<ChatDelta>, Result<ChatEnd, ModelError>) {
    let server = Server::new("0.33.0", steps);
    collect(&connect(&server, PATIENT)).await
}
