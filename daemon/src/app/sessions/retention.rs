//! Retention: archives old sessions beyond the configured limits, or deletes them if the user chose that, and
//! publishes an event for each.
//!
//! Pinned, archived, imported and active sessions are exempt and do not count.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ollm_protocol::content::SessionStatus;
use ollm_protocol::methods::daemon::RetentionWork;
use ollm_protocol::{SessionId, Timestamp};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{delete, update};
use crate::app::core::{Core, blocking};
use crate::app::error::{AppError, Result};
use crate::catalog::RetentionRow;
use crate::config::{OnLimit, SessionsConfig};
use crate::session::SessionError;

const DAY_MS: i64 = 24 * 60 * 60 * 1000;

/// The wait for further changes after a request, so that the sessions of one import or script are one run.
const QUIET: Duration = Duration::from_millis(200);
/// The wait for the catalog, from which sessions are chosen, to learn the newest changes.
const CATCH_UP: Duration = Duration::from_secs(2);
/// The pause before the next run if the catalog is still behind, for example while it is being rebuilt.
const RETRY: Duration = Duration::from_secs(5);

/// Runs when a session may have exceeded a limit, one run at a time: after a session is created or closed, after the
/// configuration changes, and when the next session becomes unused or too old by the passing of time.
#[derive(Default)]
pub(crate) struct RetentionTask {
    due: Notify,
    /// The work since the start; `None` before the first session.
    done: Mutex<Option<RetentionWork>>,
}

impl RetentionTask {
    /// Requests a run; several requests before it starts are one.
    pub(crate) fn request(&self) {
        self.due.notify_one();
    }

    /// Returns the work since the start; `None` if no session was archived or deleted.
    pub(crate) fn done(&self) -> Option<RetentionWork> {
        *self.done.lock()
    }

    fn add(&self, run: &RetentionRun, last_at: Timestamp) {
        if run.archived + run.deleted > 0 {
            let mut done = self.done.lock();
            let (archived, deleted) = done.map_or((0, 0), |done| (done.archived, done.deleted));
            let (archived, deleted) = (archived + run.archived, deleted + run.deleted);
            *done = Some(RetentionWork { archived, deleted, last_at });
        }
    }

    /// Runs when requested; never returns.
    pub(crate) async fn run(self: Arc<Self>, core: Arc<Core>) {
        let mut next = None;
        loop {
            tokio::select! {
                () = self.due.notified() => {}
                () = pause(next) => {}
            }
            tokio::time::sleep(QUIET).await;
            next = match blocking(&core, apply).await {
                Ok(run) => {
                    self.add(&run, core.clock.now());
                    run.next
                }
                Err(error) => {
                    tracing::warn!("retention did not finish: {error}");
                    Some(RETRY)
                }
            };
        }
    }
}

/// Waits for a duration, or forever without one.
async fn pause(duration: Option<Duration>) {
    match duration {
        Some(duration) => tokio::time::sleep(duration).await,
        None => std::future::pending().await,
    }
}

/// The action on one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RetentionAction {
    Archive(SessionId),
    Delete(SessionId),
}

/// The result of one run.
#[derive(Debug)]
pub(crate) struct RetentionRun {
    archived: u64,
    deleted: u64,
    /// The time until the next session can exceed a limit without a change.
    next: Option<Duration>,
}

