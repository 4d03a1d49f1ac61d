//! A simulator of crashes and failing disks, over everything that the daemon writes.
//!
//! A [`workload`] uses the real functions of `app` in a scratch home, while `fsutil::trace` records every change of a
//! file. [`crash_disk`] makes of each beginning of that trace what a disk may hold after a crash there; the daemon
//! starts from it, and [`laws`] compares what it finds with the [`model`] of what was acknowledged. Then the daemon is
//! used further, and sometimes crashes again. The catalog is not traced, as SQLite writes it: each start finds an older
//! copy of it, a damaged one, or none. In other runs, one change or several in a row fail; every call must then fail
//! with an error of storage or succeed, and work again afterwards.
//!
//! All choices follow from a seed. A failure prints a name such as `7/231` (seed, state) or `7!45/3` (seed, fault,
//! state); `OLLM_SIM_CASE=7/231 cargo test -p ollm-daemon --lib simulator` repeats it alone.
//! The threads of the daemon decide when a log is synced for the catalog, so a rare failure may need several attempts.
//! `OLLM_SIM_STATES=100000` checks this many states instead of a few, and begins with the seed `OLLM_SIM_SEED`.

mod crash_disk;
pub(crate) mod dice;
mod failed_sync;
mod home;
mod laws;
mod model;
mod project_files;
mod repeated_calls;
mod restores;
mod workload;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;

use crash_disk::{CrashDisk, FileTree, Survivors};
use dice::Dice;
use home::{CatalogCopies, CatalogFiles, OpenHome, scratch, trace_below, write_tree};
use model::{Model, Position};
use workload::Workload;

use crate::fsutil::trace::{DiskFault, DiskStep, FaultKind};

/// The part of a seed that decides about the workload; the other parts decide about states.
const WORKLOAD: u64 = u64::MAX;
/// The starts that one fault may prevent.
const MAX_STARTS: usize = 5;
/// The calls of one workload.
const N_CALLS: usize = 30;
/// The states of one workload.
const STATES_PER_RUN: usize = 80;
/// The states after one fault.
const STATES_PER_FAULT: usize = 3;
/// The crashes after a crash, for each hundred crashes.
const SECOND_CRASHES: usize = 40;
/// The states and the faults of a test in the usual test run.
const FEW_STATES: usize = 240;
const FEW_FAULTS: usize = 32;

/// The beginning of the line that repeats a state.
const REPEAT: &str = "OLLM_SIM_CASE=";

/// The ways in which a change fails. A disk that stays full for a while fails many changes in a row.
const FAULTS: [(FaultKind, usize); 8] = [
    (FaultKind::Error(Errno::NOSPC.raw_os_error()), 1),
    (FaultKind::Error(Errno::NOSPC.raw_os_error()), 4),
    (FaultKind::Error(Errno::IO.raw_os_error()), 1),
    (FaultKind::Error(Errno::IO.raw_os_error()), 2),
    (FaultKind::Error(Errno::MFILE.raw_os_error()), 1),
    (FaultKind::Error(Errno::ACCESS.raw_os_error()), 3),
    (FaultKind::Short(Errno::NOSPC.raw_os_error()), 1),
    (FaultKind::Short(Errno::NOSPC.raw_os_error()), 3),
];

/// The name of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SimCase {
    seed: u64,
    /// The number of the fault: the place of the failing change and its kind.
    fault: Option<usize>,
    state: usize,
}

impl fmt::Display for SimCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.fault {
            Some(fault) => write!(f, "{}!{fault}/{}", self.seed, self.state),
            None => write!(f, "{}/{}", self.seed, self.state),
        }
    }
}

impl FromStr for SimCase {
    type Err = std::num::ParseIntError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let (run, state) = name.split_once('/').unwrap_or((name, "0"));
        let (seed, fault) = match run.split_once('!') {
            Some((seed, fault)) => (seed, Some(fault.parse()?)),
            None => (run, None),
        };
        Ok(Self { seed: seed.parse()?, fault, state: state.parse()? })
    }
}

impl SimCase {
    fn disk_fault(self) -> Option<DiskFault> {
        let number = self.fault?;
        let (kind, count) = FAULTS[number % FAULTS.len()];
        Some(DiskFault { at: number / FAULTS.len(), count, kind })
    }

    fn dice(self) -> Dice {
        let fault = self.fault.map_or(0, |fault| fault + 1) as u64;
        Dice::of(self.seed, fault << 32 | self.state as u64)
    }
}

/// A workload that ran: its trace and what it acknowledged.
struct FinishedRun {
    steps: Vec<DiskStep>,
    n_changes: usize,
    n_failed: usize,
    model: Model,
    story: Vec<(Position, String)>,
    copies: CatalogCopies,
    /// Whether the run began with a catalog that a crash alone does not leave.
    has_damaged_catalog: bool,
}

