//! A server of scripted bytes: it reads whole requests, remembers them, and does what the script says.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use serde_json::{Value, json};

/// What is done on a connection, one after the other.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// The head of a streamed answer.
    Begin,
    /// One piece of it, as one HTTP chunk.
    Piece(Vec<u8>),
    /// Its proper end.
    End,
    /// Bytes as they are.
    Raw(Vec<u8>),
    /// So many bytes of one letter in one endless line.
    Flood(usize),
    /// Nothing, until the other side leaves.
    Hang,
    /// The connection is closed.
    Close,
}

impl Step {
    /// One line of a streamed answer.
    pub(super) fn line(value: &Value) -> Self {
        Self::Piece(format!("{value}\n").into_bytes())
    }
}

/// A whole answer with a status.
pub(super) fn answer(status: u16, headers: &str, body: &str) -> Vec<Step> {
    let length = body.len();
    let head = format!("HTTP/1.1 {status} Whatever\r\n{headers}Content-Length: {length}\r\n\r\n");
    vec![Step::Raw(format!("{head}{body}").into_bytes())]
}

/// A request as it arrived.
#[derive(Clone, Debug)]
pub(super) struct Request {
    /// The method and the path.
    pub(super) line: String,
    /// The other lines of the head, in small letters.
    pub(super) head: String,
    pub(super) body: Value,
    /// Which connection it came on, from 1.
    pub(super) connection: usize,
}

type Script = dyn Fn(&Request, usize) -> Vec<Step> + Send + Sync;

#[derive(Default)]
struct Seen {
    requests: Vec<Request>,
    connections: usize,
    left: usize,
    flooded: usize,
}

struct Shared {
    seen: Mutex<Seen>,
    changed: Condvar,
}

/// The server; it serves as long as the process lives.
pub(super) struct Server {
    port: u16,
    shared: Arc<Shared>,
}

impl Server {
    /// Tells its version, and does the same for every other request.
    pub(super) fn new(version: &'static str, steps: Vec<Step>) -> Self {
        Self::scripted(version, move |_, _| steps.clone())
    }

    /// Tells its version, and asks the script for every other request; the number counts these from 1.
    pub(super) fn scripted(
        version: &'static str,
        script: impl Fn(&Request, usize) -> Vec<Step> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let shared = Arc::new(Shared { seen: Mutex::default(), changed: Condvar::new() });
        let (all, script): (_, Arc<Script>) = (Arc::clone(&shared), Arc::new(script));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                let connection = {
                    let mut seen = all.seen.lock();
                    seen.connections += 1;
                    seen.connections
                };
                let (shared, script) = (Arc::clone(&all), Arc::clone(&script));
                std::thread::spawn(move || {
                    let served = serve(stream, connection, version, &shared, &*script);
                    let mut seen = shared.seen.lock();
                    seen.left += usize::from(served.is_err() || served.is_ok_and(|left| left));
                    shared.changed.notify_all();
                });
            }
        });
        Self { port, shared }
    }

    pub(super) fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The requests so far, those for the version left out.
    pub(super) fn requests(&self) -> Vec<Request> {
        let seen = self.shared.seen.lock();
        let asked = |request: &&Request| request.line != "GET /api/version";
        seen.requests.iter().filter(asked).cloned().collect()
    }

    /// How many bytes of floods were taken.
    pub(super) fn flooded(&self) -> usize {
        self.shared.seen.lock().flooded
    }

    /// Waits until a client left in the middle of something.
    ///
    /// Beside the runtime, which closes the connection.
    pub(super) async fn wait_for_leaving(&self) {
        let shared = Arc::clone(&self.shared);
        let waited = tokio::task::spawn_blocking(move || {
            let mut seen = shared.seen.lock();
            let still = |seen: &mut Seen| seen.left == 0;
            shared.changed.wait_while_for(&mut seen, still, super::LONG).timed_out()
        });
        assert!(!waited.await.expect("waits"), "the client is still there");
    }
}

/// Serves a connection; true when the client left while the script hung.
fn serve(
    mut stream: TcpStream,
    connection: usize,
    version: &str,
    shared: &Shared,
    script: &Script,
) -> std::io::Result<bool> {
    stream.set_nodelay(true)?;
    while let Some(request) = read(&mut stream, connection)? {
        let number = {
            let mut seen = shared.seen.lock();
            seen.requests.push(request.clone());
            let asked = |request: &&Request| request.line != "GET /api/version";
            seen.requests.iter().filter(asked).count()
        };
        let steps = if request.line == "GET /api/version" && !version.is_empty() {
            answer(200, "", &json!({ "version": version }).to_string())
        } else {
            script(&request, number)
        };
        for step in steps {
            match step {
                Step::Begin => stream.write_all(
                    b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\n\
                      Transfer-Encoding: chunked\r\n\r\n",
                )?,
                Step::Piece(bytes) => {
                    write!(stream, "{:x}\r\n", bytes.len())?;
                    stream.write_all(&bytes)?;
                    stream.write_all(b"\r\n")?;
                }
                Step::End => stream.write_all(b"0\r\n\r\n")?,
                Step::Raw(bytes) => stream.write_all(&bytes)?,
                Step::Flood(bytes) => flood(&mut stream, bytes, shared)?,
                Step::Hang => return Ok(stream.read(&mut [0])? == 0),
                Step::Close => return Ok(false),
            }
        }
    }
    Ok(false)
}

fn flood(stream: &mut TcpStream, bytes: usize, shared: &Shared) -> std::io::Result<()> {
    let piece = vec![b'x'; 1 << 20];
    for _ in 0..bytes / piece.len() {
        write!(stream, "{:x}\r\n", piece.len())?;
        stream.write_all(&piece)?;
        stream.write_all(b"\r\n")?;
        shared.seen.lock().flooded += piece.len();
    }
    Ok(())
}

fn read(stream: &mut TcpStream, connection: usize) -> std::io::Result<Option<Request>> {
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
    Ok(Some(Request { line, head, body, connection }))
}
