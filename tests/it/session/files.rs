//! Files put back together with `session.undo`, `session.redo` and `snapshot.restore`.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::harness::{Daemon, Sandbox, Wire, array};

/// A project in which a session writes files.
struct Project {
    sandbox: Sandbox,
    daemon: Daemon,
    wire: Wire,
    session: String,
    root: PathBuf,
}

impl Project {
    fn new() -> Self {
        Self::with_config("")
    }

    fn with_config(config: &str) -> Self {
        let sandbox = Sandbox::new();
        sandbox.write_config(config);
        let (daemon, mut wire) = sandbox.daemon_and_wire();
        let root = sandbox.project_dir("p");
        let session = wire.create(json!({ "projectPath": root }));
        let root = root.into();
        Self { sandbox, daemon, wire, session, root }
    }

    /// Lets a turn of the session write files: a question, a tool call, an answer.
    fn turn(&mut self, question: &str, files: &[(&str, Option<&str>)]) {
        let session = self.session.clone();
        self.wire.record(&session, "user", question);
        let writes: Vec<Value> =
            files.iter().map(|(path, after)| write(&self.root, path, *after)).collect();
        self.wire.ok(
            "session.recordToolCall",
            json!({ "sessionId": session, "toolCall": { "id": question, "name": "write_file",
                "result": { "llmContent": "ok" }, "writes": writes } }),
        );
        self.wire.record(&session, "assistant", &format!("did {question}"));
    }

    fn step(&mut self, method: &str, steps: u64, more: Value) -> Result<Value, Value> {
        let mut params = json!({ "sessionId": self.session, "steps": steps });
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.wire.call(method, params)
    }

    fn preview(&mut self, method: &str, steps: u64) -> Value {
        self.step(method, steps, json!({ "files": "preview" })).unwrap()
    }

    /// Previews a step and applies it.
    fn apply(&mut self, method: &str, steps: u64) -> Value {
        let plan = self.preview(method, steps);
        let plan_id = &plan["files"]["planId"];
        self.step(method, steps, json!({ "files": "apply", "planId": plan_id })).unwrap()
    }

    /// Takes a snapshot and returns its id.
    fn snapshot(&mut self) -> String {
        let taken = self.wire.ok("snapshot.create", json!({ "sessionId": self.session }));
        taken["snapshot"]["snapshotId"].as_str().unwrap().to_owned()
    }

    fn text(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.root.join(path)).ok()
    }

    /// Returns the records of a kind.
    fn records(&mut self, kind: &str) -> Vec<Value> {
        let session = self.session.clone();
        let records = self.wire.records(&session);
        records.into_iter().filter(|record| record["type"] == kind).collect()
    }
}

/// Writes or removes a file, and returns the write as a client reports it.
fn write(root: &Path, path: &str, after: Option<&str>) -> Value {
    let place = root.join(path);
    let content =
        |text: Option<String>| text.map_or(json!("absent"), |text| json!({ "text": text }));
    let before = content(fs::read_to_string(&place).ok());
    match after {
        Some(text) => {
            fs::create_dir_all(place.parent().unwrap()).unwrap();
            fs::write(&place, text).unwrap();
        }
        None => fs::remove_file(&place).unwrap(),
    }
    json!({ "path": path, "before": before, "after": content(after.map(str::to_owned)) })
}

/// Returns the files of a plan with their statuses.
fn statuses(result: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let files = array(&result["files"]["files"]).iter();
    files.map(|file| (text(&file["path"]), text(&file["status"]))).collect()
}

fn of(path: &str, status: &str) -> (String, String) {
    (path.to_owned(), status.to_owned())
}

