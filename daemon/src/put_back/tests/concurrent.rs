//! Programs that save files while others are put back or taken back, and after a crash: nothing that anybody wrote is lost.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write as _;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ollm_protocol::content::FileStatus;
use ollm_protocol::event::PutBackStep;
use parking_lot::Mutex;
use rustix::io::Errno;

use super::{End, Project, content, project_with_changes, put_back};
use crate::fsutil::trace::{Ability, DiskFault, DiskStep, DiskTrace, FaultKind};
use crate::put_back::apply::{ApplyError, FileOutcome};
use crate::put_back::journal::STAGE_PREFIX;

/// The file systems of the tests, by what they lack.
const LACKS: [&[Ability]; 2] = [&[], &[Ability::RenameFlags]];
/// Files that are replaced, come back, and go, each with what the session left in it.
const TARGETS: [(&str, Option<&str>); 3] =
    [("a", Some("a2")), ("old/gone", None), ("new", Some("n2"))];

/// A way in which a program saves a file.
#[derive(Clone, Copy, Debug)]
enum Save {
    /// A new file takes the name.
    Rename,
    /// The file is written where it is.
    InPlace,
    /// The file is removed and created.
    Anew,
}

impl Save {
    /// Saves a file, and returns what it had before.
    fn save(self, scratch: &Path, place: &Path) -> Option<Vec<u8>> {
        let before = content(place);
        fs::create_dir_all(place.parent().expect("has one")).expect("creates");
        match self {
            Self::Rename => {
                let new = scratch.join("editor");
                fs::write(&new, "editor").expect("writes");
                fs::rename(new, place).expect("replaces");
            }
            Self::InPlace => fs::write(place, "editor").expect("writes"),
            Self::Anew => {
                drop(fs::remove_file(place));
                fs::write(place, "editor").expect("writes");
            }
        }
        before
    }
}

/// The work during which a file is saved.
#[derive(Clone, Copy, Debug)]
enum Moment {
    Application,
    /// An application that is canceled when nearly all files have moved.
    CanceledApplication,
    /// The start after a crash.
    TakingBack,
}

impl Moment {
    fn run(self, project: &mut Project, call: ollm_protocol::Seq, begin: impl FnOnce()) {
        let plan = project.session.plan(&[call], &[]);
        match self {
            Self::Application => {
                begin();
                let _outcomes = project.session.apply(&plan, End::Whole);
            }
            Self::CanceledApplication => {
                begin();
                let watch = |step, done| match (step, done) {
                    (PutBackStep::Moving, 4) => ControlFlow::Break(()),
                    _ => ControlFlow::Continue(()),
                };
                let _canceled = project.session.apply_watched(&plan, End::Whole, &watch);
            }
            Self::TakingBack => {
                project.session.apply(&plan, End::BeforeRecord).expect("applies");
                begin();
            }
        }
        project.session.recover().expect("recovers");
    }
}

#[test]
fn save_at_any_moment_loses_nothing() {
    let moments = [Moment::Application, Moment::CanceledApplication, Moment::TakingBack];
    let saves = [Save::Rename, Save::InPlace, Save::Anew];
    let (mut n_gaps, mut n_in_stage) = (0, 0);
    for (moment, save) in moments.iter().flat_map(|moment| saves.map(|save| (*moment, save))) {
        for (lacks, target) in LACKS.iter().flat_map(|lacks| TARGETS.map(|one| (*lacks, one))) {
            for at in 0.. {
                let what = format!("{save:?} of {target:?} at gap {at} of {moment:?}, {lacks:?}");
                let Some(is_in_place) = check_save(moment, save, target, lacks, at, &what) else {
                    assert!(at > 20, "{what}");
                    break;
                };
                n_gaps += 1;
                n_in_stage += usize::from(!is_in_place);
            }
        }
    }
    // Only if the file is removed and created is there a moment at which the older file can return first.
    assert!(n_gaps > 1000 && n_in_stage * 20 < n_gaps, "{n_in_stage} of {n_gaps}");
}

