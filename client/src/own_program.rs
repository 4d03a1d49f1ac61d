//! The program of this process: started again, or named for another program.
//!
//! An update replaces the file of a program that runs. On Linux the path of such a process ends with ` (deleted)` then; the
//! new program has the path without this mark.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::address::Environment;
use crate::command_error::{CommandError, CommandResult};

const NAME: &str = "ollmctl";
/// The link of Linux to the program of a process. It leads to a file that was replaced or removed, too.
const RUNNING: &str = "/proc/self/exe";

/// Returns a command that starts the program of this process now. On Linux it is the same version after an update too, so it
/// takes the arguments that this version knows. The name of the program in it means another program in another process: a
/// name that is written down is that of [`installed`].
pub(crate) fn command() -> io::Result<Command> {
    let running = Path::new(RUNNING);
    let program = if running.exists() { running.to_owned() } else { path()? };
    let mut command = Command::new(program);
    // Error messages and lists of processes have the name of the program.
    command.arg0(NAME);
    Ok(command)
}

/// Returns the path under which others start this program later: from a file of settings, or from another program. It
/// outlives updates: the path is the one in `PATH` if that leads here, because some installations have a directory for each
/// version.
///
/// **Errors**: the path is unknown or not UTF-8.
pub(crate) fn installed(environment: &Environment) -> CommandResult<String> {
    let own = path().map_err(|source| CommandError::File {
        action: "find",
        path: NAME.into(),
        source,
    })?;
    let real = |path: &Path| std::fs::canonicalize(path).ok();
    let is_own = |found: &PathBuf| found.is_absolute() && real(found) == real(&own);
    let in_path = environment.find_program(NAME).filter(is_own);
    let program = in_path.unwrap_or(own).into_os_string().into_string();
    program.map_err(|path| CommandError::PathNotUtf8 { path: path.into() })
}

/// Returns the path of another program of the same installation, which is in the same directory. It need not exist.
pub(crate) fn beside(name: &str) -> Option<PathBuf> {
    path().ok().map(|own| own.with_file_name(name))
}

/// Returns the path of this program, or of the one that has replaced it.
fn path() -> io::Result<PathBuf> {
    std::env::current_exe().map(without_mark)
}

fn without_mark(path: PathBuf) -> PathBuf {
    let unmarked = path.as_os_str().as_bytes().strip_suffix(b" (deleted)");
    match unmarked.filter(|_| !path.exists()) {
        Some(unmarked) => PathBuf::from(OsStr::from_bytes(unmarked)),
        None => path,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn path_is_without_the_mark_of_an_update() {
        let scratch = tempfile::tempdir().unwrap();
        let check = |name: &str, expect: &str| {
            assert_eq!(without_mark(scratch.path().join(name)), scratch.path().join(expect));
        };
        check("ollmctl", "ollmctl");
        check("ollmctl (deleted)", "ollmctl");
        let marked = scratch.path().join("other (deleted)");
        drop(std::fs::File::create(marked).unwrap());
        check("other (deleted)", "other (deleted)");
    }

    #[test]
    fn installed_name_is_the_one_in_path_if_it_leads_here() {
        let scratch = tempfile::tempdir().unwrap();
        let search_path = Some(scratch.path().as_os_str().to_owned());
        let environment = Environment { search_path, ..Environment::default() };
        let own = std::env::current_exe().unwrap();
        assert_eq!(installed(&environment).unwrap(), own.to_str().unwrap());
        let link = scratch.path().join(NAME);
        symlink(&own, &link).unwrap();
        assert_eq!(installed(&environment).unwrap(), link.to_str().unwrap());
        assert_eq!(beside("ollmd").unwrap(), own.with_file_name("ollmd"));
    }
}
