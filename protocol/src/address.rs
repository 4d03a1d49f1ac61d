//! The address of the daemon: the paths of its socket, derived from the home directory and the user alone.
//!
//! A terminal, cron and an editor have different environments, and all must find the same daemon. So no environment
//! variables count except `OLLM_HOME` and `OLLM_SOCKET`. Pure: callers check directories and files. Implements
//! PROTOCOL.md, section 1.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::Timestamp;

/// The longest socket path in bytes that all systems accept: macOS has 104 with the terminating zero.
pub const MAX_SOCKET_PATH_BYTES: usize = 103;

/// The content of `daemon.json`, which the home directory has while a daemon is running.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DaemonFile {
    /// The path of the socket.
    pub socket: PathBuf,
    /// The id of the home ([`home_id`]); early daemons did not write it. A copy of the file does not describe the copy
    /// of the home.
    pub home_id: Option<String>,
    /// The process id, for display only.
    pub pid: u32,
    /// The version of the daemon.
    pub version: String,
    /// The version of the protocol.
    pub protocol: u32,
    /// The time at which the daemon started.
    pub started_at: Timestamp,
}

/// Returns the id of a home from the device and the inode of its directory: `<device>:<inode>`, both decimal.
///
/// The id is the same for every path to the home, and a copy of the home has another one.
#[must_use]
pub fn home_id(device: u64, inode: u64) -> String {
    format!("{device}:{inode}")
}

/// Returns the socket paths that a daemon of this home may listen on, in the order in which they are tried.
///
/// `home` is canonical.
///
/// **Shape**: a path under `/run/user/<euid>`, to be used only if that directory belongs to the user and is private;
/// one in the home, unless it is too long; one under `/tmp/ollm-<euid>`.
#[must_use]
pub fn candidates(home: &Path, euid: u32) -> Vec<PathBuf> {
    let tag = home_tag(home);
    let in_home = home.join("run/ollmd.sock");
    let mut sockets = vec![PathBuf::from(format!("/run/user/{euid}/ollm/{tag}.sock"))];
    if in_home.as_os_str().len() <= MAX_SOCKET_PATH_BYTES {
        sockets.push(in_home);
    }
    sockets.push(PathBuf::from(format!("/tmp/ollm-{euid}/{tag}.sock")));
    sockets
}

/// Returns a short name for a home directory: its 32-bit FNV-1a hash in 8 hex digits, which distinguishes the few
/// homes of one user.
fn home_tag(home: &Path) -> String {
    let hash =
        home.as_os_str().as_bytes().iter().fold(0x811c_9dc5_u32, |hash, byte| {
            (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
        });
    format!("{hash:08x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_in_home_is_a_candidate_only_if_its_path_is_short() {
        let short = candidates(Path::new("/home/ada/.ollm"), 1000);
        assert_eq!(short.len(), 3);
        assert_eq!(short[1], Path::new("/home/ada/.ollm/run/ollmd.sock"));
        let long = candidates(Path::new(&format!("/{}", "x".repeat(120))), 1000);
        assert_eq!(long.len(), 2);
        assert!(long.iter().all(|path| path.as_os_str().len() <= MAX_SOCKET_PATH_BYTES));
    }
}
