//! Edges between modules and crates: lower ones never use upper ones, and the methods of the wire stay on top.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::{is_test_file, production_code, read, report, root};
use crate::harness::files_under;

/// The modules of the daemon by level. A module uses modules of lower levels and none of its own, except for its
/// part of `config`.
const LEVELS: &[&[&str]] = &[
    &["clock", "error_chain", "flags", "fsutil", "languages", "nesting", "shell"],
    &["shutdown"],
    &["tokens", "model", "goal", "facts", "put_back", "backup"],
    &["session"],
    &[
        "catalog", "context", "loops", "env", "events", "config", "files", "hooks", "projects",
        "snapshot",
    ],
    &["app"],
    &["rpc"],
    &["server"],
    &["bench_api", "daemon"],
];

/// The modules of `app` from the ground up, each with the sections of the configuration that it reads. A module uses
/// only those before it.
const APP_FLOORS: &[(&str, &[&str])] = &[
    // State that needs no `Core`.
    ("error", &[]),
    ("build_request", &[]),
    ("uploads", &[]),
    ("chat_history", &[]),
    ("turn_feed", &[]),
    ("running", &[]),
    ("model_limits", &[]),
    ("model_speed", &[]),
    ("placement", &[]),
    ("hook_runs", &[]),
    ("previews", &[]),
    ("schedule", &[]),
    ("path", &[]),
    ("cache", &[]),
    ("counts", &[]),
    ("core", &["files", "models", "ollama", "ollama_key", "servers"]),
    ("store_work", &[]),
    // Records, and how sessions change.
    ("drafts", &[]),
    ("writes", &["snapshots"]),
    ("partial", &[]),
    ("change", &[]),
    // What several nouns use.
    ("loops", &["loop_detection"]),
    ("other_branches", &[]),
    ("put_back", &["sessions", "snapshots"]),
    // The nouns.
    ("models", &["context", "ollama", "ollama_models_dirs"]),
    ("context", &["compression", "context", "goals", "modes", "recall"]),
    ("hooks", &["environment", "hooks", "variables"]),
    ("snapshots", &["snapshots"]),
    ("sessions", &["sessions"]),
    ("backups", &[]),
    ("store_check", &[]),
    ("compaction", &["compression", "models"]),
    ("branches", &[]),
    ("chat", &["chat", "context", "recall"]),
    ("files", &[]),
    // What follows a record, and what puts everything together.
    ("observer", &[]),
    ("open", &[]),
];

/// The modules of the daemon that know the params and results of methods.
const USERS_OF_METHODS: &[&str] = &["app", "rpc", "server", "daemon"];

/// Returns the production files of the daemon, each with its module.
fn daemon_files() -> Vec<(String, PathBuf)> {
    let source = root().join("daemon/src");
    let files = files_under(&source).into_iter().filter(|path| !is_test_file(path));
    let modules = files.map(|path| {
        let relative = path.strip_prefix(&source).unwrap();
        let first = relative.components().next().unwrap().as_os_str().to_str().unwrap();
        (first.trim_end_matches(".rs").to_owned(), path)
    });
    modules.filter(|(module, _)| module != "lib").collect()
}

/// Returns the name at the beginning of some code, empty if there is none.
fn name_at_start(code: &str) -> &str {
    let code = code.trim_start();
    let end = code.find(|char: char| !char.is_alphanumeric() && char != '_');
    &code[..end.unwrap_or(code.len())]
}

/// Returns the names that follow `<root>::` in some code, those in braces included.
fn names_in<'a>(code: &'a str, root: &str) -> BTreeSet<&'a str> {
    let mut names = BTreeSet::new();
    for (at, prefix) in code.match_indices(&format!("{root}::")) {
        let path = &code[at + prefix.len()..];
        let Some(group) = path.strip_prefix('{') else {
            names.insert(name_at_start(path));
            continue;
        };
        names.insert(name_at_start(group));
        let mut depth = 0;
        for (at, char) in group.char_indices() {
            match char {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => drop(names.insert(name_at_start(&group[at + 1..]))),
                _ => {}
            }
        }
    }
    names
}

#[test]
fn names_in_returns_the_first_names_of_paths_and_groups() {
    let check = |code, expected: &[&str]| {
        assert_eq!(names_in(code, "crate").into_iter().collect::<Vec<_>>(), expected, "{code}");
    };
    check("use crate::goal::Goal; crate::clock::now()", &["clock", "goal"]);
    check("use crate::{\n    goal::{self, Goal},\n    model,\n};", &["", "goal", "model"]);
    check("use other::goal;", &[]);
}

#[test]
fn modules_of_the_daemon_use_only_lower_levels() {
    let level = |module: &str| LEVELS.iter().position(|level| level.contains(&module));
    let files = daemon_files();
    let mut problems = Vec::new();
    for module in LEVELS.iter().copied().flatten() {
        if !files.iter().any(|(existing, _)| existing == module) {
            problems.push(format!("`{module}` has a level and does not exist"));
        }
    }
    for (module, path) in &files {
        let Some(own) = level(module) else {
            problems.push(format!("{}: `{module}` has no level in this test", path.display()));
            continue;
        };
        let text = read(path);
        for used in names_in(production_code(&text), "crate") {
            if used == module || used.is_empty() || used.starts_with(char::is_uppercase) {
                continue;
            }
            let is_lower = level(used).is_some_and(|level| level < own);
            if !is_lower && used != "config" {
                problems.push(format!("{} uses `{used}`", path.display()));
            }
        }
    }
    report(&problems);
}

