//! A model's answer as it arrives: sanitized, its words and lines unchanged, with styles for headings and code.
//!
//! **Invariant**: each returned piece ends the styles that it begins, so the terminal is in order wherever an answer
//! stops. Pure.

use ollm_protocol::sanitize::Sanitizer;

use super::Style;
use super::wrap::WordWrap;

/// The deepest level of a Markdown heading.
const MAX_HEADING_LEVEL: usize = 6;
/// The deepest indentation of a fence or a heading; a line with more is code.
const MAX_INDENT: usize = 3;

/// Renders an answer piece by piece.
#[derive(Debug, Default)]
pub(crate) struct AnswerRenderer {
    sanitizer: Sanitizer,
    wrap: WordWrap,
    /// The beginning of a line whose kind is not known yet.
    held: String,
    line: Option<MarkdownLine>,
    /// The character of the open fence.
    fence: Option<char>,
    has_text: bool,
    /// The line was broken for another output, and nothing followed.
    is_broken: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MarkdownLine {
    Plain,
    Heading,
    /// A row of a table, whose columns would not stay below each other.
    Row,
    Fence(char),
    Code,
}

impl AnswerRenderer {
    /// Wraps lines of prose between words at a number of columns; `None` leaves them whole. A word is held then until its
    /// end is known.
    pub(crate) fn set_width(&mut self, width: Option<usize>) {
        self.wrap.set_width(width);
    }

    /// Returns the held part of a word, because nothing more arrives for now.
    pub(crate) fn flush(&mut self) -> String {
        let words = self.wrap.flush();
        self.line.map_or_else(String::new, |line| line.paint(&words))
    }

    /// Returns whether the last line has text, so that another output needs a line break before it.
    pub(crate) const fn is_in_line(&self) -> bool {
        self.line.is_some() && !self.is_broken
    }

    /// Notes that the line was broken, for an output in between.
    pub(crate) fn start_line(&mut self) {
        self.wrap.start_line();
        self.is_broken = true;
    }

    /// Adds a piece and returns the text that can be shown now; drops empty lines before the first word.
    pub(crate) fn push(&mut self, piece: &str) -> String {
        let text = self.sanitizer.push(piece);
        let text = if self.has_text { text.as_str() } else { text.trim_start_matches('\n') };
        self.has_text |= !text.is_empty();
        self.is_broken &= text.is_empty();
        text.split_inclusive('\n').map(|part| self.render_part(part)).collect()
    }

    /// Returns the rest of the answer with a final line break.
    pub(crate) fn finish(&mut self) -> String {
        let mut rest = self.flush() + &std::mem::take(&mut self.held);
        let is_in_line = self.line.take().is_some() && !self.is_broken;
        if is_in_line || !rest.is_empty() {
            rest.push('\n');
        }
        rest
    }

