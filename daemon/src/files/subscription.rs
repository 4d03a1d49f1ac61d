//! Subscriptions to the changes of a root: positions in its journal.

use std::sync::Arc;

use tokio::sync::watch;

use super::RootProblem;
use super::changes::{ChangeSet, ChangesSince};
use super::filter::PathFilter;
use super::root::{FollowMode, Phase, Root};

/// An item that a subscriber receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FilesNews {
    /// The subscription began with this generation, or with one that can be continued.
    Watching { generation: u64, mode: FollowMode },
    /// Files changed; this is the generation after it.
    Changed { generation: u64, changes: ChangeSet },
    /// The changes are not known, so the subscriber lists again.
    Resync { generation: u64 },
    /// The root cannot be read any more.
    Gone { generation: u64, problem: RootProblem },
}

/// A position in the journal of a root; dropping it ends the subscription.
pub(crate) struct FilesSubscription {
    root: Arc<Root>,
    progress: watch::Receiver<u64>,
    filter: PathFilter,
    /// The generation that the subscriber knows; `None` until it received the first item without a `since`.
    seen: Option<u64>,
    has_begun: bool,
    is_gone: bool,
}

impl FilesSubscription {
    pub(super) fn new(root: Arc<Root>, filter: PathFilter, since: Option<u64>) -> Self {
        root.count_subscriber(true);
        let progress = root.progress.subscribe();
        Self { root, progress, filter, seen: since, has_begun: false, is_gone: false }
    }

    /// Waits for the next item.
    ///
    /// **Cancel safety**: a canceled call takes nothing.
    pub(crate) async fn next(&mut self) -> FilesNews {
        loop {
            self.progress.mark_unchanged();
            if let Some(news) = self.take() {
                return news;
            }
            if self.progress.changed().await.is_err() {
                // Unreachable: the sender is owned by `root`, which this subscription holds.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Returns the next item that is known already.
    fn take(&mut self) -> Option<FilesNews> {
        let state = self.root.state.read();
        let generation = state.journal.generation();
        match &state.phase {
            Phase::Walking => return None,
            Phase::Gone(_) if self.is_gone => return None,
            Phase::Gone(problem) => {
                (self.is_gone, self.seen) = (true, Some(generation));
                return Some(FilesNews::Gone { generation, problem: problem.clone() });
            }
            Phase::Ready => {}
        }
        if self.is_gone {
            (self.is_gone, self.seen) = (false, Some(generation));
            return Some(FilesNews::Resync { generation });
        }
        let since = self.seen.unwrap_or(generation);
        if !self.has_begun {
            (self.has_begun, self.seen) = (true, Some(since));
            return Some(FilesNews::Watching { generation: since, mode: state.mode });
        }
        if since == generation {
            return None;
        }
        let changes = state.journal.since(since);
        drop(state);
        self.seen = Some(generation);
        match changes {
            ChangesSince::Resync => Some(FilesNews::Resync { generation }),
            ChangesSince::Known(changes) => {
                let changes = self.wanted(changes);
                (!changes.is_empty()).then_some(FilesNews::Changed { generation, changes })
            }
        }
    }

    /// Keeps the changes of wanted files. A file that is renamed into or out of them is added or removed.
    fn wanted(&self, mut changes: ChangeSet) -> ChangeSet {
        let filter = &self.filter;
        for set in [&mut changes.added, &mut changes.modified, &mut changes.removed] {
            set.retain(|path| filter.admits(path));
        }
        for (to, from) in std::mem::take(&mut changes.renamed) {
            match (filter.admits(&from), filter.admits(&to)) {
                (true, true) => drop(changes.renamed.insert(to, from)),
                (true, false) => changes.lose(from),
                (false, true) => {
                    changes.modified.remove(&to);
                    changes.added.insert(to);
                }
                (false, false) => {}
            }
        }
        changes
    }
}

impl Drop for FilesSubscription {
    fn drop(&mut self) {
        self.root.count_subscriber(false);
    }
}
