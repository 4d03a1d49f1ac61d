//! The files that a session used, compared with the disk: `session.files`, and the marks of `context.inspect`.
//!
//! The log says when a call of the session read or changed a file for the last time; the disk says when the content was
//! last modified. Only files of the project are examined, through a handle of its directory and without following links.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ollm_protocol::methods::context::ContextItem;
use ollm_protocol::methods::session::files::{
    FileOnDisk, SessionFile, SessionFilesParams, SessionFilesResult,
};
use ollm_protocol::{SessionId, Timestamp};

use super::folds::{active_path, file_uses};
use crate::app::core::{Core, blocking};
use crate::app::error::{AppError, Result, page_limit};
use crate::context::{FileUses, UsedFile};
use crate::files::RootKey;
use crate::fsutil::beneath::Dir;

const DEFAULT_LIMIT: u32 = 200;
const MAX_LIMIT: u32 = 1000;
/// The most files that are listed as changed later, and the most that are examined for that.
const MAX_CHANGED_LATER: usize = 200;
const MAX_EXAMINED: usize = 5000;
/// The time that a disk has to answer.
const DEADLINE: Duration = Duration::from_secs(2);

/// Lists the files that a session used, the last used first (`session.files`).
pub(crate) async fn list(
    core: Arc<Core>,
    params: SessionFilesParams,
) -> Result<SessionFilesResult> {
    let SessionFilesParams { session_id: id, stale, limit, cursor } = params;
    let limit = page_limit(limit, DEFAULT_LIMIT, MAX_LIMIT)?;
    let first = cursor.map_or(Ok(0), |cursor| cursor.parse::<usize>());
    let first = first.map_err(|_| AppError::invalid("cursor", "is not a cursor of this list"))?;
    let used = blocking(&core, move |core| SessionFiles::load(core, id)).await?;
    let mut rest: Vec<(String, UsedFile)> =
        used.files.iter().map(|(path, file)| (path.clone(), *file)).collect();
    rest.sort_by(|(path, one), (other_path, other)| {
        other.seq().cmp(&one.seq()).then_with(|| path.cmp(other_path))
    });
    let total = rest.len() as u64;
    let mut next = first;
    let mut data = Vec::new();
    while next < rest.len() && data.len() < limit {
        let page = rest[next..].iter().take(limit - data.len()).cloned().collect::<Vec<_>>();
        next += page.len();
        let files = examine(&core, used.root.clone(), page).await?;
        data.extend(files.into_iter().filter(|file| !stale || file.on_disk.is_stale()));
    }
    let next_cursor = (next < rest.len()).then(|| next.to_string());
    // Each page would examine the same files.
    let changed_later = if first == 0 { changed_later(&core, &used).await? } else { None };
    Ok(SessionFilesResult { root: used.root, data, total, changed_later, next_cursor })
}

/// Returns the files of a followed project that were modified after the newest record, and that the session did not use.
async fn changed_later(core: &Arc<Core>, used: &SessionFiles) -> Result<Option<Vec<String>>> {
    let Some(root) = used.root.clone() else { return Ok(None) };
    let key = RootKey { path: PathBuf::from(&root), hidden: false, max_depth: None };
    let Some(changes) = core.files.known_changes(&key) else { return Ok(None) };
    let paths =
        changes.added.into_iter().chain(changes.modified).chain(changes.renamed.into_keys());
    let paths = paths.filter_map(|path| String::from_utf8(path).ok());
    let others = paths.filter(|path| !used.files.contains_key(path)).take(MAX_EXAMINED);
    let since = UsedFile { read: None, modified: None, at: used.newest };
    let examined = examine(core, Some(root), others.map(|path| (path, since)).collect()).await?;
    let changed = examined.into_iter().filter(|file| file.on_disk == FileOnDisk::Changed);
    let mut changed: Vec<String> = changed.map(|file| file.path).collect();
    changed.sort_unstable();
    changed.truncate(MAX_CHANGED_LATER);
    Ok(Some(changed))
}

