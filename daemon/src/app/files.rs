//! `files.*`: the files of workspaces as the wire has them. The work is that of the module `files`.

use std::path::PathBuf;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ollm_protocol::methods::daemon::NoParams;
use ollm_protocol::methods::files::{
    FilesDiscoverParams, FilesDiscoverResult, FilesEvent, FilesSearchParams, FilesSearchResult,
    FilesStatusResult, FilesWatchParams, RenamedPath, WatchMode, WorkspaceFile, WorkspaceFileKind,
    WorkspaceHit, WorkspacePath, WorkspaceRoot, WorkspaceState, WorkspaceWarning,
};

use super::core::Core;
use super::error::{AppError, Result, page_limit};
use crate::files::{
    EntryKind, FileHit, FileWarning, FilesNews, FilesSubscription, FollowMode, MAX_ROOTS, PageFile,
    PageQuery, PathFilter, PollReason, RootKey, RootReport,
};

const DEFAULT_FILES: u32 = 1_000;
const MAX_FILES: u32 = 10_000;
const DEFAULT_HITS: u32 = 50;
const MAX_HITS: u32 = 1_000;
/// The longest query of a search; paths are not much longer.
const MAX_QUERY_BYTES: usize = 1_024;

/// Implements `files.discover`.
pub(crate) async fn discover(
    core: Arc<Core>,
    params: FilesDiscoverParams,
) -> Result<FilesDiscoverResult> {
    let key = RootKey {
        path: PathBuf::from(params.root),
        hidden: params.hidden,
        max_depth: params.max_depth,
    };
    let query = PageQuery {
        filter: PathFilter::new(&params.include, &params.exclude)?,
        limit: page_limit(params.limit, DEFAULT_FILES, MAX_FILES)?,
        cursor: params.cursor,
        details: params.details.unwrap_or(true),
    };
    let page = core.files.page(&key, query, params.refresh).await?;
    Ok(FilesDiscoverResult {
        data: page.files.into_iter().map(file).collect(),
        warnings: page.warnings.into_iter().map(warning).collect(),
        generation: page.generation,
        next_cursor: page.next_cursor,
    })
}

/// Implements `files.search`.
pub(crate) async fn search(
    core: Arc<Core>,
    params: FilesSearchParams,
) -> Result<FilesSearchResult> {
    if params.query.len() > MAX_QUERY_BYTES {
        let problem = format!("{} bytes are more than {MAX_QUERY_BYTES}", params.query.len());
        return Err(AppError::invalid("query", problem));
    }
    let key = RootKey { path: PathBuf::from(params.root), hidden: params.hidden, max_depth: None };
    let filter = PathFilter::new(&params.include, &params.exclude)?;
    let limit = page_limit(params.limit, DEFAULT_HITS, MAX_HITS)?;
    let found = core.files.search(&key, params.query, filter, limit).await?;
    Ok(FilesSearchResult {
        data: found.hits.into_iter().map(hit).collect(),
        generation: found.generation,
        searched: found.n_files as u64,
        walking: found.is_walking,
    })
}

/// Begins a subscription of `files.watch`.
pub(crate) async fn watch(core: &Core, params: FilesWatchParams) -> Result<FilesSubscription> {
    let key = RootKey { path: PathBuf::from(params.root), hidden: params.hidden, max_depth: None };
    let filter = PathFilter::new(&params.include, &params.exclude)?;
    Ok(core.files.subscribe(&key, filter, params.since).await?)
}

/// Implements `files.status`.
pub(crate) async fn status(core: Arc<Core>, _: NoParams) -> Result<FilesStatusResult> {
    let reports = core.files.checked_status().await;
    Ok(FilesStatusResult {
        warnings: problems(&reports),
        roots: reports.into_iter().map(root).collect(),
        max_roots: u32::try_from(MAX_ROOTS).unwrap_or(u32::MAX),
    })
}

/// Returns the problems of all roots that a person can solve, which `daemon.status` shows too.
pub(crate) fn problems(reports: &[RootReport]) -> Vec<String> {
    let mut problems = Vec::new();
    let polled = |reason| {
        let mode = FollowMode::Poll(reason);
        reports.iter().filter(move |report| report.mode == mode && report.problem.is_none())
    };
    let n_unwatched = polled(PollReason::NoWatches).count();
    if n_unwatched > 0 {
        problems.push(format!(
            "{n_unwatched} of the roots of files.* cannot be watched, because the user has no inotify watches left, and \
             are walked again instead: raise fs.inotify.max_user_watches and fs.inotify.max_user_instances with sysctl, \
             then run `ollmctl files list --refresh`"
        ));
    }
    problems.extend(polled(PollReason::RemoteFiles).map(|report| {
        let path = report.key.path.display();
        format!("{path} is walked again and again, because its file system (such as NFS or FUSE) does not report changes")
    }));
    let hanging = reports.iter().filter(|report| report.is_hanging);
    problems.extend(hanging.map(|report| {
        let path = report.key.path.display();
        format!("the disk of {path} does not answer; what is known of its files may be old")
    }));
    let cut = reports.iter().filter(|report| report.is_cut);
    problems.extend(cut.map(|report| {
        let (path, n_files) = (report.key.path.display(), report.n_files);
        format!("{path} has more than {n_files} files, so some are missing: add directories to .ollmignore")
    }));
    problems
}

