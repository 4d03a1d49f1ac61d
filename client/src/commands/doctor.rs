//! `ollmctl doctor`: what works between this client, the daemon and the model server, and what to do about the rest.
//!
//! Needs no daemon and starts none. The daemon examines itself (`daemon.doctor`); this file adds what only a client
//! sees: whether the daemon can be reached, how long a call takes, and the programs and variables on this side.

use std::fmt::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use ollm_protocol::method::{DaemonDoctor, DaemonHello, RpcDiscover, STREAMS};
use ollm_protocol::methods::daemon::{
    DaemonDoctorResult, DaemonHelloParams, DoctorFinding, FindingLevel, NoParams, RetentionWork,
};
use ollm_protocol::{ErrorKind, METHODS, Method as _, PROTOCOL_VERSION, sanitize};
use rustix::fs::Access;
use serde::Serialize;
use serde_json::Value;

use super::daemon::check_config;
use super::service::findings::ExaminedService;
use super::{doctor_store, models};
use crate::address::{AddressSource, is_home_locked, lock_holder};
use crate::command_context::{CallReply, CommandContext, is_older};
use crate::command_error::{CommandError, CommandResult};
use crate::connection::{BlockingClient, Connector, decode};
use crate::error::{ClientError, Exit};
use crate::model_server::OtherModelServer;
use crate::render::units::{ago, bytes, grouped};
use crate::render::{RenderOptions, Style, table, try_line};
use crate::service::InstalledService;

/// The calls whose median is the time of a round trip.
const CALLS: usize = 5;
/// The longest wait for the daemon: it gives each disk a few seconds.
const LIMIT: Duration = Duration::from_secs(10);

/// Find out what works and what does not, with the commands that help.
#[derive(Debug, Args)]
#[command(after_help = "\
Needs no daemon and starts none. With --json, the whole report for a bug report: it has paths, names of variables and \
the last error of the daemon's log, and no text of a conversation and no value of a key.

Exit codes: 0 without a problem, 6 if the daemon cannot be reached, 5 if its configuration is wrong, 7 if only the model \
server cannot be used, 1 for other problems. Warnings do not count.

With --store, the daemon, which is started if needed, reads all sessions, also while others use them, and shows what takes space. Exit codes: 0 if nothing is lost or wrong, 1 otherwise.

Examples:
  ollmctl doctor
  ollmctl doctor --store
  ollmctl doctor --json > report.json")]
pub(crate) struct DoctorArgs {
    /// Read and compare everything on the disk instead: logs, blobs, documents, snapshots and the catalog.
    #[arg(long)]
    store: bool,
    /// Make derived files again that are wrong. Logs are never changed.
    #[arg(long, requires = "store")]
    repair: bool,
}

