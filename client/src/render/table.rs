//! Tables without lines, cut to the width of the terminal. Pure.

use comfy_table::{
    Attribute, Cell, CellAlignment, ColumnConstraint, ContentArrangement, Row, Table, presets,
};

/// A character that no clean text has.
const NEVER: char = '\0';

/// How a column behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Column {
    /// Words: left, as wide as needed.
    Word,
    /// Numbers: right, as wide as needed.
    Number,
    /// Prose: left, cut where the table would become too wide.
    Prose,
}

/// A table of one line a row. Cells are already clean; wide characters count as two columns.
pub(crate) fn render(width: usize, columns: &[(&str, Column)], rows: &[Vec<String>]) -> String {
    let mut table = lineless(width);
    table.enforce_styling().style_text_only();
    let names = columns.iter().map(|(name, _)| Cell::new(name).add_attribute(Attribute::Bold));
    let mut header: Row = names.collect::<Vec<_>>().into();
    header.max_height(1);
    table.set_header(header);
    for row in rows {
        let mut line = Row::from(row);
        line.max_height(1);
        table.add_row(line);
    }
    for (at, (_, kind)) in columns.iter().enumerate() {
        let Some(column) = table.column_mut(at) else { continue };
        column.set_padding((0, if at + 1 == columns.len() { 0 } else { 2 }));
        if *kind != Column::Prose {
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
        if *kind == Column::Number {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut out = table.trim_fmt();
    out.push('\n');
    out
}

/// A text that is no wider than so many columns, with an ellipsis where it was cut; it is already clean.
pub(crate) fn clip(text: &str, width: usize) -> String {
    let mut table = lineless(width.max(1));
    let mut line = Row::from([text]);
    line.max_height(1);
    table.add_row(line);
    if let Some(column) = table.column_mut(0) {
        column.set_padding((0, 0));
    }
    table.trim_fmt()
}

/// Without lines, and without a wish to break between words: what follows a break would not be shown.
fn lineless(width: usize) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(u16::try_from(width).unwrap_or(u16::MAX))
        .set_delimiter(NEVER);
    table
}

/// Names and values in two columns, for one thing.
pub(crate) fn fields(rows: &[(&str, String)]) -> String {
    let widest = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    rows.iter().map(|(name, value)| format!("{name:<widest$}  {value}\n")).collect()
}

#[cfg(test)]
mod tests {
    use anstream::adapter::strip_str;

    use super::*;

    #[test]
    fn prose_is_cut_where_its_column_ends_and_not_at_a_word() {
        let cell = "alright, read the configuration and tell me".to_owned();
        let rows = [vec!["0192f0c1".to_owned(), cell]];
        let columns = [("ID", Column::Word), ("TITLE", Column::Prose)];
        let text = strip_str(&render(40, &columns, &rows)).to_string();
        assert_eq!(text.lines().nth(1), Some("0192f0c1  alright, read the configurati…"));
    }

    #[test]
    fn a_clipped_text_fills_its_columns() {
        let check = |text: &str, width, expect: &str| assert_eq!(clip(text, width), expect);
        check("short", 5, "short");
        check("too long a text", 8, "too lon…");
        check("設定ファイル", 12, "設定ファイル");
        check("設定ファイル", 6, "設定…");
        check("", 5, "");
    }
}
