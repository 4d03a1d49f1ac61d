//! The files that a session used, compared with the disk.

use std::fs::{self, File};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::harness::{Sandbox, Wire, array, start, until};

/// Records the call of a tool with a path.
fn call(wire: &mut Wire, session: &str, tool: &str, path: &str) -> u64 {
    let call = json!({ "id": format!("{tool} {path}"), "name": tool, "args": { "path": path },
        "result": { "llmContent": "text of the file" } });
    let params = json!({ "sessionId": session, "toolCall": call });
    wire.ok("session.recordToolCall", params)["seq"].as_u64().unwrap()
}

/// Sets the time at which a file was modified to an hour ago, or in an hour.
fn set_modified(path: &str, is_later: bool) {
    let hour = Duration::from_secs(3600);
    let now = SystemTime::now();
    let time = if is_later { now + hour } else { now - hour };
    File::options().append(true).open(path).unwrap().set_modified(time).unwrap();
}

/// Returns the path and the state of each file.
fn states(wire: &mut Wire, params: Value) -> Vec<(String, String)> {
    let result = wire.ok("session.files", params);
    let text = |file: &Value, field: &str| file[field].as_str().unwrap().to_owned();
    array(&result["data"]).iter().map(|file| (text(file, "path"), text(file, "onDisk"))).collect()
}

fn pairs(expect: &[(&str, &str)]) -> Vec<(String, String)> {
    expect.iter().map(|(path, state)| ((*path).to_owned(), (*state).to_owned())).collect()
}

struct Project {
    sandbox: Sandbox,
    path: String,
}

impl Project {
    fn write(&self, name: &str) -> String {
        let path = format!("{}/{name}", self.path);
        fs::create_dir_all(std::path::Path::new(&path).parent().unwrap()).unwrap();
        fs::write(&path, "text").unwrap();
        set_modified(&path, false);
        path
    }
}

#[test]
fn files_are_listed_with_what_became_of_them() {
    let (sandbox, daemon, mut wire) = start();
    let project = Project { path: sandbox.project_dir("p"), sandbox };
    let session = wire.create(json!({ "projectPath": project.path }));
    let all = json!({ "sessionId": session });
    assert!(states(&mut wire, all.clone()).is_empty());
    let kept = project.write("kept.rs");
    let (changed, gone) = (project.write("src/changed.rs"), project.write("gone.rs"));
    std::os::unix::fs::symlink("kept.rs", format!("{}/link.rs", project.path)).unwrap();
    call(&mut wire, &session, "read_file", "./kept.rs");
    call(&mut wire, &session, "read_file", &changed);
    call(&mut wire, &session, "read_file", "gone.rs");
    call(&mut wire, &session, "read_file", "link.rs");
    call(&mut wire, &session, "read_file", "/etc/hostname");
    call(&mut wire, &session, "read_file", "../outside.rs");
    let edit = call(&mut wire, &session, "edit_file", &kept);
    call(&mut wire, &session, "shell", "kept.rs");
    let current = pairs(&[
        ("kept.rs", "current"),
        ("../outside.rs", "unknown"),
        ("/etc/hostname", "unknown"),
        ("link.rs", "unknown"),
        ("gone.rs", "current"),
        ("src/changed.rs", "current"),
    ]);
    assert_eq!(states(&mut wire, all.clone()), current);
    let newest = wire.ok("session.files", json!({ "sessionId": session, "limit": 1 }));
    assert_eq!((&newest["data"][0]["modifiedSeq"], &newest["total"]), (&json!(edit), &json!(6)));

    set_modified(&changed, true);
    fs::remove_file(&gone).unwrap();
    let stale = json!({ "sessionId": session, "stale": true });
    let expect = pairs(&[("gone.rs", "missing"), ("src/changed.rs", "changed")]);
    assert_eq!(states(&mut wire, stale.clone()), expect);
    // The same from the log alone, and page by page.
    daemon.kill();
    project.sandbox.remove_catalog();
    let (_daemon, mut wire) = project.sandbox.daemon_and_wire();
    assert_eq!(states(&mut wire, stale), expect);
    let mut listed = Vec::new();
    let mut params = json!({ "sessionId": session, "limit": 2 });
    loop {
        let page = wire.ok("session.files", params.clone());
        listed.extend(array(&page["data"]).iter().map(|file| file["path"].clone()));
        let Some(cursor) = page.get("nextCursor") else { break };
        params["cursor"] = cursor.clone();
    }
    assert_eq!(listed, current.iter().map(|(path, _)| json!(path)).collect::<Vec<_>>());
}

#[test]
fn result_that_shows_a_changed_file_is_marked_in_an_inspection() {
    let (sandbox, _daemon, mut wire) = start();
    let project = Project { path: sandbox.project_dir("p"), sandbox };
    let session = wire.create(json!({ "projectPath": project.path }));
    let (one, two) = (project.write("one.rs"), project.write("two.rs"));
    wire.record(&session, "user", "Read both.");
    let first = call(&mut wire, &session, "read_file", &one);
    let second = call(&mut wire, &session, "read_file", &two);
    let stale = |wire: &mut Wire| -> Vec<u64> {
        let inspected = wire.ok("context.inspect", json!({ "sessionId": session }));
        let items = array(&inspected["items"]).iter().filter(|item| item["stale"] == true);
        items.map(|item| item["seq"].as_u64().unwrap()).collect()
    };
    assert!(stale(&mut wire).is_empty());
    set_modified(&two, true);
    assert_eq!(stale(&mut wire), [second]);
    set_modified(&one, true);
    assert_eq!(stale(&mut wire), [first, second]);
    let shown = project.sandbox.ctl(["context", "inspect", &session]).ok();
    assert_eq!(shown.matches("whole, the file changed since").count(), 2, "{shown}");
    let listed = project.sandbox.ctl(["sessions", "files", &session, "--stale"]).ok();
    assert_eq!(listed.matches("changed on the disk since").count(), 2, "{listed}");
    // On the branch without the second call, its file was not read.
    wire.ok("session.branch", json!({ "sessionId": session, "toSeq": first }));
    assert_eq!(stale(&mut wire), [first]);
}

#[test]
fn files_that_change_after_the_newest_record_are_named_while_the_project_is_followed() {
    let (sandbox, _daemon, mut wire) = start();
    let project = Project { path: sandbox.project_dir("p"), sandbox };
    let session = wire.create(json!({ "projectPath": project.path }));
    let used = project.write("used.rs");
    call(&mut wire, &session, "read_file", &used);
    let later = |wire: &mut Wire| {
        wire.ok("session.files", json!({ "sessionId": session })).get("changedLater").cloned()
    };
    assert_eq!(later(&mut wire), None, "the project is not followed");
    wire.ok("files.discover", json!({ "root": project.path }));
    assert_eq!(later(&mut wire), Some(json!([])));
    let other = project.write("other.rs");
    set_modified(&other, true);
    set_modified(&used, true);
    until("the change is noticed", || later(&mut wire) == Some(json!(["other.rs"])));
    let second = wire.ok("session.files", json!({ "sessionId": session, "cursor": "1" }));
    assert_eq!(second.get("changedLater"), None, "it is on the first page");
    set_modified(&other, false);
    assert_eq!(later(&mut wire), Some(json!([])), "it is older than the newest record");
}
