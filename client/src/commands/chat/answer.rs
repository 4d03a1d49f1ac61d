//! A model's answer as it arrives: sanitized, its words and lines unchanged, with styles for headings and code.
//!
//! **Invariant**: each returned piece ends the styles that it begins, so the terminal is in order wherever an answer
//! stops. Pure.

use ollm_protocol::sanitize::Sanitizer;

use crate::render::Style;

/// The deepest level of a Markdown heading.
const MAX_HEADING_LEVEL: usize = 6;
/// The deepest indentation of a fence or a heading; a line with more is code.
const MAX_INDENT: usize = 3;

/// Renders an answer piece by piece.
#[derive(Debug, Default)]
pub(super) struct AnswerRenderer {
    sanitizer: Sanitizer,
    /// The beginning of a line whose kind is not known yet.
    held: String,
    line: Option<MarkdownLine>,
    /// The character of the open fence.
    fence: Option<char>,
    has_text: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MarkdownLine {
    Plain,
    Heading,
    Fence(char),
    Code,
}

impl AnswerRenderer {
    /// Adds a piece and returns the text that can be shown now; drops empty lines before the first word.
    pub(super) fn push(&mut self, piece: &str) -> String {
        let text = self.sanitizer.push(piece);
        let text = if self.has_text { text.as_str() } else { text.trim_start_matches('\n') };
        self.has_text |= !text.is_empty();
        text.split_inclusive('\n').map(|part| self.render_part(part)).collect()
    }

    /// Returns the rest of the answer with a final line break.
    pub(super) fn finish(&mut self) -> String {
        let mut rest = std::mem::take(&mut self.held);
        if self.line.take().is_some() || !rest.is_empty() {
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
        if !end.is_empty() {
            self.line = None;
            if let MarkdownLine::Fence(char) = line {
                self.fence = if self.fence.is_some() { None } else { Some(char) };
            }
        }
        let style = match line {
            MarkdownLine::Plain => return format!("{words}{end}"),
            _ if words.is_empty() => return end.to_owned(),
            MarkdownLine::Heading => Style::Strong,
            MarkdownLine::Fence(_) => Style::Faint,
            MarkdownLine::Code => Style::Code,
        };
        style.paint(words) + end
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
    fn words_are_shown_before_their_line_ends() {
        let mut answer = AnswerRenderer::default();
        assert_eq!(answer.push("Hel"), "Hel");
        assert_eq!(answer.push("lo"), "lo");
        assert_eq!(answer.push("\u{1b}[2Jthere"), "there");
        assert_eq!(answer.finish(), "\n");
        assert_eq!(AnswerRenderer::default().finish(), "", "an empty answer");
    }
}
