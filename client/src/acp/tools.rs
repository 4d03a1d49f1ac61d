//! The MCP servers that the editor names for a session: started, asked for their tools, and called.
//!
//! The only file that knows MCP. A server that does not start or has ended costs its tools and nothing else.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ollm_protocol::limits::{beginning, json_bytes};
use ollm_protocol::method::EnvSanitize;
use ollm_protocol::methods::env::EnvSanitizeParams;
use parking_lot::Mutex;
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CallToolResult, ClientRequest, ContentBlock,
    ResourceContents, ServerResult, Tool,
};
use rmcp::service::{Peer, PeerRequestOptions, RoleClient, RunningService, serve_client};
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::transport::{StreamableHttpClientTransport, TokioChildProcess};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::agent::{Agent, log};
use super::cancel::Cancellation;
use super::schema::{McpServer, NamedValue};
use crate::address;
use crate::commands::exec;

/// The longest wait for a server and the list of its tools. A program that is fetched first takes long.
const START_LIMIT: Duration = Duration::from_secs(30);
/// The longest wait for the end of a server.
const END_LIMIT: Duration = Duration::from_secs(2);
/// The longest wait until a server has been sent that a call is canceled.
const CANCEL_LIMIT: Duration = Duration::from_millis(500);
/// The longest result of a tool in a prompt. A longer one would push out the conversation in most windows.
const MAX_RESULT_BYTES: usize = 64 << 10;
/// The most tools that a model is offered: models choose badly among more, and each takes room in the window.
const MAX_TOOLS: usize = 128;
/// The longest definition of a tool: each request to the model has all of them.
const MAX_DEFINITION_BYTES: usize = 32 << 10;
/// The longest name that every model server accepts.
const MAX_NAME_CHARS: usize = 64;

/// The tool servers of a session.
pub(super) struct ToolServers {
    starting: tokio::sync::Mutex<JoinSet<Result<ToolServer, String>>>,
    started: Mutex<Vec<Arc<ToolServer>>>,
}

struct ToolServer {
    name: String,
    peer: Peer<RoleClient>,
    /// Taken to end the server.
    service: Mutex<Option<RunningService<RoleClient, ()>>>,
    tools: Vec<Tool>,
}

/// The end of a tool call.
pub(super) struct ToolOutcome {
    pub(super) text: String,
    pub(super) has_failed: bool,
}

impl ToolOutcome {
    pub(super) fn failed(text: impl Into<String>) -> Self {
        Self { text: text.into(), has_failed: true }
    }
}

impl ToolServers {
    /// Begins to start servers, all at the same time.
    pub(super) fn start(agent: &Arc<Agent>, servers: Vec<McpServer>, cwd: &Path) -> Self {
        let mut starting = JoinSet::new();
        for server in servers {
            let (agent, cwd) = (Arc::clone(agent), cwd.to_owned());
            drop(starting.spawn(async move {
                let name = server.name.clone();
                let started = timeout(START_LIMIT, start(&agent, server, &cwd)).await;
                let late = || format!("no answer within {} s", START_LIMIT.as_secs());
                started
                    .unwrap_or_else(|_| Err(late()))
                    .map_err(|problem| format!("The MCP server {name} does not work: {problem}"))
            }));
        }
        Self { starting: tokio::sync::Mutex::new(starting), started: Mutex::default() }
    }

    /// Waits until all servers have started or failed, and returns the problems of those that failed since the last call.
    ///
    /// **Cancel safety**: no server is lost.
    pub(super) async fn ready(&self) -> Vec<String> {
        let mut starting = self.starting.lock().await;
        let mut problems = Vec::new();
        while let Some(started) = starting.join_next().await {
            match started {
                Ok(Ok(server)) => self.started.lock().push(Arc::new(server)),
                Ok(Err(problem)) => problems.push(problem),
                Err(error) => problems.push(format!("An MCP server could not be started: {error}")),
            }
        }
        // The names of the tools do not depend on which server was faster.
        self.started.lock().sort_by(|a, b| a.name.cmp(&b.name));
        problems
    }

    /// Returns the definitions of the tools of all servers that run, as model servers take them.
    pub(super) fn definitions(&self) -> Vec<Value> {
        let offered = self.offered();
        let definition = |(name, server, at): &(String, Arc<ToolServer>, usize)| {
            let tool = &server.tools[*at];
            json!({ "type": "function", "function": {
                "name": name,
                "description": tool.description.as_deref().unwrap_or_default(),
                "parameters": &*tool.input_schema,
            } })
        };
        offered.iter().map(definition).collect()
    }

    /// Returns the tools of all servers that run, each with its name for the model, its server and its position there.
    fn offered(&self) -> Vec<(String, Arc<ToolServer>, usize)> {
        let mut names = BTreeSet::new();
        let mut offered = Vec::new();
        let started = self.started.lock().clone();
        for server in started {
            for (at, tool) in server.tools.iter().enumerate().take(MAX_TOOLS - names.len()) {
                // A server that has ended keeps its names, so that none becomes that of another tool.
                let name = offered_name(&server.name, &tool.name, &mut names);
                if server.runs() {
                    offered.push((name, Arc::clone(&server), at));
                }
            }
        }
        offered
    }

