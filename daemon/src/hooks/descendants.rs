//! The processes below the one that runs a hook, whatever group or session they are in.
//!
//! On Linux this process adopts every process below it whose parent has ended. So it can end all of them, one generation after
//! the other: a process that is killed leaves its children to this one. Other systems have no such adoption. There a process
//! that leaves the group of the hook outlives it.
//!
//! **Invariant**: only `ollmd --run-hook` uses this, a process that has no children besides those of its hook.

#[cfg(target_os = "linux")]
use std::time::{Duration, Instant};

#[cfg(target_os = "linux")]
use rustix::io::Errno;
#[cfg(target_os = "linux")]
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, wait};

#[cfg(target_os = "linux")]
use crate::fsutil;

/// The longest time for the end of all processes. One that the system cannot end, because a disk does not answer or because it
/// has another user, is left.
#[cfg(target_os = "linux")]
const KILL_LIMIT: Duration = Duration::from_secs(1);
/// The pause in which killed processes end.
#[cfg(target_os = "linux")]
const KILL_PAUSE: Duration = Duration::from_millis(2);

/// Makes this process the parent of every process below it whose parent ends.
#[cfg(target_os = "linux")]
pub(super) fn adopt() {
    // Any process number switches it on. If the system refuses, the group of the hook is killed all the same.
    set_child_subreaper(Some(getpid())).ok();
}

#[cfg(not(target_os = "linux"))]
pub(super) const fn adopt() {}

/// Kills and collects the children of this process, and those that it adopts then, until none is left or the time is over.
/// Blocks.
#[cfg(target_os = "linux")]
pub(super) fn kill_all() {
    let end = Instant::now() + KILL_LIMIT;
    while Instant::now() < end {
        match wait(WaitOptions::NOHANG) {
            // A child that has ended is collected.
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => {
                for child in children() {
                    kill_process(child, Signal::KILL).ok();
                }
                std::thread::sleep(KILL_PAUSE);
            }
            // There is no child.
            Err(_) => return,
        }
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) const fn kill_all() {}

/// Returns the children of this process. Their numbers stay theirs until this process collects them.
#[cfg(target_os = "linux")]
fn children() -> Vec<Pid> {
    let own = getpid();
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let child = |entry: std::fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse::<i32>().ok()?;
        let stat = fsutil::read_regular(&entry.path().join("stat")).ok()?;
        (Pid::from_raw(parent_in(&stat)?)? == own).then_some(Pid::from_raw(pid)?)
    };
    processes.filter_map(|entry| child(entry.ok()?)).collect()
}

/// Returns the number of the parent in the content of `/proc/PID/stat`: the second field behind the name of the program, which
/// is in parentheses and can contain any character.
#[cfg(any(target_os = "linux", test))]
fn parent_in(stat: &[u8]) -> Option<i32> {
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let fields = std::str::from_utf8(&stat[name_end + 1..]).ok()?;
    fields.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parent_follows_the_name_of_the_program() {
        let check = |stat: &[u8], expected| assert_eq!(parent_in(stat), expected);
        check(b"12 (sleep) S 7 12 12 0 -1\n", Some(7));
        check(b"12 (a) S 9 (\xff b) R 7 12 12 0 -1\n", Some(7));
        check(b"12 (sleep) S", None);
        check(b"", None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn children_of_this_process_are_found() {
        // It ends when its stdin is closed.
        let mut command = std::process::Command::new("cat");
        let mut child = command.stdin(std::process::Stdio::piped()).spawn().expect("starts");
        let found = children().contains(&Pid::from_child(&child));
        drop(child.stdin.take());
        child.wait().expect("ends");
        assert!(found);
    }
}