/// Saves a file at one gap, and checks that nothing is lost; returns whether the save is in place, or `None` if there is no
/// such gap.
fn check_save(
    moment: Moment,
    save: Save,
    (target, left): (&str, Option<&str>),
    lacks: &[Ability],
    at: usize,
    what: &str,
) -> Option<bool> {
    let (mut project, call) = project_with_changes();
    let trace = DiskTrace::new(project.scratch.path());
    trace.set_lacking(lacks);
    let overwritten = Arc::new(Mutex::new(None));
    let (scratch, place) = (project.scratch.path().to_owned(), project.path(target));
    let slot = Arc::clone(&overwritten);
    moment.run(&mut project, call, || {
        trace.interrupt(at, move || *slot.lock() = Some(save.save(&scratch, &place)));
    });
    let overwritten = overwritten.lock().take()?;
    let (text, kept) = (project.text(target), project.kept());
    let is_in_place = |wanted: &str| text.as_deref() == Some(wanted);
    let has = |wanted: &str| {
        is_in_place(wanted) || kept.iter().any(|(path, text)| path == target && text == wanted)
    };
    assert!(has("editor"), "{what}: {text:?}, {kept:?}");
    if let Some(left) = left {
        let is_blob = project.session.blobs.values().any(|bytes| bytes == left.as_bytes());
        let is_overwritten = overwritten.as_deref() == Some(left.as_bytes());
        assert!(has(left) || is_blob || is_overwritten, "{what}: {text:?}, {kept:?}");
    }
    assert_eq!(project.text("bystander").expect("stays"), "x", "{what}");
    Some(is_in_place("editor"))
}

#[test]
fn content_without_a_place_after_a_crash_is_kept_and_named() {
    for lacks in LACKS {
        let (mut project, call) = project_with_changes();
        let trace = DiskTrace::new(project.scratch.path());
        trace.set_lacking(lacks);
        let plan = project.session.plan(&[call], &[]);
        project.session.apply(&plan, End::BeforeRecord).expect("applies");
        project.write("a", "editor");
        project.write("new", "editor");
        fs::remove_file(project.path("dir/b")).expect("removes");
        project.session.recover().expect("recovers");
        assert_eq!(project.text("a").expect("stays"), "editor");
        assert_eq!(project.text("new").expect("stays"), "editor");
        assert_eq!(project.text("dir/new").expect("is taken back"), "n3");
        let of = |path: &str, text: &str| (path.to_owned(), text.to_owned());
        let mut expect = vec![of("a", "a2"), of("new", "n2")];
        // Where a file is replaced in two steps, a crash may have come between them.
        match lacks.is_empty() {
            true => expect.insert(1, of("dir/b", "b2")),
            false => assert_eq!(project.text("dir/b").expect("returns"), "b2"),
        }
        assert_eq!(project.kept(), expect);
        // They are named until somebody removes them, and prevent nothing.
        let plan = project.session.plan(&[call], &[]);
        let outcomes = project.session.apply(&plan, End::Whole).expect("applies");
        assert!(outcomes.iter().any(|(path, _)| path == "dir/new"), "{outcomes:?}");
        assert_eq!(project.kept(), expect);
    }
}

#[test]
fn content_that_was_restored_or_is_kept_leaves_no_stage() {
    let (mut project, call) = project_with_changes();
    let plan = project.session.plan(&[call], &[]);
    project.session.apply(&plan, End::BeforeRecord).expect("applies");
    // The session has the content elsewhere, and somebody made it again.
    project.session.blobs.insert(super::hash(b"b2"), b"b2".to_vec());
    project.write("dir/b", "editor");
    project.write("a", "a2");
    project.session.recover().expect("recovers");
    assert_eq!(project.kept(), []);
    let names = fs::read_dir(&project.session.root).expect("lists");
    let names = names.map(|file| file.expect("lists").file_name());
    assert!(!names.into_iter().any(|name| name.to_string_lossy().starts_with(".ollm")));
}

#[test]
fn file_that_is_made_again_between_two_attempts_to_take_back_stays() {
    let kind = FaultKind::Error(Errno::IO.raw_os_error());
    let is_mark = |step: &DiskStep| step.is_failure() && format!("{step:?}").contains("taken-back");
    for lacks in LACKS {
        for at in 0.. {
            let (mut project, call) = project_with_changes();
            let trace = DiskTrace::new(project.scratch.path());
            trace.set_lacking(lacks);
            let plan = project.session.plan(&[call], &[]);
            project.session.apply(&plan, End::BeforeRecord).expect("applies");
            let at = trace.counts().0 + at;
            trace.set_fault(Some(DiskFault { at, count: 1, kind }));
            project.session.recover().expect_err("is interrupted");
            trace.set_fault(None);
            project.write("old/gone", "g1");
            project.session.recover().expect("recovers");
            if trace.steps().iter().any(is_mark) {
                assert_eq!(project.text("old/gone").expect("stays"), "g1");
                assert_eq!(project.text("a").expect("is taken back"), "a2");
                assert_eq!(project.kept(), []);
                break;
            }
        }
    }
}

