//! The lists of the views: sessions, results of a search, records of a tree, and events.

use ollm_protocol::content::{SearchHit, Session, SessionStatus};
use ratatui::layout::{Position, Rect};

use super::super::state::search::{FoundItem, SearchBox};
use super::super::state::tree::{TreeLine, TreePane};
use super::super::state::{DaemonLink, UiState};
use super::super::text::{UiTone, clip, clip_start, columns, shown_line};
use super::{Canvas, cursor_at, row};
use crate::render::hit::pieces;
use crate::render::session_table::title;
use crate::render::units::{ago, grouped};
use crate::render::wire_name;

/// The columns of an age, such as `59 min ago` or `2026-01-27`.
const AGE_COLUMNS: usize = 10;
/// The columns of the name of a project.
const PROJECT_COLUMNS: usize = 14;
/// The columns from which on a row names the project and counts the messages.
const DETAILED_COLUMNS: usize = 60;
/// The part of a line that the title of a session takes beside an event.
const TITLE_PART: usize = 3;
/// The levels of the bars that show how full the window was.
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// The part of a line that the bar of the window takes.
const BAR_PART: usize = 4;

/// Draws the sessions that are loaded.
pub(super) fn draw_sessions(state: &UiState, place: Rect, canvas: &mut Canvas<'_>) {
    if state.list.len() == 0 {
        draw_nothing(state, place, canvas);
        return;
    }
    let rows = state.list.rows().enumerate().skip(state.list.top());
    for (number, (at, session)) in rows.take(usize::from(place.height)).enumerate() {
        let row = row(place, number);
        let is_selected = at == state.list.selected();
        draw_session(state, session, is_selected, row, canvas);
    }
}

fn draw_nothing(state: &UiState, place: Rect, canvas: &mut Canvas<'_>) {
    let text = match state.link {
        _ if state.list.is_loaded() && state.is_archive => "No session is archived.",
        _ if state.list.is_loaded() && state.is_of_project => {
            "No sessions of this project. p shows all projects, n begins a chat."
        }
        _ if state.list.is_loaded() => "No sessions yet. n begins a chat; so does: ollmctl chat",
        DaemonLink::Lost => "",
        _ => "…",
    };
    for (number, line) in
        super::super::text::wrap(text, usize::from(place.width)).iter().enumerate()
    {
        let row = row(place, number);
        if row.y < place.bottom() {
            canvas.line(row.x, row.y, row.width, &[(UiTone::Faint, line.clone())]);
        }
    }
}

/// Draws a session: its mark, title, project, number of messages and age.
fn draw_session(
    state: &UiState,
    session: &Session,
    is_selected: bool,
    row: Rect,
    canvas: &mut Canvas<'_>,
) {
    let width = usize::from(row.width);
    let mut details = Vec::new();
    if width >= DETAILED_COLUMNS {
        if !state.is_of_project {
            let project = shown_line(session.project_name.as_deref().unwrap_or_default());
            let project = clip(&project, PROJECT_COLUMNS);
            let gap = PROJECT_COLUMNS - columns(&project);
            details.push(format!("{project}{}", " ".repeat(gap)));
        }
        details.push(format!("{:>5}", grouped(session.message_count)));
    }
    details.push(format!("{:>AGE_COLUMNS$}", ago(session.last_activity, state.times.now)));
    let details = details.join("  ");
    let (tone, mark) = mark_of(state, session);
    let cursor = if is_selected { ">" } else { " " };
    let room = width.saturating_sub(columns(&details) + 4);
    let pieces = [
        (UiTone::Plain, cursor.to_owned()),
        (tone, mark.to_owned()),
        (UiTone::Plain, format!(" {}", clip(&title(&session.title), room))),
    ];
    canvas.line(row.x, row.y, row.width, &pieces);
    canvas.right(row, UiTone::Faint, &details);
    if is_selected {
        canvas.select(row);
    }
}

