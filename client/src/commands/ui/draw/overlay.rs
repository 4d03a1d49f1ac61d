//! The parts of the screen over the lists: the help, and questions to the person.

use ratatui::layout::{Position, Rect};

use super::super::bindings::{ViewKind, bindings_of};
use super::super::state::UiPrompt;
use super::super::text::{UiTone, columns, wrap};
use super::{Canvas, cursor_at, row};

/// The columns of the keys in the help.
const KEY_COLUMNS: usize = 12;

/// Draws all keys of a view over the whole screen.
pub(super) fn draw_help(view: ViewKind, top: usize, canvas: &mut Canvas<'_>) {
    let place = canvas.screen;
    canvas.clear(place);
    let lines = help_lines(view, usize::from(place.width));
    let height = usize::from(place.height);
    let top = top.min(lines.len().saturating_sub(height));
    for (number, line) in lines[top..].iter().take(height).enumerate() {
        let row = row(place, number);
        canvas.line(row.x, row.y, row.width, line);
    }
}

fn help_lines(view: ViewKind, width: usize) -> Vec<Vec<(UiTone, String)>> {
    let name = match view {
        ViewKind::Sessions => "Keys of the sessions",
        ViewKind::Tree => "Keys of a tree",
        ViewKind::Events => "Keys of the events",
    };
    let mut lines = vec![
        vec![
            (UiTone::Strong, name.to_owned()),
            (UiTone::Faint, "  j k scroll, q closes".to_owned()),
        ],
        Vec::new(),
    ];
    for binding in bindings_of(view) {
        let room = width.saturating_sub(KEY_COLUMNS).max(1);
        for (number, text) in wrap(binding.help, room).into_iter().enumerate() {
            let label = if number == 0 { binding.label } else { "" };
            let gap = " ".repeat(KEY_COLUMNS.saturating_sub(columns(label)));
            lines.push(vec![(UiTone::Strong, format!("{label}{gap}")), (UiTone::Plain, text)]);
        }
    }
    if view == ViewKind::Sessions {
        lines.push(Vec::new());
        for (mark, text) in [
            ("●", "an answer is being written"),
            ("*", "pinned"),
            ("a", "archived"),
            ("!", "some records are damaged"),
        ] {
            let gap = " ".repeat(KEY_COLUMNS - 1);
            let mark = (UiTone::Strong, format!("{mark}{gap}"));
            lines.push(vec![mark, (UiTone::Plain, text.to_owned())]);
        }
    }
    lines
}

/// Draws a question above the bottom of the screen; returns the position of the cursor.
pub(super) fn draw_prompt(
    prompt: &UiPrompt,
    footer: Rect,
    canvas: &mut Canvas<'_>,
) -> Option<Position> {
    match prompt {
        UiPrompt::Rename { edit, .. } => {
            const LABEL: &str = "Title: ";
            canvas.clear(footer);
            let room = usize::from(footer.width).saturating_sub(LABEL.len());
            let (text, column) = edit.visible(room);
            let pieces = [(UiTone::Strong, LABEL.to_owned()), (UiTone::Plain, text.to_owned())];
            canvas.line(footer.x, footer.y, footer.width, &pieces);
            cursor_at(footer, LABEL.len() + column)
        }
        UiPrompt::Confirm { lines, verb, with_files, .. } => {
            let width = usize::from(footer.width);
            let files = if with_files.is_some() { " · f files too" } else { "" };
            let question =
                (UiTone::Strong, format!("y {verb}{files} · any other key changes nothing"));
            let mut shown: Vec<(UiTone, String)> = vec![(UiTone::Faint, "─".repeat(width))];
            for (tone, text) in lines.iter().chain([&question]) {
                shown.extend(wrap(text, width).into_iter().map(|line| (*tone, line)));
            }
            // On a small screen the beginning may be missing, but never the question itself.
            let height = shown.len().min(usize::from(footer.bottom()));
            let rows = u16::try_from(height).unwrap_or(footer.bottom());
            let place = Rect { y: footer.bottom() - rows, height: rows, ..footer };
            canvas.clear(place);
            for (number, line) in shown[shown.len() - height..].iter().enumerate() {
                let row = row(place, number);
                canvas.line(row.x, row.y, row.width, std::slice::from_ref(line));
            }
            None
        }
    }
}
