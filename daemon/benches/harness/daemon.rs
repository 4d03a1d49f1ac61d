//! A daemon with a scratch home, a blocking client of it, and what the system reports of its process.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

/// The time in which a daemon must listen.
const START_LIMIT: Duration = Duration::from_secs(30);
/// The time for which the catalog must be ready, because a new daemon compares it with the logs after a delay.
const READY_FOR: Duration = Duration::from_millis(600);
/// Configuration that keeps all sessions of a measurement, however many and however old.
const CONFIG: &str =
    "sessions: { maxSessions: 0, maxSessionsPerProject: 0, autoArchiveAfterDays: 0 }\n";
/// A file system in memory, for measurements that the disk should not affect.
const MEMORY: &str = "/dev/shm";

/// The home directory of a daemon.
pub(crate) struct Home {
    path: PathBuf,
    /// Removes a scratch home when dropped.
    _scratch: Option<tempfile::TempDir>,
}

impl Home {
    /// Creates a scratch home on the disk of the build directory, because memory file systems do not sync.
    pub(crate) fn new() -> Result<Self> {
        Self::scratch_in(Path::new(env!("CARGO_TARGET_TMPDIR")))
    }

    /// Uses the directory that `OLLM_BENCH_HOME` names, or creates a scratch home.
    pub(crate) fn kept_or_new() -> Result<Self> {
        std::env::var_os("OLLM_BENCH_HOME")
            .map_or_else(Self::new, |path| Self::at(Path::new(&path)))
    }

    /// Creates a scratch home in memory if possible, else as [`Home::new`].
    pub(crate) fn in_memory() -> Result<Self> {
        Self::scratch_in(Path::new(MEMORY)).or_else(|_| Self::new())
    }

    /// Returns where [`Home::in_memory`] creates homes.
    pub(crate) fn memory_location() -> &'static str {
        if Path::new(MEMORY).is_dir() { MEMORY } else { "the build directory" }
    }

    fn scratch_in(parent: &Path) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("b").tempdir_in(parent)?;
        let home = Self::at(dir.path())?;
        Ok(Self { _scratch: Some(dir), ..home })
    }

    /// Uses an existing directory and keeps it, so that a later run finds the logs of an earlier one.
    pub(crate) fn at(path: &Path) -> Result<Self> {
        let home = Self { path: path.to_owned(), _scratch: None };
        if !home.sessions().is_dir() {
            std::fs::create_dir(home.sessions())?;
        }
        home.write_config("")?;
        Ok(home)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the directory of the session logs.
    pub(crate) fn sessions(&self) -> PathBuf {
        self.path.join("sessions")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path.join("s")
    }

    /// Writes a configuration with further sections.
    pub(crate) fn write_config(&self, more: &str) -> Result<()> {
        let mut file = std::fs::File::create(self.path.join("config.yaml"))?;
        Ok(file.write_all(format!("{CONFIG}{more}").as_bytes())?)
    }

    /// Removes the catalog, which the next daemon then rebuilds.
    pub(crate) fn remove_catalog(&self) {
        for suffix in ["", "-wal", "-shm"] {
            drop(std::fs::remove_file(self.path.join(format!("catalog.sqlite3{suffix}"))));
        }
    }
}

/// A running daemon; killed when dropped.
pub(crate) struct Daemon {
    child: Child,
    socket: PathBuf,
}

impl Daemon {
    /// Starts a daemon; returns as soon as it accepts a connection.
    pub(crate) fn start(home: &Home) -> Result<Self> {
        let socket = home.socket();
        // A killed daemon leaves a socket that refuses connections.
        drop(std::fs::remove_file(&socket));
        let child = Command::new(env!("CARGO_BIN_EXE_ollmd"))
            .env("OLLM_HOME", home.path())
            .arg("--socket")
            .arg(&socket)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("start ollmd")?;
        let mut daemon = Self { child, socket };
        let deadline = Instant::now() + START_LIMIT;
        while UnixStream::connect(&daemon.socket).is_err() {
            if Instant::now() > deadline || daemon.child.try_wait()?.is_some() {
                bail!("ollmd did not listen on {}", daemon.socket.display());
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(daemon)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the resident memory in KiB.
    pub(crate) fn rss_kib(&self) -> Result<u64> {
        status_number(Path::new(&format!("/proc/{}/status", self.pid())), "VmRSS")
    }

    /// Returns the CPU time that all threads have used, in steps of 10 ms. The ratio to a slow floor hides it.
    pub(crate) fn cpu_time(&self) -> Result<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()))?;
        // The name of the program, in parentheses, may contain spaces. Times follow it in ticks of 100 a second.
        let (_, fields) = stat.rsplit_once(')').context("a name in parentheses")?;
        let times = fields.split_whitespace().skip(11).take(2).map(str::parse::<u64>);
        let ticks = times.sum::<std::result::Result<u64, _>>().context("two numbers")?;
        Ok(Duration::from_millis(ticks * 10))
    }

    pub(crate) fn connect(&self) -> Result<Client> {
        Client::connect(&self.socket)
    }

    /// Connects without a client.
    pub(crate) fn connect_raw(&self) -> Result<UnixStream> {
        Ok(UnixStream::connect(&self.socket)?)
    }

    /// Shuts the daemon down and waits for its exit.
    pub(crate) fn stop(mut self) -> Result<()> {
        self.connect()?.call("daemon.shutdown", &json!({}))?;
        self.child.wait()?;
        Ok(())
    }