#[test]
fn files_follow_undo_and_redo_and_the_model_is_told() {
    let mut project = Project::new();
    fs::write(project.root.join("a.rs"), "a1").unwrap();
    fs::write(project.root.join("old.rs"), "o1").unwrap();
    project.turn("one", &[("a.rs", Some("a2")), ("src/new.rs", Some("n1"))]);
    project.turn("two", &[("a.rs", Some("a3")), ("old.rs", None)]);

    let leaf = project.preview("session.undo", 2);
    assert_eq!(leaf.get("leaf"), None, "{leaf}");
    assert_eq!(leaf["files"]["counts"], json!({ "putBack": 3 }), "{leaf}");
    assert_eq!(leaf["undoable"], 0);
    assert_eq!(project.text("a.rs").unwrap(), "a3", "a preview changes nothing");
    assert_eq!(project.records("leaf"), Vec::<Value>::new());
    let mut other = project.daemon.wire();
    other.subscribe(json!({ "kinds": ["files-put-back"] }));

    let undone = project.apply("session.undo", 1);
    assert_eq!(undone["operations"][0]["added"]["fileCalls"], 1, "{undone}");
    assert_eq!(statuses(&undone), [of("a.rs", "putBack"), of("old.rs", "putBack")]);
    assert_eq!(undone["files"]["applied"], true);
    assert_eq!(project.text("a.rs").unwrap(), "a2");
    assert_eq!(project.text("old.rs").unwrap(), "o1");
    assert_eq!(other.event()["data"], json!({ "cause": "undo", "putBack": 2, "left": 0 }));
    let [record] = project.records("putBack").try_into().unwrap();
    assert_eq!(record["seq"], undone["files"]["seq"]);
    let [delta] = project.records("delta").try_into().unwrap();
    assert_eq!(delta["delta"]["topic"], "files");
    assert_eq!(delta["delta"]["text"], "These files were put back: a.rs, old.rs");

    // The state is that of the log, also after a restart without a catalog.
    project.daemon.kill();
    project.sandbox.remove_catalog();
    let (daemon, wire) = project.sandbox.daemon_and_wire();
    (project.daemon, project.wire) = (daemon, wire);
    let redone = project.apply("session.redo", 1);
    assert_eq!(statuses(&redone), [of("a.rs", "putBack"), of("old.rs", "putBack")]);
    assert_eq!(project.text("a.rs").unwrap(), "a3");
    assert_eq!(project.text("old.rs"), None);
    let undone = project.apply("session.undo", 2);
    assert_eq!(undone["files"]["counts"], json!({ "putBack": 3 }), "{undone}");
    assert_eq!(project.text("a.rs").unwrap(), "a1");
    assert_eq!(project.text("src/new.rs"), None);
    let names: Vec<_> =
        fs::read_dir(&project.root).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(names.len(), 3, "nothing is left beside the files: {names:?}");
}

