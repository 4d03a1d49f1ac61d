//! Session ids as people write them: whole, by a unique beginning, or `last`.

use ollm_protocol::SessionId;
use ollm_protocol::content::{Session, SessionStatus};
use ollm_protocol::methods::session::{SessionListParams, SessionListResult};

use crate::error::ClientError;

/// The shortest beginning that is looked up; shorter ones match by accident.
const MIN_PREFIX: usize = 4;
/// The most sessions that are named when a beginning is ambiguous.
const MAX_NAMED: u32 = 10;

/// Lists sessions: the daemon, or a test.
pub(crate) trait ListSessions {
    /// One page.
    fn list(&mut self, params: &SessionListParams) -> Result<SessionListResult, ClientError>;
}

/// Why a text names no session.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ResolveError {
    /// It has characters that no id has.
    #[error("{text:?} is not hexadecimal, so no session's id can begin with it")]
    NotHex {
        /// The text.
        text: String,
    },
    /// It cannot be the beginning of an id.
    #[error("{text:?} is no session id: write at least {MIN_PREFIX} characters of one, or `last`")]
    Invalid {
        /// The text.
        text: String,
    },
    /// No session begins so.
    #[error("no session's id begins with {text:?}")]
    NotFound {
        /// The text.
        text: String,
    },
    /// There is no session at all.
    #[error("there is no session yet")]
    NoSessions,
    /// Several sessions begin so.
    #[error("{text:?} is the beginning of more than one id")]
    Ambiguous {
        /// The text.
        text: String,
        /// The sessions, or the first of them.
        candidates: Vec<Session>,
    },
    /// They could not be listed.
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// The id that a text means. A whole id is not looked up: the call that follows says whether it exists.
pub(crate) fn session(
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
    let shown = || ollm_protocol::sanitize::one_line(text);
    if !prefix.chars().all(|char| char.is_ascii_hexdigit() || char == '-') {
        return Err(ResolveError::NotHex { text: shown() });
    }
    if !(MIN_PREFIX..36).contains(&prefix.len()) {
        return Err(ResolveError::Invalid { text: shown() });
    }
    let mut candidates = Vec::new();
    // Without a status the archived ones are left out, so they are asked for separately.
    for status in [None, Some(SessionStatus::Archived)] {
        let params = SessionListParams {
            id_prefix: Some(prefix.clone()),
            status,
            limit: Some(MAX_NAMED),
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

    struct Fake(Vec<Session>);

    impl ListSessions for Fake {
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
    fn ids_are_found_by_beginning_word_or_whole() {
        let one = "0192f0c1-0000-7000-8000-000000000001";
        let two = "0192f0c1-0000-7000-8000-000000000002";
        let away = "0192ffff-0000-7000-8000-000000000003";
        let mut archived = session_named(away, "away");
        archived.status = SessionStatus::Archived;
        let mut fake = Fake(vec![session_named(one, "one"), session_named(two, "two"), archived]);
        let mut resolve = |text: &str| session(&mut fake, text).map(|id| id.to_string());
        assert_eq!(resolve("last").unwrap(), one);
        assert_eq!(resolve(&one[..36]).unwrap(), one);
        assert_eq!(resolve(&two.to_uppercase()).unwrap(), two);
        assert_eq!(resolve("0192f0c1-0000-7000-8000-000000000002").unwrap(), two);
        assert_eq!(resolve("0192F").unwrap_err().to_string().split(' ').next(), Some("\"0192f\""));
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
        assert!(matches!(session(&mut Fake(vec![]), "last"), Err(ResolveError::NoSessions)));
    }
}
