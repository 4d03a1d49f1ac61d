//! Tests of finding and trusting hooks. `tests/it/hooks.rs` runs some.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use ollm_protocol::content::{HookOccasion, HookState};

use super::{FoundHook, HookError, Hooks};
use crate::fsutil;

/// A home and a project.
struct Places {
    dir: tempfile::TempDir,
    hooks: Hooks,
}

impl Places {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let places = Self { hooks: Hooks::new(&dir.path().join("home")), dir };
        fsutil::create_private_dir(&places.hooks.directory()).expect("creates");
        fsutil::create_private_dir(&places.project().join(".ollm/hooks")).expect("creates");
        places
    }

    fn project(&self) -> PathBuf {
        self.dir.path().join("project")
    }

    fn own(&self, name: &str) -> PathBuf {
        self.hooks.directory().join(name)
    }

    fn foreign(&self, name: &str) -> PathBuf {
        self.project().join(".ollm/hooks").join(name)
    }

    fn find(&self) -> Vec<FoundHook> {
        let found = self.hooks.find(Some(&self.project()), &HookOccasion::ALL);
        assert_eq!(found.warnings, [""; 0]);
        found.hooks
    }

    /// Returns the state of the only hook, and its problem.
    fn state(&self) -> (HookState, String) {
        let found = self.find();
        let [hook] = &found[..] else { panic!("{found:?}") };
        assert_eq!(hook.program.is_some(), hook.state == HookState::Ready);
        (hook.state, hook.problem.clone().unwrap_or_default())
    }

    fn trust(&self) -> Result<(), HookError> {
        let found = self.find().into_iter();
        let wanted: Vec<_> = found.filter_map(|hook| Some((hook.name, hook.digest?))).collect();
        self.hooks.trust(&self.project(), &wanted)
    }
}

fn write(path: &Path, text: &str, mode: u32) {
    if let Some(parent) = path.parent() {
        fsutil::create_dir(parent).expect("creates");
    }
    fsutil::replace_atomically(path, text.as_bytes()).expect("writes");
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("sets the mode");
}

#[test]
fn hooks_are_listed_by_place_occasion_and_name() {
    let places = Places::new();
    for name in ["after-turn", "after-turn.d/20-b", "after-turn.d/10-a", "session-start"] {
        write(&places.own(name), "#!/bin/sh\n", 0o755);
    }
    write(&places.foreign("session-start"), "#!/bin/sh\n", 0o755);
    for ignored in ["after-turn.d/.swp", "after-turn.d/10-a~", "on-exit", "after-turn.sh"] {
        write(&places.own(ignored), "#!/bin/sh\n", 0o755);
    }
    let names: Vec<_> = places.find().into_iter().map(|hook| hook.name).collect();
    assert_eq!(
        names,
        ["session-start", "after-turn", "after-turn.d/10-a", "after-turn.d/20-b", "session-start"]
    );
}

#[test]
fn own_hook_is_refused_if_it_cannot_run_or_others_could_change_it() {
    let places = Places::new();
    let hook = places.own("after-turn.d/a");
    let check = |change: &dyn Fn(), state, part: &str| {
        write(&hook, "#!/bin/sh\n", 0o755);
        fs::set_permissions(places.own("after-turn.d"), Permissions::from_mode(0o755))
            .expect("sets");
        change();
        let (found, problem) = places.state();
        assert!(found == state && problem.contains(part), "{part}: {found:?} {problem}");
    };
    let mode = |path: &Path, mode| {
        fs::set_permissions(path, Permissions::from_mode(mode)).expect("sets the mode");
    };
    use HookState::{Ready, Unusable};
    check(&|| {}, Ready, "");
    check(&|| mode(&hook, 0o644), Unusable, "chmod u+x");
    check(&|| mode(&hook, 0o775), Unusable, "can be written by other users");
    check(&|| mode(&places.own("after-turn.d"), 0o777), Unusable, "after-turn.d can be written");
    check(&|| write(&hook, &"x".repeat(1 << 21), 0o755), Unusable, "more than");
    let link = || {
        fs::remove_file(&hook).expect("removes");
        symlink("/bin/true", &hook).expect("links");
    };
    check(&link, Unusable, "a symbolic link");
    assert_eq!(places.hooks.problem_of_directory(), None);
    mode(&places.hooks.directory(), 0o770);
    let (dir, problem) = places.hooks.problem_of_directory().expect("others can write it");
    assert!(dir == places.hooks.directory() && problem.contains("other users"), "{problem}");
}

