//! Renders whole blocks of Markdown as lines for a terminal. Pure.
//!
//! Blank lines between blocks are those of the source, and lines of a paragraph stay lines: models and people write
//! them on purpose, and so no block changes by what follows it. Without styles the marks of emphasis and code stay.

use std::ops::Range;

use pulldown_cmark::{CodeBlockKind, Event, HeadingLevel, Options, Parser, Tag, TagEnd};

use super::Layout;
use super::code::{CodeMemo, FenceLine};
use super::grid::Grid;
use super::inline::{Look, Span, columns_of_styled, faint, harmless, lay_out};

/// Containers that are shown as such; deeper ones do not indent further.
const MAX_DEPTH: usize = 8;
/// The narrowest room for text within containers.
const MIN_TEXT_COLUMNS: usize = 8;
/// The widest line between sections.
const MAX_RULE_COLUMNS: usize = 40;
/// The longest address of a link that is shown whole.
const MAX_LINK_CHARS: usize = 200;

/// The extensions of Markdown that models use.
pub(super) const OPTIONS: Options =
    Options::ENABLE_TABLES.union(Options::ENABLE_STRIKETHROUGH).union(Options::ENABLE_TASKLISTS);

/// The place of blocks in the whole text.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BlockPosition {
    /// Lines were shown before.
    pub(super) follows_lines: bool,
    /// A blank line stands before the first block.
    pub(super) has_blank_before: bool,
    /// The number of the first item, if it continues a list.
    pub(super) item_number: Option<u64>,
}

/// Returns the lines of the blocks of a source.
pub(super) fn render(
    source: &str,
    position: BlockPosition,
    layout: Layout,
    memo: &mut CodeMemo,
) -> Vec<String> {
    let mut writer = BlockWriter {
        source,
        position,
        layout,
        memo,
        n_code_blocks: 0,
        lines: Vec::new(),
        containers: Vec::new(),
        depth: 0,
        lists: Vec::new(),
        spaced: None,
        searched: (0, 0),
        spans: Vec::new(),
        looks: Vec::new(),
        links: Vec::new(),
        grid: None,
        code: None,
    };
    for (event, range) in Parser::new_ext(source, OPTIONS).into_offset_iter() {
        writer.event(event, &range);
    }
    writer.flush_text();
    writer.lines
}

/// Returns whether the last line of a text is blank, as one of a quote can be too.
pub(super) fn ends_with_blank_line(text: &str) -> bool {
    let Some(text) = text.strip_suffix('\n') else { return false };
    let line = &text[text.rfind('\n').map_or(0, |at| at + 1)..];
    line.chars().all(|char| matches!(char, ' ' | '\t' | '>'))
}

/// A quote or an item of a list.
struct Container {
    /// The text before its first line, until that line is written.
    first: Option<String>,
    rest: String,
}

struct BlockWriter<'a> {
    source: &'a str,
    position: BlockPosition,
    layout: Layout,
    memo: &'a mut CodeMemo,
    n_code_blocks: usize,
    lines: Vec<String>,
    containers: Vec<Container>,
    /// Open quotes and items, with those that are not shown as such.
    depth: usize,
    /// The next number of each open list; `None` for one with bullets.
    lists: Vec<Option<u64>>,
    /// The beginning of the source line whose blank line is written.
    spaced: Option<usize>,
    /// The place whose line was searched last, and the beginning of that line.
    searched: (usize, usize),
    spans: Vec<Span>,
    looks: Vec<Look>,
    /// The addresses of open links, and the number of spans before each.
    links: Vec<(String, usize)>,
    grid: Option<Grid>,
    /// The opening line and the text of the open block of code.
    code: Option<(String, String)>,
}

