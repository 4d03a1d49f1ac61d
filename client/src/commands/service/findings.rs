//! The findings about the installed service, for `ollmctl service status` and `ollmctl doctor`.

use std::path::PathBuf;

use ollm_protocol::methods::daemon::{DoctorFinding, FindingLevel};
use ollm_protocol::sanitize;
use serde::Serialize;

use crate::address::is_program;
use crate::command_context::CommandContext;
use crate::service::{Manager, ManagerKind, ServedDaemon, ServiceState, is_same};

/// The command that renews a service.
const RENEW: &str = "ollmctl service install";

/// The installed service of this user.
#[derive(Debug, Serialize)]
pub(crate) struct ExaminedService {
    pub(crate) manager: ManagerKind,
    pub(crate) files: Vec<PathBuf>,
    /// The daemon that it runs; `None` if its files cannot be understood.
    pub(crate) daemon: Option<ServedDaemon>,
    /// The state; `None` if no manager runs.
    pub(crate) state: Option<ServiceState>,
    /// The reason for which the state is not known.
    #[serde(skip)]
    unknown: Option<String>,
}

impl ExaminedService {
    /// Examines the installed service; `None` if there is none.
    pub(crate) fn find(ctx: &CommandContext<'_>) -> Option<Self> {
        let kind = ManagerKind::of_system(ctx.environment);
        let files = kind.installed_files(ctx.environment);
        if files.is_empty() {
            return None;
        }
        let state = Manager::find(ctx.environment).map_err(|missing| missing.reason);
        let state = state.and_then(|manager| manager.state().map_err(|error| error.to_string()));
        let (state, unknown) = match state {
            Ok(state) => (Some(state), None),
            Err(reason) => (None, Some(reason)),
        };
        let daemon = kind.installed(ctx.environment);
        Some(Self { manager: kind, files, daemon, state, unknown })
    }

    /// Returns whether it is the service of the address of this command.
    pub(crate) fn is_of(&self, ctx: &CommandContext<'_>) -> bool {
        let address = ctx.connector().address();
        self.daemon.as_ref().is_some_and(|daemon| daemon.serves(address, ctx.environment))
    }

    /// Lists what is wrong. `running` is the process of the daemon that answers.
    pub(crate) fn findings(
        &self,
        running: Option<u32>,
        ctx: &CommandContext<'_>,
    ) -> Vec<DoctorFinding> {
        let own = ctx.connector().daemon_command().ok();
        let own = own.map(|command| PathBuf::from(command.get_program()));
        let mut findings = self.program_findings(own);
        let manager = self.manager.name();
        if let Some(reason) = &self.unknown {
            findings.push(warning(format!("a service is installed, and {reason}"), None));
        }
        let Some(state) = &self.state else { return findings };
        if state.state == "failed" {
            let text = format!("the service failed; {manager} does not start it again by itself");
            findings.push(problem(text, "ollmctl service logs"));
        }
        if state.outdated {
            let text = "the units changed since systemd read them".to_owned();
            findings.push(warning(text, Some("systemctl --user daemon-reload")));
        }
        if let Some(running) = running.filter(|_| self.is_of(ctx))
            && state.pid != Some(running)
        {
            let text = format!("ollmd runs (process {running}), and not as the installed service");
            findings.push(warning(text, Some(RENEW)));
        }
        findings
    }

    /// Compares the program of the service with the one that this client would start.
    fn program_findings(&self, own: Option<PathBuf>) -> Vec<DoctorFinding> {
        let Some(daemon) = &self.daemon else {
            return vec![problem("the installed service names no program".to_owned(), RENEW)];
        };
        let program = sanitize::one_line(&daemon.program.to_string_lossy());
        if !is_program(&daemon.program) {
            let text = format!("the service runs {program}, and there is no such program");
            return vec![problem(text, RENEW)];
        }
        match own.filter(|own| !is_same(own, &daemon.program)) {
            Some(own) => {
                let own = sanitize::one_line(&own.to_string_lossy());
                let text = format!("the service runs {program}, and this client belongs to {own}");
                vec![warning(text, Some(RENEW))]
            }
            None => Vec::new(),
        }
    }
}

fn problem(text: String, hint: &str) -> DoctorFinding {
    let (topic, hint) = ("service".to_owned(), Some(hint.to_owned()));
    DoctorFinding { level: FindingLevel::Problem, topic, text, hint }
}

fn warning(text: String, hint: Option<&str>) -> DoctorFinding {
    let (topic, hint) = ("service".to_owned(), hint.map(str::to_owned));
    DoctorFinding { level: FindingLevel::Warning, topic, text, hint }
}
