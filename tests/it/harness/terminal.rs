//! `ollmctl` on a pseudo-terminal, driven as a person would: send keys, expect text.

use super::pty::PtyProgram;
use super::{ChildExt as _, DEADLINE, Sandbox};

/// Columns and rows of the terminal.
const SIZE: (u16, u16) = (100, 40);

/// A command on a terminal of its own; killed when dropped.
#[must_use]
pub(crate) struct Terminal {
    program: PtyProgram,
    /// The bytes of a character that has not arrived completely.
    partial_char: Vec<u8>,
    screen: String,
    /// The offset behind the last text that [`Terminal::expect`] found, in bytes of the screen without styles.
    position: usize,
}

impl Terminal {
    /// Starts `ollmctl` with the home of the sandbox.
    pub(crate) fn start(sandbox: &Sandbox, args: &[&str]) -> Self {
        let mut command = sandbox.command("ollmctl");
        command.env("TERM", "xterm").args(args);
        let program = PtyProgram::start(command, SIZE);
        Self { program, partial_char: Vec::new(), screen: String::new(), position: 0 }
    }

    pub(crate) fn send(&mut self, keys: &str) {
        self.program.send(keys);
    }

    /// Waits for a text behind the last expected one, styles ignored.
    #[track_caller]
    pub(crate) fn expect(&mut self, text: &str) {
        loop {
            let screen = without_escapes(&self.screen);
            if let Some(at) = screen[self.position..].find(text) {
                self.position += at + text.len();
                return;
            }
            match self.program.output.recv_timeout(DEADLINE) {
                Ok(bytes) => self.append(&bytes),
                Err(_) => panic!("no {text:?} in {:?}", &screen[self.position..]),
            }
        }
    }

    /// Appends complete characters to the screen and keeps the rest.
    fn append(&mut self, bytes: &[u8]) {
        self.partial_char.extend(bytes);
        let complete = match std::str::from_utf8(&self.partial_char) {
            Ok(text) => text.len(),
            Err(error) => error.valid_up_to(),
        };
        let text = self.partial_char.drain(..complete).collect();
        self.screen.push_str(&String::from_utf8(text).unwrap());
    }

    /// Waits for the command to exit by itself and returns its exit code.
    #[track_caller]
    pub(crate) fn exit_code(&mut self) -> i32 {
        let status = self.program.child.wait_timeout(DEADLINE);
        while let Ok(bytes) = self.program.output.try_recv() {
            self.append(&bytes);
        }
        status.unwrap_or_else(|| panic!("still running: {:?}", self.screen)).code().unwrap()
    }

    /// Waits for the command to end, by itself or by a signal.
    #[track_caller]
    pub(crate) fn wait_exit(&mut self) {
        let status = self.program.child.wait_timeout(DEADLINE);
        assert!(status.is_some(), "still running: {:?}", self.screen);
    }

    /// Returns everything that was written so far, escape sequences included.
    pub(crate) fn screen(&self) -> &str {
        &self.screen
    }
}

/// Returns the text without styles and cursor movements.
fn without_escapes(screen: &str) -> String {
    let mut text = String::new();
    let mut chars = screen.chars();
    while let Some(char) = chars.next() {
        if char != '\u{1b}' {
            text.push(char);
        } else if chars.next() == Some('[') {
            // Skips the parameters and the letter that ends the sequence.
            let _letter = chars.find(|char| ('@'..='~').contains(char));
        }
    }
    text
}
