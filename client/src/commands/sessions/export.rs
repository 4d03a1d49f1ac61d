//! `ollmctl sessions export`: chunk after chunk, to a file that appears complete or not at all.
//!
//! With `--json` stdout has JSON: what was written, or without a file the export itself, in a form that is JSON.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use ollm_protocol::SessionId;
use ollm_protocol::content::ExportFormat;
use ollm_protocol::method::SessionExport;
use ollm_protocol::methods::session::SessionExportParams;
use ollm_protocol::sanitize;
use serde_json::json;
use tempfile::NamedTempFile;

use super::super::{CommandError, Cx};
use crate::cli::{ExportArgs, ExportForm};
use crate::render::json;
use crate::render::number::{bytes, counted};
use crate::render::progress::Progress;

/// What was written.
struct Written {
    bytes: u64,
    records: u64,
}

pub(super) fn run(args: &ExportArgs, cx: &mut Cx<'_>) -> Result<(), CommandError> {
    let format = form(args, cx.json())?;
    let session_id = cx.session(&args.id)?;
    let Some(path) = args.output.as_deref().filter(|path| *path != Path::new("-")) else {
        return to_stdout(session_id, format, cx);
    };
    let failed = |source| CommandError::File { action: "write", path: path.to_owned(), source };
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    // Beside the target, because only within one file system it can take the target's place at once.
    let mut file = BufWriter::new(temporary(&directory)?);
    let written = chunks(session_id, format.into(), cx, |_, data| {
        file.write_all(data.as_bytes()).map_err(failed)
    })?;
    let file = file.into_inner().map_err(|error| failed(error.into_error()))?;
    file.as_file().sync_all().map_err(failed)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    if cx.json() {
        let path = path.to_string_lossy();
        return cx.print_json(&json!({
            "sessionId": session_id, "path": path, "format": ExportFormat::from(format),
            "sizeBytes": written.bytes, "records": written.records,
        }));
    }
    cx.print_text(&format!(
        "exported {} to {} ({})\n",
        counted(written.records, "record"),
        sanitize::one_line(&path.to_string_lossy()),
        bytes(written.bytes)
    ))
}

fn temporary(directory: &Path) -> Result<NamedTempFile, CommandError> {
    NamedTempFile::new_in(directory).map_err(|source| {
        let path = directory.to_owned();
        if directory.exists() {
            CommandError::File { action: "write in", path, source }
        } else {
            CommandError::NoDirectory { path }
        }
    })
}

/// Writes to stdout: as it is for a pipe or a file, harmless for a terminal.
fn to_stdout(
    session_id: SessionId,
    format: ExportForm,
    cx: &mut Cx<'_>,
) -> Result<(), CommandError> {
    let for_people = cx.terminal.is_interactive();
    chunks(session_id, format.into(), cx, |cx, data| {
        let safe = match (for_people, format) {
            (false, _) => None,
            (true, ExportForm::Json | ExportForm::Jsonl) => Some(json::escaped(data)),
            (true, ExportForm::Markdown | ExportForm::Html) => Some(sanitize::text(data)),
        };
        cx.terminal.print_raw(safe.as_deref().unwrap_or(data)).map_err(CommandError::Output)
    })?;
    Ok(())
}

