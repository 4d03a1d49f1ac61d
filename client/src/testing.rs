//! What the tests of this crate share: sessions made of little, and a small server.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread::JoinHandle;

use ollm_protocol::content::Session;
use serde_json::{Value, json};

use crate::address::{Address, Environment};
use crate::connection::Connector;

/// An active session with an id and a title.
pub(crate) fn session_named(id: &str, title: &str) -> Session {
    serde_json::from_value(json!({
        "sessionId": id, "title": title, "description": "", "status": "active",
        "startTime": "2026-01-27T08:00:00Z", "lastActivity": "2026-01-27T09:00:00Z",
        "messageCount": 2, "toolCallCount": 0, "tokenCount": 10, "compressionCount": 0
    }))
    .unwrap()
}

/// A home of its own, and what listens in it.
pub(crate) struct Scratch {
    /// Removed with everything in it.
    pub(crate) directory: tempfile::TempDir,
}

impl Scratch {
    pub(crate) fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("s.sock")
    }

    /// A connector that leads to [`Scratch::socket`] and starts nothing.
    pub(crate) fn connector(&self) -> Connector {
        self.connector_with(&Environment { no_spawn: true, ..Environment::default() })
    }

    pub(crate) fn connector_with(&self, environment: &Environment) -> Connector {
        let home = Some(self.directory.path().join("home"));
        Connector::new(Address::new(home, Some(self.socket()), environment).unwrap(), environment)
    }

    /// Serves one connection: each request line is handed to `answer`, and what it writes is sent.
    pub(crate) fn serve(
        &self,
        mut answer: impl FnMut(&Value, &mut UnixStream) + Send + 'static,
    ) -> JoinHandle<()> {
        let listener = UnixListener::bind(self.socket()).unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let reader = BufReader::new(stream.try_clone().unwrap());
            for line in reader.lines() {
                let Ok(line) = line else { return };
                answer(&serde_json::from_str(&line).unwrap(), &mut stream);
            }
        })
    }
}

/// Sends one line.
pub(crate) fn send(stream: &mut UnixStream, message: &Value) {
    stream.write_all(format!("{message}\n").as_bytes()).unwrap();
}

/// Sends the result of a request.
pub(crate) fn reply(stream: &mut UnixStream, request: &Value, result: &Value) {
    send(stream, &json!({ "jsonrpc": "2.0", "id": request["id"], "result": result }));
}
