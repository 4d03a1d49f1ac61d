//! `ollmctl sessions export`: writes chunk after chunk to stdout, or to a file that appears complete or not at all.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use ollm_protocol::content::ExportFormat;
use ollm_protocol::method::SessionExport;
use ollm_protocol::methods::session::{BranchFilter, SessionExportParams};
use ollm_protocol::{SessionId, sanitize};
use serde_json::json;
use tempfile::NamedTempFile;

use crate::args::session::OptionalSessionArg;
use crate::args::{wire_enum, wire_enum_with_alias};
use crate::command_context::CommandContext;
use crate::command_error::{CommandError, CommandResult};
use crate::render::escaped_json;
use crate::render::progress::ProgressMeter;
use crate::render::units::{bytes, counted};

const FORMAT_HELP: [&str; 4] = [
    "The session document",
    "Every record; an import restores the same session",
    "For people",
    "For a browser",
];

/// Write a session to a file or to stdout.
#[derive(Debug, Args)]
#[command(after_help = "\
A file appears complete or not at all, and an existing one is replaced only with --force. Its format follows its extension unless --format is given.
With --json, prints a report of the written file; without a file, prints the export itself as json or jsonl.

Examples:
  ollmctl sessions export last --output talk.html
  ollmctl sessions export last --output talk.md
  ollmctl sessions export last --format jsonl > talk.jsonl")]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    session: OptionalSessionArg,
    /// The format [default: by the extension of the file, else markdown].
    #[arg(long, value_parser = wire_enum_with_alias::<ExportFormat>(&FORMAT_HELP, ("md", "markdown")))]
    format: Option<ExportFormat>,
    /// The branches to write [default: all for json and jsonl, else active].
    #[arg(long, value_parser = wire_enum::<BranchFilter>(&["All branches", "The active branch"]))]
    branch: Option<BranchFilter>,
    /// The file [default: stdout].
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace a file that exists.
    #[arg(long, short, requires = "output")]
    force: bool,
}

impl ExportArgs {
    /// Returns the output file; `None` for stdout.
    fn file(&self) -> Option<&Path> {
        self.output.as_deref().filter(|path| *path != Path::new("-"))
    }
}

pub(super) fn run(args: &ExportArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    let format = format(args, ctx.json())?;
    let session_id = args.session.id_or_current("sessions export", ctx)?;
    let Some(path) = args.file() else {
        return to_stdout(session_id, (format, args.branch), ctx);
    };
    let failed = |source| CommandError::File { action: "write", path: path.to_owned(), source };
    if path.metadata().is_ok_and(|found| !found.is_file()) {
        let problem = format!("{} is not a regular file", path.display());
        let command = format!("ollmctl sessions export{} > FILE", args.session.typed());
        return Err(CommandError::usage(problem, &command));
    }
    let exists = || {
        let problem = format!("{} exists already", path.display());
        CommandError::usage(problem, "the same command with --force")
    };
    if path.symlink_metadata().is_ok() && !args.force {
        return Err(exists());
    }
    // A link keeps leading to the file.
    let path = &std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    // In the same directory, because a rename is atomic only within one file system.
    let mut file = BufWriter::new(temporary_file(&directory)?);
    let mut size = 0;
    let records = export(session_id, (format, args.branch), ctx, |_, data| {
        size += data.len() as u64;
        file.write_all(data.as_bytes()).map_err(failed)
    })?;
    let file = file.into_inner().map_err(|error| failed(error.into_error()))?;
    file.as_file().sync_all().map_err(failed)?;
    let persisted = if args.force { file.persist(path) } else { file.persist_noclobber(path) };
    persisted.map_err(|error| match error.error.kind() {
        io::ErrorKind::AlreadyExists => exists(),
        _ => failed(error.error),
    })?;
    if ctx.json() {
        let path = path.to_string_lossy();
        return ctx.print_json(&json!({
            "sessionId": session_id, "path": path, "format": format,
            "sizeBytes": size, "records": records,
        }));
    }
    ctx.print_text(&format!(
        "exported {} to {} ({})\n",
        counted(records, "record"),
        sanitize::one_line(&path.to_string_lossy()),
        bytes(size)
    ))
}