    /// Renders a part of one line.
    fn render_part(&mut self, part: &str) -> String {
        let held;
        let (line, part) = match self.line {
            Some(line) => (line, part),
            None => {
                self.held.push_str(part);
                let Some(line) = line_kind(&self.held, self.fence) else { return String::new() };
                self.line = Some(line);
                held = std::mem::take(&mut self.held);
                (line, held.as_str())
            }
        };
        let (words, end) = part.strip_suffix('\n').map_or((part, ""), |words| (words, "\n"));
        let words = match line {
            MarkdownLine::Plain | MarkdownLine::Heading if end.is_empty() => self.wrap.push(words),
            MarkdownLine::Plain | MarkdownLine::Heading => {
                self.wrap.push(words) + &self.wrap.flush()
            }
            _ => words.to_owned(),
        };
        if !end.is_empty() {
            self.line = None;
            self.wrap.start_line();
            if let MarkdownLine::Fence(char) = line {
                self.fence = if self.fence.is_some() { None } else { Some(char) };
            }
        }
        line.paint(&words) + end
    }
}

impl MarkdownLine {
    fn paint(self, words: &str) -> String {
        let style = match self {
            Self::Plain | Self::Row => return words.to_owned(),
            _ if words.is_empty() => return String::new(),
            Self::Heading => Style::Strong,
            Self::Fence(_) => Style::Faint,
            Self::Code => Style::Code,
        };
        style.paint(words)
    }
}

/// Returns the kind of a line from its beginning; `None` if more of it is needed.
fn line_kind(beginning: &str, fence: Option<char>) -> Option<MarkdownLine> {
    let is_complete = beginning.ends_with('\n');
    let line = beginning.trim_end_matches('\n');
    let words = line.trim_start_matches(' ');
    let usual = if fence.is_some() { MarkdownLine::Code } else { MarkdownLine::Plain };
    if line.len() - words.len() > MAX_INDENT {
        return Some(usual);
    }
    let Some(first) = words.chars().next() else { return is_complete.then_some(usual) };
    let count = words.chars().take_while(|char| *char == first).count();
    let may_continue = count == words.chars().count() && !is_complete;
    match first {
        '`' | '~' if fence.is_none_or(|open| open == first) => match count {
            3.. => Some(MarkdownLine::Fence(first)),
            _ if may_continue => None,
            _ => Some(usual),
        },
        '|' if fence.is_none() => Some(MarkdownLine::Row),
        '#' if fence.is_none() && count <= MAX_HEADING_LEVEL => match words[count..].chars().next()
        {
            Some(' ') => Some(MarkdownLine::Heading),
            None if may_continue => None,
            _ => Some(usual),
        },
        _ => Some(usual),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::plain;

    const TEXT: &str =
        "\n\n# Title\nplain `code` #no\n```rust\n# not a heading\nlet x;\n```\n#5\nend";

    fn render(pieces: impl Iterator<Item = String>) -> String {
        let mut answer = AnswerRenderer::default();
        let mut shown: String = pieces.map(|piece| answer.push(&piece)).collect();
        shown.push_str(&answer.finish());
        shown
    }

    #[test]
    fn headings_and_code_have_styles() {
        let heading = Style::Strong.paint("# Title");
        let code = Style::Code.paint("# not a heading");
        let shown = render(std::iter::once(TEXT.to_owned()));
        assert!(shown.starts_with(&heading), "{shown:?}");
        assert!(shown.contains(&code), "{shown:?}");
        assert!(shown.ends_with("\n#5\nend\n"), "{shown:?}");
    }

    #[test]
    fn words_are_unchanged_for_any_pieces() {
        let expect = format!("{}\n", TEXT.trim_start());
        for size in 1..9 {
            let chars: Vec<char> = TEXT.chars().collect();
            let pieces = chars.chunks(size).map(|piece| piece.iter().collect());
            assert_eq!(plain(&render(pieces)), expect, "{size}");
        }
    }

    #[test]
    fn prose_is_wrapped_and_code_and_tables_are_not() {
        let text = "# A heading that is too long for it\nprose that is too long for it\n| a table that is too long |\n\n```\ncode that is too long for it\n```\n";
        let expect = "# A heading that is\ntoo long for it\nprose that is too\nlong for it\n| a table that is too long |\n\n```\ncode that is too long for it\n```\n";
        for size in 1..9 {
            let mut answer = AnswerRenderer::default();
            answer.set_width(Some(20));
            let chars: Vec<char> = text.chars().collect();
            let pieces = chars.chunks(size).map(|piece| piece.iter().collect::<String>());
            let mut shown: String = pieces.map(|piece| answer.push(&piece)).collect();
            shown.push_str(&answer.finish());
            assert_eq!(plain(&shown), expect, "{size}");
        }
    }

    #[test]
    fn held_word_is_shown_when_nothing_follows() {
        let mut answer = AnswerRenderer::default();
        answer.set_width(Some(20));
        assert_eq!(answer.push("one tw"), "one");
        assert_eq!(answer.flush(), " tw");
        assert_eq!(answer.push("o three"), "o");
        assert_eq!(answer.flush(), " three");
        answer.start_line();
        assert_eq!(answer.finish(), "", "the line has ended already");
    }

    #[test]
    fn words_are_shown_before_their_line_ends() {
        let mut answer = AnswerRenderer::default();
        assert_eq!(answer.push("Hel"), "Hel");
        assert_eq!(answer.push("lo"), "lo");
        assert_eq!(answer.push("\u{1b}[2Jthere"), "there");
        assert_eq!(answer.finish(), "\n");
        assert_eq!(AnswerRenderer::default().finish(), "", "an empty answer");
    }
}
