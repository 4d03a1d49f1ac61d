//! Tables: columns beside each other where they fit, cells with lines of their own where they nearly do, and a list of
//! named values on a narrow terminal. Pure.

use pulldown_cmark::Alignment;

use super::inline::{Look, Span, StyledLine, columns_of, faint, lay_out};

/// The longest word that a column keeps whole. If the words of all columns have no room, the table becomes a list.
const MAX_WHOLE_COLUMNS: usize = 16;
/// The longest beginning of a name that a list repeats for each row, in characters. Without a limit, a long head and
/// many rows would fill the memory.
const MAX_NAME_CHARS: usize = 60;
const SEPARATOR: &str = " │ ";
const SEPARATOR_COLUMNS: usize = 3;

/// A cell with its text.
type Cell = Vec<Span>;

/// A table; the first row is its head.
#[derive(Debug)]
pub(super) struct Grid {
    pub(super) alignments: Vec<Alignment>,
    pub(super) rows: Vec<Vec<Cell>>,
}

impl Grid {
    /// Returns the lines of the table, with styles if `is_styled` is set.
    pub(super) fn lines(mut self, width: usize, is_styled: bool) -> Vec<String> {
        let n_columns = self.alignments.len();
        for row in &mut self.rows {
            row.resize(n_columns, Cell::new());
        }
        if is_styled && let Some(head) = self.rows.first_mut() {
            head.iter_mut().flatten().for_each(|span| span.look.strong = true);
        }
        match self.widths(width) {
            Some(widths) => self.side_by_side(&widths, is_styled),
            None => self.one_below_the_other(width),
        }
    }

    /// Returns the widths of the columns; `None` if they would be too narrow.
    fn widths(&self, width: usize) -> Option<Vec<usize>> {
        let natural: Vec<usize> = (0..self.alignments.len())
            .map(|column| {
                let cells = self.rows.iter().map(|row| cell_columns(&row[column]));
                cells.max().unwrap_or(0).max(1)
            })
            .collect();
        let room = width.checked_sub(SEPARATOR_COLUMNS * natural.len().saturating_sub(1))?;
        if natural.iter().sum::<usize>() <= room {
            return Some(natural);
        }
        let words: Vec<usize> = (0..natural.len())
            .map(|column| self.rows.iter().map(|row| word_columns(&row[column])).max().unwrap_or(0))
            .collect();
        // The widest columns give way, until all fit.
        let widths = |limit: usize| {
            let columns = natural.iter().zip(&words);
            columns.map(|(own, word)| (*own).min(limit.max(*word))).collect::<Vec<_>>()
        };
        let fits = |limit: &usize| widths(*limit).iter().sum::<usize>() <= room;
        (1..=width).take_while(fits).last().map(widths)
    }

    fn side_by_side(self, widths: &[usize], is_styled: bool) -> Vec<String> {
        let rows: Vec<Vec<Vec<StyledLine>>> = self
            .rows
            .iter()
            .map(|row| row.iter().zip(widths).map(|(cell, width)| lay_out(cell, *width)).collect())
            .collect();
        let has_tall_row = rows.iter().skip(1).flatten().any(|cell| cell.len() > 1);
        let dashes: Vec<String> = widths.iter().map(|width| "─".repeat(*width)).collect();
        let rule = faint(&dashes.join("─┼─"), is_styled);
        let mut lines = Vec::new();
        for (at, cells) in rows.iter().enumerate() {
            if at == 1 || (at > 1 && has_tall_row) {
                lines.push(rule.clone());
            }
            let height = cells.iter().map(Vec::len).max().unwrap_or(0);
            for line_at in 0..height {
                let mut line = String::new();
                for (column, (cell, width)) in cells.iter().zip(widths).enumerate() {
                    if column > 0 {
                        line.push_str(&faint(SEPARATOR, is_styled));
                    }
                    let is_last = column + 1 == widths.len();
                    let empty = StyledLine::default();
                    let text = cell.get(line_at).unwrap_or(&empty);
                    line.push_str(&padded(text, *width, self.alignments[column], is_last));
                }
                lines.push(line);
            }
        }
        if rows.len() == 1 {
            lines.push(rule);
        }
        lines
    }

