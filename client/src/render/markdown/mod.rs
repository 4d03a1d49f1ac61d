//! Markdown for a terminal while it arrives: blocks that have ended are rendered once and never change, the open block
//! is rendered again as it grows. Pure.
//!
//! The text is cut where a top-level block or an item of a top-level list begins, and each part is rendered alone. So a
//! part looks the same whether the text came at once or in pieces, and its cost does not grow with the text before it.
//! The lines of a fenced block are finished one by one.
//!
//! **Invariants**: any pieces of a text give the same lines; a line that was finished never changes; text is sanitized
//! before it is parsed, and what Markdown decodes is sanitized again. A reference to a link is resolved only within its
//! part.

mod blocks;
mod code;
mod grid;
mod highlight;
mod inline;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::ops::{Deref, Range};

use ollm_protocol::sanitize::{self, Sanitizer};
use pulldown_cmark::{CodeBlockKind, Event, Parser, Tag};

pub(crate) use inline::{broken, columns_of, columns_of_styled, rows_of, wrapped};

use blocks::{BlockPosition, ends_with_blank_line};
use code::{CodeMemo, CodePainter, FenceLine};

/// The bytes that are parsed at once to find the ends of blocks, if no line and no block is longer. The text behind a
/// fenced block is parsed again, so many short fenced blocks would take long with a larger number.
const PARSED_BYTES: usize = 4 << 10;

/// The width and the means of a terminal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// Columns of a line.
    pub(crate) width: usize,
    /// Set if styles are shown. Without them, the marks of emphasis and code stay.
    pub(crate) is_styled: bool,
}

/// Renders a whole text.
pub(crate) fn render(text: &str, layout: Layout) -> String {
    let mut stream = MarkdownStream::default();
    stream.push(text);
    stream.finish(layout).into_iter().map(|line| line + "\n").collect()
}

/// Lays out a text as a person typed it: lines end between words, and code between fences stays as it is.
pub(crate) fn render_typed(text: &str, width: usize) -> String {
    let mut shown = String::new();
    let mut fence: Option<FenceLine> = None;
    for line in sanitize::text(text).lines() {
        let is_code = fence.is_some();
        match &fence {
            Some(open) if open.is_closed_by(line) => fence = None,
            Some(_) => {}
            None => fence = FenceLine::of(line),
        }
        let width = if is_code { usize::MAX } else { width };
        for line in wrapped(line, width) {
            shown.push_str(&line);
            shown.push('\n');
        }
    }
    shown
}

/// A Markdown text that arrives in pieces, as lines.
#[derive(Debug, Default)]
pub(crate) struct MarkdownStream {
    sanitizer: Sanitizer,
    /// The source that is not finished.
    tail: Tail,
    /// The bytes at the beginning of the tail in which one block begins.
    n_examined: usize,
    position: BlockPosition,
    code: Option<OpenCode>,
    memo: CodeMemo,
}

/// A text whose beginning is removed piece by piece. The rest is moved only when it is shorter than what was removed.
#[derive(Debug, Default)]
struct Tail {
    text: String,
    n_removed: usize,
}

/// A fenced block whose end has not arrived.
#[derive(Debug)]
struct OpenCode {
    fence: FenceLine,
    painter: CodePainter,
}

/// A place at which a text is cut.
#[derive(Clone, Copy)]
struct Cut {
    at: usize,
    kind: CutKind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CutKind {
    Block,
    Fenced,
    /// A list, with the number of its first item.
    List(u64),
    /// An item that is not the first of its list.
    Item,
}

impl Deref for Tail {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text[self.n_removed..]
    }
}

impl Tail {
    fn push_str(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// Removes bytes at the beginning.
    fn remove(&mut self, n_bytes: usize) {
        self.n_removed += n_bytes;
        if self.n_removed > self.text.len() / 2 {
            self.text.drain(..self.n_removed);
            self.n_removed = 0;
        }
    }
}

impl MarkdownStream {
    /// Adds a piece. Drops empty lines before the first word.
    pub(crate) fn push(&mut self, piece: &str) {
        let text = self.sanitizer.push(piece);
        let is_first = !self.position.follows_lines && self.tail.is_empty();
        self.tail.push_str(if is_first { text.trim_start_matches('\n') } else { &text });
    }

