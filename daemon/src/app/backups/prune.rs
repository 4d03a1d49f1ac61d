//! Removing the backups that no rule keeps.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::{DateTime, Datelike as _, Utc};
use ollm_protocol::method::{BackupPrune, Method as _};
use ollm_protocol::methods::backup::{BackupInfo, BackupPruneParams, BackupPruneResult};
use tokio_util::sync::CancellationToken;

use super::{info_of, require_absolute, secret_of};
use crate::app::core::Core;
use crate::app::error::{AppError, Result};
use crate::app::store_work::StoreWork;
use crate::backup::{BackupError, PruneTarget};

/// Returns the period of a backup by its place in the list and its time.
type PeriodOf = fn(usize, DateTime<Utc>) -> i64;
/// A rule: the number of periods of which the newest backup stays.
type KeepRule = (u32, PeriodOf);

pub(super) fn prune(
    core: &Arc<Core>,
    params: &BackupPruneParams,
    left: &CancellationToken,
) -> Result<BackupPruneResult> {
    let mut work = StoreWork::begin(core, BackupPrune::NAME, left)?;
    require_absolute(&params.path)?;
    let rules = rules_of(params)?;
    let secret = secret_of(params.secret.as_ref())?;
    let target = PruneTarget::open(&params.path, &secret, params.dry_run)?;
    let mut backups = Vec::new();
    for id in target.ids()? {
        // The parts of one that cannot be read are not known, so nothing is removed then.
        let manifest = target.manifest(&id)?;
        backups.push(info_of(id, &manifest));
        work.advance(0)?;
    }
    let (kept, removed) = separated(backups, &rules);
    if kept.is_empty() {
        // Perhaps the manifests are elsewhere, so the parts stay.
        let (path, id) = (params.path.clone(), "that is complete".to_owned());
        return Err(BackupError::NoSuchBackup { path, id }.into());
    }
    let parts = target.unneeded_parts(ids(&kept))?;
    let result = BackupPruneResult {
        encrypted: target.is_encrypted(),
        kept,
        removed,
        removed_parts: parts.len() as u64,
        removed_bytes: parts.iter().map(|(_, bytes)| bytes).sum(),
        dry_run: params.dry_run,
    };
    work.advance(0)?;
    if params.dry_run {
        return Ok(result);
    }
    work.set_total(result.removed_bytes);
    target.remove_backups(ids(&result.removed))?;
    for (name, bytes) in &parts {
        target.remove_part(name)?;
        work.advance(*bytes)?;
    }
    target.finish()?;
    Ok(result)
}

fn ids(backups: &[BackupInfo]) -> impl Iterator<Item = &str> {
    backups.iter().map(|backup| backup.backup_id.as_str())
}

/// Returns the rules of the params.
///
/// **Errors**: none of them keeps a backup.
fn rules_of(params: &BackupPruneParams) -> Result<[KeepRule; 4]> {
    let rules: [(Option<u32>, PeriodOf); 4] = [
        (params.keep_last, |place, _| place as i64),
        (params.keep_daily, |_, at| i64::from(at.num_days_from_ce())),
        (params.keep_weekly, |_, at| {
            i64::from(at.num_days_from_ce()) - i64::from(at.weekday().num_days_from_monday())
        }),
        (params.keep_monthly, |_, at| i64::from(at.year()) * 12 + i64::from(at.month0())),
    ];
    if rules.iter().all(|(count, _)| count.unwrap_or_default() == 0) {
        let problem = "must be at least 1, or keepDaily, keepWeekly or keepMonthly";
        return Err(AppError::invalid("keepLast", problem));
    }
    Ok(rules.map(|(count, period_of)| (count.unwrap_or_default(), period_of)))
}

