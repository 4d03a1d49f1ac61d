//! Session ids as people write them: whole, as a unique end or beginning, or as `last`.

use ollm_protocol::content::{Session, SessionStatus};
use ollm_protocol::methods::session::SessionListParams;
use ollm_protocol::{SessionId, sanitize};

use crate::command_error::{CommandError, CommandResult, LIST_HINT};
use crate::error::ClientError;

/// The shortest part that is looked up; shorter ones match by accident.
const MIN_PART_CHARS: usize = 4;
/// The maximum number of sessions listed for an ambiguous part.
const MAX_LISTED: u32 = 10;

/// Resolves a text to a session id; `list` requests a list of sessions. Does not look up a whole id, because the call
/// that uses the id does that.
pub(crate) fn resolve(
    text: &str,
    mut list: impl FnMut(SessionListParams) -> Result<Vec<Session>, ClientError>,
) -> CommandResult<SessionId> {
    if let Ok(id) = text.parse() {
        return Ok(id);
    }
    if text == "last" {
        let newest = list(SessionListParams { limit: Some(1), ..Default::default() })?;
        return newest.first().map(|session| session.session_id).ok_or_else(|| {
            let message = "there are no sessions (archived ones do not count)";
            CommandError::not_found(message, "ollmctl record 'hello'")
        });
    }
    let part = text.to_ascii_lowercase();
    let invalid = |reason| CommandError::InvalidId { text: sanitize::one_line(text), reason };
    if !part.chars().all(|char| char.is_ascii_hexdigit() || char == '-') {
        return Err(invalid("ids are hexadecimal"));
    }
    if !(MIN_PART_CHARS..36).contains(&part.len()) {
        return Err(invalid("write at least 4 characters of an id, or `last`"));
    }
    // Short forms are ends of ids; all sessions of a minute have the same beginning.
    let of_end = SessionListParams { id_end: Some(part.clone()), ..Default::default() };
    let mut candidates = find(&of_end, &mut list)?;
    if candidates.is_empty() {
        let of_beginning =
            SessionListParams { id_prefix: Some(part.clone()), ..Default::default() };
        candidates = find(&of_beginning, &mut list)?;
    }
    match candidates.as_slice() {
        [] => {
            let message = format!("no session id ends or begins with {part:?}");
            Err(CommandError::not_found(message, LIST_HINT))
        }
        [only] => Ok(only.session_id),
        _ => Err(CommandError::AmbiguousId { text: part, candidates }),
    }
}

/// Finds the sessions whose id has a part, archived ones included.
fn find(
    of_part: &SessionListParams,
    list: &mut impl FnMut(SessionListParams) -> Result<Vec<Session>, ClientError>,
) -> CommandResult<Vec<Session>> {
    let mut found = Vec::new();
    // Without a status the daemon leaves out archived sessions.
    for status in [None, Some(SessionStatus::Archived)] {
        let limit = Some(MAX_LISTED);
        found.extend(list(SessionListParams { status, limit, ..of_part.clone() })?);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::session_named;

    /// Lists the sessions that match the params, as the daemon does.
    fn list(all: &[Session], params: &SessionListParams) -> Vec<Session> {
        let prefix = params.id_prefix.clone().unwrap_or_default();
        let end = params.id_end.clone().unwrap_or_default();
        let archived = params.status == Some(SessionStatus::Archived);
        all.iter()
            .filter(|session| session.session_id.to_string().starts_with(&prefix))
            .filter(|session| session.session_id.to_string().ends_with(&end))
            .filter(|session| (session.status == SessionStatus::Archived) == archived)
            .take(params.limit.map_or(25, |limit| limit as usize))
            .cloned()
            .collect()
    }

    #[test]
    fn session_is_found_by_id_end_beginning_or_last() {
        let one = "0192f0c1-0000-7000-8000-000000000001";
        let two = "0192f0c1-0000-7000-8000-000000000002";
        let away = "0192ffff-0000-7000-8000-000000000003";
        let mut archived = session_named(away, "away");
        archived.status = SessionStatus::Archived;
        let all = [session_named(one, "one"), session_named(two, "two"), archived];
        let resolve =
            |text: &str| resolve(text, |params| Ok(list(&all, &params))).map(|id| id.to_string());
        assert_eq!(resolve("last").unwrap(), one);
        assert_eq!(resolve(&one[..36]).unwrap(), one);
        assert_eq!(resolve(&two.to_uppercase()).unwrap(), two);
        assert_eq!(resolve("0192f0c1-0000-7000-8000-000000000002").unwrap(), two);
        assert!(resolve("0192F").unwrap_err().to_string().ends_with("\"0192f\""));
        assert_eq!(resolve("0192ffff").unwrap(), away);
        assert_eq!(resolve("0002").unwrap(), two);
        assert_eq!(resolve("0003").unwrap(), away);
        assert!(
            matches!(resolve("0192f0c1"), Err(CommandError::AmbiguousId { candidates, .. }) if candidates.len() == 2)
        );
        assert!(matches!(resolve("dead"), Err(CommandError::NotFound { .. })));
        let fails = |text: &str, message: &str| {
            let error = resolve(text).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        };
        for wrong in ["", "019", "0192f0c1-0000-7000-8000-0000000000012"] {
            fails(wrong, "write at least 4 characters");
        }
        for wrong in ["../../etc/passwd", "zzzz", "日本語日本", "lst"] {
            fails(wrong, "ids are hexadecimal");
        }
        let error = super::resolve("last", |_| Ok(Vec::new())).unwrap_err().to_string();
        assert!(error.starts_with("there are no sessions"), "{error}");
    }
}
