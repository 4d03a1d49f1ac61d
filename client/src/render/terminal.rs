//! Where output goes: data to stdout, everything else to stderr.
//!
//! Decides once whether there is a terminal, how wide it is and whether it wants colors.

use std::io::{self, BufRead as _, BufWriter, IsTerminal as _, Write};

use anstream::adapter::strip_str;
use anstream::{AutoStream, ColorChoice};

/// The width that is assumed where nobody says.
const DEFAULT_WIDTH: usize = 80;

/// Below this a table is rather broken by the terminal than cut to nothing.
const MIN_WIDTH: usize = 40;

/// The two streams of a command, and what is known of them.
pub(crate) struct Terminal {
    out: Box<dyn Write>,
    out_color: bool,
    err_color: bool,
    interactive_out: bool,
    interactive_in: bool,
    interactive_err: bool,
    width: usize,
}

impl Terminal {
    /// The streams of this process.
    pub(crate) fn of_process(choice: ColorChoice) -> Self {
        let color = |auto: ColorChoice| match choice {
            ColorChoice::Auto => auto != ColorChoice::Never,
            fixed => fixed != ColorChoice::Never,
        };
        let stdout = io::stdout();
        let interactive_out = stdout.is_terminal();
        // A terminal that does not know its size says 0.
        let width = comfy_table::Table::new().width().filter(|width| interactive_out && *width > 0);
        Self {
            out_color: color(AutoStream::choice(&stdout)),
            err_color: color(AutoStream::choice(&io::stderr())),
            interactive_out,
            interactive_in: io::stdin().is_terminal() && io::stderr().is_terminal(),
            interactive_err: io::stderr().is_terminal(),
            width: width.map_or(DEFAULT_WIDTH, usize::from).max(MIN_WIDTH),
            out: Box::new(BufWriter::new(stdout)),
        }
    }

    /// Streams that keep what is written, for a program or for a person.
    #[cfg(test)]
    pub(crate) fn kept(interactive_out: bool) -> (Self, Kept) {
        let kept = Kept::default();
        let terminal = Self {
            out: Box::new(kept.clone()),
            out_color: false,
            err_color: false,
            interactive_out,
            interactive_in: false,
            interactive_err: false,
            width: DEFAULT_WIDTH,
        };
        (terminal, kept)
    }

    /// Whether a person reads what is printed.
    pub(crate) fn is_interactive(&self) -> bool {
        self.interactive_out
    }

    /// Whether a person can be asked.
    pub(crate) fn can_ask(&self) -> bool {
        self.interactive_in
    }

    /// Whether a person reads what is told beside the data.
    pub(crate) fn is_watched(&self) -> bool {
        self.interactive_err
    }

    /// Whether what is printed may have colors.
    pub(crate) fn has_color(&self) -> bool {
        self.out_color
    }

    /// Columns of a line.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// Writes text for people; its styles are dropped where they are not wanted.
    pub(crate) fn print(&mut self, text: &str) -> io::Result<()> {
        if self.out_color {
            self.out.write_all(text.as_bytes())
        } else {
            write!(self.out, "{}", strip_str(text))
        }
    }

    /// Writes data as it is.
    pub(crate) fn print_raw(&mut self, data: &str) -> io::Result<()> {
        self.out.write_all(data.as_bytes())
    }

    /// Writes bytes that need not be text.
    pub(crate) fn print_bytes(&mut self, data: &[u8]) -> io::Result<()> {
        self.out.write_all(data)
    }

    /// Hands everything to the reader.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Tells a person something beside the data. Nobody is left to tell where that fails.
    pub(crate) fn note(&self, text: &str) {
        self.note_piece(&format!("{text}\n"));
    }

    /// A piece of what is told beside the data; the line goes on.
    pub(crate) fn note_piece(&self, text: &str) {
        let mut err = io::stderr().lock();
        let written =
            if self.err_color { write!(err, "{text}") } else { write!(err, "{}", strip_str(text)) };
        drop(written);
    }

    /// Asks a question that only `y` or `yes` affirms.
    pub(crate) fn ask(&mut self, question: &str) -> io::Result<bool> {
        self.flush()?;
        let mut err = io::stderr().lock();
        write!(err, "{question} [y/N] ")?;
        err.flush()?;
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer)?;
        Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
    }
}

/// What a test wrote.
#[cfg(test)]
#[derive(Clone, Default)]
pub(crate) struct Kept(std::rc::Rc<std::cell::RefCell<Vec<u8>>>);

#[cfg(test)]
impl Kept {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.borrow().clone()).unwrap()
    }
}

#[cfg(test)]
impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
