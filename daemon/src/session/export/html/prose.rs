//! The text of a message as HTML.
//!
//! Markdown is rendered, and HTML within it is shown as text. Links lead to addresses of the web and of mail only; an
//! image is a link, so that no page loads anything. Every text is escaped, and passes [`sanitize`] once more because
//! Markdown has entities for control characters. A text that is large, deeply nested, or grows too much is shown as
//! written.

use std::fmt::Write as _;

use ollm_protocol::sanitize;
use pulldown_cmark::{Alignment, CodeBlockKind, Event, Parser, Tag, TagEnd};

use super::highlight::PageHighlighter;
use super::{MAX_NAME_CHARS, escape_into, escaped};
use crate::session::export::text::MARKDOWN;

/// The largest text that is rendered, in bytes. One message is in memory several times while it is rendered.
const MAX_RENDERED_BYTES: usize = 256 * 1024;
/// The most elements within each other. Browsers cut a page that is nested more deeply.
const MAX_DEPTH: usize = 64;
/// The most bytes of HTML for a byte of text, beyond those that any text may have.
const MAX_GROWTH: usize = 12;
/// The bytes of HTML that any text may have.
const FREE_BYTES: usize = 16 * 1024;
/// The beginnings of addresses that become links.
const LINKED: [&str; 3] = ["http://", "https://", "mailto:"];

/// The line breaks of a text that Markdown would join.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LineBreaks {
    /// The lines of a paragraph are joined, as models write it.
    Joined,
    /// Each line stays a line, as people type.
    Kept,
}

/// Writes a text.
pub(super) fn write(
    text: &str,
    breaks: LineBreaks,
    highlighter: &PageHighlighter,
    out: &mut String,
) {
    let text = sanitize::text(text);
    let start = out.len();
    out.push_str("<div class=\"text\" dir=\"auto\">");
    let mut prose = Prose {
        out,
        breaks,
        highlighter,
        max_bytes: start + FREE_BYTES + text.len() * MAX_GROWTH,
        depth: 0,
        code: None,
        ends: Vec::new(),
        n_images: 0,
        in_table_head: false,
        alignments: Vec::new(),
        column: 0,
    };
    let is_rendered = text.len() <= MAX_RENDERED_BYTES
        && Parser::new_ext(&text, MARKDOWN).all(|event| prose.event(event));
    if !is_rendered {
        out.truncate(start);
        out.push_str("<div class=\"text raw\" dir=\"auto\">");
        escape_into(&text, out);
    }
    out.push_str("</div>\n");
}

struct Prose<'a, 'o> {
    out: &'o mut String,
    breaks: LineBreaks,
    highlighter: &'a PageHighlighter,
    max_bytes: usize,
    depth: usize,
    /// The language and the text of the code block that is open.
    code: Option<(String, String)>,
    /// The text after each open link: the end of its element, or its address.
    ends: Vec<String>,
    n_images: usize,
    in_table_head: bool,
    alignments: Vec<Alignment>,
    column: usize,
}

impl Prose<'_, '_> {
    /// Writes an event; returns whether the text is still rendered.
    fn event(&mut self, event: Event<'_>) -> bool {
        match event {
            Event::Start(tag) => {
                self.depth += 1;
                self.start(tag);
            }
            Event::End(tag) => {
                self.depth -= 1;
                self.end(tag);
            }
            Event::Text(text) => match &mut self.code {
                Some((_, code)) => code.push_str(&text),
                None => self.text(&text),
            },
            Event::Html(text) | Event::InlineHtml(text) => self.text(&text),
            Event::Code(text) => {
                self.tag("<code>");
                self.text(&text);
                self.tag("</code>");
            }
            Event::SoftBreak if self.breaks == LineBreaks::Joined => self.out.push('\n'),
            Event::SoftBreak | Event::HardBreak => self.tag("<br>\n"),
            Event::Rule => self.tag("<hr>\n"),
            Event::TaskListMarker(done) => self.out.push_str(if done { "☑ " } else { "☐ " }),
            // The options do not enable these.
            Event::InlineMath(text) | Event::DisplayMath(text) | Event::FootnoteReference(text) => {
                self.text(&text);
            }
        }
        self.depth <= MAX_DEPTH && self.out.len() <= self.max_bytes
    }

