//! A program on a pseudo-terminal: its keys, its output and the size of its screen.

use std::io::{Read as _, Write as _};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};

use pty_process::Size;
use pty_process::blocking::{self, Pty, open};

/// A program on a terminal of its own; killed when dropped.
#[must_use]
pub(super) struct PtyProgram {
    pub(super) child: Child,
    /// The pieces that the program writes.
    pub(super) output: Receiver<Vec<u8>>,
    terminal: Arc<Pty>,
}

impl PtyProgram {
    /// Starts a command on a terminal of some columns and rows.
    pub(super) fn start(command: Command, (columns, rows): (u16, u16)) -> Self {
        let (pty, pts) = open().unwrap();
        pty.resize(Size::new(rows, columns)).unwrap();
        let child = blocking::Command::from(command).spawn(pts).unwrap();
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
        Self { child, output, terminal }
    }

    pub(super) fn send(&mut self, keys: &str) {
        (&*self.terminal).write_all(keys.as_bytes()).unwrap();
    }

    pub(super) fn resize(&mut self, (columns, rows): (u16, u16)) {
        self.terminal.resize(Size::new(rows, columns)).unwrap();
    }
}

impl Drop for PtyProgram {
    fn drop(&mut self) {
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
    }
}
