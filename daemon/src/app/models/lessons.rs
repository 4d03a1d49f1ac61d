//! Lessons: what servers other than Ollama are asked about counts, in the pauses between chats.
//!
//! A failure here is not an error of the caller: the counts of a model that cannot be learned are estimates.
//!
//! **Invariant**: a lesson is about the model and the server that its name meant when it was added. What it teaches is
//! dropped if the name means another one by then, or if the server lists another digest.

use std::sync::Arc;

use ollm_protocol::content::ContextMessage;

use crate::app::core::Core;
use crate::app::counts::{
    CountedPrompts, Lesson, LessonSubject, TemplateVariant, texts_attempt, texts_of,
};
use crate::app::models::learning::{LearningError, RENDER_LIMIT, in_background, learn_at, probe};
use crate::model::{ChatRequest, CountingSource, ModelError, ModelInfo, Priority};
use crate::tokens::probes;

/// The moments at which a server is asked about counts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Pace {
    /// At once, because a caller waits.
    AtOnce,
    /// When no chat waits for the model.
    InPauses,
}

impl Pace {
    /// Waits for the moment of the next request. It takes no place in the queue: a server counts beside its answers, and a
    /// chat would wait for the place.
    pub(super) async fn wait(self, core: &Core, model: &str) {
        if self == Self::InPauses {
            core.models.queues().enter(model, Priority::Background).admitted().await;
        }
    }
}

/// The task that learns a model; when it ends in any way, another one can begin.
struct LearningTask {
    core: Arc<Core>,
    /// The key of the model.
    key: String,
    /// Set once the model has no further lessons.
    is_done: bool,
}

impl Drop for LearningTask {
    fn drop(&mut self) {
        if !self.is_done {
            self.core.counts.drop_lessons(&self.key);
        }
    }
}

impl LearningTask {
    /// Learns until there are no further lessons, or the daemon stops.
    async fn run(mut self) {
        let core = Arc::clone(&self.core);
        let lessons = async {
            while let Some(lesson) = core.counts.next_lesson(&self.key) {
                let Lesson { subject, prompts, texts } = lesson;
                let learned = learn_at(&core, &subject, &prompts, Pace::InPauses).await;
                drop(learned.inspect_err(|error| tracing::info!("counts stay estimates: {error}")));
                count_texts(&core, &subject, &prompts.model, texts, Pace::InPauses).await;
            }
        };
        self.is_done = tokio::select! {
            () = lessons => true,
            () = core.tasks.stopping() => false,
        };
    }
}

/// Returns the model that a name means now; `None` if its server cannot be used.
pub(super) fn subject_of(core: &Core, info: &Arc<ModelInfo>, model: &str) -> Option<LessonSubject> {
    let key = core.models.names().key(model);
    let backend = core.models.backend_for(model).ok()?;
    Some(LessonSubject { key, backend, info: Arc::clone(info) })
}

/// Returns whether a name still means the model that is learned, and its server, unless it is Ollama, did not list another
/// one since.
pub(super) fn is_current(core: &Core, subject: &LessonSubject, model: &str) -> bool {
    let LessonSubject { key, backend, info } = subject;
    core.models.names().key(model) == *key
        && core.models.backend_for(model).is_ok_and(|now| Arc::ptr_eq(&now, backend))
        && (info.counting == CountingSource::Ollama || core.counts.may_be_listed(key, info))
}

/// Returns whether the server of a model is asked to count.
const fn is_asked(info: &ModelInfo) -> bool {
    !matches!(info.counting, CountingSource::Ollama | CountingSource::Answers)
}