/// Returns the sign of a session: answering now, damaged, archived or pinned.
fn mark_of(state: &UiState, session: &Session) -> (UiTone, &'static str) {
    if state.events.is_live(session.session_id) {
        (UiTone::Live, "●")
    } else if session.damaged_records > 0 {
        (UiTone::Bad, "!")
    } else if session.status == SessionStatus::Archived {
        (UiTone::Faint, "a")
    } else if session.pinned {
        (UiTone::Strong, "*")
    } else {
        (UiTone::Plain, " ")
    }
}

/// Draws the text of a search; returns the position of the cursor.
pub(super) fn draw_search_box(
    search: &SearchBox,
    place: Rect,
    canvas: &mut Canvas<'_>,
) -> Option<Position> {
    const LABEL: &str = "Search: ";
    let numbers = match (search.is_waiting(), search.len()) {
        (true, 0) => "…".to_owned(),
        (_, number) if search.has_more() => format!("{}+", grouped(number as u64)),
        (_, number) => grouped(number as u64),
    };
    let label = columns(LABEL);
    let room = usize::from(place.width).saturating_sub(label + columns(&numbers) + 2);
    let (text, column) = search.input.visible(room);
    let pieces = [(UiTone::Strong, LABEL.to_owned()), (UiTone::Plain, text.to_owned())];
    canvas.line(place.x, place.y, place.width, &pieces);
    if !search.input.text().is_empty() {
        canvas.right(place, UiTone::Faint, &numbers);
    }
    search.is_edited.then(|| cursor_at(place, label + column)).flatten()
}

/// Draws the results of a search: sessions, then messages with their matches.
pub(super) fn draw_found(
    state: &UiState,
    search: &SearchBox,
    place: Rect,
    canvas: &mut Canvas<'_>,
) {
    if search.len() == 0 {
        let text = match &search.problem {
            Some(problem) => (UiTone::Bad, problem.clone()),
            None if search.input.text().trim().is_empty() => {
                (UiTone::Faint, "Type words of a title or a message.".to_owned())
            }
            None if search.is_waiting() => return,
            None => (UiTone::Faint, "Nothing found.".to_owned()),
        };
        canvas.line(place.x, place.y, place.width, &[text]);
        return;
    }
    let items = search.items().enumerate().skip(search.top());
    for (number, (at, item)) in items.take(usize::from(place.height)).enumerate() {
        let row = row(place, number);
        let is_selected = at == search.selected();
        match item {
            FoundItem::Title(session) => draw_session(state, session, is_selected, row, canvas),
            FoundItem::Hit(hit) => draw_hit(state, hit, is_selected, row, canvas),
        }
    }
}

fn draw_hit(
    state: &UiState,
    hit: &SearchHit,
    is_selected: bool,
    row: Rect,
    canvas: &mut Canvas<'_>,
) {
    let width = usize::from(row.width);
    let age = ago(hit.at, state.times.now);
    let cursor = if is_selected { ">" } else { " " };
    let mut pieces = vec![
        (UiTone::Plain, format!("{cursor}  ")),
        (UiTone::of_role(hit.role), format!("{}: ", hit.role.as_str())),
    ];
    pieces.extend(snippet(hit));
    if width >= DETAILED_COLUMNS {
        pieces.push((UiTone::Faint, format!("  {}", title(&hit.title))));
    }
    let room = row.width.saturating_sub(u16::try_from(columns(&age) + 1).unwrap_or(0));
    canvas.line(row.x, row.y, room, &pieces);
    canvas.right(row, UiTone::Faint, &age);
    if is_selected {
        canvas.select(row);
    }
}

