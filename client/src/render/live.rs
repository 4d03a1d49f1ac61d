//! Lines at the end of a terminal's screen that are painted again as they change, below lines that are final. Pure: returns
//! what to write.
//!
//! **Invariants**: a final line is written once, unless a changing one stood above it; nothing above the first changing
//! line is touched. The changing lines never fill the screen, so none of them is in the scrollback, where it could not be
//! painted again: if there are more, the last ones are shown until they are final. On a screen that became so narrow or
//! low that they may fill it, they stay, and are painted again below an empty line.

use std::fmt::Write as _;

use anstream::adapter::strip_str;

use super::markdown::{broken, rows_of};

/// Begins and ends an update that a terminal shows at once (DECSET 2026); others ignore it.
const UPDATE_BEGIN: &str = "\u{1b}[?2026h";
const UPDATE_END: &str = "\u{1b}[?2026l";
/// Stands for the changing lines that have no room.
const MORE_ABOVE: &str = "...";

/// The size of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScreenSize {
    /// The columns of a line.
    pub(crate) columns: usize,
    /// The lines of the screen.
    pub(crate) rows: usize,
}

/// The lines at the end of the screen that can still change.
#[derive(Debug, Default)]
pub(crate) struct LiveLines {
    /// The changing lines as they are painted; the cursor is behind the last one.
    shown: Vec<String>,
    /// The cursor is in the line below.
    is_parked: bool,
    /// The size of the screen on which they are painted.
    size: Option<ScreenSize>,
}

impl LiveLines {
    /// Returns what to write so that final lines follow the earlier final ones, and changing lines follow them.
    pub(crate) fn update(
        &mut self,
        finished: Vec<String>,
        changing: Vec<String>,
        size: ScreenSize,
    ) -> String {
        let n_finished = finished.len();
        let mut lines = finished;
        let mut out = self.left_behind(size);
        // Terminals differ in where they break a long line, so a line that is painted again has only one row.
        let changing = changing.iter().flat_map(|line| broken(line, size.columns));
        lines.extend(fitting(changing.collect(), size));
        if lines.len() == n_finished {
            // The cursor waits in a line of its own.
            lines.push(String::new());
        }
        let last = self.shown.len().max(1) - 1;
        let same = self.shown.iter().zip(&lines).take(last.min(lines.len() - 1));
        let n_same = same.take_while(|(shown, line)| shown == line).count();
        let open = self.shown.get(n_same).map_or("", String::as_str);
        if n_same == last && !self.is_parked && lines[n_same].starts_with(open) {
            out.push_str(&lines[n_same][open.len()..]);
        } else {
            out.push_str(UPDATE_BEGIN);
            out.push('\r');
            let changed = self.shown[n_same.min(self.shown.len())..].iter();
            let rows: usize = changed.map(|line| rows_on_screen(line, size)).sum();
            let up = rows.max(1) - 1 + usize::from(self.is_parked);
            if up > 0 {
                let _infallible = write!(out, "\u{1b}[{up}A");
            }
            out.push_str("\u{1b}[J");
            out.push_str(&lines[n_same]);
        }
        for line in &lines[n_same + 1..] {
            out.push('\n');
            out.push_str(line);
        }
        if out.starts_with(UPDATE_BEGIN) {
            out.push_str(UPDATE_END);
        }
        self.shown = lines.split_off(n_finished);
        self.is_parked = false;
        out
    }

    /// Forgets the changing lines, which stay as they are: the next update paints them again where the cursor is.
    pub(crate) fn forget(&mut self) {
        self.shown.clear();
        self.is_parked = false;
    }

    /// Forgets the changing lines if the screen has another size, which they may fill: some of them may be in the scrollback,
    /// and terminals differ in where they break lines then. Returns what to write so that an empty line follows them.
    fn left_behind(&mut self, size: ScreenSize) -> String {
        let is_resized = self.size.replace(size).is_some_and(|before| before != size);
        let rows: usize = self.shown.iter().map(|line| rows_on_screen(line, size)).sum();
        if !is_resized || rows < size.rows || self.shown.iter().all(String::is_empty) {
            return String::new();
        }
        let breaks = if self.is_parked { "\n" } else { "\n\n" };
        self.forget();
        breaks.to_owned()
    }

    /// Returns what to write so that another output can use the line below, until the next update.
    pub(crate) fn park(&mut self) -> &'static str {
        let is_free = self.is_parked || self.shown.iter().all(String::is_empty);
        self.is_parked |= !is_free;
        if is_free { "" } else { "\n" }
    }
}

/// Returns the last of the changing lines, which leave a line of the screen free.
fn fitting(mut lines: Vec<String>, size: ScreenSize) -> Vec<String> {
    let room = size.rows.saturating_sub(1).max(1);
    if lines.len() <= room {
        return lines;
    }
    // The mark replaces the first of them.
    let mut shown = vec![MORE_ABOVE.to_owned()];
    shown.extend(lines.split_off(lines.len() - (room - 1)));
    shown
}

