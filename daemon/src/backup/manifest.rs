//! Manifests: the files of a backup with their parts, and the shapes that their paths can have.

use std::path::Path;

use ollm_protocol::{SessionId, Timestamp};
use serde::{Deserialize, Serialize};

use super::{BackupError, PART_BYTES, VERSION, is_hex, is_part_name};

/// The digits of a checksum in the id of a backup.
const ID_DIGITS: usize = 16;
/// The characters of the time in the id of a backup, with milliseconds: `20261128T044756123Z`.
const ID_TIME: usize = 19;
/// The longest name of a file, in bytes.
const MAX_NAME_BYTES: usize = 255;

/// The description of one backup.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Manifest {
    version: u32,
    pub(crate) created_at: Timestamp,
    /// The version of the daemon.
    pub(crate) daemon: String,
    /// The only session; absent for the whole home.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) session_id: Option<SessionId>,
    pub(crate) sessions: Vec<ManifestSession>,
    pub(crate) files: Vec<ManifestFile>,
}

/// A session of a backup.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ManifestSession {
    pub(crate) session_id: SessionId,
    pub(crate) title: String,
    pub(crate) last_activity: Timestamp,
    pub(crate) records: u64,
}

/// A file of a backup.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ManifestFile {
    /// The path in a home whose sessions are in it.
    pub(crate) path: String,
    pub(crate) bytes: u64,
    /// The names of its parts, in order.
    pub(crate) parts: Vec<String>,
}

impl ManifestFile {
    /// Returns the parts with their sizes in bytes.
    pub(crate) fn sized_parts(&self) -> impl Iterator<Item = (&str, u64)> {
        let size = |at: usize| (self.bytes - (at * PART_BYTES) as u64).min(PART_BYTES as u64);
        self.parts.iter().enumerate().map(move |(at, name)| (name.as_str(), size(at)))
    }

    fn is_valid(&self) -> bool {
        self.parts.len() as u64 == self.bytes.div_ceil(PART_BYTES as u64)
            && self.parts.iter().all(|name| is_part_name(name))
            && HomeFile::parse(&self.path).is_some()
    }
}

impl Manifest {
    pub(crate) fn new(created_at: Timestamp, session_id: Option<SessionId>) -> Self {
        let daemon = env!("CARGO_PKG_VERSION").to_owned();
        let (sessions, files) = (Vec::new(), Vec::new());
        Self { version: VERSION, created_at, daemon, session_id, sessions, files }
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec(self).expect("plain fields are JSON");
        bytes.push(b'\n');
        bytes
    }

    /// Reads a manifest whose checksum is right.
    pub(super) fn parse(bytes: &[u8], path: &Path, name: &str) -> Result<Self, BackupError> {
        let damaged = |problem| BackupError::damaged(path, name, problem);
        let manifest: Self =
            serde_json::from_slice(bytes).map_err(|_| damaged("it is no manifest"))?;
        if manifest.version > VERSION {
            return Err(BackupError::Newer { path: path.to_owned(), found: manifest.version });
        }
        if !manifest.files.iter().all(ManifestFile::is_valid) {
            return Err(damaged("it names a file that no backup has"));
        }
        Ok(manifest)
    }

    /// Returns the size of all files in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Returns the log of a session.
    pub(crate) fn log_of(&self, id: SessionId) -> Option<&ManifestFile> {
        let path = HomeFile::Log(id).path();
        self.files.iter().find(|file| file.path == path)
    }
}

/// Returns the id of a backup, which sorts by time.
pub(super) fn backup_id(created_at: Timestamp, checksum: &str) -> String {
    format!("{}-{}", created_at.to_utc().format("%Y%m%dT%H%M%S%3fZ"), &checksum[..ID_DIGITS])
}

/// Returns the part of a checksum in the id of a backup; `None` if it is no id.
pub(super) fn checksum_of(id: &str) -> Option<&str> {
    let (time, checksum) = id.split_once('-')?;
    let is_time = time.len() == ID_TIME && time.bytes().all(|byte| byte.is_ascii_alphanumeric());
    (is_time && checksum.len() == ID_DIGITS && is_hex(checksum)).then_some(checksum)
}

/// A file of a home that a backup can have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HomeFile {
    Config,
    Global,
    /// The file of a project, by its name.
    Project(String),
    Log(SessionId),
    /// A blob of a session, by its name.
    Blob(SessionId, String),
    /// The file of a snapshot, by its name.
    Snapshot(SessionId, String),
}

impl HomeFile {
    /// Returns the path in a home.
    pub(crate) fn path(&self) -> String {
        match self {
            Self::Config => "config.yaml".to_owned(),
            Self::Global => "global.json".to_owned(),
            Self::Project(name) => format!("projects/{name}"),
            Self::Log(id) => format!("sessions/{id}.jsonl"),
            Self::Blob(id, name) => format!("sessions/{id}.blobs/{name}"),
            Self::Snapshot(id, name) => format!("context-snapshots/{id}/snapshots/{name}"),
        }
    }

    /// Returns the file of a path; `None` for every path that [`Self::path`] does not return.
    pub(crate) fn parse(path: &str) -> Option<Self> {
        let parts: Vec<&str> = path.split('/').collect();
        let found = match parts[..] {
            ["config.yaml"] => Self::Config,
            ["global.json"] => Self::Global,
            ["projects", name] => {
                let is_project = is_file_name(name) && is_hex(name.strip_suffix(".json")?);
                is_project.then(|| Self::Project(name.to_owned()))?
            }
            ["sessions", log] => Self::Log(log.strip_suffix(".jsonl")?.parse().ok()?),
            ["sessions", dir, name] => {
                let id = dir.strip_suffix(".blobs")?.parse().ok()?;
                is_part_name(name).then(|| Self::Blob(id, name.to_owned()))?
            }
            ["context-snapshots", id, "snapshots", name] => {
                let is_snapshot =
                    is_file_name(name) && name.starts_with("snapshot-") && name.ends_with(".json");
                is_snapshot.then_some(Self::Snapshot(id.parse().ok()?, name.to_owned()))?
            }
            _ => return None,
        };
        (found.path() == path).then_some(found)
    }

    /// Returns the session of the file.
    pub(crate) const fn session(&self) -> Option<SessionId> {
        match self {
            Self::Log(id) | Self::Blob(id, _) | Self::Snapshot(id, _) => Some(*id),
            Self::Config | Self::Global | Self::Project(_) => None,
        }
    }
}

/// Returns whether every file system can have a file with this name.
fn is_file_name(name: &str) -> bool {
    name.len() <= MAX_NAME_BYTES && !name.contains('\0')
}
