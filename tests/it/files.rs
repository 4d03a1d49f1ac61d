//! `files.*`: lists against those of git and ripgrep, changes, search and errors, over the wire.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::harness::{Daemon, Random, Sandbox, Wire, array, start, start_with_config, until};

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

/// Runs a program that lists files.
fn list_with(root: &str, program: &str, args: &[&str]) -> BTreeSet<String> {
    let mut command = Command::new(program);
    // Neither program may read what the user of the tests has configured.
    command.args(args).current_dir(root).env_clear().env("PATH", std::env::var_os("PATH").unwrap());
    command.env("HOME", root).env("GIT_CONFIG_NOSYSTEM", "1").stdin(Stdio::null());
    let output = command.output().unwrap_or_else(|error| panic!("{program}: {error}"));
    // ripgrep reports a tree without files by 1.
    let is_done = matches!(output.status.code(), Some(0 | 1));
    assert!(is_done, "{program}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_terminator('\0').map(|path| path.trim_start_matches("./").to_owned()).collect()
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

/// Returns the paths of all pages of a root.
fn listed(wire: &mut Wire, root: &str, hidden: bool, limit: u32) -> BTreeSet<String> {
    let params = json!({ "root": root, "hidden": hidden, "details": false, "limit": limit });
    let pages = wire.pages("files.discover", params);
    pages.iter().flat_map(|page| paths(&page["data"])).map(str::to_owned).collect()
}

/// Makes a repository with ignore files in many directories.
fn generate_repository(sandbox: &Sandbox, name: &str, random: &mut Random) -> String {
    let root = sandbox.project_dir(name);
    list_with(&root, "git", &["init", "-q"]);
    generate_tree(&root, random);
    root
}

#[test]
fn list_equals_that_of_git() {
    let (sandbox, _daemon, mut wire) = start();
    let mut random = Random::seeded("list_equals_that_of_git");
    for tree in 0..12 {
        let root = generate_repository(&sandbox, &format!("tree{tree}"), &mut random);
        let git = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
        assert_eq!(listed(&mut wire, &root, true, 50), list_with(&root, "git", &git), "{root}");
    }
}

#[test]
#[ignore = "needs ripgrep"]
fn list_equals_that_of_ripgrep() {
    let (sandbox, _daemon, mut wire) = start();
    let mut random = Random::seeded("list_equals_that_of_ripgrep");
    for tree in 0..12 {
        let root = generate_repository(&sandbox, &format!("tree{tree}"), &mut random);
        let mut rg = list_with(&root, "rg", &["--files", "-0", "--no-ignore-dot"]);
        // A pattern such as `!*/` makes ripgrep list the repository itself.
        rg.retain(|path| !path.starts_with(".git/"));
        assert_eq!(listed(&mut wire, &root, false, 50), rg, "{root}");
    }
}

#[test]
#[ignore = "needs ripgrep and the sources of crates in CARGO_HOME"]
fn list_of_the_crate_registry_equals_that_of_ripgrep() {
    let (_sandbox, _daemon, mut wire) = start();
    let home = std::env::var("CARGO_HOME")
        .or_else(|_| std::env::var("HOME").map(|home| format!("{home}/.cargo")))
        .unwrap();
    let root = fs::canonicalize(format!("{home}/registry/src")).unwrap();
    let root = root.to_str().unwrap();
    // Outside of a repository ripgrep reads .gitignore only if it is asked to, and no list has built-in names.
    let built_in = ["node_modules", "dist", "build", "target"].map(|name| format!("!**/{name}/"));
    let mut args = vec!["--files", "-0", "--no-ignore-dot", "--no-require-git"];
    built_in.iter().for_each(|glob| args.extend(["--glob", glob]));
    let rg = list_with(root, "rg", &args);
    let found = listed(&mut wire, root, false, 10_000);
    // Links are in this list only.
    let is_link = |path: &&String| Path::new(root).join(path).is_symlink();
    let only_here: Vec<_> = found.difference(&rg).filter(|path| !is_link(path)).collect();
    let only_there: Vec<_> = rg.difference(&found).collect();
    assert!(found.len() > 1_000, "{} files", found.len());
    assert_eq!((only_here, only_there), (Vec::new(), Vec::new()));
}

#[test]
fn global_excludes_hold_and_a_changed_configuration_of_git_is_noticed() {
    let (sandbox, _daemon, mut wire) = start();
    let root = sandbox.project_dir("p");
    ["a.tmp", "b.bak", "c"].iter().for_each(|path| write(&root, path, ""));
    let home = sandbox.path("");
    let home = home.to_str().unwrap();
    write(home, ".config/git/ignore", "*.tmp\n");
    assert_eq!(
        listed(&mut wire, &root, false, 10),
        BTreeSet::from(["b.bak", "c"].map(String::from))
    );
    write(home, ".config/git/ignore", "*.bak\n");
    assert_eq!(
        listed(&mut wire, &root, false, 10),
        BTreeSet::from(["a.tmp", "c"].map(String::from))
    );
    write(home, "own-excludes", "c\n");
    write(home, ".gitconfig", "[core]\n\texcludesFile = ~/own-excludes\n");
    let expected = BTreeSet::from(["a.tmp", "b.bak"].map(String::from));
    assert_eq!(listed(&mut wire, &root, false, 10), expected);
}

#[test]
fn name_that_is_not_utf_8_has_its_bytes() {
    let (sandbox, daemon, mut wire) = start();
    let root = sandbox.project_dir("p");
    fs::write(Path::new(&root).join(OsStr::from_bytes(b"odd-\xff")), "").unwrap();
    let expected = json!({ "path": "odd-\u{fffd}", "pathBytes": "b2RkLf8=" });
    let page = wire.ok("files.discover", json!({ "root": root, "details": false }));
    assert_eq!(page["data"][0]["path"], expected["path"]);
    assert_eq!(page["data"][0]["pathBytes"], expected["pathBytes"]);
    let found = wire.ok("files.search", json!({ "root": root, "query": "odd" }));
    assert_eq!(found["data"][0]["pathBytes"], expected["pathBytes"]);
    let mut watcher = watch(&daemon, &root);
    fs::rename(
        Path::new(&root).join(OsStr::from_bytes(b"odd-\xff")),
        Path::new(&root).join("even"),
    )
    .unwrap();
    let change = watcher.notification("files.changed");
    assert_eq!(change["renamed"], json!([{ "from": expected, "to": { "path": "even" } }]));
}

#[test]
fn watch_reports_renames_unknown_generations_and_a_root_that_is_gone() {
    let (sandbox, daemon, mut wire) = start();
    let root = sandbox.project_dir("p");
    write(&root, "dir/a", "");
    let mut watcher = watch(&daemon, &root);
    fs::rename(format!("{root}/dir"), format!("{root}/moved")).unwrap();
    let change = watcher.notification("files.changed");
    let renamed = json!([{ "from": { "path": "dir/a" }, "to": { "path": "moved/a" } }]);
    assert_eq!((&change["kind"], &change["renamed"]), (&json!("files-changed"), &renamed));
    let mut late = daemon.wire();
    late.ok("files.watch", json!({ "root": root, "since": 1 }));
    assert_eq!(late.notification("files.changed")["kind"], "watching");
    assert_eq!(late.notification("files.changed")["kind"], "resync");
    fs::rename(&root, format!("{root}-elsewhere")).unwrap();
    let gone = watcher.notification("files.changed");
    assert_eq!(gone["kind"], "root-gone");
    assert!(gone["message"].as_str().unwrap().contains("does not exist"), "{gone}");
    let status = wire.ok("files.status", json!({}));
    assert_eq!(status["roots"][0]["state"], "gone", "{status}");
    fs::rename(format!("{root}-elsewhere"), &root).unwrap();
    assert_eq!(watcher.notification("files.changed")["kind"], "resync");
}

/// Subscribes to the changes of a root on a connection of its own.
fn watch(daemon: &Daemon, root: &str) -> Wire {
    let mut watcher = daemon.wire();
    watcher.ok("files.watch", json!({ "root": root }));
    assert_eq!(watcher.notification("files.changed")["kind"], "watching");
    watcher
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
