//! Programs that can still write a file, because they opened it before it changed its place.

use std::fs::File;

/// The operation that chooses the signal of a lease, see fcntl(2).
#[cfg(target_os = "linux")]
const F_SETSIG: libc::c_int = 10;

/// Returns whether a program has a file open for writing, as far as the system says so. The file is open for reading only.
///
/// A lease for reading is granted only while nobody has the file open for writing. It is given back at once; a program that
/// opens the file in between waits for that, or fails if it refuses to wait.
#[cfg(target_os = "linux")]
pub(super) fn has_writer(file: &File) -> bool {
    use std::os::fd::AsRawFd as _;

    let fd = file.as_raw_fd();
    #[expect(unsafe_code, reason = "no well-kept crate wraps leases")]
    // SAFETY: the calls concern only an open descriptor, take integers, and change no memory of this process.
    let granted = unsafe {
        // The usual signal to the holder of a lease ends the process. This one is ignored.
        if libc::fcntl(fd, F_SETSIG, libc::SIGURG) != 0 {
            return false;
        }
        libc::fcntl(fd, libc::F_SETLEASE, libc::F_RDLCK)
    };
    if granted != 0 {
        let refused = std::io::Error::last_os_error().kind() == std::io::ErrorKind::WouldBlock;
        return refused && !is_remote(file);
    }
    #[expect(unsafe_code, reason = "no well-kept crate wraps leases")]
    // SAFETY: as above. It cannot fail, and closing the file ends the lease as well.
    unsafe {
        libc::fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK);
    }
    false
}

/// Returns whether a file is on a server, where a refused lease says nothing about writers.
#[cfg(target_os = "linux")]
fn is_remote(file: &File) -> bool {
    const NFS: i64 = 0x6969;
    const SMB: [i64; 3] = [0x517B, 0xFF53_4D42, 0xFE53_4D42];
    rustix::fs::fstatfs(file).is_ok_and(|found| {
        let kind = super::file_system_kind(&found);
        kind == NFS || SMB.contains(&kind)
    })
}

/// Returns false: the system does not say who has a file open.
#[cfg(not(target_os = "linux"))]
pub(super) const fn has_writer(_: &File) -> bool {
    false
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_file_that_is_open_for_writing_has_a_writer() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let path = dir.path().join("file");
        let writer = File::create(&path).expect("creates");
        let file = File::open(&path).expect("opens");
        assert!(has_writer(&file));
        drop(writer);
        let _reader = File::open(&path).expect("opens");
        assert!(!has_writer(&file), "readers may stay");
        // The lease was given back.
        let writer = File::options().append(true).open(&path).expect("opens at once");
        assert!(has_writer(&file));
        drop(writer);
        assert!(!has_writer(&file));
    }
}
