//! Removals of many files of a private directory.
//!
//! A removal can wait for the disk: with the mount option `discard` and without a journal, ext4 discards the blocks of each
//! file before the call returns. That took 2 to 5 ms for a file on the disk of a virtual machine, and 20,000 files took more
//! than a minute. The disk discards many at the same time, so several threads wait for it: 32 of them needed 0.1 ms a file.

use std::io;
use std::thread;

use super::Dir;

/// The most threads. More of them gain little, and each takes memory.
const MAX_THREADS: usize = 32;
/// The fewest files for which a further thread starts, which takes about as long as the removal of some files.
const FILES_PER_THREAD: usize = 64;
/// The stack of a thread in bytes.
const STACK_BYTES: usize = 256 * 1024;

impl Dir {
    /// Removes files, in any order.
    ///
    /// **Errors**: one of those that occurred; other files may have been removed.
    pub(crate) fn remove_all(&self, names: &[String]) -> io::Result<()> {
        let n_threads = (names.len() / FILES_PER_THREAD).clamp(1, MAX_THREADS);
        let remove = |names: &[String]| names.iter().try_for_each(|name| self.remove(name));
        if n_threads == 1 {
            return remove(names);
        }
        let parts = names.chunks(names.len().div_ceil(n_threads));
        thread::scope(|scope| {
            let spawn = |part| {
                let thread = thread::Builder::new().name("ollmd-remove".to_owned());
                let thread = thread.stack_size(STACK_BYTES);
                thread.spawn_scoped(scope, move || remove(part)).map_err(|_| part)
            };
            let threads: Vec<_> = parts.map(spawn).collect();
            let mut removed = Ok(());
            for thread in threads {
                let ended = match thread {
                    Ok(thread) => {
                        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                    }
                    // The system has no further thread.
                    Err(part) => remove(part),
                };
                removed = removed.and(ended);
            }
            removed
        })
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the test makes files")]
mod tests {
    use super::*;

    #[test]
    fn many_files_are_removed_and_an_error_is_reported() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let dir = Dir::open(scratch.path()).expect("opens");
        let names: Vec<String> = (0..1000).map(|number| number.to_string()).collect();
        for name in names.iter().map(String::as_str).chain(["stays"]) {
            std::fs::write(scratch.path().join(name), "x").expect("writes");
        }
        dir.remove_all(&names).expect("removes");
        assert_eq!(dir.names().expect("lists"), ["stays"]);
        let missing = dir.remove_all(&names).expect_err("are gone");
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        dir.remove_all(&[]).expect("has nothing to do");
    }
}
