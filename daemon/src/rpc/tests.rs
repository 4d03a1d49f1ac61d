//! Calls of the registered methods, without a socket.

use std::collections::BTreeSet;
use std::time::Duration;

use ollm_protocol::content::{CatalogStatus, ModelServerStatus, StoreStatus};
use ollm_protocol::methods::daemon::NoParams;
use ollm_protocol::{Effect, Life, METHODS, SessionId, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serializer};
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::*;
use crate::app::running::{CompactionTrigger, RunningCompaction};

/// A process without a socket.
struct NoProcess;

impl DaemonControl for NoProcess {
    fn status(&self) -> ReplyFuture<'_, DaemonStatusResult> {
        Box::pin(async {
            Ok(DaemonStatusResult {
                version: "0".to_owned(),
                pid: 1,
                started_at: Timestamp::from_unix_ms(0),
                home: "/".into(),
                socket: "/".into(),
                protocol: 1,
                connections: 0,
                store: StoreStatus::default(),
                catalog: CatalogStatus::default(),
                model_server: ModelServerStatus::default(),
                subscriptions: 0,
                memory_bytes: None,
                restart_needed: vec![],
                warnings: vec![],
            })
        })
    }

    fn doctor(&self) -> ReplyFuture<'_, DaemonDoctorResult> {
        Box::pin(async { Err(RpcError::internal()) })
    }

    fn reload(&self) -> ReplyFuture<'_, DaemonReloadResult> {
        Box::pin(async { panic!("on purpose") })
    }
}

/// Returns handles over a scratch core.
pub(crate) fn idle_handles() -> Arc<Handles> {
    let dir = tempfile::tempdir().expect("a scratch directory");
    Arc::new(Handles {
        home_id: "1:2".to_owned(),
        core: crate::app::testing::scratch_core(dir.path()),
        is_restarting: AtomicBool::default(),
        shutdown: Tasks::new(),
        control: Arc::new(NoProcess),
        limits: Limits {
            frame_bytes: 1,
            batch: 2,
            subscriptions: 3,
            in_flight: 4,
            field_bytes: std::collections::BTreeMap::new(),
        },
    })
}

async fn call(methods: &Methods, method: &str, params: Value) -> Value {
    let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    let (answer, _) = methods.raw_json_request(&request.to_string(), 8).await.expect("a request");
    serde_json::from_str(answer.get()).expect("JSON")
}

#[tokio::test]
async fn registered_methods_are_those_of_the_protocol() {
    let methods = methods(idle_handles());
    let registered: BTreeSet<&str> = methods.method_names().collect();
    let mut listed: BTreeSet<&str> = METHODS.iter().map(|method| method.name).collect();
    listed.extend(ollm_protocol::method::STREAMS.iter().map(|stream| stream.unsubscribe));
    assert_eq!(&listed - &registered, BTreeSet::new(), "not registered");
    assert_eq!(&registered - &listed, BTreeSet::new(), "not listed");
}

#[tokio::test]
async fn hello_refuses_unsupported_protocol_versions() {
    let methods = methods(idle_handles());
    let hello = |min: u32, max: u32| json!({ "client": "test", "version": "9", "protocolMin": min, "protocolMax": max });
    let answer = call(&methods, "daemon.hello", hello(0, 7)).await;
    assert_eq!(answer["result"]["protocol"], 1);
    assert_eq!(answer["result"]["homeId"], "1:2");
    assert_eq!(answer["result"]["limits"]["subscriptions"], 3);
    let error = &call(&methods, "daemon.hello", hello(2, 3)).await["error"];
    assert_eq!(error["data"]["kind"], "unsupportedVersion");
    assert_eq!(error["data"]["hint"], "ollmctl daemon restart");
    assert_eq!(error["data"]["supported"], 1);
    assert!(error["message"].as_str().is_some_and(|text| text.contains("2 to 3")));
}

#[tokio::test]
async fn panicking_handler_fails_only_its_call() {
    let methods = methods(idle_handles());
    let answer = call(&methods, "daemon.reload", json!({})).await;
    assert_eq!(answer["error"]["code"], -32603);
    assert_eq!(answer["error"]["data"]["kind"], "internal");
    assert_eq!(call(&methods, "daemon.status", json!({})).await["result"]["pid"], 1);
}

