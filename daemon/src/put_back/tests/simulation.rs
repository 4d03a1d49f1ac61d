//! Random histories of a project: two sessions and somebody else write files, sessions undo and redo, plans go stale
//! before they are applied, disks fill, and the daemon crashes at any change and starts again.
//!
//! A model knows what each session left in each file. After every step:
//! - a file that has not what the session left in it, which puts files back, keeps its bytes;
//! - a file that was put back has exactly the bytes from before the calls that were undone;
//! - a file that only one session ever wrote can be put back;
//! - what was in a file before it was put back is in place, kept by the session, or in a stage that is named.
//!
//! All choices follow from a seed, which a failure prints; `OLLM_FILES_CASE=SEED` repeats it.
//! `OLLM_FILES_RUNS=100000` makes this many histories instead of a few.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::symlink;

use ollm_protocol::Seq;
use ollm_protocol::content::{FileState, FileStatus, FileWrite};
use rustix::io::Errno;

use super::{End, FileRecord, Writer, content, hash, scratch};
use crate::fsutil::trace::{Ability, DiskFault, DiskTrace, FaultKind};
use crate::put_back::apply::FileOutcome;
use crate::put_back::plan::{FileFate, PlanItem};
use crate::put_back::stage;
use crate::simulator::dice::Dice;

/// The histories of the usual test run.
const FEW_RUNS: u64 = 150;
/// The steps of a history.
const N_STEPS: usize = 14;
const FILES: [&str; 6] = ["a", "b", "dir/c", "dir/d", "deep/er/e", "deep/f"];
const ALL: usize = usize::MAX / 2;

/// The writer of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Author {
    Session(usize),
    Other,
}

/// A file as the model knows it. A link of somebody else has no bytes.
#[derive(Clone, Debug, Default)]
struct KnownFile {
    bytes: Option<Vec<u8>>,
    is_link: bool,
    /// The content that each session left when it wrote the file last.
    left_by: BTreeMap<usize, Option<Vec<u8>>>,
    /// Everybody who ever wrote it.
    authors: BTreeSet<Author>,
    /// Whether a content of it was not recorded, or the system refused to put it back.
    has_gap: bool,
}

impl KnownFile {
    /// Returns whether a session may change the file: it has what the session left in it.
    fn is_as_left_by(&self, who: usize) -> bool {
        !self.is_link && self.left_by.get(&who) == Some(&self.bytes)
    }
}

/// A session with its operations.
struct SimSession {
    writer: Writer,
    /// The calls that can be undone, and those that can be redone.
    undo: Vec<Seq>,
    redo: Vec<Seq>,
    /// The writes that were taken back, by call and file. Files that stayed keep theirs.
    off: BTreeSet<(Seq, String)>,
    /// The files before each call, of those that it wrote.
    before: BTreeMap<Seq, BTreeMap<String, Option<Vec<u8>>>>,
}

impl SimSession {
    /// Notes that the writes of calls to a file are taken back or put forward; returns the calls whose writes are.
    fn turn(&mut self, calls: &[Seq], direction: Direction, path: &str) -> Vec<Seq> {
        let mut turned = Vec::new();
        for call in calls.iter().filter(|call| self.before[*call].contains_key(path)) {
            let place = (*call, path.to_owned());
            let is_turned = match direction {
                Direction::Back => self.off.insert(place),
                Direction::Forward => self.off.remove(&place),
            };
            turned.extend(is_turned.then_some(*call));
        }
        turned
    }
}

struct Simulation {
    dice: Dice,
    scratch: tempfile::TempDir,
    sessions: Vec<SimSession>,
    files: BTreeMap<String, KnownFile>,
    n_written: u64,
    n_put_back: u64,
    story: Vec<String>,
}

