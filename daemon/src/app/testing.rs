//! Cores and sessions in scratch directories, and a scripted model server, for unit tests.

use std::collections::VecDeque;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use ollm_protocol::content::{RecordBody, TokenLogprob};
use ollm_protocol::methods::session::{SessionCreateParams, SessionRecordResult};
use ollm_protocol::{Seq, SessionId};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::core::Core;
use super::open::open_core;
use super::sessions::retention::RetentionTask;
use super::sessions::{self, input};
use crate::clock::Clock;
use crate::config::{Config, FlagOverrides};
use crate::model::{
    ADVICE, AnswerCall, AnswerStream, Backend, BackendFuture, CallTarget, ChatDelta, ChatEnd,
    ChatItem, ChatRequest, DoneReason, ListedModel, ModelError, ModelInfo, PromptCount,
    RunningModel, SAMPLING, SamplingNames, ServerAdvice, Version,
};
use crate::session::OpenSession;
use crate::shutdown::Tasks;

/// Builds a core with real parts in `dir`, default settings, and a model server that refuses connections.
pub(crate) fn scratch_core(dir: &Path) -> Arc<Core> {
    configured_core(dir, &[])
}

/// Like [`scratch_core`], with settings such as `("loopDetection.maxTurns", "4")`.
pub(crate) fn configured_core(dir: &Path, settings: &[(&str, &str)]) -> Arc<Core> {
    let (config, clock) = (config(dir, settings), Arc::new(Clock::system()));
    let retention = Arc::new(RetentionTask::default());
    open_core(dir, dir.to_owned(), config, clock, retention, &Tasks::new()).expect("opens")
}