    fn start(&mut self, tag: Tag<'_>) {
        match tag {
            Tag::Paragraph => self.tag("<p>"),
            Tag::HtmlBlock => self.tag("<p class=\"raw\">"),
            // The title of the page and the headings of messages are above those of a text.
            Tag::Heading { level, .. } => {
                let _ = write!(self.out, "<h{}>", heading_level(level as usize));
            }
            Tag::BlockQuote(_) => self.tag("<blockquote>"),
            Tag::CodeBlock(kind) => {
                let language = match kind {
                    CodeBlockKind::Fenced(info) => language_of(&info).to_owned(),
                    CodeBlockKind::Indented => String::new(),
                };
                self.code = Some((language, String::new()));
            }
            Tag::List(None) => self.tag("<ul>\n"),
            Tag::List(Some(first)) => {
                let _ = writeln!(self.out, "<ol start=\"{first}\">");
            }
            Tag::Item => self.tag("<li>"),
            Tag::Table(alignments) => {
                self.alignments = alignments;
                self.tag("<div class=\"table\"><table>\n");
            }
            Tag::TableHead => {
                (self.in_table_head, self.column) = (true, 0);
                self.tag("<thead><tr>");
            }
            Tag::TableRow => {
                self.column = 0;
                self.tag("<tr>");
            }
            Tag::TableCell => self.cell(),
            Tag::Emphasis => self.tag("<em>"),
            Tag::Strong => self.tag("<strong>"),
            Tag::Strikethrough => self.tag("<del>"),
            Tag::Link { dest_url, .. } => self.link(&dest_url, ""),
            Tag::Image { dest_url, .. } => {
                self.link(&dest_url, "image: ");
                self.n_images += 1;
            }
            // The options do not enable the others.
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Paragraph | TagEnd::HtmlBlock => self.tag("</p>\n"),
            TagEnd::Heading(level) => {
                let _ = writeln!(self.out, "</h{}>", heading_level(level as usize));
            }
            TagEnd::BlockQuote(_) => self.tag("</blockquote>\n"),
            TagEnd::CodeBlock => self.code_block(),
            TagEnd::List(false) => self.tag("</ul>\n"),
            TagEnd::List(true) => self.tag("</ol>\n"),
            TagEnd::Item => self.tag("</li>\n"),
            TagEnd::Table => self.tag("</tbody></table></div>\n"),
            TagEnd::TableHead => {
                self.in_table_head = false;
                self.tag("</tr></thead>\n<tbody>");
            }
            TagEnd::TableRow => self.tag("</tr>\n"),
            TagEnd::TableCell => self.tag(if self.in_table_head { "</th>" } else { "</td>" }),
            TagEnd::Emphasis => self.tag("</em>"),
            TagEnd::Strong => self.tag("</strong>"),
            TagEnd::Strikethrough => self.tag("</del>"),
            TagEnd::Link => self.end_link(),
            TagEnd::Image => {
                self.n_images -= 1;
                self.end_link();
            }
            _ => {}
        }
    }

    /// Writes tags. The description of an image has none.
    fn tag(&mut self, tag: &str) {
        if self.n_images == 0 {
            self.out.push_str(tag);
        }
    }

    fn text(&mut self, text: &str) {
        escape_into(&sanitize::text(text), self.out);
    }

    fn cell(&mut self) {
        let class = match self.alignments.get(self.column) {
            Some(Alignment::Right) => " class=\"right\"",
            Some(Alignment::Center) => " class=\"center\"",
            _ => "",
        };
        self.column += 1;
        let name = if self.in_table_head { "th" } else { "td" };
        let _ = write!(self.out, "<{name}{class}>");
    }

    /// Begins a link; an address that may not be one, or is within another link, follows the text instead.
    fn link(&mut self, address: &str, label: &str) {
        let address = sanitize::text(address);
        let is_linked = LINKED.iter().any(|start| {
            address.get(..start.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(start))
        });
        if is_linked && self.ends.is_empty() {
            let _ = write!(self.out, "<a href=\"{}\" rel=\"noreferrer\">", escaped(&address));
            self.ends.push("</a>".to_owned());
        } else if self.n_images == 0 && !address.is_empty() {
            let address: String = address.chars().take(MAX_NAME_CHARS).collect();
            self.ends.push(format!(" ({})", escaped(&address)));
        } else {
            self.ends.push(String::new());
        }
        self.out.push_str(label);
    }

    fn end_link(&mut self) {
        self.out.push_str(&self.ends.pop().unwrap_or_default());
    }

