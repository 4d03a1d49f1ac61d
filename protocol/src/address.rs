//! Where the daemon listens: one rule for daemon and clients that depends on the home and the user alone.
//!
//! An environment that differs between a terminal, cron and an editor must not lead to two addresses, so no
//! variable but `OLLM_HOME` and `OLLM_SOCKET` counts. Pure: who calls checks directories and files.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::Timestamp;

/// The longest socket path in bytes that every system takes (macOS: 104 with the final zero).
pub const MAX_SOCKET_PATH_BYTES: usize = 103;

/// What `daemon.json` in the home says of the running daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DaemonFile {
    /// Where it listens.
    pub socket: PathBuf,
    /// Its process, for people; nothing is decided by it.
    pub pid: u32,
    /// Its version.
    pub version: String,
    /// Its protocol.
    pub protocol: u32,
    /// When it started.
    pub started_at: Timestamp,
}

/// The sockets that a daemon of this home may listen on, in the order in which they are tried.
///
/// **Shape**: under `/run/user/<euid>` (used only where that directory is the user's own and private), in the
/// home (only where short enough), under `/tmp/ollm-<euid>`. `home` is canonical.
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

/// Eight hex digits that name a home: FNV-1a, which is enough to tell one user's homes apart.
#[must_use]
pub fn home_tag(home: &Path) -> String {
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
    fn a_long_home_has_no_socket_of_its_own() {
        let short = candidates(Path::new("/home/ada/.ollm"), 1000);
        assert_eq!(short.len(), 3);
        assert_eq!(short[1], Path::new("/home/ada/.ollm/run/ollmd.sock"));
        let long = candidates(Path::new(&format!("/{}", "x".repeat(120))), 1000);
        assert_eq!(long.len(), 2);
        assert!(long.iter().all(|path| path.as_os_str().len() <= MAX_SOCKET_PATH_BYTES));
    }
}
