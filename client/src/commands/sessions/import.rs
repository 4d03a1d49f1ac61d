//! `ollmctl sessions import`: sends files of any size, chunk after chunk, and reports the losses.
//!
//! **Invariant**: a chunk ends between characters and fits a frame even if JSON escapes all of it.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use clap::Args;
use ollm_protocol::content::{ImportLoss, ImportReport, Session};
use ollm_protocol::method::SessionImport;
use ollm_protocol::methods::session::{SessionImportParams, SessionImportResult};
use ollm_protocol::sanitize;
use serde_json::Value;

use crate::command_context::{CallReply, CommandContext};
use crate::command_error::{CommandError, CommandResult};
use crate::project;
use crate::regular_file;
use crate::render::progress::ProgressMeter;
use crate::render::session_table::{short_session_id, title};
use crate::render::units::{counted, grouped};
use crate::render::{RenderOptions, table};

/// Bytes of a file in one chunk. As a JSON string a byte takes up to six, and a frame has 16 MiB for the chunk and a few
/// other fields.
const CHUNK_BYTES: usize = 2 << 20;
/// The beginning of a SQLite database, which is not text.
const SQLITE_START: &[u8] = b"SQLite format 3\0";
/// Line numbers that are shown for losses of one kind.
const SHOWN_LINES: usize = 3;

/// Import session files of ollmd and of other programs; `-` reads stdin.
#[derive(Debug, Args)]
#[command(after_help = "\
The format is detected: exports of ollmd (json, jsonl), session documents, pi session files.
A FILE is a regular file or a link to one; pass the output of another program as `-`.
Importing a file again changes nothing. The command reports what could not be carried over.

Examples:
  ollmctl sessions import talk.jsonl
  ollmctl sessions import --dry-run old/a.jsonl old/b.jsonl
  ollmctl sessions import --project . talk.json")]
pub(crate) struct ImportArgs {
    /// The files.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The project's directory [default: the one named in the file].
    #[arg(long, value_name = "DIR")]
    project: Option<PathBuf>,
    /// Only show what would be imported.
    #[arg(long)]
    dry_run: bool,
}

pub(super) fn run(args: &ImportArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    let given = args.project.as_deref();
    let project = given.map(|path| project::canonical_path(Some(path))).transpose()?;
    let mut results: Vec<Value> = Vec::new();
    let mut failures: Vec<CommandError> = Vec::new();
    for path in &args.files {
        let label = sanitize::one_line(&path.to_string_lossy());
        match import_file(path, &label, project.as_deref(), args.dry_run, ctx) {
            Ok(reply) if ctx.json() => {
                results.push(reply.to_json());
            }
            Ok(reply) => {
                let text = render(&label, &reply.value, args.dry_run, &ctx.render_options());
                ctx.print_text(&text)?;
            }
            // A failed file does not keep the others from being imported.
            Err(error) if args.files.len() > 1 && !error.is_closed_pipe() => {
                if ctx.json() {
                    let mut value = error.to_value();
                    value["file"] = label.into();
                    results.push(value);
                } else {
                    ctx.terminal.eprintln(&format!("{label}: {}", error.to_text()));
                }
                failures.push(error);
            }
            Err(error) => return Err(error.of_file(path)),
        }
    }
    if ctx.json() {
        ctx.print_json_list(&results)?;
    }
    match failures.first() {
        None => Ok(()),
        Some(first) => Err(CommandError::PartialFailure {
            failed: failures.len(),
            total: args.files.len(),
            exit: first.exit(),
        }),
    }
}

fn import_file(
    path: &Path,
    label: &str,
    project: Option<&str>,
    dry_run: bool,
    ctx: &mut CommandContext<'_>,
) -> CommandResult<CallReply<SessionImportResult>> {
    let failed = |source| CommandError::File { action: "read", path: path.to_owned(), source };
    let (source, size): (Box<dyn Read>, u64) = if path == Path::new("-") {
        (Box::new(io::stdin()), 0)
    } else {
        let file = regular_file::open_input(path).map_err(failed)?;
        let meta = file.metadata().map_err(failed)?;
        (Box::new(file), meta.len())
    };
    let mut progress = ProgressMeter::bytes(&format!("importing {label}"));
    let mut chunks = Utf8Chunks::new(source, path);
    let mut upload_id = None;
    let mut done = 0;
    let mut chunk = chunks.next()?.unwrap_or_default();
    loop {
        let following = chunks.next()?;
        done += chunk.len() as u64;
        let params = SessionImportParams {
            upload_id: upload_id.take(),
            data: chunk,
            last: following.is_none(),
            project_path: project.map(str::to_owned),
            dry_run,
        };
        let reply = ctx.call::<SessionImport>(&params)?;
        progress.set(done, size.max(done));
        let Some(following) = following else { return Ok(reply) };
        upload_id = reply.value.upload_id;
        chunk = following;
    }
}

/// The text of a file in chunks.
struct Utf8Chunks<R> {
    source: R,
    path: PathBuf,
    /// The beginning of a character that the previous read cut.
    cut: Vec<u8>,
    /// The position of `cut` in the file.
    offset: usize,
}

