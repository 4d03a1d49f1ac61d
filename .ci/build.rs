//! Gives both programs the text of `--version`: version, commit and profile; and links `ollmctl` for short calls.
//!
//! Reads the files of git, because a build should not need its program. Without them, as in an archive of the sources, no
//! commit is named. Runs again when a commit is made or another one checked out; only the two small crates of the programs
//! are compiled again then.

use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    watch(Path::new(".ci/build.rs"));
    let variable = |name: &str| env::var(name).unwrap_or_default();
    let build: Vec<String> = commit().into_iter().chain([variable("PROFILE")]).collect();
    let version = variable("CARGO_PKG_VERSION");
    println!("cargo::rustc-env=OLLM_BUILD={version} ({})", build.join(", "));
    // The relocations of a program that can be loaded anywhere are a third of the page faults of a short call. The daemon,
    // which lives long and listens, stays one that can.
    let is_static = variable("CARGO_CFG_TARGET_FEATURE").contains("crt-static");
    let target = (variable("CARGO_CFG_TARGET_OS"), variable("CARGO_CFG_TARGET_ENV"));
    if (target.0.as_str(), target.1.as_str()) == ("linux", "gnu") && !is_static {
        println!("cargo::rustc-link-arg-bin=ollmctl=-no-pie");
        // The compiler's support for unwinding, which is a shared library to load otherwise.
        println!("cargo::rustc-link-lib=static:-bundle=gcc_eh");
    }
}

/// Returns the beginning of the id of the commit that is checked out.
fn commit() -> Option<String> {
    let git = git_dir(Path::new("."))?;
    let head = read(&git.join("HEAD"))?;
    let id = match head.strip_prefix("ref: ") {
        None => head,
        Some(branch) => {
            // The branches of a work tree are in the directory of the repository.
            let common =
                fs::read_to_string(git.join("commondir")).map(|path| git.join(path.trim()));
            let common = common.unwrap_or(git);
            read(&common.join(branch)).or_else(|| packed(&common, branch))?
        }
    };
    let is_id = id.len() >= 40 && id.chars().all(|char| char.is_ascii_hexdigit());
    is_id.then(|| id[..12].to_owned())
}

/// Returns the directory of git, to which the `.git` of a work tree points.
fn git_dir(root: &Path) -> Option<PathBuf> {
    let git = root.join(".git");
    if git.is_dir() {
        return Some(git);
    }
    let text = fs::read_to_string(git).ok()?;
    Some(root.join(text.trim().strip_prefix("gitdir: ")?))
}

/// Finds a branch that has no file of its own. A commit makes one, so the directory is watched.
fn packed(common: &Path, branch: &str) -> Option<String> {
    let file = common.join(branch);
    watch(file.parent().filter(|directory| directory.is_dir()).unwrap_or(common));
    let packed = read(&common.join("packed-refs"))?;
    let lines = packed.lines().filter_map(|line| line.split_once(' '));
    lines.filter(|(_, name)| *name == branch).map(|(id, _)| id.to_owned()).next()
}

/// Reads a file, and runs this script again when it changes.
fn read(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    watch(path);
    Some(text.trim().to_owned())
}

fn watch(path: &Path) {
    println!("cargo::rerun-if-changed={}", path.display());
}
