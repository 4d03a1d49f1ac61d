//! The places of the parts of the screen, which follow from its size alone. Pure.
//!
//! **Invariant**: every part lies on the screen, however small that is; the list has the last row that is left.

use ratatui::layout::Rect;

/// The columns from which on the records stand beside the list and not below it.
const WIDE_COLUMNS: u16 = 110;
/// The rows for list and records from which on both are shown.
const MIN_BODY_ROWS: u16 = 9;
/// The share of the list, in percent.
const LIST_PERCENT: u16 = 45;
/// The fewest rows of a list above records.
const MIN_LIST_ROWS: u16 = 4;

/// The places of the parts of the screen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct UiLayout {
    pub(super) header: Rect,
    /// Lines below the header: the text of a search, or the window of a session.
    pub(super) top: Rect,
    pub(super) list: Rect,
    /// The line or column between list and records.
    pub(super) divider: Rect,
    /// The records; empty if there is no room for them.
    pub(super) records: Rect,
    pub(super) footer: Rect,
}

impl UiLayout {
    /// Returns the places on a screen of a size, with a number of rows below the header.
    pub(super) fn new((width, height): (u16, u16), top_rows: u16) -> Self {
        let mut rest = Rect::new(0, 0, width, height);
        // The list keeps at least one row; then the footer, the header and the top lines get theirs.
        let mut take = |rows: u16, from_end: bool| {
            let rows = rows.min(rest.height.saturating_sub(1));
            let y = if from_end { rest.bottom() - rows } else { rest.y };
            let part = Rect { y, height: rows, ..rest };
            rest.height -= rows;
            rest.y += if from_end { 0 } else { rows };
            part
        };
        let footer = take(1, true);
        let header = take(1, false);
        let top = take(top_rows, false);
        let mut layout = Self { header, top, list: rest, footer, ..Self::default() };
        if rest.height < MIN_BODY_ROWS {
            return layout;
        }
        if width >= WIDE_COLUMNS {
            let columns = share(rest.width);
            layout.list.width = columns;
            layout.divider = Rect { x: columns, width: 1, ..rest };
            layout.records = Rect { x: columns + 2, width: rest.width - columns - 2, ..rest };
        } else {
            let rows = share(rest.height).max(MIN_LIST_ROWS);
            layout.list.height = rows;
            layout.divider = Rect { y: rest.y + rows, height: 1, ..rest };
            layout.records = Rect { y: rest.y + rows + 1, height: rest.height - rows - 1, ..rest };
        }
        layout
    }

    /// Returns whether the records stand beside the list.
    pub(super) fn is_wide(&self) -> bool {
        self.divider.width == 1
    }
}

fn share(all: u16) -> u16 {
    u16::try_from(u32::from(all) * u32::from(LIST_PERCENT) / 100).unwrap_or(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_lie_on_the_screen_and_do_not_overlap() {
        for width in 0..130 {
            for height in 0..40 {
                for top_rows in 0..3 {
                    let layout = UiLayout::new((width, height), top_rows);
                    let UiLayout { header, top, list, divider, records, footer } = layout;
                    let parts = [header, top, list, divider, records, footer];
                    let screen = Rect::new(0, 0, width, height);
                    for (at, part) in parts.iter().enumerate() {
                        let is_inside = part.is_empty() || screen.union(*part) == screen;
                        assert!(is_inside, "{width}x{height}: {layout:?}");
                        let is_alone = |other: &Rect| !part.intersects(*other) || part.is_empty();
                        assert!(
                            parts[at + 1..].iter().all(is_alone),
                            "{width}x{height}: {layout:?}"
                        );
                    }
                    assert_eq!(list.height > 0, height > 0);
                }
            }
        }
    }

    #[test]
    fn records_stand_beside_or_below_the_list_or_nowhere() {
        assert!(UiLayout::new((200, 50), 0).is_wide());
        let layout = UiLayout::new((80, 24), 1);
        assert_eq!((layout.list.height, layout.records.height, layout.is_wide()), (9, 11, false));
        let layout = UiLayout::new((40, 20), 0);
        assert_eq!((layout.list.height, layout.records.height), (8, 9));
        assert!(UiLayout::new((80, 10), 0).records.is_empty());
    }
}