impl FinishedRun {
    fn of(daemon: Workload) -> Self {
        let (n_changes, n_failed) = daemon.home.trace.counts();
        let steps = daemon.home.trace.steps();
        let has_damaged_catalog = daemon.home.has_damaged_catalog;
        let Workload { model, story, copies, .. } = daemon;
        Self { steps, n_changes, n_failed, model, story, copies, has_damaged_catalog }
    }

    /// Chooses a number of steps. Most kills are chosen where something is visible and not durable, which matters if a
    /// power cut follows.
    fn crash_position(&self, is_kill: bool, dice: &mut Dice) -> Position {
        let is_followed_by_sync = |pair: &[DiskStep]| {
            matches!(pair[1], DiskStep::Sync(_) | DiskStep::SyncDir(_) | DiskStep::FailedSync(_))
        };
        let pairs = self.steps.windows(2).enumerate();
        let unsynced: Vec<Position> =
            pairs.filter(|(_, pair)| is_followed_by_sync(pair)).map(|(at, _)| at + 1).collect();
        if is_kill && !unsynced.is_empty() && dice.percent(70) {
            dice.pick(&unsynced)
        } else {
            dice.below(self.steps.len() + 1)
        }
    }

    /// Returns the disk after this many steps, of which the last append is cut sometimes.
    fn disk_at(&self, base: &CrashDisk, at: Position, cut: Option<&mut Dice>) -> CrashDisk {
        let mut disk = base.clone();
        let Some((last, before)) = self.steps[..at].split_last() else { return disk };
        before.iter().for_each(|step| disk.apply(step));
        match (last, cut) {
            (DiskStep::Append(path, bytes), Some(dice)) => {
                let written = bytes[..dice.below(bytes.len() + 1)].to_vec();
                disk.apply(&DiskStep::Append(path.clone(), written));
            }
            _ => disk.apply(last),
        }
        disk
    }

    /// Returns the newest copies of the catalog at some time, from which one is chosen.
    fn catalog_at(&self, at: Position, dice: &mut Dice) -> CatalogFiles {
        let older: Vec<_> = self.copies.iter().take_while(|(copied, _)| *copied <= at).collect();
        let age = dice.below(4).min(older.len().saturating_sub(1));
        older.iter().rev().nth(age).map(|(_, files)| files.clone()).unwrap_or_default()
    }
}

/// Uses a daemon in a new home.
fn run(case: SimCase) -> Result<FinishedRun, String> {
    let scratch = scratch();
    let trace = trace_below(scratch.path());
    let may_fail = case.fault.is_some();
    trace.set_fault(case.disk_fault());
    let mut home = OpenHome::start(scratch.path(), Arc::clone(&trace));
    // A start may fail; it works again when the disk does.
    for _ in 0..MAX_STARTS {
        if home.is_err() && may_fail {
            home = OpenHome::start(scratch.path(), Arc::clone(&trace));
        }
    }
    let dice = Dice::of(case.seed, WORKLOAD);
    let mut daemon = Workload::new(home?, Model::new(), dice, may_fail);
    let used = daemon.run(N_CALLS);
    let checked = used.and_then(|()| laws::check(&daemon.home, &daemon.model));
    checked.map_err(|broken| report(case, &daemon, &broken))?;
    Ok(FinishedRun::of(daemon))
}

/// Describes a run in which a law did not hold before any crash.
fn report(case: SimCase, daemon: &Workload, broken: &str) -> String {
    let steps = daemon.home.trace.steps();
    format!("{broken}\n{}", context(case, &steps, steps.len(), &daemon.story))
}

/// Shows the last changes before a crash, and the calls that made them.
fn context(
    case: SimCase,
    steps: &[DiskStep],
    at: Position,
    story: &[(Position, String)],
) -> String {
    const N_SHOWN: usize = 24;
    let mut lines = Vec::new();
    let mut show = |range: std::ops::Range<Position>| {
        for (number, step) in steps.iter().enumerate().take(range.end).skip(range.start) {
            for (_, call) in story.iter().filter(|(called, _)| *called == number) {
                lines.push(format!("        {call}"));
            }
            if number == at {
                lines.push("  ---- the crash".to_owned());
            }
            lines.push(format!("  {number:4} {}", shown(step)));
        }
    };
    if let Some(failed) =
        steps.iter().position(DiskStep::is_failure).filter(|_| case.fault.is_some())
    {
        show(failed.saturating_sub(N_SHOWN)..failed + N_SHOWN);
    }
    show(at.saturating_sub(N_SHOWN)..at + 3);
    lines.insert(0, format!("after {at} of {} changes:", steps.len()));
    lines.push(format!("{REPEAT}{case} cargo test -p ollm-daemon --lib simulator"));
    lines.join("\n")
}

