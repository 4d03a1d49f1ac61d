//! `ollmctl service logs`: the log of the daemon, from the journal of systemd or from the files in the home.
//!
//! The files have every line of the daemon; the journal has these and those of systemd about it, such as the end of a process.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ollm_protocol::sanitize;
use serde_json::json;

use super::ServiceLogsArgs;
use crate::command_context::CommandContext;
use crate::command_error::{CommandError, CommandResult};
use crate::regular_file;
use crate::service::{InstalledService, ManagerKind};

/// The bytes of a file that are searched for its last lines: some ten thousand lines.
const TAIL_BYTES: u64 = 4 << 20;
/// The pause between two looks for new lines.
const FOLLOW_PAUSE: Duration = Duration::from_millis(200);
/// The beginning of the names of the files; the date follows.
const FILE_PREFIX: &str = "ollmd.log";

pub(super) fn run(args: &ServiceLogsArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    if let Some(mut journal) = journal(args, ctx) {
        ctx.terminal.flush()?;
        let error = journal.exec();
        let path = PathBuf::from(journal.get_program());
        return Err(CommandError::File { action: "run", path, source: error });
    }
    let directory = ctx.connector().address().home().join("logs");
    let mut follower = LogFollower::open(&directory, args.lines as usize)?;
    loop {
        let lines = follower.new_lines()?;
        for line in &lines {
            print_line(line, ctx)?;
        }
        if !args.follow {
            return Ok(());
        }
        if lines.is_empty() {
            std::thread::sleep(FOLLOW_PAUSE);
        }
        ctx.terminal.flush()?;
    }
}

/// Returns the command that prints the journal of the service; `None` if there is none, or if it has no line of it.
fn journal(args: &ServiceLogsArgs, ctx: &CommandContext<'_>) -> Option<Command> {
    let service = InstalledService::find(ctx.connector().address(), ctx.environment)?;
    let manager = service.manager();
    if manager.kind != ManagerKind::Systemd {
        return None;
    }
    let program = ctx.environment.find_program("journalctl")?;
    let words = ["--user", "--unit=ollmd.service", "--no-pager", "--quiet"];
    let newest = manager.run_other(&program, &[&words[..], &["--lines=1"]].concat()).ok()?;
    if newest.trim().is_empty() {
        return None;
    }
    let mut command = Command::new(program);
    command.args(words).arg(format!("--lines={}", args.lines));
    if args.follow {
        command.arg("--follow");
    }
    if ctx.json() {
        command.arg("--output=json");
    }
    Some(command)
}

fn print_line(line: &str, ctx: &mut CommandContext<'_>) -> CommandResult {
    let line = sanitize::one_line(line);
    if ctx.json() {
        return Ok(ctx.terminal.print_raw(format!("{}\n", json!({ "line": line })))?);
    }
    ctx.print_text(&format!("{line}\n"))
}

/// The files of the log: their last lines, then the lines that are added.
struct LogFollower {
    directory: PathBuf,
    /// Lines that were read and not returned yet.
    ready: VecDeque<String>,
    /// The newest file and its end without a line break.
    current: Option<(PathBuf, File)>,
    partial: Vec<u8>,
}

impl LogFollower {
    /// Opens the newest file and reads the last lines, from older files too.
    ///
    /// **Errors**: there is no file.
    fn open(directory: &Path, n_lines: usize) -> CommandResult<Self> {
        let files = log_files(directory)?;
        let mut ready = VecDeque::new();
        let (mut current, mut partial) = (None, Vec::new());
        for path in files.iter().rev() {
            let fail = |source| CommandError::File { action: "read", path: path.clone(), source };
            let mut file = open_file(path).map_err(fail)?;
            let (lines, end) = tail(&mut file).map_err(fail)?;
            if current.is_none() {
                (current, partial) = (Some((path.clone(), file)), end);
            }
            let missing = n_lines.saturating_sub(ready.len());
            lines.into_iter().rev().take(missing).for_each(|line| ready.push_front(line));
            if ready.len() >= n_lines {
                break;
            }
        }
        Ok(Self { directory: directory.to_owned(), ready, current, partial })
    }

