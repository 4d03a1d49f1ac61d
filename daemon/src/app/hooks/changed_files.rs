//! The hooks that follow changes of a project's files: while a session is used, its files are followed if there is such a
//! hook, and what changed within a moment is one occasion.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ollm_protocol::SessionId;
use ollm_protocol::content::{HookInput, HookOccasion, HookState};
use tokio::time::Instant;

use super::{contribute, find, input_of, report_skipped};
use crate::app::core::Core;
use crate::files::{FilesNews, FilesSubscription, PathFilter, RootKey};

/// The time without a change after which changes are one occasion: editors and builds write files in several steps.
const QUIET: Duration = Duration::from_millis(500);
/// The longest time for which changes are collected.
const COLLECT_LIMIT: Duration = Duration::from_secs(5);
/// The pause behind an occasion. A hook that writes files of the project causes the next one.
const PAUSE: Duration = Duration::from_secs(5);
/// The files of a session are followed for this long after its last turn.
const UNUSED: Duration = Duration::from_secs(30 * 60);
/// The most paths that a hook is told, and their bytes together: less than a pipe holds.
const MAX_PATHS: usize = 200;
const MAX_PATH_BYTES: usize = 16 * 1024;

/// The files that changed.
#[derive(Default)]
struct ChangedPaths {
    paths: BTreeSet<String>,
    n_bytes: usize,
    n_more: u64,
}

/// Follows the files of a session's project, if that has hooks for their changes and is not followed yet.
pub(super) async fn follow(core: &Arc<Core>, id: SessionId) {
    let Some(input) = input_of(core, id, HookOccasion::FilesChanged).await else { return };
    let Some(project) = input.project_path.clone() else { return };
    let found = find(core, Some(project.clone()), vec![HookOccasion::FilesChanged]).await;
    let hooks = found.unwrap_or_default().hooks.into_iter();
    let (ready, others): (Vec<_>, Vec<_>) = hooks.partition(|hook| hook.state == HookState::Ready);
    // No files are followed for them.
    others.iter().for_each(|hook| report_skipped(core, &input, hook));
    if ready.is_empty() || !core.hook_runs.begin_following(id) {
        return;
    }
    let following = Arc::clone(core);
    drop(core.tasks.spawn(async move {
        tokio::select! {
            () = run(&following, id, Path::new(&project)) => {}
            () = following.tasks.stopping() => {}
        }
        following.hook_runs.end_following(id);
    }));
}

/// Runs the hooks at changes until the session is unused, deleted, or its files cannot be followed.
async fn run(core: &Arc<Core>, id: SessionId, project: &Path) {
    let key = RootKey { path: PathBuf::from(project), hidden: false, max_depth: None };
    let mut files = match core.files.subscribe(&key, PathFilter::default(), None).await {
        Ok(files) => files,
        Err(error) => {
            tracing::warn!(session = %id, "no hooks follow changed files: {error}");
            return;
        }
    };
    while let Some(first) = next_change(core, id, &mut files).await {
        let mut changed = ChangedPaths::default();
        changed.add(first);
        changed.collect(&mut files).await;
        let ChangedPaths { paths, n_more, .. } = changed;
        let change = |input: &mut HookInput| {
            input.paths = paths.into_iter().collect();
            input.more_paths = n_more;
        };
        contribute(core, id, HookOccasion::FilesChanged, change).await;
        tokio::time::sleep(PAUSE).await;
    }
}

/// Waits for a change; returns `None` once the session is unused for long, or its files are gone.
async fn next_change(
    core: &Core,
    id: SessionId,
    files: &mut FilesSubscription,
) -> Option<FilesNews> {
    loop {
        let unused_at = core.hook_runs.last_used(id)? + UNUSED;
        if unused_at <= Instant::now() {
            return None;
        }
        tokio::select! {
            news = files.next() => match news {
                FilesNews::Watching { .. } => {}
                FilesNews::Gone { .. } => return None,
                news => return Some(news),
            },
            // The session may have been used meanwhile.
            () = tokio::time::sleep_until(unused_at) => {}
        }
    }
}

impl ChangedPaths {
    /// Adds further changes until there are none for a moment.
    async fn collect(&mut self, files: &mut FilesSubscription) {
        let end = Instant::now() + COLLECT_LIMIT;
        while let Ok(news) =
            tokio::time::timeout_at(end.min(Instant::now() + QUIET), files.next()).await
        {
            self.add(news);
        }
    }

    fn add(&mut self, news: FilesNews) {
        match news {
            FilesNews::Changed { changes, .. } => {
                let renamed = changes.renamed.into_iter().flat_map(|(to, from)| [to, from]);
                let all = changes.added.into_iter().chain(changes.modified).chain(changes.removed);
                for path in all.chain(renamed) {
                    self.add_path(&path);
                }
            }
            // More changed than is known one by one.
            FilesNews::Resync { .. } => self.n_more += 1,
            FilesNews::Watching { .. } | FilesNews::Gone { .. } => {}
        }
    }

    fn add_path(&mut self, path: &[u8]) {
        let path = String::from_utf8_lossy(path).into_owned();
        if self.paths.contains(&path) {
            return;
        }
        if self.paths.len() >= MAX_PATHS || self.n_bytes + path.len() > MAX_PATH_BYTES {
            self.n_more += 1;
            return;
        }
        self.n_bytes += path.len();
        self.paths.insert(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_changed_files_are_counted() {
        let mut changed = ChangedPaths::default();
        (0..MAX_PATHS + 7).for_each(|n| changed.add_path(format!("{n}.rs").as_bytes()));
        changed.add_path(b"0.rs");
        assert_eq!((changed.paths.len(), changed.n_more), (MAX_PATHS, 7));
        let mut long = ChangedPaths::default();
        (0..10).for_each(|n| long.add_path(format!("{n}{}", "x".repeat(4000)).as_bytes()));
        assert_eq!((long.paths.len(), long.n_more), (4, 6));
    }
}
