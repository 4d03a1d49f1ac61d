//! Text with looks on lines of a number of columns: words stay whole, wide characters part anywhere. Pure.
//!
//! **Invariants**: no line but that of a single cluster is wider than the columns; a line ends every look that it begins;
//! a longer text changes at most the last line of a shorter one.

use std::borrow::Cow;

use anstream::adapter::strip_str;
use ollm_protocol::sanitize::is_unsafe;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// Characters that begin no line: closing punctuation of scripts without spaces.
const NEVER_FIRST: &str = "、。，．！？：；）」』】〉》〕ー々・…,.!?:;)]}%";
/// Characters that end no line.
const NEVER_LAST: &str = "（「『【〈《〔([{";

/// Begins an escape sequence.
const ESCAPE: char = '\u{1b}';
/// Ends a look.
const RESET: &str = "\u{1b}[0m";

/// The appearance of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Look {
    pub(super) strong: bool,
    pub(super) faint: bool,
    pub(super) emphasis: bool,
    pub(super) underlined: bool,
    pub(super) struck: bool,
    /// The number of the foreground in SGR; a color of the palette of 16.
    pub(super) color: Option<u8>,
}

/// A text with one look. `\n` ends a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) text: String,
    pub(super) look: Look,
}

/// A line with its escape sequences.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct StyledLine {
    pub(super) text: String,
    pub(super) columns: usize,
}

impl Look {
    pub(super) const FAINT: Self = Self { faint: true, ..Self::PLAIN };
    pub(super) const PLAIN: Self = Self {
        strong: false,
        faint: false,
        emphasis: false,
        underlined: false,
        struck: false,
        color: None,
    };

    /// Returns a text between the escape sequences of the look.
    pub(super) fn paint(self, text: &str) -> String {
        if self == Self::PLAIN || text.is_empty() {
            return text.to_owned();
        }
        let flags = [
            (self.strong, 1),
            (self.faint, 2),
            (self.emphasis, 3),
            (self.underlined, 4),
            (self.struck, 9),
        ];
        let codes = flags.into_iter().filter_map(|(on, code)| on.then_some(code)).chain(self.color);
        let codes: Vec<String> = codes.map(|code: u8| code.to_string()).collect();
        format!("{ESCAPE}[{}m{text}{RESET}", codes.join(";"))
    }
}

impl Span {
    pub(super) fn new(text: impl Into<String>, look: Look) -> Self {
        Self { text: text.into(), look }
    }
}

/// Returns a text with the faint look, if styles are shown.
pub(super) fn faint(text: &str, is_styled: bool) -> String {
    if is_styled { Look::FAINT.paint(text) } else { text.to_owned() }
}

/// Removes characters that a terminal would obey, which Markdown can name by their numbers (`&#27;`).
pub(super) fn harmless(text: &str) -> Cow<'_, str> {
    if !text.chars().any(|char| char == '\t' || char == '\n' || is_unsafe(char)) {
        return Cow::Borrowed(text);
    }
    let chars = text.chars().filter(|char| !is_unsafe(*char));
    Cow::Owned(chars.map(|char| if matches!(char, '\t' | '\n') { ' ' } else { char }).collect())
}

/// A character with everything that joins it, which no line parts.
#[derive(Clone, Copy, Debug)]
struct Cluster<'a> {
    text: &'a str,
    columns: usize,
    look: Look,
}

impl Cluster<'_> {
    fn first(&self) -> char {
        self.text.chars().next().unwrap_or(' ')
    }
}

/// Returns the clusters of a text with their columns. Terminals differ in pictures of several characters: the greater
/// width is assumed, so that no line is too long.
fn clusters(text: &str, look: Look) -> impl Iterator<Item = Cluster<'_>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let mut end = first.len_utf8();
        let mut previous = first;
        for char in rest[end..].chars() {
            if !joins(previous, char, end == first.len_utf8()) {
                break;
            }
            end += char.len_utf8();
            previous = char;
        }
        let (text, after) = rest.split_at(end);
        rest = after;
        let by_char: usize = text.chars().filter_map(|char| char.width()).sum();
        Some(Cluster { text, columns: by_char.max(text.width()), look })
    })
}

/// Returns whether a character belongs to the one before it, which may be the first of its cluster.
fn joins(previous: char, char: char, is_second: bool) -> bool {
    let is_flag = |char: char| matches!(char, '\u{1f1e6}'..='\u{1f1ff}');
    if previous == '\n' || char == '\n' || previous == ' ' && char != '\u{fe0f}' {
        return false;
    }
    previous == '\u{200d}' && !char.is_ascii()
        || matches!(char, '\u{1f3fb}'..='\u{1f3ff}')
        || char.width() == Some(0)
        || is_second && is_flag(previous) && is_flag(char)
}

