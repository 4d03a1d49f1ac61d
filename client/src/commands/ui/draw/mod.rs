//! Drawing: the state as a frame. Pure; `list` draws the lists of the views, `overlay` help and questions.
//!
//! **Invariant**: selection, matches and errors are told apart without colors too.

mod list;
mod overlay;

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

use super::bindings::bindings_of;
use super::layout::UiLayout;
use super::state::{DaemonLink, UiState, UiView};
use super::text::{UiLine, UiTone, clip, columns, shown_line};
use crate::render::session_table::title;
use crate::render::units::grouped;

/// The styles of the tones.
#[derive(Clone, Copy, Debug)]
pub(super) struct UiPalette {
    /// Set if colors may be used.
    pub(super) has_color: bool,
}

impl UiPalette {
    fn style(self, tone: UiTone) -> Style {
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let (color, style) = match tone {
            UiTone::Plain => return Style::new(),
            UiTone::Styled(style) if self.has_color => return style,
            UiTone::Styled(style) => return Style { fg: None, ..style },
            UiTone::Strong => return bold,
            UiTone::Faint => return Style::new().add_modifier(Modifier::DIM),
            UiTone::Match => (Color::Yellow, bold.add_modifier(Modifier::UNDERLINED)),
            UiTone::User => (Color::Cyan, bold),
            UiTone::Assistant => (Color::Green, bold),
            UiTone::Tool => (Color::Yellow, Style::new()),
            UiTone::Bad => (Color::Red, bold),
            UiTone::Live => (Color::Magenta, bold),
        };
        if self.has_color { style.fg(color) } else { style }
    }
}

/// Draws the state.
pub(super) fn draw(state: &UiState, palette: UiPalette, frame: &mut Frame<'_>) {
    // The terminal may have another size already; the state learns of it with the next input.
    let screen = frame.area();
    let layout = state.layout();
    let mut canvas = Canvas { buffer: frame.buffer_mut(), screen, palette };
    draw_header(state, layout.header, &mut canvas);
    let mut cursor = None;
    match &state.view {
        UiView::Sessions => {
            if let Some(search) = &state.search {
                cursor = list::draw_search_box(search, layout.top, &mut canvas);
                list::draw_found(state, search, layout.list, &mut canvas);
            } else {
                list::draw_sessions(state, layout.list, &mut canvas);
            }
        }
        UiView::Tree(pane) => {
            list::draw_window(pane, layout.top, &mut canvas);
            list::draw_tree(pane, layout.list, &mut canvas);
        }
        UiView::Events => list::draw_events(state, layout.list, &mut canvas),
    }
    draw_divider(state, &layout, &mut canvas);
    draw_records(state, layout.records, &mut canvas);
    draw_footer(state, layout.footer, &mut canvas);
    if let Some(prompt) = &state.prompt {
        cursor = overlay::draw_prompt(prompt, layout.footer, &mut canvas);
    }
    if let Some(top) = state.help {
        overlay::draw_help(state.view_kind(), top, &mut canvas);
        cursor = None;
    }
    if let Some(position) = cursor {
        frame.set_cursor_position(position);
    }
}

/// The screen, on which texts are written within their places.
struct Canvas<'a> {
    buffer: &'a mut Buffer,
    screen: Rect,
    palette: UiPalette,
}

impl Canvas<'_> {
    /// Writes a line into a number of columns.
    fn line(&mut self, x: u16, y: u16, width: u16, pieces: &[(UiTone, String)]) {
        let room = self.screen.right().saturating_sub(x).min(width);
        if y >= self.screen.bottom() || room == 0 {
            return;
        }
        let span =
            |(tone, text): &(UiTone, String)| Span::styled(text.clone(), self.palette.style(*tone));
        let line = Line::from(pieces.iter().map(span).collect::<Vec<_>>());
        self.buffer.set_line(x, y, &line, room);
    }

    /// Writes a text so that it ends at the right of a place.
    fn right(&mut self, place: Rect, tone: UiTone, text: &str) {
        let width = u16::try_from(columns(text)).unwrap_or(u16::MAX).min(place.width);
        self.line(place.right() - width, place.y, width, &[(tone, text.to_owned())]);
    }

    /// Shows a row as the selected one.
    fn select(&mut self, row: Rect) {
        let row = row.intersection(self.screen);
        self.buffer.set_style(row, Style::new().add_modifier(Modifier::REVERSED));
    }

    /// Removes everything from a place.
    fn clear(&mut self, place: Rect) {
        let place = place.intersection(self.screen);
        for y in place.top()..place.bottom() {
            for x in place.left()..place.right() {
                if let Some(cell) = self.buffer.cell_mut((x, y)) {
                    cell.reset();
                }
            }
        }
    }
}

/// Returns a row of a place, by its number.
fn row(place: Rect, number: usize) -> Rect {
    let offset = u16::try_from(number).unwrap_or(u16::MAX);
    Rect { y: place.y.saturating_add(offset), height: 1, ..place }
}