/// Returns the text around the first match, which begins near it, with all matches.
fn snippet(hit: &SearchHit) -> Vec<(UiTone, String)> {
    /// The characters before the first match, so that it is in sight.
    const BEFORE: usize = 20;
    let n_chars = hit.snippet.chars().count();
    let first = hit.matches.first().map_or(0, |(start, _)| *start as usize).min(n_chars);
    let from = first.saturating_sub(BEFORE);
    let cut = (from > 0).then(|| (UiTone::Faint, "…".to_owned()));
    let tone = |is_match: bool| if is_match { UiTone::Match } else { UiTone::Plain };
    let pieces = pieces(hit, from).into_iter().map(|(is_match, text)| (tone(is_match), text));
    cut.into_iter().chain(pieces).collect()
}

/// Draws how full the window of a session is, and how full it was.
pub(super) fn draw_window(pane: &TreePane, place: Rect, canvas: &mut Canvas<'_>) {
    let width = usize::from(place.width);
    let remarks = pane.remarks().join(" · ");
    let Some(status) = &pane.status else {
        let text = clip(&remarks, width);
        canvas.line(place.x, place.y, place.width, &[(UiTone::Faint, text)]);
        return;
    };
    let percent = status.used_percent.round().clamp(0.0, 999.0);
    let text = format!(" {percent:.0} % of {} tokens", grouped(status.prompt_limit));
    let label = "Window ";
    let room = width / BAR_PART;
    let filled = share(status.context_tokens, status.prompt_limit, room);
    let tone = if percent >= 85.0 { UiTone::Bad } else { UiTone::Assistant };
    let bar = [
        (UiTone::Strong, label.to_owned()),
        (tone, "█".repeat(filled)),
        (UiTone::Faint, "░".repeat(room - filled)),
        (UiTone::Plain, text),
        (UiTone::Faint, format!("  {remarks}")),
    ];
    canvas.line(place.x, place.y, place.width, &bar);
    let second = row(place, 1);
    if second.y >= place.bottom() {
        return;
    }
    let limit = pane.history.iter().copied().max().unwrap_or(0).max(status.prompt_limit);
    let label = "Before ";
    let room = width.saturating_sub(columns(label));
    let from = pane.history.len().saturating_sub(room);
    let levels: String = pane.history[from..]
        .iter()
        .map(|tokens| LEVELS[share(*tokens, limit, LEVELS.len() - 1)])
        .collect();
    let line = [(UiTone::Strong, label.to_owned()), (UiTone::Assistant, levels)];
    canvas.line(second.x, second.y, second.width, &line);
}

/// Returns the part of a number of columns that stands for a part of a whole.
fn share(part: u64, whole: u64, columns: usize) -> usize {
    let columns = columns as u64;
    let filled = part.saturating_mul(columns).checked_div(whole).unwrap_or(0).min(columns);
    usize::try_from(filled).unwrap_or(0)
}

/// Draws the records of a session with their branches.
pub(super) fn draw_tree(pane: &TreePane, place: Rect, canvas: &mut Canvas<'_>) {
    if pane.len() == 0 {
        let text = if pane.is_loaded() { "The session has no records yet." } else { "…" };
        let line = [(UiTone::Faint, text.to_owned())];
        canvas.line(place.x, place.y, place.width, &line);
        return;
    }
    let lines = pane.lines().enumerate().skip(pane.top());
    for (number, (at, line)) in lines.take(usize::from(place.height)).enumerate() {
        let row = row(place, number);
        draw_tree_line(&line, at == pane.selected(), row, canvas);
    }
}