/// The whole report.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct DoctorReport {
    /// No finding is a problem.
    ok: bool,
    findings: Vec<DoctorFinding>,
    client: ClientPart,
    home: HomePart,
    socket: SocketPart,
    /// The command of the service manager that starts the daemon of this home.
    service: Option<String>,
    /// The names of the variables that are set and that matter.
    variables: Vec<String>,
    /// The result of `daemon.doctor`, if the daemon can be reached and is new enough.
    daemon: Option<Value>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ClientPart {
    version: &'static str,
    protocol: u32,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct HomePart {
    path: PathBuf,
    source: AddressSource,
    /// The rights, in octal digits; absent if the home does not exist.
    mode: Option<String>,
    owner: Option<u32>,
    /// A daemon holds the lock of the home.
    locked: bool,
    /// The process that holds it, if the system tells.
    holder: Option<u32>,
    /// A `daemon.json` is there although no daemon runs.
    left_file: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct SocketPart {
    source: AddressSource,
    /// The sockets that were tried, in this order.
    tried: Vec<PathBuf>,
    connected: Option<PathBuf>,
    /// The median time of a call, in microseconds.
    round_trip_us: Option<u64>,
}

/// Prints the report.
pub(super) fn run(args: &DoctorArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    if args.store {
        return doctor_store::run(args.repair, ctx);
    }
    let (report, daemon) = examine(ctx);
    ctx.print_value(&report, |report, options| render(report, daemon.as_ref(), options))?;
    match exit_of(&report.findings) {
        Exit::Success => Ok(()),
        exit => Err(CommandError::Unwell { exit }),
    }
}

fn examine(ctx: &CommandContext<'_>) -> (DoctorReport, Option<DaemonDoctorResult>) {
    let connector = ctx.connector().clone().without_spawn().with_any_protocol();
    let connector = connector.with_timeout(ctx.timeout().unwrap_or(LIMIT));
    let address = connector.address();
    let mut findings = Vec::new();
    let home = home_part(ctx);
    let service = InstalledService::find(address, ctx.environment);
    let mut socket = SocketPart {
        source: address.sources().1,
        tried: address.sockets(),
        connected: None,
        round_trip_us: None,
    };
    let mut daemon = None;
    let foreign = address.check_owner().err();
    match connect(&connector, home.locked) {
        Ok(Some(mut client)) => {
            socket.connected = Some(client.socket().to_owned());
            findings.extend(other_model_server(&client, service.is_some(), ctx));
            match ask(&mut client, &mut socket, &mut findings) {
                Ok(found) => daemon = found,
                Err(error) => findings.push(problem("daemon", &error, error.hint())),
            }
        }
        // Of the home of another user, nothing else can be said.
        Ok(None) | Err(_) if foreign.is_some() => {}
        Ok(None) => findings.extend(not_running(address.home())),
        Err(error) => findings.push(problem("daemon", &error, error.hint())),
    }
    match check_config(&connector) {
        Ok(()) => {}
        Err(_) if foreign.is_some() => {}
        Err(CommandError::BadConfig { reason, .. }) => {
            findings.extend(reason.lines().map(|mistake| {
                let text = format!("the configuration is wrong: {mistake}");
                problem("configuration", text, Some("ollmctl config check".to_owned()))
            }));
        }
        Err(error) => findings.push(problem("program", error.message(), None)),
    }
    findings.extend(foreign.map(|error| problem("rights", &error, error.hint())));
    let running = daemon.as_ref().map(|daemon| daemon.value.status.pid);
    if let Some(service) = ExaminedService::find(ctx) {
        findings.extend(service.findings(running, ctx));
    }
    if let Some(daemon) = &daemon {
        findings.extend(daemon.value.findings.iter().cloned());
    }
    findings.sort_by_key(|finding| finding.level);
    let report = DoctorReport {
        ok: findings.iter().all(|finding| finding.level != FindingLevel::Problem),
        findings,
        client: ClientPart { version: env!("CARGO_PKG_VERSION"), protocol: PROTOCOL_VERSION },
        home,
        socket,
        service: service.map(|service| service.to_string()),
        variables: variables(),
        daemon: daemon.as_ref().map(CallReply::to_json),
    };
    (report, daemon.map(|daemon| daemon.value))
}

/// Connects to the daemon; returns `None` if it does not run.
fn connect(connector: &Connector, is_locked: bool) -> Result<Option<BlockingClient>, ClientError> {
    // A connection to the socket of an installed service would start the daemon.
    if !connector.may_be_running() {
        return Ok(None);
    }
    match BlockingClient::connect(connector) {
        Err(ClientError::Unreachable { .. })
            if !is_locked && connector.address().socket().is_none() =>
        {
            Ok(None)
        }
        connected => connected.map(Some),
    }
}

/// Returns the findings about a home without a daemon.
fn not_running(home: &Path) -> Vec<DoctorFinding> {
    let text = "ollmd is not running, so sessions and model servers were not examined; \
        other commands start it when they need it";
    let start = Some("ollmctl daemon start".to_owned());
    unwritable(home).into_iter().chain([warning("daemon", text.to_owned(), start)]).collect()
}

/// Returns the problem of a home that a daemon could not write, or not make.
fn unwritable(home: &Path) -> Option<DoctorFinding> {
    let directory = home.ancestors().find(|path| path.exists())?;
    let rights = Access::WRITE_OK | Access::EXEC_OK;
    rustix::fs::access(directory, rights).err()?;
    let shown = sanitize::one_line(&directory.to_string_lossy());
    let text = format!("{shown} cannot be written, so ollmd cannot keep anything there");
    let hint = format!("ollmctl --home DIR ... # or: chmod u+rwx {shown}");
    Some(problem("rights", text, Some(hint)))
}

/// Compares the model server of the daemon with that of this shell.
fn other_model_server(
    client: &BlockingClient,
    is_service: bool,
    ctx: &CommandContext<'_>,
) -> Option<DoctorFinding> {
    let own = ctx.environment.ollama_host.as_deref();
    let other = OtherModelServer::of(client.model_server(), own, is_service)?;
    Some(DoctorFinding { hint: Some(other.hint), ..warning("modelServer", other.text, None) })
}

fn home_part(ctx: &CommandContext<'_>) -> HomePart {
    let address = ctx.connector().address();
    let home = address.home();
    let found = home.metadata().ok();
    let locked = is_home_locked(home);
    HomePart {
        path: home.to_owned(),
        source: address.sources().0,
        mode: found.as_ref().map(|found| format!("{:03o}", found.mode() & 0o7777)),
        owner: found.as_ref().map(|found| found.uid()),
        locked,
        holder: lock_holder(home).filter(|_| locked),
        left_file: !locked && home.join("daemon.json").exists(),
    }
}

/// Asks a daemon that can be reached; `None` if it is too old to examine itself.
fn ask(
    client: &mut BlockingClient,
    socket: &mut SocketPart,
    findings: &mut Vec<DoctorFinding>,
) -> Result<Option<CallReply<DaemonDoctorResult>>, ClientError> {
    let hello = DaemonHelloParams {
        client: "ollmctl".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        protocol_min: PROTOCOL_VERSION,
        protocol_max: PROTOCOL_VERSION,
    };
    let mut times = Vec::with_capacity(CALLS);
    let mut version = String::new();
    for _ in 0..CALLS {
        let begun = Instant::now();
        version = client.call::<DaemonHello>(&hello)?.version;
        times.push(u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX));
    }
    times.sort_unstable();
    socket.round_trip_us = Some(times[CALLS / 2]);
    let restart = || Some("ollmctl daemon restart".to_owned());
    let own = env!("CARGO_PKG_VERSION");
    if is_older(own, &version) {
        findings.push(older_client(client, &version)?);
    } else if version != own {
        let text = format!("ollmd {version} runs, and this client is ollmctl {own}");
        findings.push(warning("daemon", text, restart()));
    }
    match client.call_raw(DaemonDoctor::NAME, &NoParams {}) {
        Ok(raw) => {
            let value = decode(DaemonDoctor::NAME, &raw)?;
            Ok(Some(CallReply { raw, value }))
        }
        Err(ClientError::Rpc(failure)) if failure.kind == Some(ErrorKind::MethodNotFound) => {
            let text = format!("ollmd {version} is too old to examine itself");
            findings.push(warning("daemon", text, restart()));
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Names the methods of a newer daemon that this client does not know.
fn older_client(client: &mut BlockingClient, version: &str) -> Result<DoctorFinding, ClientError> {
    let document = client.call::<RpcDiscover>(&NoParams {})?;
    let methods = document["methods"].as_array().map(Vec::as_slice).unwrap_or_default();
    let names = methods.iter().filter_map(|method| method["name"].as_str());
    let streams = STREAMS.iter().map(|stream| stream.unsubscribe);
    let known: Vec<&str> = METHODS.iter().map(|method| method.name).chain(streams).collect();
    let lacks: Vec<&str> = names.filter(|name| !known.contains(name)).collect();
    let lacks = match lacks.as_slice() {
        [] => "it knows every method".to_owned(),
        lacks => format!("it lacks {}", lacks.join(", ")),
    };
    let own = env!("CARGO_PKG_VERSION");
    let text = format!("this ollmctl {own} is older than ollmd {version}: {lacks}");
    Ok(warning("client", text, Some("type -a ollmctl  # a newer one may be installed".to_owned())))
}

/// Returns the names of the variables that the daemon or this client reads. Values may be keys.
fn variables() -> Vec<String> {
    const FOREIGN: [&str; 8] = [
        "OLLAMA_HOST",
        "XDG_RUNTIME_DIR",
        "XDG_CONFIG_HOME",
        "NO_COLOR",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "NO_PROXY",
    ];
    let names = crate::address::variables().into_iter().map(|(name, _)| name);
    let names = names.filter_map(|name| name.into_string().ok());
    let matters =
        |name: &String| name.starts_with("OLLM_") || FOREIGN.contains(&&*name.to_ascii_uppercase());
    let mut names: Vec<String> = names.filter(matters).collect();
    names.sort_unstable();
    names
}

fn problem(topic: &str, text: impl ToString, hint: Option<String>) -> DoctorFinding {
    let level = FindingLevel::Problem;
    DoctorFinding { level, topic: topic.to_owned(), text: text.to_string(), hint }
}

fn warning(topic: &str, text: String, hint: Option<String>) -> DoctorFinding {
    DoctorFinding { level: FindingLevel::Warning, topic: topic.to_owned(), text, hint }
}

/// Returns the exit code for the worst problem: a daemon that cannot be reached explains most others.
fn exit_of(findings: &[DoctorFinding]) -> Exit {
    let problems = findings.iter().filter(|finding| finding.level == FindingLevel::Problem);
    let topics: Vec<&str> = problems.map(|finding| finding.topic.as_str()).collect();
    if topics.is_empty() {
        Exit::Success
    } else if topics.contains(&"configuration") {
        Exit::Config
    } else if topics.contains(&"daemon") {
        Exit::Unreachable
    } else if topics.iter().all(|topic| *topic == "modelServer") {
        Exit::ModelServer
    } else {
        Exit::Internal
    }
}

fn render(
    report: &DoctorReport,
    daemon: Option<&DaemonDoctorResult>,
    options: &RenderOptions,
) -> String {
    let path = |path: &PathBuf| sanitize::one_line(&path.to_string_lossy());
    let source = |source: AddressSource, variable: &str| match source {
        AddressSource::Argument => ", as given".to_owned(),
        AddressSource::Environment => format!(", from {variable}"),
        AddressSource::Default => String::new(),
    };
    let ClientPart { version, protocol } = report.client;
    let home = &report.home;
    let mode = home
        .mode
        .as_ref()
        .map_or(", does not exist yet".to_owned(), |mode| format!(", mode {mode}"));
    let mut rows = vec![
        ("client", format!("ollmctl {version} (protocol {protocol})")),
        ("home", format!("{}{}{mode}", path(&home.path), source(home.source, "OLLM_HOME"))),
    ];
    let socket = &report.socket;
    if let (Some(connected), Some(took)) = (&socket.connected, socket.round_trip_us) {
        let source = source(socket.source, "OLLM_SOCKET");
        rows.push(("socket", format!("{}{source}, a call takes {}", path(connected), time(took))));
    }
    if let Some(daemon) = daemon {
        rows.extend(daemon_rows(daemon, options));
    }
    let service = report.service.as_deref().unwrap_or("none");
    rows.push(("service", sanitize::one_line(service)));
    if !report.variables.is_empty() {
        rows.push(("variables", sanitize::one_line(&report.variables.join(", "))));
    }
    let mut text = table::fields(&rows);
    text.push('\n');
    text.push_str(&finding_lines(&report.findings));
    if report.findings.is_empty() {
        text.push_str("everything works\n");
    }
    text
}

/// Returns the findings, each with the command that may help.
pub(super) fn finding_lines(findings: &[DoctorFinding]) -> String {
    let mut text = String::new();
    for DoctorFinding { level, text: found, hint, .. } in findings {
        let level = Style::Bad.paint(&format!("{}:", level.as_str()));
        let _infallible = writeln!(text, "{level} {}", sanitize::one_line(found));
        if let Some(hint) = hint {
            text += &try_line(hint);
        }
    }
    text
}

fn daemon_rows(
    daemon: &DaemonDoctorResult,
    options: &RenderOptions,
) -> Vec<(&'static str, String)> {
    let status = &daemon.status;
    let version = sanitize::one_line(&status.version);
    let started = ago(status.started_at, options.now);
    let mut rows =
        vec![("daemon", format!("ollmd {version}, process {}, started {started}", status.pid))];
    for directory in &daemon.directories {
        let free = directory.free_bytes.map(|free| format!("{} free", bytes(free)));
        let sync = directory.sync_us.map(|took| format!("a sync takes {}", time(took)));
        let known: Vec<String> = free.into_iter().chain(sync).collect();
        let path = sanitize::one_line(&directory.path.to_string_lossy());
        rows.push(("disk", format!("{path}: {}", known.join(", "))));
    }
    let catalog = &status.catalog;
    let sessions = grouped(status.store.sessions);
    let state = sanitize::one_line(&catalog.state);
    rows.push(("sessions", format!("{sessions}, catalog {state}, {}", bytes(catalog.size_bytes))));
    if let Some(RetentionWork { archived, deleted, last_at }) = daemon.retention {
        let (archived, deleted) = (grouped(archived), grouped(deleted));
        let last = ago(last_at, options.now);
        let done = format!(
            "archived {archived} and deleted {deleted} sessions since the start, last {last}"
        );
        rows.push(("retention", done));
    }
    rows.push(("models", models::server_state(&status.model_server)));
    if let Some(inotify) = daemon.inotify {
        let (watches, most) = (grouped(inotify.watches), grouped(inotify.max_watches));
        rows.push(("watches", format!("{watches} of at most {most} of the user")));
    }
    if let Some(log) = &daemon.log {
        rows.push(("log", sanitize::one_line(&log.path.to_string_lossy())));
        if let Some(error) = &log.last_error {
            rows.push(("last error", sanitize::one_line(error)));
        }
    }
    rows
}

/// Returns a time in words; takes microseconds.
fn time(micros: u64) -> String {
    match micros {
        0..1_000 => format!("{micros} us"),
        1_000..10_000 => format!("{}.{} ms", micros / 1_000, micros % 1_000 / 100),
        _ => format!("{} ms", micros / 1_000),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::address::Environment;
    use crate::testing::{TestHome, plain, render_options, reply, run_at};

    fn without_program(home: &TestHome) -> Environment {
        Environment { user_home: Some(home.path().to_owned()), ..Environment::default() }
    }

    #[test]
    fn missing_daemon_and_program_are_problems_with_a_command() {
        let home = TestHome::new();
        let (stdout, error) =
            run_at(&home.socket(), &["doctor", "--json"], &without_program(&home));
        assert_eq!(error.unwrap().exit(), Exit::Unreachable);
        let report: Value = serde_json::from_str(&stdout).unwrap();
        assert_eq!(report["ok"], false);
        let topics: Vec<&str> = report["findings"]
            .as_array()
            .unwrap()
            .iter()
            .map(|finding| finding["topic"].as_str().unwrap())
            .collect();
        assert_eq!(topics, ["daemon", "program"]);
        assert_eq!(report["daemon"], Value::Null);
        assert_eq!(report["socket"]["tried"][0], json!(home.socket()));
    }

    #[test]
    fn exit_code_is_that_of_the_worst_problem() {
        let check = |problems: &[&str], expect: Exit| {
            let mut findings = vec![warning("disk", "is slow".to_owned(), None)];
            findings.extend(problems.iter().map(|topic| problem(topic, "", None)));
            assert_eq!(exit_of(&findings), expect, "{problems:?}");
        };
        check(&[], Exit::Success);
        check(&["modelServer"], Exit::ModelServer);
        check(&["modelServer", "disk"], Exit::Internal);
        check(&["modelServer", "daemon"], Exit::Unreachable);
        check(&["daemon", "configuration"], Exit::Config);
    }

    /// Returns the report about a daemon that has a version and `rpc.discover`, and does not examine itself.
    fn report_of_version(version: &'static str, methods: &Value) -> String {
        let home = TestHome::new();
        let methods = methods.clone();
        let _server = home.serve(move |request, stream| match request["method"].as_str() {
            Some("daemon.hello") => {
                let limits =
                    json!({"frameBytes": 1, "batch": 1, "subscriptions": 1, "inFlight": 1});
                let hello = json!({"protocol": 1, "schemaRevision": 1, "version": version,
                    "pid": 1, "epoch": "e", "limits": limits});
                reply(stream, request, &hello);
            }
            Some("rpc.discover") => reply(stream, request, &json!({ "methods": methods })),
            _ => {
                let error = json!({"code": -32601, "message": "no such method",
                    "data": {"kind": "methodNotFound"}});
                crate::testing::send(
                    stream,
                    &json!({"jsonrpc": "2.0", "id": request["id"], "error": error}),
                );
            }
        });
        plain(&run_at(&home.socket(), &["doctor"], &without_program(&home)).0)
    }

    #[test]
    fn daemon_that_is_too_old_is_a_warning() {
        let text = report_of_version("0.0.1", &json!([]));
        assert!(text.contains("warning: ollmd 0.0.1 is too old to examine itself"), "{text}");
        assert!(text.contains("try: ollmctl daemon restart"), "{text}");
    }

    #[test]
    fn client_that_is_too_old_is_told_what_it_lacks() {
        let names = ["daemon.hello", "event.unsubscribe", "session.fly", "session.list"];
        let methods: Vec<Value> = names.iter().map(|name| json!({ "name": name })).collect();
        let text = report_of_version("99.0.0", &json!(methods));
        assert!(text.contains("is older than ollmd 99.0.0: it lacks session.fly\n"), "{text}");
        assert!(!text.contains("99.0.0 runs"), "{text}");
        let text = report_of_version("99.0.0", &json!([]));
        assert!(text.contains("is older than ollmd 99.0.0: it knows every method\n"), "{text}");
    }

    #[test]
    fn report_is_a_table_and_the_findings() {
        let daemon: DaemonDoctorResult = serde_json::from_value(json!({
            "findings": [],
            "status": {
                "version": "0.1.0", "pid": 42, "startedAt": "2026-01-27T09:00:00Z",
                "home": "/h", "socket": "/h/s", "protocol": 1, "connections": 1, "subscriptions": 0,
                "store": {"sessions": 1200, "openSessions": 3, "recordsWritten": 50, "syncs": 20},
                "catalog": {"state": "ready", "behind": 0, "sizeBytes": 2048},
                "modelServer": {"host": "http://127.0.0.1:11434", "reachable": true}
            },
            "directories": [{"path": "/h", "mode": "700", "freeBytes": 5_368_709_120_u64, "syncUs": 1_250}],
            "log": {"path": "/h/logs/x", "lastError": "at ERROR \u{1b}[5m disk"},
            "inotify": {"watches": 10, "maxWatches": 8192, "maxInstances": 128}
        }))
        .unwrap();
        let report = DoctorReport {
            ok: false,
            findings: vec![problem("disk", "it is full", Some("df -h /h".to_owned()))],
            client: ClientPart { version: "0.1.0", protocol: 1 },
            home: HomePart {
                path: "/h".into(),
                source: AddressSource::Environment,
                mode: Some("700".to_owned()),
                owner: Some(1),
                locked: true,
                holder: Some(42),
                left_file: false,
            },
            socket: SocketPart {
                source: AddressSource::Default,
                tried: vec!["/h/s".into()],
                connected: Some("/h/s".into()),
                round_trip_us: Some(80),
            },
            service: None,
            variables: vec!["OLLM_HOME".to_owned()],
            daemon: None,
        };
        assert_eq!(
            plain(&render(&report, Some(&daemon), &render_options(80))),
            "\
client      ollmctl 0.1.0 (protocol 1)
home        /h, from OLLM_HOME, mode 700
socket      /h/s, a call takes 80 us
daemon      ollmd 0.1.0, process 42, started 1 h ago
disk        /h: 5.0 GiB free, a sync takes 1.2 ms
sessions    1,200, catalog ready, 2.0 KiB
models      http://127.0.0.1:11434
watches     10 of at most 8,192 of the user
log         /h/logs/x
last error  at ERROR disk
service     none
variables   OLLM_HOME

problem: it is full
  try: df -h /h
"
        );
    }
}
