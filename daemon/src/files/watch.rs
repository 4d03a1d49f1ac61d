//! Watches of directories: one for each directory of a root.
//!
//! On Linux these are watches of inotify, set before a directory is read, so that no change after that is missed. They
//! are set without the `notify` crate: it asks for a message to its thread and back for each directory, and reports
//! every opening of a file, so that a search with another tool would keep the daemon busy. On other systems there are
//! none yet, and roots are polled.
//!
//! Knows numbers of watches and names, and no paths of a tree.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

/// The most notices that are read at once. More are as good as lost: the root is walked again.
const MAX_NOTICES: usize = if cfg!(test) { 2_000 } else { 64 * 1024 };

/// The kind of a change in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoticeKind {
    /// The entry appeared.
    Created,
    /// The entry vanished.
    Removed,
    /// The entry was moved away from here; the number is the same as that of [`NoticeKind::MovedTo`].
    MovedFrom(u32),
    /// The entry was moved to here.
    MovedTo(u32),
    /// The content, the time or the rights of the entry changed.
    Modified,
    /// The directory itself was removed, moved or unmounted.
    SelfGone,
    /// The watch ended by itself.
    Ended,
}

/// A change in a watched directory.
#[derive(Clone, Debug)]
pub(crate) struct WatchNotice {
    pub(crate) watch: i32,
    /// The name of the entry; empty for the directory itself.
    pub(crate) name: Vec<u8>,
    pub(crate) kind: NoticeKind,
    pub(crate) is_dir: bool,
}

/// Returns whether an error of [`DirWatcher::add`] says that the directory is gone, was replaced by something else, or
/// cannot be read. After any other error, for example when the user has no more watches, its changes would be missed.
pub(crate) fn is_harmless(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let harmless = [Errno::NOENT, Errno::NOTDIR, Errno::ACCESS, Errno::LOOP, Errno::NAMETOOLONG];
    harmless.iter().any(|known| error.raw_os_error() == Some(known.raw_os_error()))
}

/// Returns whether the file system of this type, as `statfs` returns it, can be changed by other machines or programs
/// without a notice here: watches can be set, and report local changes only.
fn is_remote_type(file_system: u32) -> bool {
    const REMOTE: &[u32] = &[
        0x6969,      // NFS
        0x517b,      // SMB
        0xff53_4d42, // CIFS
        0xfe53_4d42, // SMB 2 and later
        0x0102_1997, // 9p
        0x6573_5546, // FUSE, such as sshfs and virtiofs
        0x00c3_6400, // Ceph
        0x5346_414f, // AFS
        0x7375_7245, // Coda
    ];
    REMOTE.contains(&file_system)
}

#[cfg(target_os = "linux")]
mod system {
    use std::mem::MaybeUninit;
    use std::os::fd::OwnedFd;

    use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
    use rustix::io::Errno;

    use super::*;

    /// The watches of one root.
    pub(crate) struct DirWatcher {
        fd: OwnedFd,
        /// The greatest number of a watch; only tests have another limit than the user's own.
        max_watch: i32,
    }

    impl DirWatcher {
        /// **Errors**: the user has no further instance of inotify, or the process no descriptor.
        pub(crate) fn new(max_watch: i32) -> io::Result<Self> {
            let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
            Ok(Self { fd, max_watch })
        }

        /// Watches a directory; returns the number of the watch, which is the same for the same directory.
        pub(crate) fn add(&self, path: &Path) -> io::Result<i32> {
            let flags = WatchFlags::CREATE
                | WatchFlags::DELETE
                | WatchFlags::MOVED_FROM
                | WatchFlags::MOVED_TO
                | WatchFlags::MODIFY
                | WatchFlags::ATTRIB
                | WatchFlags::DELETE_SELF
                | WatchFlags::MOVE_SELF
                | WatchFlags::ONLYDIR
                | WatchFlags::DONT_FOLLOW
                | WatchFlags::EXCL_UNLINK;
            let watch = inotify::add_watch(&self.fd, path, flags)?;
            if watch > self.max_watch {
                self.remove(watch);
                return Err(Errno::NOSPC.into());
            }
            Ok(watch)
        }

        /// Ends a watch; one that ended by itself is ignored.
        pub(crate) fn remove(&self, watch: i32) {
            let _ended = inotify::remove_watch(&self.fd, watch);
        }

