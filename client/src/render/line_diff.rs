//! The differences of two short texts, line by line. Pure.

use ollm_protocol::sanitize;

use super::Style;

/// The most lines of each text that are compared: the table of a comparison grows with their product.
const MAX_LINES: usize = 1500;
/// The unchanged lines that are shown before and behind changed ones.
const AROUND: usize = 2;

/// A line of both texts or of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DiffLine<'a> {
    Both(&'a str),
    Removed(&'a str),
    Added(&'a str),
}

/// Returns the lines that differ, with `-` and `+`, and the lines around them.
pub(crate) fn render_diff(before: &str, after: &str) -> Vec<String> {
    let lines = compare(before, after);
    let is_changed = |at: usize| !matches!(lines[at], DiffLine::Both(_));
    let near =
        |at: usize| (at.saturating_sub(AROUND)..lines.len().min(at + AROUND + 1)).any(is_changed);
    let mut shown = Vec::new();
    let mut is_gap = false;
    for (at, line) in lines.iter().enumerate() {
        if !near(at) {
            is_gap = true;
            continue;
        }
        if std::mem::take(&mut is_gap) {
            shown.push(Style::Faint.paint("..."));
        }
        shown.push(match line {
            DiffLine::Both(line) => format!("  {}", visible(line)),
            DiffLine::Removed(line) => Style::Bad.paint(&format!("- {}", visible(line))),
            DiffLine::Added(line) => Style::Strong.paint(&format!("+ {}", visible(line))),
        });
    }
    shown
}

/// Returns a line as a terminal may show it, and with everything that it has: a program obeys also what stands in an escape
/// sequence, so characters that a terminal would obey are shown as `\u{1b}`.
pub(crate) fn visible(line: &str) -> String {
    let mut shown = String::with_capacity(line.len());
    for char in line.chars() {
        match char {
            '\t' => shown.push_str("    "),
            char if sanitize::is_unsafe(char) => shown.extend(char.escape_unicode()),
            char => shown.push(char),
        }
    }
    shown
}

/// Compares two texts by their longest common lines. Of long texts, everything between the first and the last difference
/// counts as replaced.
fn compare<'a>(before: &'a str, after: &'a str) -> Vec<DiffLine<'a>> {
    let (old, new): (Vec<&str>, Vec<&str>) = (before.lines().collect(), after.lines().collect());
    let n_start = old.iter().zip(&new).take_while(|(old, new)| old == new).count();
    let (old_rest, new_rest) = (&old[n_start..], &new[n_start..]);
    let same_end = old_rest.iter().rev().zip(new_rest.iter().rev());
    let n_end = same_end.take_while(|(old, new)| old == new).count();
    let old_middle = &old_rest[..old_rest.len() - n_end];
    let new_middle = &new_rest[..new_rest.len() - n_end];
    let mut lines: Vec<_> = old[..n_start].iter().map(|line| DiffLine::Both(line)).collect();
    if old_middle.len().max(new_middle.len()) > MAX_LINES {
        lines.extend(old_middle.iter().map(|line| DiffLine::Removed(line)));
        lines.extend(new_middle.iter().map(|line| DiffLine::Added(line)));
    } else {
        lines.extend(common(old_middle, new_middle));
    }
    lines.extend(old_rest[old_middle.len()..].iter().map(|line| DiffLine::Both(line)));
    lines
}

fn common<'a>(old: &[&'a str], new: &[&'a str]) -> Vec<DiffLine<'a>> {
    // The lengths of the longest common lines behind each pair of positions.
    let mut lengths = vec![vec![0_u32; new.len() + 1]; old.len() + 1];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            lengths[i][j] = match old[i] == new[j] {
                true => lengths[i + 1][j + 1] + 1,
                false => lengths[i + 1][j].max(lengths[i][j + 1]),
            };
        }
    }
    let (mut i, mut j, mut lines) = (0, 0, Vec::new());
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            lines.push(DiffLine::Both(old[i]));
            (i, j) = (i + 1, j + 1);
        } else if j == new.len() || i < old.len() && lengths[i + 1][j] >= lengths[i][j + 1] {
            lines.push(DiffLine::Removed(old[i]));
            i += 1;
        } else {
            lines.push(DiffLine::Added(new[j]));
            j += 1;
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::plain;

    fn check(before: &str, after: &str, expected: &[&str]) {
        let shown: Vec<String> =
            render_diff(before, after).iter().map(|line| plain(line)).collect();
        assert_eq!(shown, expected, "{before:?} {after:?}");
    }

    #[test]
    fn changed_lines_are_shown_with_those_around_them() {
        check("a\n", "a\n", &[]);
        check("", "a\nb\n", &["+ a", "+ b"]);
        check(
            "1\n2\n3\n4\n5\n6\n7",
            "1\n2\n3\n4\nx\n6\n7",
            &["...", "  3", "  4", "- 5", "+ x", "  6", "  7"],
        );
        check("a\nb\nc", "a\nc\nd", &["  a", "- b", "  c", "+ d"]);
        check("\tx\u{1b}[2Jy", "", &["-     x\\u{1b}[2Jy"]);
        check("", "ls \u{1b}]0;; rm -rf ~ #\u{7}", &["+ ls \\u{1b}]0;; rm -rf ~ #\\u{7}"]);
    }

    #[test]
    fn long_texts_are_replaced_as_a_whole() {
        let long = |from: usize| {
            (from..from + MAX_LINES + 1).map(|n| format!("{n}\n")).collect::<String>()
        };
        let lines = compare("", "").len() + render_diff(&long(0), &long(10_000)).len();
        assert_eq!(lines, 2 * (MAX_LINES + 1));
    }
}
