//! `ollmctl sessions tree`, `branch`, `fork`, `label` and `operations`, `ollmctl undo` and `redo`.

use serde_json::json;

use crate::harness::{Sandbox, array};

/// Records two questions with answers in the current session of a project; returns its directory.
fn conversation(sandbox: &Sandbox) -> String {
    let project = sandbox.project_dir("work");
    for (role, text) in
        [("user", "one"), ("assistant", "first"), ("user", "two"), ("assistant", "second")]
    {
        sandbox.ctl(["record", "--project", &project, "--role", role, text]).ok();
    }
    project
}

#[test]
fn branches_are_shown_named_left_and_taken_back() {
    let sandbox = Sandbox::new();
    let _project = conversation(&sandbox);
    let tree = || sandbox.ctl(["sessions", "tree", "last"]).ok();
    assert!(tree().contains("* #4 assistant: second  <- here"), "{}", tree());
    let said = sandbox.ctl(["sessions", "branch", "last", "2"]).ok();
    assert!(
        said.contains("continues after #2") && said.contains("taken back: 2 messages"),
        "{said}"
    );
    sandbox.ctl(["record", "--session", "last", "three"]).ok();
    sandbox.ctl(["sessions", "label", "last", "2", "before the port"]).ok();
    let drawn = tree();
    assert!(
        drawn.contains("* #2 assistant: first  [before the port]\n├─   #3 user: two"),
        "{drawn}"
    );
    assert!(drawn.contains("user: three  <- here"), "{drawn}");

    let undone = sandbox.ctl(["undo", "2", "--session", "last"]).ok();
    assert!(undone.contains("three") && undone.contains("branch to #2"), "{undone}");
    assert!(tree().contains("* #4 assistant: second  <- here"), "{}", tree());
    sandbox.ctl(["redo", "--session", "last"]).ok();
    let listed = sandbox.ctl(["sessions", "operations", "last"]).ok();
    assert!(listed.contains("(undone)") && listed.contains("can be undone"), "{listed}");
    let json = sandbox.ctl(["undo", "--session", "last", "--json"]).json();
    assert_eq!(json["operations"][0]["kind"], "branch", "{json}");
    let json = sandbox.ctl(["sessions", "tree", "last", "--json"]).json();
    assert_eq!((array(&json["data"]).len(), &json["leaf"]), (5, &json!(4)), "{json}");
    let refused = sandbox.ctl(["redo", "9", "--session", "last"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.stderr.contains("only 2 can be redone"), "{refused:?}");
    assert_eq!(sandbox.ctl(["sessions", "branch", "last", "x"]).code, Some(2));
    assert_eq!(sandbox.ctl(["sessions", "branch", "last", "99"]).code, Some(3));
}

#[test]
fn fork_is_a_session_of_its_own() {
    let sandbox = Sandbox::new();
    let _project = conversation(&sandbox);
    let said = sandbox.ctl(["sessions", "fork", "last", "--at", "2"]).ok();
    assert!(said.contains("one (fork 2)") && said.contains("continues after #2"), "{said}");
    let id = said.split_whitespace().nth(1).expect("an id").to_owned();
    sandbox.ctl(["record", "--session", &id, "only here"]).ok();
    let viewed = sandbox.ctl(["sessions", "view", &id]).ok();
    assert!(viewed.contains("only here") && !viewed.contains("second"), "{viewed}");
    assert_eq!(super::n_sessions(&sandbox), 2);
}
