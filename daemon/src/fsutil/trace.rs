//! The changes below a directory, recorded in the order in which they are made, and faults in place of them.
//!
//! A [`DiskTrace`] concerns the directory that it was created for, so that tests which run at the same time do not meet.
//! Paths in it are relative to that directory.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

pub(crate) use super::disk::Ability;
use super::disk::Change;

/// The traces of all tests that run.
static TRACES: Mutex<Vec<(PathBuf, Weak<DiskTrace>)>> = Mutex::new(Vec::new());

/// A change that was made, or a failed sync. Appends hold the bytes that reached the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DiskStep {
    CreateDir(PathBuf),
    Create(PathBuf),
    /// A second name of a file.
    Link(PathBuf, PathBuf),
    Append(PathBuf, Vec<u8>),
    /// Bytes that were written over those at an offset.
    Overwrite(PathBuf, u64, Vec<u8>),
    SetLen(PathBuf, u64),
    Sync(PathBuf),
    /// The bytes before it may be lost, whatever is synced later.
    FailedSync(PathBuf),
    Rename(PathBuf, PathBuf),
    /// A file that moves to another directory.
    Move(PathBuf, PathBuf),
    /// Two files of different directories that change places.
    Exchange(PathBuf, PathBuf),
    Remove(PathBuf),
    RemoveDir(PathBuf),
    SyncDir(PathBuf),
    /// The file system of a directory, of which only what is below the directory counts.
    SyncWhole(PathBuf),
    /// A change that leaves files as they are: an opened file, a mode, a failure.
    Nothing(String),
}

impl DiskStep {
    /// Returns whether the step is a change that failed.
    pub(crate) fn is_failure(&self) -> bool {
        match self {
            Self::FailedSync(_) => true,
            Self::Nothing(text) => text.contains("os error"),
            _ => false,
        }
    }
}

/// The ways in which a change fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultKind {
    /// Fails with this error of the system, and changes nothing.
    Error(i32),
    /// Writes a part of the bytes and fails with this error. Other changes fail without an effect.
    Short(i32),
    /// Lets the examination of a file of a project fail with this error, and no change. `at` counts examinations.
    Read(i32),
}

/// A fault at one change, or at several in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DiskFault {
    /// The number of changes, failed ones included, before the first change that shall fail.
    pub(crate) at: usize,
    /// The number of changes that fail.
    pub(crate) count: usize,
    pub(crate) kind: FaultKind,
}

impl DiskFault {
    const fn hits(&self, number: usize) -> bool {
        number >= self.at && number - self.at < self.count
    }
}

/// Changes that a trace leaves out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Untraced {
    /// The name of the threads that make them.
    pub(crate) thread: &'static str,
    /// The directory of these changes, relative to that of the trace. Changes in its subdirectories are recorded.
    pub(crate) dir: &'static str,
}

/// The changes below one directory.
pub(crate) struct DiskTrace {
    root: PathBuf,
    /// The changes that are made and not recorded.
    untraced: Option<Untraced>,
    state: Mutex<TraceState>,
    /// The abilities that the file system seems to lack.
    lacking: Mutex<Vec<Ability>>,
    /// Notified when a thread arrives at a change and when it may make it.
    turn: Condvar,
}

/// Work of somebody else.
type Interruption = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct TraceState {
    steps: Vec<DiskStep>,
    /// The number of changes that were tried.
    n_tried: usize,
    /// The number of files of projects that were examined.
    n_read: usize,
    n_failed: usize,
    fault: Option<DiskFault>,
    /// The number of changes and examinations so far.
    n_gaps: usize,
    interruption: Option<(usize, Interruption)>,
    /// Whether threads wait before each change until they are admitted.
    is_held: bool,
    next_ticket: usize,
    waiting: Vec<(usize, PathBuf)>,
    admitted: Option<usize>,
}

impl TraceState {
    /// Notes that a change or an examination follows, and lets somebody else work before it.
    fn pass_gap(&mut self) {
        let number = self.n_gaps;
        self.n_gaps += 1;
        if let Some((_, work)) = self.interruption.take_if(|(at, _)| *at == number) {
            work();
        }
    }
}

