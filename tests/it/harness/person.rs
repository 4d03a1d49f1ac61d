//! A person at a terminal: types, and sees what `ollmctl` writes.

use std::io::{Read as _, Write as _};
use std::process::Child;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};

use pty_process::Size;
use pty_process::blocking::{Command, Pty, open};

use super::{DEADLINE, Sandbox, Waits as _, program};

/// Lines and columns of the terminal.
const SIZE: (u16, u16) = (40, 100);

/// A command on a terminal of its own.
#[must_use]
pub(crate) struct Person {
    child: Child,
    terminal: Arc<Pty>,
    written: Receiver<Vec<u8>>,
    /// Bytes that are no whole character yet.
    cut: Vec<u8>,
    /// Everything that was written.
    screen: String,
    /// How far of it was looked at, in bytes.
    seen: usize,
}

impl Person {
    /// Starts `ollmctl`.
    pub(crate) fn at(sandbox: &Sandbox, args: &[&str]) -> Self {
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
        let from = Arc::clone(&terminal);
        let (send, written) = mpsc::channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // A terminal whose last process is gone reads as an error on Linux.
            while let Ok(read @ 1..) = (&*from).read(&mut bytes) {
                if send.send(bytes[..read].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { child, terminal, written, cut: Vec::new(), screen: String::new(), seen: 0 }
    }

    /// Presses keys.
    pub(crate) fn types(&mut self, keys: &str) {
        (&*self.terminal).write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until a text is written after what was seen before. Styles are no text.
    #[track_caller]
    pub(crate) fn sees(&mut self, text: &str) {
        loop {
            let plain = plain(&self.screen);
            if let Some(at) = plain[self.seen..].find(text) {
                self.seen += at + text.len();
                return;
            }
            match self.written.recv_timeout(DEADLINE) {
                Ok(more) => self.take(&more),
                Err(_) => panic!("no {text:?} in {:?}", &plain[self.seen..]),
            }
        }
    }

    /// Moves whole characters to the screen.
    fn take(&mut self, bytes: &[u8]) {
        self.cut.extend(bytes);
        let whole = match std::str::from_utf8(&self.cut) {
            Ok(text) => text.len(),
            Err(error) => error.valid_up_to(),
        };
        let text = self.cut.drain(..whole).collect();
        self.screen.push_str(&String::from_utf8(text).unwrap());
    }

    /// Its exit code, when it has ended by itself.
    #[track_caller]
    pub(crate) fn left(&mut self) -> i32 {
        let status = self.child.wait_for(DEADLINE);
        while let Ok(more) = self.written.try_recv() {
            self.take(&more);
        }
        status.unwrap_or_else(|| panic!("it is still there: {:?}", self.screen)).code().unwrap()
    }

    /// Waits until it ended, by itself or by a signal.
    #[track_caller]
    pub(crate) fn ends(&mut self) {
        assert!(self.child.wait_for(DEADLINE).is_some(), "it is still there: {:?}", self.screen);
    }

    /// Everything that was written, as it was.
    pub(crate) fn screen(&self) -> String {
        self.screen.clone()
    }
}

impl Drop for Person {
    fn drop(&mut self) {
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// What was written without styles and without what a line editor needs to move about.
fn plain(written: &str) -> String {
    let mut plain = String::new();
    let mut rest = written.chars();
    while let Some(char) = rest.next() {
        if char != '\u{1b}' {
            plain.push(char);
        } else if rest.next() == Some('[') {
            // Parameters, up to the letter that ends the sequence.
            let _letter = rest.find(|char| ('@'..='~').contains(char));
        }
    }
    plain
}