/// Archives and deletes the sessions beyond the limits. Blocks on the disk.
pub(crate) fn apply(core: &Arc<Core>) -> Result<RetentionRun> {
    let is_current = core.catalog.wait_caught_up(Instant::now() + CATCH_UP);
    let rows = core.catalog.retention_rows()?;
    let (now, config) = (core.clock.now(), core.config());
    let next = next_run(&rows, &config.sessions, now);
    let mut archived = 0;
    let mut deleted = Vec::new();
    for action in actions(rows, &config.sessions, now) {
        let (RetentionAction::Archive(id) | RetentionAction::Delete(id)) = action;
        // A session that cannot be archived must not prevent the actions on others.
        let done = is_unused(core, id).and_then(|is_unused| match action {
            RetentionAction::Archive(id) if is_unused => {
                update::archive_for(core, id, "retention")?;
                archived += 1;
                Ok(())
            }
            RetentionAction::Delete(id) if is_unused => {
                deleted.push(id);
                Ok(())
            }
            _ => Ok(()),
        });
        if let Err(error) = done {
            tracing::warn!(?action, "retention skipped a session: {error}");
        }
    }
    let mut n_deleted = 0;
    if !deleted.is_empty() {
        // A session that could not be deleted is logged there and stays for the next run.
        let failed = delete::delete_batch(core, &deleted, "retention");
        n_deleted = (deleted.len() - failed.len()) as u64;
    }
    let next = if is_current { next } else { Some(RETRY) };
    Ok(RetentionRun { archived, deleted: n_deleted, next })
}

/// Returns whether a session is still unused: the catalog, which chose it, may be behind.
fn is_unused(core: &Core, id: SessionId) -> Result<bool> {
    let session = match core.summary(id) {
        Err(AppError::Session(SessionError::NotFound { .. })) => return Ok(false),
        session => session?,
    };
    let is_closed = session.status == SessionStatus::Closed;
    Ok(is_closed && !session.pinned && session.imported_from.is_none())
}

/// Returns the time until the next active session counts as closed, or the next session is too old.
fn next_run(rows: &[RetentionRow], config: &SessionsConfig, now: Timestamp) -> Option<Duration> {
    let max_age_ms = i64::from(config.auto_archive_after_days) * DAY_MS;
    let counts = |row: &&RetentionRow| {
        matches!(row.status, SessionStatus::Active | SessionStatus::Closed)
            && !row.pinned
            && !row.imported
    };
    let times = rows.iter().filter(counts).flat_map(|row| {
        let unused_at = row.last_activity_ms + DAY_MS + 1;
        [Some(unused_at), (max_age_ms > 0).then_some(row.last_activity_ms + max_age_ms + 1)]
    });
    let now = now.unix_ms();
    let next = times.flatten().filter(|at| *at > now).min()?;
    Some(Duration::from_millis(u64::try_from(next - now).unwrap_or_default()))
}

/// Chooses actions: first for sessions that are too old or over the limit of their project, then for sessions over the
/// limit of the home.
fn actions(
    mut rows: Vec<RetentionRow>,
    config: &SessionsConfig,
    now: Timestamp,
) -> Vec<RetentionAction> {
    let unused_ms = |row: &RetentionRow| now.unix_ms() - row.last_activity_ms;
    rows.retain(|row| {
        let is_unused = row.status == SessionStatus::Closed || unused_ms(row) > DAY_MS;
        let counts = !matches!(row.status, SessionStatus::Archived | SessionStatus::Corrupted);
        counts && is_unused && !row.pinned && !row.imported
    });
    rows.sort_by_key(|row| std::cmp::Reverse((row.last_activity_ms, row.session_id)));
    let mut actions = Vec::new();
    let mut per_project: HashMap<String, u32> = HashMap::new();
    let max_age_ms = i64::from(config.auto_archive_after_days) * DAY_MS;
    rows.retain(|row| {
        let in_project = row.project_hash.clone().map_or(0, |hash| {
            let count = per_project.entry(hash).or_default();
            *count += 1;
            *count
        });
        let crowded =
            config.max_sessions_per_project > 0 && in_project > config.max_sessions_per_project;
        let old = max_age_ms > 0 && unused_ms(row) > max_age_ms;
        if crowded || old {
            actions.push(RetentionAction::Archive(row.session_id));
        }
        !crowded && !old
    });
    if config.max_sessions > 0 {
        for row in rows.iter().skip(config.max_sessions as usize) {
            actions.push(match config.on_limit {
                OnLimit::Archive => RetentionAction::Archive(row.session_id),
                OnLimit::Delete => RetentionAction::Delete(row.session_id),
            });
        }
    }
    actions
}

#[cfg(test)]
mod tests {
    use ollm_protocol::SessionId;

