//! The project of a directory: its path as the daemon knows it, and its current session.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use ollm_protocol::content::Session;
use ollm_protocol::method::{SessionCreate, SessionCurrent, SessionSetCurrent};
use ollm_protocol::methods::session::{
    SessionCreateParams, SessionCurrentParams, SessionSetCurrentParams,
};
use ollm_protocol::{ErrorKind, SessionId, sanitize};

use crate::command_context::CommandContext;
use crate::command_error::{CommandError, CommandResult};
use crate::error::ClientError;

/// The most directories above a project that are looked at.
const MAX_DIRECTORIES: usize = 64;

/// Returns the canonical path of a project; by default of the current directory.
pub(crate) fn canonical_path(given: Option<&Path>) -> CommandResult<String> {
    let path = given.unwrap_or(Path::new("."));
    let canonical = std::fs::canonicalize(path).map_err(|source| CommandError::File {
        action: "find the project",
        path: path.to_owned(),
        source,
    })?;
    to_text(canonical)
}

/// Returns the path by which sessions are filtered, canonical as far as its directories still exist.
pub(crate) fn filter_path(given: Option<&Path>) -> CommandResult<Option<String>> {
    let Some(path) = given else { return Ok(None) };
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let canonical = whole.ancestors().find_map(|above| {
        let gone = whole.strip_prefix(above).ok()?;
        let mut found = std::fs::canonicalize(above).ok()?;
        // No separator follows a directory that is there.
        found.extend(gone.components());
        Some(found)
    });
    to_text(canonical.unwrap_or(whole)).map(Some)
}

fn to_text(path: PathBuf) -> CommandResult<String> {
    let text = path.into_os_string().into_string();
    text.map_err(|path| CommandError::PathNotUtf8 { path: path.into() })
}

/// Returns the project of the current directory.
///
/// **Errors**: names the flags with which `command` works without it.
pub(crate) fn of_current_directory(command: &str) -> CommandResult<String> {
    canonical_path(None).map_err(|error| no_current_directory(command, &error))
}

fn no_current_directory(command: &str, error: &CommandError) -> CommandError {
    let alternative = if command == "record" { "  # or --project DIR" } else { "" };
    CommandError::usage(
        format!("the current directory cannot be the project: {}", error.message()),
        &format!("ollmctl {command} --session ID ...{alternative}"),
    )
}

/// Returns the directories above one, the nearest first, without the home directory and everything above it, and without
/// directories that everybody may write to, such as `/tmp`.
fn directories_above(path: &Path, home: Option<&Path>) -> Vec<String> {
    const WRITABLE_BY_ALL: u32 = 0o002;
    let is_private = |dir: &&Path| {
        dir.parent().is_some()
            && home.is_none_or(|home| !home.starts_with(dir))
            && dir.metadata().is_ok_and(|found| found.mode() & WRITABLE_BY_ALL == 0)
    };
    let above = path.ancestors().skip(1).take_while(is_private).take(MAX_DIRECTORIES);
    above.filter_map(Path::to_str).map(str::to_owned).collect()
}

/// Returns the params that request the current session of a project, else that of the nearest directory above it.
pub(crate) fn current_params(
    project_path: String,
    ctx: &CommandContext<'_>,
) -> SessionCurrentParams {
    let home = ctx.environment.user_home.as_deref();
    let home = home.and_then(|home| std::fs::canonicalize(home).ok());
    let else_of = directories_above(Path::new(&project_path), home.as_deref());
    SessionCurrentParams { project_path, else_of }
}

/// Returns the current session of a project, else that of the nearest directory above it.
pub(crate) fn current_session(
    project_path: &str,
    ctx: &mut CommandContext<'_>,
) -> Result<Option<Session>, ClientError> {
    let params = current_params(project_path.to_owned(), ctx);
    Ok(ctx.call::<SessionCurrent>(&params)?.value.session)
}

