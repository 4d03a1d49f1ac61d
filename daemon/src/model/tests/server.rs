//! A server that stores requests, and runs scripted steps for each.
#![allow(dead_code, reason = "integration tests and benchmarks use other parts of the server")]

#[path = "../../../../tests/it/harness/fake_server/http.rs"]
mod http;

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::json;

use http::FakeServer;
pub(super) use http::{HttpRequest, Step};

/// The step that begins a streamed answer.
pub(super) const BEGIN: Step = Step::Begin("application/x-ndjson");

const VERSION: &str = "GET /api/version";

/// Returns the step that sends a whole response.
pub(super) fn response(status: u16, headers: &str, body: &str) -> Vec<Step> {
    http::response(status, headers, body.as_bytes())
}

/// A scripted server; stopped when dropped.
pub(super) struct ScriptedServer {
    server: FakeServer,
    requests: Arc<Mutex<Vec<HttpRequest>>>,
}

impl ScriptedServer {
    /// Starts a server that reports `version` and runs the same steps for every other request.
    pub(super) fn new(version: &'static str, steps: Vec<Step>) -> Self {
        Self::scripted(version, move |_, _| steps.clone())
    }

    /// Starts a server that reports `version` and runs `script` for every other request, which also gets the number of
    /// the request, from 1.
    pub(super) fn scripted(
        version: &'static str,
        script: impl Fn(&HttpRequest, usize) -> Vec<Step> + Send + Sync + 'static,
    ) -> Self {
        let requests = Arc::<Mutex<Vec<HttpRequest>>>::default();
        let all = Arc::clone(&requests);
        let server = FakeServer::start(move |request| {
            let number = {
                let mut all = all.lock();
                all.push(request.clone());
                all.iter().filter(|request| request.line != VERSION).count()
            };
            if request.line == VERSION && !version.is_empty() {
                return response(200, "", &json!({ "version": version }).to_string());
            }
            script(request, number)
        });
        Self { server, requests }
    }

    pub(super) fn host(&self) -> String {
        self.server.host().to_owned()
    }

    /// Returns the requests so far, except those for the version.
    pub(super) fn requests(&self) -> Vec<HttpRequest> {
        let requests = self.requests.lock();
        requests.iter().filter(|request| request.line != VERSION).cloned().collect()
    }

    /// Returns the number of requests for the version.
    pub(super) fn n_version_requests(&self) -> usize {
        self.requests.lock().iter().filter(|request| request.line == VERSION).count()
    }

    /// Returns the bytes of all parts of answers that clients have received.
    pub(super) fn sent_bytes(&self) -> usize {
        self.server.counts().sent_bytes
    }

    /// Waits until a client has disconnected during a script.
    pub(super) async fn wait_for_disconnect(&self) {
        let is_gone = async {
            while self.server.counts().disconnected == 0 {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(super::LONG, is_gone).await.expect("the client disconnects");
    }
}