fn chunks(
    session_id: SessionId,
    format: ExportFormat,
    cx: &mut Cx<'_>,
    mut write: impl FnMut(&mut Cx<'_>, &str) -> Result<(), CommandError>,
) -> Result<Written, CommandError> {
    let mut progress = Progress::records("exporting");
    let mut params = SessionExportParams { session_id, format, cursor: None };
    let mut written = Written { bytes: 0, records: 0 };
    loop {
        let chunk = cx.call::<SessionExport>(&params)?.value;
        write(cx, &chunk.data)?;
        written.bytes += chunk.data.len() as u64;
        written.records = chunk.done_records;
        progress.set(chunk.done_records, chunk.total_records);
        match chunk.next_cursor {
            None => return Ok(written),
            cursor => params.cursor = cursor,
        }
    }
}

/// The form that was asked for, in words or by the ending of the file.
fn form(args: &ExportArgs, json: bool) -> Result<ExportForm, CommandError> {
    let to_file = args.output.as_deref().is_some_and(|path| path != Path::new("-"));
    if to_file || !json {
        return args.format.map_or_else(|| by_ending(args.output.as_deref(), &args.id), Ok);
    }
    match args.format {
        None => Ok(ExportForm::Json),
        Some(form @ (ExportForm::Json | ExportForm::Jsonl)) => Ok(form),
        Some(ExportForm::Markdown | ExportForm::Html) => Err(CommandError::usage(
            "--json is about what stdout has, and this export there would not be JSON",
            &format!("ollmctl sessions export {} --json --output FILE", args.id),
        )),
    }
}

/// The form that the ending of a file means.
fn by_ending(path: Option<&Path>, session: &str) -> Result<ExportForm, CommandError> {
    let Some(path) = path.filter(|path| *path != Path::new("-")) else {
        return Ok(ExportForm::Markdown);
    };
    let ending = path.extension().map(|ending| ending.to_string_lossy().to_lowercase());
    match ending.as_deref() {
        Some("json") => Ok(ExportForm::Json),
        Some("jsonl" | "ndjson") => Ok(ExportForm::Jsonl),
        Some("md" | "markdown") => Ok(ExportForm::Markdown),
        Some("html" | "htm") => Ok(ExportForm::Html),
        _ => Err(CommandError::usage(
            format!(
                "the ending of {} means no form; .json, .jsonl, .md and .html do",
                path.display()
            ),
            &format!("ollmctl sessions export {session} --format md --output {}", path.display()),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_directory_is_named() {
        let scratch = tempfile::tempdir().unwrap();
        let missing = scratch.path().join("no/such");
        let error = temporary(&missing).unwrap_err();
        assert!(
            matches!(&error, CommandError::NoDirectory { path } if *path == missing),
            "{error}"
        );
        assert!(temporary(scratch.path()).is_ok());
    }

    #[test]
    fn json_on_stdout_is_an_export_that_is_json() {
        let check = |format, output: Option<&str>, expect: Option<ExportForm>| {
            let output = output.map(PathBuf::from);
            let args = ExportArgs { id: "last".to_owned(), format, output };
            assert_eq!(form(&args, true).ok(), expect, "{args:?}");
        };
        check(None, None, Some(ExportForm::Json));
        check(None, Some("-"), Some(ExportForm::Json));
        check(Some(ExportForm::Jsonl), None, Some(ExportForm::Jsonl));
        check(Some(ExportForm::Markdown), None, None);
        check(Some(ExportForm::Html), Some("-"), None);
        check(Some(ExportForm::Html), Some("a.html"), Some(ExportForm::Html));
        check(None, Some("a.md"), Some(ExportForm::Markdown));
    }

    #[test]
    fn the_ending_means_the_form() {
        let check = |path: &str, expect: Option<ExportForm>| {
            assert_eq!(by_ending(Some(Path::new(path)), "last").ok(), expect, "{path}");
        };
        check("a.json", Some(ExportForm::Json));
        check("a.b/c.JSONL", Some(ExportForm::Jsonl));
        check("a.md", Some(ExportForm::Markdown));
        check("a.htm", Some(ExportForm::Html));
        check("-", Some(ExportForm::Markdown));
        check("a.txt", None);
        check("json", None);
        let told = by_ending(Some(Path::new("a.txt")), "0192").unwrap_err().to_text();
        assert!(told.contains(".json, .jsonl, .md and .html"), "{told}");
        assert!(told.contains("export 0192 --format md --output a.txt"), "{told}");
        assert_eq!(by_ending(None, "last").ok(), Some(ExportForm::Markdown));
    }
}