    fn one_below_the_other(self, width: usize) -> Vec<String> {
        let mut rows = self.rows.into_iter();
        let head = rows.next().unwrap_or_default();
        let names: Vec<Cell> = head.iter().map(shortened).collect();
        let mut lines = Vec::new();
        for row in rows {
            if !lines.is_empty() {
                lines.push(String::new());
            }
            for (name, cell) in names.iter().zip(row) {
                let mut spans = name.clone();
                spans.push(Span::new(": ", Look::PLAIN));
                spans.extend(cell);
                lines.extend(lay_out(&spans, width).into_iter().map(|line| line.text));
            }
        }
        if lines.is_empty() {
            let names = head.into_iter().flat_map(|name| lay_out(&name, width));
            lines.extend(names.map(|line| line.text));
        }
        lines
    }
}

/// Returns the beginning of a cell of the head.
fn shortened(name: &Cell) -> Cell {
    let mut room = MAX_NAME_CHARS;
    let mut shown = Cell::new();
    for span in name.iter().filter(|span| !span.text.is_empty()) {
        if let Some((end, _)) = span.text.char_indices().nth(room) {
            shown.push(Span::new(format!("{}...", &span.text[..end]), span.look));
            break;
        }
        room -= span.text.chars().count();
        shown.push(span.clone());
    }
    shown
}

/// Returns the columns of a cell whose lines are not wrapped.
fn cell_columns(cell: &Cell) -> usize {
    lay_out(cell, usize::MAX).iter().map(|line| line.columns).max().unwrap_or(0)
}

/// Returns the columns of the longest word of a cell; scripts with wide characters have no words.
fn word_columns(cell: &Cell) -> usize {
    let text: String = cell.iter().map(|span| span.text.as_str()).collect();
    let columns = |word: &str| match columns_of(word) {
        columns if columns > word.chars().count() => 2,
        columns => columns.min(MAX_WHOLE_COLUMNS),
    };
    text.split_whitespace().map(columns).max().unwrap_or(1)
}

fn padded(line: &StyledLine, width: usize, alignment: Alignment, is_last: bool) -> String {
    let missing = width.saturating_sub(line.columns);
    let before = match alignment {
        Alignment::Right => missing,
        Alignment::Center => missing / 2,
        Alignment::Left | Alignment::None => 0,
    };
    let after = if is_last { 0 } else { missing - before };
    format!("{}{}{}", " ".repeat(before), line.text, " ".repeat(after))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(width: usize) -> Vec<String> {
        let cell = |text: &str| vec![Span::new(text, Look::PLAIN)];
        let rows = [["Name", "Size"], ["a short one", "5"], ["日本", "12,000"]];
        let grid = Grid {
            alignments: vec![Alignment::None, Alignment::Right],
            rows: rows.iter().map(|row| row.iter().map(|text| cell(text)).collect()).collect(),
        };
        grid.lines(width, false)
    }

    #[test]
    fn table_fits_the_width() {
        let wide = [
            "Name        │   Size",
            "────────────┼───────",
            "a short one │      5",
            "日本        │ 12,000",
        ];
        assert_eq!(lines(20), wide);
        let tall = [
            "Name      │   Size",
            "──────────┼───────",
            "a short   │      5",
            "one       │",
            "──────────┼───────",
            "日本      │ 12,000",
        ];
        let shown: Vec<String> = lines(18).iter().map(|line| line.trim_end().to_owned()).collect();
        assert_eq!(shown, tall);
        let narrow = ["Name: a short", "one", "Size: 5", "", "Name: 日本", "Size: 12,000"];
        assert_eq!(lines(13), narrow);
    }

    #[test]
    fn long_names_are_shortened_where_they_repeat() {
        let row = |cells: [&str; 2]| cells.map(|text| vec![Span::new(text, Look::PLAIN)]).to_vec();
        let (first, second) = ("x".repeat(90), "y".repeat(MAX_NAME_CHARS));
        let grid = Grid {
            alignments: vec![Alignment::None; 2],
            rows: vec![row([&first, &second]), row(["1", "2"])],
        };
        let (x, y) = ("x".repeat(20), "y".repeat(20));
        let (x, y) = (x.as_str(), y.as_str());
        let expect = [x, x, x, "...: 1", y, y, y, ": 2"];
        assert_eq!(grid.lines(20, false), expect);
    }
}