/// Returns the default configuration with some settings.
pub(crate) fn config(dir: &Path, settings: &[(&str, &str)]) -> Config {
    let set = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    // The discard port, on which no server listens.
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

    /// Creates a session whose model is `m` of a scripted server.
    pub(crate) fn with_model(settings: &[(&str, &str)]) -> (Self, Arc<ScriptedBackend>) {
        let settings = [&[("models.default", "m")], settings].concat();
        let session = Self::new(&settings);
        let backend = Arc::new(ScriptedBackend::default());
        session.core.models.set_backend(Arc::<ScriptedBackend>::clone(&backend));
        (session, backend)
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

    /// Appends a record.
    pub(crate) async fn append(&self, body: RecordBody) -> Seq {
        self.core.append_one(self.id, body).await.expect("appends").seq
    }

    fn log_path(&self) -> std::path::PathBuf {
        self.core.sessions.document_path(self.id).with_extension("jsonl")
    }

    /// Returns the first position of a text in the log, in bytes.
    pub(crate) fn position_in_log(&self, text: &str) -> u64 {
        let log = std::fs::read(self.log_path()).expect("reads");
        let mut parts = log.windows(text.len());
        parts.position(|part| part == text.as_bytes()).expect("is in the log") as u64
    }

    /// Overwrites bytes of the log in place, as a failing disk does.
    pub(crate) fn overwrite_in_log(&self, at: u64, text: &str) {
        let file = std::fs::File::options().write(true).open(self.log_path()).expect("opens");
        file.write_all_at(text.as_bytes(), at).expect("writes");
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

/// A model server that gives one scripted answer to each request.
#[derive(Default)]
pub(crate) struct ScriptedBackend {
    script: Mutex<VecDeque<ScriptedAnswer>>,
    requests: Mutex<Vec<ChatRequest>>,
    /// Whether the model was loaded for an answer.
    is_loaded: Mutex<bool>,
    capabilities: Mutex<Vec<String>>,
    /// Notified by an answer that reached [`AnswerStep::Pause`].
    paused: Arc<Notify>,
    /// Notified by the test to continue that answer.
    resumed: Arc<Notify>,
}

type ScriptedAnswer = Result<Vec<AnswerStep>, ModelError>;

/// A step of a scripted answer.
#[derive(Clone, Debug)]
pub(crate) enum AnswerStep {
    Text(&'static str),
    Thinking(&'static str),
    /// A call of the tool with this name and id.
    Call(&'static str),
    /// A call with these arguments, as JSON.
    CallWith(&'static str, &'static str),
    /// The probability of a token.
    Logprob(&'static str),
    End(DoneReason),
    Fail(ModelError),
    /// Waits until the test resumes the answer.
    Pause,
    /// The same before the stream begins, as a server that reads the prompt; the first step only.
    Reading,
}

impl ScriptedBackend {
    /// Adds the answer to the next request.
    pub(crate) fn answer(&self, steps: &[AnswerStep]) {
        self.script.lock().push_back(Ok(steps.to_vec()));
    }

    /// Adds a complete answer with this text.
    pub(crate) fn answer_text(&self, text: &'static str) {
        self.answer(&[AnswerStep::Text(text), AnswerStep::End(DoneReason::Stop)]);
    }

    /// Adds the refusal of the next request.
    pub(crate) fn refuse(&self, error: ModelError) {
        self.script.lock().push_back(Err(error));
    }

    /// Returns the requests for answers so far.
    pub(crate) fn requests(&self) -> Vec<ChatRequest> {
        self.requests.lock().clone()
    }

    /// Waits until an answer pauses.
    pub(crate) async fn paused(&self) {
        self.paused.notified().await;
    }

    /// Gives the model a capability.
    pub(crate) fn set_capable(&self, of: &str) {
        self.capabilities.lock().push(of.to_owned());
    }

    /// Loads the model into memory, as another client can do.
    pub(crate) fn load(&self) {
        *self.is_loaded.lock() = true;
    }

    /// Removes the model from memory, as another client can do.
    pub(crate) fn unload(&self) {
        *self.is_loaded.lock() = false;
    }

    /// Lets a paused answer continue.
    pub(crate) fn resume(&self) {
        self.resumed.notify_one();
    }

    /// Returns the target of a call.
    pub(crate) fn of_model() -> CallTarget {
        let (host, model) = ("scripted".to_owned(), Some("m".to_owned()));
        CallTarget { host, model, advice: &ADVICE }
    }

    /// Returns an error of the server in the middle of an answer.
    pub(crate) fn broken() -> ModelError {
        ModelError::BrokeOff { to: Self::of_model(), message: "on purpose".to_owned() }
    }
}

impl Backend for ScriptedBackend {
    fn advice(&self) -> &'static ServerAdvice {
        &ADVICE
    }

    fn host(&self) -> String {
        "scripted".to_owned()
    }

    fn version(&self) -> BackendFuture<'_, Version> {
        Box::pin(async { Ok(Version::parse("0.33.0")) })
    }

    fn names_have_tags(&self) -> bool {
        true
    }

    fn list(&self, _max_attempts: u32) -> BackendFuture<'_, Vec<ListedModel>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn describe<'a>(&'a self, model: &'a str) -> BackendFuture<'a, ModelInfo> {
        self.show(model)
    }

    fn show<'a>(&'a self, model: &'a str) -> BackendFuture<'a, ModelInfo> {
        let (model, capabilities) = (model.to_owned(), self.capabilities.lock().clone());
        Box::pin(async { Ok(ModelInfo { model, capabilities, ..ModelInfo::default() }) })
    }

    fn kind(&self) -> &'static str {
        "scripted"
    }

    fn sampling(&self) -> &'static SamplingNames {
        &SAMPLING
    }

    /// Fails, so that all counts are estimates.
    fn vocabulary<'a>(&'a self, _: &'a str) -> BackendFuture<'a, Option<Vec<u8>>> {
        Box::pin(async { Err(Self::broken()) })
    }

    fn running(&self) -> BackendFuture<'_, Vec<RunningModel>> {
        let model = RunningModel { model: "m:latest".to_owned(), ..RunningModel::default() };
        let is_loaded = *self.is_loaded.lock();
        Box::pin(async move { Ok(is_loaded.then_some(model).into_iter().collect()) })
    }

    fn stream<'a>(&'a self, request: &'a ChatRequest) -> BackendFuture<'a, Box<dyn AnswerStream>> {
        self.requests.lock().push(request.clone());
        let answer = self.script.lock().pop_front().expect("the script has an answer");
        let (paused, resumed) = (Arc::clone(&self.paused), Arc::clone(&self.resumed));
        *self.is_loaded.lock() |= answer.is_ok();
        Box::pin(async move {
            let mut steps: VecDeque<AnswerStep> = answer?.into();
            if let Some(AnswerStep::Reading) = steps.front() {
                paused.notify_one();
                resumed.notified().await;
                steps.pop_front();
            }
            Ok(Box::new(ScriptedStream { steps, paused, resumed }) as Box<dyn AnswerStream>)
        })
    }

    fn release_idle(&self) -> bool {
        false
    }
}

struct ScriptedStream {
    steps: VecDeque<AnswerStep>,
    paused: Arc<Notify>,
    resumed: Arc<Notify>,
}

impl AnswerStream for ScriptedStream {
    fn next(&mut self) -> BackendFuture<'_, ChatItem> {
        Box::pin(async {
            if let Some(AnswerStep::Pause) = self.steps.front() {
                self.paused.notify_one();
                self.resumed.notified().await;
                self.steps.pop_front();
            }
            Ok(match self.steps.pop_front().expect("the answer has an end") {
                AnswerStep::Text(text) => ChatItem::Delta(ChatDelta::Text(text.to_owned())),
                AnswerStep::Thinking(text) => ChatItem::Delta(ChatDelta::Thinking(text.to_owned())),
                AnswerStep::Call(name) => tool_call(name, "{}"),
                AnswerStep::CallWith(name, args) => tool_call(name, args),
                AnswerStep::Logprob(token) => {
                    let token = TokenLogprob { token: token.to_owned(), ..TokenLogprob::default() };
                    ChatItem::Delta(ChatDelta::Logprobs(vec![token]))
                }
                AnswerStep::End(reason) => ChatItem::End(ChatEnd {
                    reason,
                    prompt: PromptCount::Unknown,
                    cached_tokens: None,
                    answer_tokens: Some(5),
                    load_time: None,
                    prompt_time: None,
                    answer_time: None,
                }),
                AnswerStep::Fail(error) => return Err(error),
                AnswerStep::Pause | AnswerStep::Reading => unreachable!("two pauses in a row"),
            })
        })
    }
}

fn tool_call(name: &str, args: &str) -> ChatItem {
    let args = serde_json::from_str(args).expect("JSON");
    let call = AnswerCall { id: Some(name.to_owned()), name: name.to_owned(), args };
    ChatItem::Delta(ChatDelta::ToolCalls(vec![call]))
}