#[test]
fn file_or_link_in_place_of_a_created_directory_stays() {
    for is_link in [false, true] {
        let (mut project, call) = project_with_changes();
        let plan = project.session.plan(&[call], &[]);
        project.session.apply(&plan, End::BeforeRecord).expect("applies");
        let place = project.path("old");
        fs::remove_dir_all(&place).expect("removes");
        match is_link {
            true => symlink(project.path("dir"), &place).expect("links"),
            false => fs::write(&place, "mine").expect("writes"),
        }
        project.session.recover().expect("recovers");
        assert_eq!(place.symlink_metadata().expect("stays").is_symlink(), is_link);
        assert_eq!(project.text("old").is_some(), !is_link);
        assert_eq!(project.text("a").expect("is taken back"), "a2");
        assert_eq!(project.kept(), []);
    }
}

#[test]
fn plan_that_is_applied_again_leaves_the_list_of_kept_files() {
    for lacks in LACKS {
        let (mut project, call) = project_with_changes();
        let trace = DiskTrace::new(project.scratch.path());
        trace.set_lacking(lacks);
        let plan = project.session.plan(&[call], &[]);
        let place = project.path("a");
        let watch = |step, done| match (step, done) {
            (PutBackStep::Moving, 4) => {
                fs::write(&place, "editor").expect("writes");
                ControlFlow::Break(())
            }
            _ => ControlFlow::Continue(()),
        };
        let canceled = project.session.apply_watched(&plan, End::Whole, &watch);
        assert!(matches!(canceled, Err(ApplyError::Canceled)), "{canceled:?}");
        let kept = [("a".to_owned(), "a2".to_owned())];
        assert_eq!(project.kept(), kept);
        // `a` is a conflict, so the other changes have other places in the journal.
        let plan = project.session.plan(&[call], &[]);
        project.session.n_plans -= 1;
        project.session.apply(&plan, End::Whole).expect_err("the stage is there");
        assert_eq!(project.kept(), kept);
        assert_eq!(project.text("dir/b").expect("stays"), "b2");
    }
}

/// Returns the stages in a directory.
fn stages(dir: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(dir).expect("lists").map(|file| file.expect("lists").path());
    files.filter(|path| path.is_dir() && path.to_string_lossy().contains(STAGE_PREFIX)).collect()
}

#[test]
fn large_stage_leaves_the_project_unless_somebody_put_something_into_it() {
    let names: [Option<&[u8]>; 3] = [None, Some(b"1.txt"), Some(b"1\xff")];
    for name in names {
        let (mut project, call) = project_with_changes();
        let plan = project.session.plan(&[call], &[]);
        project.session.apply(&plan, End::BehindRecord).expect("applies");
        let stage = stages(&project.session.root).pop().expect("is not removed yet");
        let foreign = name.map(|name| stage.join(OsStr::from_bytes(name)));
        // Some file systems refuse names that are not UTF-8.
        let foreign = foreign.filter(|path| fs::write(path, "mine").is_ok());
        project.session.recover().expect("finishes");
        let home = project.scratch.path().join("home/put-backs");
        let is_foreign = foreign.is_some();
        assert_eq!((stages(&home).len(), stage.exists()), (usize::from(!is_foreign), is_foreign));
        if let Some(path) = foreign {
            // A name that is not UTF-8 cannot be listed.
            let kept = path.to_str().map(|_| (String::new(), "mine".to_owned()));
            assert_eq!(project.kept(), Vec::from_iter(kept.clone()));
            let n_files = 1 + usize::from(kept.is_some());
            assert_eq!(fs::read_dir(&stage).expect("lists").count(), n_files);
            assert_eq!(fs::read(path).expect("stays"), b"mine");
        }
        project.session.journals.discarded.remove_all();
        assert_eq!(stages(&home).len(), 0);
    }
}

