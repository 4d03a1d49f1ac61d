//! `ollmctl service status`: the definition, what the manager says, and what is wrong.

use ollm_protocol::method::DaemonStatus;
use ollm_protocol::methods::daemon::{DoctorFinding, NoParams};
use ollm_protocol::sanitize;
use serde::Serialize;

use super::findings::ExaminedService;
use crate::command_context::CommandContext;
use crate::command_error::{CommandError, CommandResult};
use crate::commands::daemon::connect_if_running;
use crate::commands::doctor::finding_lines;
use crate::error::Exit;
use crate::render::table;

#[derive(Serialize)]
struct ServiceReport {
    installed: bool,
    #[serde(flatten)]
    service: Option<ExaminedService>,
    /// The process of the daemon that answers, as a service or not.
    running: Option<u32>,
    findings: Vec<DoctorFinding>,
}

pub(super) fn run(ctx: &mut CommandContext<'_>) -> CommandResult {
    let service = ExaminedService::find(ctx);
    let running = running_process(ctx);
    let findings = service.as_ref().map_or_else(Vec::new, |found| found.findings(running, ctx));
    let report = ServiceReport { installed: service.is_some(), service, running, findings };
    ctx.print_value(&report, |report, _| render(report))?;
    let Some(service) = &report.service else {
        return Err(CommandError::Unwell { exit: Exit::NotFound });
    };
    match service.state.as_ref().and_then(|state| state.pid) {
        Some(_) => Ok(()),
        None => Err(CommandError::Unwell { exit: Exit::Unreachable }),
    }
}

/// Returns the process of the running daemon; starts none.
fn running_process(ctx: &CommandContext<'_>) -> Option<u32> {
    let connector = ctx.connector().clone().without_spawn().with_any_protocol();
    let mut client = connect_if_running(&connector).ok()??;
    client.call::<DaemonStatus>(&NoParams {}).ok().map(|status| status.pid)
}

fn render(report: &ServiceReport) -> String {
    let process = |pid: Option<u32>| pid.map(|pid| format!("process {pid}"));
    let running = process(report.running).unwrap_or_else(|| "does not run".to_owned());
    let Some(service) = &report.service else {
        let rows = [("service", "none is installed".to_owned()), ("daemon", running)];
        return table::fields(&rows) + "\ntry: ollmctl service install\n";
    };
    let path = |path: &std::path::Path| sanitize::one_line(&path.to_string_lossy());
    let files: Vec<String> = service.files.iter().map(|file| path(file)).collect();
    let mut rows = vec![("manager", service.manager.name().to_owned())];
    rows.extend(files.into_iter().map(|file| ("file", file)));
    if let Some(daemon) = &service.daemon {
        rows.push(("program", path(&daemon.program)));
        let home = daemon.home.as_deref().map_or_else(|| "~/.ollm".to_owned(), path);
        rows.push(("home", home));
    }
    if let Some(state) = &service.state {
        let login = if state.enabled { "starts at login" } else { "does not start at login" };
        let parts = [Some(sanitize::one_line(&state.state)), process(state.pid)];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        rows.push(("state", format!("{}, {login}", parts.join(", "))));
    }
    rows.push(("daemon", running));
    let findings = finding_lines(&report.findings);
    let gap = if findings.is_empty() { "" } else { "\n" };
    format!("{}{gap}{findings}", table::fields(&rows))
}