/// Lets the server of a model count the texts of a prompt and its answer in the pauses, if that is all that is known of it.
pub(crate) fn count_later(
    core: &Arc<Core>,
    info: &Arc<ModelInfo>,
    request: &ChatRequest,
    answer: &str,
) {
    let key = core.models.names().key(&request.model);
    // Most prompts need nothing of it, and to copy and hash a long one takes time.
    if !is_asked(info) || !core.counts.needs_texts(&key) {
        return;
    }
    let (model, think, tools) = (request.model.clone(), request.think, request.tools.clone());
    let mut texts = texts_of(&request.messages, &tools);
    texts.push(answer.to_owned());
    let texts = core.counts.uncounted_texts(&key, texts);
    let prompts = CountedPrompts { model, think, tools, num_ctx: Some(request.num_ctx) };
    if !texts.is_empty() {
        learn_later(core, info, &prompts, texts);
    }
}

/// Learns to count in the pauses, and lets the server count texts. One task for each model does it.
pub(super) fn learn_later(
    core: &Arc<Core>,
    info: &Arc<ModelInfo>,
    prompts: &CountedPrompts,
    texts: Vec<String>,
) {
    let subject = subject_of(core, info, &prompts.model).filter(|_| is_asked(info));
    let Some(subject) = subject else { return };
    let key = subject.key.clone();
    if core.counts.add_lesson(Lesson { subject, prompts: prompts.clone(), texts }) {
        let task = LearningTask { core: Arc::clone(core), key, is_done: false };
        drop(core.tasks.spawn(task.run()));
    }
}

/// Lets the server count texts of a model without a vocabulary.
async fn count_texts(
    core: &Arc<Core>,
    subject: &LessonSubject,
    model: &str,
    texts: Vec<String>,
    pace: Pace,
) {
    let attempt = texts_attempt(&subject.key);
    for text in texts {
        // A text may have been counted with an earlier lesson.
        if core.counts.uncounted_texts(&subject.key, vec![text.clone()]).is_empty() {
            continue;
        }
        pace.wait(core, model).await;
        if !core.counts.may_try(&attempt) || !is_current(core, subject, model) {
            return;
        }
        let count = subject.backend.count_text(model, &text);
        let counted = tokio::time::timeout(RENDER_LIMIT, count).await;
        // The configuration may have changed meanwhile.
        if !is_current(core, subject, model) {
            return;
        }
        match counted {
            Ok(Ok(Some(count))) => {
                let tokens = u32::try_from(count).unwrap_or(u32::MAX);
                core.counts.add_served(&subject.key, &subject.info, &text, tokens);
            }
            Ok(Ok(None)) => {
                core.counts.note_failure(&attempt, &"the model server does not count texts");
            }
            Ok(Err(error)) => core.counts.note_server_failure(&attempt, &error),
            Err(_) => core.counts.note_failure(&attempt, &"the model server is slow"),
        }
    }
}

/// Calibrates the counter of some prompts by the server's own counts of conversations, once, so that the first call has the
/// margin of this model already.
pub(super) async fn calibrate_by_server(
    core: &Arc<Core>,
    subject: &LessonSubject,
    prompts: &CountedPrompts,
    pace: Pace,
) {
    let CountedPrompts { model, think, tools, .. } = prompts;
    let variant = TemplateVariant::new(*think, tools).key();
    let attempt = format!("{} {variant} counts", subject.key);
    if !is_asked(&subject.info)
        || prompts.num_ctx.is_none()
        || !core.counts.may_try(&attempt)
        || core.counts.is_calibrated(model, &variant)
    {
        return;
    }
    let probes = probes(subject.info.can("tools") != Some(false));
    // Only what the template adds is then to be learned.
    let texts = probes.iter().flat_map(|probe| texts_of(probe, tools)).collect();
    let texts = core.counts.uncounted_texts(&subject.key, texts);
    count_texts(core, subject, model, texts, pace).await;
    let counted = match count_probes(core, subject, prompts, probes, pace).await {
        Ok(counted) => counted,
        Err(LearningError::Server(error)) => {
            return core.counts.note_server_failure(&attempt, &error);
        }
        Err(LearningError::Unusable(problem)) => {
            return core.counts.note_failure(&attempt, &problem);
        }
    };
    let (subject, prompts) = (subject.clone(), prompts.clone());
    let calibrate = move |core: &Core| {
        let CountedPrompts { model, think, tools, .. } = &prompts;
        if !is_current(core, &subject, model) {
            return;
        }
        core.counts.calibrate_by_counted(&subject.info, model, *think, tools, &counted);
        if !core.counts.is_calibrated(model, &variant) {
            let problem = "the model server refuses to count, or does not count conversations";
            core.counts.note_failure(&attempt, &problem);
        }
    };
    in_background(core, calibrate).await;
}