#[test]
fn application_that_is_canceled_changes_nothing() {
    for lacks in LACKS {
        for (step, at) in [PutBackStep::Staging, PutBackStep::Moving]
            .iter()
            .flat_map(|step| (0..5).map(|at| (*step, at)))
        {
            let (mut project, call) = project_with_changes();
            let trace = DiskTrace::new(project.scratch.path());
            trace.set_lacking(lacks);
            let before = project.tree();
            let plan = project.session.plan(&[call], &[]);
            let watch = |now, done| match (now, done) == (step, at) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            };
            let canceled = project.session.apply_watched(&plan, End::Whole, &watch);
            assert!(matches!(canceled, Err(ApplyError::Canceled)), "{step:?} {at}");
            assert_eq!(project.tree(), before, "{step:?} {at}");
            let all = ["a", "dir/b", "dir/new", "new", "old/gone"];
            assert_eq!(project.undo(&[call]), put_back(&all));
        }
    }
}

#[test]
fn file_system_on_which_a_file_could_be_lost_is_refused_before_anything_moves() {
    let (mut project, call) = project_with_changes();
    let trace = DiskTrace::new(project.scratch.path());
    trace.set_lacking(&[Ability::RenameFlags, Ability::Links]);
    let before = project.tree();
    let plan = project.session.plan(&[call], &[]);
    let refused = project.session.apply(&plan, End::Whole).expect_err("is refused");
    let reason = crate::error_chain::with_sources(&refused);
    assert!(reason.contains("is not supported") || reason.contains("unsupported"), "{reason}");
    assert_eq!(project.tree(), before);
}

#[cfg(target_os = "linux")]
#[test]
fn file_that_a_program_has_open_for_writing_stays() {
    let (mut project, call) = project_with_changes();
    let open = |project: &Project, name: &str| {
        File::options().append(true).open(project.path(name)).expect("opens")
    };
    let writer = open(&project, "a");
    let plan = project.session.plan(&[call], &[]);
    let reason = plan[0].planned().reason.expect("has one");
    assert_eq!(reason, "a program has the file open for writing");
    drop(writer);
    let plan = project.session.plan(&[call], &[]);
    let (mut one, mut other) = (open(&project, "a"), open(&project, "new"));
    let outcomes = project.session.apply(&plan, End::Whole).expect("applies");
    for (path, outcome) in &outcomes {
        let is_left = matches!(outcome, FileOutcome::Left(FileStatus::Conflict, _));
        assert_eq!(is_left, path == "a" || path == "new", "{path}: {outcome:?}");
    }
    one.write_all(b"+").and_then(|()| other.write_all(b"+")).expect("writes");
    assert_eq!(project.text("a").expect("stays"), "a2+");
    assert_eq!(project.text("new").expect("stays"), "n2+");
    assert_eq!(project.kept(), []);
}

#[cfg(target_os = "linux")]
#[test]
fn program_that_opens_a_file_at_any_moment_can_go_on_writing() {
    for (lacks, (target, _)) in LACKS.iter().flat_map(|lacks| TARGETS.map(|one| (*lacks, one))) {
        for at in 0.. {
            let (mut project, call) = project_with_changes();
            let trace = DiskTrace::new(project.scratch.path());
            trace.set_lacking(lacks);
            let place = project.path(target);
            let opened = Arc::new(Mutex::new(None));
            let slot = Arc::clone(&opened);
            Moment::Application.run(&mut project, call, || {
                let open = move || *slot.lock() = Some(File::options().append(true).open(place));
                trace.interrupt(at, open);
            });
            let Some(opened) = opened.lock().take() else { break };
            // There was no file in that moment.
            let Ok(mut file) = opened else { continue };
            file.write_all(b"+late").expect("writes");
            let (text, kept) = (project.text(target), project.kept());
            let is_late = |text: &String| text.ends_with("+late");
            assert!(
                text.iter().any(is_late) || kept.iter().any(|(_, text)| is_late(text)),
                "{target} at gap {at}, {lacks:?}: {text:?}, {kept:?}"
            );
        }
    }
}

#[test]
fn content_that_is_written_during_the_application_is_never_lost() {
    for round in 0..20 {
        let mut project = Project::new();
        project.write("a", "a1");
        let call = project.session.call(&[("a", Some(b"a2"))]);
        let plan = project.session.plan(&[call], &[]);
        let (path, staged) = (project.path("a"), project.scratch.path().join("editor"));
        let editor = std::thread::spawn(move || {
            for n in 0..200 {
                fs::write(&staged, format!("editor {n}")).expect("writes");
                fs::rename(&staged, &path).expect("replaces");
            }
        });
        project.session.apply(&plan, End::Whole).expect("applies");
        editor.join().expect("ends");
        let last = project.text("a").expect("is there");
        assert_eq!(last, "editor 199", "round {round}");
    }
}
