//! Tests that the attributes of a replaced file are kept, or named in the plan.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use ollm_protocol::Seq;
use ollm_protocol::content::{FileLoss, FileModes, FileState, FileStatus, FileWrite};
use rustix::fs::XattrFlags;

use super::{End, Project, hash, put_back};
use crate::fsutil::trace::{DiskStep, DiskTrace};
use crate::put_back::apply::FileOutcome;

/// An access control list: `rw-` for the owner, `r--` for the user 1, the group and others.
const ACL: [u8; 44] = [
    2, 0, 0, 0, // The version.
    1, 0, 6, 0, 255, 255, 255, 255, // The owner.
    2, 0, 4, 0, 1, 0, 0, 0, // The user 1.
    4, 0, 4, 0, 255, 255, 255, 255, // The group.
    16, 0, 4, 0, 255, 255, 255, 255, // The mask.
    32, 0, 4, 0, 255, 255, 255, 255, // Others.
];

/// A project in which a call replaced the file `a`.
fn project() -> (Project, Seq) {
    let mut project = Project::new();
    project.write("a", "a1");
    let call = project.session.call(&[("a", Some(b"a2"))]);
    (project, call)
}

/// Sets an extended attribute; returns false where the file system has none.
fn set(path: &Path, name: &str, value: &[u8]) -> bool {
    rustix::fs::setxattr(path, name, value, XattrFlags::empty()).is_ok()
}

fn get(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 100];
    let size = rustix::fs::getxattr(path, name, &mut value[..]).ok()?;
    value.truncate(size);
    Some(value)
}

#[test]
fn replaced_file_keeps_its_attributes() {
    let (mut project, call) = project();
    let path = project.path("a");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4750)).expect("sets");
    let group = path.metadata().expect("is there").gid();
    let has_extended = set(&path, "user.note", b"kept");
    let plan = project.session.plan(&[call], &[]);
    assert_eq!(plan[0].planned().loses, []);
    assert_eq!(project.apply(&plan), put_back(&["a"]));
    let found = path.metadata().expect("is there");
    assert_eq!((project.text("a").as_deref(), found.gid()), (Some("a1"), group));
    assert_eq!(found.mode() & 0o7777, 0o4750);
    assert_eq!(get(&path, "user.note").is_some(), has_extended);
}

#[test]
fn replaced_file_keeps_its_access_control_list() {
    let (mut project, call) = project();
    let path = project.path("a");
    if !set(&path, "system.posix_acl_access", &ACL) {
        return;
    }
    assert_eq!(project.undo(&[call]), put_back(&["a"]));
    assert_eq!(get(&path, "system.posix_acl_access").as_deref(), Some(&ACL[..]));
    assert_eq!(project.redo(&[call]), put_back(&["a"]));
    assert_eq!(get(&path, "system.posix_acl_access").as_deref(), Some(&ACL[..]));
}

#[test]
fn file_gets_no_access_control_list_that_it_did_not_have() {
    let (mut project, call) = project();
    if !set(&project.session.root, "system.posix_acl_default", &ACL) {
        return;
    }
    assert_eq!(project.undo(&[call]), put_back(&["a"]));
    assert_eq!(get(&project.path("a"), "system.posix_acl_access"), None);
}

#[test]
fn hard_links_are_named_before_they_are_lost() {
    let (mut project, call) = project();
    let other = project.path("other");
    fs::hard_link(project.path("a"), &other).expect("links");
    let plan = project.session.plan(&[call], &[]);
    assert_eq!(plan[0].planned().loses, [FileLoss::HardLinks]);
    assert_eq!(project.apply(&plan), put_back(&["a"]));
    assert_eq!(project.text("a").as_deref(), Some("a1"));
    assert_eq!(fs::read_to_string(other).expect("stays"), "a2");
}

#[test]
fn file_with_a_loss_that_the_plan_did_not_show_stays() {
    let (mut project, call) = project();
    let plan = project.session.plan(&[call], &[]);
    fs::hard_link(project.path("a"), project.path("other")).expect("links");
    let before = project.tree();
    let outcomes = project.session.apply(&plan, End::Whole).expect("applies");
    let [(_, FileOutcome::Left(FileStatus::Failed, reason))] = &outcomes[..] else {
        panic!("{outcomes:?}");
    };
    assert_eq!(reason, "it would lose hardLinks, which the plan did not show");
    assert_eq!(project.tree(), before);
}

#[test]
fn changed_permissions_are_durable_and_leave_special_bits() {
    let (mut project, _) = project();
    let path = project.path("a");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).expect("sets");
    let same = FileState::Hash(hash(b"a2"));
    let mode = Some(FileModes { before: Some(0o644), after: Some(0o755) });
    let write = FileWrite {
        path: "a".to_owned(),
        before: same,
        after: same,
        mode,
        renamed_from: None,
        created_dirs: 0,
    };
    let call = project.session.record(vec![write]);
    let plan = project.session.plan(&[call], &[]);
    let trace = DiskTrace::new(project.scratch.path());
    project.session.apply(&plan, End::BeforeRecord).expect("applies");
    assert_eq!(path.metadata().expect("is there").mode() & 0o7777, 0o4644);
    let is_durable = |steps: &[DiskStep]| {
        let is_set = |step: &DiskStep| *step == DiskStep::Nothing("SetMode project/a".to_owned());
        let set = steps.iter().position(is_set).expect("is set");
        steps[set..].contains(&DiskStep::Sync("project/a".into()))
    };
    assert!(is_durable(&trace.steps()));
    let first = trace.position();
    project.session.recover().expect("takes back");
    assert_eq!(path.metadata().expect("is there").mode() & 0o7777, 0o4755);
    assert!(is_durable(&trace.steps()[first..]));
}
