//! The arguments and flags that name a session.

use clap::Args;
use ollm_protocol::SessionId;

use crate::command_context::CommandContext;
use crate::command_error::CommandResult;
use crate::completion;
use crate::project::session_or_current;

/// The help of a required session.
pub(crate) const SESSION_HELP: &str = "An id, a unique end or beginning of one, or `last` for the most recently active session \
    of all projects that is not archived";
/// The help of a session that may be left out.
const OPTIONAL_SESSION_HELP: &str = "An id, a unique end or beginning of one, or `last` for the most recently active \
    session of all projects that is not archived [default: the current session of this directory's project]";

// These structs have no doc comments: clap would print them instead of the help of the command that contains them.

#[derive(Debug, Default, Args)]
pub(crate) struct OptionalSessionArg {
    #[arg(value_name = "SESSION", help = OPTIONAL_SESSION_HELP, add = completion::sessions())]
    id: Option<String>,
    /// The same as the argument SESSION.
    #[arg(long, value_name = "SESSION", conflicts_with = "id", add = completion::sessions())]
    session: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct SessionFlag {
    #[arg(
        long,
        global = true,
        value_name = "SESSION",
        help = OPTIONAL_SESSION_HELP,
        add = completion::sessions()
    )]
    session: Option<String>,
}

impl OptionalSessionArg {
    /// Returns the session that was given.
    pub(crate) fn given(&self) -> Option<&str> {
        self.id.as_deref().or(self.session.as_deref())
    }

    /// Returns the session that was given as it is typed in a command, with a space before it; empty for the default.
    pub(crate) fn typed(&self) -> String {
        self.given().map(|id| format!(" {id}")).unwrap_or_default()
    }

    /// Returns the session that was given, else the current one, as [`session_or_current`] does.
    pub(crate) fn id_or_current(
        &self,
        command: &str,
        ctx: &mut CommandContext<'_>,
    ) -> CommandResult<SessionId> {
        session_or_current(self.given(), command, ctx)
    }
}

impl SessionFlag {
    /// Returns the session that was given.
    pub(crate) fn given(&self) -> Option<&str> {
        self.session.as_deref()
    }

    /// Returns the session that was given, else the current one, as [`session_or_current`] does.
    pub(crate) fn id_or_current(
        &self,
        command: &str,
        ctx: &mut CommandContext<'_>,
    ) -> CommandResult<SessionId> {
        session_or_current(self.given(), command, ctx)
    }
}
