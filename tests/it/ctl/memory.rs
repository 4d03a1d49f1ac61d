//! `ollmctl remember`, `recall` and `context facts`: what a person does so that nothing important is forgotten.

use serde_json::json;

use crate::harness::{Sandbox, array};

/// Records two sessions of a project; returns its directory.
fn conversations(sandbox: &Sandbox) -> String {
    let project = sandbox.project_dir("work");
    let record = |more: &[&str], role: &str, text: &str| {
        let mut command = vec!["record", "--project", &project, "--role", role];
        command.extend(more);
        sandbox.ctl(command.into_iter().chain([text])).ok();
    };
    record(&[], "user", "Which port does the staging relay use?");
    record(&[], "assistant", "The staging relay listens on port 48613.");
    record(&["--new"], "user", "The vault code is 7731. Never deploy on Fridays.");
    record(&[], "assistant", "Noted.");
    project
}

#[test]
fn remembered_text_is_listed_and_removed_as_the_reply_says() {
    let sandbox = Sandbox::new();
    let _project = conversations(&sandbox);
    let text = "Answer in Spanish.";
    let said = sandbox.ctl(["remember", text, "--global"]).ok();
    assert!(said.starts_with("remembered in all sessions\n"), "{said}");
    let again = sandbox.ctl(["remember", text, "--global"]).ok();
    assert!(again.starts_with("was remembered already in all sessions\n"), "{again}");
    let command = |name: &str| -> Vec<String> {
        let line = said.lines().find_map(|line| line.strip_prefix(name)).expect("is said");
        line.split_whitespace().skip(1).map(str::to_owned).collect()
    };
    // The list shortens texts.
    let is_listed = || sandbox.ctl(command("list:")).ok().contains("Answer in");
    assert!(is_listed());
    sandbox.ctl(command("remove:")).ok();
    assert!(!is_listed());

    let own = sandbox.ctl(["remember", text, "--session", "last", "--json"]).json();
    assert_eq!((&own["entry"]["scope"], &own["changed"]), (&json!("session"), &json!(true)));
    let built = sandbox.ctl(["context", "build", "--session", "last", "--json"]).json();
    assert!(built["messages"].to_string().contains(text), "{built}");
}

#[test]
fn question_in_plain_words_finds_its_answer_in_another_session() {
    let sandbox = Sandbox::new();
    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    let project = conversations(&sandbox);
    wire.wait_for_catalog();
    let found = sandbox.ctl(["recall", "what port was it for staging?"]).ok();
    assert!(found.contains("48613") && !found.contains("vault"), "{found}");
    let json = sandbox.ctl(["recall", "staging port", "--project", &project, "--json"]).json();
    assert!(array(&json["data"])[0]["excerpt"].to_string().contains("48613"), "{json}");
    let elsewhere = sandbox.ctl(["recall", "staging port", "--session", "last"]).ok();
    assert_eq!(elsewhere, "nothing found\n");
    let error = sandbox.ctl(["recall", " "]).fails(2);
    assert!(error.contains("the question is empty"), "{error}");
}

#[test]
fn facts_are_listed_and_forgotten() {
    let sandbox = Sandbox::new();
    let _project = conversations(&sandbox);
    let facts = || sandbox.ctl(["context", "facts", "--session", "last"]).ok();
    let all = facts();
    assert!(all.contains("The vault code is 7731.") && all.contains("Never deploy"), "{all}");
    let json = sandbox.ctl(["context", "facts", "--session", "last", "--json"]).json();
    let code = array(&json["data"]).iter().find(|fact| fact["values"] == json!(["7731"]));
    let code = code.expect("is a fact");
    let number = format!("{}.{}", code["seq"], code["index"]);
    sandbox.ctl(["context", "facts", "forget", &number, "--session", "last"]).ok();
    assert!(!facts().contains("7731") && facts().contains("Never deploy"), "{}", facts());
}
