//! What earlier conversations say about a prompt, for `--recall`.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::contents::text_of_blocks;
use super::writer::KnownSessions;
use crate::command_error::{CommandError, CommandResult};
use crate::connection::Connector;
use crate::mcp::{DaemonLink, recall_before_prompt};

/// The longest wait before a prompt passes without an addition.
pub(super) const LIMIT: Duration = Duration::from_millis(500);
/// The sessions whose projects are remembered.
const MAX_SESSIONS: usize = 256;

/// Recalls for the prompts of one editor.
pub(super) struct PromptRecall {
    link: DaemonLink,
    runtime: Runtime,
    /// The sessions that the recorder made: an agent knows what was said in its own.
    known: KnownSessions,
    /// The project of the newest session, for those whose own is not known.
    newest: Option<String>,
    projects: HashMap<String, String>,
}

impl PromptRecall {
    pub(super) fn new(connector: Connector, known: KnownSessions) -> CommandResult<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(CommandError::Thread)?;
        let link = DaemonLink::new(connector);
        Ok(Self { link, runtime, known, newest: None, projects: HashMap::new() })
    }

    /// Notes the project of a session that is opened; a new one has no id yet.
    pub(super) fn note_session(&mut self, params: &str) {
        let Ok(params) = serde_json::from_str::<Value>(params) else { return };
        let Some(cwd) = params["cwd"].as_str() else { return };
        self.newest = Some(cwd.to_owned());
        if let Some(id) = params["sessionId"].as_str()
            && self.projects.len() < MAX_SESSIONS
        {
            self.projects.insert(id.to_owned(), cwd.to_owned());
        }
    }

    /// Returns the block that goes before a prompt; `None` if nothing was found in time.
    pub(super) fn block(&mut self, session: &str, prompt: &str) -> Option<Value> {
        let blocks: Value = serde_json::from_str(prompt).ok()?;
        let question = text_of_blocks(&blocks);
        // A command of the agent is one only at the beginning of a prompt.
        if question.trim_start().starts_with('/') {
            return None;
        }
        let noted = self.projects.get(session).or(self.newest.as_ref());
        let project = self.known.directory_of(session).or_else(|| noted.cloned());
        let own = self.known.of(session);
        let recalled = recall_before_prompt(&self.link, project, question, own);
        let recalled = self.runtime.block_on(async { tokio::time::timeout(LIMIT, recalled).await });
        let text = recalled.ok()?.ok()??;
        Some(json!({ "type": "text", "text": text }))
    }
}
