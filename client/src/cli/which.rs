//! Which session a command is about: by its place, by `--session`, or the current one of the project.

use clap::Args;

use super::by_session;

/// What stands for a session, and which one it is where none is named.
pub(super) const CURRENT_HELP: &str = "An id, a unique beginning of one, or `last`: the most recently active session of \
    all projects that is not archived [default: the current session of this directory's project]";

/// The session that a command is about, where nothing else has its place.
#[derive(Debug, Args)]
pub(crate) struct WhichArgs {
    #[arg(value_name = "SESSION", help = CURRENT_HELP, add = by_session())]
    id: Option<String>,
    /// The same as the argument SESSION.
    #[arg(long, value_name = "SESSION", conflicts_with = "id", add = by_session())]
    session: Option<String>,
}

impl WhichArgs {
    /// What was said.
    pub(crate) fn given(&self) -> Option<&str> {
        self.id.as_deref().or(self.session.as_deref())
    }
}
