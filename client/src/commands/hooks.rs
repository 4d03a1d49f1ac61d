//! `ollmctl hooks`: the hooks of the home and of a project, which of them run, and a run by hand.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand, ValueHint};
use ollm_protocol::content::{HookOccasion, HookOrigin, HookRun, HookState};
use ollm_protocol::method::{HookList, HookTest, HookTrust, HookUntrust};
use ollm_protocol::methods::hook::{
    Hook, HookListParams, HookListResult, HookRunner, HookTestParams, HookTestResult,
    HookTrustParams, HookUntrustParams, TrustedHook,
};
use ollm_protocol::sanitize;

use super::exec::shell_quoted;
use crate::args::session::SessionFlag;
use crate::command_context::CommandContext;
use crate::command_error::{CommandError, CommandResult};
use crate::error::Exit;
use crate::project;
use crate::render::line_diff::{render_diff, visible};
use crate::render::units::{bytes, counted};
use crate::render::{RenderOptions, Style, warning_line, wire_name};

/// The lines of a new hook that are shown before it is trusted.
const MAX_SHOWN_LINES: usize = 200;
/// The last lines of a hook's stderr in a list.
const MAX_STDERR_LINES: usize = 5;
/// The first digits of a digest, by which people compare it.
const DIGEST_CHARS: usize = 16;

/// Programs of yours that the daemon runs on four occasions: list, trust and test them.
///
/// A hook is an executable file named for its occasion (session-start, before-compaction, after-turn, files-changed) in
/// ~/.ollm/hooks, or in .ollm/hooks of a project. `OCCASION.d` is a directory for several. A hook reads a line of JSON on stdin,
/// and what it prints, such as {"context":[{"name":"branch","text":"main"}]}, becomes context entries of the session.
#[derive(Debug, Subcommand)]
#[command(defer = true)]
pub(crate) enum HooksCommand {
    /// List the hooks of the home and of a project, each with its last run.
    #[command(after_help = "\
Examples:
  ollmctl hooks list
  ollmctl hooks list ~/src/parser --json")]
    List(HooksProjectArg),
    /// Let the hooks of a project run, after you have seen them. One that changes later does not run until you trust it again.
    #[command(after_help = "\
The daemon runs a copy of what you trusted, and compares the file with that each time.

Examples:
  ollmctl hooks trust
  ollmctl hooks trust ~/src/parser --yes")]
    Trust {
        #[command(flatten)]
        project: HooksProjectArg,
        /// Trust them without asking.
        #[arg(long, short)]
        yes: bool,
    },
    /// Let no hook of a project run any more.
    #[command(after_help = "\
Examples:
  ollmctl hooks untrust
  ollmctl hooks untrust ~/src/parser")]
    Untrust(HooksProjectArg),
    /// Run the hooks of an occasion now, and print what they read and returned. Their output changes nothing.
    #[command(after_help = "\
Examples:
  ollmctl hooks test session-start
  ollmctl hooks test after-turn --session last")]
    Test {
        /// The occasion.
        #[arg(value_name = "OCCASION", value_parser = PossibleValuesParser::new(HookOccasion::ALL.map(HookOccasion::as_str)))]
        occasion: String,
        #[command(flatten)]
        session: SessionFlag,
    },
}

#[derive(Debug, Args)]
pub(crate) struct HooksProjectArg {
    /// The directory of the project [default: the current directory].
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    dir: Option<PathBuf>,
}

impl HooksProjectArg {
    fn path(&self) -> CommandResult<String> {
        project::canonical_path(self.dir.as_deref())
    }
}

pub(super) fn run(command: &HooksCommand, ctx: &mut CommandContext<'_>) -> CommandResult {
    match command {
        HooksCommand::List(project) => {
            let params = HookListParams { project_path: Some(project.path()?), texts: false };
            ctx.show::<HookList>(&params, render_list)
        }
        HooksCommand::Trust { project, yes } => trust(project.path()?, *yes, ctx),
        HooksCommand::Untrust(project) => {
            // The directory may be gone.
            let path = project::filter_path(project.dir.as_deref())?;
            let project_path = path.map_or_else(|| project.path(), Ok)?;
            let shown = sanitize::one_line(&project_path);
            ctx.show::<HookUntrust>(&HookUntrustParams { project_path }, |result, _| {
                match result.untrusted {
                    true => format!("no hook of {shown} runs any more\n"),
                    false => format!("no hook of {shown} was trusted\n"),
                }
            })
        }
        HooksCommand::Test { occasion, session } => test(occasion, session, ctx),
    }
}

