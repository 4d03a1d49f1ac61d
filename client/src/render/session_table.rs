//! Sessions as rows of a table, and as a heading.

use ollm_protocol::content::{Session, SessionStatus};
use ollm_protocol::{SessionId, Timestamp, sanitize};

use super::table::{self, TableColumn};
use super::units::{ago, counted, grouped};
use super::{RenderOptions, Style, wire_name};
use TableColumn::{Number, Prose, Word};

/// Characters of a short id: enough to tell two sessions apart unless they began in the same millisecond.
const SHORT_ID_CHARS: usize = 13;
/// The smallest width of a table with columns for projects and tokens.
const WIDE_COLUMNS: usize = 70;
/// The widest project name in a table.
const PROJECT_COLUMNS: usize = 14;

/// Returns a prefix of the id that is enough to type.
pub(crate) fn short_id(id: &SessionId) -> String {
    let mut text = id.to_string();
    text.truncate(SHORT_ID_CHARS);
    text
}

/// Returns a title on one line, or `(untitled)`.
pub(crate) fn title(title: &str) -> String {
    let title = sanitize::one_line(title);
    if title.is_empty() { "(untitled)".to_owned() } else { title }
}

/// Returns a line such as `deleted <id>  <title>`.
pub(crate) fn outcome_line(done: &str, session: &Session) -> String {
    format!("{done} {}  {}\n", session.session_id, title(&session.title))
}

/// Returns title, id and main properties of a session on three lines.
pub(crate) fn heading(session: &Session, options: &RenderOptions) -> String {
    let mut properties = vec![
        counted(session.message_count, "message"),
        counted(session.token_count, "token"),
        ago(session.last_activity, options.now),
        wire_name(session.status),
    ];
    let optional = [&session.model, &session.mode, &session.project_path];
    properties.extend(optional.into_iter().flatten().map(|value| sanitize::one_line(value)));
    if session.damaged_records > 0 {
        properties.push(Style::Bad.paint(&counted(session.damaged_records, "damaged record")));
    }
    format!(
        "{}\n{}\n{}\n",
        Style::Strong.paint(&title(&session.title)),
        session.session_id,
        Style::Faint.paint(&properties.join(" · ")),
    )
}

/// Returns a table of sessions. Ids are as short as they stay unique in the table; a star marks pinned sessions.
pub(crate) fn render(sessions: &[Session], options: &RenderOptions) -> String {
    // Columns that say the same of every session would take room from the titles.
    let is_wide = options.width >= WIDE_COLUMNS;
    let projects = is_wide && sessions.iter().any(|session| session.project_name.is_some());
    let statuses = sessions.iter().any(|session| session.status != SessionStatus::Active);
    let columns = [
        (true, "ID", Word),
        (true, "TITLE", Prose),
        (projects, "PROJECT", Word),
        (true, "MSGS", Number),
        (is_wide, "TOKENS", Number),
        (true, "LAST", Word),
        (statuses, "STATUS", Word),
    ];
    let rows = sessions.iter().zip(unique_ids(sessions)).map(|(session, id)| {
        let cells = row(session, id, options.now).into_iter().zip(&columns);
        cells.filter(|(_, (shown, ..))| *shown).map(|(cell, _)| cell).collect::<Vec<_>>()
    });
    let shown = columns.iter().filter(|(shown, ..)| *shown);
    let shown: Vec<_> = shown.map(|(_, name, kind)| (*name, *kind)).collect();
    table::render(options.width, &shown, rows)
}

/// Returns a table of sessions with a number before each.
pub(crate) fn render_numbered(sessions: &[Session], options: &RenderOptions) -> String {
    let digits = sessions.len().to_string().len();
    let narrower = RenderOptions { width: options.width.saturating_sub(digits + 2), ..*options };
    let table = render(sessions, &narrower);
    let number = |at: usize| if at == 0 { String::new() } else { at.to_string() };
    let lines = table.lines().enumerate();
    lines.map(|(at, line)| format!("{:>digits$}  {line}\n", number(at))).collect()
}

fn row(session: &Session, id: String, now: Timestamp) -> [String; 7] {
    let pin = if session.pinned { "* " } else { "" };
    let project = sanitize::one_line(session.project_name.as_deref().unwrap_or("-"));
    [
        id,
        format!("{pin}{}", title(&session.title)),
        table::clip(&project, PROJECT_COLUMNS),
        grouped(session.message_count),
        grouped(session.token_count),
        ago(session.last_activity, now),
        wire_name(session.status),
    ]
}

/// Returns prefixes of the ids, all of one length, at which they differ.
fn unique_ids(sessions: &[Session]) -> Vec<String> {
    let ids: Vec<String> = sessions.iter().map(|session| session.session_id.to_string()).collect();
    let shared = |left: &str, right: &str| {
        left.bytes().zip(right.bytes()).take_while(|(left, right)| left == right).count()
    };
    let mut sorted: Vec<&str> = ids.iter().map(String::as_str).collect();
    sorted.sort_unstable();
    sorted.dedup();
    let longest = sorted.windows(2).map(|pair| shared(pair[0], pair[1]) + 1).max().unwrap_or(0);
    let length = longest.clamp(SHORT_ID_CHARS, 36);
    ids.iter().map(|id| id[..length].to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{plain, render_options, session_named};

    #[test]
    fn table_fits_eighty_columns_with_any_title() {
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
        let text = plain(&render(&sessions, &render_options(80)));
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
    fn numbered_rows_count_from_one() {
        let session = session_named("0192f0c1-9a3b-7000-8000-000000000001", "a");
        let sessions = vec![session; 10];
        let text = plain(&render_numbered(&sessions, &render_options(80)));
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].trim_start().starts_with("ID"), "{text}");
        assert!(lines[1].starts_with(" 1  0192") && lines[10].starts_with("10  0192"), "{text}");
    }

    #[test]
    fn narrow_table_keeps_the_titles() {
        let sessions =
            [session_named("0192f0c1-9a3b-7000-8000-000000000001", "How do I reverse a list?")];
        assert_eq!(
            plain(&render(&sessions, &render_options(40))),
            "\
ID             TITLE       MSGS  LAST
0192f0c1-9a3b  How do I …     2  1 h ago
"
        );
    }

    #[test]
    fn ids_of_one_millisecond_are_shown_longer() {
        let sessions = [
            session_named("0192f0c1-9a3b-7000-8000-000000000001", "a"),
            session_named("0192f0c1-9a3b-7001-8000-000000000002", "b"),
        ];
        assert_eq!(unique_ids(&sessions), ["0192f0c1-9a3b-7000", "0192f0c1-9a3b-7001"]);
        assert_eq!(unique_ids(&sessions[..1]), ["0192f0c1-9a3b"]);
    }
}