    /// Returns the lines that were added since the last call; opens the file of the next day.
    fn new_lines(&mut self) -> CommandResult<Vec<String>> {
        let mut lines: Vec<String> = self.ready.drain(..).collect();
        let Some((path, file)) = &mut self.current else { return Ok(lines) };
        let fail = |source| CommandError::File { action: "read", path: path.clone(), source };
        file.read_to_end(&mut self.partial).map_err(fail)?;
        lines.extend(take_lines(&mut self.partial));
        let newest = log_files(&self.directory)?.pop().filter(|newest| newest != path);
        if let Some(newest) = newest {
            let opened = open_file(&newest);
            let fail = |source| CommandError::File { action: "read", path: newest.clone(), source };
            // What follows of the old file was written before the new one was created.
            file.read_to_end(&mut self.partial).map_err(fail)?;
            lines.extend(take_lines(&mut self.partial));
            self.current = Some((newest.clone(), opened.map_err(fail)?));
        }
        Ok(lines)
    }
}

/// Lists the files of the log, the oldest first: their names end with the date.
fn log_files(directory: &Path) -> CommandResult<Vec<PathBuf>> {
    let fail = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => no_log(directory),
        _ => CommandError::File { action: "list", path: directory.to_owned(), source },
    };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        if entry.file_name().as_encoded_bytes().starts_with(FILE_PREFIX.as_bytes()) {
            files.push(entry.path());
        }
    }
    files.sort_unstable();
    if files.is_empty() { Err(no_log(directory)) } else { Ok(files) }
}

fn no_log(directory: &Path) -> CommandError {
    let directory = sanitize::one_line(&directory.to_string_lossy());
    CommandError::not_found(format!("there is no log in {directory}"), "ollmctl daemon start")
}

fn open_file(path: &Path) -> io::Result<File> {
    regular_file::open(OpenOptions::new().read(true), path)
}

/// Reads the last lines of a file, and its end without a line break; leaves the position there.
fn tail(file: &mut File) -> io::Result<(Vec<String>, Vec<u8>)> {
    let length = file.metadata()?.len();
    let start = length.saturating_sub(TAIL_BYTES);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    if start > 0 {
        // The first line is cut.
        let first = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |at| at + 1);
        bytes.drain(..first);
    }
    let lines = take_lines(&mut bytes);
    Ok((lines, bytes))
}

/// Takes the complete lines out of some bytes.
fn take_lines(bytes: &mut Vec<u8>) -> Vec<String> {
    let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let taken: Vec<u8> = bytes.drain(..end).collect();
    String::from_utf8_lossy(&taken).lines().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn last_lines_span_files_and_new_lines_follow_into_the_next_file() {
        let directory = tempfile::tempdir().unwrap();
        let append = |day: u32, text: &str| {
            let path = directory.path().join(format!("ollmd.log.2026-01-{day}"));
            let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
            file.write_all(text.as_bytes()).unwrap();
        };
        let open = |lines| LogFollower::open(directory.path(), lines);
        assert!(matches!(open(1), Err(CommandError::NotFound { .. })));
        append(10, "1\n2\n3\n");
        append(11, "4\nha");
        drop(File::create(directory.path().join("ollmd.stderr")).unwrap());
        let mut follower = open(3).unwrap();
        assert_eq!(follower.new_lines().unwrap(), ["2", "3", "4"]);
        append(11, "lf\n5\n");
        assert_eq!(follower.new_lines().unwrap(), ["half", "5"]);
        append(11, "6\n");
        append(12, "7\n");
        let mut lines = follower.new_lines().unwrap();
        lines.extend(follower.new_lines().unwrap());
        assert_eq!(lines, ["6", "7"]);
        assert_eq!(open(0).unwrap().new_lines().unwrap(), Vec::<String>::new());
        assert_eq!(open(99).unwrap().new_lines().unwrap().len(), 8);
    }
}
