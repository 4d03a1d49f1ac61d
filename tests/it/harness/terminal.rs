//! `ollmctl` on a pseudo-terminal, driven as a person would: send keys, expect text.

use std::io::{Read as _, Write as _};
use std::process::Child;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};

use pty_process::Size;
use pty_process::blocking::{Command, Pty, open};

use super::{ChildExt as _, DEADLINE, Sandbox, program};

/// Rows and columns of the terminal.
const SIZE: (u16, u16) = (40, 100);

/// A command on a terminal of its own; killed when dropped.
#[must_use]
pub(crate) struct Terminal {
    child: Child,
    terminal: Arc<Pty>,
    output: Receiver<Vec<u8>>,
    /// The bytes of a character that has not arrived completely.
    partial_char: Vec<u8>,
    screen: String,
    /// The offset behind the last text that [`Terminal::expect`] found, in bytes of the screen without styles.
    position: usize,
}

impl Terminal {
    /// Starts `ollmctl` with the home of the sandbox.
    pub(crate) fn start(sandbox: &Sandbox, args: &[&str]) -> Self {
        let (pty, pts) = open().unwrap();
        pty.resize(Size::new(SIZE.0, SIZE.1)).unwrap();
        let home = sandbox.home();
        let directory = home.parent().unwrap();
        let command = Command::new(program("ollmctl"))
            .args(args)
            .env_clear()
            .env("HOME", directory)
            .env("PATH", "/usr/bin:/bin")
            .env("LANG", "C.UTF-8")
            .env("TERM", "xterm")
            .env("OLLM_HOME", &home)
            .current_dir(directory);
        let child = command.spawn(pts).unwrap();
        let terminal = Arc::new(pty);
        let reader = Arc::clone(&terminal);
        let (send, output) = mpsc::channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // On Linux, reading fails once the last process of the terminal has ended.
            while let Ok(read @ 1..) = (&*reader).read(&mut bytes) {
                if send.send(bytes[..read].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self {
            child,
            terminal,
            output,
            partial_char: Vec::new(),
            screen: String::new(),
            position: 0,
        }
    }

    pub(crate) fn send(&mut self, keys: &str) {
        (&*self.terminal).write_all(keys.as_bytes()).unwrap();
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
            match self.output.recv_timeout(DEADLINE) {
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
        let status = self.child.wait_timeout(DEADLINE);
        while let Ok(bytes) = self.output.try_recv() {
            self.append(&bytes);
        }
        status.unwrap_or_else(|| panic!("still running: {:?}", self.screen)).code().unwrap()
    }

    /// Waits for the command to end, by itself or by a signal.
    #[track_caller]
    pub(crate) fn wait_exit(&mut self) {
        let status = self.child.wait_timeout(DEADLINE);
        assert!(status.is_some(), "still running: {:?}", self.screen);
    }

    /// Returns everything that was written so far, escape sequences included.
    pub(crate) fn screen(&self) -> &str {
        &self.screen
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
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