impl DiskTrace {
    /// Records the changes below `root` from now on, until the trace is dropped.
    pub(crate) fn new(root: &Path) -> Arc<Self> {
        Self::without(root, None)
    }

    /// Records the changes below `root` from now on, with an exception.
    pub(crate) fn without(root: &Path, untraced: Option<Untraced>) -> Arc<Self> {
        let trace = Arc::new(Self {
            root: root.to_owned(),
            untraced,
            state: Mutex::default(),
            lacking: Mutex::default(),
            turn: Condvar::new(),
        });
        let mut traces = TRACES.lock();
        traces.retain(|(_, trace)| trace.strong_count() > 0);
        traces.push((root.to_owned(), Arc::downgrade(&trace)));
        trace
    }

    /// Returns the number of steps so far.
    pub(crate) fn position(&self) -> usize {
        self.state.lock().steps.len()
    }

    /// Returns the steps so far.
    pub(crate) fn steps(&self) -> Vec<DiskStep> {
        self.state.lock().steps.clone()
    }

    /// Returns how many changes were tried, and how many of them failed on purpose.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.n_tried, state.n_failed)
    }

    /// Returns how many files of projects were examined.
    pub(crate) fn n_read(&self) -> usize {
        self.state.lock().n_read
    }

    pub(crate) fn set_fault(&self, fault: Option<DiskFault>) {
        self.state.lock().fault = fault;
    }

    /// Lets the file system seem to lack abilities.
    pub(crate) fn set_lacking(&self, abilities: &[Ability]) {
        *self.lacking.lock() = abilities.to_vec();
    }

    /// Lets somebody else do something after `at` further changes and examinations, before the next one.
    pub(crate) fn interrupt(&self, at: usize, work: impl FnOnce() + Send + 'static) {
        let mut state = self.state.lock();
        state.interruption = Some((state.n_gaps + at, Box::new(work)));
    }

    /// Makes threads wait before each change, or lets all of them continue.
    pub(crate) fn hold(&self, is_held: bool) {
        self.state.lock().is_held = is_held;
        self.turn.notify_all();
    }

    /// Returns the paths of the changes that wait, in the order of their arrival.
    pub(crate) fn waiting(&self) -> Vec<PathBuf> {
        self.state.lock().waiting.iter().map(|(_, path)| path.clone()).collect()
    }

    /// Admits the change with this place among those that wait, and waits until it is made.
    pub(crate) fn admit(&self, place: usize) {
        let mut state = self.state.lock();
        let ticket = state.waiting[place].0;
        state.admitted = Some(ticket);
        self.turn.notify_all();
        while state.admitted == Some(ticket) {
            self.turn.wait(&mut state);
        }
    }

    /// Waits for an arrival or a change, at most for a moment.
    pub(crate) fn wait_briefly(&self) {
        self.turn.wait_for(&mut self.state.lock(), Duration::from_micros(200));
    }

    fn carry_out<T>(
        &self,
        change: Change<'_>,
        make: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        let mut state = self.state.lock();
        let mut ticket = None;
        if state.is_held {
            let own = state.next_ticket;
            state.next_ticket += 1;
            state.waiting.push((own, self.relative(path_of(&change))));
            self.turn.notify_all();
            while state.is_held && state.admitted != Some(own) {
                self.turn.wait(&mut state);
            }
            state.waiting.retain(|(ticket, _)| *ticket != own);
            ticket = Some(own);
        }
        let result = self.make(&mut state, change, make);
        if state.admitted == ticket {
            state.admitted = None;
        }
        self.turn.notify_all();
        result
    }

    fn make<T>(
        &self,
        state: &mut TraceState,
        change: Change<'_>,
        make: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        state.pass_gap();
        let number = state.n_tried;
        state.n_tried += 1;
        let fault = state
            .fault
            .filter(|fault| fault.hits(number) && !matches!(fault.kind, FaultKind::Read(_)));
        if let Some(fault) = fault {
            state.n_failed += 1;
            return Err(self.fail(state, change, make, fault.kind));
        }
        let before = self.steps_of(change);
        let result = make();
        match &result {
            Ok(_) => state.steps.extend(before),
            Err(error) => {
                state.steps.push(DiskStep::Nothing(format!("{error}: {}", self.shown(&change))));
            }
        }
        result
    }

    fn fail<T>(
        &self,
        state: &mut TraceState,
        change: Change<'_>,
        make: impl FnOnce() -> io::Result<T>,
        kind: FaultKind,
    ) -> io::Error {
        let (FaultKind::Error(code) | FaultKind::Short(code) | FaultKind::Read(code)) = kind;
        let error = io::Error::from_raw_os_error(code);
        let step = match change {
            Change::Append(path, bytes) if matches!(kind, FaultKind::Short(_)) => {
                let kept = bytes.len() / 2;
                // The change is made whole, and then cut back to its first half.
                drop(make());
                let file = std::fs::OpenOptions::new().write(true).open(path);
                let cut = file.and_then(|file| {
                    file.set_len(file.metadata()?.len() - (bytes.len() - kept) as u64)
                });
                cut.expect("the file is there");
                DiskStep::Append(self.relative(path), bytes[..kept].to_vec())
            }
            Change::Overwrite(path, at, bytes) if matches!(kind, FaultKind::Short(_)) => {
                // The bytes of the file are the same whether they are written or not.
                DiskStep::Overwrite(self.relative(path), at, bytes[..bytes.len() / 2].to_vec())
            }
            Change::Sync(path) | Change::SyncWhole(path) => {
                DiskStep::FailedSync(self.relative(path))
            }
            change => DiskStep::Nothing(format!("{error}: {}", self.shown(&change))),
        };
        state.steps.push(step);
        error
    }

    /// Returns the steps of a change that is about to be made.
    fn steps_of(&self, change: Change<'_>) -> Vec<DiskStep> {
        let of = |path: &Path| self.relative(path);
        vec![match change {
            Change::CreateDirs(path) => {
                let is_missing = |dir: &&Path| dir.starts_with(&self.root) && !dir.exists();
                let missing: Vec<&Path> = path.ancestors().take_while(is_missing).collect();
                return missing.into_iter().rev().map(|dir| DiskStep::CreateDir(of(dir))).collect();
            }
            Change::RemoveTree(path) => {
                let mut steps = Vec::new();
                self.removals_of(path, &mut steps);
                return steps;
            }
            Change::Create(path) => DiskStep::Create(of(path)),
            Change::Link(from, to) => DiskStep::Link(of(from), of(to)),
            Change::Copy(from, len, to) => {
                let mut bytes = super::read_regular(from).expect("is readable");
                bytes.truncate(usize::try_from(len).expect("is in memory"));
                DiskStep::Append(of(to), bytes)
            }
            Change::Append(path, bytes) => DiskStep::Append(of(path), bytes.to_vec()),
            Change::Overwrite(path, at, bytes) => DiskStep::Overwrite(of(path), at, bytes.to_vec()),
            Change::SetLen(path, len) => DiskStep::SetLen(of(path), len),
            Change::Sync(path) => DiskStep::Sync(of(path)),
            Change::Rename(from, to) => DiskStep::Rename(of(from), of(to)),
            Change::Remove(path) => DiskStep::Remove(of(path)),
            Change::SyncDir(path) => DiskStep::SyncDir(of(path)),
            Change::SyncWhole(path) => DiskStep::SyncWhole(of(path)),
            Change::RemoveDir(path) => DiskStep::RemoveDir(of(path)),
            Change::Move(from, to) => DiskStep::Move(of(from), of(to)),
            Change::Exchange(one, other) => DiskStep::Exchange(of(one), of(other)),
            Change::Open(_) | Change::SetMode(_) => DiskStep::Nothing(self.shown(&change)),
        }]
    }

    fn removals_of(&self, dir: &Path, steps: &mut Vec<DiskStep>) {
        let Ok(entries) = std::fs::read_dir(dir) else { return };
        for path in entries.map(|entry| entry.expect("reads").path()) {
            if path.is_dir() {
                self.removals_of(&path, steps);
            } else {
                steps.push(DiskStep::Remove(self.relative(&path)));
            }
        }
        steps.push(DiskStep::RemoveDir(self.relative(dir)));
    }

    fn leaves_out(&self, path: &Path) -> bool {
        self.untraced.is_some_and(|Untraced { thread, dir }| {
            let dir = self.root.join(dir);
            let is_in_it = path.parent() == Some(&dir) && !path.is_dir();
            std::thread::current().name() == Some(thread) && (path == dir || is_in_it)
        })
    }

    fn relative(&self, path: &Path) -> PathBuf {
        path.strip_prefix(&self.root).expect("is below the root").to_owned()
    }

    /// Returns a change as a line for people.
    fn shown(&self, change: &Change<'_>) -> String {
        let path = self.relative(path_of(change));
        let name = match change {
            Change::Open(_) => "Open",
            Change::SetMode(_) => "SetMode",
            Change::CreateDirs(_) => "CreateDirs",
            Change::Create(_) => "Create",
            Change::Link(..) => "Link",
            Change::Copy(..) => "Copy",
            Change::Append(..) => "Append",
            Change::Overwrite(..) => "Overwrite",
            Change::SetLen(..) => "SetLen",
            Change::Sync(_) => "Sync",
            Change::Rename(..) => "Rename",
            Change::Move(..) => "Move",
            Change::Exchange(..) => "Exchange",
            Change::RemoveDir(_) => "RemoveDir",
            Change::Remove(_) => "Remove",
            Change::RemoveTree(_) => "RemoveTree",
            Change::SyncDir(_) => "SyncDir",
            Change::SyncWhole(_) => "SyncWhole",
        };
        let other = match change {
            Change::Move(_, to) | Change::Exchange(_, to) => {
                format!(" {}", self.relative(to).display())
            }
            _ => String::new(),
        };
        format!("{name} {}{other}", path.display())
    }
}