#[test]
fn only_what_the_preview_showed_and_nobody_changed_is_put_back() {
    let mut project = Project::new();
    for name in ["a", "b", "c"] {
        fs::write(project.root.join(name), "1").unwrap();
    }
    project.turn("one", &[("a", Some("2")), ("b", Some("2")), ("c", Some("2"))]);
    fs::write(project.root.join("a"), "editor").unwrap();
    let preview = project.preview("session.undo", 1);
    let expect = [of("a", "conflict"), of("b", "putBack"), of("c", "putBack")];
    assert_eq!(statuses(&preview), expect);
    fs::write(project.root.join("a"), "2").unwrap();
    fs::remove_file(project.root.join("c")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", project.root.join("c")).unwrap();
    let plan_id = &preview["files"]["planId"];
    let apply = json!({ "files": "apply", "planId": plan_id, "key": "k" });
    let undone = project.step("session.undo", 1, apply.clone()).unwrap();
    let expect = [of("a", "conflict"), of("b", "putBack"), of("c", "conflict")];
    assert_eq!(statuses(&undone), expect, "{undone}");
    assert_eq!(project.text("a").unwrap(), "2");
    assert_eq!(project.text("b").unwrap(), "1");
    let [delta] = project.records("delta").try_into().unwrap();
    let text = "These files were put back: b\nThese files stayed as they are: a, c";
    assert_eq!(delta["delta"]["text"], text);
    let again = project.step("session.undo", 1, apply).unwrap();
    assert_eq!(again["duplicate"], true, "{again}");
}

#[test]
fn plan_of_another_change_is_refused() {
    let mut project = Project::new();
    project.turn("one", &[("a", Some("1"))]);
    project.turn("two", &[("a", Some("2"))]);
    let refuse = |project: &mut Project, method: &str, steps, more: Value| {
        let error = project.step(method, steps, more).unwrap_err();
        assert_eq!(error["data"]["kind"], "invalidParams", "{error}");
    };
    let unknown = "01a2078e-2837-74a1-ab02-363a2e5b039f";
    refuse(&mut project, "session.undo", 1, json!({ "files": "apply" }));
    refuse(&mut project, "session.undo", 1, json!({ "files": "apply", "planId": unknown }));
    refuse(&mut project, "session.undo", 1, json!({ "files": "preview", "planId": unknown }));
    refuse(&mut project, "session.undo", 1, json!({ "files": "all" }));
    let plan = project.preview("session.undo", 1)["files"]["planId"].clone();
    let apply = json!({ "files": "apply", "planId": plan });
    refuse(&mut project, "session.undo", 2, apply.clone());
    let session = project.session.clone();
    project.wire.record(&session, "user", "meanwhile");
    refuse(&mut project, "session.undo", 1, apply);
    assert_eq!(project.text("a").unwrap(), "2");
}

#[test]
fn undo_without_files_and_other_moves_touch_no_file() {
    let mut project = Project::new();
    project.turn("one", &[("a", Some("1"))]);
    project.turn("two", &[("a", Some("2"))]);
    project.step("session.undo", 1, json!({})).unwrap();
    project.step("session.redo", 1, json!({ "files": "skip" })).unwrap();
    let session = project.session.clone();
    project.wire.ok("session.branch", json!({ "sessionId": session, "toSeq": 3 }));
    project.wire.ok("session.fork", json!({ "sessionId": session }));
    assert_eq!(project.text("a").unwrap(), "2");
    // What a fork copied was written by another session.
    let fork = project.wire.ok("session.fork", json!({ "sessionId": session }));
    project.session = fork["session"]["sessionId"].as_str().unwrap().to_owned();
    let preview = project.preview("session.undo", 1);
    assert_eq!(statuses(&preview), []);
    assert_eq!(preview["files"]["unrecordedCalls"], 1, "{preview}");
}

#[test]
fn restore_puts_files_back_and_its_undo_puts_them_forward() {
    let mut project = Project::new();
    fs::write(project.root.join("a"), "1").unwrap();
    project.turn("one", &[("a", Some("2"))]);
    let snapshot = project.snapshot();
    project.turn("two", &[("a", Some("3")), ("b", Some("new"))]);
    project.turn("three", &[("c", Some("kept"))]);
    fs::write(project.root.join("c"), "an editor's").unwrap();

    let params = |more: Value| {
        let mut params = json!({ "snapshotId": snapshot });
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        params
    };
    let preview = project.wire.ok("snapshot.restore", params(json!({ "files": "preview" })));
    let expect = [of("a", "putBack"), of("b", "putBack"), of("c", "conflict")];
    assert_eq!(statuses(&preview), expect, "{preview}");
    assert!(preview["before"]["messages"].as_u64() > preview["after"]["messages"].as_u64());
    assert_eq!(project.text("a").unwrap(), "3", "a preview changes nothing");
    assert_eq!(project.records("leaf"), Vec::<Value>::new());

    let plan = preview["files"]["planId"].clone();
    for wrong in [
        json!({ "files": "apply" }),
        json!({ "planId": plan }),
        json!({ "files": "apply", "planId": plan, "dryRun": true }),
        json!({ "files": "apply", "planId": plan, "newSession": true }),
    ] {
        project.wire.refused("snapshot.restore", params(wrong), "invalidParams");
    }
    // The plan of a restore is not that of an undo with the same records.
    let apply = json!({ "files": "apply", "planId": plan, "key": "k" });
    let undo = json!({ "files": "apply", "planId": plan });
    assert!(project.step("session.undo", 2, undo).is_err());
    let restored = project.wire.ok("snapshot.restore", params(apply.clone()));
    assert_eq!(statuses(&restored), expect, "{restored}");
    assert_eq!(restored["files"]["applied"], true);
    assert_eq!(project.text("a").unwrap(), "2");
    assert_eq!(project.text("b"), None);
    assert_eq!(project.text("c").unwrap(), "an editor's");
    let [record] = project.records("putBack").try_into().unwrap();
    assert_eq!(record["putBack"]["cause"], "restore", "{record}");
    let again = project.wire.ok("snapshot.restore", params(apply));
    assert_eq!(again["duplicate"], true, "{again}");

    let undone = project.apply("session.undo", 1);
    assert_eq!(undone["operations"][0]["kind"], "restore", "{undone}");
    assert_eq!(statuses(&undone), [of("a", "putBack"), of("b", "putBack")]);
    assert_eq!(project.text("a").unwrap(), "3");
    assert_eq!(project.text("b").unwrap(), "new");
    let redone = project.apply("session.redo", 1);
    assert_eq!(statuses(&redone), expect, "{redone}");
    assert_eq!((project.text("a"), project.text("b")), (Some("2".to_owned()), None));
}

#[test]
fn commands_restore_a_snapshot_with_its_files() {
    let mut project = Project::new();
    project.turn("one", &[("a", Some("1"))]);
    let snapshot = project.snapshot();
    project.turn("two", &[("a", Some("2"))]);
    let (sandbox, id) = (&project.sandbox, snapshot.as_str());
    let plan = sandbox.ctl(["snapshot", "restore", id, "--dry-run"]).ok();
    assert!(plan.contains("with --files, also put back: a"), "{plan}");
    let plan = sandbox.ctl(["snapshot", "restore", id, "--files", "preview"]).ok();
    assert!(plan.contains("put back    a"), "{plan}");
    let refused = sandbox.ctl(["snapshot", "restore", id, "--files"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert_eq!(project.text("a").unwrap(), "2", "nothing was changed so far");
    let restored = sandbox.ctl(["snapshot", "restore", id, "--files", "--yes"]).ok();
    assert!(restored.contains("put back    a") && restored.contains("undo --files"), "{restored}");
    assert_eq!(project.text("a").unwrap(), "1");
    sandbox.ctl(["undo", "--session", "last", "--files", "--yes"]).ok();
    assert_eq!(project.text("a").unwrap(), "2");
}

#[test]
fn directories_that_a_call_created_go_and_come_back_with_its_files() {
    let mut project = Project::new();
    fs::create_dir(project.root.join("old")).unwrap();
    let session = project.session.clone();
    project.wire.record(&session, "user", "make");
    let mut writes = Vec::new();
    for (path, created) in [("old/x", 0), ("new/deep/y", 2), ("new/z", 0), ("kept/w", 1)] {
        let mut one = write(&project.root, path, Some("1"));
        one["createdDirs"] = json!(created);
        writes.push(one);
    }
    let call = |id: &str, writes: &[Value]| {
        json!({ "sessionId": session, "toolCall": { "id": id, "name": "write_file",
            "result": { "llmContent": "ok" }, "writes": writes } })
    };
    project.wire.ok("session.recordToolCall", call("make", &writes));
    let wrong = json!([{ "path": "a", "before": "absent", "after": "unknown", "createdDirs": 1 }]);
    project.wire.refused("session.recordToolCall", call("w", array(&wrong)), "invalidParams");
    fs::write(project.root.join("kept/editor"), "theirs").unwrap();
    let exists = |project: &Project| {
        ["old", "new/deep", "new", "kept"].map(|dir| project.root.join(dir).exists())
    };
    for _ in 0..2 {
        let undone = project.apply("session.undo", 1);
        assert_eq!(undone["files"]["counts"], json!({ "putBack": 4 }), "{undone}");
        assert_eq!(exists(&project), [true, false, false, true]);
        assert_eq!(project.text("kept/w"), None);
        project.apply("session.redo", 1);
        assert_eq!(exists(&project), [true; 4]);
        assert_eq!(project.text("new/deep/y").unwrap(), "1");
    }
    assert_eq!(project.text("kept/editor").unwrap(), "theirs");
}

#[test]
fn call_that_does_not_say_what_it_wrote_is_named() {
    let mut project = Project::new();
    let session = project.session.clone();
    project.wire.record(&session, "user", "run");
    let call = |id: &str, more: Value| {
        let mut call = json!({ "id": id, "name": "shell", "args": { "n": id },
            "result": { "llmContent": "ok" } });
        call.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({ "sessionId": session, "toolCall": call })
    };
    project.wire.ok("session.recordToolCall", call("a", json!({})));
    project.wire.ok("session.recordToolCall", call("b", json!({ "writes": [] })));
    let omitted = json!({ "writes": [], "writesOmitted": 3 });
    project.wire.ok("session.recordToolCall", call("c", omitted));
    let message = json!({ "role": "tool", "content": "x", "toolName": "bash", "toolCallId": "d" });
    project.wire.ok("session.record", json!({ "sessionId": session, "message": message }));
    let undone = project.apply("session.undo", 5);
    let expect = json!([
        { "seq": 2, "tool": "shell" },
        { "seq": 4, "tool": "shell", "omitted": 3 },
        { "seq": 5, "tool": "bash" },
    ]);
    assert_eq!(undone["files"]["unrecorded"], expect, "{undone}");
    let [delta] = project.records("delta").try_into().unwrap();
    assert!(delta["delta"]["text"].as_str().unwrap().contains("3 tool calls"), "{delta}");
}

#[test]
fn start_without_a_result_is_named_and_undone_by_itself() {
    let mut project = Project::new();
    project.turn("one", &[("a", Some("1"))]);
    let session = project.session.clone();
    let start = |id: &str| {
        let data = json!({ "id": id, "name": "shell", "args": { "command": id } });
        json!({ "sessionId": session, "name": "ollm.toolStart", "data": data })
    };
    let call = |id: &str, writes: Value| {
        let mut call = json!({ "id": id, "name": "shell", "result": { "llmContent": "ok" } });
        call["writes"] = writes;
        json!({ "sessionId": session, "toolCall": call })
    };
    for (id, writes) in [("listed", json!([])), ("silent", Value::Null)] {
        project.wire.ok("session.recordCustom", start(id));
        project.wire.ok("session.recordToolCall", call(id, writes));
    }
    let started = project.wire.ok("session.recordCustom", start("killed"));
    let preview = project.preview("session.undo", 1);
    let killed = json!({ "seq": started["seq"], "tool": "shell", "unfinished": true });
    assert_eq!(preview["files"]["unrecorded"], json!([killed]), "{preview}");
    assert_eq!(preview["operations"][0]["text"], r#"shell {"command":"killed"}"#);
    // Each other start is undone together with its call.
    let preview = project.preview("session.undo", 3);
    let silent = json!({ "seq": started["seq"].as_u64().unwrap() - 1, "tool": "shell" });
    assert_eq!(preview["files"]["unrecorded"], json!([killed, silent]), "{preview}");
    assert_eq!(statuses(&project.preview("session.undo", 4)), [of("a", "putBack")]);
}

#[test]
fn imported_calls_never_lead_to_a_write() {
    let mut project = Project::new();
    project.turn("one", &[("a", Some("1"))]);
    let session = project.session.clone();
    let export = project.wire.export(&session, "jsonl");
    project.wire.ok("session.delete", json!({ "sessionId": session }));
    let imported = project.wire.ok("session.import", json!({ "data": export, "last": true }));
    project.session = imported["session"]["sessionId"].as_str().unwrap().to_owned();
    let undone = project.apply("session.undo", 1);
    assert_eq!(statuses(&undone), []);
    assert_eq!(project.text("a").unwrap(), "1");
}

#[test]
fn project_that_is_gone_leaves_the_conversation_undoable() {
    let mut project = Project::new();
    project.turn("one", &[("a", Some("1"))]);
    fs::remove_dir_all(&project.root).unwrap();
    let undone = project.apply("session.undo", 1);
    assert_eq!(statuses(&undone), [of("a", "outside")], "{undone}");
    assert!(!project.root.exists());
    assert_eq!(undone["redoable"], 1);
}

#[test]
fn interrupted_change_in_a_project_that_is_gone_waits_for_it() {
    waits_for_its_project(false);
}

#[test]
fn interrupted_change_in_a_project_that_is_not_mounted_waits_for_it() {
    waits_for_its_project(true);
}

/// Checks an interrupted change whose project is elsewhere meanwhile, with an empty directory in its place or without.
fn waits_for_its_project(is_mount_point: bool) {
    let mut project = Project::new();
    fs::write(project.root.join("a"), "1").unwrap();
    project.turn("one", &[("a", Some("2"))]);
    let (root, away) = (project.root.clone(), project.sandbox.path("away"));
    let (mut project, stage, journals) = interrupt(project, |root| {
        fs::rename(root, &away).unwrap();
        if is_mount_point {
            fs::create_dir(root).unwrap();
        }
    });
    let preview = project.preview("session.undo", 1);
    let status = if is_mount_point { "conflict" } else { "outside" };
    assert_eq!(statuses(&preview), [of("a", status)], "{preview}");

    // Files of another project cannot be put back meanwhile: the session has one journal.
    let other = project.sandbox.project_dir("other");
    let update = json!({ "sessionId": project.session, "projectPath": other });
    project.wire.ok("session.update", update);
    project.root = other.into();
    project.turn("two", &[("b", Some("1"))]);
    let preview = project.preview("session.undo", 1);
    assert_eq!(statuses(&preview), [of("b", "putBack")], "{preview}");
    let apply = json!({ "files": "apply", "planId": preview["files"]["planId"] });
    let error = project.step("session.undo", 1, apply.clone()).unwrap_err();
    assert_eq!(error["data"]["kind"], "conflict", "{error}");
    assert_eq!(error["data"]["path"], root.to_str().unwrap(), "{error}");
    assert_eq!(project.text("b").unwrap(), "1");
    assert_eq!(fs::read_dir(&journals).unwrap().count(), 1);

    fs::rename(&away, &root).unwrap();
    let undone = project.step("session.undo", 1, apply).unwrap();
    assert_eq!(statuses(&undone), [of("b", "putBack")], "{undone}");
    assert_eq!(fs::read_to_string(root.join("a")).unwrap(), "2", "was taken back");
    assert!(!stage.exists());
    assert_eq!(fs::read_dir(journals).unwrap().count(), 0);
}

/// Starts another daemon after one that was killed when it had exchanged the file `a` of its first call. Calls `meanwhile`
/// with the project between the two. Returns also the stage and the directory of journals.
fn interrupt(mut project: Project, meanwhile: impl FnOnce(&Path)) -> (Project, PathBuf, PathBuf) {
    let [record] = project.records("toolCall").try_into().unwrap();
    let write = &record["toolCall"]["writes"][0];
    let (before, after) = (&write["before"], &write["after"]);
    project.daemon.kill();
    let plan = "01a2078e-2837-74a1-ab02-363a2e5b039f";
    let stage = project.root.join(format!(".ollm-undo-{plan}"));
    fs::create_dir(&stage).unwrap();
    fs::write(stage.join("ready"), r#"{"changes":[0],"dirs":[]}"#).unwrap();
    fs::rename(project.root.join("a"), stage.join("0")).unwrap();
    fs::write(project.root.join("a"), "1").unwrap();
    let journals = project.sandbox.home().join("put-backs");
    fs::create_dir(&journals).unwrap();
    let journal = json!({ "version": 1, "sessionId": project.session, "planId": plan, "root": project.root,
        "changes": [{ "path": "a", "expected": after, "wanted": before }] });
    fs::write(journals.join(format!("{}.json", project.session)), journal.to_string()).unwrap();
    meanwhile(&project.root);
    (project.daemon, project.wire) = project.sandbox.daemon_and_wire();
    (project, stage, journals)
}

#[test]
fn interrupted_change_of_files_is_taken_back_by_the_next_start() {
    let mut project = Project::new();
    fs::write(project.root.join("a"), "1").unwrap();
    project.turn("one", &[("a", Some("2"))]);
    let (mut project, stage, journals) = interrupt(project, |_| ());
    // A call about files finishes it, if the start has not done it yet.
    let undone = project.apply("session.undo", 1);
    assert_eq!(statuses(&undone), [of("a", "putBack")], "{undone}");
    assert_eq!(project.text("a").unwrap(), "1");
    assert!(!stage.exists());
    assert_eq!(fs::read_dir(journals).unwrap().count(), 0);
}

#[test]
fn content_without_a_place_after_a_crash_is_named_by_every_later_plan() {
    let mut project = Project::new();
    fs::write(project.root.join("a"), "1").unwrap();
    project.turn("one", &[("a", Some("2"))]);
    let (mut project, stage, journals) =
        interrupt(project, |root| fs::write(root.join("a"), "an editor's").unwrap());
    project.turn("two", &[("b", Some("2"))]);
    let file = stage.join("0").strip_prefix(&project.root).unwrap().to_owned();
    let kept = json!([{ "path": "a", "file": file }]);
    let preview = project.preview("session.undo", 1);
    assert_eq!(preview["files"]["kept"], kept, "{preview}");
    assert_eq!(fs::read_dir(journals).unwrap().count(), 0);
    let undone = project.apply("session.undo", 1);
    assert_eq!(statuses(&undone), [of("b", "putBack")], "{undone}");
    assert_eq!(undone["files"]["kept"], kept, "{undone}");
    assert_eq!(project.text("a").unwrap(), "an editor's");
    assert_eq!(fs::read_to_string(stage.join("0")).unwrap(), "2");
    let text = project.sandbox.ctl(["undo", "--session", "last", "--files", "preview"]).ok();
    assert!(text.contains("a: a content that is nowhere else is in .ollm-undo-"), "{text}");
    // Whoever does not need it removes it.
    fs::remove_dir_all(stage).unwrap();
    assert_eq!(project.preview("session.undo", 1)["files"].get("kept"), None);
}

#[cfg(target_os = "linux")]
#[test]
fn file_that_a_program_has_open_for_writing_is_a_conflict() {
    let mut project = Project::new();
    fs::write(project.root.join("a"), "1").unwrap();
    project.turn("one", &[("a", Some("2")), ("b", Some("2"))]);
    let writer = fs::File::options().append(true).open(project.root.join("a")).unwrap();
    let undone = project.apply("session.undo", 1);
    assert_eq!(statuses(&undone), [of("a", "conflict"), of("b", "putBack")], "{undone}");
    let reason = &undone["files"]["files"][0]["reason"];
    assert_eq!(reason, "a program has the file open for writing");
    assert_eq!(project.text("a").unwrap(), "2");
    drop(writer);
}

#[test]
fn file_whose_content_cannot_be_kept_stays() {
    let mut project = Project::with_config("snapshots: { fileQuota: 15 }\n");
    let (large, small) = ("x".repeat(100), "small");
    project.turn("one", &[("large", Some(&large)), ("small", Some(small))]);
    for undone in [project.preview("session.undo", 1), project.apply("session.undo", 1)] {
        assert_eq!(statuses(&undone), [of("large", "failed"), of("small", "putBack")], "{undone}");
        let reason = undone["files"]["files"][0]["reason"].as_str().unwrap();
        assert!(reason.contains("snapshots.fileQuota"), "{reason}");
    }
    assert_eq!((project.text("large"), project.text("small")), (Some(large.clone()), None));
    project.apply("session.redo", 1);
    assert_eq!((project.text("large"), project.text("small")), (Some(large), Some(small.into())));
    // The contents of a plan share the room: each alone would fit.
    project
        .turn("two", &[("a", Some("12345678")), ("b", Some("87654321")), ("c", Some("12345678"))]);
    let undone = project.apply("session.undo", 1);
    let expect = [of("a", "putBack"), of("b", "failed"), of("c", "putBack")];
    assert_eq!(statuses(&undone), expect, "{undone}");
    assert_eq!(project.text("b").unwrap(), "87654321");
    let redone = project.apply("session.redo", 1);
    assert_eq!(project.text("a").unwrap(), "12345678", "{redone}");
}

#[test]
fn damaged_content_leaves_its_file_and_no_other() {
    let mut project = Project::new();
    for name in ["a", "b"] {
        fs::write(project.root.join(name), format!("{name}1")).unwrap();
    }
    project.turn("one", &[("a", Some("a2")), ("b", Some("b2"))]);
    let [record] = project.records("toolCall").try_into().unwrap();
    let hash = record["toolCall"]["writes"][0]["before"]["hash"].as_str().unwrap();
    let blobs = format!("sessions/{}.blobs", project.session);
    fs::write(project.sandbox.home().join(blobs).join(hash), "a0").unwrap();
    let undone = project.apply("session.undo", 1);
    assert_eq!(statuses(&undone), [of("a", "unknown"), of("b", "putBack")], "{undone}");
    assert_eq!(undone["files"]["files"][0]["reason"], "the kept content is damaged");
    assert_eq!(
        (project.text("a").unwrap(), project.text("b").unwrap()),
        ("a2".into(), "b1".into())
    );
    let [delta] = project.records("delta").try_into().unwrap();
    let text = "These files were put back: b\nThese files stayed as they are: a";
    assert_eq!(delta["delta"]["text"], text);
}

#[test]
fn operations_name_the_files_that_they_wrote_or_put_back() {
    let mut project = Project::new();
    project.turn("one", &[("b", Some("1")), ("a", Some("1"))]);
    let many: Vec<String> = (0..25).map(|n| format!("many/{n:02}")).collect();
    let writes: Vec<_> = many.iter().map(|path| (path.as_str(), Some("x"))).collect();
    project.turn("two", &writes);
    let session = project.session.clone();
    let params = json!({ "sessionId": session });
    for question in ["three", "four", "five"] {
        project.wire.record(&session, "user", &format!("{question} {}", "words ".repeat(1_500)));
        project.wire.record(&session, "assistant", &"more words ".repeat(1_000));
    }
    let compact = json!({ "sessionId": session, "strategy": "truncate" });
    project.wire.ok("context.compact", compact);
    assert_eq!(project.records("compaction").len(), 1);
    let files = |project: &mut Project| -> Vec<(String, Value)> {
        let listed = project.wire.ok("session.operations", params.clone());
        let one = |operation: &Value| {
            (operation["kind"].as_str().unwrap().to_owned(), operation["files"].clone())
        };
        array(&listed["data"]).iter().map(one).filter(|(_, files)| !files.is_null()).collect()
    };
    let first = json!({ "count": 2, "paths": ["a", "b"] });
    let second = json!({ "count": 25, "paths": many[..20] });
    let turn = |files: &Value| ("turn".to_owned(), files.clone());
    assert_eq!(files(&mut project), [turn(&second), turn(&first)]);
    fs::write(project.root.join("b"), "an editor's").unwrap();
    let steps = project.wire.ok("session.operations", params.clone())["undoable"].as_u64().unwrap();
    let undone = project.apply("session.undo", steps);
    assert_eq!(undone["files"]["counts"], json!({ "putBack": 26, "conflict": 1 }), "{undone}");
    let put_back: Vec<&str> =
        ["a"].into_iter().chain(many.iter().map(String::as_str)).take(20).collect();
    let put_back = ("undo".to_owned(), json!({ "count": 26, "paths": put_back }));
    assert_eq!(files(&mut project), [put_back, turn(&second), turn(&first)]);
}
