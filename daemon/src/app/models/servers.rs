//! All model servers at once: the list of all models, and a report of each server with what a person can do.
//!
//! **Invariant**: with several servers, none of them delays the answer of the others by more than [`LIST_LIMIT`].

use std::sync::Arc;
use std::time::Duration;

use ollm_protocol::methods::model::{
    CountsBy, KnownFrom, MissingServer, ModelServersParams, ModelServersResult, ModelSummary,
    ServedModelReport, ServerProblem, ServerReport,
};

use tokio::time::Instant;

use super::learning::read_configured;
use super::{describe_again, summary};
use crate::app::core::{Core, blocking};
use crate::app::error::{AppError, Result};
use crate::model::{
    CallPhase, CountingSource, DEFAULT_SERVER, ListedModel, ModelAddress, ModelError, ModelInfo,
    RunningModel, Server,
};

/// The longest wait for the models of one of several servers. A list takes at most a second.
const LIST_LIMIT: Duration = Duration::from_millis(800);
/// The longest wait for the models in memory, beside a list: a server that loads a model does not say which it has.
const RUNNING_LIMIT: Duration = Duration::from_millis(300);
/// The part of [`LIST_LIMIT`] that is left after the descriptions that complete a list, in which the list itself is returned.
const LIST_RESERVE: Duration = Duration::from_millis(100);
/// The longest wait for a server that is tested, with all of its models.
const TEST_LIMIT: Duration = Duration::from_secs(20);
/// The most models of a server that are tested if the configuration describes none.
const MAX_TESTED: usize = 3;

/// Lists the models of all servers, and the servers that do not. A machine without Ollama misses nothing if nobody chose
/// it.
///
/// **Errors**: that of the only server, or of the default one if none lists its models.
pub(super) async fn list_all(core: &Arc<Core>) -> Result<(Vec<ModelSummary>, Vec<MissingServer>)> {
    let mut all = core.models.servers();
    // The default server is first.
    let default = core.models.default_server().settings().name.clone();
    all.sort_by_key(|server| server.settings().name != default);
    let limit = if all.len() > 1 { LIST_LIMIT } else { Duration::MAX };
    let details_until = (all.len() > 1).then(|| Instant::now() + (LIST_LIMIT - LIST_RESERVE));
    let lists = all.into_iter().map(|server| async move {
        let list = async { tokio::join!(server.list(details_until), running(&server)) };
        let listed = tokio::time::timeout(limit, list).await;
        (server, listed)
    });
    // The differences of replicas are among what was learned before the start.
    let learned = blocking(core, |core| {
        core.counts.read_models();
        Ok(())
    });
    let (lists, _) = tokio::join!(join_all(lists), learned);
    let (mut data, mut missing, mut first_error) = (Vec::new(), Vec::new(), None);
    let mut is_any = false;
    for (server, listed) in lists {
        let name = server.settings().name.clone();
        match listed {
            Ok((Ok(models), running)) => {
                is_any = true;
                core.placements.note_answer(&name);
                let summaries = models.into_iter();
                data.extend(summaries.map(|model| summarized(core, &server, model, &running)));
            }
            Ok((Err(error @ ModelError::Unreachable { .. }), _)) if !is_missed(core, &name) => {
                first_error.get_or_insert(error);
            }
            Ok((Err(error), _)) => {
                let problem = error.to_string();
                first_error.get_or_insert(error);
                missing.push(MissingServer { server: name, problem });
            }
            Err(_) => {
                if let Ok(backend) = server.backend() {
                    let (to, phase) = (backend.target(None), CallPhase::Response);
                    first_error.get_or_insert(ModelError::Timeout { to, phase, after: limit });
                }
                let problem = format!("{} did not answer in time", server.host());
                missing.push(MissingServer { server: name, problem });
            }
        }
    }
    match first_error {
        Some(error) if !is_any => Err(error.into()),
        _ => Ok((data, missing)),
    }
}

/// Returns the models in the memory of a server, if it says so at once.
async fn running(server: &Server) -> Option<Vec<RunningModel>> {
    let backend = server.backend().ok()?;
    tokio::time::timeout(RUNNING_LIMIT, backend.running()).await.ok()?.ok()
}

fn summarized(
    core: &Core,
    server: &Server,
    model: ListedModel,
    running: &Option<Vec<RunningModel>>,
) -> ModelSummary {
    let settings = server.settings();
    let found = running
        .as_ref()
        .map(|all| all.iter().find(|one| server.is_model(&one.model, &model.model)));
    let configured = settings.configured(&model.model).and_then(|model| model.window);
    let served = model.served_context;
    let window = found.flatten().and_then(|running| running.effective_context).or(served);
    let address = ModelAddress { server: settings.name.clone(), name: model.model.clone() };
    let shown = core.models.names().shown(&address);
    ModelSummary {
        count_difference: core.counts.difference(&shown),
        model: shown,
        server: Some(settings.name.clone()),
        loaded: found.map(|found| found.is_some()),
        window: window.into_iter().chain(configured).min(),
        ..summary(model)
    }
}