fn trust(project_path: String, yes: bool, ctx: &mut CommandContext<'_>) -> CommandResult {
    let params = HookListParams { project_path: Some(project_path.clone()), texts: true };
    let listed = ctx.call::<HookList>(&params)?.value;
    let of_project = |hook: &&Hook| hook.origin == HookOrigin::Project;
    let hooks: Vec<&Hook> = listed.data.iter().filter(of_project).collect();
    let shown = sanitize::one_line(&project_path);
    let wanted: Vec<TrustedHook> = hooks.iter().filter_map(|hook| trusted(hook)).collect();
    if wanted.is_empty() {
        let problem = match hooks.first() {
            Some(hook) => format!("no hook of {shown} can run: {}", problem_of(hook)),
            None => format!("{shown} has no hooks: they are files in .ollm/hooks"),
        };
        return Err(CommandError::usage(problem, "ollmctl hooks --help"));
    }
    let is_new =
        hooks.iter().any(|hook| matches!(hook.state, HookState::Untrusted | HookState::Changed));
    let action = format!("trust {} of {shown}", counted(wanted.len() as u64, "hook"));
    let plan = |_: &RenderOptions| hooks.iter().map(|hook| plan_of(hook)).collect();
    if is_new && !yes && !ctx.confirm(&action, "trusted", plan)? {
        return Ok(());
    }
    ctx.show::<HookTrust>(&HookTrustParams { project_path, hooks: wanted }, |result, _| {
        format!("{} of {shown} may run\n", counted(result.trusted, "hook"))
    })
}

/// Returns a hook as it is trusted; `None` if it cannot run.
fn trusted(hook: &Hook) -> Option<TrustedHook> {
    let digest = hook.digest.clone().filter(|_| hook.state != HookState::Unusable)?;
    Some(TrustedHook { name: hook.name.clone(), digest })
}

/// Returns a hook with its text, or with what changed in it.
fn plan_of(hook: &Hook) -> String {
    let state = match hook.state {
        HookState::Ready => "trusted",
        HookState::Untrusted => "new",
        HookState::Changed => "changed",
        HookState::Unusable => "cannot run",
    };
    let digest =
        |digest: &String| format!(", blake3 {:.DIGEST_CHARS$}", sanitize::one_line(digest));
    let digest = hook.digest.as_ref().map(digest).unwrap_or_default();
    let name = Style::Strong.paint(&sanitize::one_line(&hook.name));
    let mut text = format!("{name}: {state}, {}{digest}\n", bytes(hook.size_bytes));
    let lines = match (hook.state, hook.text.as_deref(), hook.trusted_text.as_deref()) {
        (HookState::Unusable, ..) => vec![problem_of(hook)],
        (HookState::Ready, ..) => Vec::new(),
        (_, None, _) => {
            let path = sanitize::one_line(&hook.path);
            vec![format!("it is no text, or too long to show: see {path}")]
        }
        (HookState::Changed, Some(now), Some(before)) => match render_diff(before, now) {
            lines if lines.is_empty() => vec!["only ends of lines changed".to_owned()],
            lines => lines,
        },
        (_, Some(now), _) => {
            let mut lines: Vec<_> = now.lines().take(MAX_SHOWN_LINES).map(visible).collect();
            let n_more = now.lines().count().saturating_sub(MAX_SHOWN_LINES);
            if n_more > 0 {
                lines.push(format!(
                    "... {} in {}",
                    counted(n_more as u64, "more line"),
                    sanitize::one_line(&hook.path)
                ));
            }
            lines
        }
    };
    text.extend(lines.iter().map(|line| format!("    {line}\n")));
    text
}

fn problem_of(hook: &Hook) -> String {
    sanitize::one_line(hook.problem.as_deref().unwrap_or_default())
}

