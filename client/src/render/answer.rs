//! An answer of a model as it comes: clean, unchanged in its words and lines, headings and program text set off.
//!
//! Every piece that is returned ends the styles that it begins, so that the terminal is in order wherever an answer
//! stops. Pure.

use super::style::Style;
use ollm_protocol::sanitize;

/// Levels of headings in Markdown.
const MAX_HEADING: usize = 6;
/// Blanks before a fence or a heading; with more it is program text.
const MAX_INDENT: usize = 3;

/// Lays out an answer piece by piece.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    clean: sanitize::Sanitizer,
    /// The beginning of a line, as long as it does not show what line it is.
    held: String,
    line: Option<Line>,
    fence: Option<char>,
    has_text: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    Plain,
    Heading,
    Fence(char),
    Code,
}

impl Answer {
    /// What can be shown now that this piece is there; empty lines before the first word are dropped.
    pub(crate) fn push(&mut self, piece: &str) -> String {
        let text = self.clean.push(piece);
        self.lay_out(&text)
    }

    /// What is left when no piece follows, with the end of the last line.
    pub(crate) fn finish(&mut self) -> String {
        let held = std::mem::take(&mut self.held);
        let mut shown = held.clone();
        if self.line.take().is_some() || !held.is_empty() {
            shown.push('\n');
        }
        shown
    }

    fn lay_out(&mut self, text: &str) -> String {
        let text = if self.has_text { text } else { text.trim_start_matches('\n') };
        self.has_text |= !text.is_empty();
        text.split_inclusive('\n').map(|piece| self.piece(piece)).collect()
    }

    /// A piece of one line.
    fn piece(&mut self, piece: &str) -> String {
        let held;
        let (line, piece) = match self.line {
            Some(line) => (line, piece),
            None => {
                self.held.push_str(piece);
                let Some(line) = kind(&self.held, self.fence) else { return String::new() };
                self.line = Some(line);
                held = std::mem::take(&mut self.held);
                (line, held.as_str())
            }
        };
        let (words, end) = piece.strip_suffix('\n').map_or((piece, ""), |words| (words, "\n"));
        if !end.is_empty() {
            self.line = None;
            if let Line::Fence(sign) = line {
                self.fence = if self.fence.is_some() { None } else { Some(sign) };
            }
        }
        let style = match line {
            Line::Plain => return format!("{words}{end}"),
            _ if words.is_empty() => return end.to_owned(),
            Line::Heading => Style::Strong,
            Line::Fence(_) => Style::Faint,
            Line::Code => Style::Code,
        };
        style.paint(words) + end
    }
}

/// What a line is, by its beginning; `None` when more has to be seen.
fn kind(begins: &str, fence: Option<char>) -> Option<Line> {
    let ends = begins.ends_with('\n');
    let line = begins.trim_end_matches('\n');
    let words = line.trim_start_matches(' ');
    let usual = if fence.is_some() { Line::Code } else { Line::Plain };
    if line.len() - words.len() > MAX_INDENT {
        return Some(usual);
    }
    let Some(sign) = words.chars().next() else { return ends.then_some(usual) };
    let count = words.chars().take_while(|char| *char == sign).count();
    let is_all = count == words.chars().count() && !ends;
    match sign {
        '`' | '~' if fence.is_none_or(|open| open == sign) => match count {
            3.. => Some(Line::Fence(sign)),
            _ if is_all => None,
            _ => Some(usual),
        },
        '#' if fence.is_none() && count <= MAX_HEADING => match words[count..].chars().next() {
            Some(' ') => Some(Line::Heading),
            None if is_all => None,
            _ => Some(usual),
        },
        _ => Some(usual),
    }
}

#[cfg(test)]
mod tests {
    use anstream::adapter::strip_str;

    use super::*;

    const TEXT: &str =
        "\n\n# Title\nplain `code` #no\n```rust\n# not a heading\nlet x;\n```\n#5\nend";

    fn shown(pieces: impl Iterator<Item = String>) -> String {
        let mut answer = Answer::default();
        let mut shown: String = pieces.map(|piece| answer.push(&piece)).collect();
        shown.push_str(&answer.finish());
        shown
    }

    #[test]
    fn headings_and_program_text_are_set_off() {
        let bold = Style::Strong.paint("# Title");
        let code = Style::Code.paint("# not a heading");
        let whole = shown(std::iter::once(TEXT.to_owned()));
        assert!(whole.starts_with(&bold), "{whole:?}");
        assert!(whole.contains(&code), "{whole:?}");
        assert!(whole.ends_with("\n#5\nend\n"), "{whole:?}");
    }

    #[test]
    fn no_word_is_changed_however_it_is_cut() {
        let expect = format!("{}\n", TEXT.trim_start());
        for size in 1..9 {
            let chars: Vec<char> = TEXT.chars().collect();
            let pieces = chars.chunks(size).map(|piece| piece.iter().collect());
            assert_eq!(strip_str(&shown(pieces)).to_string(), expect, "{size}");
        }
    }

    #[test]
    fn words_do_not_wait_for_the_end_of_their_line() {
        let mut answer = Answer::default();
        assert_eq!(answer.push("Hel"), "Hel");
        assert_eq!(answer.push("lo"), "lo");
        assert_eq!(answer.push("\u{1b}[2Jthere"), "there");
        assert_eq!(answer.finish(), "\n");
        assert_eq!(Answer::default().finish(), "", "nothing was said");
    }
}
