//! `env.*`: which variables a tool gets, how configuration changes that, and that no value is written anywhere.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::harness::{
    array, assert_fields, files_under, rpc_notification, start, start_with_config, until,
};

#[test]
fn secrets_are_removed_and_other_variables_pass_unchanged() {
    let (_sandbox, _daemon, mut wire) = start();
    let variables = json!({
        "PATH": "/bin", "LC_ALL": "C", "EDITOR": "vi \n", "MONKEY": "see", "githubToken": "a", "AWS_REGION": "b",
        "ORIGIN": "https://ada:hunter2@example.com/x.git",
    });
    let done = wire.ok("env.sanitize", json!({ "variables": variables }));
    let passing = json!({ "EDITOR": "vi \n", "LC_ALL": "C", "MONKEY": "see", "PATH": "/bin" });
    assert_eq!(done["variables"], passing);
    let removed: Vec<(&str, &str)> = array(&done["removed"])
        .iter()
        .map(|removed| (removed["name"].as_str().unwrap(), removed["rule"].as_str().unwrap()))
        .collect();
    assert_eq!(
        removed,
        [("AWS_REGION", "AWS_*"), ("ORIGIN", "url-credentials"), ("githubToken", "*_TOKEN")]
    );
    assert_eq!(done["warnings"], json!([]));
}

#[test]
fn configured_rules_apply_after_reload_and_invalid_ones_are_warned_of() {
    let (sandbox, _daemon, mut wire) = start();
    let params =
        json!({ "variables": { "ACME_HOST": "x", "A_TOKEN": "x", "PROXY": "http://a:b@c" } });
    let names =
        |done: &Value| done["variables"].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&wire.ok("env.sanitize", params.clone())), ["ACME_HOST"]);
    sandbox.write_config("environment: { allow: [PROXY], deny: ['[broken', 'acme_*'] }\n");
    let reloaded = wire.ok("daemon.reload", json!({}));
    assert!(reloaded["warnings"].to_string().contains("[broken"), "{reloaded}");
    let done = wire.ok("env.sanitize", params);
    assert_eq!(names(&done), ["PROXY"]);
    assert!(done["warnings"][0].as_str().unwrap().contains("environment.deny"), "{done}");
    let rules = wire.ok("env.rules", json!({}));
    assert_fields(&rules, json!({ "allow": ["PROXY"], "warnings": done["warnings"] }));
    assert_eq!(array(&rules["deny"]).last(), Some(&json!("ACME_*")));
    let status = wire.status();
    assert!(status["warnings"].to_string().contains("[broken"), "{status}");
    until("the log contains the warning", || {
        let logs = files_under(&sandbox.home().join("logs"));
        let read = |path: &PathBuf| std::fs::read_to_string(path).unwrap_or_default();
        logs.iter().any(|log| read(log).contains("[broken"))
    });
}

#[test]
fn no_value_appears_in_errors_logs_or_files() {
    let (sandbox, daemon, mut wire) = start_with_config("log: { level: trace }\n");
    const SECRET: &str = "hunter2-zq9";
    const NUMBER: u64 = 8_162_534_071;
    let variables =
        json!({ "A_TOKEN": SECRET, "PLAIN": SECRET, "URL": format!("http://a:{SECRET}@b") });
    let done = wire.ok("env.sanitize", json!({ "variables": variables }));
    assert_eq!(done["variables"], json!({ "PLAIN": SECRET }));
    assert!(!done["removed"].to_string().contains(SECRET), "{done}");
    let invalid = [
        json!({ "variables": SECRET }),
        json!({ "variables": [SECRET] }),
        json!({ "variables": { "A": [SECRET] } }),
        json!({ "variables": { "A": { "B": SECRET } } }),
        json!({ "variables": { "A": NUMBER } }),
        json!({ "variables": { "A": SECRET }, "extra": SECRET }),
        json!({ "variable": { "A": SECRET } }),
        json!([SECRET]),
        json!(SECRET),
    ];
    for params in invalid {
        let error = wire.refused("env.sanitize", params, "invalidParams").to_string();
        assert!(!error.contains(SECRET) && !error.contains(&NUMBER.to_string()), "{error}");
    }
    // As a notification, in a batch, and incomplete.
    let call = rpc_notification("env.sanitize", json!({ "variables": { "K": SECRET } }));
    wire.send(&call.to_string());
    wire.send(&json!([call, call]).to_string());
    let whole = call.to_string();
    wire.send(&whole[..whole.len() - 2]);
    let error = wire.frame().expect("an error").to_string();
    assert!(error.contains("parseError") && !error.contains(SECRET), "{error}");
    wire.status();
    assert!(daemon.terminate().success());
    let stderr = std::fs::read_to_string(sandbox.path("daemon.stderr")).unwrap();
    assert!(stderr.contains("env.sanitize"), "the daemon logs at trace: {stderr}");
    for text in [SECRET, &NUMBER.to_string()] {
        assert!(!stderr.contains(text), "{stderr}");
        assert_eq!(sandbox.files_containing(text), Vec::<PathBuf>::new());
    }
}
