//! The dependencies: their licenses, and versions that are there twice.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

use super::{read, report, root};

/// The licenses that a dependency may have. All of them allow programs under MIT or Apache-2.0 that name their authors.
const LICENSES: [&str; 10] = [
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-3-Clause",
    "CC0-1.0",
    "ISC",
    "MIT",
    // Binds changes of its own files, which are used unchanged.
    "MPL-2.0",
    "Unicode-3.0",
    "Zlib",
];

/// Why packages of cryptography and of translated messages are there twice.
const AGE: &str =
    "age, in its newest version, needs older cryptography than the translation of its messages";

/// The packages of which `Cargo.lock` has several versions, and why. An entry goes when its reason has gone.
const DUPLICATES: [(&str, &str); 18] = [
    ("base64", AGE),
    ("block-buffer", AGE),
    ("chacha20", AGE),
    ("const-oid", AGE),
    ("cpufeatures", AGE),
    ("crypto-common", AGE),
    ("digest", AGE),
    ("getrandom", "ring needs 0.2 and the rand of jsonrpsee 0.3, both in their newest versions"),
    ("hybrid-array", AGE),
    ("r-efi", "belongs to the versions of getrandom, and is compiled for UEFI only"),
    ("rand", "jsonrpsee needs 0.9 in its newest version; proptest, in tests only, needs 0.10"),
    ("rand_chacha", AGE),
    ("rand_core", "belongs to the versions of rand"),
    ("sha2", AGE),
    ("syn", "macros of tracing, figment and pin-project still need 2; it is in no program"),
    ("thiserror", AGE),
    ("thiserror-impl", AGE),
    ("windows-sys", "ring needs 0.52, and it is compiled for Windows only"),
];

#[test]
fn dependencies_have_allowed_licenses() {
    let mut problems = Vec::new();
    for package in packages() {
        let name = package["name"].as_str().unwrap();
        match package["license"].as_str() {
            // Older manifests separate alternatives by a slash.
            Some(license) if is_allowed(&license.replace(" / ", "/").replace('/', " OR ")) => {}
            license => problems.push(format!("{name} has the license {license:?}")),
        }
    }
    report(&problems);
}

/// Returns the packages of this system's build, as cargo describes them.
fn packages() -> Vec<Value> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let run = |args: &[&str]| {
        let output = Command::new(&cargo).args(args).current_dir(root()).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "cargo {args:?} failed; try `cargo fetch`: {error}");
        String::from_utf8(output.stdout).unwrap()
    };
    let version = run(&["--version", "--verbose"]);
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
    // Packages of other systems were perhaps never downloaded.
    let metadata =
        ["metadata", "--format-version", "1", "--offline", "--locked", "--filter-platform", host];
    let mut metadata: Value = serde_json::from_str(&run(&metadata)).unwrap();
    let packages = metadata["packages"].as_array_mut().map(std::mem::take).unwrap();
    assert!(packages.len() > 100, "the dependencies are found");
    packages
}

/// Returns whether an SPDX expression leaves a choice of allowed licenses.
fn is_allowed(expression: &str) -> bool {
    let any = outside_parentheses(expression, " OR ");
    if any.len() > 1 {
        return any.into_iter().any(is_allowed);
    }
    let all = outside_parentheses(expression, " AND ");
    if all.len() > 1 {
        return all.into_iter().all(is_allowed);
    }
    match expression.strip_prefix('(').and_then(|inner| inner.strip_suffix(')')) {
        Some(inner) => is_allowed(inner),
        None => LICENSES.contains(&expression),
    }
}

/// Splits an expression at an operator, except within parentheses.
fn outside_parentheses<'a>(expression: &'a str, operator: &str) -> Vec<&'a str> {
    let mut parts = Vec::new();
    let mut start = 0;
    for (at, _) in expression.match_indices(operator) {
        let before = &expression[start..at];
        if before.matches('(').count() == before.matches(')').count() {
            parts.push(before);
            start = at + operator.len();
        }
    }
    parts.push(&expression[start..]);
    parts
}

#[test]
fn license_expressions_are_understood() {
    let allowed =
        ["MIT", "GPL-3.0 OR MIT", "(MIT OR GPL-3.0) AND Unicode-3.0", "Apache-2.0 AND ISC"];
    let refused = ["GPL-3.0", "MIT AND GPL-3.0", "(MIT OR ISC) AND GPL-3.0", ""];
    assert_eq!(allowed.map(is_allowed), [true; 4]);
    assert_eq!(refused.map(is_allowed), [false; 4]);
}

#[test]
fn dependencies_are_there_in_one_version() {
    let lock = read(&root().join("Cargo.lock"));
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in lock.split("[[package]]\n").skip(1) {
        let field = |name| package.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        versions.entry(field("name = ")).or_default().insert(field("version = "));
    }
    versions.retain(|_, versions| versions.len() > 1);
    let found: BTreeSet<&str> = versions.keys().map(|name| name.trim_matches('"')).collect();
    let known = BTreeSet::from(DUPLICATES.map(|(name, _)| name));
    let added =
        found.difference(&known).map(|name| format!("Cargo.lock has several versions of {name}"));
    let gone =
        known.difference(&found).map(|name| format!("{name} has one version: remove its entry"));
    report(&added.chain(gone).collect::<Vec<_>>());
}
