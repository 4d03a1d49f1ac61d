//! Hooks: which ones run on an occasion, what they are told, and what becomes of their output. The module `hooks` of the daemon
//! finds their files and runs one.
//!
//! All hooks of an occasion run at the same time, so nobody waits longer than for one. Where somebody waits there is a limit:
//! the first prompt of a session and a compaction wait for `hooks.timeout` at most, and nothing waits for the other occasions.
//! The first prompt waits because an entry that comes later is an update behind the question, which the first answer lacks.
//!
//! **Invariants**: a hook that fails, hangs or floods costs its own contribution, is an event, and nothing else changes. No lock
//! and no place in a queue is taken here. A hook never gets texts of a conversation.

mod changed_files;
pub(crate) mod methods;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ollm_protocol::content::{
    ContextEntry, HookCompaction, HookEntry, HookInput, HookOccasion, HookOutput, HookRun,
    HookState, HookTurn, SessionStatus, Variables,
};
use ollm_protocol::event::{HookFailedData, HookUntrustedData};
use ollm_protocol::limits::shorten_text;
use ollm_protocol::methods::context::{
    ContextAddEntryParams, ContextRemoveEntryParams, ContextSource,
};
use ollm_protocol::{SessionId, sanitize};
use tokio::sync::SemaphorePermit;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::context::entries;
use super::core::{Core, blocking};
use super::error::{AppError, Result};
use crate::config::{Config, RunHooks};
use crate::context::compact::MAX_INSTRUCTIONS;
use crate::env::EnvironmentRules;
use crate::error_chain::with_sources;
use crate::hooks::{FoundHook, FoundHooks, HookError, HookOutcome, HookReply, HookRequest, RunBy};
use crate::session::SessionError;

/// The most context entries of one output.
const MAX_ENTRIES: usize = 16;
/// The most lines that hooks can keep in a summary, and their length in characters: a summary has some dozen lines.
const MAX_KEPT: usize = 8;
const MAX_KEPT_CHARS: usize = 300;
/// The longest text of an error in bytes. It can quote the output of a hook, and events and lists have it.
const MAX_ERROR_BYTES: usize = 4096;
/// The time, besides the limit of a hook, after which a compaction does without hooks: neither the disk nor the program that
/// starts them answers.
const LATE: Duration = Duration::from_secs(10);

/// The demands of hooks on a summary.
#[derive(Debug, Default)]
pub(crate) struct SummaryGuidance {
    pub(crate) instructions: Vec<String>,
    /// The lines that the summary has to contain.
    pub(crate) keep: Vec<String>,
}

/// A hook that ran. Its output is `None` if it cannot be used.
struct FinishedHook {
    hook: FoundHook,
    output: Option<HookOutput>,
    run: HookRun,
}

/// Runs the hooks of new sessions until the daemon stops.
pub(crate) fn run_for_new_sessions(core: Arc<Core>) -> impl Future<Output = ()> {
    core.hook_runs.begin();
    async move {
        loop {
            let id = core.hook_runs.next_started().await;
            drop(core.tasks.spawn(start_session(Arc::clone(&core), id)));
        }
    }
}

/// Runs the hooks of a new session, and then lets its first prompt go on.
async fn start_session(core: Arc<Core>, id: SessionId) {
    let limit = core.config().hooks.timeout;
    let (running, occasion) = (Arc::clone(&core), HookOccasion::SessionStart);
    let work = core.tasks.spawn(async move { contribute(&running, id, occasion, |_| {}).await });
    // An entry that comes later is still set.
    drop(tokio::time::timeout(limit, work).await);
    core.hook_runs.end_start(id);
    changed_files::follow(&core, id).await;
}

/// Runs the hooks that follow a turn, in the background.
pub(crate) fn after_turn(core: &Arc<Core>, id: SessionId, turn: HookTurn) {
    let running = Arc::clone(core);
    drop(core.tasks.spawn(async move {
        contribute(&running, id, HookOccasion::AfterTurn, |input| input.turn = Some(turn)).await;
        changed_files::follow(&running, id).await;
    }));
}

