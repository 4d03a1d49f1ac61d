//! The streams of a command: data to stdout, everything else to stderr.
//!
//! Decides once whether the streams are terminals, how wide they are, and whether they get colors.

use std::io::{self, BufRead as _, BufWriter, IsTerminal as _, Write};

use anstream::adapter::strip_str;
use anstream::{AutoStream, ColorChoice};
use rustix::termios::{Winsize, tcgetwinsize};

use super::live::ScreenSize;

/// The width of an unknown terminal.
const DEFAULT_WIDTH: usize = 80;
/// The smallest width used: on a narrower terminal wrapped lines are better than tables cut to nothing.
const MIN_WIDTH: usize = 40;

/// Writing to stdout failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the output")]
pub(crate) struct OutputError(#[from] pub(crate) io::Error);

/// The streams of a command.
pub(crate) struct Terminal {
    out: Box<dyn Write>,
    out_color: bool,
    err_color: bool,
    out_is_terminal: bool,
    in_is_terminal: bool,
    err_is_terminal: bool,
    width: usize,
}

impl Terminal {
    /// Returns the streams of this process.
    pub(crate) fn of_process(choice: ColorChoice) -> Self {
        let color = |auto: ColorChoice| match choice {
            ColorChoice::Auto => auto != ColorChoice::Never,
            fixed => fixed != ColorChoice::Never,
        };
        let stdout = io::stdout();
        let out_is_terminal = stdout.is_terminal();
        let width = out_is_terminal.then(stdout_columns).flatten();
        Self {
            out_color: color(AutoStream::choice(&stdout)),
            err_color: color(AutoStream::choice(&io::stderr())),
            out_is_terminal,
            in_is_terminal: io::stdin().is_terminal(),
            err_is_terminal: io::stderr().is_terminal(),
            width: width.unwrap_or(DEFAULT_WIDTH).max(MIN_WIDTH),
            out: Box::new(BufWriter::new(stdout)),
        }
    }

    /// Returns streams that capture stdout.
    #[cfg(test)]
    pub(crate) fn captured(out_is_terminal: bool) -> (Self, CapturedOutput) {
        let output = CapturedOutput::default();
        let terminal = Self {
            out: Box::new(output.clone()),
            out_color: false,
            err_color: false,
            out_is_terminal,
            in_is_terminal: false,
            err_is_terminal: false,
            width: DEFAULT_WIDTH,
        };
        (terminal, output)
    }

    /// Returns whether a person reads stdout.
    pub(crate) fn out_is_terminal(&self) -> bool {
        self.out_is_terminal
    }

    /// Returns whether a person reads stderr.
    pub(crate) fn err_is_terminal(&self) -> bool {
        self.err_is_terminal
    }

    /// Returns whether a person can be asked a question.
    pub(crate) fn can_ask(&self) -> bool {
        self.in_is_terminal && self.err_is_terminal
    }

    /// Returns whether stdout gets colors.
    pub(crate) fn has_color(&self) -> bool {
        self.out_color
    }

    /// Returns the columns of a line.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// Returns the present size of the terminal on stdout; `None` if it is no terminal, or one that does not know its size.
    pub(crate) fn out_size(&self) -> Option<ScreenSize> {
        let size = self.out_is_terminal.then(stdout_size).flatten()?;
        let (columns, rows) = (size.ws_col.into(), size.ws_row.into());
        (rows > 0).then_some(ScreenSize { columns, rows })
    }

    /// Returns the columns at which text for people on stdout is wrapped; `None` if it is no terminal. A terminal that was
    /// resized has other ones now.
    pub(crate) fn out_columns(&self) -> Option<usize> {
        self.out_is_terminal.then(stdout_columns).flatten()
    }

    /// Returns the columns at which text on stderr is wrapped; `None` if stderr or stdout is no terminal, because the size is
    /// that of stdout.
    pub(crate) fn err_columns(&self) -> Option<usize> {
        self.err_is_terminal.then(stdout_columns).flatten()
    }

    /// Writes text for people; removes its styles if stdout gets no colors.
    pub(crate) fn print(&mut self, text: &str) -> Result<(), OutputError> {
        if self.out_color {
            self.print_raw(text)
        } else {
            Ok(write!(self.out, "{}", strip_str(text))?)
        }
    }

    /// Writes data unchanged.
    pub(crate) fn print_raw(&mut self, data: impl AsRef<[u8]>) -> Result<(), OutputError> {
        Ok(self.out.write_all(data.as_ref())?)
    }

    /// Flushes stdout.
    pub(crate) fn flush(&mut self) -> Result<(), OutputError> {
        Ok(self.out.flush()?)
    }

    /// Writes a line for people to stderr; ignores failures, which could not be reported anywhere.
    pub(crate) fn eprintln(&self, text: &str) {
        self.eprint(&format!("{text}\n"));
    }

    /// Writes text for people to stderr, without a line break.
    pub(crate) fn eprint(&self, text: &str) {
        let mut err = io::stderr().lock();
        let written =
            if self.err_color { write!(err, "{text}") } else { write!(err, "{}", strip_str(text)) };
        drop(written);
    }

    /// Asks a question; only `y` and `yes` affirm it.
    pub(crate) fn confirm(&mut self, question: &str) -> Result<bool, OutputError> {
        self.flush()?;
        let mut err = io::stderr().lock();
        write!(err, "{question} [y/N] ")?;
        err.flush()?;
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer)?;
        Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
    }
}

/// Returns the size of the terminal on stdout; `None` if it is no terminal, or one that does not know its columns.
fn stdout_size() -> Option<Winsize> {
    tcgetwinsize(io::stdout()).ok().filter(|size| size.ws_col > 0)
}

/// Returns the columns of the terminal on stdout.
fn stdout_columns() -> Option<usize> {
    stdout_size().map(|size| size.ws_col.into())
}

/// The captured stdout of a test.
#[cfg(test)]
#[derive(Clone, Default)]
pub(crate) struct CapturedOutput(std::rc::Rc<std::cell::RefCell<Vec<u8>>>);

#[cfg(test)]
impl CapturedOutput {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.borrow().clone()).unwrap()
    }
}

#[cfg(test)]
impl Write for CapturedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