/// A direction along the calls of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Back,
    Forward,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let scratch = scratch();
        let session = |number: u128| SimSession {
            writer: Writer::new(scratch.path(), number),
            undo: Vec::new(),
            redo: Vec::new(),
            off: BTreeSet::new(),
            before: BTreeMap::new(),
        };
        let sessions = vec![session(1), session(2)];
        let files = FILES.iter().map(|name| ((*name).to_owned(), KnownFile::default())).collect();
        let dice = Dice::of(seed, 0);
        let (n_written, n_put_back) = (0, 0);
        Self { dice, scratch, sessions, files, n_written, n_put_back, story: Vec::new() }
    }

    fn run(mut self) -> Result<u64, String> {
        for _ in 0..N_STEPS {
            let who = self.dice.below(self.sessions.len());
            let step = match self.dice.below(10) {
                0..=3 => self.session_writes(who),
                4 => self.somebody_writes(),
                5..=7 => self.step(who, Direction::Back),
                _ => self.step(who, Direction::Forward),
            };
            step.and_then(|()| self.check())
                .map_err(|broken| format!("{broken}\n{}", self.story.join("\n")))?;
        }
        Ok(self.n_put_back)
    }

    /// Returns bytes that nobody has written before.
    fn fresh(&mut self) -> Vec<u8> {
        self.n_written += 1;
        format!("content {}", self.n_written).into_bytes()
    }

    fn session_writes(&mut self, who: usize) -> Result<(), String> {
        let mut writes: Vec<(String, Option<Vec<u8>>)> = Vec::new();
        for _ in 0..=self.dice.below(3) {
            let name = self.dice.pick(&FILES).to_owned();
            let is_link = self.is_link(&name);
            if is_link || writes.iter().any(|(known, _)| *known == name) {
                continue;
            }
            let exists = self.files[&name].bytes.is_some();
            let removes = exists && self.dice.percent(25);
            let bytes = if removes { None } else { Some(self.fresh()) };
            writes.push((name, bytes));
        }
        if writes.is_empty() {
            return Ok(());
        }
        self.story.push(format!("session {who} writes {:?}", names(&writes)));
        let session = &mut self.sessions[who];
        let before = writes.iter().map(|(name, _)| (name.clone(), self.files[name].bytes.clone()));
        let before: BTreeMap<_, _> = before.collect();
        let borrowed: Vec<_> =
            writes.iter().map(|(name, bytes)| (name.as_str(), bytes.as_deref())).collect();
        let seq = session.writer.call(&borrowed);
        session.before.insert(seq, before);
        session.undo.push(seq);
        session.redo.clear();
        let gap = self.dice.percent(10);
        if gap && let Some(FileRecord::Call(_, call)) = session.writer.records.last_mut() {
            let writes: &mut Vec<FileWrite> = call.writes.as_mut().expect("has writes");
            writes[0].before = FileState::Unknown;
        }
        for (at, (name, bytes)) in writes.into_iter().enumerate() {
            let file = self.files.get_mut(&name).expect("is known");
            file.left_by.insert(who, bytes.clone());
            file.bytes = bytes;
            file.authors.insert(Author::Session(who));
            file.has_gap |= gap && at == 0;
        }
        Ok(())
    }

    fn is_link(&self, name: &str) -> bool {
        let path = self.sessions[0].writer.root.join(name);
        path.symlink_metadata().is_ok_and(|found| !found.is_file())
    }

    fn somebody_writes(&mut self) -> Result<(), String> {
        let name = self.dice.pick(&FILES);
        let path = self.sessions[0].writer.root.join(name);
        let kind = self.dice.below(4);
        if fs::remove_file(&path).is_err() && kind == 0 {
            // There is nothing to remove.
            return Ok(());
        }
        let bytes = match kind {
            0 => None,
            1 => {
                // What is behind the link must not change either; `check` reads it.
                let target = self.scratch.path().join("outside");
                fs::write(&target, "outside").expect("writes");
                fs::create_dir_all(path.parent().expect("has one")).expect("creates");
                symlink(target, &path).expect("links");
                None
            }
            _ => {
                let bytes = self.fresh();
                fs::create_dir_all(path.parent().expect("has one")).expect("creates");
                fs::write(&path, &bytes).expect("writes");
                Some(bytes)
            }
        };
        self.story.push(format!("somebody writes {name}"));
        let file = self.files.get_mut(name).expect("is known");
        (file.bytes, file.is_link) = (bytes, kind == 1);
        file.authors.insert(Author::Other);
        Ok(())
    }

    /// Undoes or redoes calls of a session with their files.
    fn step(&mut self, who: usize, direction: Direction) -> Result<(), String> {
        let n_steps = 1 + self.dice.below(2);
        let session = &self.sessions[who];
        let stack = if direction == Direction::Back { &session.undo } else { &session.redo };
        let calls: Vec<Seq> = stack.iter().rev().take(n_steps).copied().collect();
        if calls.is_empty() {
            return Ok(());
        }
        let plan = match direction {
            Direction::Back => session.writer.plan(&calls, &[]),
            Direction::Forward => session.writer.plan(&[], &calls),
        };
        self.check_plan(who, &calls, &plan, direction)?;
        if self.dice.percent(30) {
            self.somebody_writes()?;
        }
        let end = match self.dice.below(10) {
            0 => End::BeforeRecord,
            1 => End::BehindRecord,
            _ => End::Whole,
        };
        let fault = self.choose_fault();
        self.story.push(format!("session {who} goes {direction:?} {calls:?}, {end:?}, {fault:?}"));
        let trace = DiskTrace::new(self.scratch.path());
        trace.set_fault(fault);
        if self.dice.percent(30) {
            trace.set_lacking(&[Ability::RenameFlags]);
        }
        let before = self.contents();
        let session = &mut self.sessions[who];
        let n_records = session.writer.records.len();
        let applied = session.writer.apply(&plan, end);
        let is_recorded = session.writer.records.len() > n_records;
        trace.set_fault(None);
        let overwritten = self.contents();
        if !is_recorded && self.dice.percent(30) {
            // Before the next start takes back what is half done.
            self.somebody_writes()?;
        }
        let session = &mut self.sessions[who];
        session.writer.recover().map_err(|error| format!("cannot recover: {error:?}"))?;
        self.check_contents(who, &before, &overwritten)?;
        if !is_recorded {
            return Ok(());
        }
        let outcomes = applied.unwrap_or_else(|_| self.outcomes_of_record(who, &plan));
        self.note_put_back(who, &calls, direction, &outcomes)?;
        for item in plan.iter().filter(|item| matches!(item.fate, FileFate::Same(_))) {
            self.sessions[who].turn(&calls, direction, &item.path);
        }
        let session = &mut self.sessions[who];
        for call in calls {
            let (from, to) = match direction {
                Direction::Back => (&mut session.undo, &mut session.redo),
                Direction::Forward => (&mut session.redo, &mut session.undo),
            };
            from.retain(|known| *known != call);
            to.push(call);
        }
        Ok(())
    }

    /// Returns the contents of all files.
    fn contents(&self) -> BTreeMap<&'static str, Option<Vec<u8>>> {
        let root = &self.sessions[0].writer.root;
        FILES.iter().map(|name| (*name, content(&root.join(name)))).collect()
    }

    /// Checks that no content is gone, unless somebody overwrote it where it stood.
    fn check_contents(
        &self,
        who: usize,
        before: &BTreeMap<&'static str, Option<Vec<u8>>>,
        overwritten: &BTreeMap<&'static str, Option<Vec<u8>>>,
    ) -> Result<(), String> {
        let writer = &self.sessions[who].writer;
        let kept = stage::kept_files(&writer.root);
        for (name, bytes) in before.iter().filter(|(_, bytes)| bytes.is_some()) {
            let is_there = content(&writer.root.join(name)) == *bytes
                || overwritten[name] == *bytes
                || bytes.as_ref().is_some_and(|bytes| writer.blobs.contains_key(&hash(bytes)))
                || kept.iter().any(|file| content(&writer.root.join(&file.file)) == *bytes);
            if !is_there {
                return Err(format!("{name} lost {:?}", bytes.clone().map(text)));
            }
        }
        Ok(())
    }

    fn choose_fault(&mut self) -> Option<DiskFault> {
        let at = self.dice.below(60);
        let code = Errno::NOSPC.raw_os_error();
        match self.dice.below(10) {
            // Nothing is changed after a crash.
            0..=3 => Some(DiskFault { at, count: ALL, kind: FaultKind::Error(code) }),
            4 => Some(DiskFault { at, count: 1, kind: FaultKind::Short(code) }),
            5 => Some(DiskFault { at, count: 2, kind: FaultKind::Error(code) }),
            6 => {
                let code = Errno::ACCESS.raw_os_error();
                Some(DiskFault { at, count: 1, kind: FaultKind::Error(code) })
            }
            _ => None,
        }
    }

    /// Returns what became of the files of a plan whose record is in the log, as the record says.
    fn outcomes_of_record(&self, who: usize, plan: &[PlanItem]) -> Vec<(String, FileOutcome)> {
        let Some(FileRecord::PutBack(record)) = self.sessions[who].writer.records.last() else {
            return Vec::new();
        };
        let changes = plan.iter().filter(|item| matches!(item.fate, FileFate::Change(_)));
        let outcome = |item: &PlanItem| {
            let is_done = record.files.iter().any(|file| file.path == item.path);
            let refused = || FileOutcome::Left(FileStatus::Failed, String::new());
            (item.path.clone(), if is_done { FileOutcome::Done(None) } else { refused() })
        };
        changes.map(outcome).collect()
    }

    /// Checks that a plan promises what it can keep, and enough.
    fn check_plan(
        &self,
        who: usize,
        calls: &[Seq],
        plan: &[PlanItem],
        direction: Direction,
    ) -> Result<(), String> {
        for item in plan {
            let file = &self.files[&item.path];
            let is_foreign = !file.is_as_left_by(who);
            match &item.fate {
                FileFate::Change(_) if is_foreign => {
                    return Err(format!("{} would change and is somebody else's", item.path));
                }
                FileFate::Left(status, reason) => {
                    let only_author =
                        file.authors.len() == 1 && file.authors.contains(&Author::Session(who));
                    if only_author && !file.has_gap {
                        return Err(format!("{} stays: {status:?}, {reason}", item.path));
                    }
                }
                _ => {}
            }
        }
        if direction == Direction::Back {
            let written = calls.iter().flat_map(|call| self.sessions[who].before[call].keys());
            for path in written {
                let file = &self.files[path];
                let is_planned = plan.iter().any(|item| item.path == *path);
                if !is_planned && file.authors.len() == 1 && !file.has_gap {
                    return Err(format!("{path} is not in the plan"));
                }
            }
        }
        Ok(())
    }

    /// Notes the files that were put back, which must have exactly the bytes from before the calls, or from after them.
    fn note_put_back(
        &mut self,
        who: usize,
        calls: &[Seq],
        direction: Direction,
        outcomes: &[(String, FileOutcome)],
    ) -> Result<(), String> {
        for (path, outcome) in outcomes {
            let file = self.files.get_mut(path).expect("is known");
            if !matches!(outcome, FileOutcome::Done(_)) {
                // Its layers stay where they are, while the session goes on.
                file.has_gap = true;
                continue;
            }
            if !file.is_as_left_by(who) {
                return Err(format!("{path} was put back and is somebody else's"));
            }
            let found = content(&self.sessions[who].writer.root.join(path));
            let session = &mut self.sessions[who];
            let calls = session.turn(calls, direction, path);
            let wanted = match direction {
                // The bytes from before the earliest of the calls.
                Direction::Back => {
                    let earliest = calls.iter().min().ok_or("it was not written")?;
                    session.before[earliest][path].clone()
                }
                Direction::Forward => {
                    let hash_of = |state: FileState| match state {
                        FileState::Hash(hash) => Some(session.writer.blobs[&hash].clone()),
                        _ => None,
                    };
                    let newest = calls.iter().max().ok_or("it was not written")?;
                    hash_of(after(session, *newest, path).ok_or("it was not written")?)
                }
            };
            if found != wanted {
                return Err(format!("{path} has {found:?} instead of {wanted:?}"));
            }
            file.left_by.insert(who, wanted.clone());
            file.bytes = wanted;
            self.n_put_back += 1;
        }
        Ok(())
    }

    /// Checks that every file has the bytes that it got last, and that nothing else is there.
    fn check(&self) -> Result<(), String> {
        let root = &self.sessions[0].writer.root;
        for (name, file) in &self.files {
            let found = content(&root.join(name));
            if found != file.bytes {
                let (found, known) = (found.map(text), file.bytes.clone().map(text));
                return Err(format!("{name} has {found:?} instead of {known:?}"));
            }
        }
        let outside = content(&self.scratch.path().join("outside"));
        if outside.is_some_and(|bytes| bytes != b"outside") {
            return Err("a file outside of the project was written".to_owned());
        }
        let kept = stage::kept_files(root);
        for file in fs::read_dir(root).expect("lists") {
            let name = file.expect("lists").file_name();
            let is_named = kept.iter().any(|file| file.file.starts_with(&*name.to_string_lossy()));
            if name.to_string_lossy().starts_with(".ollm") && !is_named {
                return Err(format!("{name:?} was left"));
            }
        }
        Ok(())
    }
}