/// Returns whether a user misses a server that does not run: every one but an Ollama that nobody chose.
fn is_missed(core: &Core, server: &str) -> bool {
    server != DEFAULT_SERVER || core.is_ollama_chosen()
}

/// Reports the state of the model servers (`model.servers`). An Ollama that nobody chose and that does not run is none of
/// them.
pub(crate) async fn report(
    core: Arc<Core>,
    params: ModelServersParams,
) -> Result<ModelServersResult> {
    let ModelServersParams { server: wanted, test } = params;
    let mut all = core.models.servers();
    if let Some(wanted) = &wanted {
        let known: Vec<String> = all.iter().map(|server| server.settings().name.clone()).collect();
        all.retain(|server| server.settings().name == *wanted);
        if all.is_empty() {
            let problem = format!("{wanted} is not configured; there are: {}", known.join(", "));
            return Err(AppError::invalid("server", problem));
        }
    }
    let core = &core;
    let reports = all.into_iter().map(|server| async move { report_of(core, &server, test).await });
    let mut data = join_all(reports).await;
    data.retain(|report| report.ready || wanted.is_some() || is_missed(core, &report.server));
    Ok(ModelServersResult { data })
}

/// Returns the report of a server that was not asked yet.
fn unasked(server: &Server) -> ServerReport {
    let settings = server.settings();
    let (parallel, parallel_from) = match settings.parallel {
        Some(parallel) => (parallel, KnownFrom::Configured),
        None => (1, KnownFrom::Default),
    };
    ServerReport {
        server: settings.name.clone(),
        kind: settings.kind.name().to_owned(),
        found: String::new(),
        host: server.host(),
        ready: false,
        version: None,
        answered_ms: None,
        n_models: None,
        parallel,
        parallel_from,
        models: Vec::new(),
        problems: Vec::new(),
    }
}

async fn report_of(core: &Arc<Core>, server: &Server, test: bool) -> ServerReport {
    let (settings, mut report) = (server.settings(), unasked(server));
    let limit = if test { TEST_LIMIT } else { LIST_LIMIT };
    let started = Instant::now();
    let until = started + limit;
    let listed = tokio::time::timeout_at(until, async {
        let backend = server.backend()?;
        backend.list(1).await
    });
    let listed = match listed.await {
        Ok(Ok(listed)) => listed,
        Ok(Err(error)) => {
            report.problems.push(problem_of(&error, &settings.name));
            return report;
        }
        Err(_) => {
            let text = format!("{} did not answer within {} s", report.host, limit.as_secs_f64());
            let hint = format!("ollmctl servers test {}", settings.name);
            report.problems.push(ServerProblem { text, hint });
            return report;
        }
    };
    report.ready = true;
    report.answered_ms = u64::try_from(started.elapsed().as_millis()).ok();
    report.n_models = u32::try_from(listed.len()).ok();
    report.found = server.backend().map(|backend| backend.kind()).unwrap_or_default().to_owned();
    report.version = server.status().await.version;
    report.problems.extend(hidden_models(core, server, &listed));
    if test {
        test_models(core, server, &listed, &mut report, until).await;
    }
    report
}

/// Returns a problem for each model that the alias of another one hides: a name alone means the alias.
fn hidden_models(core: &Core, server: &Server, listed: &[ListedModel]) -> Vec<ServerProblem> {
    let (name, names) = (&server.settings().name, core.models.names());
    let Ok(backend) = server.backend() else { return Vec::new() };
    let mut problems = Vec::new();
    for (alias, other) in names.aliases().into_iter().filter(|_| *name == DEFAULT_SERVER) {
        let hidden = listed.iter().find(|listed| {
            let is_hidden = backend.is_named(&listed.model, &alias);
            is_hidden && !(other.server == *name && backend.is_named(&listed.model, &other.name))
        });
        if let Some(hidden) = hidden {
            let text = format!("the alias {alias} means {other}, and hides {}", hidden.model);
            let hint = format!("ollmctl models show {alias}@{name}");
            problems.push(ServerProblem { text, hint });
        }
    }
    problems
}

