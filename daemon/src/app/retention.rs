//! What becomes of old sessions: archived, or deleted where the user chose that; never silently.
//!
//! Pinned, archived, imported and active sessions are exempt and do not count.

use std::collections::HashMap;
use std::sync::Arc;

use ollm_protocol::content::SessionStatus;
use ollm_protocol::{SessionId, Timestamp};
use tokio::sync::Notify;

use super::{AppError, Core, blocking, remove, update};
use crate::catalog::RetentionRow;
use crate::config::{OnLimit, SessionsConfig};

const DAY_MS: i64 = 24 * 60 * 60 * 1000;

/// Runs whenever a session was created or the configuration read again, at most one run at a time.
#[derive(Default)]
pub(crate) struct Retention {
    due: Notify,
}

impl Retention {
    /// Asks for a run; several asks before it starts are one.
    pub(crate) fn ask(&self) {
        self.due.notify_one();
    }

    /// Runs when asked; ends when it is dropped.
    pub(crate) async fn run(&self, core: Arc<Core>) {
        loop {
            self.due.notified().await;
            if let Err(error) = apply(&core).await {
                tracing::warn!("retention did not finish: {error}");
            }
        }
    }
}

/// What is to be done with one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Archive(SessionId),
    Delete(SessionId),
}

async fn apply(core: &Arc<Core>) -> Result<(), AppError> {
    let rows = blocking(core, |core| Ok(core.catalog.retention_rows()?)).await?;
    let now = core.clock.now();
    for verdict in verdicts(rows, &core.config().sessions, now) {
        // One session that cannot be put away must not keep the others.
        if let Err(error) = carry_out(core, verdict).await {
            tracing::warn!(?verdict, "retention passed a session over: {error}");
        }
    }
    Ok(())
}

/// Whether a session may still go: the catalog that chose it lags behind.
fn still_at_rest(core: &Core, id: SessionId) -> Result<bool, AppError> {
    let session = core.summary(id)?;
    let at_rest = session.status == SessionStatus::Closed;
    Ok(at_rest && !session.pinned && session.imported_from.is_none())
}

async fn carry_out(core: &Arc<Core>, verdict: Verdict) -> Result<(), AppError> {
    match verdict {
        Verdict::Archive(id) => {
            if !blocking(core, move |core| still_at_rest(core, id)).await? {
                return Ok(());
            }
            update::archive_because(core, id, "retention").await?;
        }
        Verdict::Delete(id) => {
            blocking(core, move |core| {
                if still_at_rest(core, id)? {
                    remove::delete_because(core, id, "retention")?;
                }
                Ok(())
            })
            .await?;
        }
    }
    Ok(())
}

/// Who has to go: first what is over a project's limit or too old, then what is over the whole limit.
fn verdicts(mut rows: Vec<RetentionRow>, config: &SessionsConfig, now: Timestamp) -> Vec<Verdict> {
    let rest_ms = |row: &RetentionRow| now.unix_ms() - row.last_activity_ms;
    rows.retain(|row| {
        let at_rest = row.status == SessionStatus::Closed || rest_ms(row) > DAY_MS;
        let counts = !matches!(row.status, SessionStatus::Archived | SessionStatus::Corrupted);
        counts && at_rest && !row.pinned && !row.imported
    });
    rows.sort_by_key(|row| std::cmp::Reverse((row.last_activity_ms, row.session_id)));
    let mut verdicts = Vec::new();
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
        let old = max_age_ms > 0 && rest_ms(row) > max_age_ms;
        if crowded || old {
            verdicts.push(Verdict::Archive(row.session_id));
        }
        !crowded && !old
    });
    if config.max_sessions > 0 {
        for row in rows.iter().skip(config.max_sessions as usize) {
            verdicts.push(match config.on_limit {
                OnLimit::Archive => Verdict::Archive(row.session_id),
                OnLimit::Delete => Verdict::Delete(row.session_id),
            });
        }
    }
    verdicts
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

    fn check(rows: Vec<RetentionRow>, settings: &SessionsConfig, expect: &[Verdict]) {
        assert_eq!(verdicts(rows, settings, Timestamp::from_unix_ms(NOW_MS)), expect);
    }

    #[test]
    fn the_oldest_over_the_limit_go_and_only_those_that_count() {
        let two = settings(|settings| settings.max_sessions = 2);
        let rows = || vec![row(1, 5), row(2, 2), row(3, 9), row(4, 3)];
        check(rows(), &two, &[Verdict::Archive(id(1)), Verdict::Archive(id(3))]);
        let deletes = settings(|settings| {
            settings.max_sessions = 2;
            settings.on_limit = OnLimit::Delete;
        });
        check(rows(), &deletes, &[Verdict::Delete(id(1)), Verdict::Delete(id(3))]);
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
    fn age_and_projects_archive_whatever_happens_at_the_limit() {
        let settings = settings(|settings| {
            settings.max_sessions_per_project = 1;
            settings.on_limit = OnLimit::Delete;
        });
        let of =
            |project: &str, row| RetentionRow { project_hash: Some(project.to_owned()), ..row };
        let rows = vec![of("a", row(1, 1)), of("a", row(2, 2)), of("b", row(3, 3)), row(4, 31)];
        check(rows, &settings, &[Verdict::Archive(id(2)), Verdict::Archive(id(4))]);
    }
}
