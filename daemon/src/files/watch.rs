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

/// Returns whether an error means that the user has no watches left.
pub(crate) fn is_exhausted(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::NOSPC.raw_os_error())
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
    }

    impl DirWatcher {
        /// **Errors**: the user has no further instance of inotify, or the process no descriptor.
        pub(crate) fn new() -> io::Result<Self> {
            Ok(Self { fd: inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)? })
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
            Ok(inotify::add_watch(&self.fd, path, flags)?)
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
        pub(crate) fn new() -> io::Result<Self> {
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
}

pub(crate) use system::DirWatcher;