/// Returns the columns of a text without escape sequences.
pub(crate) fn columns_of(text: &str) -> usize {
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return text.len();
    }
    clusters(text, Look::PLAIN).map(|cluster| cluster.columns).sum()
}

/// Returns the columns of a text with escape sequences.
pub(crate) fn columns_of_styled(text: &str) -> usize {
    columns_of(&strip_str(text).to_string())
}

/// Returns the rows that a text without escape sequences takes on a terminal that wraps it at a number of columns.
pub(crate) fn rows_of(text: &str, width: usize) -> usize {
    if text.len() <= width {
        return 1;
    }
    let (mut rows, mut column) = (1, 0);
    for cluster in clusters(text, Look::PLAIN) {
        if column + cluster.columns > width && column > 0 {
            (rows, column) = (rows + 1, 0);
        }
        column += cluster.columns;
    }
    rows
}

/// Breaks a line with escape sequences after each `width` columns, where a terminal would break it sooner or later.
pub(crate) fn broken(line: &str, width: usize) -> Vec<String> {
    let (mut lines, mut text, mut column) = (Vec::new(), String::new(), 0);
    let mut look = "";
    let mut rest = line;
    while !rest.is_empty() {
        let (part, after) = match rest.strip_prefix(ESCAPE) {
            // A look ends with its `m`.
            Some(sequence) => rest.split_at(sequence.find('m').map_or(rest.len(), |at| at + 2)),
            None => rest.split_at(rest.find(ESCAPE).unwrap_or(rest.len())),
        };
        rest = after;
        if part.starts_with(ESCAPE) {
            look = if part == RESET { "" } else { part };
            text.push_str(part);
            continue;
        }
        for cluster in clusters(part, Look::PLAIN) {
            if column + cluster.columns > width && column > 0 {
                text.push_str(if look.is_empty() { "" } else { RESET });
                lines.push(std::mem::replace(&mut text, look.to_owned()));
                column = 0;
            }
            text.push_str(cluster.text);
            column += cluster.columns;
        }
    }
    lines.push(text);
    lines
}

/// Breaks each line of a text between words at a number of columns; a word that is wider is broken anywhere.
pub(crate) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let lines = text.split('\n').flat_map(|line| lay_out(&[Span::new(line, Look::PLAIN)], width));
    lines.map(|line| line.text).collect()
}

/// Lays spans out on lines of `width` columns.
pub(super) fn lay_out(spans: &[Span], width: usize) -> Vec<StyledLine> {
    let mut layout = LineLayout { width: width.max(1), ..LineLayout::default() };
    for cluster in spans.iter().flat_map(|span| clusters(&span.text, span.look)) {
        layout.add(cluster);
    }
    layout.finish()
}

#[derive(Default)]
struct LineLayout<'a> {
    width: usize,
    lines: Vec<StyledLine>,
    line: LineBuilder,
    /// The spaces before the word.
    space: Vec<Cluster<'a>>,
    word: Vec<Cluster<'a>>,
    /// The line begins after a line break that the width made, so that spaces before its first word are left out.
    is_wrapped: bool,
}

impl<'a> LineLayout<'a> {
    fn add(&mut self, cluster: Cluster<'a>) {
        match cluster.first() {
            '\n' => {
                self.end_word();
                self.space.clear();
                self.end_line();
                self.is_wrapped = false;
            }
            ' ' => {
                self.end_word();
                self.space.push(cluster);
            }
            _ => {
                if self.word.last().is_some_and(|last| may_part(last, &cluster)) {
                    self.end_word();
                }
                self.word.push(cluster);
            }
        }
    }