    /// Waits until the catalog contains every record, and returns how long that took.
    pub(crate) fn wait_indexed(&self, limit: Duration) -> Result<Duration> {
        let start = Instant::now();
        let mut client = self.connect()?;
        let mut ready_since = None;
        while ready_since.is_none_or(|since: Instant| since.elapsed() < READY_FOR) {
            if start.elapsed() > limit {
                bail!("the catalog is still behind after {limit:?}");
            }
            let catalog = client.call("daemon.status", &json!({}))?["catalog"].take();
            let is_ready = catalog["state"] == "ready" && catalog["behind"] == 0;
            ready_since = is_ready.then(|| ready_since.unwrap_or_else(Instant::now));
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(ready_since.unwrap_or(start).duration_since(start))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A blocking client: one call at a time, one line in each direction.
pub(crate) struct Client {
    stream: UnixStream,
    replies: BufReader<UnixStream>,
    line: Vec<u8>,
}

impl Client {
    pub(crate) fn connect(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket)?;
        let replies = BufReader::with_capacity(1 << 16, stream.try_clone()?);
        Ok(Self { stream, replies, line: Vec::new() })
    }

    /// Sends a line with its line break, or nothing, and returns the next line.
    pub(crate) fn exchange(&mut self, request: &[u8]) -> Result<&[u8]> {
        self.stream.write_all(request)?;
        self.line.clear();
        self.replies.read_until(b'\n', &mut self.line)?;
        Ok(&self.line)
    }

    /// Calls a method and returns its result.
    pub(crate) fn call(&mut self, method: &str, params: &Value) -> Result<Value> {
        let request = request(method, params);
        let mut reply: Value = serde_json::from_slice(self.exchange(&request)?)
            .with_context(|| format!("read the reply to {method}"))?;
        if let Some(error) = reply.get("error") {
            bail!("{method} failed: {error}");
        }
        Ok(reply["result"].take())
    }

    /// Calls a method and returns its result and the time of the call.
    pub(crate) fn timed(&mut self, method: &str, params: &Value) -> Result<(Value, Duration)> {
        let start = Instant::now();
        let result = self.call(method, params)?;
        Ok((result, start.elapsed()))
    }

    /// Calls a method and returns the time of the call.
    pub(crate) fn time(&mut self, method: &str, params: &Value) -> Result<Duration> {
        Ok(self.timed(method, params)?.1)
    }

    /// Sends a chat message, and hands each event of the turn to `on_event`, which returns the call to send next, if any.
    /// Returns the error that ended the turn.
    pub(crate) fn chat(
        &mut self,
        params: &Value,
        mut on_event: impl FnMut(&Value) -> Result<Option<Vec<u8>>>,
    ) -> Result<Option<Value>> {
        let mut send = request("chat.send", params);
        loop {
            let line = self.exchange(&send)?;
            ensure!(!line.is_empty(), "the daemon closed the connection during a turn");
            let line: Value = serde_json::from_slice(line)?;
            if let Some(error) = line.get("error") {
                return Ok(Some(error.clone()));
            }
            let event = &line["params"]["result"];
            match event["kind"].as_str() {
                Some("done") => return Ok(None),
                Some("error") => return Ok(Some(event.clone())),
                _ => send = on_event(event)?.unwrap_or_default(),
            }
        }
    }

    /// Creates a session and returns its id.
    pub(crate) fn create(&mut self, params: &Value) -> Result<String> {
        let created = self.call("session.create", params)?;
        let id = created["session"]["sessionId"].as_str();
        Ok(id.context("a session has an id")?.to_owned())
    }
}

/// Returns a call as a line.
pub(crate) fn request(method: &str, params: &Value) -> Vec<u8> {
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    let mut line = call.to_string().into_bytes();
    line.push(b'\n');
    line
}

/// Returns the call that answers all tool calls of an event; `result` is that of a name and arguments.
pub(crate) fn tool_results(
    session: &str,
    event: &Value,
    mut result: impl FnMut(&str, &Value) -> String,
) -> Vec<u8> {
    let calls = event["calls"].as_array().into_iter().flatten();
    let results = calls.map(|call| {
        let text = result(call["name"].as_str().unwrap_or_default(), &call["args"]);
        json!({ "id": call["id"], "result": { "llmContent": text, "success": true } })
    });
    let results: Vec<Value> = results.collect();
    request("chat.submitToolResults", &json!({ "sessionId": session, "results": results }))
}

/// Returns the params of `daemon.hello`, the cheapest call.
pub(crate) fn hello() -> Value {
    json!({ "client": "bench", "version": "1", "protocolMin": 1, "protocolMax": 1 })
}

/// Returns the params of `session.record` for a message of text.
pub(crate) fn message(session: &str, role: &str, text: &str) -> Value {
    json!({ "sessionId": session, "message": { "role": role, "content": text } })
}

/// Returns a number from a file such as `/proc/<pid>/status`.
pub(crate) fn status_number(path: &Path, name: &str) -> Result<u64> {
    let status = std::fs::read_to_string(path)?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.with_context(|| format!("no {name} in {}", path.display()))?.parse().context("a number")
}

/// Drops the file caches of the system; returns false if that is not permitted.
pub(crate) fn drop_caches() -> bool {
    let synced = Command::new("sync").status().is_ok_and(|status| status.success());
    let file = std::fs::OpenOptions::new().write(true).open("/proc/sys/vm/drop_caches");
    synced && file.is_ok_and(|mut file| file.write_all(b"3").is_ok())
}