    use super::*;
    use crate::config::{Config, FlagOverrides};

    const NOW_MS: i64 = 1_800_000_000_000;

    fn id(number: u8) -> SessionId {
        format!("00000000-0000-7000-8000-0000000000{number:02}").parse().expect("a UUID")
    }

    /// A session of no project, closed and unused for some days.
    fn row(number: u8, days: i64) -> RetentionRow {
        RetentionRow {
            session_id: id(number),
            last_activity_ms: NOW_MS - days * DAY_MS,
            status: SessionStatus::Closed,
            pinned: false,
            imported: false,
            project_hash: None,
        }
    }

    fn settings(change: impl FnOnce(&mut SessionsConfig)) -> SessionsConfig {
        let dir = std::path::Path::new("/nowhere");
        let no_variables = std::iter::empty::<(String, String)>();
        let loaded = Config::load(dir, None, no_variables, &FlagOverrides::default());
        let mut settings = loaded.expect("defaults").0.sessions;
        change(&mut settings);
        settings
    }

    fn check(rows: Vec<RetentionRow>, settings: &SessionsConfig, expect: &[RetentionAction]) {
        assert_eq!(actions(rows, settings, Timestamp::from_unix_ms(NOW_MS)), expect);
    }

    #[test]
    fn oldest_sessions_over_the_limit_are_removed_unless_exempt() {
        let two = settings(|settings| settings.max_sessions = 2);
        let rows = || vec![row(1, 5), row(2, 2), row(3, 9), row(4, 3)];
        check(rows(), &two, &[RetentionAction::Archive(id(1)), RetentionAction::Archive(id(3))]);
        let deletes = settings(|settings| {
            settings.max_sessions = 2;
            settings.on_limit = OnLimit::Delete;
        });
        check(rows(), &deletes, &[RetentionAction::Delete(id(1)), RetentionAction::Delete(id(3))]);
        check(rows(), &settings(|settings| settings.max_sessions = 0), &[]);

        let exempt = [
            RetentionRow { pinned: true, ..row(5, 20) },
            RetentionRow { imported: true, ..row(6, 20) },
            RetentionRow { status: SessionStatus::Archived, ..row(7, 20) },
            RetentionRow { status: SessionStatus::Corrupted, ..row(8, 20) },
            RetentionRow { status: SessionStatus::Active, ..row(9, 0) },
        ];
        let one = settings(|settings| settings.max_sessions = 1);
        check(exempt.into_iter().chain([row(1, 5)]).collect(), &one, &[]);
    }

    #[test]
    fn next_run_is_when_a_session_becomes_unused_or_too_old() {
        let settings = settings(|settings| settings.auto_archive_after_days = 3);
        let next = |rows: &[RetentionRow]| {
            let next = next_run(rows, &settings, Timestamp::from_unix_ms(NOW_MS));
            next.map(|next| next.as_millis())
        };
        let day = u128::from(DAY_MS.unsigned_abs());
        let active = |days| RetentionRow { status: SessionStatus::Active, ..row(1, days) };
        assert_eq!(next(&[active(0), row(2, 9)]), Some(day + 1));
        assert_eq!(next(&[row(2, 2), active(0)]), Some(day + 1));
        assert_eq!(next(&[row(2, 1)]), Some(1), "at the limit it is not over it");
        assert_eq!(next(&[row(2, 9)]), None);
        assert_eq!(next(&[RetentionRow { pinned: true, ..active(0) }]), None);
    }

    #[test]
    fn age_and_project_limits_archive_even_if_the_limit_of_the_home_deletes() {
        let settings = settings(|settings| {
            settings.max_sessions_per_project = 1;
            settings.on_limit = OnLimit::Delete;
        });
        let of =
            |project: &str, row| RetentionRow { project_hash: Some(project.to_owned()), ..row };
        let rows = vec![of("a", row(1, 1)), of("a", row(2, 2)), of("b", row(3, 3)), row(4, 31)];
        check(rows, &settings, &[RetentionAction::Archive(id(2)), RetentionAction::Archive(id(4))]);
    }
}
