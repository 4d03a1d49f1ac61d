//! Tables without lines, cut to the width of the terminal. Pure; cells are already sanitized.

use comfy_table::{
    Attribute, Cell, CellAlignment, ColumnConstraint, ContentArrangement, Row, Table, presets,
};
use unicode_width::UnicodeWidthChar as _;

use super::markdown::columns_of;
use super::wrap::wrap;

/// A word delimiter that sanitized text does not contain, so that cells are cut at any character: text after a break
/// between words would not be shown.
const NO_DELIMITER: char = '\0';

/// The narrowest column of values beside their names.
const MIN_VALUE_COLUMNS: usize = 30;

/// The alignment and width of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TableColumn {
    /// Left-aligned, as wide as needed.
    Word,
    /// Right-aligned, as wide as needed.
    Number,
    /// Left-aligned, cut if the table would become too wide.
    Prose,
}

/// Returns a table with one line for each row. Wide characters count as two columns.
pub(crate) fn render(
    width: usize,
    columns: &[(&str, TableColumn)],
    rows: impl IntoIterator<Item = impl IntoIterator<Item = String>>,
) -> String {
    let mut table = borderless(width);
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
        if *kind != TableColumn::Prose {
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
        if *kind == TableColumn::Number {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut out = table.trim_fmt();
    out.push('\n');
    out
}

/// Cuts a text to a number of columns, with an ellipsis at the cut.
pub(crate) fn clip(text: &str, width: usize) -> String {
    if columns_of(text) <= width {
        return text.to_owned();
    }
    let mut cut = String::new();
    let mut column = 0;
    for char in text.chars() {
        // A narrow picture is wide before this character, which has no columns alone.
        column += if char == '\u{fe0f}' { 1 } else { char.width().unwrap_or(0) };
        if column >= width {
            break;
        }
        cut.push(char);
    }
    if width > 0 {
        cut.push('…');
    }
    cut
}

fn borderless(width: usize) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(u16::try_from(width).unwrap_or(u16::MAX))
        .set_delimiter(NO_DELIMITER);
    table
}

/// Returns the fields of one thing as names and values in two columns.
pub(crate) fn fields(rows: &[(&str, String)]) -> String {
    let widest = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    rows.iter().map(|(name, value)| format!("{name:<widest$}  {value}\n")).collect()
}

/// Returns the same as [`fields`] with the values wrapped between words at a width, if one is given.
pub(crate) fn wrapped_fields(rows: &[(&str, String)], width: Option<usize>) -> String {
    let names = rows.iter().map(|(name, _)| name.len() + 2).max().unwrap_or(0);
    let Some(room) = width.map(|width| width.saturating_sub(names)) else { return fields(rows) };
    if room >= MIN_VALUE_COLUMNS {
        let margin = format!("\n{}", " ".repeat(names));
        let value = |value: &String| wrap(value, Some(room), 0).replace('\n', &margin);
        let rows: Vec<_> = rows.iter().map(|(name, text)| (*name, value(text))).collect();
        return fields(&rows);
    }
    // The values have lines of their own.
    let row = |(name, value): &(&str, String)| {
        format!("{name}\n{}\n", wrap(&format!("    {value}"), width, 0))
    };
    rows.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::plain;

    #[test]
    fn prose_is_cut_at_the_end_of_its_column() {
        let cell = "alright, read the configuration and tell me".to_owned();
        let rows = [vec!["0192f0c1".to_owned(), cell]];
        let columns = [("ID", TableColumn::Word), ("TITLE", TableColumn::Prose)];
        let text = plain(&render(40, &columns, rows));
        assert_eq!(text.lines().nth(1), Some("0192f0c1  alright, read the configurati…"));
    }

    #[test]
    fn clipped_text_fills_its_columns() {
        let check = |text: &str, width, expect: &str| assert_eq!(clip(text, width), expect);
        check("short", 5, "short");
        check("longer", 5, "long…");
        check("too long a text", 8, "too lon…");
        check("設定ファイル", 12, "設定ファイル");
        check("設定ファイル", 6, "設定…");
        check("", 5, "");
        check("any", 0, "");
        assert!(columns_of(&clip(&"\u{2764}\u{fe0f}".repeat(9), 6)) <= 6);
    }

    #[test]
    fn fields_are_wrapped_beside_or_below_their_names() {
        let rows = [("/undo [N]", "undo the last turn or change, or N of them".to_owned())];
        assert_eq!(wrapped_fields(&rows, None), fields(&rows));
        let beside = "/undo [N]  undo the last turn or change,\n           or N of them\n";
        assert_eq!(wrapped_fields(&rows, Some(42)), beside);
        let below = "/undo [N]\n    undo the last turn or change, or\n    N of them\n";
        assert_eq!(wrapped_fields(&rows, Some(36)), below);
    }
}
