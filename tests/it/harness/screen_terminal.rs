//! `ollmctl` on a pseudo-terminal of any size, whose screen is what a person sees: for programs that draw all of it.

use std::ffi::OsStr;
use std::num::NonZeroU16;
use std::process::Command;
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};

use super::pty::PtyProgram;
use super::{ChildExt as _, DEADLINE, Sandbox, program};

/// A program on a terminal of its own; killed when dropped.
#[must_use]
pub(crate) struct ScreenTerminal {
    program: PtyProgram,
    parser: vt100::Parser,
    /// All bytes that were written.
    written: Vec<u8>,
}

impl ScreenTerminal {
    /// Starts `ollmctl` with the home of the sandbox on a terminal of some columns and rows.
    pub(crate) fn start(sandbox: &Sandbox, args: &[&str], size: (u16, u16)) -> Self {
        Self::start_with(sandbox, program("ollmctl"), args, size, &[])
    }

    /// As [`ScreenTerminal::start`], for any program and with further variables.
    pub(crate) fn start_with(
        sandbox: &Sandbox,
        program: impl AsRef<OsStr>,
        args: &[&str],
        (columns, rows): (u16, u16),
        variables: &[(&str, &str)],
    ) -> Self {
        let mut command = Command::new(program);
        sandbox.isolate(&mut command);
        command.env("TERM", "xterm").envs(variables.iter().copied()).args(args);
        let program = PtyProgram::start(command, (columns, rows));
        let parser = vt100::Parser::new(non_zero(rows), non_zero(columns), 0);
        Self { program, parser, written: Vec::new() }
    }

    pub(crate) fn send(&mut self, keys: &str) {
        self.program.send(keys);
    }

    pub(crate) fn resize(&mut self, (columns, rows): (u16, u16)) {
        self.program.resize((columns, rows));
        self.parser.set_size(non_zero(rows), non_zero(columns));
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.program.child.id().cast_signed()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Waits for a screen that contains all of the texts, and returns its text.
    #[track_caller]
    pub(crate) fn shows(&mut self, texts: &[&str]) -> String {
        self.until(|screen| texts.iter().all(|text| screen.contains(text)), texts)
    }

    /// Waits for a screen without the text, and returns its text.
    #[track_caller]
    pub(crate) fn hides(&mut self, text: &str) -> String {
        self.until(|screen| !screen.contains(text), &["without", text])
    }

    #[track_caller]
    fn until(&mut self, is_wanted: impl Fn(&str) -> bool, wanted: &[&str]) -> String {
        // A screen that changes by itself, as ages do, must not wait without an end.
        let end = Instant::now() + DEADLINE;
        loop {
            let screen = self.parser.screen().contents();
            if is_wanted(&screen) {
                return screen;
            }
            match self.program.output.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(bytes) => self.process(&bytes),
                Err(error) => panic!("not {wanted:?} ({error}) in\n{screen}"),
            }
        }
    }

    fn process(&mut self, bytes: &[u8]) {
        self.parser.process(bytes);
        self.written.extend(bytes);
    }

    /// Waits for the end of the program, and returns its exit code if it has one.
    #[track_caller]
    pub(crate) fn exit_code(&mut self) -> Option<i32> {
        let status = self.program.child.wait_timeout(DEADLINE);
        // The reader disconnects when it has passed on everything.
        while let Ok(bytes) = self.program.output.recv_timeout(DEADLINE) {
            self.process(&bytes);
        }
        let screen = || self.parser.screen().contents();
        status.unwrap_or_else(|| panic!("still running:\n{}", screen())).code()
    }

    /// Returns the screen, whose modes say whether the program has left it as it was.
    pub(crate) fn screen(&self) -> &vt100::Screen {
        self.parser.screen()
    }

    /// Returns all bytes that were written.
    pub(crate) fn written(&self) -> &[u8] {
        &self.written
    }
}

fn non_zero(number: u16) -> NonZeroU16 {
    NonZeroU16::new(number).expect("a terminal has a size")
}