/// Returns an item of a subscription as the wire has it.
pub(crate) fn event(news: FilesNews) -> FilesEvent {
    let paths =
        |set: std::collections::BTreeSet<Vec<u8>>| set.iter().map(|path| wire_path(path)).collect();
    match news {
        FilesNews::Watching { generation, mode } => {
            FilesEvent::Watching { generation, mode: watch_mode(mode) }
        }
        FilesNews::Changed { generation, changes } => FilesEvent::FilesChanged {
            generation,
            added: paths(changes.added),
            modified: paths(changes.modified),
            removed: paths(changes.removed),
            renamed: changes
                .renamed
                .iter()
                .map(|(to, from)| RenamedPath { from: wire_path(from), to: wire_path(to) })
                .collect(),
        },
        FilesNews::Resync { generation } => FilesEvent::Resync { generation },
        FilesNews::Gone { generation, problem } => {
            FilesEvent::RootGone { generation, message: format!("the root {problem}") }
        }
    }
}

fn file(found: PageFile) -> WorkspaceFile {
    WorkspaceFile {
        path: wire_path(&found.path),
        kind: file_kind(found.kind),
        size: found.details.map(|details| details.size_bytes),
        modified_at: found.details.map(|details| details.modified_at),
    }
}

fn hit(found: FileHit) -> WorkspaceHit {
    WorkspaceHit {
        path: wire_path(&found.path),
        kind: file_kind(found.kind),
        score: found.score,
        positions: found.positions,
    }
}

fn warning(found: FileWarning) -> WorkspaceWarning {
    WorkspaceWarning { path: found.path, message: found.problem }
}

fn root(report: RootReport) -> WorkspaceRoot {
    WorkspaceRoot {
        root: report.key.path.to_string_lossy().into_owned(),
        hidden: report.key.hidden,
        max_depth: report.key.max_depth,
        state: match (&report.problem, report.is_walking) {
            _ if report.is_hanging => WorkspaceState::Hanging,
            (Some(_), _) => WorkspaceState::Gone,
            (None, true) => WorkspaceState::Walking,
            (None, false) => WorkspaceState::Ready,
        },
        problem: report.problem.map(|problem| problem.to_string()),
        mode: watch_mode(report.mode),
        files: report.n_files as u64,
        directories: report.n_dirs as u64,
        generation: report.generation,
        subscriptions: report.n_subscribers as u64,
        memory_bytes: report.memory_bytes as u64,
        walk_ms: u64::try_from(report.walk_cost.as_millis()).unwrap_or(u64::MAX),
        truncated: report.is_cut,
        warnings: report.n_warnings as u64,
        idle_seconds: report.idle.as_secs(),
    }
}

fn wire_path(bytes: &[u8]) -> WorkspacePath {
    match std::str::from_utf8(bytes) {
        Ok(path) => WorkspacePath { path: path.to_owned(), path_bytes: None },
        Err(_) => WorkspacePath {
            path: String::from_utf8_lossy(bytes).into_owned(),
            path_bytes: Some(STANDARD.encode(bytes)),
        },
    }
}

fn file_kind(kind: EntryKind) -> WorkspaceFileKind {
    match kind {
        EntryKind::Symlink => WorkspaceFileKind::Symlink,
        // Directories are in no page.
        EntryKind::File | EntryKind::Directory => WorkspaceFileKind::File,
    }
}

fn watch_mode(mode: FollowMode) -> WatchMode {
    match mode {
        FollowMode::Watch => WatchMode::Watch,
        FollowMode::Poll(_) => WatchMode::Poll,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn problems_name_their_reasons() {
        let check = |mode, is_cut, is_hanging, expected: &[&str]| {
            let report = RootReport {
                key: RootKey { path: "/work".into(), hidden: false, max_depth: None },
                is_walking: false,
                is_hanging,
                problem: None,
                mode,
                n_files: 1,
                n_dirs: 1,
                generation: 1,
                n_subscribers: 0,
                memory_bytes: 0,
                walk_cost: Duration::ZERO,
                is_cut,
                n_warnings: 0,
                idle: Duration::ZERO,
            };
            let found = problems(&[report]);
            assert_eq!(found.len(), expected.len(), "{found:?}");
            for (problem, part) in found.iter().zip(expected) {
                assert!(problem.contains(part), "{problem}");
            }
        };
        check(FollowMode::Watch, false, false, &[]);
        check(FollowMode::Watch, true, false, &["/work has more than 1 files"]);
        check(FollowMode::Poll(PollReason::NoWatches), false, false, &["sysctl"]);
        let (walked, cut) = ("/work is walked", "more than");
        check(FollowMode::Poll(PollReason::RemoteFiles), true, false, &[walked, cut]);
        check(FollowMode::Poll(PollReason::NoSupport), false, true, &["of /work does not answer"]);
    }
}
