//! A daemon of its own home, and a plain blocking client of it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

/// The binary under test.
pub(crate) const OLLMD: &str = env!("CARGO_BIN_EXE_ollmd");
/// Longer than any daemon needs to listen; a program that waits longer has failed.
const PATIENCE: Duration = Duration::from_secs(30);
/// A catalog that is ready for so long has been compared with the logs.
const STAYS_READY: Duration = Duration::from_millis(600);
/// The home keeps all sessions of a measurement, however many and however old.
const CONFIG: &str =
    "sessions: { maxSessions: 0, maxSessionsPerProject: 0, autoArchiveAfterDays: 0 }\n";

/// A scratch home on the disk of the build directory, because memory file systems sync for nothing.
pub(crate) struct Home {
    path: PathBuf,
    /// Removes it at the end.
    _scratch: Option<tempfile::TempDir>,
}

impl Home {
    /// An empty home.
    pub(crate) fn new() -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("b").tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
        let home = Self::at(dir.path())?;
        Ok(Self { _scratch: Some(dir), ..home })
    }

    /// A home that stays, so that a later run finds the logs of an earlier one. The directory must be there.
    pub(crate) fn at(path: &Path) -> Result<Self> {
        let sessions = path.join("sessions");
        if !sessions.is_dir() {
            std::fs::create_dir(&sessions)?;
        }
        let mut config = std::fs::File::create(path.join("config.yaml"))?;
        config.write_all(CONFIG.as_bytes())?;
        Ok(Self { path: path.to_owned(), _scratch: None })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// A running daemon; killed when dropped.
pub(crate) struct Daemon {
    child: Child,
    socket: PathBuf,
}

impl Daemon {
    /// Starts the daemon of a home; returns as soon as it accepts.
    pub(crate) fn start(home: &Home) -> Result<Self> {
        let socket = home.path().join("s");
        // A killed daemon leaves its socket, which would refuse instead of being absent.
        drop(std::fs::remove_file(&socket));
        let child = Command::new(OLLMD)
            .env("OLLM_HOME", home.path())
            .arg("--socket")
            .arg(&socket)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("start ollmd")?;
        let mut daemon = Self { child, socket };
        let deadline = Instant::now() + PATIENCE;
        while UnixStream::connect(&daemon.socket).is_err() {
            if Instant::now() > deadline || daemon.child.try_wait()?.is_some() {
                bail!("ollmd did not listen on {}", daemon.socket.display());
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(daemon)
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A new connection.
    pub(crate) fn connect(&self) -> Result<Client> {
        Client::connect(&self.socket)
    }

    /// Asks it to leave and waits until it has.
    pub(crate) fn stop(mut self) -> Result<()> {
        self.connect()?.call("daemon.shutdown", &json!({}))?;
        self.child.wait()?;
        Ok(())
    }

    /// Waits until the catalog holds every record, and says how long that took.
    pub(crate) fn wait_indexed(&self, at_most: Duration) -> Result<Duration> {
        let started = Instant::now();
        let mut client = self.connect()?;
        // A daemon that just started compares with the logs only after a while, so being ready once is not enough.
        let mut ready_since = None;
        while ready_since.is_none_or(|since: Instant| since.elapsed() < STAYS_READY) {
            if started.elapsed() > at_most {
                bail!("the catalog is still behind after {at_most:?}");
            }
            let catalog = client.call("daemon.status", &json!({}))?["catalog"].take();
            let is_ready = catalog["state"] == "ready" && catalog["behind"] == 0;
            ready_since = is_ready.then(|| ready_since.unwrap_or_else(Instant::now));
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(ready_since.unwrap_or(started).duration_since(started))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A blocking client: one call at a time, one line each way.
pub(crate) struct Client {
    stream: UnixStream,
    replies: BufReader<UnixStream>,
    line: Vec<u8>,
}

impl Client {
    /// Connects to a socket.
    pub(crate) fn connect(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket)?;
        let replies = BufReader::with_capacity(1 << 16, stream.try_clone()?);
        Ok(Self { stream, replies, line: Vec::new() })
    }

    /// Sends one line that ends with a line break, and returns the line that answers it.
    pub(crate) fn exchange(&mut self, request: &[u8]) -> Result<&[u8]> {
        self.stream.write_all(request)?;
        self.line.clear();
        self.replies.read_until(b'\n', &mut self.line)?;
        Ok(&self.line)
    }

    /// Calls a method.
    pub(crate) fn call(&mut self, method: &str, params: &Value) -> Result<Value> {
        let request = request(method, params);
        let mut reply: Value = serde_json::from_slice(self.exchange(&request)?)
            .with_context(|| format!("read the reply to {method}"))?;
        if let Some(error) = reply.get("error") {
            bail!("{method} failed: {error}");
        }
        Ok(reply["result"].take())
    }
}

/// One call as a line.
pub(crate) fn request(method: &str, params: &Value) -> Vec<u8> {
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    let mut line = call.to_string().into_bytes();
    line.push(b'\n');
    line
}