/// Marks the results in a context that show a file which something else changed since.
pub(super) async fn mark_stale(
    core: &Arc<Core>,
    id: SessionId,
    items: &mut [ContextItem],
) -> Result<()> {
    let used = blocking(core, move |core| SessionFiles::load(core, id)).await?;
    let read_by = |item: &ContextItem| {
        let path =
            item.seq.filter(|_| item.form != "out").and_then(|seq| used.uses.read_by(seq))?;
        Some(within(used.root.as_deref(), path).to_owned())
    };
    let shown: HashSet<String> = items.iter().filter_map(&read_by).collect();
    let files = used.files.iter().filter(|(path, _)| shown.contains(*path));
    let files = files.map(|(path, file)| (path.clone(), *file)).collect();
    let examined = examine(core, used.root.clone(), files).await?;
    let stale = examined.into_iter().filter(|file| file.on_disk.is_stale());
    let stale: HashSet<String> = stale.map(|file| file.path).collect();
    for item in items {
        item.stale = read_by(item).is_some_and(|path| stale.contains(&path));
    }
    Ok(())
}

/// The files of a session.
struct SessionFiles {
    root: Option<String>,
    uses: Arc<FileUses>,
    /// The time of the newest record.
    newest: Timestamp,
    /// The files by their names within the project.
    files: BTreeMap<String, UsedFile>,
}

impl SessionFiles {
    /// Blocks on the disk.
    fn load(core: &Arc<Core>, id: SessionId) -> Result<Self> {
        let path = active_path(core, id)?;
        let session = core.summary(id)?;
        let (root, newest) = (session.project_path, session.last_activity);
        let uses = file_uses(core, id, &path)?;
        let mut files: BTreeMap<String, UsedFile> = BTreeMap::new();
        for (path, used) in uses.files() {
            let name = within(root.as_deref(), path).to_owned();
            files.entry(name).and_modify(|file| file.join(used)).or_insert(*used);
        }
        Ok(Self { root, uses, newest, files })
    }
}

/// Returns a path relative to the project if it is in it, else as it is.
pub(crate) fn within<'p>(root: Option<&str>, path: &'p str) -> &'p str {
    let beneath = root.and_then(|root| path.strip_prefix(root)?.strip_prefix('/'));
    beneath.filter(|rest| !rest.is_empty()).unwrap_or(path)
}

/// Compares files with the disk. Those of a disk that does not answer in time are unknown.
async fn examine(
    core: &Arc<Core>,
    root: Option<String>,
    files: Vec<(String, UsedFile)>,
) -> Result<Vec<SessionFile>> {
    let describe = |(path, used): &(String, UsedFile), on_disk| SessionFile {
        path: path.clone(),
        read_seq: used.read,
        modified_seq: used.modified,
        at: used.at,
        on_disk,
    };
    let unknown = files.iter().map(|file| describe(file, FileOnDisk::Unknown)).collect();
    // A thread that waits for a dead disk keeps its permit, so that such threads cannot pile up.
    let permit = Arc::clone(&core.disk_checks).try_acquire_owned();
    let (Some(root), Ok(permit), false) = (root, permit, files.is_empty()) else {
        return Ok(unknown);
    };
    let compared = blocking(core, move |_| {
        let _permit = permit;
        let root = Dir::open(Path::new(&root)).ok();
        Ok(files
            .iter()
            .map(|file| describe(file, on_disk(root.as_ref(), &file.0, &file.1)))
            .collect())
    });
    tokio::time::timeout(DEADLINE, compared).await.unwrap_or(Ok(unknown))
}

/// Compares a file with the disk. Blocks on the disk.
fn on_disk(root: Option<&Dir>, path: &str, used: &UsedFile) -> FileOnDisk {
    let Some(root) = root.filter(|_| !path.starts_with('/')) else { return FileOnDisk::Unknown };
    let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
    let modified = root.open_beneath(parent).and_then(|dir| dir.modified_ms(name));
    match modified {
        Ok(modified) if modified > used.at.unix_ms() => FileOnDisk::Changed,
        Ok(_) => FileOnDisk::Current,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => FileOnDisk::Missing,
        Err(_) => FileOnDisk::Unknown,
    }
}
