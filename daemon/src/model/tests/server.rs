//! A server that reads whole requests, stores them, and runs a script for each.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use serde_json::{Value, json};

/// A step of a script.
#[derive(Clone, Debug)]
pub(super) enum ScriptStep {
    /// Sends the head of a streamed response.
    Begin,
    /// Sends an HTTP chunk.
    Chunk(Vec<u8>),
    /// Sends the end of the body.
    End,
    /// Sends bytes unchanged.
    Raw(Vec<u8>),
    /// Sends the given number of bytes as a line without an end.
    Flood(usize),
    /// Waits until the client disconnects.
    Hang,
    /// Closes the connection.
    Close,
}

impl ScriptStep {
    /// Sends a line of a streamed answer.
    pub(super) fn line(value: &Value) -> Self {
        Self::Chunk(format!("{value}\n").into_bytes())
    }
}

/// Returns the step that sends a whole response.
pub(super) fn response(status: u16, headers: &str, body: &str) -> Vec<ScriptStep> {
    let length = body.len();
    let head = format!("HTTP/1.1 {status} Whatever\r\n{headers}Content-Length: {length}\r\n\r\n");
    vec![ScriptStep::Raw(format!("{head}{body}").into_bytes())]
}

/// A received request.
#[derive(Clone, Debug)]
pub(super) struct ReceivedRequest {
    /// The method and the path.
    pub(super) line: String,
    /// The headers, in lower case.
    pub(super) head: String,
    pub(super) body: Value,
    /// The number of the connection, from 1.
    pub(super) connection: usize,
}

type Script = dyn Fn(&ReceivedRequest, usize) -> Vec<ScriptStep> + Send + Sync;

#[derive(Default)]
struct ServerState {
    requests: Vec<ReceivedRequest>,
    n_connections: usize,
    n_disconnected: usize,
    flooded_bytes: usize,
}

struct ServerShared {
    state: Mutex<ServerState>,
    changed: Condvar,
}

/// A scripted server, which runs until the process ends.
pub(super) struct ScriptedServer {
    port: u16,
    shared: Arc<ServerShared>,
}

impl ScriptedServer {
    /// Starts a server that reports `version` and runs the same steps for every other request.
    pub(super) fn new(version: &'static str, steps: Vec<ScriptStep>) -> Self {
        Self::scripted(version, move |_, _| steps.clone())
    }

    /// Starts a server that reports `version` and runs `script` for every other request, which also gets the number of
    /// the request, from 1.
    pub(super) fn scripted(
        version: &'static str,
        script: impl Fn(&ReceivedRequest, usize) -> Vec<ScriptStep> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let shared = Arc::new(ServerShared { state: Mutex::default(), changed: Condvar::new() });
        let (all, script): (_, Arc<Script>) = (Arc::clone(&shared), Arc::new(script));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                let connection = {
                    let mut state = all.state.lock();
                    state.n_connections += 1;
                    state.n_connections
                };
                let (shared, script) = (Arc::clone(&all), Arc::clone(&script));
                std::thread::spawn(move || {
                    let served = serve(stream, connection, version, &shared, &*script);
                    let mut state = shared.state.lock();
                    state.n_disconnected += usize::from(
                        served.is_err() || served.is_ok_and(|disconnected| disconnected),
                    );
                    shared.changed.notify_all();
                });
            }
        });
        Self { port, shared }
    }

    pub(super) fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Returns the requests so far, except those for the version.
    pub(super) fn requests(&self) -> Vec<ReceivedRequest> {
        let state = self.shared.state.lock();
        let counts = |request: &&ReceivedRequest| request.line != "GET /api/version";
        state.requests.iter().filter(counts).cloned().collect()
    }

    /// Returns the number of requests for the version.
    pub(super) fn n_version_requests(&self) -> usize {
        let state = self.shared.state.lock();
        state.requests.iter().filter(|request| request.line == "GET /api/version").count()
    }

    /// Returns the number of flood bytes that clients have received.
    pub(super) fn flooded_bytes(&self) -> usize {
        self.shared.state.lock().flooded_bytes
    }

    /// Waits until a client has disconnected during a script.
    ///
    /// It waits on another thread, because the runtime of the test must close the connection.
    pub(super) async fn wait_for_disconnect(&self) {
        let shared = Arc::clone(&self.shared);
        let waited = tokio::task::spawn_blocking(move || {
            let mut state = shared.state.lock();
            let is_connected = |state: &mut ServerState| state.n_disconnected == 0;
            shared.changed.wait_while_for(&mut state, is_connected, super::LONG).timed_out()
        });
        assert!(!waited.await.expect("waits"), "the client is still connected");
    }
}

/// Serves a connection; returns whether the client disconnected while the script was hanging.
fn serve(
    mut stream: TcpStream,
    connection: usize,
    version: &str,
    shared: &ServerShared,
    script: &Script,
) -> std::io::Result<bool> {
    stream.set_nodelay(true)?;
    while let Some(request) = read(&mut stream, connection)? {
        let number = {
            let mut state = shared.state.lock();
            state.requests.push(request.clone());
            let counts = |request: &&ReceivedRequest| request.line != "GET /api/version";
            state.requests.iter().filter(counts).count()
        };
        let steps = if request.line == "GET /api/version" && !version.is_empty() {
            response(200, "", &json!({ "version": version }).to_string())
        } else {
            script(&request, number)
        };
        for step in steps {
            match step {
                ScriptStep::Begin => stream.write_all(
                    b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\n\
                      Transfer-Encoding: chunked\r\n\r\n",
                )?,
                ScriptStep::Chunk(bytes) => {
                    write!(stream, "{:x}\r\n", bytes.len())?;
                    stream.write_all(&bytes)?;
                    stream.write_all(b"\r\n")?;
                }
                ScriptStep::End => stream.write_all(b"0\r\n\r\n")?,
                ScriptStep::Raw(bytes) => stream.write_all(&bytes)?,
                ScriptStep::Flood(bytes) => flood(&mut stream, bytes, shared)?,
                ScriptStep::Hang => return Ok(stream.read(&mut [0])? == 0),
                ScriptStep::Close => return Ok(false),
            }
        }
    }
    Ok(false)
}

fn flood(stream: &mut TcpStream, bytes: usize, shared: &ServerShared) -> std::io::Result<()> {
    let chunk = vec![b'x'; 1 << 20];
    for _ in 0..bytes / chunk.len() {
        write!(stream, "{:x}\r\n", chunk.len())?;
        stream.write_all(&chunk)?;
        stream.write_all(b"\r\n")?;
        shared.state.lock().flooded_bytes += chunk.len();
    }
    Ok(())
}

fn read(stream: &mut TcpStream, connection: usize) -> std::io::Result<Option<ReceivedRequest>> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end;
        }
        let mut byte = [0];
        if stream.read(&mut byte)? == 0 {
            return Ok(None);
        }
        bytes.push(byte[0]);
    };
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let (line, head) = head.split_once("\r\n").expect("a head");
    let line = line.trim_end_matches(" HTTP/1.1").to_owned();
    let head = head.to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().expect("a length"))];
    stream.read_exact(&mut body)?;
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    Ok(Some(ReceivedRequest { line, head, body, connection }))
}