/// Separates backups into those that stay and those that no rule keeps, both the newest first. Each group, that of the home
/// and that of each single session, counts for itself.
fn separated(
    mut backups: Vec<BackupInfo>,
    rules: &[KeepRule],
) -> (Vec<BackupInfo>, Vec<BackupInfo>) {
    let time_of = |backup: &BackupInfo| (backup.created_at.unix_ms(), backup.backup_id.clone());
    backups.sort_by_cached_key(|backup| Reverse(time_of(backup)));
    let mut groups = BTreeMap::<_, Vec<usize>>::new();
    for (place, backup) in backups.iter().enumerate() {
        groups.entry(backup.session_id).or_default().push(place);
    }
    let mut stays = vec![false; backups.len()];
    for places in groups.values() {
        let times = places.iter().map(|place| backups[*place].created_at.to_utc());
        for at in kept_places(&times.collect::<Vec<_>>(), rules) {
            stays[places[at]] = true;
        }
    }
    let mut stays = stays.into_iter();
    backups.into_iter().partition(|_| stays.next().unwrap_or(true))
}

/// Returns the places of the times, the newest first, that a rule keeps. A place can be there several times.
fn kept_places(times: &[DateTime<Utc>], rules: &[KeepRule]) -> Vec<usize> {
    let mut kept = Vec::new();
    for (count, period_of) in rules {
        let (mut n_left, mut last) = (*count, None);
        for (place, time) in times.iter().enumerate() {
            let period = Some(period_of(place, *time));
            if n_left > 0 && period != last {
                kept.push(place);
                n_left -= 1;
                last = period;
            }
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_keep_the_newest_of_each_period() {
        let at = |day: &str, hour: u32| -> DateTime<Utc> {
            format!("{day}T{hour:02}:00:00Z").parse().expect("is a time")
        };
        // The first is a Tuesday, and the last three are in one week of two years.
        let times = [
            at("2027-03-02", 20),
            at("2027-03-02", 8),
            at("2027-03-01", 8),
            at("2027-02-28", 8),
            at("2027-02-01", 8),
            at("2027-01-03", 8),
            at("2027-01-01", 8),
            at("2026-12-31", 8),
        ];
        let check = |numbers: [u32; 4], expected: &[usize]| {
            let [last, daily, weekly, monthly] =
                numbers.map(|number| (number > 0).then_some(number));
            let params = BackupPruneParams {
                path: "/b".into(),
                keep_last: last,
                keep_daily: daily,
                keep_weekly: weekly,
                keep_monthly: monthly,
                dry_run: false,
                secret: None,
            };
            let mut kept = kept_places(&times, &rules_of(&params).expect("has a rule"));
            kept.sort_unstable();
            kept.dedup();
            assert_eq!(kept, expected, "{numbers:?}");
        };
        check([1, 0, 0, 0], &[0]);
        check([3, 0, 0, 0], &[0, 1, 2]);
        check([100, 0, 0, 0], &[0, 1, 2, 3, 4, 5, 6, 7]);
        check([0, 1, 0, 0], &[0]);
        check([0, 3, 0, 0], &[0, 2, 3]);
        check([0, 0, 2, 0], &[0, 3]);
        check([0, 0, 100, 0], &[0, 3, 4, 5]);
        check([0, 0, 0, 2], &[0, 3]);
        check([0, 0, 0, 100], &[0, 3, 5, 7]);
        check([2, 2, 3, 4], &[0, 1, 2, 3, 4, 5, 7]);
    }

    #[test]
    fn groups_count_for_themselves() {
        let session = |number: u128| {
            let uuid = uuid::Uuid::from_u128(number);
            Some(ollm_protocol::SessionId::from_uuid(uuid))
        };
        let backup = |minute: i64, session_id| BackupInfo {
            backup_id: minute.to_string(),
            created_at: ollm_protocol::Timestamp::from_unix_ms(minute * 60_000),
            version: String::new(),
            session_id,
            sessions: 1,
            files: 1,
            bytes: 1,
        };
        let backups = [
            backup(1, None),
            backup(2, session(1)),
            backup(3, session(2)),
            backup(4, None),
            backup(5, session(1)),
        ];
        let last: [KeepRule; 1] = [(1, |place, _| place as i64)];
        let (kept, removed) = separated(backups.to_vec(), &last);
        assert_eq!(ids(&kept).collect::<Vec<_>>(), ["5", "4", "3"]);
        assert_eq!(ids(&removed).collect::<Vec<_>>(), ["2", "1"]);
    }
}