/// Runs the hooks before a compaction and returns what they ask of its summary.
pub(crate) async fn before_compaction(
    core: &Arc<Core>,
    id: SessionId,
    compaction: HookCompaction,
) -> SummaryGuidance {
    let mut guidance = SummaryGuidance::default();
    let Some(mut input) = input_of(core, id, HookOccasion::BeforeCompaction).await else {
        return guidance;
    };
    input.compaction = Some(compaction);
    // The record of its compaction makes a session active that was closed before.
    let has_ended_before = has_ended(core, id).await;
    let limit = core.config().hooks.timeout + LATE;
    let Ok(finished) = tokio::time::timeout(limit, run_occasion(core, &input)).await else {
        tracing::warn!(session = %id, "a compaction does without hooks, which did not end in time");
        return guidance;
    };
    for FinishedHook { hook, output, .. } in finished {
        let HookOutput { context, instructions, keep } = output.unwrap_or_default();
        if !guidance.add(instructions, keep) {
            let limits = format!("{MAX_INSTRUCTIONS} characters and {MAX_KEPT} lines");
            let error = format!(
                "its instructions and lines are left out: those of all hooks have at most {limits}"
            );
            note_failure(core, id, &hook, error);
        }
        set_entries(core, id, &hook, context, has_ended_before).await;
    }
    guidance
}

impl SummaryGuidance {
    /// Adds what a hook demands. Returns `false` and adds nothing if all hooks together would demand too much.
    fn add(&mut self, instructions: Option<String>, keep: Vec<String>) -> bool {
        let instructions = instructions.filter(|text| !text.trim().is_empty());
        let all = self.instructions.iter().chain(&instructions);
        let n_chars: usize = all.map(|text| text.chars().count()).sum();
        let fits = n_chars <= MAX_INSTRUCTIONS && self.keep.len() + keep.len() <= MAX_KEPT;
        if fits {
            self.instructions.extend(instructions);
            self.keep.extend(keep);
        }
        fits
    }
}

/// Runs the hooks of an occasion and sets their entries. While they run, the occasion is repeated once behind them.
async fn contribute(
    core: &Arc<Core>,
    id: SessionId,
    occasion: HookOccasion,
    change: impl FnOnce(&mut HookInput),
) {
    let Some(mut input) = input_of(core, id, occasion).await else { return };
    change(&mut input);
    let mut next = core.hook_runs.begin_occasion(input);
    while let Some(input) = next {
        let work = async {
            for FinishedHook { hook, output, .. } in run_occasion(core, &input).await {
                set_entries(core, id, &hook, output.unwrap_or_default().context, false).await;
            }
        };
        tokio::select! {
            () = work => {}
            // The hooks are killed.
            () = core.tasks.stopping() => return,
        }
        next = core.hook_runs.next_occasion(id, occasion);
    }
}

/// Returns whether a session was closed, archived or deleted.
async fn has_ended(core: &Arc<Core>, id: SessionId) -> bool {
    match blocking(core, move |core| Ok(core.summary(id)?.status)).await {
        Ok(status) => matches!(status, SessionStatus::Closed | SessionStatus::Archived),
        Err(error) => matches!(error, AppError::Session(SessionError::NotFound { .. })),
    }
}

/// Returns the input of hooks; `None` if hooks do not run, or if there is no such session.
async fn input_of(core: &Arc<Core>, id: SessionId, occasion: HookOccasion) -> Option<HookInput> {
    if !core.config().hooks.enabled || !core.hook_runs.has_begun() {
        return None;
    }
    let input = blocking(core, move |core| input_with_settings(core, id, occasion)).await;
    input.inspect_err(|error| tracing::debug!(session = %id, "no hooks run: {error}")).ok()
}

/// Blocks on the disk.
fn input_with_settings(core: &Core, id: SessionId, occasion: HookOccasion) -> Result<HookInput> {
    let settings = core.settings(id)?;
    Ok(HookInput {
        occasion,
        session_id: id,
        project_path: settings.project_path,
        model: core.model_or_default(settings.model),
        turn: None,
        compaction: None,
        paths: Vec::new(),
        more_paths: 0,
    })
}

