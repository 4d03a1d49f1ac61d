//! Sessions as rows of a table, and as a heading.

use ollm_protocol::content::{Session, SessionStatus};
use ollm_protocol::{Timestamp, sanitize};

use super::table::{self, TableColumn};
use super::units::{ago, counted, grouped};
use super::{RenderOptions, Style, wire_name};
use TableColumn::{Number, Prose, Word};

/// Characters of the end of an id that no reply shortened.
const ID_END_CHARS: usize = 8;
/// The smallest width of a table with columns for projects and tokens.
pub(crate) const WIDE_COLUMNS: usize = 70;
/// The widest project name in a table.
const PROJECT_COLUMNS: usize = 14;

/// Returns the part of an id that is enough to type: the short form that the daemon gave, else the end of the id.
pub(crate) fn short_id(given: Option<&str>, id: impl ToString) -> String {
    given.map(str::to_owned).unwrap_or_else(|| {
        let mut id = id.to_string();
        id.split_off(id.len().saturating_sub(ID_END_CHARS))
    })
}

/// Returns the short form of a session's id.
pub(crate) fn short_session_id(session: &Session) -> String {
    short_id(session.short_id.as_deref(), session.session_id)
}

/// Returns a title on one line, or `(untitled)`.
pub(crate) fn title(title: &str) -> String {
    let title = sanitize::one_line(title);
    if title.is_empty() { "(untitled)".to_owned() } else { title }
}

/// Returns a line such as `deleted <id>  <title>`.
pub(crate) fn outcome_line(done: &str, session: &Session) -> String {
    format!("{done} {}  {}\n", short_session_id(session), title(&session.title))
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

/// Returns a table of sessions. A star marks pinned sessions.
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
    let rows = sessions.iter().map(|session| {
        let cells = row(session, options.now).into_iter().zip(&columns);
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

fn row(session: &Session, now: Timestamp) -> [String; 7] {
    let pin = if session.pinned { "* " } else { "" };
    let project = sanitize::one_line(session.project_name.as_deref().unwrap_or("-"));
    [
        short_session_id(session),
        format!("{pin}{}", title(&session.title)),
        table::clip(&project, PROJECT_COLUMNS),
        grouped(session.message_count),
        grouped(session.token_count),
        ago(session.last_activity, now),
        wire_name(session.status),
    ]
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
        sessions[0].short_id = Some("0001".into());
        sessions[1].short_id = Some("0002".into());
        sessions[0].message_count = 1234;
        sessions[0].token_count = 56789;
        sessions[1].project_name = Some("parser".into());
        sessions[2].status = SessionStatus::Archived;
        let text = plain(&render(&sessions, &render_options(80)));
        assert_eq!(
            text,
            "\
ID        TITLE                        PROJECT   MSGS  TOKENS  LAST     STATUS
0001      How do I reverse a list in…  -        1,234  56,789  1 h ago  active
0002      設定ファイルを読む方法を教…  parser       2      10  1 h ago  active
00000003  evil title 🎉 second line    -            2      10  1 h ago  archived
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
        assert!(
            lines[1].starts_with(" 1  00000001") && lines[10].starts_with("10  00000001"),
            "{text}"
        );
    }

    #[test]
    fn narrow_table_keeps_the_titles() {
        let sessions =
            [session_named("0192f0c1-9a3b-7000-8000-000000000001", "How do I reverse a list?")];
        assert_eq!(
            plain(&render(&sessions, &render_options(40))),
            "\
ID        TITLE            MSGS  LAST
00000001  How do I rever…     2  1 h ago
"
        );
    }
}
