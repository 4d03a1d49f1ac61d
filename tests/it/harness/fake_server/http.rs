//! An HTTP/1.1 server with a thread for each connection, which carries out the steps of each reply.
//!
//! A reply is a list, so that a fault is an edit of the list. Each step is one write, and none waits for another: the
//! delay of a token is that of its reader.

use std::io::{self, BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::Value;

/// The pause between two looks at whether a stalled reply continues.
const POLL: Duration = Duration::from_millis(2);
/// The time of one of the pauses of which a hanging reply consists.
const LONG: Duration = Duration::from_secs(3600);
/// The bytes of a part of a flood.
const FLOOD_BYTES: usize = 1 << 20;

/// A step of a reply.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Sends the head of a reply with status 200 and this content type, whose body follows in parts.
    Begin(&'static str),
    /// Sends a part of the body.
    Chunk(Vec<u8>),
    /// Sends a part of the body that is made when its turn comes.
    LateChunk(fn() -> Vec<u8>),
    /// Sends this number of bytes without a line break, in parts.
    Flood(usize),
    /// Sends the end of the body.
    End,
    /// Sends bytes unchanged.
    Raw(Vec<u8>),
    /// Waits.
    Pause(Duration),
    /// Waits until [`FakeServer::resume`].
    Stall,
    /// Waits until the client disconnects.
    Hang,
    /// Closes the connection.
    Close,
}

impl Step {
    /// Sends a part of the body that is one line of JSON.
    pub(crate) fn line(value: &Value) -> Self {
        Self::Chunk(format!("{value}\n").into_bytes())
    }
}

/// Returns the step that sends a whole reply. Each line of `headers` ends with `\r\n`.
pub(crate) fn response(status: u16, headers: &str, body: &[u8]) -> Vec<Step> {
    let length = body.len();
    let head = format!("HTTP/1.1 {status} Whatever\r\n{headers}Content-Length: {length}\r\n\r\n");
    vec![Step::Raw([head.as_bytes(), body].concat())]
}

/// A received request.
#[derive(Clone, Debug)]
pub(crate) struct HttpRequest {
    /// The method and the path, as `GET /api/tags`.
    pub(crate) line: String,
    /// The headers, a line each, with names in lower case.
    pub(crate) head: String,
    /// The JSON body; null if there is none.
    pub(crate) body: Value,
    /// The number of the connection, from 1.
    pub(crate) connection: usize,
    /// Whether the client knows only HTTP/1.0: the end of the connection is that of the body.
    is_old: bool,
    client: Arc<TcpStream>,
}

impl HttpRequest {
    /// Returns the value of a header; `name` is in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    /// Waits.
    ///
    /// **Errors**: the client disconnected meanwhile.
    pub(crate) fn pause(&self, time: Duration) -> io::Result<()> {
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return self.client.set_read_timeout(None);
            }
            self.client.set_read_timeout(Some(left))?;
            match self.client.peek(&mut [0]) {
                Ok(0) => return Err(ErrorKind::ConnectionAborted.into()),
                Ok(_) => std::thread::sleep(left),
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn send_chunk(&self, bytes: &[u8], shared: &Shared) -> io::Result<()> {
        let mut client = &*self.client;
        if self.is_old {
            client.write_all(bytes)?;
        } else {
            let head = format!("{:x}\r\n", bytes.len());
            client.write_all(&[head.as_bytes(), bytes, b"\r\n"].concat())?;
        }
        shared.counts.lock().sent_bytes += bytes.len();
        Ok(())
    }

    /// Carries out a step; returns whether the connection goes on.
    fn carry_out(&self, step: Step, shared: &Shared) -> io::Result<bool> {
        let mut client = &*self.client;
        match step {
            Step::Begin(content_type) => {
                let chunked = if self.is_old { "" } else { "Transfer-Encoding: chunked\r\n" };
                let head =
                    format!("HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\n{chunked}\r\n");
                client.write_all(head.as_bytes())?;
            }
            Step::Chunk(bytes) => self.send_chunk(&bytes, shared)?,
            Step::LateChunk(make) => self.send_chunk(&make(), shared)?,
            Step::Flood(bytes) => {
                let part = vec![b'x'; FLOOD_BYTES];
                (0..bytes / part.len()).try_for_each(|_| self.send_chunk(&part, shared))?;
            }
            Step::End if self.is_old => {}
            Step::End => client.write_all(b"0\r\n\r\n")?,
            Step::Raw(bytes) => client.write_all(&bytes)?,
            Step::Pause(time) => self.pause(time)?,
            Step::Stall => shared.hold(|| shared.take_resume(), || self.pause(POLL))?,
            Step::Hang => shared.hold(|| false, || self.pause(LONG))?,
            Step::Close => return Ok(false),
        }
        Ok(true)
    }
}

/// What a server counts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    connections: usize,
    /// The clients that disconnected during a reply.
    pub(crate) disconnected: usize,
    /// The replies that stall or hang now.
    pub(crate) held: usize,
    /// The bytes of all parts that were sent.
    pub(crate) sent_bytes: usize,
    /// The stalls that may end.
    resumes: usize,
}

#[derive(Default)]
struct Shared {
    counts: Mutex<Counts>,
    clients: Mutex<Vec<Arc<TcpStream>>>,
    is_stopped: Mutex<bool>,
}

impl Shared {
    fn take_resume(&self) -> bool {
        let mut counts = self.counts.lock();
        let is_due = counts.resumes > 0;
        counts.resumes -= usize::from(is_due);
        is_due
    }

    /// Counts a reply as held until it may go on, or until a pause fails.
    fn hold(
        &self,
        may_go_on: impl Fn() -> bool,
        pause: impl Fn() -> io::Result<()>,
    ) -> io::Result<()> {
        self.counts.lock().held += 1;
        let mut waited = Ok(());
        while waited.is_ok() && !may_go_on() {
            waited = pause();
        }
        self.counts.lock().held -= 1;
        waited
    }
}

type Answerer = dyn Fn(&HttpRequest) -> Vec<Step> + Send + Sync;

/// A running server; stopped when dropped.
pub(crate) struct FakeServer {
    host: String,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

impl FakeServer {
    /// Starts a server on a free port of this machine. `answer` returns the reply to each request, on the thread of its
    /// connection.
    pub(crate) fn start(
        answer: impl Fn(&HttpRequest) -> Vec<Step> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port is free");
        let host = listener.local_addr().expect("a bound socket has an address").to_string();
        let shared = Arc::new(Shared::default());
        let (all, answer): (_, Arc<Answerer>) = (Arc::clone(&shared), Arc::new(answer));
        let acceptor = std::thread::spawn(move || accept(&listener, &all, &answer));
        Self { host, shared, acceptor: Some(acceptor) }
    }

    /// Returns the address, without a scheme.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// Returns what was counted so far.
    pub(crate) fn counts(&self) -> Counts {
        *self.shared.counts.lock()
    }

    /// Ends one [`Step::Stall`], now or as soon as it begins.
    pub(crate) fn resume(&self) {
        self.shared.counts.lock().resumes += 1;
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        *self.shared.is_stopped.lock() = true;
        // Wakes the acceptor, which then closes the port.
        drop(TcpStream::connect(&self.host));
        drop(self.acceptor.take().map(JoinHandle::join));
        self.shared.clients.lock().iter().for_each(|client| drop(client.shutdown(Shutdown::Both)));
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>, answer: &Arc<Answerer>) {
    for client in listener.incoming() {
        if *shared.is_stopped.lock() {
            return;
        }
        let Ok(client) = client.map(Arc::new) else { return };
        let connection = {
            let mut counts = shared.counts.lock();
            counts.connections += 1;
            counts.connections
        };
        shared.clients.lock().push(Arc::clone(&client));
        let (shared, answer) = (Arc::clone(shared), Arc::clone(answer));
        std::thread::spawn(move || {
            let served = serve(&client, connection, &shared, &*answer);
            shared.counts.lock().disconnected += usize::from(served.is_err());
            shared.clients.lock().retain(|other| !Arc::ptr_eq(other, &client));
            drop(client.shutdown(Shutdown::Both));
        });
    }
}

/// Serves a connection.
///
/// **Errors**: the client disconnected during a reply.
fn serve(
    client: &Arc<TcpStream>,
    connection: usize,
    shared: &Shared,
    answer: &Answerer,
) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut reader = BufReader::new(&**client);
    while let Some(request) = read(&mut reader, client, connection)? {
        for step in answer(&request) {
            if !request.carry_out(step, shared)? {
                return Ok(());
            }
        }
        if request.is_old {
            break;
        }
    }
    Ok(())
}

/// Reads a request; `None` at the end of the connection.
fn read(
    reader: &mut BufReader<&TcpStream>,
    client: &Arc<TcpStream>,
    connection: usize,
) -> io::Result<Option<HttpRequest>> {
    let mut next_line = || -> io::Result<String> {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    };
    let first = next_line()?;
    let Some((line, version)) = first.rsplit_once(' ') else { return Ok(None) };
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let header = next_line()?;
        let Some((name, value)) = header.split_once(": ") else { break };
        let name = name.to_lowercase();
        if name == "content-length" {
            length = value.parse().map_err(io::Error::other)?;
        }
        head.push_str(&format!("{name}: {value}\n"));
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(Some(HttpRequest {
        line: line.to_owned(),
        head,
        body: serde_json::from_slice(&body).unwrap_or(Value::Null),
        connection,
        is_old: version == "HTTP/1.0",
        client: Arc::clone(client),
    }))
}
