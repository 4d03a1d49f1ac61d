//! `files.*`: lists against those of git and ripgrep, changes, search and errors, over the wire.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::harness::{Random, array, start, start_with_config, until};

/// Writes a file and the directories above it.
fn write(root: &str, path: &str, text: &str) {
    let path = Path::new(root).join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Returns the paths of a list of files.
fn paths(list: &Value) -> Vec<&str> {
    array(list).iter().map(|file| file["path"].as_str().unwrap()).collect()
}

/// Runs a program that lists files; `None` if it is not installed.
fn list_with(root: &str, program: &str, args: &[&str]) -> Option<BTreeSet<String>> {
    let mut command = Command::new(program);
    // Neither program may read what the user of the tests has configured.
    command.args(args).current_dir(root).env_clear().env("PATH", std::env::var_os("PATH")?);
    command.env("HOME", root).env("GIT_CONFIG_NOSYSTEM", "1").stdin(Stdio::null());
    let output = command.output().ok()?;
    // ripgrep reports a tree without files by 1.
    let is_done = matches!(output.status.code(), Some(0 | 1));
    assert!(is_done, "{program}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    Some(text.split_terminator('\0').map(|path| path.trim_start_matches("./").to_owned()).collect())
}

/// Makes a tree with ignore files in many directories.
fn generate_tree(root: &str, random: &mut Random) {
    let names = ["a.rs", "b.log", "c.txt", "README", "x.tmp", "é.rs", ".hidden", "sp ace"];
    let dirs = ["src", "docs", "deep", "out", "odd [x]", ".config"];
    let patterns = [
        "*.log",
        "!b.log",
        "/src",
        "out/",
        "*.tmp",
        "docs/*",
        "!docs/README",
        "**/deep/c.txt",
        "[ab].rs",
        "deep/**",
        "\\!x",
        "# comment",
        "sp ace",
        "*",
        "!*/",
        "!*.rs",
        "odd \\[x\\]",
        "src/deep",
        "é*",
    ];
    for _ in 0..150 {
        let depth = random.below(4);
        let mut pick = |from: &[&'static str]| from[random.below(from.len() as u64) as usize];
        let mut path: Vec<&str> = (0..depth).map(|_| pick(&dirs)).collect();
        if pick(&["file", "file", "ignore"]) == "ignore" {
            path.push(".gitignore");
            let lines: Vec<&str> = (0..3).map(|_| pick(&patterns)).collect();
            write(root, &path.join("/"), &lines.join("\n"));
        } else {
            path.push(pick(&names));
            write(root, &path.join("/"), "x");
        }
    }
    write(root, ".git/info/exclude", "*.tmp\nout\n");
}

#[test]
fn list_equals_that_of_git_and_of_ripgrep() {
    let (sandbox, daemon, mut wire) = start();
    let mut random = Random::seeded("list_equals_that_of_git_and_of_ripgrep");
    for tree in 0..12 {
        let root = sandbox.project_dir(&format!("tree{tree}"));
        if list_with(&root, "git", &["init", "-q"]).is_none() {
            // Without git there is nothing to compare with.
            return;
        }
        generate_tree(&root, &mut random);
        let listed = |wire: &mut crate::harness::Wire, hidden: bool| -> BTreeSet<String> {
            let params = json!({ "root": root, "hidden": hidden, "details": false, "limit": 50 });
            let pages = wire.pages("files.discover", params);
            pages.iter().flat_map(|page| paths(&page["data"])).map(str::to_owned).collect()
        };
        let git = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
        let git = list_with(&root, "git", &git).unwrap();
        assert_eq!(listed(&mut wire, true), git, "{root}");
        let rg = ["--files", "-0", "--no-ignore-dot"];
        if let Some(mut rg) = list_with(&root, "rg", &rg) {
            // A pattern such as `!*/` makes ripgrep list the repository itself.
            rg.retain(|path| !path.starts_with(".git/"));
            assert_eq!(listed(&mut wire, false), rg, "{root}");
        }
    }
    drop(daemon);
}

#[test]
fn watch_reports_changes_and_ends_when_asked() {
    let (sandbox, daemon, mut wire) = start();
    let root = sandbox.project_dir("p");
    write(&root, "a.rs", "");
    let mut watcher = daemon.wire();
    let subscription = watcher.ok("files.watch", json!({ "root": root, "include": ["*.rs"] }));
    let first = watcher.notification("files.changed");
    assert_eq!((&first["kind"], &first["mode"]), (&json!("watching"), &json!("watch")));
    write(&root, "b.txt", "");
    write(&root, "src/c.rs", "");
    let change = watcher.notification("files.changed");
    assert_eq!(change["kind"], "files-changed");
    assert_eq!(change["added"], json!([{ "path": "src/c.rs" }]));
    assert!(change["generation"].as_u64() > first["generation"].as_u64());
    let status = wire.ok("files.status", json!({}));
    assert_eq!(status["roots"][0]["subscriptions"], 1, "{status}");
    assert_eq!(watcher.ok("files.unwatch", json!([subscription])), json!(true));
    write(&root, "late.rs", "");
    until("the change is known", || {
        let page = wire.ok("files.discover", json!({ "root": root }));
        paths(&page["data"]).contains(&"late.rs")
    });
    // A notification of the change would arrive before this response.
    watcher.status();
    until("the subscription is gone", || {
        wire.ok("files.status", json!({}))["roots"][0]["subscriptions"] == 0
    });
    // What changed meanwhile is the difference since then.
    let mut again = daemon.wire();
    again.ok("files.watch", json!({ "root": root, "since": change["generation"] }));
    assert_eq!(again.notification("files.changed")["kind"], "watching");
    assert_eq!(again.notification("files.changed")["added"], json!([{ "path": "late.rs" }]));
}

#[test]
fn search_ranks_files_and_marks_characters() {
    let (sandbox, _daemon, mut wire) = start();
    let root = sandbox.project_dir("p");
    for path in ["src/rpc/methods.rs", "src/method.rs", "docs/rpc-methods.md", "build/methods.rs"] {
        write(&root, path, "");
    }
    let found = wire.ok("files.search", json!({ "root": root, "query": "methods" }));
    let ranked = ["src/rpc/methods.rs", "docs/rpc-methods.md", "src/method.rs"];
    assert_eq!(paths(&found["data"]), ranked);
    assert_eq!(found["data"][0]["positions"], json!([8, 9, 10, 11, 12, 13, 14]));
    assert_eq!(found["searched"], 3);
    let found = wire.ok(
        "files.search",
        json!({ "root": root, "query": "meth", "exclude": ["docs/"], "limit": 1 }),
    );
    assert_eq!(paths(&found["data"]), ["src/method.rs"]);
    wire.refused(
        "files.search",
        json!({ "root": root, "query": "x".repeat(2000) }),
        "invalidParams",
    );
}

#[test]
fn roots_and_params_that_cannot_be_used_are_refused() {
    let (sandbox, _daemon, mut wire) =
        start_with_config("files: { maxDepth: 1, ignore: ['*.bak'] }\n");
    let root = sandbox.project_dir("p");
    ["a", "b.bak", "d/c"].iter().for_each(|path| write(&root, path, "text"));
    let page = wire.ok("files.discover", json!({ "root": root, "maxDepth": 5 }));
    assert_eq!(paths(&page["data"]), ["a"]);
    assert_eq!(page["data"][0]["size"], 4);
    let mut refused = |params: Value, kind: &str, field: &str| {
        let error = wire.refused("files.discover", params, kind);
        assert!(error["data"].get(field).is_some(), "{error}");
    };
    refused(json!({ "root": format!("{root}/a") }), "rootNotFound", "path");
    refused(json!({ "root": format!("{root}/none") }), "rootNotFound", "path");
    refused(json!({ "root": "src" }), "invalidParams", "field");
    refused(json!({ "root": root, "include": ["a{"] }), "invalidParams", "field");
    refused(json!({ "root": root, "cursor": "?" }), "invalidParams", "field");
    let error =
        wire.refused("files.watch", json!({ "root": format!("{root}/none") }), "rootNotFound");
    assert!(error["message"].as_str().unwrap().contains("does not exist"), "{error}");
}