impl BlockWriter<'_> {
    fn event(&mut self, event: Event<'_>, range: &Range<usize>) {
        match event {
            Event::Start(tag) => self.start(tag, range),
            Event::End(tag) => self.end(tag, range),
            Event::Text(text) => match &mut self.code {
                Some((_, code)) => code.push_str(&text),
                None => self.text(&text, range),
            },
            Event::Code(text) => {
                let marks = if self.layout.is_styled { "" } else { "`" };
                let look = Look { color: Some(36), ..self.look() };
                self.push(&format!("{marks}{}{marks}", harmless(&text)), look);
            }
            Event::InlineHtml(tag) if is_line_break(&tag) => self.push("\n", Look::PLAIN),
            Event::InlineHtml(text) => self.push(&harmless(&text), self.look()),
            Event::Html(text) => {
                for line in text.split_inclusive('\n') {
                    let end = if line.ends_with('\n') { "\n" } else { "" };
                    let line = line.trim_end_matches('\n');
                    self.push(&format!("{}{end}", harmless(line)), Look::PLAIN);
                }
            }
            Event::SoftBreak | Event::HardBreak => self.push("\n", Look::PLAIN),
            Event::Rule => {
                self.begin_block(range.start);
                let rule = "─".repeat(self.room().min(MAX_RULE_COLUMNS));
                let line = faint(&rule, self.layout.is_styled);
                self.write(&line);
            }
            Event::TaskListMarker(is_done) => {
                self.push(if is_done { "[x] " } else { "[ ] " }, Look::PLAIN);
            }
            // These need options that are off.
            Event::FootnoteReference(text) | Event::InlineMath(text) | Event::DisplayMath(text) => {
                self.push(&harmless(&text), self.look());
            }
        }
    }

    fn start(&mut self, tag: Tag<'_>, range: &Range<usize>) {
        let look = self.look();
        match tag {
            Tag::Paragraph | Tag::HtmlBlock => self.begin_block(range.start),
            Tag::Heading { level, .. } => {
                self.begin_block(range.start);
                let underlined = level == HeadingLevel::H1;
                self.looks.push(Look { strong: true, underlined, ..look });
                self.push(&format!("{} ", "#".repeat(level as usize)), self.look());
            }
            Tag::BlockQuote(_) => {
                self.begin_block(range.start);
                let mark = faint(">", self.layout.is_styled) + " ";
                self.enter(mark.clone(), mark);
            }
            Tag::List(first) => {
                self.begin_block(range.start);
                let continued = self.position.item_number.take().filter(|_| self.lists.is_empty());
                self.lists.push(first.map(|first| continued.unwrap_or(first)));
            }
            Tag::Item => {
                self.begin_block(range.start);
                let mark = match self.lists.last_mut() {
                    Some(Some(number)) => {
                        let mark = format!("{number}. ");
                        *number += 1;
                        mark
                    }
                    _ => "- ".to_owned(),
                };
                self.enter(mark.clone(), " ".repeat(mark.len()));
            }
            Tag::CodeBlock(kind) => {
                self.begin_block(range.start);
                let opening = match kind {
                    CodeBlockKind::Fenced(_) => {
                        let end = self.source[range.start..].find('\n');
                        let end = end.map_or(self.source.len(), |at| range.start + at);
                        self.source[range.start..end].to_owned()
                    }
                    CodeBlockKind::Indented => String::new(),
                };
                self.code = Some((opening, String::new()));
            }
            Tag::Table(alignments) => {
                self.begin_block(range.start);
                self.grid = Some(Grid { alignments, rows: Vec::new() });
            }
            Tag::TableHead | Tag::TableRow => {
                self.grid.iter_mut().for_each(|grid| grid.rows.push(Vec::new()));
            }
            Tag::Strong => self.start_look("**", Look { strong: true, ..look }),
            Tag::Emphasis => self.start_look("*", Look { emphasis: true, ..look }),
            Tag::Strikethrough => self.start_look("~~", Look { struck: true, ..look }),
            Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. } => {
                self.links.push((dest_url.to_string(), self.spans.len()));
                self.looks.push(Look { underlined: true, ..look });
            }
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd, range: &Range<usize>) {
        match tag {
            TagEnd::Paragraph | TagEnd::HtmlBlock => self.flush_text(),
            TagEnd::Heading(_) => {
                self.flush_text();
                self.looks.pop();
            }
            TagEnd::BlockQuote(_) | TagEnd::Item => self.leave(),
            TagEnd::List(_) => {
                self.lists.pop();
            }
            TagEnd::CodeBlock => self.end_code(range),
            TagEnd::TableCell => {
                let cell = std::mem::take(&mut self.spans);
                if let Some(row) = self.grid.as_mut().and_then(|grid| grid.rows.last_mut()) {
                    row.push(cell);
                }
            }
            TagEnd::Table => {
                if let Some(grid) = self.grid.take() {
                    let lines = grid.lines(self.room(), self.layout.is_styled);
                    lines.iter().for_each(|line| self.write(line));
                }
            }
            TagEnd::Strong => self.end_look("**"),
            TagEnd::Emphasis => self.end_look("*"),
            TagEnd::Strikethrough => self.end_look("~~"),
            TagEnd::Link | TagEnd::Image => self.end_link(),
            _ => {}
        }
    }

    /// Ends the text before a block, and writes a blank line if the source has one there.
    fn begin_block(&mut self, start: usize) {
        self.flush_text();
        let line_start = self.line_start(start);
        if self.spaced.replace(line_start) == Some(line_start) {
            return;
        }
        let is_blank = match line_start {
            0 => self.position.has_blank_before,
            _ => ends_with_blank_line(&self.source[..line_start]),
        };
        if is_blank && (!self.lines.is_empty() || self.position.follows_lines) {
            self.write("");
        }
    }

    /// Returns the beginning of the line of a place. Places grow, so only the text behind the last one is searched.
    fn line_start(&mut self, at: usize) -> usize {
        let (from, known) = if at < self.searched.0 { (0, 0) } else { self.searched };
        let start = self.source[from..at].rfind('\n').map_or(known, |found| from + found + 1);
        self.searched = (at, start);
        start
    }

    /// Writes a line within its containers.
    fn write(&mut self, line: &str) {
        let mut text = String::new();
        for container in &mut self.containers {
            match container.first.take_if(|_| !line.is_empty()) {
                Some(first) => text.push_str(&first),
                None => text.push_str(&container.rest),
            }
        }
        text.push_str(line);
        if line.is_empty() {
            text.truncate(text.trim_end_matches(' ').len());
        }
        self.lines.push(text);
    }

    /// Writes the text of a paragraph.
    fn flush_text(&mut self) {
        if self.grid.is_some() || self.spans.is_empty() {
            return;
        }
        let mut spans = std::mem::take(&mut self.spans);
        if let Some(last) = spans.last_mut() {
            last.text.truncate(last.text.trim_end_matches('\n').len());
        }
        for line in lay_out(&spans, self.room()) {
            self.write(&line.text);
        }
    }

    fn end_code(&mut self, range: &Range<usize>) {
        let Some((opening, text)) = self.code.take() else { return };
        let fence = FenceLine::of(&opening);
        let info = fence.as_ref().map_or("", FenceLine::info);
        let lines = self.memo.lines(self.n_code_blocks, info, &text, self.layout.is_styled);
        self.n_code_blocks += 1;
        let Some(fence) = fence else {
            // Code without fences is set apart by its indentation.
            lines.iter().for_each(|line| self.write(&format!("    {line}")));
            return;
        };
        self.write(&fence.line(self.layout.is_styled));
        lines.iter().for_each(|line| self.write(line));
        let block = self.source[range.clone()].trim_end();
        let last = block.rfind('\n').map(|at| block[at + 1..].trim_start_matches([' ', '>', '\t']));
        if last.is_some_and(|last| fence.is_closed_by(last)) {
            self.write(&fence.closing_line(self.layout.is_styled));
        }
    }

    fn enter(&mut self, first: String, rest: String) {
        self.depth += 1;
        if self.depth <= MAX_DEPTH {
            self.containers.push(Container { first: Some(first), rest });
        }
    }

    fn leave(&mut self) {
        self.flush_text();
        if self.depth <= MAX_DEPTH {
            // An empty item has its mark.
            if let Some(first) = self.containers.last_mut().and_then(|last| last.first.take()) {
                self.containers.pop();
                self.write(first.trim_end());
            } else {
                self.containers.pop();
            }
        }
        self.depth -= 1;
    }

    /// Returns the columns for text within the open containers.
    fn room(&self) -> usize {
        let width = |container: &Container| columns_of_styled(&container.rest);
        let used: usize = self.containers.iter().map(width).sum();
        self.layout.width.saturating_sub(used).max(MIN_TEXT_COLUMNS.min(self.layout.width))
    }

    fn look(&self) -> Look {
        self.looks.last().copied().unwrap_or_default()
    }

    fn push(&mut self, text: &str, look: Look) {
        let look = if self.layout.is_styled { look } else { Look::PLAIN };
        // The text of a link is compared with its address, so it has spans of its own.
        let begins_link = self.links.last().is_some_and(|(_, before)| *before == self.spans.len());
        match self.spans.last_mut() {
            Some(last) if !begins_link && last.look == look => last.text.push_str(text),
            _ => self.spans.push(Span::new(text, look)),
        }
    }

    fn text(&mut self, text: &str, range: &Range<usize>) {
        // `\(` and `\[` begin formulas, which a model writes more often than escaped brackets.
        let before = &self.source[..range.start];
        let is_formula = before.ends_with('\\') && text.starts_with(['(', ')', '[', ']']);
        if is_formula && !before.ends_with("\\\\") {
            self.push("\\", self.look());
        }
        self.push(&harmless(text), self.look());
    }

    fn start_look(&mut self, mark: &str, look: Look) {
        if !self.layout.is_styled {
            self.push(mark, Look::PLAIN);
        }
        self.looks.push(look);
    }

    fn end_look(&mut self, mark: &str) {
        self.looks.pop();
        if !self.layout.is_styled {
            self.push(mark, Look::PLAIN);
        }
    }

    /// Writes the address of a link after its text, unless they are the same.
    fn end_link(&mut self) {
        self.looks.pop();
        let Some((address, before)) = self.links.pop() else { return };
        let text: String = self.spans[before.min(self.spans.len())..]
            .iter()
            .map(|span| span.text.as_str())
            .collect();
        let address = harmless(&address);
        if address.trim_start_matches("mailto:") == text || text.ends_with(&*address) {
            return;
        }
        let mut shown: String = address.chars().take(MAX_LINK_CHARS).collect();
        if shown.len() < address.len() {
            shown.push_str("...");
        }
        self.push(&format!(" ({shown})"), Look::FAINT);
    }
}

fn is_line_break(tag: &str) -> bool {
    matches!(tag.to_lowercase().replace(' ', "").as_str(), "<br>" | "<br/>")
}
