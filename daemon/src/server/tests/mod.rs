//! A whole server in this process, with test methods beside the real ones, and clients that send raw bytes.

mod envelope;
mod flow;
mod stop;

use std::future::Future;
use std::path::PathBuf;

use jsonrpsee::RpcModule;
use jsonrpsee::types::ErrorObjectOwned;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::lock::InstanceLock;
use super::*;
use crate::events::{EventDraft, EventRing};
use crate::rpc::tests::idle_handles;

/// Far longer than any step takes: a test that waits this long has failed.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The state of the test methods.
struct TestMethods {
    /// Every call of `test.gate` waits for a permit.
    gate: Semaphore,
    /// The `n` of every call of `test.gate`, in the order in which they started.
    started: Mutex<Vec<u64>>,
    /// The running calls of `test.gate`, and the most that ran at once.
    running: Mutex<(usize, usize)>,
    /// Number of calls of `test.big`.
    big_calls: AtomicUsize,
    events: EventRing,
}

impl TestMethods {
    fn started(&self) -> Vec<u64> {
        self.started.lock().clone()
    }

    fn running(&self) -> (usize, usize) {
        *self.running.lock()
    }
}

/// Counts a call as running until it is dropped.
struct RunningCall(Arc<TestMethods>);

impl RunningCall {
    fn new(methods: &Arc<TestMethods>) -> Self {
        let mut running = methods.running.lock();
        running.0 += 1;
        running.1 = running.1.max(running.0);
        Self(Arc::clone(methods))
    }
}

impl Drop for RunningCall {
    fn drop(&mut self) {
        self.0.running.lock().0 -= 1;
    }
}

fn test_module(methods: &Arc<TestMethods>) -> RpcModule<Arc<TestMethods>> {
    let mut module = RpcModule::new(Arc::clone(methods));
    module
        .register_async_method("test.echo", |params, _, _| async move { params.parse::<Value>() })
        .expect("an unused name");
    module
        .register_async_method("test.gate", |params, methods, _| async move {
            let n = params.parse::<Value>()?["n"].as_u64().unwrap_or_default();
            methods.started.lock().push(n);
            let _running = RunningCall::new(&methods);
            methods.gate.acquire().await.expect("never closed").forget();
            Ok::<_, ErrorObjectOwned>(json!(n))
        })
        .expect("an unused name");
    module
        .register_async_method("test.big", |params, methods, _| async move {
            let bytes = params.parse::<Value>()?["bytes"].as_u64().unwrap_or_default();
            methods.big_calls.fetch_add(1, Ordering::SeqCst);
            Ok::<_, ErrorObjectOwned>("x".repeat(usize::try_from(bytes).expect("small")))
        })
        .expect("an unused name");
    module
        .register_async_method("test.publish", |_, methods, _| async move {
            methods.events.publish(EventDraft {
                session_id: None,
                seq: None,
                kind: ollm_protocol::EventKind::SessionSaved,
                at: ollm_protocol::Timestamp::from_unix_ms(0),
                data: Value::Null,
            })
        })
        .expect("an unused name");
    module
}

/// A server with a socket of its own.
struct TestServer {
    home: tempfile::TempDir,
    methods: Arc<TestMethods>,
    tasks: Tasks,
    open: OpenConnections,
    running: JoinHandle<()>,
    _lock: InstanceLock,
}

impl TestServer {
    fn start() -> Self {
        Self::with_limits(|_| {})
    }

    fn with_limits(change: impl FnOnce(&mut ServerLimits)) -> Self {
        Self::start_after(change, |_| {})
    }

    /// Starts a server; `prepare` is called with the socket before it serves.
    fn start_after(change: impl FnOnce(&mut ServerLimits), prepare: impl FnOnce(&PathBuf)) -> Self {
        let home = tempfile::tempdir().expect("a temporary directory");
        let mut limits = ServerLimits::default();
        change(&mut limits);
        let handles = idle_handles();
        let tasks = handles.shutdown.clone();
        let test_methods = Arc::new(TestMethods {
            gate: Semaphore::new(0),
            started: Mutex::default(),
            running: Mutex::default(),
            big_calls: AtomicUsize::new(0),
            events: handles.core.events.clone(),
        });
        let mut methods = crate::rpc::methods(handles);
        methods.merge(test_module(&test_methods)).expect("unused names");
        let lock = InstanceLock::acquire(home.path()).expect("is free");
        let path = home.path().join("s");
        let listener = Listener::open(&lock, home.path(), Some(&path)).expect("listens");
        prepare(&path);
        let open = OpenConnections::default();
        let relief = Arc::new(|| 0);
        let serving = run(listener, methods, tasks.clone(), limits, open.clone(), relief);
        let running = Tasks::new().spawn(serving);
        Self { home, methods: test_methods, tasks, open, running, _lock: lock }
    }

    fn socket(&self) -> PathBuf {
        self.home.path().join("s")
    }

    async fn connect(&self) -> TestClient {
        let stream = UnixStream::connect(self.socket()).await.expect("connects");
        TestClient { stream, received: Vec::new() }
    }
}

/// A client that sends raw bytes.
struct TestClient {
    stream: UnixStream,
    /// Bytes that were received and not returned yet.
    received: Vec<u8>,
}

impl TestClient {
    async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        within(self.stream.write_all(bytes.as_ref())).await.expect("sends");
    }

    /// Sends a call as a line.
    async fn call(&mut self, id: u64, method: &str, params: Value) {
        self.send(line(&request(id, method, params))).await;
    }

    /// Returns the next line as JSON.
    async fn next(&mut self) -> Value {
        let mut searched = 0;
        loop {
            if let Some(end) = memchr::memchr(b'\n', &self.received[searched..]) {
                let later = self.received.split_off(searched + end + 1);
                let line = std::mem::replace(&mut self.received, later);
                return serde_json::from_slice(&line).expect("a line of JSON");
            }
            searched = self.received.len();
            let read = within(self.stream.read_buf(&mut self.received)).await.expect("reads");
            assert_ne!(read, 0, "the server closed the connection; left: {:?}", self.received);
        }
    }

    /// Returns everything up to the end of the stream.
    async fn read_to_end(mut self) -> String {
        within(self.stream.read_to_end(&mut self.received)).await.expect("reads");
        String::from_utf8(self.received).expect("UTF-8")
    }

    /// Closes the sending half.
    async fn finish(&mut self) {
        self.stream.shutdown().await.expect("shuts down");
    }

    /// Asserts that the next message on the connection is the response to a new call.
    async fn check_alive(&mut self) {
        self.call(777, "test.echo", json!({ "alive": true })).await;
        assert_eq!(
            self.next().await,
            json!({ "jsonrpc": "2.0", "id": 777, "result": { "alive": true } })
        );
    }
}

/// Asserts that work is done in time.
async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIMEOUT, work).await.expect("in time")
}

/// Waits until a condition holds; `what` describes it.
async fn until(what: &str, holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, waiting).await.unwrap_or_else(|_| panic!("never: {what}"));
}

fn request(id: u64, method: &str, params: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
}

fn line(value: &Value) -> String {
    format!("{value}\n")
}
