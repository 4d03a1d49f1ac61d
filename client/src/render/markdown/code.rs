//! Blocks of code: their fences, and their lines with colors. Lines are never wrapped here, so that a command can be
//! copied whole. Pure.

use ollm_protocol::code_fence::CodeFence;

use super::highlight::Highlighter;
use super::inline::{Look, Span, faint, harmless};

/// Columns between tab stops.
const TAB_COLUMNS: usize = 4;

/// The opening line of a fenced block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FenceLine {
    fence: CodeFence,
    marks: String,
    indent: usize,
    info: String,
}

impl FenceLine {
    /// Reads an opening fence; `None` if the line is none.
    pub(super) fn of(line: &str) -> Option<Self> {
        let text = line.trim_start_matches(' ');
        let fence = CodeFence::opened_by(text.trim_end())?;
        let info = text.trim_start_matches(text.chars().next()?);
        Some(Self {
            fence,
            marks: text[..text.len() - info.len()].to_owned(),
            indent: line.len() - text.len(),
            info: harmless(info.trim()).into_owned(),
        })
    }

    /// Returns the words after the fence.
    pub(super) fn info(&self) -> &str {
        &self.info
    }

    /// Returns whether a line ends the block.
    pub(super) fn is_closed_by(&self, line: &str) -> bool {
        let line = line.trim_end();
        let text = line.trim_start_matches(' ');
        line.len() - text.len() <= 3 && self.fence.is_closed_by(text)
    }

    /// Returns the fence as it is shown.
    pub(super) fn line(&self, is_styled: bool) -> String {
        faint(&format!("{}{}", self.marks, self.info), is_styled)
    }

    /// Returns the closing fence as it is shown.
    pub(super) fn closing_line(&self, is_styled: bool) -> String {
        faint(&self.marks, is_styled)
    }

    /// Returns a line of the block without the indentation of its fence.
    pub(super) fn content<'a>(&self, line: &'a str) -> &'a str {
        let spaces = line.len() - line.trim_start_matches(' ').len();
        &line[spaces.min(self.indent)..]
    }
}

/// The colors of a block, line after line.
#[derive(Clone, Debug)]
pub(super) struct CodePainter {
    highlighter: Option<Highlighter>,
    is_styled: bool,
}

impl CodePainter {
    /// Returns the painter of a block whose fence has `info`.
    pub(super) fn new(info: &str, is_styled: bool) -> Self {
        let highlighter = if is_styled { Highlighter::of(info) } else { None };
        Self { highlighter, is_styled }
    }

    /// Returns the next line as it is shown.
    pub(super) fn line(&mut self, line: &str) -> String {
        let line = with_tab_stops(line.trim_end_matches('\n'));
        match &mut self.highlighter {
            Some(highlighter) => {
                let spans = highlighter.line(&(line + "\n"));
                spans.iter().map(|Span { text, look }| look.paint(text)).collect()
            }
            None if self.is_styled => Look { color: Some(36), ..Look::PLAIN }.paint(&line),
            None => line,
        }
    }
}

/// Replaces tabs by spaces, so that the columns of a line are known.
fn with_tab_stops(line: &str) -> String {
    let (mut out, mut column) = (String::with_capacity(line.len()), 0);
    for char in line.chars() {
        if char == '\t' {
            let spaces = TAB_COLUMNS - column % TAB_COLUMNS;
            out.extend(std::iter::repeat_n(' ', spaces));
            column += spaces;
        } else {
            out.push(char);
            column += 1;
        }
    }
    out
}

/// The painted lines of blocks within an open block, which is painted again and again: each block is colored once.
#[derive(Debug, Default)]
pub(super) struct CodeMemo {
    blocks: Vec<PaintedCode>,
}

#[derive(Debug)]
struct PaintedCode {
    info: String,
    /// The complete lines that are painted.
    source: String,
    lines: Vec<String>,
    painter: CodePainter,
}

impl CodeMemo {
    /// Forgets all blocks.
    pub(super) fn clear(&mut self) {
        self.blocks.clear();
    }

    /// Returns the painted lines of the block with an index.
    pub(super) fn lines(
        &mut self,
        at: usize,
        info: &str,
        text: &str,
        is_styled: bool,
    ) -> Vec<String> {
        let is_known = self.blocks.get(at).is_some_and(|known| {
            known.info == info
                && known.painter.is_styled == is_styled
                && text.starts_with(&known.source)
        });
        if !is_known {
            self.blocks.truncate(at);
            self.blocks.push(PaintedCode {
                info: info.to_owned(),
                source: String::new(),
                lines: Vec::new(),
                painter: CodePainter::new(info, is_styled),
            });
        }
        let at = at.min(self.blocks.len() - 1);
        self.blocks[at].extend(text)
    }
}

impl PaintedCode {
    /// Paints the lines after the known ones and returns all.
    fn extend(&mut self, text: &str) -> Vec<String> {
        let rest = &text[self.source.len()..];
        let end = rest.rfind('\n').map_or(0, |at| at + 1);
        for line in rest[..end].split_inclusive('\n') {
            self.lines.push(self.painter.line(line));
        }
        self.source.push_str(&rest[..end]);
        let mut lines = self.lines.clone();
        if end < rest.len() {
            lines.push(self.painter.clone().line(&rest[end..]));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fences_are_read_as_markdown_does() {
        let fence = FenceLine::of("  ```rust ignore").unwrap();
        assert_eq!((fence.line(false).as_str(), fence.indent), ("```rust ignore", 2));
        assert!(FenceLine::of("``` a`b").is_none() && FenceLine::of("``").is_none());
        let check = |line: &str, expect| assert_eq!(fence.is_closed_by(line), expect, "{line}");
        check("```\n", true);
        check("   ````  \n", true);
        check("    ```\n", false);
        check("``\n", false);
        check("```rust\n", false);
        check("\n", false);
        check("~~~\n", false);
        assert_eq!((fence.content("    x"), fence.content(" x")), ("  x", "x"));
    }

    #[test]
    fn memo_gives_the_lines_of_a_new_painter() {
        let text = "fn main() {\n\tlet a = 1;\n}\nlet";
        let mut memo = CodeMemo::default();
        for end in 0..=text.len() {
            let part = &text[..end];
            let expect = CodeMemo::default().lines(0, "rust", part, true);
            assert_eq!(memo.lines(0, "rust", part, true), expect, "{part:?}");
        }
        assert_eq!(memo.lines(0, "", "a", false), ["a"]);
        assert_eq!(with_tab_stops("\ta\tb"), "    a   b");
    }
}