impl<R: Read> Utf8Chunks<R> {
    fn new(source: R, path: &Path) -> Self {
        Self { source, path: path.to_owned(), cut: Vec::new(), offset: 0 }
    }

    /// Returns the next chunk; `None` after the last. An empty file has no chunk.
    fn next(&mut self) -> CommandResult<Option<String>> {
        let mut bytes = std::mem::take(&mut self.cut);
        let missing = CHUNK_BYTES - bytes.len();
        let read = self.source.by_ref().take(missing as u64).read_to_end(&mut bytes);
        let path = &self.path;
        let failed = |source| CommandError::File { action: "read", path: path.clone(), source };
        let is_last = read.map_err(failed)? < missing;
        if let Err(error) = std::str::from_utf8(&bytes)
            && error.error_len().is_none()
            && !is_last
        {
            self.cut = bytes.split_off(error.valid_up_to());
        }
        if self.offset == 0 && bytes.starts_with(SQLITE_START) {
            let format = "a SQLite database, such as the logs of llm";
            return Err(CommandError::ForeignFile { path: path.clone(), format });
        }
        let text = String::from_utf8(bytes).map_err(|error| CommandError::NotUtf8 {
            path: path.clone(),
            offset: (self.offset + error.utf8_error().valid_up_to()) as u64,
            command: "sessions import".to_owned(),
        })?;
        self.offset += text.len();
        Ok(Some(text).filter(|text| !text.is_empty()))
    }
}

/// Returns the session, the counts and the losses of one file.
fn render(
    file: &str,
    result: &SessionImportResult,
    dry_run: bool,
    options: &RenderOptions,
) -> String {
    let default = ImportReport::default();
    let report = result.report.as_ref().unwrap_or(&default);
    let session = result.session.as_ref();
    let outcome = match (report.already_imported, dry_run) {
        (true, _) => "was imported before:",
        (false, true) => "would be imported:",
        (false, false) => "imported:",
    };
    let mut text = format!("{file} ({}) {outcome}\n", sanitize::one_line(&report.format));
    if let Some(session) = session {
        text.push_str(&session_line(session, options));
    }
    let is_expanded = report.imported_records > report.source_records;
    text.push_str(&format!(
        "  {} in the file, {} recorded{}\n",
        counted(report.source_records, "record"),
        grouped(report.imported_records),
        if is_expanded { " (some become several)" } else { "" },
    ));
    if !report.losses.is_empty() {
        text.push_str("  not carried over, or only in part:\n");
        text.push_str(&render_losses(&report.losses));
    }
    if let Some(session) = session.filter(|_| !dry_run || report.already_imported) {
        let id = short_session_id(session);
        text.push_str(&format!("  next: ollmctl sessions view {id}\n"));
    }
    text
}

fn session_line(session: &Session, options: &RenderOptions) -> String {
    let id = short_session_id(session);
    let room = options.width.saturating_sub(id.len() + 4);
    format!("  {id}  {}\n", table::clip(&title(&session.title), room))
}