fn draw_header(state: &UiState, place: Rect, canvas: &mut Canvas<'_>) {
    if place.is_empty() {
        return;
    }
    let width = usize::from(place.width);
    let live = state.events.n_live();
    let mut states = Vec::new();
    if live > 0 {
        states.push((UiTone::Live, format!("{live} answering")));
    }
    if state.is_behind {
        states.push((UiTone::Faint, "the catalog is being read".to_owned()));
    }
    match state.link {
        DaemonLink::Connecting => states.push((UiTone::Faint, "connecting…".to_owned())),
        DaemonLink::Lost => states.push((UiTone::Bad, "ollmd has stopped, R starts it".to_owned())),
        DaemonLink::Online => {}
    }
    let used: usize = states.iter().map(|(_, text)| columns(text) + 2).sum();
    let heading = clip(&heading(state), width.saturating_sub(used));
    canvas.line(place.x, place.y, place.width, &[(UiTone::Strong, heading)]);
    let mut rest = place;
    for (tone, text) in states.iter().rev() {
        canvas.right(rest, *tone, text);
        let taken = u16::try_from(columns(text) + 2).unwrap_or(u16::MAX);
        rest.width = rest.width.saturating_sub(taken);
    }
}

fn heading(state: &UiState) -> String {
    match &state.view {
        UiView::Tree(pane) => title(&pane.session.title),
        UiView::Events => "Events".to_owned(),
        UiView::Sessions => {
            let kind = if state.is_archive { "Archived sessions" } else { "Sessions" };
            match state.project.as_ref().filter(|_| state.is_of_project) {
                Some(project) => {
                    format!("{kind} of {}{}", shown_line(&project.name), number_of(state))
                }
                None => format!("{kind} of all projects{}", number_of(state)),
            }
        }
    }
}

/// Returns the number of sessions, as far as it is known.
fn number_of(state: &UiState) -> String {
    match (state.list.has_more(), grouped(state.list.len() as u64)) {
        _ if !state.list.is_loaded() => String::new(),
        ((false, false), number) => format!(" · {number}"),
        ((false, true), number) => format!(" · more than {number}"),
        ((true, _), _) => String::new(),
    }
}

fn draw_divider(state: &UiState, layout: &UiLayout, canvas: &mut Canvas<'_>) {
    let place = layout.divider;
    if place.is_empty() {
        return;
    }
    if layout.is_wide() {
        for number in 0..usize::from(place.height) {
            let row = row(place, number);
            canvas.line(row.x, row.y, 1, &[(UiTone::Faint, "│".to_owned())]);
        }
        return;
    }
    let mut text = String::new();
    if let Some(target) = state.target() {
        let seq = target.seq.map_or_else(String::new, |seq| format!(" #{seq}"));
        text = format!("── {}{seq} ", state.title_of(target.session_id));
    }
    let width = usize::from(place.width);
    let (above, below) = state.records.has_more();
    let more = if !text.is_empty() && (above || below) { " K J scroll" } else { "" };
    let text = clip(&text, width.saturating_sub(more.len()));
    let rest = "─".repeat(width.saturating_sub(columns(&text) + more.len()));
    let line = [(UiTone::Faint, format!("{text}{rest}{more}"))];
    canvas.line(place.x, place.y, place.width, &line);
}

fn draw_records(state: &UiState, place: Rect, canvas: &mut Canvas<'_>) {
    if place.is_empty() {
        return;
    }
    if let Some(problem) = &state.records.problem {
        let line = [(UiTone::Bad, problem.clone())];
        canvas.line(place.x, place.y, place.width, &line);
        return;
    }
    for (number, UiLine(pieces)) in state.records.visible(state.target()).iter().enumerate() {
        let row = row(place, number);
        canvas.line(row.x, row.y, row.width, pieces);
    }
}

/// Draws the remark, or the keys that fit.
fn draw_footer(state: &UiState, place: Rect, canvas: &mut Canvas<'_>) {
    if place.is_empty() {
        return;
    }
    if let Some(remark) = &state.remark {
        let text = clip(&remark.text, usize::from(place.width));
        canvas.line(place.x, place.y, place.width, &[(remark.tone, text)]);
        return;
    }
    let is_typed = state.is_search_edited();
    let mut hints: Vec<(&str, &str)> = bindings_of(state.view_kind())
        .filter(|binding| !binding.hint.is_empty())
        .map(|binding| (binding.label, binding.hint))
        .collect();
    if is_typed {
        hints = vec![("Enter", "chat"), ("Tab", "other keys"), ("Esc", "back")];
    } else if !matches!(state.view, UiView::Sessions) || state.search.is_some() {
        hints.insert(1, ("Esc", "back"));
    }
    let last = [("?", "help"), ("q", "quit")];
    let last = if is_typed { &last[..0] } else { &last[..] };
    let hint_columns = |(key, hint): &(&str, &str)| columns(key) + columns(hint) + 3;
    let mut room = usize::from(place.width) + 2;
    room = room.saturating_sub(last.iter().map(hint_columns).sum());
    let mut shown: Vec<(&str, &str)> = Vec::new();
    for hint in hints {
        let Some(left) = room.checked_sub(hint_columns(&hint)) else { break };
        room = left;
        shown.push(hint);
    }
    let mut pieces = Vec::new();
    for (key, hint) in shown.into_iter().chain(last.iter().copied()) {
        pieces.push((UiTone::Strong, key.to_owned()));
        pieces.push((UiTone::Faint, format!(" {hint}  ")));
    }
    canvas.line(place.x, place.y, place.width, &pieces);
}

/// Returns the position of a cursor, if it lies within a place.
fn cursor_at(place: Rect, column: usize) -> Option<Position> {
    let x = place.x.checked_add(u16::try_from(column).ok()?)?;
    (x < place.right()).then_some(Position { x, y: place.y })
}
