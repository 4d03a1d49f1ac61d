//! What is typed while a model answers is not mixed into the answer; the next line begins with it.

use std::io::stdin;

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

/// A terminal that does not show what is typed, until this is dropped.
pub(super) struct Quiet {
    before: Termios,
}

impl Quiet {
    /// `None` where there is no terminal.
    pub(super) fn new() -> Option<Self> {
        let before = tcgetattr(stdin()).ok()?;
        let mut quiet = before.clone();
        quiet.local_modes.remove(LocalModes::ECHO);
        tcsetattr(stdin(), OptionalActions::Now, &quiet).ok()?;
        Some(Self { before })
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing any more.
        tcsetattr(stdin(), OptionalActions::Now, &self.before).ok();
    }
}
