//! A model's answer on stdout as it arrives: rendered on a terminal, else its sanitized text.
//!
//! **Invariants**: the screen is painted at most thirty times a second, and painting takes at most a tenth of the time,
//! however fast the answer arrives; a terminal that cannot move its cursor, or a reader that wants none of it, gets the text
//! alone.

use std::time::{Duration, Instant};

use ollm_protocol::sanitize::Sanitizer;

use super::live::{LiveLines, ScreenSize};
use super::markdown::{Layout, MarkdownStream};
use super::terminal::{OutputError, Terminal};

/// The shortest time between two paintings: thirty a second look like a steady stream.
const PAINT_PAUSE: Duration = Duration::from_millis(34);
/// The pause after a change of the size, in which the person may still drag the window.
const RESIZE_PAUSE: Duration = Duration::from_millis(150);
/// The pause after a painting is as many times as long as the painting took, so that a slow terminal or a large table is
/// painted less often.
const PAUSE_FACTOR: u32 = 10;

/// The output of an answer.
#[derive(Debug, Default)]
pub(crate) struct AnswerOutput {
    /// Set if the text is shown unchanged.
    is_plain: bool,
    /// The unchanged text.
    text: PlainText,
    stream: MarkdownStream,
    live: LiveLines,
    /// Pieces arrived since the last painting.
    is_dirty: bool,
    /// The time of the next painting; `None` before the first.
    next_paint: Option<Instant>,
    /// The last known size of the terminal, which can report none for a while.
    size: Option<ScreenSize>,
    /// The size that was seen last, for which nothing may be painted yet.
    seen: Option<ScreenSize>,
}

#[derive(Debug, Default)]
struct PlainText {
    sanitizer: Sanitizer,
    has_text: bool,
    /// The cursor is behind a text.
    is_in_line: bool,
}

impl AnswerOutput {
    /// Returns the output of an answer; `wants_plain` is set if nothing may be painted again.
    pub(crate) fn new(wants_plain: bool, terminal: &Terminal) -> Self {
        let size = terminal.out_size();
        let is_plain = wants_plain || size.is_none();
        Self { is_plain, size, seen: size, ..Self::default() }
    }

    /// Adds a piece, and shows it unless the screen was painted just before.
    pub(crate) fn push(&mut self, piece: &str, terminal: &mut Terminal) -> Result<(), OutputError> {
        if self.is_plain {
            let shown = self.text.push(piece);
            terminal.print_raw(shown)?;
            return terminal.flush();
        }
        self.stream.push(piece);
        self.is_dirty = true;
        self.paint_if_due(terminal)
    }

    /// Shows what has arrived, if it is time; lays the open block out again after a change of the width.
    pub(crate) fn paint_if_due(&mut self, terminal: &mut Terminal) -> Result<(), OutputError> {
        let Some(size) = self.size_now(terminal).filter(|_| !self.is_plain) else { return Ok(()) };
        if self.seen.replace(size).is_some_and(|seen| seen != size) {
            self.next_paint = Some(Instant::now() + RESIZE_PAUSE);
        }
        let is_same = self.size.is_some_and(|known| known.columns == size.columns);
        let has_new_width = !is_same && self.stream.has_open_text();
        let is_due = self.next_paint.is_none_or(|due| Instant::now() >= due);
        if is_due && (self.is_dirty || has_new_width) {
            self.paint(false, terminal)
        } else {
            Ok(())
        }
    }

    /// Returns the time until the next painting; `None` if nothing waits for it.
    pub(crate) fn paints_in(&self) -> Option<Duration> {
        let due = self.next_paint.filter(|_| self.is_dirty)?;
        Some(due.saturating_duration_since(Instant::now()))
    }

    /// Lets another output use the line below the answer.
    pub(crate) fn make_room(&mut self, terminal: &mut Terminal) -> Result<(), OutputError> {
        if self.is_plain {
            terminal.print_raw(self.text.end_line())?;
        } else {
            self.paint(false, terminal)?;
            terminal.print_raw(self.live.park())?;
        }
        terminal.flush()
    }

    /// Paints the open block where the cursor is, at the beginning of a line: other programs have used the terminal.
    pub(crate) fn paint_again(&mut self, terminal: &mut Terminal) -> Result<(), OutputError> {
        if self.is_plain {
            return Ok(());
        }
        self.live.forget();
        self.paint(false, terminal)
    }

    /// Shows the rest of the answer and ends its line. Another answer can follow.
    pub(crate) fn finish(&mut self, terminal: &mut Terminal) -> Result<(), OutputError> {
        if self.is_plain {
            let end = self.text.end_line();
            self.text.has_text = false;
            terminal.print_raw(end)?;
            return terminal.flush();
        }
        self.paint(true, terminal)
    }

    /// Returns the size of the terminal, or the last one if it reports none.
    fn size_now(&self, terminal: &Terminal) -> Option<ScreenSize> {
        terminal.out_size().or(self.size)
    }

    fn paint(&mut self, is_end: bool, terminal: &mut Terminal) -> Result<(), OutputError> {
        let Some(size) = self.size_now(terminal) else { return Ok(()) };
        let started = Instant::now();
        let layout = Layout { width: size.columns, is_styled: terminal.has_color() };
        let (finished, open) = if is_end {
            (self.stream.finish(layout), Vec::new())
        } else {
            (self.stream.take_finished(layout), self.stream.open_lines(layout))
        };
        terminal.print_raw(self.live.update(finished, open, size))?;
        terminal.flush()?;
        let pause = PAINT_PAUSE.max(started.elapsed() * PAUSE_FACTOR);
        (self.is_dirty, self.size) = (false, Some(size));
        self.next_paint = Some(Instant::now() + pause);
        Ok(())
    }
}

impl PlainText {
    /// Returns the text of a piece; drops empty lines before the first word.
    fn push(&mut self, piece: &str) -> String {
        let mut text = self.sanitizer.push(piece);
        if !self.has_text {
            text = text.trim_start_matches('\n').to_owned();
        }
        if let Some(last) = text.chars().last() {
            (self.has_text, self.is_in_line) = (true, last != '\n');
        }
        text
    }

    /// Returns the line break that an open line needs.
    fn end_line(&mut self) -> &'static str {
        if std::mem::take(&mut self.is_in_line) { "\n" } else { "" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_terminal_the_text_is_unchanged_but_for_escape_sequences() {
        let (mut terminal, output) = Terminal::captured(false);
        let mut answer = AnswerOutput::new(false, &terminal);
        for piece in ["\n\n# A *ti", "tle*\u{1b}[2", "J\n\n```\ncode\n", "```\nend"] {
            answer.push(piece, &mut terminal).unwrap();
        }
        answer.make_room(&mut terminal).unwrap();
        answer.finish(&mut terminal).unwrap();
        // An empty answer has no line.
        answer.finish(&mut terminal).unwrap();
        assert_eq!(output.text(), "# A *title*\n\n```\ncode\n```\nend\n");
    }

    #[test]
    fn answer_is_shown_though_the_terminal_reports_no_size() {
        let (mut terminal, output) = Terminal::captured(false);
        let size = Some(ScreenSize { columns: 20, rows: 5 });
        let mut answer = AnswerOutput { size, ..AnswerOutput::default() };
        answer.push("word", &mut terminal).unwrap();
        answer.finish(&mut terminal).unwrap();
        assert_eq!(output.text(), "word\n");
    }
}