/// Runs the hooks of an occasion that are ready, and reports the others once.
async fn run_occasion(core: &Arc<Core>, input: &HookInput) -> Vec<FinishedHook> {
    let found = match find(core, input.project_path.clone(), vec![input.occasion]).await {
        Ok(found) => found,
        Err(error) => {
            tracing::warn!(session = %input.session_id, "hooks do not run: {error}");
            return Vec::new();
        }
    };
    for warning in &found.warnings {
        tracing::warn!(session = %input.session_id, "hooks: {warning}");
    }
    let (ready, others): (Vec<_>, Vec<_>) =
        found.hooks.into_iter().partition(|hook| hook.state == HookState::Ready);
    for hook in &others {
        report_skipped(core, input, hook);
    }
    let finished = run_hooks(core, ready, input).await;
    for FinishedHook { hook, run, .. } in &finished {
        if let Some(error) = &run.error {
            report_failure(core, input.session_id, hook, error, run.stderr.as_deref());
        }
    }
    finished
}

async fn find(
    core: &Arc<Core>,
    project: Option<String>,
    occasions: Vec<HookOccasion>,
) -> Result<FoundHooks> {
    blocking(core, move |core| Ok(core.hooks.find(project.as_deref().map(Path::new), &occasions)))
        .await
}

/// Runs hooks at the same time; returns them in their order. Dropping this kills them.
async fn run_hooks(
    core: &Arc<Core>,
    hooks: Vec<FoundHook>,
    input: &HookInput,
) -> Vec<FinishedHook> {
    let (mut running, begun) = (JoinSet::new(), Instant::now());
    for (at, hook) in hooks.into_iter().enumerate() {
        let (core, input) = (Arc::clone(core), input.clone());
        running.spawn(async move { (at, run_hook(&core, hook, &input, begun).await) });
    }
    let mut finished = Vec::new();
    while let Some(joined) = running.join_next().await {
        finished.extend(joined.ok());
    }
    finished.sort_by_key(|(at, _)| *at);
    finished.into_iter().map(|(_, hook)| hook).collect()
}

/// Runs a hook of an occasion that has begun.
async fn run_hook(
    core: &Arc<Core>,
    hook: FoundHook,
    input: &HookInput,
    begun: Instant,
) -> FinishedHook {
    let config = core.config();
    let (mut duration_ms, mut stderr) = (0, None);
    let output = match wait_for_place(core, input.occasion, begun, config.hooks.timeout).await {
        Some((_place, limit)) => {
            let request = request_for(core, &config, &hook, input, limit);
            let reply = core.hooks.launcher.run(run_by(&config), &request).await;
            if let Ok(reply) = &reply {
                duration_ms = reply.duration_ms;
                stderr = Some(reply.stderr.clone()).filter(|text| !text.is_empty());
            }
            output_of(reply, input.occasion, &config)
        }
        None => Err("it did not run, because others ran until hooks.timeout".to_owned()),
    };
    let (output, error) = match output {
        Ok(output) => (Some(output), None),
        Err(error) => (None, Some(shortened(&error))),
    };
    let run = HookRun { at: core.clock.now(), duration_ms, error, stderr };
    core.hook_runs.note_run(&hook.path, run.clone());
    FinishedHook { hook, output, run }
}

/// Waits until a hook may run; returns its place among the running ones and its limit. A compaction waits for all its hooks:
/// there the limit includes this wait, and if it is over, the result is `None`.
async fn wait_for_place(
    core: &Core,
    occasion: HookOccasion,
    begun: Instant,
    limit: Duration,
) -> Option<(SemaphorePermit<'_>, Duration)> {
    // The semaphore is never closed.
    let place = core.hook_runs.permits.acquire();
    if occasion != HookOccasion::BeforeCompaction {
        return Some((place.await.ok()?, limit));
    }
    let place = tokio::time::timeout_at(begun + limit, place).await.ok()?.ok()?;
    let left = limit.saturating_sub(begun.elapsed());
    (!left.is_zero()).then_some((place, left))
}

