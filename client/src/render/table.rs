//! Tables without lines, cut to the width of the terminal. Pure.

use comfy_table::{
    Attribute, Cell, CellAlignment, ColumnConstraint, ContentArrangement, Row, Table, presets,
};

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
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(u16::try_from(width).unwrap_or(u16::MAX))
        .enforce_styling()
        .style_text_only();
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
        column.set_padding((0, 2));
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

/// Names and values in two columns, for one thing.
pub(crate) fn fields(rows: &[(&str, String)]) -> String {
    let widest = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    rows.iter().map(|(name, value)| format!("{name:<widest$}  {value}\n")).collect()
}
