//! The hooks that follow changes of a project's files: while a session is used, its files are followed if there is such a
//! hook, and what changed within a moment is one occasion.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ollm_protocol::content::{HookInput, HookOccasion, HookState};
use ollm_protocol::{EventKind, SessionId};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{contribute, find, has_ended, input_of, report_skipped};
use crate::app::core::{Core, blocking};
use crate::events::{EventFilter, EventSubscription};
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

/// The files of a session that are followed, and what ends that.
struct FollowedProject<'a> {
    core: &'a Arc<Core>,
    id: SessionId,
    project: &'a str,
    files: FilesSubscription,
    /// The events after which the session may have ended or moved.
    changes: EventSubscription,
    /// Canceled when another session takes its place.
    end: &'a CancellationToken,
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
    if ready.is_empty() || has_ended(core, id).await {
        return;
    }
    let Some(end) = core.hook_runs.begin_following(id) else { return };
    let following = Arc::clone(core);
    drop(core.tasks.spawn(async move {
        tokio::select! {
            () = run(&following, id, &project, &end) => {}
            () = following.tasks.stopping() => {}
        }
        following.hook_runs.end_following(id, &end);
    }));
}

/// Runs the hooks at changes until the files need not or cannot be followed any more.
async fn run(core: &Arc<Core>, id: SessionId, project: &str, end: &CancellationToken) {
    let kinds = [
        EventKind::SessionUpdated,
        EventKind::SessionClosed,
        EventKind::SessionArchived,
        EventKind::SessionDeleted,
    ];
    let filter =
        EventFilter { session_id: Some(id), kinds: kinds.to_vec(), ..EventFilter::default() };
    // Before the first look at the session, so that no change of it is missed.
    let changes = core.events.subscribe_daemon(filter);
    let key = RootKey { path: PathBuf::from(project), hidden: false, max_depth: None };
    let files = match core.files.subscribe(&key, PathFilter::default(), None).await {
        Ok(files) => files,
        Err(error) => {
            tracing::warn!(session = %id, "no hooks follow changed files: {error}");
            return;
        }
    };
    let mut followed = FollowedProject { core, id, project, files, changes, end };
    while let Some(first) = followed.next_change().await {
        let mut changed = ChangedPaths::default();
        changed.add(first);
        changed.collect(&mut followed.files).await;
        let ChangedPaths { paths, n_more, .. } = changed;
        let change = |input: &mut HookInput| {
            input.paths = paths.into_iter().collect();
            input.more_paths = n_more;
        };
        // Runs to its end, so that the next occasion can begin.
        contribute(core, id, HookOccasion::FilesChanged, change).await;
        tokio::time::sleep(PAUSE).await;
    }
}

/// Returns whether a session is in use and belongs to a project.
async fn is_used_in(core: &Arc<Core>, id: SessionId, project: &str) -> bool {
    let settings = blocking(core, move |core| core.settings(id)).await;
    let is_same = settings.is_ok_and(|own| own.project_path.as_deref() == Some(project));
    is_same && !has_ended(core, id).await
}

impl FollowedProject<'_> {
    /// Waits for a change; returns `None` once the session has ended, moved, lost its place or is unused for long, or its files
    /// are gone.
    async fn next_change(&mut self) -> Option<FilesNews> {
        while !self.end.is_cancelled() && is_used_in(self.core, self.id, self.project).await {
            let unused_at = self.core.hook_runs.last_used(self.id)? + UNUSED;
            if unused_at <= Instant::now() {
                return None;
            }
            tokio::select! {
                news = self.files.next() => match news {
                    FilesNews::Watching { .. } => {}
                    FilesNews::Gone { .. } => return None,
                    news => return Some(news),
                },
                // The session may have been used meanwhile.
                () = tokio::time::sleep_until(unused_at) => {}
                _ = self.changes.next() => {}
                () = self.end.cancelled() => {}
            }
        }
        None
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
