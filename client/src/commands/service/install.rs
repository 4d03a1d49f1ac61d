//! `ollmctl service install`: the files, the manager, and the take-over of a running daemon.

use std::fs::{DirBuilder, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use ollm_protocol::method::DaemonStatus;
use ollm_protocol::methods::daemon::{DaemonStatusResult, NoParams};
use ollm_protocol::sanitize;
use serde::Serialize;

use super::{ServiceInstallArgs, refuse_other_home};
use crate::command_context::CommandContext;
use crate::command_error::{CommandError, CommandResult};
use crate::commands::daemon::check_config;
use crate::commands::daemon::replace::stop_and;
use crate::commands::exec::shell_quoted;
use crate::error::ClientError;
use crate::service::{
    Manager, ManagerKind, ServedDaemon, ServiceFile, VARIABLES_FILE, is_same, is_socket_of,
};

/// Variables of a shell that a daemon reads, besides `OLLAMA_HOST` and those that begin with `OLLM_`.
const READ_BY_DAEMON: [&str; 5] =
    [KEY_VARIABLE, "OLLAMA_MODELS", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"];
/// The variable with the API key of the section `ollama`.
const KEY_VARIABLE: &str = "OLLAMA_API_KEY";
/// Variables of which the definition has the value, or that concern clients only.
const IN_DEFINITION: [&str; 5] =
    ["OLLM_HOME", "OLLM_SOCKET", "OLLM_CONFIG", "OLLM_DAEMON", "OLLM_NO_SPAWN"];

/// The outcome of an installation, or what it would do.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Installation {
    manager: ManagerKind,
    /// Nothing was changed.
    dry_run: bool,
    daemon: ServedDaemon,
    files: Vec<ServiceFile>,
    /// The files that were written; the others were as they should be.
    written: Vec<PathBuf>,
    /// The process of the daemon.
    pid: Option<u32>,
    notes: Vec<String>,
}

pub(super) fn run(args: &ServiceInstallArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    if !args.dry_run {
        ctx.allow_spawn("service install")?;
    }
    let mut planned = plan(ctx)?;
    let manager = Manager::find(ctx.environment);
    if args.dry_run {
        planned.dry_run = true;
        planned.notes.extend(manager.err().map(|missing| missing.reason));
        return print(&planned, None, ctx);
    }
    let manager = manager?;
    ctx.connector().address().check_owner()?;
    check_config(ctx.connector())?;
    refuse_other_home(planned.manager, ctx)?;
    refuse_managed(&planned)?;
    for file in &planned.files {
        if write_if_changed(file)? {
            planned.written.push(file.path.clone());
        }
    }
    let paths: Vec<PathBuf> = planned.files.iter().map(|file| file.path.clone()).collect();
    manager.enable()?;
    // An earlier attempt may have written the files and ended before the service was renewed.
    let is_used = !args.now && planned.written.is_empty() && manager.state()?.pid.is_some();
    if !is_used || !runs_own_version(ctx)? {
        stop_and(ctx, "service install", args.now, true, |ctx, connector| {
            let changed = if args.now { &paths } else { &planned.written };
            manager.renew(&paths, changed)?;
            Ok(ctx.connect_with(connector)?)
        })?;
    }
    let status = ctx.call::<DaemonStatus>(&NoParams {})?.value;
    if manager.state()?.pid != Some(status.pid) {
        return Err(CommandError::ServiceNotUsed { pid: status.pid });
    }
    planned.pid = Some(status.pid);
    planned.notes = variable_notes(&planned, ctx);
    print(&planned, Some(&status), ctx)
}

/// Returns whether the running daemon has the version of this client.
fn runs_own_version(ctx: &mut CommandContext<'_>) -> CommandResult<bool> {
    let version = ctx.client()?.daemon_version();
    Ok(version.is_none_or(|version| version == env!("CARGO_PKG_VERSION")))
}

/// Returns what is to be installed.
fn plan(ctx: &CommandContext<'_>) -> CommandResult<Installation> {
    let environment = ctx.environment;
    let kind = ManagerKind::of_system(environment);
    let address = ctx.connector().address();
    let user_home = environment.user_home.as_deref().ok_or(ClientError::NoHome)?;
    let directory = kind.directory(environment).ok_or(ClientError::NoHome)?;
    let program = PathBuf::from(ctx.connector().daemon_command()?.get_program());
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let default_home = environment.default_home().ok_or(ClientError::NoHome)?;
    let home = (!is_same(address.home(), &default_home)).then(|| address.home().to_owned());
    let served_home = home.as_deref().unwrap_or(&default_home);
    // The definition names no socket that follows from the home.
    let socket = address.socket().filter(|socket| !is_socket_of(socket, served_home));
    let socket = socket.map(Path::to_owned);
    let daemon = ServedDaemon {
        // A link may lead elsewhere tomorrow, and a relative path means nothing to the manager.
        program: std::fs::canonicalize(&program).unwrap_or_else(|_| absolute(&program)),
        home,
        config: environment.config.as_deref().map(absolute),
        socket,
    };
    let files = daemon.files(kind, &directory, user_home)?;
    let (written, notes) = (Vec::new(), Vec::new());
    Ok(Installation { manager: kind, dry_run: false, daemon, files, written, pid: None, notes })
}

/// Refuses to replace files that another program manages.
fn refuse_managed(planned: &Installation) -> CommandResult {
    let mut paths = planned.files.iter().map(|file| &file.path);
    match paths.find(|path| path.is_symlink()) {
        Some(path) => {
            let path = sanitize::one_line(&path.to_string_lossy());
            let message = format!("{path} is a link, so another program manages it");
            Err(CommandError::usage(message, &format!("ls -l {}", shell_quoted(&path))))
        }
        None => Ok(()),
    }
}

/// Writes a file unless it has this text already; a reader sees the old or the new one.
fn write_if_changed(file: &ServiceFile) -> CommandResult<bool> {
    let fail = |source| CommandError::File { action: "write", path: file.path.clone(), source };
    if crate::regular_file::read_input(&file.path).is_ok_and(|old| old == file.text.as_bytes()) {
        return Ok(false);
    }
    let directory = file.path.parent().unwrap_or(Path::new("/"));
    DirBuilder::new().recursive(true).create(directory).map_err(fail)?;
    let write = || -> io::Result<()> {
        let mut temporary = tempfile::Builder::new()
            // The manager reads units, and warns of those that others cannot read.
            .permissions(Permissions::from_mode(0o644))
            .prefix(".ollmd-")
            .tempfile_in(directory)?;
        temporary.write_all(file.text.as_bytes())?;
        temporary.as_file().sync_all()?;
        temporary.persist(&file.path)?;
        Ok(())
    };
    write().map_err(fail)?;
    Ok(true)
}

/// Returns what the daemon would have from this shell and does not have as a service. Names variables, never values.
fn variable_notes(planned: &Installation, ctx: &mut CommandContext<'_>) -> Vec<String> {
    let of_home = || ctx.connector().address().home().join("config.yaml");
    let config = planned.daemon.config.clone().unwrap_or_else(of_home);
    let config = sanitize::one_line(&config.to_string_lossy());
    let is_host_configured =
        ctx.client().is_ok_and(|client| client.model_server().is_some_and(|own| own.configured));
    let names = crate::address::variables().into_iter().filter(|(_, value)| !value.is_empty());
    let mut names: Vec<String> = names.filter_map(|(name, _)| name.into_string().ok()).collect();
    names.sort_unstable();
    let mut notes = Vec::new();
    for name in names {
        let is_setting = name.starts_with("OLLM_") && !IN_DEFINITION.contains(&name.as_str());
        let place = if name == "OLLAMA_HOST" && !is_host_configured {
            format!("set ollama.host in {config}")
        } else if is_setting || READ_BY_DAEMON.contains(&name.to_ascii_uppercase().as_str()) {
            place_of(&name, planned.manager, &planned.daemon, &config)
        } else {
            continue;
        };
        notes.push(format!("the service does not have {name} of this shell: {place}"));
    }
    notes
}

/// Returns the command that gives the service a variable of this shell, or the setting that replaces the variable. `config` is
/// the path of the configuration.
fn place_of(name: &str, manager: ManagerKind, daemon: &ServedDaemon, config: &str) -> String {
    match manager {
        ManagerKind::Systemd => {
            let file = match &daemon.home {
                Some(home) => shell_quoted(&home.join(VARIABLES_FILE).to_string_lossy()),
                // A shell expands the tilde only without quotes.
                None => format!("~/.ollm/{VARIABLES_FILE}"),
            };
            // The value may be a key, and other users can read units.
            format!("(umask 077; echo \"{name}=${name}\" >> {file}); ollmctl daemon restart")
        }
        // Every program of the user has the variables of launchd, until the machine is restarted.
        ManagerKind::Launchd if name == KEY_VARIABLE => {
            format!("name the server under `servers` in {config}, with its url and a keyFile")
        }
        ManagerKind::Launchd => format!("launchctl setenv {name} \"${name}\""),
    }
}

/// Prints the outcome: the files for a dry run, else what was done; then the notes.
fn print(
    planned: &Installation,
    status: Option<&DaemonStatusResult>,
    ctx: &mut CommandContext<'_>,
) -> CommandResult {
    ctx.print_value(planned, |planned, _| match status {
        Some(status) => done_text(planned, status),
        None => dry_text(planned),
    })?;
    if ctx.json() {
        return Ok(());
    }
    ctx.terminal.flush()?;
    let mut notes = planned.notes.clone();
    if let Some(status) = status {
        notes.extend_from_slice(&status.warnings);
        if planned.manager == ManagerKind::Systemd {
            notes.push("it ends with your last login, unless: loginctl enable-linger".to_owned());
        }
    }
    notes.iter().for_each(|note| ctx.note(note));
    Ok(())
}

fn done_text(planned: &Installation, status: &DaemonStatusResult) -> String {
    let mut text = String::new();
    for path in &planned.written {
        text.push_str(&format!("wrote {}\n", sanitize::one_line(&path.to_string_lossy())));
    }
    let is_new = if planned.written.is_empty() { "was installed already: " } else { "" };
    let manager = planned.manager.name();
    let version = sanitize::one_line(&status.version);
    text.push_str(&format!(
        "{is_new}ollmd {version} (process {}) runs as a service of {manager}, from login on\n",
        status.pid
    ));
    text
}

fn dry_text(planned: &Installation) -> String {
    let mut text = String::new();
    for file in &planned.files {
        let path = sanitize::one_line(&file.path.to_string_lossy());
        text.push_str(&format!("# {path}\n{}\n", sanitize::text(&file.text)));
    }
    let files: Vec<_> = planned.files.iter().map(|file| file.path.clone()).collect();
    text.push_str("# Commands:\n");
    for command in planned.manager.commands(&files) {
        text.push_str(&format!("{}\n", sanitize::one_line(&command)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_written_only_if_it_changes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new/ollmd.service");
        let file = |text: &str| ServiceFile { path: path.clone(), text: text.to_owned() };
        assert!(write_if_changed(&file("a")).unwrap());
        assert!(!write_if_changed(&file("a")).unwrap());
        assert!(write_if_changed(&file("b")).unwrap());
        assert_eq!(std::fs::read(&path).unwrap(), b"b");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o644);
        assert_eq!(path.parent().unwrap().read_dir().unwrap().count(), 1, "nothing else is left");
    }

    #[test]
    fn variable_of_a_shell_has_a_place_that_others_cannot_read() {
        let check = |manager, home: Option<&str>, name: &str, expected: &str| {
            let home = home.map(PathBuf::from);
            let daemon =
                ServedDaemon { program: "/bin/ollmd".into(), home, config: None, socket: None };
            assert_eq!(place_of(name, manager, &daemon, "/c.yaml"), expected);
        };
        check(
            ManagerKind::Systemd,
            None,
            "OLLAMA_API_KEY",
            "(umask 077; echo \"OLLAMA_API_KEY=$OLLAMA_API_KEY\" >> ~/.ollm/service.env); ollmctl daemon restart",
        );
        check(
            ManagerKind::Systemd,
            Some("/srv/ada's talks"),
            "HTTP_PROXY",
            r#"(umask 077; echo "HTTP_PROXY=$HTTP_PROXY" >> '/srv/ada'\''s talks/service.env'); ollmctl daemon restart"#,
        );
        check(
            ManagerKind::Launchd,
            None,
            "OLLAMA_API_KEY",
            "name the server under `servers` in /c.yaml, with its url and a keyFile",
        );
        let setenv = "launchctl setenv HTTP_PROXY \"$HTTP_PROXY\"";
        check(ManagerKind::Launchd, None, "HTTP_PROXY", setenv);
    }
}