#[test]
fn foreign_hook_runs_as_it_was_trusted_and_not_after_a_change() {
    let places = Places::new();
    let hook = places.foreign("after-turn");
    write(&hook, "#!/bin/sh\necho 1\n", 0o755);
    assert_eq!(places.state().0, HookState::Untrusted);
    places.trust().expect("trusts");
    let found = places.find().remove(0);
    let program = found.program.expect("it is ready");
    assert!(program.starts_with(places.dir.path().join("home")), "{program:?}");
    assert_eq!(program.metadata().expect("exists").permissions().mode() & 0o777, 0o500);
    // What runs is the copy, whatever becomes of the file in between.
    write(&hook, "#!/bin/sh\necho 2\n", 0o755);
    assert_eq!(fs::read(&program).expect("reads"), b"#!/bin/sh\necho 1\n");
    assert_eq!(places.state().0, HookState::Changed);
    let changed = places.find().remove(0);
    let texts = places.hooks.texts(&changed);
    let text = |n: u8| Some(format!("#!/bin/sh\necho {n}\n"));
    assert_eq!(texts, (text(2), text(1)));
    places.trust().expect("trusts");
    assert_eq!(places.state().0, HookState::Ready);
    assert!(!program.exists(), "nothing names the earlier content");
    assert!(places.hooks.untrust(&places.project()).expect("forgets"));
    assert_eq!(places.state().0, HookState::Untrusted);
    assert!(!places.hooks.untrust(&places.project()).expect("knows nothing"));
}

#[test]
fn damaged_copy_of_a_trusted_hook_does_not_run() {
    let places = Places::new();
    write(&places.foreign("after-turn"), "#!/bin/sh\n", 0o755);
    places.trust().expect("trusts");
    let program = places.find().remove(0).program.expect("it is ready");
    write(&program, "#!/bin/sh\nrm -r ~\n", 0o500);
    assert_eq!(places.state().0, HookState::Untrusted);
    places.trust().expect("writes the copy again");
    assert_eq!(places.state().0, HookState::Ready);
}

#[test]
fn hook_that_changed_since_it_was_shown_is_not_trusted() {
    let places = Places::new();
    let hook = places.foreign("after-turn");
    write(&hook, "#!/bin/sh\n", 0o755);
    let seen = places.find().remove(0).digest.expect("was read");
    let trust = |name: &str| {
        let wanted = [(name.to_owned(), seen.clone())];
        places.hooks.trust(&places.project(), &wanted)
    };
    for name in ["../../etc/passwd", "after-turn.d/../x", "on-exit", ""] {
        assert!(matches!(trust(name), Err(HookError::Changed { .. })), "{name}");
    }
    write(&hook, "#!/bin/sh\nrm -r ~\n", 0o755);
    assert!(matches!(trust("after-turn"), Err(HookError::Changed { .. })));
    assert_eq!(places.state().0, HookState::Untrusted);
}

#[test]
fn unreadable_trust_trusts_nothing_and_is_a_warning() {
    let places = Places::new();
    write(&places.foreign("after-turn"), "#!/bin/sh\n", 0o755);
    places.trust().expect("trusts");
    let trusted = fsutil::file_names(&places.dir.path().join("home/trusted-hooks")).expect("lists");
    let file = trusted.iter().find(|name| name.ends_with(".json")).expect("a file");
    write(&places.dir.path().join("home/trusted-hooks").join(file), "{", 0o600);
    let found = places.hooks.find(Some(&places.project()), &HookOccasion::ALL);
    assert_eq!(found.hooks[0].state, HookState::Untrusted);
    assert!(found.warnings[0].contains("no hook of the project is trusted"), "{found:?}");
    let wanted = (found.hooks[0].name.clone(), found.hooks[0].digest.clone().expect("was read"));
    places.hooks.trust(&places.project(), &[wanted]).expect("replaces it");
    assert_eq!(places.state().0, HookState::Ready);
}

#[test]
fn project_that_is_the_home_directory_has_the_hooks_of_the_home() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let hooks = Hooks::new(&dir.path().join(".ollm"));
    write(&hooks.directory().join("after-turn"), "#!/bin/sh\n", 0o755);
    fs::set_permissions(hooks.directory(), Permissions::from_mode(0o755)).expect("sets the mode");
    let found = hooks.find(Some(dir.path()), &HookOccasion::ALL).hooks;
    assert_eq!((found.len(), found[0].state), (1, HookState::Ready));
}