/// Returns the losses grouped by kind and reason, the most frequent first, with the first line numbers.
fn render_losses(losses: &[ImportLoss]) -> String {
    let mut groups: BTreeMap<(&str, &str), Vec<Option<u64>>> = BTreeMap::new();
    for loss in losses {
        groups.entry((&loss.what, &loss.reason)).or_default().push(loss.line);
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(_, lines)| std::cmp::Reverse(lines.len()));
    let mut text = String::new();
    for ((kind, reason), lines) in groups {
        let shown: Vec<String> =
            lines.iter().flatten().take(SHOWN_LINES).map(ToString::to_string).collect();
        let more = if lines.len() > SHOWN_LINES { ", ..." } else { "" };
        let place = match shown.len() {
            0 => String::new(),
            1 if more.is_empty() => format!(" (line {})", shown[0]),
            _ => format!(" (lines {}{more})", shown.join(", ")),
        };
        let times = match lines.len() as u64 {
            1 => String::new(),
            times => format!("{} x ", grouped(times)),
        };
        let (kind, reason) = (sanitize::one_line(kind), sanitize::one_line(reason));
        text.push_str(&format!("    {times}{kind}: {reason}{place}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use std::io::Write as _;

    use super::*;
    use crate::testing::{render_options, run_against, session_json, session_named};

    fn chunks(bytes: &[u8]) -> CommandResult<Vec<String>> {
        let mut source = Utf8Chunks::new(bytes, Path::new("f.jsonl"));
        let mut all = Vec::new();
        while let Some(chunk) = source.next()? {
            all.push(chunk);
        }
        Ok(all)
    }

    #[test]
    fn chunks_end_between_characters_and_lose_nothing() {
        for text in [
            String::new(),
            "short".to_owned(),
            "日".repeat(CHUNK_BYTES),
            format!("a{}", "🎉".repeat(CHUNK_BYTES / 2)),
            "x".repeat(CHUNK_BYTES),
            "x".repeat(CHUNK_BYTES * 2 + 1),
        ] {
            let all = chunks(text.as_bytes()).unwrap();
            assert!(all.iter().all(|chunk| !chunk.is_empty() && chunk.len() <= CHUNK_BYTES));
            assert!(all.concat() == text);
        }
    }

    #[test]
    fn chunk_with_many_escapes_fits_a_frame() {
        let text = "\u{1}".repeat(CHUNK_BYTES + 17);
        let all = chunks(text.as_bytes()).unwrap();
        assert!(all.concat() == text);
        for chunk in all {
            assert!(serde_json::to_string(&chunk).unwrap().len() <= (12 << 20) + 2);
        }
    }

    #[test]
    fn invalid_utf8_is_reported_with_its_offset() {
        let check = |bytes: &[u8], expect: u64| match chunks(bytes) {
            Err(CommandError::NotUtf8 { offset, .. }) => assert_eq!(offset, expect),
            other => panic!("{:?}", other.map(|all| all.len())),
        };
        check(b"ab\xffcd", 2);
        check(b"ab\xe6\x97", 2);
        let mut late = vec![b'x'; CHUNK_BYTES + 10];
        late.push(0xfe);
        check(&late, CHUNK_BYTES as u64 + 10);
    }

    #[test]
    fn database_is_refused_by_its_format() {
        let error = chunks(b"SQLite format 3\0\x10\0\x01\x01").unwrap_err();
        let text =
            "f.jsonl is a SQLite database, such as the logs of llm, which cannot be imported yet";
        assert_eq!(error.message(), text);
    }

    #[test]
    fn refusal_names_the_file() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("talk.jsonl");
        std::fs::File::create(&path).unwrap().write_all(b"hello").unwrap();
        let run = run_against(&["sessions", "import", path.to_str().unwrap()], |_, _| None);
        let message = run.error.expect("a refusal").message();
        assert!(message.contains("talk.jsonl: "), "{message}");
    }

    #[test]
    fn chunks_of_a_file_share_one_upload() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("big.jsonl");
        let text = "日".repeat(7 << 18);
        let mut file = std::fs::File::create(&path).unwrap();
        io::Write::write_all(&mut file, text.as_bytes()).unwrap();
        let run = run_against(&["sessions", "import", path.to_str().unwrap()], |_, params| {
            if params["last"] == false {
                return Some(json!({"uploadId": "u"}));
            }
            let report =
                json!({"format": "x", "sourceRecords": 1, "importedRecords": 1, "losses": []});
            Some(json!({"session": session_json(), "report": report}))
        });
        assert!(run.error.is_none());
        assert!(run.stdout.contains("1 record in the file, 1 recorded"), "{}", run.stdout);
        let ids: Vec<&Value> = run.calls.iter().map(|(_, params)| &params["uploadId"]).collect();
        assert_eq!(ids, [&Value::Null, &json!("u"), &json!("u")]);
        let sent: String =
            run.calls.iter().map(|(_, params)| params["data"].as_str().unwrap()).collect();
        assert!(sent == text);
    }

    fn loss(line: u64, what: &str) -> ImportLoss {
        ImportLoss { line: Some(line), what: what.into(), reason: "has no counterpart".into() }
    }

    fn result(session: Option<Session>, report: ImportReport) -> SessionImportResult {
        SessionImportResult { upload_id: None, session, report: Some(report) }
    }

    #[test]
    fn report_explains_additional_records_and_cuts_titles() {
        let id = "0192f0c1-9a3b-7000-8000-000000000001";
        let session = session_named(id, "Untangle the parser of the configuration");
        let report = ImportReport {
            format: "pi v1".into(),
            source_records: 3,
            imported_records: 5,
            already_imported: false,
            losses: Vec::new(),
        };
        assert_eq!(
            render("talk.jsonl", &result(Some(session), report), true, &render_options(32)),
            format!(
                "talk.jsonl (pi v1) would be imported:\n  00000001  Untangle the parser…\n  \
                 3 records in the file, 5 recorded (some become several)\n"
            )
        );
    }

    #[test]
    fn losses_are_grouped_most_frequent_first() {
        let mut losses = vec![loss(9, "image")];
        losses.extend((1..=5).map(|line| loss(line, "thinking_level_change")));
        let session = session_named("0192f0c1-9a3b-7000-8000-000000000001", "Untangle");
        let mut report = ImportReport {
            format: "pi v1".into(),
            source_records: 1003,
            imported_records: 997,
            already_imported: false,
            losses,
        };
        let imported = result(Some(session), report.clone());
        assert_eq!(
            render("talk.jsonl", &imported, false, &render_options(80)),
            "\
talk.jsonl (pi v1) imported:
  00000001  Untangle
  1,003 records in the file, 997 recorded
  not carried over, or only in part:
    5 x thinking_level_change: has no counterpart (lines 1, 2, 3, ...)
    image: has no counterpart (line 9)
  next: ollmctl sessions view 00000001
"
        );
        report.already_imported = true;
        report.losses.clear();
        assert_eq!(
            render("talk.jsonl", &result(None, report), false, &render_options(80)),
            "talk.jsonl (pi v1) was imported before:\n  1,003 records in the file, 997 recorded\n"
        );
    }
}