/// Makes a session the current one of a project; returns false if the project is not on this machine.
pub(crate) fn set_current_session(
    project_path: String,
    session_id: SessionId,
    ctx: &mut CommandContext<'_>,
) -> Result<bool, ClientError> {
    let params = SessionSetCurrentParams { project_path, session_id: Some(session_id) };
    match ctx.call::<SessionSetCurrent>(&params) {
        Ok(_) => Ok(true),
        Err(ClientError::Rpc(failure)) if failure.kind == Some(ErrorKind::InvalidParams) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// The session in which something will be recorded.
pub(crate) enum RecordTarget {
    Session(SessionId),
    /// A new session, which becomes the current one of the project with its first record.
    NewSession {
        project_path: String,
    },
}

impl RecordTarget {
    /// Returns the current session of a project as the target, else a new session.
    pub(crate) fn in_project(
        project_path: String,
        ctx: &mut CommandContext<'_>,
    ) -> CommandResult<Self> {
        Ok(match current_session(&project_path, ctx)? {
            Some(session) => Self::Session(session.session_id),
            None => Self::NewSession { project_path },
        })
    }

    /// Creates the session if it is new, and records with `record`; then makes a new session the current one of its
    /// project.
    pub(crate) fn record<T>(
        self,
        model: Option<String>,
        key: Option<String>,
        ctx: &mut CommandContext<'_>,
        record: impl FnOnce(SessionId, &mut CommandContext<'_>) -> CommandResult<T>,
    ) -> CommandResult<T> {
        let project_path = match self {
            Self::Session(session_id) => return record(session_id, ctx),
            Self::NewSession { project_path } => project_path,
        };
        let params = SessionCreateParams {
            project_path: Some(project_path.clone()),
            model,
            key,
            ..SessionCreateParams::default()
        };
        let session_id = ctx.call::<SessionCreate>(&params)?.value.session.session_id;
        let recorded = record(session_id, ctx)?;
        let params = SessionSetCurrentParams { project_path, session_id: Some(session_id) };
        ctx.call::<SessionSetCurrent>(&params)?;
        Ok(recorded)
    }
}

/// Returns the given session, else the current one of this directory's project. Never the last session of another
/// project, because the command may change it.
///
/// **Errors**: there is no current session; the hint is `command` with the last session.
pub(crate) fn session_or_current(
    given: Option<&str>,
    command: &str,
    ctx: &mut CommandContext<'_>,
) -> CommandResult<SessionId> {
    if let Some(text) = given {
        return ctx.session(text);
    }
    let project_path = of_current_directory(command)?;
    let session = current_session(&project_path, ctx)?;
    let hint = || format!("ollmctl {command} --session last");
    let session = session.ok_or_else(|| no_current_session(&project_path, hint()))?;
    Ok(session.session_id)
}

/// Returns the error for a project without a current session.
pub(crate) fn no_current_session(project_path: &str, hint: String) -> CommandError {
    let project = sanitize::one_line(project_path);
    CommandError::not_found(format!("{project} has no current session"), hint)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{run_against, session_json};

    #[test]
    fn path_must_be_utf8() {
        let odd = Path::new(OsStr::from_bytes(b"/nowhere/\xff"));
        assert!(matches!(filter_path(Some(odd)), Err(CommandError::PathNotUtf8 { .. })));
        assert!(matches!(canonical_path(Some(odd)), Err(CommandError::File { .. })));
        let path = filter_path(Some(Path::new("/nowhere/x"))).unwrap();
        assert_eq!(path.as_deref(), Some("/nowhere/x"));
        assert_eq!(filter_path(None).unwrap(), None);
    }

    #[test]
    fn path_that_is_gone_is_canonical_as_far_as_it_exists() {
        let scratch = tempfile::tempdir().unwrap();
        let top = std::fs::canonicalize(scratch.path()).unwrap();
        std::fs::create_dir(top.join("new")).unwrap();
        std::os::unix::fs::symlink(&top, top.join("link")).unwrap();
        for given in ["new/../gone/x", "link/gone/x", "link/new/../gone/x"] {
            let found = filter_path(Some(&top.join(given))).unwrap().unwrap();
            assert_eq!(Path::new(&found), top.join("gone/x"), "{given}");
        }
        let found = filter_path(Some(&top.join("link/new"))).unwrap().unwrap();
        assert_eq!(Path::new(&found), top.join("new"));
    }

    #[test]
    fn directories_above_end_at_the_home_and_at_shared_ones() {
        let scratch = tempfile::tempdir().unwrap();
        let top = std::fs::canonicalize(scratch.path()).unwrap();
        let home = tempfile::tempdir_in(&top).unwrap();
        let project = tempfile::tempdir_in(&home).unwrap();
        let above = |end: &Path| directories_above(&project.path().join("src"), Some(end));
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        assert_eq!(above(home.path()), [text(project.path())]);
        assert_eq!(above(project.path()), [""; 0]);
        let all = above(&top.join("elsewhere"));
        assert_eq!(all[..2], [text(project.path()), text(home.path())]);
        assert_eq!(directories_above(Path::new("/tmp/x"), None), [""; 0]);
    }

    #[test]
    fn shown_current_session_is_that_of_other_commands() {
        let params = |line: &[&str]| {
            let run = run_against(line, |_, _| Some(json!({ "session": session_json() })));
            run.calls[0].clone()
        };
        let shown = params(&["sessions", "current"]);
        assert_eq!(shown, params(&["sessions", "close"]));
        let (_, given) = params(&["sessions", "current", "--project", "."]);
        assert_eq!(given["projectPath"], shown.1["projectPath"]);
        assert_eq!(given["elseOf"], Value::Null);
    }

    #[test]
    fn missing_current_directory_names_the_flags_that_help() {
        let source = std::io::ErrorKind::NotFound.into();
        let error = CommandError::File { action: "find the project", path: ".".into(), source };
        let text = no_current_directory("record", &error).to_text();
        assert!(text.contains("--session ID") && text.contains("--project DIR"), "{text}");
    }
}