fn rows_on_screen(line: &str, size: ScreenSize) -> usize {
    match line.len() <= size.columns {
        true => 1,
        false => rows_of(&strip_str(line).to_string(), size.columns),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: ScreenSize = ScreenSize { columns: 10, rows: 4 };

    fn lines(all: &[&str]) -> Vec<String> {
        all.iter().map(|line| (*line).to_owned()).collect()
    }

    #[test]
    fn only_what_changed_is_written() {
        let mut live = LiveLines::default();
        let mut check = |finished: &[&str], changing: &[&str], expect: &str| {
            let out = live.update(lines(finished), lines(changing), SIZE);
            assert_eq!(out.replace(UPDATE_BEGIN, "<").replace(UPDATE_END, ">"), expect);
        };
        check(&[], &["one"], "one");
        check(&[], &["one two"], " two");
        check(&[], &["one two", "three"], "\nthree");
        check(&["one two"], &["three four"], " four");
        check(&[], &["three", "four"], "<\r\u{1b}[Jthree\nfour>");
        check(&[], &["Three", "four"], "<\r\u{1b}[1A\u{1b}[JThree\nfour>");
        check(&[], &["Three"], "<\r\u{1b}[1A\u{1b}[JThree>");
        check(&["Three", "4"], &[], "\n4\n");
        check(&[], &[], "");
        check(&["5"], &[], "5\n");
    }

    #[test]
    fn changing_lines_leave_a_row_free_until_they_are_final() {
        let mut live = LiveLines::default();
        let all = lines(&["1", "2", "3", "4", "5"]);
        assert_eq!(live.update(Vec::new(), all.clone(), SIZE), "...\n4\n5");
        let out = live.update(all, Vec::new(), SIZE);
        assert_eq!(out, format!("{UPDATE_BEGIN}\r\u{1b}[2A\u{1b}[J1\n2\n3\n4\n5\n{UPDATE_END}"));
        let wide = lines(&["1", &"x".repeat(25)]);
        assert_eq!(live.update(Vec::new(), wide, SIZE), "...\nxxxxxxxxxx\nxxxxx");
    }

    #[test]
    fn another_output_has_the_line_below() {
        let mut live = LiveLines::default();
        assert_eq!(live.park(), "");
        live.update(Vec::new(), lines(&["one"]), SIZE);
        assert_eq!((live.park(), live.park()), ("\n", ""));
        let out = live.update(Vec::new(), lines(&["one two"]), SIZE);
        assert_eq!(out, format!("{UPDATE_BEGIN}\r\u{1b}[1A\u{1b}[Jone two{UPDATE_END}"));
    }

    #[test]
    fn lines_that_may_fill_a_narrower_screen_are_painted_again_below() {
        let number = |number: u16| std::num::NonZero::new(number).unwrap();
        let mut parser = vt100::Parser::new(number(5), number(10), 0);
        let mut live = LiveLines::default();
        let text = lines(&["aaaaa11111", "bbbbb22222", "ccccc33333", "ddddd44444"]);
        let mut paint = |parser: &mut vt100::Parser, columns: u16, open: bool| {
            let size = ScreenSize { columns: columns.into(), rows: 5 };
            let (finished, changing) =
                if open { (Vec::new(), text.clone()) } else { (text.clone(), Vec::new()) };
            let out = live.update(finished, changing, size);
            parser.process(out.replace('\n', "\r\n").as_bytes());
            parser.screen().contents()
        };
        parser.process(b"above\r\n");
        let whole = "above\naaaaa11111\nbbbbb22222\nccccc33333\nddddd44444";
        assert_eq!(paint(&mut parser, 10, true), whole);
        parser.set_size(number(5), number(5));
        assert_eq!(paint(&mut parser, 5, true), "\n...\n33333\nddddd\n44444");
        // Nothing above the copy is touched.
        assert_eq!(paint(&mut parser, 5, true), "\n...\n33333\nddddd\n44444");
        let end = paint(&mut parser, 5, false);
        // The screen joins the rows of a line.
        assert!(end.ends_with("ccccc33333\nddddd44444"), "{end:?}");
    }

    #[test]
    fn lines_have_more_rows_on_a_narrower_screen() {
        let mut live = LiveLines::default();
        live.update(Vec::new(), lines(&["one two", "three"]), SIZE);
        let narrow = ScreenSize { columns: 4, rows: 9 };
        let out = live.update(Vec::new(), lines(&["one", "two", "thre", "e"]), narrow);
        assert!(out.starts_with(&format!("{UPDATE_BEGIN}\r\u{1b}[3A\u{1b}[Jone\ntwo")), "{out:?}");
    }
}