fn request_for(
    core: &Core,
    config: &Config,
    hook: &FoundHook,
    input: &HookInput,
    limit: Duration,
) -> HookRequest {
    let project = input.project_path.as_deref().map(PathBuf::from);
    HookRequest {
        program: hook.program.clone().unwrap_or_default(),
        directory: project.unwrap_or_else(|| core.hooks.home().to_owned()),
        variables: variables(core, config, input),
        input: serde_json::to_string(input).expect("texts and numbers become JSON") + "\n",
        limit,
    }
}

/// Returns the text of an error on one line, shortened. It can quote the output of a hook, and a log is lines of text.
fn shortened(error: &str) -> String {
    let mut error = sanitize::one_line(error);
    shorten_text(&mut error, MAX_ERROR_BYTES);
    error
}

/// Returns the program that starts hooks. `SYSTEMD_EXEC_PID` names the process that systemd itself started; one that such a
/// process started has the variable, too.
fn run_by(config: &Config) -> RunBy {
    let variable = |name| config.variables.0.get(name);
    let is_service = || {
        let started = variable("SYSTEMD_EXEC_PID").and_then(|pid| pid.parse().ok());
        started == Some(std::process::id()) && variable("XDG_RUNTIME_DIR").is_some()
    };
    match config.hooks.run_by {
        RunHooks::Auto if is_service() => RunBy::Systemd,
        RunHooks::Auto | RunHooks::Daemon => RunBy::Daemon,
        RunHooks::Systemd => RunBy::Systemd,
    }
}

/// Returns the variables of a hook: those of the daemon that tools may see, without those that concern the daemon itself, and
/// those with which `ollmctl` finds this daemon.
fn variables(
    core: &Core,
    config: &Config,
    input: &HookInput,
) -> std::collections::BTreeMap<String, String> {
    const OF_SERVICE: [&str; 6] =
        ["NOTIFY_", "LISTEN_", "WATCHDOG_", "SYSTEMD_EXEC_PID", "INVOCATION_ID", "JOURNAL_STREAM"];
    let rules = EnvironmentRules::new(&config.environment);
    let mut variables = rules.sanitize(Variables(config.variables.0.clone())).passed.0;
    variables.retain(|name, _| {
        !name.starts_with("OLLM_") && !OF_SERVICE.iter().any(|start| name.starts_with(start))
    });
    let own = [
        ("OLLM_HOME", core.hooks.home().to_string_lossy().into_owned()),
        ("OLLM_NO_SPAWN", "1".to_owned()),
        ("OLLM_HOOK", input.occasion.as_str().to_owned()),
        ("OLLM_SESSION", input.session_id.to_string()),
    ];
    variables.extend(own.map(|(name, value)| (name.to_owned(), value)));
    variables
}

/// Returns the output of a hook, or why there is none that can be used.
fn output_of(
    reply: Result<HookReply, HookError>,
    occasion: HookOccasion,
    config: &Config,
) -> Result<HookOutput, String> {
    let reply = reply.map_err(|error| {
        let way_out = match run_by(config) {
            RunBy::Systemd => "; `hooks.runBy: daemon` starts hooks without systemd",
            RunBy::Daemon => "",
        };
        with_sources(&error) + way_out
    })?;
    match reply.outcome {
        HookOutcome::Success => {}
        HookOutcome::Failed(status) => return Err(format!("it ended with {status}")),
        HookOutcome::TimedOut => {
            let limit = config.hooks.timeout.as_secs_f64();
            return Err(format!("it was killed after {limit} s (hooks.timeout)"));
        }
        HookOutcome::Flooded => return Err("it wrote more than 64 KiB to stdout".to_owned()),
        HookOutcome::NotStarted(error) => return Err(format!("it could not be started: {error}")),
    }
    parse_output(&reply.output, occasion)
}

