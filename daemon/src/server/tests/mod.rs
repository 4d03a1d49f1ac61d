//! A whole server in the process, with toy methods beside the real ones, and clients that speak bytes.

mod envelope;
mod flow;
mod stop;

use std::future::Future;
use std::path::PathBuf;
use std::sync::Mutex;

use jsonrpsee::RpcModule;
use jsonrpsee::types::ErrorObjectOwned;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::lock::InstanceLock;
use super::*;
use crate::events::{EventDraft, Events};
use crate::rpc::tests::idle_handles;

/// Far beyond what anything here takes: a test that waits so long has failed.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the toy methods work with.
pub(super) struct Toys {
    /// Calls of `toy.gate` wait for a permit of it.
    gate: Semaphore,
    /// The `n` of every call of `toy.gate`, in the order in which they began.
    began: Mutex<Vec<u64>>,
    /// Calls of `toy.gate` that run, and the most that ever did.
    running: Mutex<(usize, usize)>,
    /// Calls of `toy.big` so far.
    big_calls: AtomicUsize,
    events: Events,
}

impl Toys {
    fn began(&self) -> Vec<u64> {
        self.began.lock().expect("not poisoned").clone()
    }

    fn running(&self) -> (usize, usize) {
        *self.running.lock().expect("not poisoned")
    }
}

/// Counts a running call for as long as it lives.
struct Running(Arc<Toys>);

impl Running {
    fn new(toys: &Arc<Toys>) -> Self {
        let mut running = toys.running.lock().expect("not poisoned");
        running.0 += 1;
        running.1 = running.1.max(running.0);
        Self(Arc::clone(toys))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.lock().expect("not poisoned").0 -= 1;
    }
}

fn toy_methods(toys: &Arc<Toys>) -> RpcModule<Arc<Toys>> {
    let mut module = RpcModule::new(Arc::clone(toys));
    module
        .register_async_method("toy.echo", |params, _, _| async move { params.parse::<Value>() })
        .expect("a free name");
    module
        .register_async_method("toy.gate", |params, toys, _| async move {
            let n = params.parse::<Value>()?["n"].as_u64().unwrap_or_default();
            toys.began.lock().expect("not poisoned").push(n);
            let _running = Running::new(&toys);
            toys.gate.acquire().await.expect("never closed").forget();
            Ok::<_, ErrorObjectOwned>(json!(n))
        })
        .expect("a free name");
    module
        .register_async_method("toy.big", |params, toys, _| async move {
            let bytes = params.parse::<Value>()?["bytes"].as_u64().unwrap_or_default();
            toys.big_calls.fetch_add(1, Ordering::SeqCst);
            Ok::<_, ErrorObjectOwned>("x".repeat(usize::try_from(bytes).expect("small")))
        })
        .expect("a free name");
    module
        .register_async_method("toy.publish", |_, toys, _| async move {
            toys.events.publish(EventDraft {
                session_id: None,
                seq: None,
                kind: ollm_protocol::EventKind::SessionSaved,
                at: ollm_protocol::Timestamp::from_unix_ms(0),
                data: Value::Null,
            })
        })
        .expect("a free name");
    module
}

/// A server on a socket of its own.
pub(super) struct Server {
    home: tempfile::TempDir,
    toys: Arc<Toys>,
    tasks: Tasks,
    open: OpenConnections,
    running: JoinHandle<()>,
    _lock: InstanceLock,
}

impl Server {
    fn start() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut Limits)) -> Self {
        Self::prepared(change, |_| {})
    }

    /// Starts a server; `disturb` gets the socket before it serves.
    fn prepared(change: impl FnOnce(&mut Limits), disturb: impl FnOnce(&PathBuf)) -> Self {
        let home = tempfile::tempdir().expect("a scratch directory");
        let mut limits = Limits::default();
        change(&mut limits);
        let handles = idle_handles();
        let tasks = handles.shutdown.clone();
        let toys = Arc::new(Toys {
            gate: Semaphore::new(0),
            began: Mutex::default(),
            running: Mutex::default(),
            big_calls: AtomicUsize::new(0),
            events: handles.core.events.clone(),
        });
        let mut methods = crate::rpc::methods(handles);
        methods.merge(toy_methods(&toys)).expect("free names");
        let lock = InstanceLock::acquire(home.path()).expect("nobody has it");
        let path = home.path().join("s");
        let listener = Listener::open(&lock, home.path(), Some(&path)).expect("listens");
        disturb(&path);
        let open = OpenConnections::default();
        let serving = run(listener, methods, tasks.clone(), limits, open.clone());
        let running = Tasks::new().spawn(serving);
        Self { home, toys, tasks, open, running, _lock: lock }
    }

    fn socket(&self) -> PathBuf {
        self.home.path().join("s")
    }

    async fn connect(&self) -> Client {
        let stream = UnixStream::connect(self.socket()).await.expect("connects");
        Client { stream, pending: Vec::new() }
    }
}

/// A client that speaks bytes.
pub(super) struct Client {
    stream: UnixStream,
    pending: Vec<u8>,
}

impl Client {
    async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        within(self.stream.write_all(bytes.as_ref())).await.expect("sends");
    }

    /// Sends a call as a line.
    async fn call(&mut self, id: u64, method: &str, params: Value) {
        self.send(line(&request(id, method, params))).await;
    }

    /// The next line as JSON.
    async fn next(&mut self) -> Value {
        let mut searched = 0;
        loop {
            if let Some(end) = memchr::memchr(b'\n', &self.pending[searched..]) {
                let rest = self.pending.split_off(searched + end + 1);
                let line = std::mem::replace(&mut self.pending, rest);
                return serde_json::from_slice(&line).expect("a line of JSON");
            }
            searched = self.pending.len();
            let read = within(self.stream.read_buf(&mut self.pending)).await.expect("reads");
            assert_ne!(read, 0, "the server closed; left: {:?}", self.pending);
        }
    }

    /// Everything up to the end of the stream.
    async fn rest(mut self) -> String {
        within(self.stream.read_to_end(&mut self.pending)).await.expect("reads");
        String::from_utf8(self.pending).expect("UTF-8")
    }

    /// Ends the sending half.
    async fn finish(&mut self) {
        self.stream.shutdown().await.expect("shuts down");
    }

    /// Asserts that the connection answers, and answers nothing else first.
    async fn is_alive(&mut self) {
        self.call(777, "toy.echo", json!({ "alive": true })).await;
        assert_eq!(
            self.next().await,
            json!({ "jsonrpc": "2.0", "id": 777, "result": { "alive": true } })
        );
    }
}

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("in time")
}

/// Waits until something is so.
async fn until(what: &str, so: impl Fn() -> bool) {
    let waiting = async {
        while !so() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("never: {what}"));
}

fn request(id: u64, method: &str, params: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
}

fn line(value: &Value) -> String {
    format!("{value}\n")
}
