//! What the compiler does not check: files that nothing runs, files too long, edges between modules, lists that
//! must agree.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use ollm_protocol::{ErrorKind, EventKind, METHODS};
use serde_json::Value;

use crate::harness::{files_under, fixture_path};

/// Lines of a file, tests apart. Longer files are hard to hold in the head; 400 is what to aim for.
const MAX_FILE_LINES: usize = 700;
/// Lines of a function.
const MAX_FUNCTION_LINES: usize = 80;

/// The modules of the daemon by level; each may use those of lower levels, and none of its own.
const LEVELS: &[&[&str]] = &[
    &["causes", "clock", "flags", "fsutil", "plain"],
    // Pure vocabulary and the tracked tasks that every owner is spawned with.
    &["shutdown"],
    &["tokens", "model", "goal"],
    &["session"],
    &["catalog", "context", "snapshot", "loops", "files", "env", "events", "config", "projects"],
    &["app"],
    &["rpc"],
    &["server"],
    &["daemon", "measured"],
];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn sources() -> Vec<PathBuf> {
    let crates = ["protocol", "daemon", "client", "tests"];
    let all = crates.iter().flat_map(|name| files_under(&root().join(name)));
    all.filter(|path| path.extension().is_some_and(|ending| ending == "rs")).collect()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Fails with everything that is wrong, so that one run is enough.
#[track_caller]
fn report(problems: &[String]) {
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
}

fn is_test_file(path: &Path) -> bool {
    path.components().any(|part| ["tests", "benches"].iter().any(|name| part.as_os_str() == *name))
        || path.file_stem().is_some_and(|stem| stem == "tests" || stem == "testing")
}

#[test]
fn no_source_file_is_forgotten() {
    let mut problems = Vec::new();
    for path in sources() {
        let stem = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let directory = path.parent().unwrap();
        let inside = if stem == "mod" { directory.parent().unwrap() } else { directory };
        let name =
            if stem == "mod" { directory.file_name().unwrap().to_str().unwrap() } else { &stem };
        let is_root = ["main", "lib"].contains(&stem.as_str()) || inside.ends_with("benches");
        if is_root {
            continue;
        }
        let parent = inside.file_name().unwrap().to_str().unwrap();
        let places = [
            inside.join("mod.rs"),
            inside.join("lib.rs"),
            inside.join("main.rs"),
            inside.parent().unwrap().join(format!("{parent}.rs")),
        ];
        // A benchmark program is the root of its own modules, whatever it is called.
        let mut places = places.to_vec();
        if inside.ends_with("benches") {
            places = files_under(inside);
        }
        let declared =
            places.iter().filter(|place| place.exists() && **place != path).any(|place| {
                read(place).lines().any(|line| {
                    let line = line.trim().trim_end_matches(';');
                    line.rsplit_once("mod ").is_some_and(|(before, declared)| {
                        declared == name && (before.is_empty() || before.starts_with("pub"))
                    })
                })
            });
        if !declared {
            problems.push(format!("{} belongs to no module", path.display()));
        }
    }
    report(&problems);
}

#[test]
fn files_and_functions_are_short_enough_and_files_say_what_they_own() {
    let mut problems = Vec::new();
    for path in sources() {
        let text = read(&path);
        let own = text.find("\n#[cfg(test)]\nmod tests {").map_or(text.as_str(), |at| &text[..at]);
        let lines = own.lines().count();
        if lines > MAX_FILE_LINES {
            problems.push(format!("{} has {lines} lines", path.display()));
        }
        if !text.starts_with("//!") && !is_test_file(&path) {
            problems.push(format!("{} does not begin with what it owns", path.display()));
        }
        for (at, length) in functions(&text) {
            if length > MAX_FUNCTION_LINES {
                problems.push(format!("{}:{at} has a function of {length} lines", path.display()));
            }
        }
    }
    report(&problems);
}

/// Where functions begin and how many lines lie between their braces: rustfmt closes a function at the column
/// that opened it.
fn functions(text: &str) -> Vec<(usize, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let words = code.split('(').next().unwrap_or_default();
        if !words.split(' ').any(|word| word == "fn") || words.contains(['"', '/', '=']) {
            continue;
        }
        let signature = lines[at..].iter().position(|line| line.ends_with(['{', '}', ';']));
        let Some(open) = signature.map(|end| at + end).filter(|open| lines[*open].ends_with('{'))
        else {
            continue;
        };
        let close = format!("{}}}", &line[..line.len() - code.len()]);
        if let Some(length) = lines[open + 1..].iter().position(|line| *line == close) {
            found.push((at + 1, length));
        }
    }
    found
}

