//! Memory that the allocator keeps after a burst of work, returned to the system when the work is done.
//!
//! glibc keeps freed memory for later: of its main heap everything below the highest live value, and of the heaps of other
//! threads even more. A daemon that once imported a large session would keep hundreds of megabytes for ever. Other
//! systems return freed memory by themselves.

/// The growth in bytes from which on memory is returned: less is not worth the pause of the threads that allocate.
const MIN_GROWTH: u64 = 4 * 1024 * 1024;

/// Returns freed memory to the system after it has grown.
#[derive(Default)]
pub(super) struct HeapTrimmer {
    /// The smallest resident memory since the last trim.
    least: u64,
}

impl HeapTrimmer {
    /// Returns freed memory if the process has grown since the last call that did. May take milliseconds.
    pub(super) fn trim_if_grown(&mut self) {
        let Some(before) = resident_bytes() else { return };
        if before < self.least.saturating_add(MIN_GROWTH) {
            self.least = self.least.min(before);
            return;
        }
        trim();
        self.least = resident_bytes().unwrap_or(before);
        tracing::debug!(before, after = self.least, "returned freed memory to the system");
    }
}

/// Returns the resident memory of the process in bytes, if the system reports it.
pub(super) fn resident_bytes() -> Option<u64> {
    status_bytes("VmRSS:")
}

fn status_bytes(name: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib * 1024)
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn trim() {
    #[expect(unsafe_code, reason = "no well-kept crate wraps this function of the C library")]
    // SAFETY: `malloc_trim` may be called at any time from any thread, and changes no live value.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn trim() {}

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
mod tests {
    use super::*;

    #[test]
    fn memory_freed_between_live_values_is_returned() {
        const BLOCKS: usize = 4096;
        const BLOCK_BYTES: usize = 16 * 1024;
        // The small values keep the allocator from returning the blocks by itself.
        let (mut blocks, mut live) = (Vec::new(), Vec::new());
        for n in 0..BLOCKS {
            blocks.push(vec![1_u8; BLOCK_BYTES]);
            live.push(Box::new(n));
        }
        let full = status_bytes("RssAnon:").expect("a size");
        drop(blocks);
        HeapTrimmer::default().trim_if_grown();
        let left = status_bytes("RssAnon:").expect("a size");
        let total = (BLOCKS * BLOCK_BYTES) as u64;
        assert!(left + total / 2 < full, "{full} bytes before, {left} after {total} were freed");
        assert_eq!(live.len(), BLOCKS);
    }
}
