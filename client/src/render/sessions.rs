//! Lists of sessions, and what became of some.

use ollm_protocol::content::{Session, SessionStatus};
use ollm_protocol::methods::session::SessionCleanupResult;
use ollm_protocol::sanitize;
use ollm_protocol::{SessionId, Timestamp};

use super::View;
use super::number::{counted, grouped};
use super::style::Style;
use super::table::{self, Column};
use super::time;

/// Characters of an id that tell two sessions apart unless they began in the same millisecond.
const SHORT_ID: usize = 13;

/// Columns of a terminal that has room for more than the titles.
const ROOMY: usize = 70;
/// Columns of a project's name in a list.
const PROJECT_COLUMNS: usize = 14;

/// The beginning of an id that is enough to type.
pub(crate) fn short_id(id: &SessionId) -> String {
    let mut text = id.to_string();
    text.truncate(SHORT_ID);
    text
}

/// The words of a status.
pub(crate) const fn status_word(status: SessionStatus) -> &'static str {
    match status {
        SessionStatus::Active => "active",
        SessionStatus::Closed => "closed",
        SessionStatus::Archived => "archived",
        SessionStatus::Corrupted => "corrupted",
    }
}

/// The title on one line, or what stands for a missing one.
pub(crate) fn title(session: &Session) -> String {
    let title = sanitize::one_line(&session.title);
    if title.is_empty() { "(untitled)".to_owned() } else { title }
}

/// What is said where a list ends before the sessions do.
pub(crate) const MORE: &str = "there are more: raise --limit";

/// What a reader of a list has to know about what is not in it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Remarks {
    /// There are more than were asked for.
    pub(crate) more: bool,
    /// The catalog is not complete.
    pub(crate) behind: bool,
}

/// A table of sessions with what must be known about it.
pub(crate) fn list(sessions: &[Session], remarks: Remarks, view: &View) -> String {
    let mut text =
        if sessions.is_empty() { "no sessions\n".to_owned() } else { rows(sessions, view) };
    if remarks.more {
        text.push_str(&format!("{MORE}\n"));
    }
    if remarks.behind {
        text.push_str("the catalog is being rebuilt: sessions may be missing here\n");
    }
    text
}

/// Ids are cut where they stay unique in the table, a star marks pinned sessions.
fn rows(sessions: &[Session], view: &View) -> String {
    // What says the same of every session only takes room from the titles.
    let roomy = view.width >= ROOMY;
    let projects = roomy && sessions.iter().any(|session| session.project_name.is_some());
    let statuses = sessions.iter().any(|session| session.status != SessionStatus::Active);
    let columns = [
        (true, "ID", Column::Word),
        (true, "TITLE", Column::Prose),
        (projects, "PROJECT", Column::Word),
        (true, "MSGS", Column::Number),
        (roomy, "TOKENS", Column::Number),
        (true, "LAST", Column::Word),
        (statuses, "STATUS", Column::Word),
    ];
    let rows: Vec<Vec<String>> = sessions
        .iter()
        .zip(unique_ids(sessions))
        .map(|(session, id)| {
            let cells = row(session, id, view.now).into_iter().zip(&columns);
            cells.filter(|(_, (shown, ..))| *shown).map(|(cell, _)| cell).collect()
        })
        .collect();
    let columns: Vec<(&str, Column)> = columns
        .into_iter()
        .filter(|(shown, ..)| *shown)
        .map(|(_, name, kind)| (name, kind))
        .collect();
    table::render(view.width, &columns, &rows)
}

fn row(session: &Session, id: String, now: Timestamp) -> [String; 7] {
    let pin = if session.pinned { "* " } else { "" };
    let project = sanitize::one_line(session.project_name.as_deref().unwrap_or("-"));
    [
        id,
        format!("{pin}{}", title(session)),
        table::clip(&project, PROJECT_COLUMNS),
        grouped(session.message_count),
        grouped(session.token_count),
        time::ago(session.last_activity, now),
        status_word(session.status).to_owned(),
    ]
}

/// The beginnings of the ids, as long as it takes to tell them apart.
fn unique_ids(sessions: &[Session]) -> Vec<String> {
    let ids: Vec<String> = sessions.iter().map(|session| session.session_id.to_string()).collect();
    let shared = |left: &str, right: &str| {
        left.bytes().zip(right.bytes()).take_while(|(left, right)| left == right).count()
    };
    let mut sorted: Vec<&str> = ids.iter().map(String::as_str).collect();
    sorted.sort_unstable();
    sorted.dedup();
    let longest = sorted.windows(2).map(|pair| shared(pair[0], pair[1]) + 1).max().unwrap_or(0);
    let length = longest.clamp(SHORT_ID, 36);
    ids.iter().map(|id| id[..length].to_owned()).collect()
}

/// The sessions with a number each, to choose one.
pub(crate) fn numbered(sessions: &[Session], view: &View) -> String {
    let digits = sessions.len().to_string().len();
    let narrow = View { width: view.width.saturating_sub(digits + 2), ..*view };
    let table = rows(sessions, &narrow);
    let number = |at: usize| if at == 0 { String::new() } else { at.to_string() };
    let lines = table.lines().enumerate();
    lines.map(|(at, line)| format!("{:>digits$}  {line}\n", number(at))).collect()
}