#[test]
fn modules_of_the_daemon_use_only_those_below() {
    let level = |module: &str| LEVELS.iter().position(|level| level.contains(&module));
    let source = root().join("daemon/src");
    let mut problems = Vec::new();
    for path in files_under(&source) {
        let inside = path.strip_prefix(&source).unwrap();
        let first = inside.components().next().unwrap().as_os_str().to_str().unwrap();
        let module = first.trim_end_matches(".rs");
        if module == "lib" || is_test_file(&path) {
            continue;
        }
        let Some(own) = level(module) else {
            problems.push(format!(
                "{} is in no level: say in this table which modules it may use",
                path.display()
            ));
            continue;
        };
        let text = read(&path);
        let code = text.find("\n#[cfg(test)]").map_or(text.as_str(), |at| &text[..at]);
        for (at, used) in code.match_indices("crate::") {
            let rest = &code[at + used.len()..];
            let targets: Vec<&str> = match rest.strip_prefix('{') {
                Some(group) => group.split('}').next().unwrap().split(',').map(str::trim).collect(),
                None => vec![rest],
            };
            for target in targets {
                let target = target
                    .split(|char: char| !char.is_alphanumeric() && char != '_')
                    .next()
                    .unwrap();
                if target == module || target.is_empty() || target.starts_with(char::is_uppercase) {
                    continue;
                }
                // Every owner takes its own configuration struct.
                let below = level(target).is_some_and(|target| target < own);
                if !below && target != "config" {
                    problems.push(format!("{} uses {target}", path.display()));
                }
            }
        }
    }
    problems.dedup();
    report(&problems);
}

#[test]
fn crates_know_only_what_they_may() {
    let manifest = |name: &str| read(&root().join(name).join("Cargo.toml"));
    let depends =
        |name: &str, on: &str| manifest(name).lines().any(|line| line.trim_start().starts_with(on));
    assert!(!depends("client", "ollm-daemon"), "the client never uses the daemon");
    assert!(!depends("daemon", "ollm-client"));
    for engine in ["tokio", "jsonrpsee", "rusqlite", "ollm-"] {
        assert!(!depends("protocol", engine), "the contract does nothing: {engine}");
    }
    assert!(!depends("client", "rusqlite"), "the client never opens the catalog");
    for name in [".", "protocol", "daemon", "client"] {
        let text = manifest(name);
        assert!(text.contains("[lints]\nworkspace = true"), "{name} takes the workspace's lints");
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

#[test]
fn every_name_of_the_wire_is_described() {
    let text = read(&root().join("protocol/PROTOCOL.md"));
    let rows: BTreeSet<&str> = text
        .lines()
        .filter(|line| line.starts_with('|'))
        .filter_map(|line| line.split('|').nth(1))
        .map(|cell| cell.trim().trim_matches('`'))
        .collect();
    // A row may begin with the number of an error.
    let has_row = |name: &str| {
        rows.contains(name)
            || text.lines().any(|line| line.starts_with('|') && line.contains(&format!("`{name}`")))
    };
    let methods = METHODS.iter().map(|method| method.name.to_owned());
    let errors = ErrorKind::ALL.iter().map(|kind| kind.as_str().to_owned());
    let events = event_kinds().into_iter();
    let problems: Vec<String> = methods
        .chain(errors)
        .chain(events)
        .filter(|name| !has_row(name))
        .map(|name| format!("`{name}` has no row in protocol/PROTOCOL.md"))
        .collect();
    report(&problems);
}

/// The kinds of events, from their schema.
fn event_kinds() -> Vec<String> {
    let source = read(&root().join("protocol/src/event.rs"));
    let body = source.split("pub enum EventKind {").nth(1).unwrap().split("\n}").next().unwrap();
    let names = body.lines().map(str::trim).filter(|line| line.starts_with(char::is_uppercase));
    let kinds: Vec<String> = names
        .map(|name| {
            let mut kebab = String::new();
            for char in name.trim_end_matches(',').chars() {
                if char.is_uppercase() && !kebab.is_empty() {
                    kebab.push('-');
                }
                kebab.extend(char.to_lowercase());
            }
            kebab
        })
        .collect();
    for kind in &kinds {
        let read: Result<EventKind, _> = serde_json::from_value(Value::String(kind.clone()));
        assert!(read.is_ok(), "{kind} is read from the source wrongly");
    }
    kinds
}

#[test]
fn every_method_has_a_fixture_and_a_test() {
    let tests: String = files_under(&root().join("tests/it"))
        .iter()
        .filter(|path| !["tidy.rs", "fixtures.rs"].iter().any(|name| path.ends_with(name)))
        .map(|path| read(path))
        .collect();
    let mut problems = Vec::new();
    for method in METHODS {
        if !fixture_path(&format!("wire/{}.json", method.name)).is_file() {
            problems
                .push(format!("{} has no tests/fixtures/wire/{}.json", method.name, method.name));
        }
        if !tests.contains(&format!("\"{}\"", method.name)) {
            problems.push(format!("{} is called by no test", method.name));
        }
    }
    let known: BTreeSet<String> =
        METHODS.iter().map(|method| format!("{}.json", method.name)).collect();
    for path in files_under(&fixture_path("wire")) {
        let name = path.file_name().unwrap().to_str().unwrap();
        if !known.contains(name) {
            problems.push(format!("{} is the fixture of no method", path.display()));
        }
    }
    report(&problems);
}