fn draw_tree_line(line: &TreeLine<'_>, is_selected: bool, row: Rect, canvas: &mut Canvas<'_>) {
    let width = usize::from(row.width);
    let node = line.node;
    let cursor = if is_selected { ">" } else { " " };
    let star = if node.active { '*' } else { ' ' };
    let name = node.role.map_or_else(|| wire_name(node.kind), |role| role.as_str().to_owned());
    let label = node.label.as_deref().map(|label| format!(" [{}]", shown_line(label)));
    let mut marks = label.unwrap_or_default();
    for mark in line.marks {
        marks = format!("{marks} [{mark}]");
    }
    let here = if line.is_leaf { " <- here" } else { "" };
    // Of deep branches the end is shown.
    let prefix = clip_start(line.prefix, width / 3);
    let marks = clip(&marks, width / 2);
    let head = format!("{star} #{} ", node.seq);
    let fixed =
        columns(&head) + columns(&prefix) + columns(&name) + columns(&marks) + here.len() + 3;
    let text = clip(&shown_line(&node.text), width.saturating_sub(fixed));
    let tone = node.role.map_or(UiTone::Faint, UiTone::of_role);
    let pieces = [
        (UiTone::Plain, cursor.to_owned()),
        (UiTone::Faint, prefix),
        (UiTone::Plain, head),
        (tone, format!("{name}: ")),
        (UiTone::Plain, text),
        (UiTone::Strong, format!("{marks}{here}")),
    ];
    canvas.line(row.x, row.y, row.width, &pieces);
    if is_selected {
        canvas.select(row);
    }
}

/// Draws the events, the newest at the end.
pub(super) fn draw_events(state: &UiState, place: Rect, canvas: &mut Canvas<'_>) {
    if state.events.len() == 0 {
        let text = "Nothing has happened since the view was opened. New events appear here.";
        let text = clip(text, usize::from(place.width));
        canvas.line(place.x, place.y, place.width, &[(UiTone::Faint, text)]);
        return;
    }
    let lines = state.events.lines().enumerate().skip(state.events.top());
    for (number, (at, event)) in lines.take(usize::from(place.height)).enumerate() {
        let row = row(place, number);
        let is_selected = at == state.events.selected();
        let cursor = if is_selected { ">" } else { " " };
        let title = event.session_id.map_or_else(String::new, |id| state.title_of(id));
        let title = clip(&title, usize::from(row.width) / TITLE_PART);
        let is_live = event.session_id.is_some_and(|id| state.events.is_live(id));
        let tone = if is_live { UiTone::Live } else { UiTone::Plain };
        let pieces = [
            (UiTone::Faint, format!("{cursor}{} ", state.times.second(event.at))),
            (UiTone::Strong, if title.is_empty() { title } else { format!("{title}  ") }),
            (tone, event.text.clone()),
        ];
        canvas.line(row.x, row.y, row.width, &pieces);
        if is_selected {
            canvas.select(row);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::SESSION_ID;

    #[test]
    fn snippet_begins_near_its_first_match() {
        let check = |text: &str, matches: &[(u32, u32)], expect: &[(UiTone, &str)]| {
            let hit: SearchHit = serde_json::from_value(json!({
                "sessionId": SESSION_ID, "title": "Lists", "seq": 3, "role": "user",
                "at": "2026-01-27T09:00:00Z", "snippet": text, "matches": matches, "score": 1.0
            }))
            .unwrap();
            let pieces = snippet(&hit);
            let pieces: Vec<_> = pieces.iter().map(|(tone, text)| (*tone, text.as_str())).collect();
            assert_eq!(pieces, expect);
        };
        let (plain, found) = (UiTone::Plain, UiTone::Match);
        check("日本 foo", &[(3, 6)], &[(plain, "日本 "), (found, "foo"), (plain, "")]);
        check("a\u{1b}[31mb", &[(0, 99)], &[(plain, "ab")]);
        let long = format!("{}foo", "x".repeat(30));
        let before = "x".repeat(20);
        check(
            &long,
            &[(30, 33)],
            &[(UiTone::Faint, "…"), (plain, &before), (found, "foo"), (plain, "")],
        );
    }

    #[test]
    fn share_of_a_bar_never_exceeds_it() {
        assert_eq!(share(50, 100, 10), 5);
        assert_eq!(share(500, 100, 10), 10);
        assert_eq!(share(5, 0, 10), 0);
    }
}
