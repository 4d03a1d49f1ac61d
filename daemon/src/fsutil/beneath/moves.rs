//! Moves between a directory of others and a private one, of which only this process knows the names.
//!
//! Another program may save a file at any moment, which replaces it. So nothing is ever removed or overwritten in a place of
//! others: a file moves out as a whole, whatever it is, and is examined in the private directory; it moves in only if the
//! place is empty. Where renames have no flags, as on 9p, a move in is a link, whose other name is private.

use std::io;

use rustix::fs::{AtFlags, RenameFlags};
use rustix::io::Errno;

use super::super::disk::{Ability, Change, carry_out, check_ability};
use super::Dir;

impl Dir {
    /// Exchanges two files in one step.
    ///
    /// **Errors**: of kind `Unsupported` if the system or the file system cannot do it.
    pub(crate) fn exchange(&self, name: &str, other: &Self, other_name: &str) -> io::Result<()> {
        let (path, other_path) = (self.path.join(name), other.path.join(other_name));
        carry_out(Change::Exchange(&path, &other_path), || {
            self.rename_with(name, other, other_name, RenameFlags::EXCHANGE)
        })
    }

    /// Moves whatever has a name to a private directory.
    ///
    /// **Errors**: of kind `AlreadyExists` if the private name is taken, and then nothing changes.
    pub(crate) fn move_out(&self, name: &str, private: &Self, to: &str) -> io::Result<()> {
        match self.move_new(name, private, to) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {}
            moved => return moved,
        }
        match rustix::fs::statat(&private.fd, to, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => {}
            found => return found.map_or_else(|error| Err(error.into()), |_| Err(taken())),
        }
        let (path, other_path) = (self.path.join(name), private.path.join(to));
        carry_out(Change::Move(&path, &other_path), || {
            Ok(rustix::fs::renameat(&self.fd, name, &private.fd, to)?)
        })
    }

    /// Moves a file of this private directory to a place that must be empty. A crash may leave both names.
    ///
    /// **Errors**: of kind `AlreadyExists` if the place is taken, and then nothing changes; of kind `Unsupported` if the file
    /// system can neither rename without replacing nor link.
    pub(crate) fn move_in(&self, name: &str, place: &Self, to: &str) -> io::Result<()> {
        match self.move_new(name, place, to) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {}
            moved => return moved,
        }
        let (path, other_path) = (self.path.join(name), place.path.join(to));
        carry_out(Change::Link(&path, &other_path), || {
            check_ability(&place.path, Ability::Links)?;
            let linked = rustix::fs::linkat(&self.fd, name, &place.fd, to, AtFlags::empty());
            linked.map_err(|error| match error {
                Errno::PERM | Errno::NOSYS | Errno::NOTSUP => {
                    let problem = "the file system can neither rename a file without replacing \
                                   another one nor give it a second name";
                    io::Error::new(io::ErrorKind::Unsupported, problem)
                }
                error => error.into(),
            })
        })?;
        // Without a journal, the new name could be lost although the old one is gone.
        place.sync()?;
        self.remove(name)
    }

    fn move_new(&self, name: &str, other: &Self, to: &str) -> io::Result<()> {
        let (path, other_path) = (self.path.join(name), other.path.join(to));
        carry_out(Change::Move(&path, &other_path), || {
            self.rename_with(name, other, to, RenameFlags::NOREPLACE)
        })
    }

    /// Renames with flags.
    ///
    /// **Errors**: of kind `Unsupported` for an old kernel or a file system that cannot do it.
    fn rename_with(
        &self,
        name: &str,
        other: &Self,
        to: &str,
        flags: RenameFlags,
    ) -> io::Result<()> {
        check_ability(&self.path, Ability::RenameFlags)?;
        match rustix::fs::renameat_with(&self.fd, name, &other.fd, to, flags) {
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
                Err(io::ErrorKind::Unsupported.into())
            }
            renamed => Ok(renamed?),
        }
    }
}

fn taken() -> io::Error {
    io::ErrorKind::AlreadyExists.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fsutil::SyncMethod;
    use crate::fsutil::beneath::PlaceState;
    use crate::fsutil::trace::DiskTrace;

    #[test]
    fn files_change_places_and_are_never_overwritten() {
        for lacks in [&[][..], &[Ability::RenameFlags]] {
            let scratch = tempfile::tempdir().expect("a scratch directory");
            let trace = DiskTrace::new(scratch.path());
            trace.set_lacking(lacks);
            let dir = Dir::open(scratch.path()).expect("opens");
            dir.create_dir("private", 0o700).expect("creates");
            let private = dir.open_beneath("private").expect("opens");
            let create = |dir: &Dir, name: &str, text: &[u8]| {
                dir.create(name, text, 0o640, SyncMethod::Each).expect("creates");
            };
            create(&dir, "one", b"1");
            create(&private, "two", b"2");
            let is_taken = |moved: io::Result<()>| {
                assert_eq!(moved.expect_err("is taken").kind(), io::ErrorKind::AlreadyExists);
            };
            is_taken(dir.move_out("one", &private, "two"));
            is_taken(private.move_in("two", &dir, "one"));
            dir.move_out("one", &private, "out").expect("moves");
            private.move_in("two", &dir, "one").expect("moves");
            assert_eq!(dir.read("one", 9).expect("reads"), b"2");
            assert_eq!(private.read("out", 9).expect("reads"), b"1");
            assert_eq!(dir.find("two").expect("looks"), PlaceState::Absent);
            assert_eq!(private.find("two").expect("looks"), PlaceState::Absent);
            let exchanged = dir.exchange("one", &private, "out");
            assert_eq!(exchanged.is_ok(), lacks.is_empty());
        }
    }

    #[test]
    fn move_in_is_refused_where_it_could_replace_a_file() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let trace = DiskTrace::new(scratch.path());
        trace.set_lacking(&[Ability::RenameFlags, Ability::Links]);
        let dir = Dir::open(scratch.path()).expect("opens");
        dir.create("one", b"1", 0o600, SyncMethod::Each).expect("creates");
        let refused = dir.move_in("one", &dir, "two").expect_err("is refused");
        assert_eq!(refused.kind(), io::ErrorKind::Unsupported);
        assert_eq!(dir.read("one", 1).expect("stays"), b"1");
        let refused = dir.read("one", 0).expect_err("is too large");
        assert_eq!(refused.kind(), io::ErrorKind::FileTooLarge);
    }
}