fn shown(step: &DiskStep) -> String {
    match step {
        DiskStep::Append(path, bytes) => {
            let text = String::from_utf8_lossy(&bytes[..bytes.len().min(60)]).into_owned();
            format!("Append {} bytes to {}: {text:?}", bytes.len(), path.display())
        }
        DiskStep::Overwrite(path, at, bytes) => {
            format!("Overwrite {} bytes at {at} of {}", bytes.len(), path.display())
        }
        step => format!("{step:?}"),
    }
}

/// Crashes once, or twice, and checks what every start finds.
fn crash(case: SimCase, run: &FinishedRun) -> Result<(), String> {
    let mut dice = case.dice();
    let base = CrashDisk::new(&FileTree::new());
    let (started, at, choice) = crash_and_start(case, run, &base, &mut dice)?;
    let StartedAgain { disk, run: second, .. } = started;
    if !dice.percent(SECOND_CRASHES) || second.steps.is_empty() {
        return Ok(());
    }
    let again = crash_and_start(case, &second, &disk, &mut dice);
    again.map(drop).map_err(|broken| {
        let first = context(case, &run.steps, at, &run.story);
        format!("{broken}\nafter another crash, {choice}, {first}")
    })
}

/// A start after a crash that found everything as it must be, and the use of the daemon after it.
struct StartedAgain {
    /// The disk at the start.
    disk: CrashDisk,
    run: FinishedRun,
}

fn crash_and_start(
    case: SimCase,
    run: &FinishedRun,
    base: &CrashDisk,
    dice: &mut Dice,
) -> Result<(StartedAgain, Position, String), String> {
    let percent = dice.pick(&[15, 50, 85]);
    let survivors = match dice.below(10) {
        0..3 => Survivors::Everything,
        3 | 4 => Survivors::Nothing,
        _ => Survivors::Percent(percent),
    };
    let is_kill = survivors == Survivors::Everything;
    let at = run.crash_position(is_kill, dice);
    let is_cut = is_kill && dice.percent(40);
    let mut disk = run.disk_at(base, at, is_cut.then_some(&mut *dice));
    disk.disown_temporaries();
    let tree = disk.crash(survivors, dice);
    let model = run.model.after_crash(at);
    let scratch = scratch();
    write_tree(scratch.path(), &tree);
    let catalog = run.catalog_at(at, dice).put_into(&scratch.path().join("home"), dice);
    let found = CatalogFiles::copy_of(&scratch.path().join("home"));
    let choice = format!("{survivors:?} of the unsynced changes, catalog {catalog:?}");
    let explain = |broken: String| {
        format!("{broken}\n{choice}, {}", context(case, &run.steps, at, &run.story))
    };
    laws::check_before_start(scratch.path(), &model).map_err(explain)?;
    let trace = trace_below(scratch.path());
    let mut home = OpenHome::start(scratch.path(), trace).map_err(explain)?;
    home.has_damaged_catalog = catalog.is_damage() || run.has_damaged_catalog;
    let mut daemon = Workload::new(home, model, dice.split(), false);
    daemon.copies.push((0, found));
    let checked = laws::check(&daemon.home, &daemon.model)
        .and_then(|()| daemon.copy_catalog())
        .and_then(|()| laws::continue_after_crash(&mut daemon, dice))
        .and_then(|()| laws::check(&daemon.home, &daemon.model));
    checked.map_err(explain)?;
    daemon.copy_catalog().map_err(explain)?;
    let run = FinishedRun::of(daemon);
    // A kill leaves unsynced changes in the system's cache, where a later power cut finds them.
    let disk = if is_kill { disk } else { CrashDisk::new(&tree) };
    Ok((StartedAgain { disk, run }, at, choice))
}

/// The settings of a test run.
struct SimPlan {
    first_seed: u64,
    n_states: Option<usize>,
    only: Option<SimCase>,
}

impl SimPlan {
    fn from_environment() -> Self {
        let get = |name| std::env::var(name).ok();
        Self {
            first_seed: get("OLLM_SIM_SEED").map_or(1, |seed| seed.parse().expect("a number")),
            n_states: get("OLLM_SIM_STATES").map(|states| states.parse().expect("a number")),
            only: get("OLLM_SIM_CASE").map(|case| case.parse().expect("SEED/STATE")),
        }
    }
}

