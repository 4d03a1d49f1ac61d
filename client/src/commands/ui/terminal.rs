//! The terminal while the sessions are on it: raw mode, the alternate screen, and one write for each frame.
//!
//! **Invariant**: the terminal is as it was before when the value is dropped, when a thread panics, and when the process
//! is stopped by a key. Colors are the 16 of the terminal's palette.

use std::cell::RefCell;
use std::io::{self, Write};
use std::rc::Rc;

use parking_lot::Mutex;
use ratatui::backend::CrosstermBackend;
use ratatui::{Frame, Terminal};
use rustix::process::{Signal, kill_current_process_group};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};

use crate::render::terminal::OutputError;

/// The alternate screen without a cursor, and pasted texts between marks.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l\x1b[?2004h";
const LEAVE: &[u8] = b"\x1b[?2026l\x1b[?2004l\x1b[0m\x1b[?1049l\x1b[?25h";
/// Synchronized output: the terminal shows nothing of a frame before its end. Others ignore it.
const BEGIN_FRAME: &[u8] = b"\x1b[?2026h";
const END_FRAME: &[u8] = b"\x1b[?2026l";

/// The modes of the terminal before it was taken; `None` while it is not.
static SAVED: Mutex<Option<Termios>> = Mutex::new(None);

/// The terminal of this process, in full.
pub(super) struct FullScreen {
    terminal: Terminal<CrosstermBackend<FrameBytes>>,
    frame: FrameBytes,
    /// The bytes of the last frame. The next one is the same only if neither changes a cell: both place the cursor alone.
    last: Vec<u8>,
}

/// The bytes of a frame that is being drawn.
#[derive(Clone, Default)]
struct FrameBytes(Rc<RefCell<Vec<u8>>>);

impl Write for FrameBytes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl FullScreen {
    /// Takes the terminal.
    pub(super) fn enter() -> Result<Self, OutputError> {
        restore_after_panic();
        let frame = FrameBytes::default();
        let terminal = Terminal::new(CrosstermBackend::new(frame.clone()))?;
        let mut screen = Self { terminal, frame, last: Vec::new() };
        screen.take()?;
        Ok(screen)
    }

    /// Takes the terminal, also from another program that had it in between; the next frame is drawn whole.
    pub(super) fn take(&mut self) -> Result<(), OutputError> {
        restore();
        let saved = tcgetattr(io::stdin()).map_err(io::Error::from)?;
        let mut modes = saved.clone();
        modes.make_raw();
        *SAVED.lock() = Some(saved);
        tcsetattr(io::stdin(), OptionalActions::Now, &modes).map_err(io::Error::from)?;
        write_out(ENTER)?;
        self.redraw()
    }

    /// Gives the terminal back.
    pub(super) fn leave(&mut self) {
        restore();
    }

    /// Stops this process as Ctrl-Z does elsewhere; returns when it continues.
    pub(super) fn suspend(&mut self) -> Result<(), OutputError> {
        restore();
        kill_current_process_group(Signal::TSTP).map_err(io::Error::from)?;
        self.take()
    }

    /// Makes the next frame whole, over anything that another program wrote.
    pub(super) fn redraw(&mut self) -> Result<(), OutputError> {
        // `Terminal::clear` would ask the terminal for its cursor, and take keys for the answer.
        self.last.clear();
        let size = self.terminal.size()?;
        Ok(self.terminal.resize(size.into())?)
    }

    /// Draws a frame with one write, and without any if the screen stays as it is.
    pub(super) fn draw(&mut self, render: impl FnOnce(&mut Frame<'_>)) -> Result<(), OutputError> {
        self.terminal.draw(render)?;
        let bytes = std::mem::take(&mut *self.frame.0.borrow_mut());
        if bytes == self.last {
            return Ok(());
        }
        let mut out = Vec::with_capacity(bytes.len() + 32);
        out.extend_from_slice(BEGIN_FRAME);
        with_palette_colors(&bytes, &mut out);
        out.extend_from_slice(END_FRAME);
        self.last = bytes;
        Ok(write_out(&out)?)
    }
}

impl Drop for FullScreen {
    fn drop(&mut self) {
        restore();
    }
}

fn write_out(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}

/// Gives the terminal back if it is taken. Fails only if the terminal is gone.
fn restore() {
    // A panic while the lock is held must not wait for it.
    let Some(saved) = SAVED.try_lock().and_then(|mut saved| saved.take()) else { return };
    drop(write_out(LEAVE));
    tcsetattr(io::stdin(), OptionalActions::Now, &saved).ok();
}

/// Gives the terminal back before the message of a panic is printed.
fn restore_after_panic() {
    static INSTALLED: std::sync::Once = std::sync::Once::new();
    INSTALLED.call_once(|| {
        let earlier = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            earlier(panic);
        }));
    });
}

/// Writes the first 16 colors in the form that every terminal with colors knows: `31` instead of `38;5;1`.
fn with_palette_colors(bytes: &[u8], out: &mut Vec<u8>) {
    let mut rest = bytes;
    while let Some(at) = rest.windows(2).position(|pair| pair == b"\x1b[") {
        let sequence = &rest[at + 2..];
        let length = sequence.iter().position(|byte| (0x40..=0x7e).contains(byte));
        let Some(length) = length else { break };
        out.extend_from_slice(&rest[..at + 2]);
        let params = &sequence[..length];
        if sequence[length] == b'm' {
            out.extend_from_slice(palette_params(params).as_bytes());
        } else {
            out.extend_from_slice(params);
        }
        out.push(sequence[length]);
        rest = &sequence[length + 1..];
    }
    out.extend_from_slice(rest);
}

fn palette_params(params: &[u8]) -> String {
    let text = String::from_utf8_lossy(params);
    let mut params = text.split(';').peekable();
    let mut out: Vec<String> = Vec::new();
    while let Some(param) = params.next() {
        let base: Option<u8> = match param {
            "38" => Some(30),
            "48" => Some(40),
            _ => None,
        };
        match base.filter(|_| params.next_if_eq(&"5").is_some()) {
            None => out.push(param.to_owned()),
            Some(base) => match params.next().and_then(|color| color.parse::<u8>().ok()) {
                Some(color @ 0..8) => out.push((base + color).to_string()),
                Some(color @ 8..16) => out.push((base + 60 + color - 8).to_string()),
                other => out.push(format!("{param};5;{}", other.unwrap_or(0))),
            },
        }
    }
    out.join(";")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn palette_colors_have_their_own_codes() {
        let check = |input: &str, expect: &str| {
            let mut out = Vec::new();
            with_palette_colors(input.as_bytes(), &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), expect, "{input:?}");
        };
        check("a\u{1b}[38;5;1;49mred\u{1b}[0m", "a\u{1b}[31;49mred\u{1b}[0m");
        check("\u{1b}[38;5;14;48;5;8m日", "\u{1b}[96;100m日");
        check("\u{1b}[38;5;200mx", "\u{1b}[38;5;200mx");
        check("\u{1b}[3;38Hx\u{1b}[1m", "\u{1b}[3;38Hx\u{1b}[1m");
        check("text\u{1b}[", "text\u{1b}[");
    }
}