fn test(occasion: &str, session: &SessionFlag, ctx: &mut CommandContext<'_>) -> CommandResult {
    let occasion = HookOccasion::ALL.into_iter().find(|one| one.as_str() == occasion);
    let occasion = occasion.expect("the parser admits only occasions");
    let session_id = session.id_or_current("hooks test OCCASION", ctx)?;
    let reply = ctx.call::<HookTest>(&HookTestParams { session_id, occasion })?;
    if reply.value.data.is_empty() && reply.value.others.is_empty() {
        let problem = format!("there is no hook for {}", occasion.as_str());
        return Err(CommandError::not_found(problem, "ollmctl hooks --help"));
    }
    ctx.print(&reply, |result, _| render_test(result))?;
    let is_well = reply.value.others.is_empty()
        && reply.value.data.iter().all(|test| test.run.error.is_none());
    if is_well { Ok(()) } else { Err(CommandError::Unwell { exit: Exit::Internal }) }
}

fn render_test(result: &HookTestResult) -> String {
    let mut text = String::new();
    for test in &result.data {
        let path = Style::Strong.paint(&sanitize::one_line(&test.path));
        text.push_str(&format!("{path}: ran for {} ms\n", test.run.duration_ms));
        let json = |value: serde_json::Result<String>| {
            value.map(|json| sanitize::one_line(&json)).unwrap_or_default()
        };
        text.push_str(&format!("  got:      {}\n", json(serde_json::to_string(&test.input))));
        if let Some(output) = &test.output {
            text.push_str(&format!("  returned: {}\n", json(serde_json::to_string(output))));
        }
        let HookRun { error, stderr, .. } = &test.run;
        text.push_str(&run_lines(error.as_deref(), stderr.as_deref(), usize::MAX));
    }
    for hook in &result.others {
        text.push_str(&hook_line(hook));
    }
    text
}

fn render_list(result: &HookListResult, options: &RenderOptions) -> String {
    let mut text = String::new();
    for hook in &result.data {
        text.push_str(&hook_line(hook));
        let Some(run) = &hook.last_run else { continue };
        let (at, ms) = (options.minute(run.at), run.duration_ms);
        text.push_str(&format!("  last run: {at}, {ms} ms\n"));
        text.push_str(&run_lines(run.error.as_deref(), run.stderr.as_deref(), MAX_STDERR_LINES));
    }
    text.extend(result.warnings.iter().map(|warning| warning_line(warning)));
    if result.data.is_empty() {
        text.push_str("no hooks; `ollmctl hooks --help` says where they are\n");
    } else if !result.enabled {
        text.push_str("hooks.enabled is false, so no hook runs\n");
    } else if result.run_by == HookRunner::Systemd {
        text.push_str("systemd starts them, without the restrictions of the daemon's service\n");
    }
    text
}

/// Returns the line of a hook, and one for its problem.
fn hook_line(hook: &Hook) -> String {
    let state = match hook.state {
        HookState::Ready => wire_name(hook.state),
        _ => Style::Bad.paint(&wire_name(hook.state)),
    };
    let (path, name) = (sanitize::one_line(&hook.path), sanitize::one_line(&hook.name));
    let mut text = format!("{name} ({}): {state}, {path}\n", wire_name(hook.origin));
    if hook.problem.is_some() {
        let help = match hook.state {
            HookState::Untrusted | HookState::Changed => format!("; try: {}", trust_command(hook)),
            _ => String::new(),
        };
        text.push_str(&format!("  {}{help}\n", problem_of(hook)));
    }
    text
}

/// Returns the command that lets the hooks of a hook's project run, which works in every directory.
fn trust_command(hook: &Hook) -> String {
    let directory = hook.path.strip_suffix(hook.name.as_str());
    let project = directory.and_then(|path| path.strip_suffix("/.ollm/hooks/"));
    let is_unsafe = |char: char| char.is_control() || sanitize::is_unsafe(char);
    // Nobody can type a path that a terminal would obey.
    match project.filter(|path| !path.chars().any(is_unsafe)) {
        Some("") => "ollmctl hooks trust /".to_owned(),
        Some(path) => format!("ollmctl hooks trust {}", shell_quoted(path)),
        None => "ollmctl hooks trust".to_owned(),
    }
}