    /// Returns whether a server that runs has a tool with this name for the model.
    pub(super) fn has(&self, name: &str) -> bool {
        self.offered().iter().any(|(offered, ..)| offered == name)
    }

    /// Returns whether a tool may write files: it does not say that it only reads.
    pub(super) fn may_write(&self, name: &str) -> bool {
        let offered = self.offered();
        let found = offered.iter().find(|(offered, ..)| offered == name);
        found.is_some_and(|(_, server, at)| {
            let annotations = server.tools[*at].annotations.as_ref();
            annotations.and_then(|hints| hints.read_only_hint) != Some(true)
        })
    }

    /// Calls a tool by its name for the model.
    pub(super) async fn call(
        &self,
        name: &str,
        args: &Value,
        limit: Duration,
        cancellation: &Cancellation,
    ) -> ToolOutcome {
        let found = self.offered().into_iter().find(|(offered, ..)| offered == name);
        let Some((_, server, at)) = found else {
            return ToolOutcome::failed(format!("There is no tool {name} any more."));
        };
        match server.call(&server.tools[at], args, limit, cancellation).await {
            Ok(result) => outcome(&result),
            Err(problem) => ToolOutcome::failed(cut(problem)),
        }
    }

    /// Ends all servers.
    pub(super) async fn close(&self) {
        self.starting.lock().await.abort_all();
        let started = std::mem::take(&mut *self.started.lock());
        let ends = started.iter().filter_map(|server| server.service.lock().take());
        let mut ending = JoinSet::new();
        for mut service in ends {
            // A server that does not end is killed when its service is dropped.
            drop(ending.spawn(async move { drop(service.close_with_timeout(END_LIMIT).await) }));
        }
        while ending.join_next().await.is_some() {}
    }
}

impl ToolServer {
    fn runs(&self) -> bool {
        !self.peer.is_transport_closed()
    }

    async fn call(
        &self,
        tool: &Tool,
        args: &Value,
        limit: Duration,
        cancellation: &Cancellation,
    ) -> Result<CallToolResult, String> {
        let mut params = CallToolRequestParams::new(tool.name.clone());
        params.arguments = args.as_object().cloned();
        let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
        let ended = || format!("The MCP server {} has ended.", self.name);
        let options = PeerRequestOptions::no_options();
        let mut call =
            self.peer.send_cancellable_request(request, options).await.map_err(|_| ended())?;
        let (problem, reason) = tokio::select! {
            reply = &mut call.rx => return match reply {
                Ok(Ok(ServerResult::CallToolResult(result))) => Ok(result),
                Ok(Ok(_)) => Err(format!("The MCP server {} did not return a result.", self.name)),
                Ok(Err(error)) if self.runs() => Err(error.to_string()),
                Ok(Err(_)) | Err(_) => Err(ended()),
            },
            () = cancellation.canceled() => ("The call was canceled.".to_owned(), "canceled"),
            () = sleep(limit) => {
                (format!("The tool gave no result within {} s.", limit.as_secs()), "timeout")
            }
        };
        // A server that has ended or reads nothing does not delay the result.
        drop(timeout(CANCEL_LIMIT, call.cancel(Some(reason.to_owned()))).await);
        Err(problem)
    }
}

/// Starts a server and asks for its tools.
async fn start(agent: &Agent, server: McpServer, cwd: &Path) -> Result<ToolServer, String> {
    let service = match server.kind.as_deref() {
        None | Some("stdio") => {
            let command = command(agent, &server, cwd).await?;
            let problem = |error| format!("{} cannot be started: {error}", server.command);
            let process = TokioChildProcess::new(command).map_err(problem)?;
            serve_client((), process).await
        }
        Some("http") => {
            // The provider is global to the process; an error means that there is one already.
            drop(rustls::crypto::ring::default_provider().install_default());
            let config = http_config(&server)?;
            serve_client((), StreamableHttpClientTransport::from_config(config)).await
        }
        Some(kind) => return Err(format!("servers of the type {kind} are not supported")),
    };
    let service = service.map_err(|error| error.to_string())?;
    let mut tools = service.list_all_tools().await.map_err(|error| error.to_string())?;
    tools.truncate(MAX_TOOLS);
    tools.retain(|tool| is_offered(&server.name, tool));
    let (peer, service) = (service.peer().clone(), Mutex::new(Some(service)));
    Ok(ToolServer { name: server.name, peer, service, tools })
}

/// Returns whether the definition of a tool is short enough for a prompt.
fn is_offered(server: &str, tool: &Tool) -> bool {
    let is_short = json_bytes(tool) <= MAX_DEFINITION_BYTES;
    if !is_short {
        let limit = MAX_DEFINITION_BYTES >> 10;
        log(&format!(
            "the tool {} of {server} is left out: its definition has more than {limit} KiB",
            tool.name
        ));
    }
    is_short
}

