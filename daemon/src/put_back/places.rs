//! Changes of one place in a project, at each moment of which somebody else may save a file there.
//!
//! Whatever leaves the place is examined in the stage. If it is not what was expected, it goes back, unless its place was
//! taken by something newer; then it stays in the stage.

use std::io;

use ollm_protocol::content::FileState;

use super::plan::conflict_of;
use crate::fsutil::beneath::{Dir, PlaceState};

/// The attempts to put the newest of several files in place that others save meanwhile.
const MAX_ROUNDS: usize = 1000;

/// The place of a file, and the stage.
pub(super) struct Place<'a> {
    pub(super) dir: &'a Dir,
    pub(super) name: &'a str,
    pub(super) stage: &'a Dir,
}

impl Place<'_> {
    pub(super) fn find(&self) -> io::Result<PlaceState> {
        self.dir.find(self.name)
    }

    /// Moves what is in place to a free name in the stage. [`Place::return_unless`] must follow.
    pub(super) fn take_out(&self, to: &str) -> io::Result<()> {
        self.dir.move_out(self.name, self.stage, to)
    }

    /// Moves a file of the stage into the place; returns whether the place was free.
    pub(super) fn put_in(&self, from: &str) -> io::Result<bool> {
        match self.stage.move_in(from, self.dir, self.name) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            moved => moved.map(|()| true),
        }
    }

    /// Exchanges what is in place with a file of the stage. [`Place::exchange_back_unless`] must follow.
    pub(super) fn exchange(&self, staged: &str) -> io::Result<()> {
        self.dir.exchange(self.name, self.stage, staged)
    }

    /// Puts a file that was taken out back unless it is as expected, and returns the reason.
    pub(super) fn return_unless(
        &self,
        taken: &str,
        expected: FileState,
    ) -> io::Result<Option<String>> {
        let reason = conflict_of(&self.stage.find(taken)?, expected);
        if reason.is_some() {
            let _was_free = self.put_in(taken)?;
        }
        Ok(reason)
    }

    /// Puts a file that an exchange brought into the stage back unless it is as expected, and returns the reason. `placed` is
    /// the file that took its place.
    pub(super) fn exchange_back_unless(
        &self,
        staged: &str,
        expected: FileState,
        placed: FileState,
    ) -> io::Result<Option<String>> {
        let reason = conflict_of(&self.stage.find(staged)?, expected);
        if reason.is_some() {
            self.exchange_back(staged, placed)?;
        }
        Ok(reason)
    }

    /// Exchanges a file of the stage with the one that was placed before, unless somebody wrote the place since. The newest
    /// file is in place then, and older ones are in the stage.
    pub(super) fn exchange_back(&self, staged: &str, placed: FileState) -> io::Result<()> {
        let mut placed = Some(placed);
        for _ in 0..MAX_ROUNDS {
            let back = self.stage.find(staged)?.state();
            match self.exchange(staged) {
                // Somebody removed the file in place.
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                exchanged => exchanged?,
            }
            let arrived = self.stage.find(staged)?;
            let is_written = matches!(arrived, PlaceState::File(file) if file.has_writer);
            if arrived.state() == placed && !is_written {
                return Ok(());
            }
            placed = back;
        }
        Ok(())
    }
}