/// Describes the models that the configuration names, or else some of the server, all at once.
async fn test_models(
    core: &Arc<Core>,
    server: &Server,
    listed: &[ListedModel],
    report: &mut ServerReport,
    until: Instant,
) {
    let settings = server.settings();
    let address = |name: &str| {
        let (server, name) = (settings.name.clone(), name.to_owned());
        core.models.names().shown(&ModelAddress { server, name })
    };
    let own = |alias: &String| match core.models.names().equal_servers(alias).is_empty() {
        true => alias.clone(),
        false => format!("{alias}@{}", settings.name),
    };
    let mut names: Vec<String> = settings.models.keys().map(own).collect();
    if names.is_empty() {
        names = listed.iter().take(MAX_TESTED).map(|model| address(&model.model)).collect();
    }
    let described = names.into_iter().map(|model| async move {
        let described = tokio::time::timeout_at(until, describe_again(core, &model)).await;
        (model, described)
    });
    for (model, described) in join_all(described).await {
        match described {
            Ok(Ok(info)) => {
                // The server's own number wins over the configured one.
                if let Some(slots) = info.slots.filter(|slots| settings.parallel != Some(*slots)) {
                    (report.parallel, report.parallel_from) = (slots, KnownFrom::Asked);
                }
                let unusable = tokenizer_problem(core, &model, &info, &settings.name).await;
                report.problems.extend(replicas_problem(core, &model, &settings.name).await);
                report.models.push(model_report(core, model, &info, unusable.is_some()));
                report.problems.extend(unusable);
            }
            Ok(Err(error)) => report.problems.push(problem_of(&error, &settings.name)),
            Err(_) => {
                let limit = TEST_LIMIT.as_secs();
                let text = format!("{model} was not described within the {limit} s of a test");
                let hint = format!("ollmctl models show {model}");
                report.problems.push(ServerProblem { text, hint });
            }
        }
    }
}

/// Returns the problem of a model whose configured vocabulary cannot be used.
async fn tokenizer_problem(
    core: &Arc<Core>,
    model: &str,
    info: &ModelInfo,
    server: &str,
) -> Option<ServerProblem> {
    let CountingSource::Configured(path) = info.counting.clone() else { return None };
    let read = blocking(core, move |_| Ok(read_configured(&path).err())).await.ok()??;
    let text = format!("the tokenizer of {model} is not used: {read}");
    Some(ServerProblem { text, hint: format!("ollmctl servers test {server}") })
}

/// Returns the problem of a model whose server has replicas that count differently.
async fn replicas_problem(core: &Arc<Core>, model: &str, server: &str) -> Option<ServerProblem> {
    let of_model = model.to_owned();
    let difference = blocking(core, move |core| {
        let _counter = core.counts.load(Some(&of_model), None, &[]);
        Ok(core.counts.difference(&of_model))
    });
    let difference = difference.await.ok()??;
    let text = format!(
        "the counts of {model} jump by {difference} tokens: replicas of the server count differently; with \
         servers.{server}.affinity a router can keep a session at one of them"
    );
    Some(ServerProblem { text, hint: "ollmctl config show".to_owned() })
}

/// Describes a model; `is_unusable` is a configured vocabulary that cannot be used, whatever was learned before.
fn model_report(
    core: &Core,
    model: String,
    info: &ModelInfo,
    is_unusable: bool,
) -> ServedModelReport {
    let counts = match &info.counting {
        CountingSource::Ollama => CountsBy::Vocabulary,
        CountingSource::Weights(path) | CountingSource::Configured(path)
            if !is_unusable
                && crate::fsutil::is_linked_file(path)
                && core.counts.may_try(&core.models.names().key(&model)) =>
        {
            CountsBy::Vocabulary
        }
        CountingSource::Weights(_) | CountingSource::Configured(_) | CountingSource::Server => {
            CountsBy::Server
        }
        CountingSource::Answers => CountsBy::Answers,
    };
    let is_learned = !is_unusable && core.counts.has_tokenizer(info, &model);
    let counts = if is_learned { CountsBy::Vocabulary } else { counts };
    let window_from = info.served_context.map(|_| match info.is_window_configured {
        true => KnownFrom::Configured,
        false => KnownFrom::Asked,
    });
    ServedModelReport { model, window: info.served_context, window_from, counts }
}

/// Returns a problem with a command that helps.
fn problem_of(error: &ModelError, server: &str) -> ServerProblem {
    let hint = match error {
        ModelError::Setup { .. }
        | ModelError::InvalidHost(_)
        | ModelError::OtherServer { .. }
        | ModelError::Unauthorized { .. }
        | ModelError::Redirected { .. }
        | ModelError::Client { .. } => "ollmctl config check".to_owned(),
        ModelError::Unreachable { to, .. } => to.advice.start.to_owned(),
        ModelError::NotFound { .. } => "ollmctl models list".to_owned(),
        ModelError::LoadFailed { to, .. } | ModelError::Failed { to, .. } => {
            to.advice.state.to_owned()
        }
        _ => format!("ollmctl servers test {server}"),
    };
    ServerProblem { text: error.to_string(), hint }
}