/// Returns the command of a server, which sees the variables that tools may see, and those that the editor names.
async fn command(agent: &Agent, server: &McpServer, cwd: &Path) -> Result<Command, String> {
    let variables = address::variables();
    let params = EnvSanitizeParams { variables: exec::to_text(&variables) };
    let judged = agent.daemon.call::<EnvSanitize>(&params).await;
    let judged = judged.map_err(|error| error.to_string())?;
    let mut command = Command::new(&server.command);
    command.args(&server.args).current_dir(cwd).env_clear();
    command.envs(exec::allowed(variables, &judged));
    command.envs(server.env.iter().map(|NamedValue { name, value }| (name, value)));
    Ok(command)
}

fn http_config(server: &McpServer) -> Result<StreamableHttpClientTransportConfig, String> {
    let mut config = StreamableHttpClientTransportConfig::with_uri(server.url.clone());
    for NamedValue { name, value } in &server.headers {
        let header = name.parse().ok().zip(value.parse().ok());
        // The value may be a secret.
        let (name, value) = header.ok_or_else(|| format!("{name} is not a valid header"))?;
        drop(config.custom_headers.insert(name, value));
    }
    Ok(config)
}

/// Returns the name of a tool for the model, `SERVER__TOOL`, which no other tool has.
fn offered_name(server: &str, tool: &str, names: &mut BTreeSet<String>) -> String {
    let plain = |char: char| {
        if char.is_ascii_alphanumeric() || char == '_' || char == '-' { char } else { '_' }
    };
    let base: String =
        format!("{server}__{tool}").chars().map(plain).take(MAX_NAME_CHARS).collect();
    let numbered = (2..).map(|number| {
        let end = format!("_{number}");
        format!("{}{end}", &base[..base.len().min(MAX_NAME_CHARS - end.len())])
    });
    let mut candidates = std::iter::once(base.clone()).chain(numbered);
    // The candidates do not end before there are more names than tools.
    candidates.find(|name| names.insert(name.clone())).unwrap_or(base)
}

/// Returns the text of a result, for the model and for the person.
fn outcome(result: &CallToolResult) -> ToolOutcome {
    let mut texts: Vec<String> = result.content.iter().map(text_of).collect();
    if texts.is_empty() {
        texts.extend(result.structured_content.as_ref().map(Value::to_string));
    }
    let has_failed = result.is_error == Some(true);
    ToolOutcome { text: cut(texts.join("\n")), has_failed }
}

fn text_of(content: &ContentBlock) -> String {
    match content {
        ContentBlock::Text(text) => text.text.clone(),
        ContentBlock::Image(image) => format!("[an image of the type {}]", image.mime_type),
        ContentBlock::Audio(audio) => format!("[a sound of the type {}]", audio.mime_type),
        ContentBlock::Resource(embedded) => match &embedded.resource {
            ResourceContents::TextResourceContents { uri, text, .. } => format!("{uri}:\n{text}"),
            ResourceContents::BlobResourceContents { uri, .. } => format!("[{uri}: no text]"),
            _ => "[a resource of an unknown kind]".to_owned(),
        },
        ContentBlock::ResourceLink(link) => link.uri.clone(),
        _ => "[content of an unknown kind]".to_owned(),
    }
}

/// Cuts a text that is too long, and says so.
fn cut(mut text: String) -> String {
    if text.len() > MAX_RESULT_BYTES {
        let n_bytes = text.len();
        text.truncate(beginning(&text, MAX_RESULT_BYTES).len());
        text.push_str(&format!("\n[{} further bytes left out]", n_bytes - text.len()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_tools_are_plain_short_and_different() {
        let mut names = BTreeSet::new();
        let mut check = |server: &str, tool: &str, expect: &str| {
            assert_eq!(offered_name(server, tool, &mut names), expect);
        };
        check("files", "read", "files__read");
        check("files", "read", "files__read_2");
        check("my files", "größe.lesen", "my_files__gr__e_lesen");
        check("s", &"x".repeat(80), &format!("s__{}", "x".repeat(61)));
        check("s", &"x".repeat(81), &format!("s__{}_2", "x".repeat(59)));
    }

    #[test]
    fn result_is_text_and_cut_at_its_limit() {
        let result: CallToolResult = serde_json::from_value(json!({
            "content": [{ "type": "text", "text": "a" }, { "type": "image", "data": "AA==", "mimeType": "image/png" }],
            "isError": true,
        }))
        .unwrap();
        let found = outcome(&result);
        assert_eq!(
            (found.text.as_str(), found.has_failed),
            ("a\n[an image of the type image/png]", true)
        );
        let only_json = json!({ "content": [], "structuredContent": { "n": 1 } });
        assert_eq!(outcome(&serde_json::from_value(only_json).unwrap()).text, r#"{"n":1}"#);
        let long = cut("é".repeat(MAX_RESULT_BYTES));
        assert!(long.ends_with(&format!("\n[{MAX_RESULT_BYTES} further bytes left out]")));
        assert!(long.len() < MAX_RESULT_BYTES + 64);
    }
}
