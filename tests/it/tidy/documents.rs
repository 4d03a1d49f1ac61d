//! Documents and fixtures that must list what the code defines.

use std::collections::BTreeSet;

use ollm_protocol::{ErrorKind, METHODS};

use super::{read, report, root};
use crate::harness::{files_under, fixture_path};

#[test]
fn every_method_and_error_has_a_row_in_protocol_md() {
    let text = read(&root().join("protocol/PROTOCOL.md"));
    let rows: Vec<&str> = text.lines().filter(|line| line.starts_with('|')).collect();
    let has_row = |start: &str| rows.iter().any(|row| row.contains(&format!("`{start}")));
    let methods = METHODS.iter().map(|method| {
        format!("{}` | {} | {} |", method.name, method.life.as_str(), method.effect.as_str())
    });
    let errors = ErrorKind::ALL.iter().map(|kind| format!("{}`", kind.as_str()));
    let problems: Vec<String> = methods
        .chain(errors)
        .filter(|start| !has_row(start))
        .map(|start| format!("no row of protocol/PROTOCOL.md has `{start}"))
        .collect();
    report(&problems);
}

#[test]
fn every_method_is_in_the_overview_of_protocol_md() {
    let text = read(&root().join("protocol/PROTOCOL.md"));
    let overview =
        text.split("\n## 8. Methods").nth(1).and_then(|rest| rest.split("\n### ").next());
    let overview = overview.expect("has an overview");
    let problems: Vec<String> = METHODS
        .iter()
        .filter_map(|method| {
            let (noun, verb) = method.name.split_once('.')?;
            let mut rows =
                overview.lines().filter(|line| line.starts_with(&format!("| [{noun}](")));
            let is_listed =
                method.name == "rpc.discover" || rows.any(|row| row.contains(&format!("`{verb}`")));
            (!is_listed).then(|| format!("`{}` is missing in the overview of methods", method.name))
        })
        .collect();
    report(&problems);
}

#[test]
fn every_method_has_a_fixture_and_a_test() {
    let tests = files_under(&root().join("tests/it")).into_iter();
    let tests = tests.filter(|path| !path.ends_with("fixtures.rs"));
    let tests: String = tests.map(|path| read(&path)).collect();
    let mut problems = Vec::new();
    for method in METHODS {
        let fixture = format!("wire/{}.json", method.name);
        if !fixture_path(&fixture).is_file() {
            problems.push(format!("{} has no tests/fixtures/{fixture}", method.name));
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

#[test]
fn format_md_names_the_version_tables_and_flags_of_the_catalog() {
    let text = read(&root().join("daemon/FORMAT.md"));
    let schema = read(&root().join("daemon/src/catalog/query/schema.rs"));
    let index = read(&root().join("daemon/src/session/index.rs"));
    let mut problems = Vec::new();

    let version = values_after(&schema, "const VERSION: i64 = ").pop().unwrap();
    if !text.contains(&format!("`PRAGMA user_version` is {version}.")) {
        problems.push(format!("daemon/FORMAT.md does not say that `user_version` is {version}"));
    }
    for table in values_after(&schema, "CREATE TABLE ") {
        if !text.contains(&format!("\n| `{table}` |")) {
            problems.push(format!("the table `{table}` has no row in daemon/FORMAT.md"));
        }
    }
    let flags: BTreeSet<&str> = values_after(&index, ": u16 = ").into_iter().collect();
    let rows = text.split("| flag | meaning |\n|---|---|\n").nth(1).unwrap();
    let rows = rows.lines().map_while(|row| row.strip_prefix("| ")?.split(' ').next());
    let described: BTreeSet<&str> = rows.collect();
    assert!(flags.len() > 1, "the flags are found in the source");
    for flag in flags.symmetric_difference(&described) {
        problems.push(format!("the flag {flag} is not both in session/index.rs and in FORMAT.md"));
    }
    report(&problems);
}

/// Returns the words that follow `prefix` in a source.
fn values_after<'a>(source: &'a str, prefix: &str) -> Vec<&'a str> {
    let is_end = |char: char| !char.is_alphanumeric() && char != '_';
    source.split(prefix).skip(1).filter_map(|rest| rest.split(is_end).next()).collect()
}
