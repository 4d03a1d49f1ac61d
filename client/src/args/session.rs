//! Session ids as people write them: whole, as a unique prefix, or as `last`.

use clap::Args;
use ollm_protocol::content::{Session, SessionStatus};
use ollm_protocol::methods::session::{SessionListParams, SessionListResult};
use ollm_protocol::{SessionId, sanitize};

use super::completers;
use crate::error::ClientError;

/// The help of a required session.
pub(crate) const SESSION_HELP: &str = "An id, a unique prefix of one, or `last` for the most recently active session \
    of all projects that is not archived";
/// The help of a session that may be left out.
pub(crate) const OPTIONAL_SESSION_HELP: &str = "An id, a unique prefix of one, or `last` for the most recently active \
    session of all projects that is not archived [default: the current session of this directory's project]";

/// The shortest prefix that is looked up; shorter ones match by accident.
const MIN_PREFIX_CHARS: usize = 4;
/// The maximum number of sessions listed for an ambiguous prefix.
const MAX_LISTED: u32 = 10;

/// A required session as the only argument.
#[derive(Debug, Args)]
pub(crate) struct SessionArg {
    #[arg(value_name = "SESSION", help = SESSION_HELP, add = completers::sessions())]
    pub(crate) id: String,
}

// No doc comment: in the help of a command into which this is flattened it would replace the command's own.
#[derive(Debug, Args)]
pub(crate) struct OptionalSessionArg {
    #[arg(value_name = "SESSION", help = OPTIONAL_SESSION_HELP, add = completers::sessions())]
    id: Option<String>,
    /// The same as the argument SESSION.
    #[arg(long, value_name = "SESSION", conflicts_with = "id", add = completers::sessions())]
    session: Option<String>,
}

impl OptionalSessionArg {
    /// Returns the session that was given.
    pub(crate) fn given(&self) -> Option<&str> {
        self.id.as_deref().or(self.session.as_deref())
    }
}

/// A source of session lists: the daemon, or a test.
pub(crate) trait ListSessions {
    fn list(&mut self, params: &SessionListParams) -> Result<SessionListResult, ClientError>;
}

/// The text identifies no session.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ResolveError {
    #[error("{text:?} is not a session id or a prefix of one: ids are hexadecimal")]
    NotHex { text: String },
    #[error(
        "{text:?} is not a session id: write at least {MIN_PREFIX_CHARS} characters of one, or `last`"
    )]
    Invalid { text: String },
    #[error("no session id begins with {text:?}")]
    NotFound { text: String },
    #[error("there are no sessions (archived ones do not count)")]
    NoSessions,
    #[error("more than one session id begins with {text:?}")]
    Ambiguous {
        text: String,
        /// The sessions, or the first of them.
        candidates: Vec<Session>,
    },
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// Returns the id that a text stands for. A whole id is not looked up, because the call that uses it does that.
pub(crate) fn resolve(
    lister: &mut impl ListSessions,
    text: &str,
) -> Result<SessionId, ResolveError> {
    if let Ok(id) = text.parse() {
        return Ok(id);
    }
    if text == "last" {
        let params = SessionListParams { limit: Some(1), ..Default::default() };
        let newest = lister.list(&params)?.data.into_iter().next();
        return newest.map(|session| session.session_id).ok_or(ResolveError::NoSessions);
    }
    let prefix = text.to_ascii_lowercase();
    let shown = || sanitize::one_line(text);
    if !prefix.chars().all(|char| char.is_ascii_hexdigit() || char == '-') {
        return Err(ResolveError::NotHex { text: shown() });
    }
    if !(MIN_PREFIX_CHARS..36).contains(&prefix.len()) {
        return Err(ResolveError::Invalid { text: shown() });
    }
    let mut candidates = Vec::new();
    // Without a status the daemon leaves out archived sessions.
    for status in [None, Some(SessionStatus::Archived)] {
        let params = SessionListParams {
            id_prefix: Some(prefix.clone()),
            status,
            limit: Some(MAX_LISTED),
            ..Default::default()
        };
        candidates.extend(lister.list(&params)?.data);
    }
    match candidates.as_slice() {
        [] => Err(ResolveError::NotFound { text: prefix }),
        [only] => Ok(only.session_id),
        _ => Err(ResolveError::Ambiguous { text: prefix, candidates }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::session_named;

    struct FakeLister(Vec<Session>);

    impl ListSessions for FakeLister {
        fn list(&mut self, params: &SessionListParams) -> Result<SessionListResult, ClientError> {
            let prefix = params.id_prefix.clone().unwrap_or_default();
            let archived = params.status == Some(SessionStatus::Archived);
            let data = self
                .0
                .iter()
                .filter(|session| session.session_id.to_string().starts_with(&prefix))
                .filter(|session| (session.status == SessionStatus::Archived) == archived)
                .take(params.limit.map_or(25, |limit| limit as usize))
                .cloned()
                .collect();
            Ok(SessionListResult { data, next_cursor: None, behind: false })
        }
    }

    #[test]
    fn session_is_found_by_id_prefix_or_last() {
        let one = "0192f0c1-0000-7000-8000-000000000001";
        let two = "0192f0c1-0000-7000-8000-000000000002";
        let away = "0192ffff-0000-7000-8000-000000000003";
        let mut archived = session_named(away, "away");
        archived.status = SessionStatus::Archived;
        let mut lister =
            FakeLister(vec![session_named(one, "one"), session_named(two, "two"), archived]);
        let mut resolve = |text: &str| resolve(&mut lister, text).map(|id| id.to_string());
        assert_eq!(resolve("last").unwrap(), one);
        assert_eq!(resolve(&one[..36]).unwrap(), one);
        assert_eq!(resolve(&two.to_uppercase()).unwrap(), two);
        assert_eq!(resolve("0192f0c1-0000-7000-8000-000000000002").unwrap(), two);
        assert!(resolve("0192F").unwrap_err().to_string().ends_with("\"0192f\""));
        assert_eq!(resolve("0192ffff").unwrap(), away);
        assert!(
            matches!(resolve("0192f0c1"), Err(ResolveError::Ambiguous { candidates, .. }) if candidates.len() == 2)
        );
        assert!(matches!(resolve("dead"), Err(ResolveError::NotFound { .. })));
        for wrong in ["", "019", "0192f0c1-0000-7000-8000-0000000000012"] {
            assert!(matches!(resolve(wrong), Err(ResolveError::Invalid { .. })), "{wrong}");
        }
        for wrong in ["../../etc/passwd", "zzzz", "日本語日本", "lst"] {
            assert!(matches!(resolve(wrong), Err(ResolveError::NotHex { .. })), "{wrong}");
        }
        let mut empty = FakeLister(vec![]);
        assert!(matches!(super::resolve(&mut empty, "last"), Err(ResolveError::NoSessions)));
    }
}
