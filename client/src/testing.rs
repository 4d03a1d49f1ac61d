//! Fixtures of this crate's tests: sessions, temporary homes with a small server, and whole command lines.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, mpsc};
use std::thread::JoinHandle;

use ollm_protocol::content::Session;
use serde_json::{Value, json};

use crate::address::{Address, Environment};
use crate::command_error::CommandError;
use crate::commands::run_command;
use crate::connection::Connector;
use crate::render::RenderOptions;
use crate::render::terminal::Terminal;

/// The id of [`session_json`].
pub(crate) const SESSION_ID: &str = "0192f0c1-9a3b-7000-8000-000000000001";

/// Returns an active session.
pub(crate) fn session_named(id: &str, title: &str) -> Session {
    serde_json::from_value(json!({
        "sessionId": id, "title": title, "description": "", "status": "active",
        "startTime": "2026-01-27T08:00:00Z", "lastActivity": "2026-01-27T09:00:00Z",
        "messageCount": 2, "toolCallCount": 0, "tokenCount": 10, "compressionCount": 0
    }))
    .unwrap()
}

/// Returns a session as the daemon sends it.
pub(crate) fn session_json() -> Value {
    serde_json::to_value(session_named(SESSION_ID, "Lists")).unwrap()
}

/// Returns options for a terminal of that width, one hour after the last activity of [`session_named`], in UTC.
pub(crate) fn render_options(width: usize) -> RenderOptions {
    RenderOptions {
        width,
        prose_columns: None,
        is_styled: true,
        now: "2026-01-27T10:00:00Z".parse().unwrap(),
        local_time: |at| at.to_utc().fixed_offset(),
        full: false,
    }
}

/// Returns a text without its styles.
pub(crate) fn plain(text: &str) -> String {
    anstream::adapter::strip_str(text).to_string()
}

/// A temporary directory for a socket and a daemon's home.
pub(crate) struct TestHome(tempfile::TempDir);

impl TestHome {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path().join("s.sock")
    }

    /// Returns a connector to [`TestHome::socket`] that starts nothing.
    pub(crate) fn connector(&self) -> Connector {
        self.connector_with(&Environment { no_spawn: true, ..Environment::default() })
    }

    pub(crate) fn connector_with(&self, environment: &Environment) -> Connector {
        // The home is not given, so the socket decides and the small server is not asked for its home.
        let variables =
            Environment { user_home: Some(self.path().join("home")), ..environment.clone() };
        let address = Address::new(None, Some(self.socket()), &variables).unwrap();
        Connector::new(address, environment)
    }

    /// Serves one connection: passes each request to `answer`, which writes to the stream.
    pub(crate) fn serve(
        &self,
        answer: impl FnMut(&Value, &mut UnixStream) + Send + 'static,
    ) -> JoinHandle<()> {
        self.serve_connections(1, answer)
    }

    /// As [`TestHome::serve`], for some connections at once.
    pub(crate) fn serve_connections(
        &self,
        number: usize,
        answer: impl FnMut(&Value, &mut UnixStream) + Send + 'static,
    ) -> JoinHandle<()> {
        let listener = UnixListener::bind(self.socket()).unwrap();
        let answer = Mutex::new(answer);
        let serve = move |mut stream: UnixStream| {
            let reader = BufReader::new(stream.try_clone().unwrap());
            for line in reader.lines() {
                let Ok(line) = line else { return };
                answer.lock().unwrap()(&serde_json::from_str(&line).unwrap(), &mut stream);
            }
        };
        std::thread::spawn(move || {
            std::thread::scope(|scope| {
                for stream in listener.incoming().take(number) {
                    let serve = &serve;
                    scope.spawn(move || serve(stream.unwrap()));
                }
            });
        })
    }
}

/// Sends one message.
pub(crate) fn send(stream: &mut UnixStream, message: &Value) {
    stream.write_all(format!("{message}\n").as_bytes()).unwrap();
}

/// Sends the result of a request.
pub(crate) fn reply(stream: &mut UnixStream, request: &Value, result: &Value) {
    send(stream, &json!({ "jsonrpc": "2.0", "id": request["id"], "result": result }));
}

/// Writes a daemon's `daemon.json`.
pub(crate) fn write_daemon_file(home: &Path, socket: &Path, pid: u32, protocol: u32) {
    let file = json!({
        "socket": socket, "pid": pid, "version": "0.1.0", "protocol": protocol,
        "startedAt": "2026-01-27T10:00:00Z"
    });
    serde_json::to_writer(File::create(home.join("daemon.json")).unwrap(), &file).unwrap();
}

/// The output of a command, its error, and the calls that it made.
pub(crate) struct CommandRun {
    pub(crate) stdout: String,
    pub(crate) error: Option<CommandError>,
    pub(crate) calls: Vec<(String, Value)>,
}

impl CommandRun {
    pub(crate) fn methods(&self) -> Vec<&str> {
        self.calls.iter().map(|(method, _)| method.as_str()).collect()
    }
}

/// Runs a command against a daemon that returns `answer`; `None` stands for an unknown method.
pub(crate) fn run_against(
    line: &[&str],
    mut answer: impl FnMut(&str, &Value) -> Option<Value> + Send + 'static,
) -> CommandRun {
    let home = TestHome::new();
    let (sender, calls) = mpsc::channel();
    // Calls with events have a connection of their own.
    let _server = home.serve_connections(2, move |request, stream| {
        let method = request["method"].as_str().unwrap();
        sender.send((method.to_owned(), request["params"].clone())).unwrap();
        match answer(method, &request["params"]) {
            Some(result) => reply(stream, request, &result),
            None => {
                let error = json!({"code": -32601, "message": "no such method"});
                send(stream, &json!({"jsonrpc": "2.0", "id": request["id"], "error": error}));
            }
        }
    });
    let no_spawn = [&["--no-spawn"], line].concat();
    let (stdout, error) = run_at(&home.socket(), &no_spawn, &Environment::default());
    CommandRun { stdout, error, calls: calls.try_iter().collect() }
}

/// Runs a command with a socket; returns its output and its error.
pub(crate) fn run_at(
    socket: &Path,
    line: &[&str],
    environment: &Environment,
) -> (String, Option<CommandError>) {
    let start = ["ollmctl", "--socket", socket.to_str().unwrap()];
    let environment = &Environment { user_home: Some("/nowhere".into()), ..environment.clone() };
    let (mut terminal, output) = Terminal::captured(false);
    let result = run_command(&[&start, line].concat(), environment, &mut terminal);
    (output.text(), result.err())
}