fn temporary_file(directory: &Path) -> CommandResult<NamedTempFile> {
    NamedTempFile::new_in(directory).map_err(|source| {
        let path = directory.to_owned();
        if directory.exists() {
            CommandError::File { action: "write in", path, source }
        } else {
            CommandError::NoDirectory { path }
        }
    })
}

/// Writes the export to stdout: unchanged to a pipe or a file, sanitized to a terminal.
fn to_stdout(
    session_id: SessionId,
    (format, branch): (ExportFormat, Option<BranchFilter>),
    ctx: &mut CommandContext<'_>,
) -> CommandResult {
    let for_terminal = ctx.terminal.out_is_terminal();
    export(session_id, (format, branch), ctx, |ctx, data| {
        let safe = match (for_terminal, format) {
            (false, _) => None,
            (true, ExportFormat::Json | ExportFormat::Jsonl) => Some(escaped_json(data)),
            (true, ExportFormat::Markdown | ExportFormat::Html) => Some(sanitize::text(data)),
        };
        Ok(ctx.terminal.print_raw(safe.as_deref().unwrap_or(data))?)
    })?;
    Ok(())
}

/// Requests the export and passes each chunk to `write`; returns the number of records.
fn export(
    session_id: SessionId,
    (format, branch): (ExportFormat, Option<BranchFilter>),
    ctx: &mut CommandContext<'_>,
    mut write: impl FnMut(&mut CommandContext<'_>, &str) -> CommandResult,
) -> CommandResult<u64> {
    let mut progress = ProgressMeter::records("exporting");
    let mut params = SessionExportParams { session_id, format, branch, cursor: None };
    loop {
        let chunk = ctx.call::<SessionExport>(&params)?.value;
        write(ctx, &chunk.data)?;
        progress.set(chunk.done, chunk.total);
        match chunk.next_cursor {
            None => return Ok(chunk.done),
            cursor => params.cursor = cursor,
        }
    }
}

/// Returns the requested format. On stdout with `--json` it must be JSON.
fn format(args: &ExportArgs, json: bool) -> CommandResult<ExportFormat> {
    if args.file().is_some() || !json {
        return args.format.map_or_else(|| format_of_file(args), Ok);
    }
    match args.format {
        None => Ok(ExportFormat::Json),
        Some(format @ (ExportFormat::Json | ExportFormat::Jsonl)) => Ok(format),
        Some(ExportFormat::Markdown | ExportFormat::Html) => Err(CommandError::usage(
            "--json makes stdout JSON, and this format is not JSON",
            &format!("ollmctl sessions export{} --json --output FILE", args.session.typed()),
        )),
    }
}

/// Returns the format for the extension of the output file.
fn format_of_file(args: &ExportArgs) -> CommandResult<ExportFormat> {
    let Some(path) = args.file() else { return Ok(ExportFormat::Markdown) };
    let extension = path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
    match extension.as_deref() {
        Some("json") => Ok(ExportFormat::Json),
        Some("jsonl" | "ndjson") => Ok(ExportFormat::Jsonl),
        Some("md" | "markdown") => Ok(ExportFormat::Markdown),
        Some("html" | "htm") => Ok(ExportFormat::Html),
        _ => {
            let (session, path) = (args.session.typed(), path.display());
            Err(CommandError::usage(
                format!("{path} has no known extension (.json, .jsonl, .md or .html)"),
                &format!("ollmctl sessions export{session} --format md --output {path}"),
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{SESSION_ID, run_against};

    #[test]
    fn missing_directory_is_named() {
        let scratch = tempfile::tempdir().unwrap();
        let missing = scratch.path().join("no/such");
        let error = temporary_file(&missing).unwrap_err();
        assert!(
            matches!(&error, CommandError::NoDirectory { path } if *path == missing),
            "{error}"
        );
        assert!(temporary_file(scratch.path()).is_ok());
    }

    fn args(format: Option<ExportFormat>, output: Option<&str>) -> ExportArgs {
        ExportArgs {
            session: OptionalSessionArg::default(),
            format,
            branch: None,
            output: output.map(PathBuf::from),
            force: false,
        }
    }

    #[test]
    fn with_json_flag_stdout_has_a_json_format() {
        let check = |given, output: Option<&str>, expect: Option<ExportFormat>| {
            let args = args(given, output);
            assert_eq!(format(&args, true).ok(), expect, "{args:?}");
        };
        check(None, None, Some(ExportFormat::Json));
        check(None, Some("-"), Some(ExportFormat::Json));
        check(Some(ExportFormat::Jsonl), None, Some(ExportFormat::Jsonl));
        check(Some(ExportFormat::Markdown), None, None);
        check(Some(ExportFormat::Html), Some("-"), None);
        check(Some(ExportFormat::Html), Some("a.html"), Some(ExportFormat::Html));
        check(None, Some("a.md"), Some(ExportFormat::Markdown));
    }

    #[test]
    fn format_follows_the_extension() {
        let check = |output: Option<&str>, expect: Option<ExportFormat>| {
            assert_eq!(format_of_file(&args(None, output)).ok(), expect, "{output:?}");
        };
        check(Some("a.json"), Some(ExportFormat::Json));
        check(Some("a.b/c.JSONL"), Some(ExportFormat::Jsonl));
        check(Some("a.md"), Some(ExportFormat::Markdown));
        check(Some("a.htm"), Some(ExportFormat::Html));
        check(Some("-"), Some(ExportFormat::Markdown));
        check(Some("a.txt"), None);
        check(Some("json"), None);
        check(None, Some(ExportFormat::Markdown));
        let text = format_of_file(&args(None, Some("a.txt"))).unwrap_err().to_text();
        assert!(text.contains(".json, .jsonl, .md or .html"), "{text}");
        assert!(text.contains("export --format md --output a.txt"), "{text}");
    }

    #[test]
    fn file_is_replaced_only_by_a_complete_export() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("talk.md");
        let file = path.to_str().unwrap().to_owned();
        let export = |fails: bool, flags: &[&str]| {
            let line = ["sessions", "export", SESSION_ID, "--output", &file];
            let line: Vec<&str> = line.iter().chain(flags).copied().collect();
            run_against(&line, move |_, params| {
                let chunk = |data: &str, next: Option<&str>| json!({"data": data, "nextCursor": next, "done": 1, "total": 1});
                match params["cursor"].as_str() {
                    None => Some(chunk("one ", Some("c"))),
                    Some(_) if fails => None,
                    Some(_) => Some(chunk("two", None)),
                }
            })
        };
        assert!(export(true, &[]).error.is_some());
        assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
        let done = export(false, &[]);
        assert!(done.error.is_none());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one two");
        assert_eq!(done.calls[0].1, json!({"sessionId": SESSION_ID, "format": "markdown"}));
        assert!(export(true, &["--force"]).error.is_some());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one two");
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the test writes a file as its user does")]
    fn existing_file_is_replaced_only_by_force() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("talk.md");
        let link = scratch.path().join("link.md");
        std::fs::write(&path, "mine").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let export = |file: &Path, flags: &[&str]| {
            let line = ["sessions", "export", SESSION_ID, "--output", file.to_str().unwrap()];
            let line: Vec<&str> = line.iter().chain(flags).copied().collect();
            let chunk = json!({"data": "export", "nextCursor": null, "done": 1, "total": 1});
            run_against(&line, move |_, _| Some(chunk.clone()))
        };
        for file in [&path, &link] {
            let refused = export(file, &[]);
            assert!(refused.calls.is_empty(), "{:?}", refused.calls);
            let text = refused.error.unwrap().to_text();
            assert!(text.contains("exists already") && text.contains("--force"), "{text}");
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
        assert!(export(&link, &["--force"]).error.is_none());
        assert!(link.symlink_metadata().unwrap().is_symlink());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "export");
        let device = export(Path::new("/dev/null"), &["--format", "md", "--force"]);
        assert!(device.error.unwrap().to_string().contains("is not a regular file"));
    }
}
