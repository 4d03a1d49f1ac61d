//! Checks of the sources that the compiler does not make: sizes, module edges, and lists that must agree.

mod dependencies;
mod documents;
mod files;
mod modules;
mod services;

use std::path::{Path, PathBuf};

use crate::harness::files_under;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Returns every Rust file of the workspace.
fn sources() -> Vec<PathBuf> {
    let directories = ["protocol", "daemon", "client", "tests"];
    let files = directories.iter().flat_map(|name| files_under(&root().join(name)));
    // The build directory of the fuzz targets.
    let built = root().join("tests/fuzz/target");
    let files = files.filter(|path| !path.starts_with(&built));
    files.filter(|path| path.extension().is_some_and(|extension| extension == "rs")).collect()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Fails with all problems at once.
#[track_caller]
fn report(problems: &[String]) {
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
}

/// Names of the folders and files that contain only tests, checks for fuzzing, or benchmarks.
const TEST_NAMES: [&str; 6] = ["tests", "testing", "simulator", "fuzz_api", "fuzzing", "benches"];

/// Returns whether a file contains only tests, checks for fuzzing, or benchmarks.
fn is_test_file(path: &Path) -> bool {
    let names = path.strip_prefix(root()).unwrap().with_extension("");
    names.iter().any(|name| TEST_NAMES.iter().any(|test| name == *test))
}

/// Returns the code of a file up to its unit tests.
fn production_code(text: &str) -> &str {
    text.find("\n#[cfg(test)]\nmod ").map_or(text, |at| &text[..at])
}