#[test]
fn state_after_any_crash_keeps_the_laws() {
    let plan = SimPlan::from_environment();
    if let Some(case) = plan.only {
        if case.fault.is_none() {
            let run = run(case).unwrap_or_else(|broken| panic!("{broken}"));
            crash(case, &run).unwrap_or_else(|broken| panic!("{broken}"));
        }
        return;
    }
    let begun = Instant::now();
    let n_states = plan.n_states.unwrap_or(FEW_STATES);
    let mut failures = Vec::new();
    let mut n_changes = 0;
    let mut seed = plan.first_seed;
    let mut n_done = 0;
    while n_done < n_states {
        match run(SimCase { seed, fault: None, state: 0 }) {
            Err(broken) => failures.push(broken),
            Ok(run) => {
                n_changes += run.steps.len();
                for state in 0..STATES_PER_RUN.min(n_states - n_done) {
                    let checked = crash(SimCase { seed, fault: None, state }, &run);
                    failures.extend(checked.inspect_err(|broken| announce(broken)).err());
                }
            }
        }
        n_done += STATES_PER_RUN;
        seed += 1;
    }
    finish(&format!("{n_states} states after {n_changes} changes"), begun, &failures);
}

#[test]
fn any_failing_change_is_an_error_and_costs_nothing_acknowledged() {
    let plan = SimPlan::from_environment();
    if let Some(case) = plan.only {
        if case.fault.is_some() {
            check_fault(case, case.state..case.state + 1)
                .unwrap_or_else(|broken| panic!("{broken}"));
        }
        return;
    }
    let begun = Instant::now();
    let n_faults = plan.n_states.map_or(FEW_FAULTS, |states| states / 10);
    let mut failures = Vec::new();
    let mut n_hit = 0;
    let mut n_done = 0;
    let mut seed = plan.first_seed;
    while n_done < n_faults {
        let whole = run(SimCase { seed, fault: None, state: 0 });
        let n_all = whole.unwrap_or_else(|broken| panic!("{broken}")).n_changes * FAULTS.len();
        // All faults of this workload if there is time, else some that are spread over it.
        let step = if plan.n_states.is_some() { 1 } else { n_all / n_faults };
        for fault in (0..n_all).step_by(step.max(1)).take(n_faults - n_done) {
            let case = SimCase { seed, fault: Some(fault), state: 0 };
            match check_fault(case, 0..STATES_PER_FAULT) {
                Ok(n_failed) => n_hit += n_failed,
                Err(broken) => {
                    announce(&broken);
                    failures.push(broken);
                }
            }
            n_done += 1;
        }
        seed += 1;
    }
    finish(&format!("{n_done} faults, {n_hit} failed changes"), begun, &failures);
}

/// Runs a workload with a fault, and crashes after it. Returns how many changes failed.
fn check_fault(case: SimCase, states: std::ops::Range<usize>) -> Result<usize, String> {
    let run = run(case)?;
    for state in states {
        crash(SimCase { state, ..case }, &run)?;
    }
    Ok(run.n_failed)
}

/// Prints the law and the name of a failure at once, because a run may take an hour.
#[expect(clippy::print_stderr, reason = "a long run shows what it found")]
fn announce(failure: &str) {
    let case = failure.lines().find(|line| line.starts_with(REPEAT)).unwrap_or_default();
    eprintln!("{}  ({case})", failure.lines().next().unwrap_or_default());
}

#[expect(clippy::print_stderr, reason = "a long run shows what it did")]
fn finish(what: &str, begun: Instant, failures: &[String]) {
    eprintln!("{what} in {:.1} s, {} failures", begun.elapsed().as_secs_f64(), failures.len());
    let shown: Vec<&str> = failures.iter().take(3).map(String::as_str).collect();
    assert!(
        failures.is_empty(),
        "{} failures, the first:\n\n{}",
        failures.len(),
        shown.join("\n\n")
    );
}

#[test]
fn workloads_with_the_same_seed_make_the_same_changes() {
    let shape = |seed| {
        let run = run(SimCase { seed, fault: None, state: 0 }).expect("keeps the laws");
        // The catalog's thread syncs logs and keeps sessions open at times of its own.
        let kind = |step: &DiskStep| match step {
            DiskStep::Append(_, bytes) => Some(format!("append {}", bytes.len())),
            DiskStep::Overwrite(..)
            | DiskStep::Sync(_)
            | DiskStep::SyncDir(_)
            | DiskStep::Nothing(_) => None,
            step => Some(format!("{:?}", std::mem::discriminant(step))),
        };
        run.steps.iter().filter_map(kind).collect::<Vec<_>>()
    };
    let (first, second) = (shape(3), shape(3));
    let at = first.iter().zip(&second).take_while(|(a, b)| a == b).count();
    let next = |shape: &[String]| shape[at..].iter().take(9).cloned().collect::<Vec<_>>();
    assert!(first == second, "change {at}: {:?} and {:?}", next(&first), next(&second));
}