#[tokio::test]
async fn invalid_params_name_the_field() {
    let methods = methods(idle_handles());
    let error = &call(&methods, "daemon.status", json!({ "verbose": true })).await["error"];
    assert_eq!(error["code"], -32602);
    assert_eq!(error["data"]["field"], "verbose");
    for thresholds in [json!([2]), json!([-0.1]), json!(vec![0.5; 17])] {
        let params = json!({ "thresholds": thresholds });
        let error = &call(&methods, "event.subscribe", params).await["error"];
        assert_eq!(error["data"]["field"], "thresholds");
    }
}

#[tokio::test]
async fn shutdown_stops_the_tasks() {
    let handles = idle_handles();
    let methods = methods(Arc::clone(&handles));
    let answer = call(&methods, "daemon.shutdown", json!({})).await;
    assert_eq!(answer["result"]["pid"], std::process::id());
    assert!(handles.shutdown.is_stopping());
}

#[tokio::test]
async fn idle_shutdown_is_refused_by_a_compaction_of_a_client_only() {
    let handles = idle_handles();
    let methods = methods(Arc::clone(&handles));
    let claim = |trigger| {
        let (started, cancel) = (Timestamp::from_unix_ms(0), CancellationToken::new());
        let running = RunningCompaction { trigger, started, cancel };
        let id = SessionId::from_uuid(uuid::Uuid::nil());
        handles.core.compactions.claim(id, running).map_err(drop).expect("the place is free")
    };
    let idle = json!({ "ifIdle": true });
    let claimed = claim(CompactionTrigger::Client);
    let error = &call(&methods, "daemon.shutdown", idle.clone()).await["error"];
    assert_eq!(error["data"]["kind"], "busy");
    assert_eq!(error["data"]["running"][0]["work"], "compaction");
    assert!(!handles.shutdown.is_stopping());
    drop(claimed);
    let _claimed = claim(CompactionTrigger::Background);
    let answer = call(&methods, "daemon.shutdown", idle).await;
    assert_eq!(answer["result"]["pid"], std::process::id());
    assert!(handles.shutdown.is_stopping());
}

/// A result whose JSON is the name of the thread that makes it.
#[derive(Clone, Deserialize, JsonSchema)]
struct ThreadResult {}

impl Serialize for ThreadResult {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(&format_args!("{:?}", std::thread::current().id()))
    }
}

struct ThreadMethod;

impl Method for ThreadMethod {
    const NAME: &'static str = "test.thread";
    const LIFE: Life = Life::Canceled;
    const EFFECT: Effect = Effect::Safe;
    type Params = NoParams;
    type Result = ThreadResult;
}

#[tokio::test]
async fn result_of_a_blocking_function_becomes_json_outside_of_the_runtime() {
    let mut registry = Registry { module: RpcModule::from_arc(idle_handles()) };
    registry.app_blocking::<ThreadMethod>(|_, _| Ok(ThreadResult {}));
    let answer = call(&registry.module.into(), "test.thread", json!({})).await;
    let runtime = format!("{:?}", std::thread::current().id());
    assert!(answer["result"].is_string(), "{answer}");
    assert_ne!(answer["result"], runtime, "other calls and timers would wait meanwhile");
}

struct LeavingMethod;

impl Method for LeavingMethod {
    const NAME: &'static str = "test.leaving";
    const LIFE: Life = Life::Completes;
    const EFFECT: Effect = Effect::Changes;
    type Params = NoParams;
    type Result = ThreadResult;
}

#[tokio::test]
async fn call_that_completes_learns_that_its_client_left() {
    let mut registry = Registry { module: RpcModule::from_arc(idle_handles()) };
    let learned: &Notify = Box::leak(Box::default());
    registry.app_until_left::<LeavingMethod, _, _>(move |_, _, left| async move {
        left.cancelled().await;
        learned.notify_one();
        Ok(ThreadResult {})
    });
    let methods: Methods = registry.module.into();
    let call = tokio::time::timeout(Duration::ZERO, call(&methods, "test.leaving", json!({})));
    call.await.expect_err("the client leaves before the end");
    learned.notified().await;
}