fn path_of<'a>(change: &Change<'a>) -> &'a Path {
    match *change {
        Change::CreateDirs(path)
        | Change::Create(path)
        | Change::Open(path)
        | Change::Append(path, _)
        | Change::Overwrite(path, ..)
        | Change::SetLen(path, _)
        | Change::Sync(path)
        | Change::Rename(path, _)
        | Change::Link(_, path)
        | Change::Copy(_, _, path)
        | Change::Move(path, _)
        | Change::Exchange(path, _)
        | Change::RemoveDir(path)
        | Change::Remove(path)
        | Change::RemoveTree(path)
        | Change::SyncDir(path)
        | Change::SyncWhole(path)
        | Change::SetMode(path) => path,
    }
}

/// Makes a change, and records it if a test follows its directory.
pub(super) fn carry_out<T>(
    change: Change<'_>,
    make: impl FnOnce() -> io::Result<T>,
) -> io::Result<T> {
    let path = path_of(&change);
    match trace_of(path) {
        Some(trace) if !trace.leaves_out(path) => trace.carry_out(change, make),
        _ => make(),
    }
}

/// Fails if a test lets the examination of a file in this directory fail.
pub(super) fn check_read(dir: &Path) -> io::Result<()> {
    let Some(trace) = trace_of(dir) else { return Ok(()) };
    let mut state = trace.state.lock();
    state.pass_gap();
    let number = state.n_read;
    state.n_read += 1;
    match state.fault.filter(|fault| fault.hits(number)).map(|fault| fault.kind) {
        Some(FaultKind::Read(code)) => {
            state.n_failed += 1;
            Err(io::Error::from_raw_os_error(code))
        }
        _ => Ok(()),
    }
}

/// Fails if a test says that the file system of a directory lacks an ability.
pub(super) fn check_ability(dir: &Path, ability: Ability) -> io::Result<()> {
    let lacks = trace_of(dir).is_some_and(|trace| trace.lacking.lock().contains(&ability));
    if lacks { Err(io::ErrorKind::Unsupported.into()) } else { Ok(()) }
}

fn trace_of(path: &Path) -> Option<Arc<DiskTrace>> {
    let traces = TRACES.lock();
    let found =
        traces.iter().find(|(root, trace)| path.starts_with(root) && trace.strong_count() > 0);
    found.and_then(|(_, trace)| trace.upgrade())
}
