//! What the system says of a process, and of its own caches.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

/// A number of `/proc/<pid>/status`, for example `VmRSS`, which is in KiB.
pub(crate) fn status_number(path: &Path, name: &str) -> Result<u64> {
    let status = std::fs::read_to_string(path)?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.with_context(|| format!("no {name} in {}", path.display()))?.parse().context("a number")
}

/// Resident memory in KiB.
pub(crate) fn rss_kib(pid: u32) -> Result<u64> {
    status_number(Path::new(&format!("/proc/{pid}/status")), "VmRSS")
}

/// Makes the next read of any file come from the disk; false where that is not allowed.
pub(crate) fn drop_caches() -> bool {
    let synced = Command::new("sync").status().is_ok_and(|status| status.success());
    let file = std::fs::OpenOptions::new().write(true).open("/proc/sys/vm/drop_caches");
    synced && file.is_ok_and(|mut file| std::io::Write::write_all(&mut file, b"3").is_ok())
}
