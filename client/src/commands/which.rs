//! The one rule for commands that may leave out their session.

use ollm_protocol::SessionId;
use ollm_protocol::sanitize;

use super::{CommandError, Cx, record};

/// The session that was named, else the current one of this directory's project. Never the last one of another
/// project: a command may change what it finds.
///
/// **Errors**: there is no current one; the hint is `command` with the last session.
pub(super) fn session_of(
    given: Option<&str>,
    command: &str,
    cx: &mut Cx<'_>,
) -> Result<SessionId, CommandError> {
    if let Some(text) = given {
        return cx.session(text);
    }
    let project = record::here(command)?;
    record::current(&project, cx)?.ok_or_else(|| CommandError::Gone {
        message: format!("{} has no current session", sanitize::one_line(&project)),
        hint: Some(format!("ollmctl {command} --session last")),
    })
}
