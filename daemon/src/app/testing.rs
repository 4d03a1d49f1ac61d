//! Cores and sessions in scratch directories, for unit tests.

use std::path::Path;
use std::sync::Arc;

use ollm_protocol::content::RecordBody;
use ollm_protocol::methods::session::{SessionCreateParams, SessionRecordResult};
use ollm_protocol::{Seq, SessionId};
use serde_json::{Value, json};

use super::core::Core;
use super::observer::SessionObserver;
use super::sessions::retention::Retention;
use super::sessions::{self, input};
use crate::catalog::Catalog;
use crate::clock::Clock;
use crate::config::{Config, FlagOverrides};
use crate::events::EventRing;
use crate::session::{NewRecord, OpenSession, Sessions};
use crate::shutdown::Tasks;

/// Builds a core with real parts in `dir`, default settings, and a model server that refuses connections.
pub(crate) fn scratch_core(dir: &Path) -> Arc<Core> {
    configured_core(dir, &[])
}

/// Like [`scratch_core`], with settings such as `("loopDetection.maxTurns", "4")`.
pub(crate) fn configured_core(dir: &Path, settings: &[(&str, &str)]) -> Arc<Core> {
    let clock = Arc::new(Clock::system());
    let observer = Arc::new(SessionObserver::new(Arc::new(Retention::default())));
    let announced_to = Arc::<SessionObserver>::clone(&observer);
    let sessions = Sessions::new(dir.to_owned(), Arc::clone(&clock), announced_to);
    let source = Arc::new(sessions.clone());
    let catalog = Catalog::open(dir.join("catalog.sqlite3"), source).expect("opens");
    let events = EventRing::new(Arc::clone(&clock));
    let config = config(dir, settings);
    let stores = (sessions, Arc::new(catalog), events);
    let core = Arc::new(Core::new(dir, stores, config, (clock, &Tasks::new())));
    observer.report_to(&core);
    core
}

/// Returns the default configuration with some settings.
pub(crate) fn config(dir: &Path, settings: &[(&str, &str)]) -> Config {
    let set = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    // The discard port: nobody listens there.
    let unreachable = [("ollama.host", "127.0.0.1:9")];
    let settings = unreachable.iter().chain(settings).map(set);
    let no_variables = std::iter::empty::<(String, String)>();
    let flags = FlagOverrides(settings.collect());
    Config::load(dir, None, no_variables, &flags).expect("valid settings").0
}

/// A session in a scratch home, and the core that holds it.
pub(crate) struct TestSession {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) core: Arc<Core>,
    pub(crate) id: SessionId,
}

impl TestSession {
    /// Creates a session of a core with some settings.
    pub(crate) fn new(settings: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let core = configured_core(dir.path(), settings);
        let created = sessions::create::create(&core, SessionCreateParams::default());
        Self { dir, core, id: created.expect("creates").session.session_id }
    }

    /// Replaces the settings of the core.
    pub(crate) fn configure(&self, settings: &[(&str, &str)]) {
        drop(self.core.configure(config(self.dir.path(), settings)));
    }

    /// Records a message with text.
    pub(crate) async fn record(&self, role: &str, text: &str) -> SessionRecordResult {
        self.record_message(json!({ "role": role, "content": text })).await
    }

    /// Records a message.
    pub(crate) async fn record_message(&self, message: Value) -> SessionRecordResult {
        let params = json!({ "sessionId": self.id, "message": message });
        let params = serde_json::from_value(params).expect("params");
        input::record(Arc::clone(&self.core), params).await.expect("records")
    }

    /// Records a call of the tool `read`.
    pub(crate) async fn record_call(&self, args: Value) -> SessionRecordResult {
        let result = json!({ "llmContent": "ok" });
        let call = json!({ "id": "c", "name": "read", "args": args, "result": result });
        let params = json!({ "sessionId": self.id, "toolCall": call });
        let params = serde_json::from_value(params).expect("params");
        input::record_tool_call(Arc::clone(&self.core), params).await.expect("records")
    }

    /// Appends a record as it is.
    pub(crate) async fn append(&self, body: RecordBody) -> Seq {
        let drafts = vec![NewRecord::new(body, None)];
        self.core.append(self.id, drafts, None).await.expect("appends").seq
    }

    /// Reads all records.
    pub(crate) fn bodies(&self) -> Vec<RecordBody> {
        let len = |live: &OpenSession| live.state().entries().len() as u64;
        let len = self.core.sessions.with(self.id, len).expect("is open");
        let seqs: Vec<Seq> = (0..len).map(Seq).collect();
        let bodies = self.core.sessions.bodies(self.id, &seqs).expect("reads");
        bodies.into_iter().flatten().collect()
    }
}
