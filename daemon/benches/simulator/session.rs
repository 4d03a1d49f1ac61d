//! A daemon, a scripted model server and one session, for one run.

use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::chat::Chat;
use super::server::{MODEL, Server};
use super::summarizer::Summarizer;
use crate::harness::daemon::{Daemon, Home};

/// A file system in memory; what is measured here is not the disk.
const IN_MEMORY: &str = "/dev/shm";
/// Who looks at the loops of random words finds some.
const CONFIG: &str = "sessions: { maxSessions: 0, maxSessionsPerProject: 0, autoArchiveAfterDays: 0 }\n\
    loopDetection: { enabled: false }\n";

/// A scratch home in memory where there is such a place, else beside the build.
pub(crate) struct Scratch {
    /// The home.
    pub(crate) home: Home,
    /// Removes it at the end.
    _dir: Option<tempfile::TempDir>,
}

impl Scratch {
    /// A home with a configuration.
    pub(crate) fn new(host: &str, more: &str) -> Result<Self> {
        let (home, dir) = match tempfile::Builder::new().prefix("endless").tempdir_in(IN_MEMORY) {
            Ok(dir) => (Home::at(dir.path())?, Some(dir)),
            Err(_) => (Home::new()?, None),
        };
        let config = format!("{CONFIG}ollama: {{ host: '{host}', model: '{MODEL}' }}\n{more}");
        std::fs::File::create(home.path().join("config.yaml"))?.write_all(config.as_bytes())?;
        Ok(Self { home, _dir: dir })
    }

    /// Where homes are made.
    pub(crate) fn place() -> &'static str {
        if Path::new(IN_MEMORY).is_dir() { IN_MEMORY } else { "the build directory" }
    }
}

/// Everything that one run needs.
pub(crate) struct Stage {
    /// The model.
    pub(crate) server: Server,
    /// The client.
    pub(crate) chat: Chat,
    /// The daemon.
    pub(crate) daemon: Daemon,
    next_seq: u64,
    _scratch: Scratch,
}

impl Stage {
    /// Starts a daemon with a session of a window.
    pub(crate) fn new(summarizer: Summarizer, window: u32) -> Result<Self> {
        let server = Server::start(summarizer)?;
        let scratch = Scratch::new(&server.host, "")?;
        let daemon = Daemon::start(&scratch.home)?;
        let system = "You are a careful engineer. Answer briefly.";
        let params = json!({ "model": MODEL, "contextSize": window, "systemPrompt": system });
        let created = daemon.connect()?.call("session.create", &params)?;
        let session = created["session"]["sessionId"].as_str().context("a session has an id")?;
        let chat = Chat::new(&daemon, session.to_owned())?;
        Ok(Self { server, chat, daemon, next_seq: 0, _scratch: scratch })
    }

    /// The records since this was asked last.
    pub(crate) fn new_records(&mut self) -> Result<Vec<Value>> {
        let mut records = Vec::new();
        loop {
            let params = json!({ "from": self.next_seq, "limit": 1000 });
            let mut page = self.chat.call("session.get", params)?;
            let Value::Array(page_records) = page["records"].take() else { break };
            let Some(last) = page_records.last().and_then(|record| record["seq"].as_u64()) else {
                break;
            };
            self.next_seq = last + 1;
            records.extend(page_records);
            if page["nextFrom"].is_null() {
                break;
            }
        }
        Ok(records)
    }
}