/// What is about to be deleted: the first few, and how many more.
pub(crate) fn doomed(sessions: &[Session], view: &View) -> String {
    const SHOWN: usize = 10;
    let mut text = rows(&sessions[..sessions.len().min(SHOWN)], view);
    if let Some(more) = sessions.len().checked_sub(SHOWN).filter(|more| *more > 0) {
        text.push_str(&format!("and {} more\n", grouped(more as u64)));
    }
    text
}

/// What went, or would go.
pub(crate) fn cleanup(result: &SessionCleanupResult, view: &View) -> String {
    let gone = counted(result.deleted.len() as u64, "session");
    let kept = grouped(result.kept);
    let mut text = String::new();
    if result.dry_run {
        if !result.deleted.is_empty() {
            text.push_str(&doomed(&result.deleted, view));
        }
        text.push_str(&format!("would delete {gone}, keep {kept}\n"));
    } else {
        text.push_str(&format!("deleted {gone}, kept {kept}\n"));
    }
    for failure in &result.failed {
        let why = sanitize::one_line(&failure.message);
        text.push_str(&format!("{} {}: {why}\n", Style::Bad.paint("kept"), failure.session_id));
    }
    text
}

/// One session in one line, for what was done with it.
pub(crate) fn done(what: &str, session: &Session) -> String {
    format!("{what} {}  {}\n", session.session_id, title(session))
}

#[cfg(test)]
mod tests {
    use anstream::adapter::strip_str;

    use super::*;
    use crate::testing::session_named;

    fn view() -> View {
        View { width: 80, now: "2026-01-27T10:00:00Z".parse().unwrap(), full: false }
    }

    #[test]
    fn a_list_fits_eighty_columns_whatever_the_titles() {
        let mut sessions = vec![
            session_named(
                "0192f0c1-9a3b-7000-8000-000000000001",
                "How do I reverse a list in Rust without copying it",
            ),
            session_named(
                "0192f0d7-1111-7000-8000-000000000002",
                "設定ファイルを読む方法を教えてください、お願いします",
            ),
            session_named(
                "0192f0d8-2222-7000-8000-000000000003",
                "evil \u{1b}[2J\u{1b}]0;x\u{7}title 🎉\nsecond line",
            ),
        ];
        sessions[0].message_count = 1234;
        sessions[0].token_count = 56789;
        sessions[1].project_name = Some("parser".into());
        sessions[2].status = SessionStatus::Archived;
        let text = strip_str(&list(&sessions, Remarks::default(), &view())).to_string();
        assert_eq!(
            text,
            "\
ID             TITLE                   PROJECT   MSGS  TOKENS  LAST     STATUS
0192f0c1-9a3b  How do I reverse a li…  -        1,234  56,789  1 h ago  active
0192f0d7-1111  設定ファイルを読む方…   parser       2      10  1 h ago  active
0192f0d8-2222  evil title 🎉 second …  -            2      10  1 h ago  archived
"
        );
    }

    #[test]
    fn sessions_to_choose_from_have_numbers() {
        let one = session_named("0192f0c1-9a3b-7000-8000-000000000001", "a");
        let text = strip_str(&numbered(&vec![one; 10], &view())).to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].trim_start().starts_with("ID"), "{text}");
        assert!(lines[1].starts_with(" 1  0192") && lines[10].starts_with("10  0192"), "{text}");
    }

    #[test]
    fn a_narrow_terminal_gets_the_titles() {
        let sessions =
            [session_named("0192f0c1-9a3b-7000-8000-000000000001", "How do I reverse a list?")];
        let narrow = View { width: 40, ..view() };
        assert_eq!(
            strip_str(&list(&sessions, Remarks::default(), &narrow)).to_string(),
            "\
ID             TITLE       MSGS  LAST
0192f0c1-9a3b  How do I …     2  1 h ago
"
        );
    }

    #[test]
    fn a_list_that_was_cut_says_so() {
        let sessions = [session_named("0192f0c1-9a3b-7000-8000-000000000001", "a")];
        let more = list(&sessions, Remarks { more: true, behind: false }, &view());
        assert!(more.ends_with("\nthere are more: raise --limit\n"), "{more}");
        let all = list(&sessions, Remarks::default(), &view());
        assert!(!all.contains("more"), "{all}");
    }

    #[test]
    fn ids_that_share_their_time_are_shown_longer() {
        let sessions = [
            session_named("0192f0c1-9a3b-7000-8000-000000000001", "a"),
            session_named("0192f0c1-9a3b-7001-8000-000000000002", "b"),
        ];
        assert_eq!(unique_ids(&sessions), ["0192f0c1-9a3b-7000", "0192f0c1-9a3b-7001"]);
        assert_eq!(unique_ids(&sessions[..1]), ["0192f0c1-9a3b"]);
    }

    #[test]
    fn a_dry_run_says_what_would_go() {
        let many: Vec<_> = (10..22)
            .map(|at| session_named(&format!("0192f0{at}-9a3b-7000-8000-000000000001"), "t"))
            .collect();
        let result = SessionCleanupResult { deleted: many, kept: 3, failed: vec![], dry_run: true };
        let text = cleanup(&result, &view());
        assert!(text.contains("and 2 more\nwould delete 12 sessions, keep 3\n"), "{text}");
        let done = SessionCleanupResult { dry_run: false, deleted: vec![], ..result };
        assert_eq!(cleanup(&done, &view()), "deleted 0 sessions, kept 3\n");
    }
}