    fn code_block(&mut self) {
        let Some((language, code)) = self.code.take() else { return };
        let code = sanitize::text(&code);
        let html = self.highlighter.code(&language, &code).unwrap_or_else(|| escaped(&code));
        // Parsers drop a line break right after <pre>; <code> is between them here.
        let _ = writeln!(self.out, "<pre><code>{html}</code></pre>");
    }
}

fn heading_level(level: usize) -> usize {
    (level + 2).min(6)
}

/// Returns the language that the info string of a fence names.
fn language_of(info: &str) -> &str {
    let end = info.find([' ', ',', '{', ':']).unwrap_or(info.len());
    info[..end].trim_start_matches('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn html(text: &str) -> String {
        let mut out = String::new();
        write(text, LineBreaks::Joined, &PageHighlighter::default(), &mut out);
        let out = out.strip_prefix("<div class=\"text\" dir=\"auto\">").unwrap_or(&out);
        out.strip_suffix("</div>\n").expect("the end").replace('\n', "")
    }

    #[test]
    fn markdown_is_rendered() {
        let check = |text: &str, expected: &str| assert_eq!(html(text), expected, "{text}");
        check(
            "# A\n\n*b* **c** ~~d~~ `e<`",
            "<h3>A</h3><p><em>b</em> <strong>c</strong> <del>d</del> <code>e&lt;</code></p>",
        );
        check("3. a\n4. b", "<ol start=\"3\"><li>a</li><li>b</li></ol>");
        check("- [ ] a\n- [x] b", "<ul><li>☐ a</li><li>☑ b</li></ul>");
        check("> a\n\n---", "<blockquote><p>a</p></blockquote><hr>");
        check(
            "a | b\n--|-:\n1 | 2",
            "<div class=\"table\"><table><thead><tr><th>a</th><th class=\"right\">b</th></tr></thead><tbody>\
             <tr><td>1</td><td class=\"right\">2</td></tr></tbody></table></div>",
        );
        check("```\na < b\n```", "<pre><code>a &lt; b</code></pre>");
    }

    #[test]
    fn html_is_text_and_only_addresses_of_web_and_mail_are_links() {
        let check = |text: &str, expected: &str| assert_eq!(html(text), expected, "{text}");
        check("a <b>c</b>", "<p>a &lt;b&gt;c&lt;/b&gt;</p>");
        check("<div>\n*a*\n</div>", "<p class=\"raw\">&lt;div&gt;*a*&lt;/div&gt;</p>");
        check(
            "[a](HTTPS://b.c/?d&e)",
            "<p><a href=\"HTTPS://b.c/?d&amp;e\" rel=\"noreferrer\">a</a></p>",
        );
        check("[a](mailto:b@c)", "<p><a href=\"mailto:b@c\" rel=\"noreferrer\">a</a></p>");
        check("[a](javascript:b)", "<p>a (javascript:b)</p>");
        check("[a](&#106;avascript:b)", "<p>a (javascript:b)</p>");
        check("[a](src/b.rs)", "<p>a (src/b.rs)</p>");
        check(
            "![a *b*](https://c/d.png)",
            "<p><a href=\"https://c/d.png\" rel=\"noreferrer\">image: a b</a></p>",
        );
        check("![a](data:image/svg+xml,b)", "<p>image: a (data:image/svg+xml,b)</p>");
        check(
            "[![a](https://b/c.png)](https://d)",
            "<p><a href=\"https://d\" rel=\"noreferrer\">image: a (https://b/c.png)</a></p>",
        );
        check("&#x202e;a&#27;[1m", "<p>a[1m</p>");
    }

    #[test]
    fn lines_of_people_stay_lines() {
        let mut out = String::new();
        write("a\nb", LineBreaks::Kept, &PageHighlighter::default(), &mut out);
        assert!(out.contains("<p>a<br>\nb</p>"), "{out}");
    }

    #[test]
    fn text_that_is_large_deep_or_grows_too_much_is_shown_as_written() {
        let deep = "> ".repeat(MAX_DEPTH + 1) + "a";
        let large = "*a* ".repeat(MAX_RENDERED_BYTES / 4 + 1);
        let columns = 20_000;
        let wide = format!(
            "{}\n{}\n{}",
            "a|".repeat(columns),
            "-|".repeat(columns),
            "a\n".repeat(columns)
        );
        for text in [deep, large, wide] {
            let html = html(&text);
            assert!(html.starts_with("<div class=\"text raw\" dir=\"auto\">"), "{html:.80}");
            assert!(html.len() < 8 * text.len());
        }
    }
}