        /// Adds the waiting notices to `notices`. Never waits.
        ///
        /// Returns false if notices were lost.
        pub(crate) fn read(&self, notices: &mut Vec<WatchNotice>) -> bool {
            let mut buffer = [MaybeUninit::uninit(); 16 * 1024];
            let mut reader = inotify::Reader::new(&self.fd, &mut buffer);
            loop {
                let event = match reader.next() {
                    Ok(event) => event,
                    Err(Errno::INTR) => continue,
                    Err(Errno::AGAIN) => return true,
                    Err(_) => return false,
                };
                let flags = event.events();
                if flags.contains(ReadFlags::QUEUE_OVERFLOW) || notices.len() >= MAX_NOTICES {
                    return false;
                }
                let Some(kind) = kind_of(flags, event.cookie()) else { continue };
                notices.push(WatchNotice {
                    watch: event.wd(),
                    name: event
                        .file_name()
                        .map(|name| name.to_bytes().to_vec())
                        .unwrap_or_default(),
                    kind,
                    is_dir: flags.contains(ReadFlags::ISDIR),
                });
            }
        }
    }

    /// Returns whether watches miss changes of a directory, because its file system belongs to another machine.
    pub(crate) fn misses_changes(path: &Path) -> bool {
        let Ok(found) = rustix::fs::statfs(path) else { return false };
        // The width of the field depends on the system; its values have 32 bits.
        let [a, b, c, d, ..] = found.f_type.to_le_bytes();
        is_remote_type(u32::from_le_bytes([a, b, c, d]))
    }

    fn kind_of(flags: ReadFlags, cookie: u32) -> Option<NoticeKind> {
        let kinds = [
            (ReadFlags::IGNORED, NoticeKind::Ended),
            (
                ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::UNMOUNT,
                NoticeKind::SelfGone,
            ),
            (ReadFlags::CREATE, NoticeKind::Created),
            (ReadFlags::DELETE, NoticeKind::Removed),
            (ReadFlags::MOVED_FROM, NoticeKind::MovedFrom(cookie)),
            (ReadFlags::MOVED_TO, NoticeKind::MovedTo(cookie)),
            (ReadFlags::MODIFY | ReadFlags::ATTRIB, NoticeKind::Modified),
        ];
        kinds.into_iter().find(|(mask, _)| flags.intersects(*mask)).map(|(_, kind)| kind)
    }

    impl AsFd for DirWatcher {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.fd.as_fd()
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use super::*;

    /// The watches of one root; there are none on this system.
    pub(crate) enum DirWatcher {}

    impl DirWatcher {
        pub(crate) fn new(_: i32) -> io::Result<Self> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub(crate) fn add(&self, _: &Path) -> io::Result<i32> {
            match *self {}
        }

        pub(crate) fn remove(&self, _: i32) {
            match *self {}
        }

        pub(crate) fn read(&self, _: &mut Vec<WatchNotice>) -> bool {
            match *self {}
        }
    }

    impl AsFd for DirWatcher {
        fn as_fd(&self) -> BorrowedFd<'_> {
            match *self {}
        }
    }

    pub(crate) fn misses_changes(_: &Path) -> bool {
        false
    }
}

pub(crate) use system::{DirWatcher, misses_changes};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_of_other_machines_are_known() {
        // NFS and sshfs; ext4, tmpfs and btrfs.
        let check = |types: &[u32], expected| {
            types
                .iter()
                .for_each(|found| assert_eq!(is_remote_type(*found), expected, "{found:x}"));
        };
        check(&[0x6969, 0x6573_5546], true);
        check(&[0xef53, 0x0102_1994, 0x9123_683e], false);
    }

    #[test]
    fn only_directories_that_are_gone_or_closed_need_no_watch() {
        use rustix::io::Errno;
        let check = |errors: &[Errno], expected| {
            let is_known = |error: &Errno| is_harmless(&(*error).into());
            errors.iter().for_each(|error| assert_eq!(is_known(error), expected, "{error}"));
        };
        check(&[Errno::NOENT, Errno::NOTDIR, Errno::ACCESS, Errno::LOOP, Errno::NAMETOOLONG], true);
        check(&[Errno::NOSPC, Errno::NOMEM, Errno::IO], false);
    }
}