/// Returns what a call made of a file.
fn after(session: &SimSession, call: Seq, path: &str) -> Option<FileState> {
    session.writer.records.iter().find_map(|record| match record {
        FileRecord::Call(seq, record) if *seq == call => {
            let write = record.writes.iter().flatten().find(|write| write.path == path);
            write.map(|write| write.after)
        }
        _ => None,
    })
}

fn names(writes: &[(String, Option<Vec<u8>>)]) -> Vec<String> {
    let shown = |(name, bytes): &(String, Option<Vec<u8>>)| {
        let short = bytes.as_ref().map(|bytes| hash(bytes).to_string()[..6].to_owned());
        format!("{name}={}", short.unwrap_or_else(|| "removed".to_owned()))
    };
    writes.iter().map(shown).collect()
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn files_of_others_keep_their_bytes_in_every_history() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (first, count) = match number("OLLM_FILES_CASE") {
        Some(seed) => (seed, 1),
        None => (0, number("OLLM_FILES_RUNS").unwrap_or(FEW_RUNS)),
    };
    let mut n_put_back = 0;
    for seed in first..first + count {
        match Simulation::new(seed).run() {
            Ok(count) => n_put_back += count,
            Err(broken) => panic!("OLLM_FILES_CASE={seed}: {broken}"),
        }
    }
    assert!(count == 1 || n_put_back > count, "only {n_put_back} files were put back");
}