/// Waits for all futures at once, and returns their results in order.
async fn join_all<T>(futures: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut waiting: Vec<_> = futures.map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(|context| {
        let mut are_all_ready = true;
        for (future, result) in &mut waiting {
            if result.is_none() {
                match future.as_mut().poll(context) {
                    std::task::Poll::Ready(ready) => *result = Some(ready),
                    std::task::Poll::Pending => are_all_ready = false,
                }
            }
        }
        if are_all_ready { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    waiting.into_iter().filter_map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::testing::{TestSession, configured_core};
    use crate::model::{
        ADVICE, AnswerStream, Backend, BackendFuture, ChatRequest, SAMPLING, SamplingNames,
        ServerAdvice, Version,
    };

    /// A server that lists models and describes only one of them.
    struct HungBackend;

    impl Backend for HungBackend {
        fn host(&self) -> String {
            "hung".to_owned()
        }

        fn advice(&self) -> &'static ServerAdvice {
            &ADVICE
        }

        fn kind(&self) -> &'static str {
            "hung"
        }

        fn sampling(&self) -> &'static SamplingNames {
            &SAMPLING
        }

        fn version(&self) -> BackendFuture<'_, Version> {
            Box::pin(async { Ok(Version::parse("")) })
        }

        fn list(&self, _: u32) -> BackendFuture<'_, Vec<ListedModel>> {
            let listed = ["a", "b", "c"].map(|name| {
                let model = name.to_owned();
                ListedModel { model, is_whole: true, ..ListedModel::default() }
            });
            Box::pin(async move { Ok(listed.to_vec()) })
        }

        fn describe<'a>(&'a self, model: &'a str) -> BackendFuture<'a, ModelInfo> {
            self.show(model)
        }

        fn show<'a>(&'a self, model: &'a str) -> BackendFuture<'a, ModelInfo> {
            Box::pin(async move {
                if model != "c" {
                    std::future::pending::<()>().await;
                }
                Ok(ModelInfo { model: model.to_owned(), ..ModelInfo::default() })
            })
        }

        fn running(&self) -> BackendFuture<'_, Vec<RunningModel>> {
            Box::pin(async { Ok(Vec::new()) })
        }

        fn stream<'a>(&'a self, _: &'a ChatRequest) -> BackendFuture<'a, Box<dyn AnswerStream>> {
            Box::pin(std::future::pending())
        }

        fn release_idle(&self) -> bool {
            false
        }
    }

    #[test]
    fn ollama_is_chosen_by_an_address_a_model_or_a_section() {
        let check = |servers: &str, settings: &[(&str, &str)], expect: bool| {
            let dir = tempfile::tempdir().expect("a scratch directory");
            let text = format!("servers:\n{servers}");
            let file = dir.path().join("config.yaml");
            crate::fsutil::replace_atomically(&file, text.as_bytes()).expect("writes");
            let settings = [&[("ollama.host", "")], settings].concat();
            let core = configured_core(dir.path(), &settings);
            assert_eq!(core.is_ollama_chosen(), expect, "{servers} {settings:?}");
        };
        let other = "  s: { url: 'http://h:1', models: { big: { name: m } } }\n";
        check(other, &[], false);
        check(other, &[("models.default", "big")], false);
        check(other, &[("models.default", "qwen3:8b")], true);
        check(other, &[("ollama.host", "h:2")], true);
        check(&format!("{other}  ollama: {{ parallel: 2 }}\n"), &[], true);
        check("  {}\n", &[], true);
    }

    #[tokio::test(start_paused = true)]
    async fn test_of_a_server_has_a_limit_for_all_of_its_models() {
        let session = TestSession::new(&[]);
        session.core.models.set_backend(Arc::new(HungBackend));
        let begun = Instant::now();
        let params = ModelServersParams { server: None, test: true };
        let tested = report(Arc::clone(&session.core), params).await.expect("reports").data;
        let took = begun.elapsed();
        assert!(took >= TEST_LIMIT && took < TEST_LIMIT + Duration::from_secs(1), "{took:?}");
        let models: Vec<_> = tested[0].models.iter().map(|model| model.model.as_str()).collect();
        assert_eq!(models, ["c"]);
        let problems: Vec<_> = tested[0].problems.iter().map(|one| one.text.as_str()).collect();
        let text = |model: &str| format!("{model} was not described within the 20 s of a test");
        assert_eq!(problems, [text("a"), text("b")]);
    }
}