fn parse_output(text: &str, occasion: HookOccasion) -> Result<HookOutput, String> {
    if text.trim().is_empty() {
        return Ok(HookOutput::default());
    }
    let output: HookOutput = serde_json::from_str(text)
        .map_err(|error| format!("its output is not the JSON of a hook: {error}"))?;
    let HookOutput { context, instructions, keep } = &output;
    if context.len() > MAX_ENTRIES {
        return Err(format!(
            "its output has {} entries; the limit is {MAX_ENTRIES}",
            context.len()
        ));
    }
    let has_guidance = instructions.is_some() || !keep.is_empty();
    if has_guidance && occasion != HookOccasion::BeforeCompaction {
        return Err("instructions and keep are for before-compaction".to_owned());
    }
    if instructions.as_ref().is_some_and(|text| text.chars().count() > MAX_INSTRUCTIONS) {
        return Err(format!("its instructions have more than {MAX_INSTRUCTIONS} characters"));
    }
    let is_line = |line: &String| {
        !line.trim().is_empty()
            && line.chars().count() <= MAX_KEPT_CHARS
            && !line.chars().any(char::is_control)
    };
    if keep.len() > MAX_KEPT || !keep.iter().all(is_line) {
        let limit = format!("{MAX_KEPT} lines of {MAX_KEPT_CHARS} characters");
        return Err(format!("keep can have at most {limit}, none of them empty"));
    }
    Ok(output)
}

/// Sets the context entries of a hook; an empty text removes one. Those of a session that has ended are left out, because their
/// records would make it active again, unless `also_ended` is set.
async fn set_entries(
    core: &Arc<Core>,
    id: SessionId,
    hook: &FoundHook,
    entries: Vec<HookEntry>,
    also_ended: bool,
) {
    for HookEntry { name, text } in entries {
        if !also_ended && has_ended(core, id).await {
            let path = hook.path.display().to_string();
            tracing::debug!(session = %id, hook = path, "its entries come after the session ended");
            return;
        }
        let key = format!("{}{}", ContextEntry::HOOK_PREFIX, name.trim());
        let (session_id, project_path, scope) = (Some(id), None, None);
        let set = if text.trim().is_empty() {
            let params = ContextRemoveEntryParams { session_id, project_path, scope, key };
            entries::remove(Arc::clone(core), params).await.map(drop)
        } else {
            let (content, priority, source) = (text, None, Some(ContextSource::Hook));
            let params = ContextAddEntryParams {
                session_id,
                project_path,
                scope,
                key,
                content,
                priority,
                source,
            };
            entries::add(Arc::clone(core), params).await.map(drop)
        };
        if let Err(error) = set {
            let error = format!("the entry {name:?} was not set: {}", with_sources(&error));
            note_failure(core, id, hook, error);
        }
    }
}

/// Reports a problem of a hook's output, and keeps it with the run.
fn note_failure(core: &Core, id: SessionId, hook: &FoundHook, error: String) {
    let error = shortened(&error);
    if let Some(run) = core.hook_runs.last_run(&hook.path) {
        core.hook_runs.note_run(&hook.path, HookRun { error: Some(error.clone()), ..run });
    }
    report_failure(core, id, hook, &error, None);
}

/// Reports a hook that failed. What it wrote is in the log and in `hook.list` only.
fn report_failure(core: &Core, id: SessionId, hook: &FoundHook, error: &str, stderr: Option<&str>) {
    let path = hook.path.display().to_string();
    tracing::warn!(session = %id, hook = path, stderr, "a hook failed: {error}");
    let (occasion, error) = (hook.occasion, error.to_owned());
    core.publish(id, None, &HookFailedData { hook: path, occasion, error });
}

/// Reports a hook that does not run, once for each of its contents.
fn report_skipped(core: &Core, input: &HookInput, hook: &FoundHook) {
    let what = hook.digest.as_deref().or(hook.problem.as_deref()).unwrap_or_default();
    if !core.hook_runs.is_new_report(&hook.path, what) {
        return;
    }
    let (path, id) = (hook.path.display().to_string(), input.session_id);
    let problem = hook.problem.as_deref().unwrap_or_default();
    if hook.state == HookState::Unusable {
        return report_failure(core, id, hook, problem, None);
    }
    tracing::warn!(session = %id, hook = path, "a hook does not run: {problem}");
    let changed = hook.state == HookState::Changed;
    core.publish(id, None, &HookUntrustedData { hook: path, occasion: hook.occasion, changed });
}

#[cfg(test)]
mod tests {
    use ollm_protocol::content::HookOrigin;
    use ollm_protocol::methods::context::ContextListEntriesParams;
    use ollm_protocol::methods::session::SessionIdParams;