    /// Returns whether a word has arrived that is not finished.
    pub(crate) fn has_open_text(&self) -> bool {
        !self.tail.trim().is_empty()
    }

    /// Returns the lines that were finished since the last call.
    pub(crate) fn take_finished(&mut self, layout: Layout) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            self.take_code_lines(layout, &mut lines);
            let end = self.next_end();
            if self.code.is_some() || end == self.n_examined {
                return lines;
            }
            let (mut cuts, examined) = cuts(&self.tail[..end]);
            self.n_examined = examined;
            if let Some(at) = cuts.iter().position(|cut| cut.kind == CutKind::Fenced) {
                cuts.truncate(at + 1);
            }
            let Some(open) = cuts.pop() else { continue };
            let ends = cuts.iter().skip(1).map(|next| next.at).chain([open.at]);
            for (cut, end) in cuts.iter().zip(ends) {
                self.finish_part(cut.at..end, cut.kind, layout, &mut lines);
            }
            self.cut_tail(open);
            if open.kind == CutKind::Fenced {
                self.open_code(layout, &mut lines);
            }
        }
    }

    /// Returns the lines of the open block as it is now, without a beginning of a line whose meaning is not known yet.
    pub(crate) fn open_lines(&mut self, layout: Layout) -> Vec<String> {
        let complete = self.tail.rfind('\n').map_or(0, |at| at + 1);
        let (complete, partial) = self.tail.split_at(complete);
        if let Some(code) = &self.code {
            return if partial.is_empty() {
                Vec::new()
            } else if code.fence.is_closed_by(partial) {
                vec![code.fence.closing_line(layout.is_styled)]
            } else {
                vec![code.painter.clone().line(code.fence.content(partial))]
            };
        }
        let shown = format!("{complete}{}", decided_part(complete, partial));
        blocks::render(&shown, self.position, layout, &mut self.memo)
    }

    /// Returns the rest of the lines. The next piece begins a new text.
    pub(crate) fn finish(&mut self, layout: Layout) -> Vec<String> {
        if !self.tail.is_empty() && !self.tail.ends_with('\n') {
            self.tail.push_str("\n");
        }
        let mut lines = self.take_finished(layout);
        if self.code.is_none() {
            self.memo.clear();
            lines.extend(blocks::render(&self.tail, self.position, layout, &mut self.memo));
        }
        *self = Self { sanitizer: self.sanitizer, ..Self::default() };
        lines
    }

    /// Returns the end of the complete lines to parse next. There are at least twice as many as before if so many have
    /// arrived, so that a long block is parsed a few times only.
    fn next_end(&self) -> usize {
        let wanted = PARSED_BYTES.max(self.n_examined * 2);
        let rest = self.tail.as_bytes().get(wanted..).unwrap_or_default();
        match rest.iter().position(|byte| *byte == b'\n') {
            Some(at) => wanted + at + 1,
            None => self.tail.rfind('\n').map_or(0, |at| at + 1),
        }
    }

    /// Finishes the complete lines of the open fenced block.
    fn take_code_lines(&mut self, layout: Layout, lines: &mut Vec<String>) {
        let Some(mut code) = self.code.take() else { return };
        let end = self.tail.rfind('\n').map_or(0, |at| at + 1);
        let mut used = 0;
        let mut is_closed = false;
        for line in self.tail[..end].split_inclusive('\n') {
            used += line.len();
            is_closed = code.fence.is_closed_by(line);
            if is_closed {
                lines.push(code.fence.closing_line(layout.is_styled));
                break;
            }
            lines.push(code.painter.line(code.fence.content(line)));
        }
        self.tail.remove(used);
        self.code = (!is_closed).then_some(code);
    }

    /// Finishes a part of the tail.
    fn finish_part(
        &mut self,
        part: Range<usize>,
        kind: CutKind,
        layout: Layout,
        lines: &mut Vec<String>,
    ) {
        let continued =
            self.position.item_number.filter(|_| kind == CutKind::Item || part.start == 0);
        let number = match kind {
            CutKind::List(first) => Some(continued.unwrap_or(first)),
            CutKind::Item => continued,
            CutKind::Block | CutKind::Fenced => None,
        };
        self.position.item_number = number;
        let source = &self.tail[part];
        self.memo.clear();
        lines.append(&mut blocks::render(source, self.position, layout, &mut self.memo));
        self.memo.clear();
        self.position = BlockPosition {
            follows_lines: self.position.follows_lines || !lines.is_empty(),
            has_blank_before: ends_with_blank_line(source),
            item_number: number.map(|number| number.saturating_add(1)),
        };
    }

    /// Lets the tail begin with its open part.
    fn cut_tail(&mut self, open: Cut) {
        if open.at > 0 {
            self.position.has_blank_before = ends_with_blank_line(&self.tail[..open.at]);
            self.tail.remove(open.at);
            if open.kind != CutKind::Item {
                self.position.item_number = None;
            }
        }
        self.n_examined -= open.at;
    }

    /// Finishes the opening line of a fenced block, with which the tail begins.
    fn open_code(&mut self, layout: Layout, lines: &mut Vec<String>) {
        let end = self.tail.find('\n').map_or(self.tail.len(), |at| at + 1);
        let opening = self.tail[..end].to_owned();
        self.tail.remove(end);
        self.n_examined = 0;
        let Some(fence) = FenceLine::of(opening.trim_end_matches('\n')) else { return };
        if self.position.follows_lines && self.position.has_blank_before {
            lines.push(String::new());
        }
        lines.push(fence.line(layout.is_styled));
        let painter = CodePainter::new(fence.info(), layout.is_styled);
        self.code = Some(OpenCode { fence, painter });
        self.position = BlockPosition { follows_lines: true, ..BlockPosition::default() };
    }
}

