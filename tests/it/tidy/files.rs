//! Files and functions: none is forgotten or too long, modules have one style, and each file says what it owns.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::{is_test_file, production_code, read, report, root, sources};

/// The lines of a file with its unit tests. Most files have 150 to 600.
const MAX_FILE_LINES: usize = 900;
/// The lines of a function.
const MAX_FUNCTION_LINES: usize = 80;

#[test]
fn every_source_file_belongs_to_a_module() {
    let mut problems = Vec::new();
    for path in sources() {
        let stem = path.file_stem().unwrap().to_str().unwrap();
        let directory = path.parent().unwrap();
        let programs = ["benches", "examples", "fuzz/targets"];
        let is_program = programs.iter().any(|programs| directory.ends_with(programs));
        let is_crate_root = stem == "main" || stem == "lib" || is_program;
        if is_crate_root {
            continue;
        }
        let (name, parent) = match stem {
            "mod" => {
                let name = directory.file_name().unwrap().to_str().unwrap();
                (name, directory.parent().unwrap())
            }
            stem => (stem, directory),
        };
        // Every benchmark program is a crate root, whatever its name.
        let parents = if parent.ends_with("benches") {
            let entries = std::fs::read_dir(parent).unwrap().map(|entry| entry.unwrap().path());
            entries.filter(|path| path.is_file()).collect()
        } else {
            ["mod.rs", "lib.rs", "main.rs"].map(|file| parent.join(file)).to_vec()
        };
        let declares = |line: &str| {
            let declaration = line.trim().trim_end_matches(';').rsplit_once("mod ");
            declaration.is_some_and(|(before, declared)| {
                declared == name && (before.is_empty() || before.starts_with("pub"))
            })
        };
        let mut parents = parents.iter().filter(|parent| parent.is_file() && **parent != path);
        if !parents.any(|parent| read(parent).lines().any(declares)) {
            problems.push(format!("{} belongs to no module", path.display()));
        }
    }
    report(&problems);
}

/// The only files that open files by their path, besides the exceptions in [`OPEN_ELSEWHERE`].
const OPENERS: [&str; 2] = ["daemon/src/fsutil/mod.rs", "client/src/regular_file.rs"];
/// Code that opens a file that no person or program can replace by a pipe.
const OPEN_ELSEWHERE: [&str; 1] = ["std::fs::read_to_string(\"/proc/self/status\")"];

#[test]
fn files_are_opened_in_one_place_of_each_crate() {
    let mut problems = Vec::new();
    for path in sources() {
        let name = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
        if name.starts_with("tests/") || OPENERS.contains(&&*name) || is_test_file(&path) {
            continue;
        }
        let text = read(&path);
        for line in production_code(&text).lines() {
            // `DiskFile` opens by the function of `fsutil`.
            let opens = [
                " File::open(",
                "(File::open(",
                ":File::open(",
                "fs::read(",
                "fs::read_to_string(",
            ];
            let is_allowed = OPEN_ELSEWHERE.iter().any(|code| line.contains(code));
            if !is_allowed && opens.iter().any(|call| line.contains(call)) {
                problems.push(format!("{name}: {}", line.trim()));
            }
        }
    }
    report(&problems);
}

#[test]
fn module_with_several_files_is_a_folder_with_mod_rs() {
    let files = sources();
    let has_folder = |path: &&PathBuf| {
        let folder = path.with_extension("");
        files.iter().any(|other| other.starts_with(&folder))
    };
    let problems = files.iter().filter(has_folder);
    let problems: Vec<String> =
        problems.map(|path| format!("{} has a folder beside it", path.display())).collect();
    report(&problems);
}

#[test]
fn files_and_functions_have_limited_size_and_files_have_docs() {
    let mut problems = Vec::new();
    for path in sources() {
        let text = read(&path);
        let n_lines = text.lines().count();
        if n_lines > MAX_FILE_LINES {
            problems.push(format!("{} has {n_lines} lines", path.display()));
        }
        let is_unit_test = is_test_file(&path) && path.iter().any(|name| name == "src");
        if !is_unit_test && !text.starts_with("//!") {
            problems.push(format!("{} has no `//!` docs", path.display()));
        }
        for (at, n_lines) in functions(&text) {
            if n_lines > MAX_FUNCTION_LINES {
                problems.push(format!("{}:{at}: a function of {n_lines} lines", path.display()));
            }
        }
    }
    report(&problems);
}

/// Returns the line number of each function and the lines between its braces. Relies on rustfmt, which closes a
/// function at the column of its first line.
fn functions(text: &str) -> Vec<(usize, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut functions = Vec::new();
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
        if let Some(n_lines) = lines[open + 1..].iter().position(|line| *line == close) {
            functions.push((at + 1, n_lines));
        }
    }
    functions
}

#[test]
fn every_type_name_is_used_once() {
    let keywords = ["struct ", "enum ", "trait ", "type ", "union "];
    let mut definitions: BTreeMap<String, PathBuf> = BTreeMap::new();
    let mut problems = Vec::new();
    for path in sources().into_iter().filter(|path| !is_test_file(path)) {
        for line in production_code(&read(&path)).lines() {
            let item = match line.strip_prefix("pub") {
                Some(rest) if rest.starts_with('(') => {
                    rest.split_once(") ").map_or("", |(_, item)| item)
                }
                Some(rest) => rest.trim_start(),
                None => line,
            };
            let name = keywords.iter().find_map(|keyword| item.strip_prefix(keyword));
            let Some(name) = name else { continue };
            let end = name.find(|char: char| !char.is_alphanumeric()).unwrap_or(name.len());
            if let Some(other) = definitions.insert(name[..end].to_owned(), path.clone()) {
                let (name, path) = (&name[..end], path.display());
                problems.push(format!("`{name}` is defined in {path} and in {}", other.display()));
            }
        }
    }
    assert!(definitions.len() > 500, "only {} types were found", definitions.len());
    report(&problems);
}

/// A type without the attribute would send `null` for an absent value, which the protocol omits.
#[test]
fn types_of_the_protocol_with_optional_fields_omit_absent_values() {
    let mut problems = Vec::new();
    let mut n_types = 0;
    for path in sources().into_iter().filter(|path| path.starts_with(root().join("protocol"))) {
        let text = read(&path);
        let mut before = "";
        for part in production_code(&text).split("#[derive(") {
            let derives = part.lines().next().is_some_and(|list| list.contains("Serialize"));
            let mut fields = part.lines().take_while(|line| line.trim() != "}");
            if derives && !before.is_empty() && fields.any(|line| line.contains(": Option<")) {
                n_types += 1;
                if !before.trim_end().ends_with("#[skip_serializing_none]") {
                    let name = part.lines().find(|line| line.ends_with('{')).unwrap_or(part);
                    problems.push(format!("{}: `{}`", path.display(), name.trim()));
                }
            }
            before = part;
        }
    }
    assert!(n_types > 100, "only {n_types} types were found");
    report(&problems);
}