    use super::*;
    use crate::app::sessions::update;
    use crate::app::testing::TestSession;

    fn hook() -> FoundHook {
        FoundHook {
            name: "after-turn".to_owned(),
            occasion: HookOccasion::AfterTurn,
            origin: HookOrigin::Home,
            path: PathBuf::from("/home/hooks/after-turn"),
            size_bytes: 0,
            digest: None,
            state: HookState::Ready,
            problem: None,
            program: None,
            trusted_digest: None,
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn late_entries_of_a_closed_or_archived_session_are_left_out() {
        let session = TestSession::new(&[]);
        let (core, id) = (&session.core, session.id);
        let set = async |text: &str, also_ended| {
            let entry = HookEntry { name: "branch".to_owned(), text: text.to_owned() };
            set_entries(core, id, &hook(), vec![entry], also_ended).await;
        };
        let check = |text: &str, status| {
            let params = ContextListEntriesParams { session_id: Some(id), project_path: None };
            let entries = entries::list(core, params).expect("lists").data;
            assert_eq!(entries[0].content, text);
            assert_eq!(core.summary(id).expect("exists").status, status);
        };
        let params = || SessionIdParams { session_id: id };
        session.record("user", "hello").await;
        set("main", false).await;
        check("main", SessionStatus::Active);
        update::close(Arc::clone(core), params()).await.expect("closes");
        set("fix", false).await;
        check("main", SessionStatus::Closed);
        set("fix", true).await;
        check("fix", SessionStatus::Active);
        update::archive(Arc::clone(core), params()).await.expect("archives");
        set("main", false).await;
        check("fix", SessionStatus::Archived);
    }

    #[test]
    fn error_is_one_line_without_escape_sequences() {
        let error = "unknown field `a\n2026 INFO \u{1b}[2Jb`";
        assert_eq!(shortened(error), "unknown field `a 2026 INFO b`");
    }

    #[test]
    fn hooks_together_demand_no_more_of_a_summary_than_one_may() {
        let mut guidance = SummaryGuidance::default();
        let lines = |n: usize| vec!["a line".to_owned(); n];
        assert!(guidance.add(Some("x".repeat(MAX_INSTRUCTIONS)), lines(MAX_KEPT - 1)));
        assert!(!guidance.add(Some("y".to_owned()), Vec::new()));
        assert!(!guidance.add(None, lines(2)));
        assert!(guidance.add(Some(" ".to_owned()), lines(1)));
        assert_eq!((guidance.instructions.len(), guidance.keep.len()), (1, MAX_KEPT));
    }

    #[test]
    fn output_is_nothing_or_what_the_occasion_allows() {
        use HookOccasion::{AfterTurn, BeforeCompaction};
        let check = |text: &str, occasion, expected: Result<usize, &str>| {
            let parsed = parse_output(text, occasion).map(|output| output.context.len());
            match (parsed, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{text}"),
                (Err(error), Err(part)) => assert!(error.contains(part), "{text}: {error}"),
                (parsed, _) => panic!("{text}: {parsed:?}"),
            }
        };
        check(" \n", AfterTurn, Ok(0));
        check(r#"{"context":[{"name":"a","text":"b"}]}"#, AfterTurn, Ok(1));
        check("hello", AfterTurn, Err("not the JSON of a hook"));
        check(r#"{"contxt":[]}"#, AfterTurn, Err("unknown field `contxt`"));
        check(r#"{"keep":["a"]}"#, AfterTurn, Err("for before-compaction"));
        check(r#"{"keep":["a"],"instructions":"b"}"#, BeforeCompaction, Ok(0));
        check(r#"{"keep":["a\nb"]}"#, BeforeCompaction, Err("keep can have at most 8 lines"));
        let long = format!(r#"{{"instructions":"{}"}}"#, "x".repeat(MAX_INSTRUCTIONS + 1));
        check(&long, BeforeCompaction, Err("more than 2000"));
        let entry = r#"{"name":"a","text":"b"},"#.repeat(MAX_ENTRIES + 1);
        let many = format!(r#"{{"context":[{}]}}"#, entry.trim_end_matches(','));
        check(&many, AfterTurn, Err("the limit is 16"));
    }
}
