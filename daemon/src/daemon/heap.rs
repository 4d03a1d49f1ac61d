//! The settings of glibc's allocator, and the return of freed memory to the system.
//!
//! glibc keeps freed memory for later, and a daemon that once had much to do would keep it for ever:
//!
//! - At first, it maps blocks of 128 KiB and more one by one and returns them when they are freed. But each freed one raises
//!   that limit, up to 32 MiB. From then on buffers of megabytes come from the heaps, of which nearly every thread has
//!   one, and stay there when they are freed. [`fix_thresholds`] keeps the limit at its first value.
//! - Each heap keeps the free memory below its highest live value. [`return_freed`] returns whole pages of it.
//!
//! Other systems return freed memory by themselves. A page with one live value stays, so values that live as long as the
//! daemon are few or large.

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

/// The size from which on a block is mapped, and from which on the free end of a heap is returned: the value with which
/// glibc begins. Every heap keeps as much; a smaller value costs calls of the system for usual buffers.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const KEPT_BYTES: libc::c_int = 128 * 1024;

/// Prevents the allocator from keeping larger blocks after it has seen larger ones. Call it once, before other threads.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(super) fn fix_thresholds() {
    #[expect(unsafe_code, reason = "no well-kept crate wraps this function of the C library")]
    // SAFETY: `mallopt` changes no live value. Setting one of the two sizes fixes both, see mallopt(3).
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_BYTES);
    }
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(super) const fn fix_thresholds() {}

/// Returns freed memory to the system. Takes about as long as reading the list of freed blocks.
///
/// No condition decides whether it is worth it: between two calls the process may have freed much without having grown.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(super) fn return_freed() {
    #[expect(unsafe_code, reason = "no well-kept crate wraps this function of the C library")]
    // SAFETY: `malloc_trim` may be called at any time from any thread, and changes no live value.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(super) const fn return_freed() {}

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
mod tests {
    use super::*;

    /// The variable that is set in a process of one test.
    const ALONE: &str = "OLLM_TEST_ALONE";

    /// Measures in a process of its own, because other tests allocate and free at the same time.
    fn measured_alone(test: &str, measure: fn()) {
        if std::env::var_os(ALONE).is_some() {
            return measure();
        }
        let own = std::env::current_exe().expect("is known");
        let name = format!("daemon::heap::tests::{test}");
        let arguments = [name.as_str(), "--exact", "--nocapture"];
        let run = std::process::Command::new(own).args(arguments).env(ALONE, "1").output();
        let run = run.expect("starts");
        let output = String::from_utf8_lossy(&run.stdout);
        assert!(run.status.success() && output.contains("1 passed"), "{output}");
    }

    #[test]
    fn memory_freed_between_live_values_is_returned() {
        measured_alone("memory_freed_between_live_values_is_returned", || {
            const BLOCKS: usize = 4096;
            const BLOCK_BYTES: usize = 16 * 1024;
            // The small values keep the allocator from returning the blocks by itself.
            let (mut blocks, mut live) = (Vec::new(), Vec::new());
            for n in 0..BLOCKS {
                blocks.push(vec![1_u8; BLOCK_BYTES]);
                live.push(Box::new(n));
            }
            // Pages are returned in the middle of the work: the rest of it frees memory and needs none.
            return_freed();
            let full = status_bytes("RssAnon:").expect("a size");
            drop(blocks);
            return_freed();
            let left = status_bytes("RssAnon:").expect("a size");
            let total = (BLOCKS * BLOCK_BYTES) as u64;
            assert!(
                left + total / 2 < full,
                "{full} bytes before, {left} after {total} were freed"
            );
            assert_eq!(live.len(), BLOCKS);
        });
    }

    #[test]
    fn large_block_is_returned_when_it_is_freed_after_a_larger_one() {
        let name = "large_block_is_returned_when_it_is_freed_after_a_larger_one";
        measured_alone(name, || {
            const BYTES: u64 = 24 << 20;
            fix_thresholds();
            let returned = || {
                drop(std::hint::black_box(vec![1_u8; 31 << 20]));
                let block = std::hint::black_box(vec![1_u8; 24 << 20]);
                let full = status_bytes("RssAnon:").expect("a size");
                drop(block);
                full.saturating_sub(status_bytes("RssAnon:").expect("a size"))
            };
            // A new thread has a heap of its own.
            let thread = std::thread::spawn(returned);
            let returned = thread.join().expect("ends");
            assert!(returned > BYTES / 2, "{returned} of {BYTES} bytes were returned");
        });
    }
}