    /// Moves the word to the line, or to the next one if this one has no room for it. Parts a word that is wider than a
    /// line.
    fn end_word(&mut self) {
        if self.word.is_empty() {
            return;
        }
        let columns = |all: &[Cluster<'_>]| all.iter().map(|one| one.columns).sum::<usize>();
        let has_room = self.line.columns + columns(&self.space) + columns(&self.word) <= self.width;
        if !has_room && self.line.columns > 0 {
            self.space.clear();
            self.end_line();
            self.is_wrapped = true;
        }
        if self.line.columns > 0 || !self.is_wrapped {
            for space in std::mem::take(&mut self.space) {
                self.line.push(&space);
            }
        }
        self.space.clear();
        for cluster in std::mem::take(&mut self.word) {
            if self.line.columns + cluster.columns > self.width && self.line.columns > 0 {
                self.end_line();
                self.is_wrapped = true;
            }
            self.line.push(&cluster);
        }
    }

    fn end_line(&mut self) {
        self.lines.push(std::mem::take(&mut self.line).finish());
    }

    fn finish(mut self) -> Vec<StyledLine> {
        self.end_word();
        if self.line.columns > 0 || self.lines.is_empty() {
            self.end_line();
        }
        self.lines
    }
}

/// Returns whether a line may end between two clusters of a text without spaces.
fn may_part(before: &Cluster<'_>, after: &Cluster<'_>) -> bool {
    let has_wide = before.columns > 1 || after.columns > 1;
    has_wide && !NEVER_LAST.contains(before.first()) && !NEVER_FIRST.contains(after.first())
}

/// A line that joins clusters of one look.
#[derive(Default)]
struct LineBuilder {
    text: String,
    open: String,
    look: Look,
    columns: usize,
}

impl LineBuilder {
    fn push(&mut self, cluster: &Cluster<'_>) {
        if self.look != cluster.look {
            self.close();
            self.look = cluster.look;
        }
        self.open.push_str(cluster.text);
        self.columns += cluster.columns;
    }

    fn close(&mut self) {
        self.text.push_str(&self.look.paint(&self.open));
        self.open.clear();
    }

    fn finish(mut self) -> StyledLine {
        self.close();
        StyledLine { text: self.text, columns: self.columns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_between_words_and_between_wide_characters() {
        let check = |text: &str, width: usize, expect: &str| {
            let lines = lay_out(&[Span::new(text, Look::PLAIN)], width);
            let lines: Vec<String> = lines.into_iter().map(|line| line.text).collect();
            assert_eq!(lines.join("\n"), expect, "{text}");
        };
        check("exactly twenty here.", 20, "exactly twenty here.");
        check("a line that is longer than twenty", 20, "a line that is\nlonger than twenty");
        check("  indented words that wrap", 20, "  indented words\nthat wrap");
        check("averyveryverylongword x", 10, "averyveryv\nerylongwor\nd x");
        check("日本語の文章は空白なしで書かれる。", 20, "日本語の文章は空白な\nしで書かれる。");
        check("日本語の文章は空白なし。", 22, "日本語の文章は空白な\nし。");
        check("مرحبا بالعالم كيف الحال", 14, "مرحبا بالعالم\nكيف الحال");
        check("12345678 👩\u{200d}💻👍🏽", 13, "12345678 👩\u{200d}💻\n👍🏽");
        check("one\n\n two", 20, "one\n\n two");
        assert_eq!(wrapped("one two\n\n three\n", 6), ["one", "two", "", " three", ""]);
    }

    #[test]
    fn looks_end_with_their_lines() {
        let strong = Look { strong: true, ..Look::PLAIN };
        let spans = [Span::new("a ", Look::PLAIN), Span::new("bold text", strong)];
        let lines: Vec<String> = lay_out(&spans, 7).into_iter().map(|line| line.text).collect();
        assert_eq!(lines, ["a \u{1b}[1mbold\u{1b}[0m", "\u{1b}[1mtext\u{1b}[0m"]);
    }

    #[test]
    fn rows_are_those_of_a_terminal() {
        assert_eq!(rows_of("", 10), 1);
        assert_eq!(rows_of("0123456789", 10), 1);
        assert_eq!(rows_of("0123456789a", 10), 2);
        assert_eq!(rows_of("012345678日", 10), 2);
        assert_eq!(columns_of("e\u{301}日🇩🇪"), 5);
    }

    #[test]
    fn broken_lines_keep_their_looks() {
        let line = "ab\u{1b}[1mcd日e\u{1b}[0mf";
        let expect = ["ab\u{1b}[1mc\u{1b}[0m", "\u{1b}[1md日\u{1b}[0m", "\u{1b}[1me\u{1b}[0mf"];
        assert_eq!(broken(line, 3), expect);
        assert_eq!(
            (broken("", 3), broken("日本", 1)),
            (vec![String::new()], vec!["日".into(), "本".into()])
        );
    }

    #[test]
    fn named_control_characters_are_removed() {
        assert_eq!(harmless("a\u{1b}[2J\tb\n\u{202e}c"), "a[2J b c");
        assert_eq!(harmless("plain"), "plain");
    }
}