/// Returns the places at which a text is cut, and the end of what was examined: its first block begins at its beginning, unless
/// it is a fenced one.
///
/// The examination ends at a block that follows the definition of a link. It goes on with the block as the beginning of a text:
/// a parser that has just read the definition can take the same lines for another block.
fn cuts(text: &str) -> (Vec<Cut>, usize) {
    let mut cuts: Vec<Cut> = Vec::new();
    let (mut depth, mut last_line, mut last_end) = (0, None, 0);
    for (event, range) in Parser::new_ext(text, blocks::OPTIONS).into_offset_iter() {
        let kind = match (&event, depth) {
            (Event::Start(Tag::List(first)), 0) => Some(CutKind::List(first.unwrap_or(0))),
            (Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(_))), 0) => Some(CutKind::Fenced),
            (Event::Start(_) | Event::Rule, 0) => Some(CutKind::Block),
            (Event::Start(Tag::Item), 1) => Some(CutKind::Item),
            _ => None,
        };
        let is_behind_definition = depth == 0
            && !cuts.is_empty()
            && text.get(last_end..range.start).is_some_and(|between| !between.trim().is_empty());
        match event {
            Event::Start(_) => depth += 1,
            Event::End(_) => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            last_end = range.end;
        }
        let Some(kind) = kind else { continue };
        let at = text[..range.start].rfind('\n').map_or(0, |at| at + 1);
        if last_line >= Some(at) {
            continue;
        }
        last_line = Some(at);
        let at = if cuts.is_empty() && kind != CutKind::Fenced { 0 } else { at };
        cuts.push(Cut { at, kind });
        if is_behind_definition {
            return (cuts, at);
        }
    }
    (cuts, text.len())
}

/// Returns the beginning of a line that can be shown before the rest of it has arrived.
///
/// Marks that may become a heading, an item or a fence are left out; emphasis and code that are open are closed, so that
/// they do not change their look when they end.
fn decided_part<'a>(complete: &str, partial: &'a str) -> Cow<'a, str> {
    let is_fence = |line: &&str| {
        let line = line.trim_start_matches([' ', '>']);
        line.starts_with("```") || line.starts_with("~~~")
    };
    if complete.lines().filter(is_fence).count() % 2 == 1 {
        return Cow::Borrowed(partial);
    }
    if partial.chars().all(|char| "-=*_#`~|+:>.) \t".contains(char) || char.is_ascii_digit()) {
        return Cow::Borrowed("");
    }
    let shown = partial.trim_end_matches(['*', '_', '`', '~', ' ']);
    let mark = if shown.matches('`').count() % 2 == 1 {
        "`"
    } else if shown.matches("**").count() % 2 == 1 {
        "**"
    } else {
        return Cow::Borrowed(shown);
    };
    Cow::Owned(format!("{shown}{mark}"))
}