/// Lets the server count conversations, and returns those that it counts.
async fn count_probes(
    core: &Arc<Core>,
    subject: &LessonSubject,
    prompts: &CountedPrompts,
    probes: Vec<Vec<ContextMessage>>,
    pace: Pace,
) -> Result<Vec<(Vec<ContextMessage>, u64)>, LearningError> {
    let unusable = |problem: &str| Err(LearningError::Unusable(problem.to_owned()));
    let (num_ctx, mut counted) = (prompts.num_ctx.unwrap_or_default(), Vec::new());
    for messages in probes {
        pace.wait(core, &prompts.model).await;
        let request = probe(core, prompts, num_ctx, messages.clone(), &prompts.tools);
        match tokio::time::timeout(RENDER_LIMIT, subject.backend.count(&request)).await {
            Ok(Ok(Some(count))) => counted.push((messages, count)),
            Ok(Ok(None)) => return unusable("the model server does not count"),
            // A template may refuse one conversation and accept the next.
            Ok(Err(ModelError::Refused { .. } | ModelError::Failed { .. })) => {}
            Ok(Err(error)) => return Err(LearningError::Server(error)),
            Err(_) => return unusable("the model server is slow"),
        }
    }
    Ok(counted)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ollm_protocol::content::CountKind;
    use parking_lot::Mutex;
    use tokio::sync::Notify;

    use super::*;
    use crate::app::testing::TestSession;
    use crate::model::{
        ADVICE, AnswerStream, Backend, BackendFuture, ListedDigest, ListedModel, RunningModel,
        SAMPLING, SamplingNames, ServerAdvice, Version,
    };

    /// A server that counts texts, the first one when the test says so.
    #[derive(Default)]
    struct CountingBackend {
        counted: Mutex<Vec<String>>,
        begun: Notify,
        held: Notify,
    }

    impl Backend for CountingBackend {
        fn host(&self) -> String {
            "counting".to_owned()
        }

        fn advice(&self) -> &'static ServerAdvice {
            &ADVICE
        }

        fn kind(&self) -> &'static str {
            "counting"
        }

        fn sampling(&self) -> &'static SamplingNames {
            &SAMPLING
        }

        fn version(&self) -> BackendFuture<'_, Version> {
            Box::pin(async { Ok(Version::parse("")) })
        }

        fn list(&self, _: u32) -> BackendFuture<'_, Vec<ListedModel>> {
            Box::pin(async { Ok(Vec::new()) })
        }

        fn describe<'a>(&'a self, model: &'a str) -> BackendFuture<'a, ModelInfo> {
            self.show(model)
        }

        fn show<'a>(&'a self, _: &'a str) -> BackendFuture<'a, ModelInfo> {
            Box::pin(async { Ok(ModelInfo::default()) })
        }

        fn running(&self) -> BackendFuture<'_, Vec<RunningModel>> {
            Box::pin(async { Ok(Vec::new()) })
        }

        fn stream<'a>(&'a self, _: &'a ChatRequest) -> BackendFuture<'a, Box<dyn AnswerStream>> {
            Box::pin(std::future::pending())
        }

        fn count_text<'a>(&'a self, _: &'a str, text: &'a str) -> BackendFuture<'a, Option<u64>> {
            Box::pin(async move {
                let is_first = self.counted.lock().is_empty();
                self.counted.lock().push(text.to_owned());
                if is_first {
                    self.begun.notify_one();
                    self.held.notified().await;
                }
                Ok(Some(7))
            })
        }

        fn release_idle(&self) -> bool {
            false
        }
    }

    fn info(digest: &str) -> Arc<ModelInfo> {
        Arc::new(ModelInfo {
            model: "m".to_owned(),
            digest: Some(digest.to_owned()),
            counting: CountingSource::Server,
            ..ModelInfo::default()
        })
    }

    fn texts(core: &Core) -> Vec<String> {
        let texts = ["one", "two"].map(str::to_owned).to_vec();
        core.counts.uncounted_texts(&core.models.names().key("m"), texts)
    }

    fn prompts() -> CountedPrompts {
        CountedPrompts { model: "m".to_owned(), think: None, tools: Vec::new(), num_ctx: None }
    }

    /// Begins a lesson of two texts, the first of which is being counted.
    async fn begun(session: &TestSession) -> Arc<CountingBackend> {
        let (core, backend) = (&session.core, Arc::new(CountingBackend::default()));
        core.models.set_backend(Arc::clone(&backend) as Arc<dyn Backend>);
        core.counts.note_listed("m", ListedDigest::of(Some("a".to_owned())));
        learn_later(core, &info("a"), &prompts(), texts(core));
        backend.begun.notified().await;
        backend
    }

    /// Lets the first text be counted, and waits until the task ended.
    async fn end(session: &TestSession, backend: &CountingBackend) {
        backend.held.notify_one();
        let key = session.core.models.names().key("m");
        while session.core.counts.has_lessons(&key) {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn lesson_of_another_server_or_model_teaches_nothing() {
        let session = TestSession::new(&[]);
        let core = &session.core;
        let former = begun(&session).await;
        let other = Arc::new(CountingBackend::default());
        core.models.set_backend(Arc::clone(&other) as Arc<dyn Backend>);
        end(&session, &former).await;
        assert_eq!((former.counted.lock().len(), other.counted.lock().len()), (1, 0));
        assert_eq!(texts(core).len(), 2, "nothing was stored");

        let former = begun(&session).await;
        core.counts.note_listed("m", ListedDigest::of(Some("b".to_owned())));
        end(&session, &former).await;
        assert_eq!((former.counted.lock().len(), texts(core).len()), (1, 2));

        let backend = begun(&session).await;
        end(&session, &backend).await;
        assert_eq!((backend.counted.lock().len(), texts(core).len()), (2, 0), "the next one does");
        // The counts are those of the listed model only.
        let is_exact = |listed: ListedDigest| {
            core.counts.note_listed("m", listed);
            let counter = core.counts.load(Some("m"), None, &[]);
            counter.kind_of_text("one") == CountKind::Exact
        };
        assert!(is_exact(ListedDigest::of(Some("a".to_owned()))));
        assert!(!is_exact(ListedDigest::of(Some("b".to_owned()))));
        assert!(!is_exact(ListedDigest::Unknown));
        assert_eq!(texts(core).len(), 0, "are not counted again");
        core.counts.forget_other(&info("b"));
        core.counts.note_listed("m", ListedDigest::of(Some("a".to_owned())));
        assert_eq!(texts(core).len(), 2, "are forgotten without any other knowledge of the model");
    }

    #[tokio::test]
    async fn waiting_texts_are_bounded() {
        let session = TestSession::new(&[]);
        let (core, former) = (&session.core, begun(&session).await);
        let key = core.models.names().key("m");
        let add = |all: &[String]| learn_later(core, &info("a"), &prompts(), all.to_vec());
        let numbered: Vec<String> = (0..400).map(|n| n.to_string()).collect();
        add(&numbered);
        add(&numbered);
        add(&["x".repeat(8 << 20)]);
        add(&(400..800).map(|n| n.to_string()).collect::<Vec<_>>());
        let lesson = core.counts.next_lesson(&key).expect("waits");
        let expect: Vec<String> = (0..512).map(|n| n.to_string()).collect();
        assert_eq!(lesson.texts, expect);
        end(&session, &former).await;
    }
}