/// Returns the production files of `app`, without `mod.rs`, which names the modules, and `testing.rs`.
fn app_files() -> impl Iterator<Item = PathBuf> {
    let source = root().join("daemon/src/app");
    let glue = [source.join("mod.rs"), source.join("testing.rs")];
    files_under(&source).into_iter().filter(move |path| !is_test_file(path) && !glue.contains(path))
}

#[test]
fn modules_of_app_use_only_those_before_them() {
    let source = root().join("daemon/src/app");
    let floor = |module: &str| APP_FLOORS.iter().position(|(floor, _)| *floor == module);
    let mut problems = Vec::new();
    for path in app_files() {
        let relative = path.strip_prefix(&source).unwrap();
        let parts: Vec<_> = relative.iter().map(|part| part.to_str().unwrap()).collect();
        let own = parts[0].trim_end_matches(".rs");
        let Some(own_floor) = floor(own) else {
            problems.push(format!("{}: `{own}` has no floor in this test", path.display()));
            continue;
        };
        let text = read(&path);
        let code = production_code(&text);
        let is_root_of_module = parts.len() == 1 || parts[1..] == ["mod.rs"];
        let parent = if is_root_of_module { "super" } else { "super::super" };
        let used = names_in(code, "crate::app").into_iter().chain(names_in(code, parent));
        for used in used.filter(|used| *used != own && *used != "super") {
            if floor(used).is_some_and(|floor| floor >= own_floor) {
                problems.push(format!("{} uses `{used}`, which is above it", path.display()));
            }
        }
    }
    report(&problems);
}

/// Returns the fields of `Config`, each a section of the configuration.
fn config_sections() -> Vec<String> {
    let text = read(&root().join("daemon/src/config/mod.rs"));
    let fields =
        text.split("pub(crate) struct Config {").nth(1).expect("the struct of the configuration");
    let fields = fields.split('}').next().unwrap().lines();
    let names = fields.filter_map(|line| line.trim().strip_prefix("pub(crate) ")?.split_once(':'));
    names.map(|(name, _)| name.to_owned()).collect()
}

#[test]
fn modules_of_app_read_only_their_sections_of_the_configuration() {
    let source = root().join("daemon/src/app");
    let sections = config_sections();
    let mut read_sections = BTreeSet::new();
    for path in app_files() {
        let relative = path.strip_prefix(&source).unwrap();
        let own =
            relative.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs").to_owned();
        let text = read(&path);
        let code: String = production_code(&text).split_whitespace().collect();
        for before_section in ["config().", "config."] {
            for (at, found) in code.match_indices(before_section) {
                let name = name_at_start(&code[at + found.len()..]);
                if sections.iter().any(|section| section == name) {
                    read_sections.insert((own.clone(), name.to_owned()));
                }
            }
        }
    }
    let listed = APP_FLOORS.iter().flat_map(|(module, sections)| {
        sections.iter().map(|section| ((*module).to_owned(), (*section).to_owned()))
    });
    assert_eq!(read_sections, listed.collect(), "the sections that each module reads");
}

#[test]
fn only_upper_modules_of_the_daemon_use_the_methods_of_the_protocol() {
    let mut users = BTreeSet::new();
    for (module, path) in daemon_files() {
        if names_in(production_code(&read(&path)), "ollm_protocol").contains("methods") {
            users.insert(module);
        }
    }
    let problems: Vec<String> = users
        .iter()
        .filter(|module| !USERS_OF_METHODS.contains(&module.as_str()))
        .map(|module| format!("`{module}` uses ollm_protocol::methods"))
        .collect();
    report(&problems);
}

#[test]
fn crates_have_only_their_allowed_dependencies() {
    let manifest = |name: &str| read(&root().join(name).join("Cargo.toml"));
    let depends =
        |name: &str, on: &str| manifest(name).lines().any(|line| line.trim_start().starts_with(on));
    assert!(!depends("client", "ollm-daemon"), "the client does not use the daemon");
    assert!(!depends("daemon", "ollm-client"), "the daemon does not use the client");
    for dependency in ["tokio", "jsonrpsee", "rusqlite", "ollm-"] {
        assert!(!depends("protocol", dependency), "the protocol does not use {dependency}");
    }
    assert!(!depends("client", "rusqlite"), "the client does not open the catalog");
    for name in [".", "protocol", "daemon", "client"] {
        let text = manifest(name);
        assert!(
            text.contains("[lints]\nworkspace = true"),
            "{name} uses the lints of the workspace"
        );
        let dependencies = text.split("\n[").filter(|section| {
            section.starts_with("dependencies]") || section.starts_with("dev-dependencies]")
        });
        for line in dependencies.flat_map(str::lines).filter(|line| line.contains(" = ")) {
            assert!(
                line.contains("workspace"),
                "{name}: the version of `{line}` stands in the workspace"
            );
        }
    }
}