/// Returns the problem of a run, and the last lines of its stderr.
fn run_lines(error: Option<&str>, stderr: Option<&str>, most: usize) -> String {
    let mut text = String::new();
    if let Some(error) = error {
        text.push_str(&format!(
            "  {}: {}\n",
            Style::Bad.paint("problem"),
            sanitize::one_line(error)
        ));
    }
    let lines: Vec<&str> = stderr.into_iter().flat_map(str::lines).collect();
    let lines = &lines[lines.len().saturating_sub(most)..];
    text.extend(lines.iter().map(|line| format!("  stderr:   {}\n", sanitize::one_line(line))));
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{plain, render_options};

    #[test]
    fn list_has_a_line_for_each_hook_with_its_run_and_its_problem() {
        let result = serde_json::from_value(json!({ "data": [
            { "name": "session-start", "occasion": "session-start", "origin": "home",
              "path": "/h/hooks/session-start", "sizeBytes": 12, "digest": "ab", "state": "ready",
              "lastRun": { "at": "2026-01-27T10:00:00Z", "durationMs": 7, "error": "it ended with exit status: 3",
                "stderr": "no git\u{1b}[2J\nhere" } },
            { "name": "after-turn.d/10-log", "occasion": "after-turn", "origin": "project",
              "path": "/p/.ollm/hooks/after-turn.d/10-log", "sizeBytes": 12, "digest": "ab",
              "state": "changed", "problem": "it changed since it was trusted" },
        ], "enabled": true, "runBy": "daemon" }))
        .unwrap();
        assert_eq!(
            plain(&render_list(&result, &render_options(80))),
            "\
session-start (home): ready, /h/hooks/session-start
  last run: 2026-01-27 10:00, 7 ms
  problem: it ended with exit status: 3
  stderr:   no git
  stderr:   here
after-turn.d/10-log (project): changed, /p/.ollm/hooks/after-turn.d/10-log
  it changed since it was trusted; try: ollmctl hooks trust /p
"
        );
    }

    #[test]
    fn trust_command_names_the_project_of_the_hook() {
        let check = |path: &str, expected: &str| {
            let hook = json!({ "name": "after-turn.d/a", "occasion": "after-turn", "origin": "project",
                "path": path, "sizeBytes": 1, "state": "untrusted" });
            let hook: Hook = serde_json::from_value(hook).unwrap();
            assert_eq!(trust_command(&hook), expected);
        };
        check("/p/.ollm/hooks/after-turn.d/a", "ollmctl hooks trust /p");
        check("/my  notes/.ollm/hooks/after-turn.d/a", "ollmctl hooks trust '/my  notes'");
        check("/.ollm/hooks/after-turn.d/a", "ollmctl hooks trust /");
        check("/a\u{1b}[2J/.ollm/hooks/after-turn.d/a", "ollmctl hooks trust");
    }

    #[test]
    fn plan_shows_new_hooks_and_the_changes_of_others() {
        let mut hook: Hook = serde_json::from_value(json!({
            "name": "after-turn", "occasion": "after-turn", "origin": "project", "path": "/p/.ollm/hooks/after-turn",
            "sizeBytes": 20, "digest": "0123456789abcdef99", "state": "untrusted", "text": "#!/bin/sh\nls\n" }))
        .unwrap();
        let head = |state| format!("after-turn: {state}, 20 bytes, blake3 0123456789abcdef\n");
        assert_eq!(plain(&plan_of(&hook)), head("new") + "    #!/bin/sh\n    ls\n");
        (hook.state, hook.trusted_text) =
            (HookState::Changed, Some("#!/bin/sh\nrm x\n".to_owned()));
        let diff = "      #!/bin/sh\n    - rm x\n    + ls\n";
        assert_eq!(plain(&plan_of(&hook)), head("changed") + diff);
        assert_eq!(trusted(&hook).unwrap().digest, "0123456789abcdef99");
        hook.state = HookState::Unusable;
        assert!(trusted(&hook).is_none());
    }
}
