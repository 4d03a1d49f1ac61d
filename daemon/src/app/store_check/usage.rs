//! The space on the disk, by kind and by session.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use ollm_protocol::SessionId;
use ollm_protocol::methods::store::{SessionSpace, StoreUsage};

use crate::app::core::Core;
use crate::app::error::Result;
use crate::fsutil::{self, FsError};

/// The sessions of a result.
const MAX_LARGEST: usize = 10;
/// The levels of directories in a home: `context-snapshots/<id>/snapshots`.
const MAX_DEPTH: usize = 4;

/// The space that a home takes.
#[derive(Default)]
pub(super) struct UsedSpace {
    /// The files and bytes of each kind.
    kinds: BTreeMap<&'static str, (u64, u64)>,
    sessions: BTreeMap<SessionId, u64>,
}

impl UsedSpace {
    /// Returns the bytes of the files that are read as a whole: logs, blobs and snapshots.
    pub(super) fn bytes_to_read(&self) -> u64 {
        ["logs", "blobs", "snapshots"]
            .iter()
            .filter_map(|kind| self.kinds.get(kind))
            .map(|(_, bytes)| bytes)
            .sum()
    }

    /// Returns the kinds, and the largest sessions with their titles, the largest first.
    pub(super) fn into_result(
        self,
        titles: &BTreeMap<SessionId, String>,
    ) -> (Vec<StoreUsage>, Vec<SessionSpace>) {
        let kind = |(kind, (files, bytes)): (&str, (u64, u64))| StoreUsage {
            kind: kind.to_owned(),
            files,
            bytes,
        };
        let mut kinds: Vec<_> = self.kinds.into_iter().map(kind).collect();
        kinds.sort_by_key(|usage| std::cmp::Reverse(usage.bytes));
        let mut sizes: Vec<_> = self.sessions.into_iter().collect();
        sizes.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        let largest = sizes.into_iter().take(MAX_LARGEST);
        let largest = largest.map(|(session_id, bytes)| SessionSpace {
            session_id,
            title: titles.get(&session_id).cloned().unwrap_or_default(),
            bytes,
        });
        (kinds, largest.collect())
    }

    fn add(&mut self, path: &[&str], bytes: u64, home: Where) {
        let (kind, session) = kind_of(path, home);
        let (files, all) = self.kinds.entry(kind).or_default();
        *files += 1;
        *all += bytes;
        if let Some(id) = session {
            *self.sessions.entry(id).or_default() += bytes;
        }
    }
}

/// The directory in which a file was found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Where {
    Home,
    Sessions,
}

/// Measures all files of a home.
pub(super) fn measure(core: &Core, logs: &[(SessionId, u64)]) -> Result<UsedSpace> {
    let mut usage = UsedSpace::default();
    let (home, sessions) = (core.journals.home(), core.sessions.dir());
    walk(home, &mut Vec::new(), &mut |path, bytes, file| {
        // Those of sessions are counted below, wherever their directory is.
        if !file.starts_with(sessions) || home == sessions {
            usage.add(path, bytes, if home == sessions { Where::Sessions } else { Where::Home });
        }
    })?;
    if home != sessions {
        walk(sessions, &mut Vec::new(), &mut |path, bytes, _| {
            usage.add(path, bytes, Where::Sessions);
        })?;
    }
    usage.sessions.retain(|id, _| logs.binary_search_by_key(id, |(log, _)| *log).is_ok());
    Ok(usage)
}

/// Calls `visit` with every regular file below a directory: the names on its path, its size and its path. A directory below
/// it that cannot be read is left out, such as one that is removed meanwhile, and `lost+found`.
fn walk(
    dir: &Path,
    names: &mut Vec<String>,
    visit: &mut dyn FnMut(&[&str], u64, &Path),
) -> Result<(), FsError> {
    let fail = |source| FsError::new("list", dir, source);
    let entries = match fs::read_dir(dir) {
        // `names` is empty for the top only.
        Err(_) if !names.is_empty() => return Ok(()),
        entries => entries.map_err(fail)?,
    };
    for entry in entries {
        if entry.is_err() && !names.is_empty() {
            return Ok(());
        }
        let path: PathBuf = entry.map_err(fail)?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        names.push(name.to_owned());
        if let Some(bytes) = fsutil::file_len(&path) {
            let parts: Vec<&str> = names.iter().map(String::as_str).collect();
            visit(&parts, bytes, &path);
        } else if names.len() < MAX_DEPTH
            && path.symlink_metadata().is_ok_and(|found| found.is_dir())
        {
            walk(&path, names, visit)?;
        }
        names.pop();
    }
    Ok(())
}

/// Returns the kind of a file, and the session that it belongs to.
fn kind_of(path: &[&str], place: Where) -> (&'static str, Option<SessionId>) {
    let session = |name: &str, suffix: &str| name.strip_suffix(suffix)?.parse().ok();
    match path {
        [name] if place == Where::Sessions && session(name, ".jsonl").is_some() => {
            ("logs", session(name, ".jsonl"))
        }
        [name] if place == Where::Sessions && session(name, ".json").is_some() => {
            ("documents", session(name, ".json"))
        }
        [name] if place == Where::Sessions && name.contains(".torn-") => ("tornTails", None),
        [dir, _] if place == Where::Sessions && session(dir, ".blobs").is_some() => {
            ("blobs", session(dir, ".blobs"))
        }
        [name] if name.starts_with("catalog.sqlite3") => ("catalog", None),
        ["context-snapshots", id, ..] => ("snapshots", id.parse().ok()),
        ["context-snapshots"] => ("snapshots", None),
        ["vocab", ..] => ("vocabularies", None),
        ["logs", ..] => ("daemonLogs", None),
        ["projects", ..] | ["global.json"] => ("projects", None),
        _ => ("other", None),
    }
}
