//! `ollmctl sessions import`: a file of any size, chunk after chunk.
//!
//! A chunk ends between characters and fits a frame even where JSON has to escape much of it.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ollm_protocol::method::SessionImport;
use ollm_protocol::methods::session::{SessionImportParams, SessionImportResult};
use ollm_protocol::sanitize;
use serde_json::{Value, json};

use super::super::{CommandError, Cx, Reply, project};
use crate::cli::ImportArgs;
use crate::render::import;
use crate::render::progress::Progress;

/// The most bytes of a file in one chunk.
const CHUNK_BYTES: usize = 4 << 20;
/// The most bytes of a chunk once it is a JSON string: a frame has 16 MiB for it and the few other fields.
const ENCODED_BYTES: usize = 12 << 20;
/// The last chunk answers when everything is parsed, written and synced.
const PATIENCE: Duration = Duration::from_secs(600);

pub(super) fn run(args: &ImportArgs, cx: &mut Cx<'_>) -> Result<(), CommandError> {
    let project = args.project.as_deref().map(|path| project::path(Some(path))).transpose()?;
    let mut results: Vec<Value> = Vec::new();
    let mut failures: Vec<CommandError> = Vec::new();
    for path in &args.files {
        let label = sanitize::one_line(&path.to_string_lossy());
        match one(path, &label, project.as_deref(), args.dry_run, cx) {
            Ok(reply) if cx.json() => {
                results.push(serde_json::from_str(reply.raw.get()).unwrap_or_default());
            }
            Ok(reply) => {
                let result = reply.value;
                let report = result.report.unwrap_or_default();
                let session = result.session.as_ref();
                cx.print_text(&import::report(&label, session, &report, args.dry_run, &cx.view()))?;
            }
            // One file that is no session must not keep the others out.
            Err(error) if args.files.len() > 1 && !error.is_closed_pipe() => {
                if cx.json() {
                    let mut told = error.to_value();
                    told["file"] = label.into();
                    results.push(told);
                } else {
                    cx.terminal.note(&format!("{label}: {}", error.to_text()));
                }
                failures.push(error);
            }
            Err(error) => return Err(error),
        }
    }
    match (cx.json(), args.files.len(), results.as_slice()) {
        (true, 1, [only]) => cx.print_json(only)?,
        (true, ..) => cx.print_json(&json!({ "data": results }))?,
        (false, ..) => {}
    }
    match failures.first() {
        None => Ok(()),
        Some(first) => Err(CommandError::Some {
            failed: failures.len(),
            total: args.files.len(),
            exit: first.exit(),
        }),
    }
}

fn one(
    path: &Path,
    label: &str,
    project: Option<&str>,
    dry_run: bool,
    cx: &mut Cx<'_>,
) -> Result<Reply<SessionImportResult>, CommandError> {
    let failed = |source| CommandError::File { action: "read", path: path.to_owned(), source };
    let (source, size): (Box<dyn Read>, u64) = if path == Path::new("-") {
        (Box::new(io::stdin()), 0)
    } else {
        let file = File::open(path).map_err(failed)?;
        let meta = file.metadata().map_err(failed)?;
        if meta.is_dir() {
            return Err(failed(io::Error::from(io::ErrorKind::IsADirectory)));
        }
        (Box::new(file), meta.len())
    };
    let mut progress = Progress::bytes(&format!("importing {label}"), size);
    let mut chunks = Chunks::new(source, path);
    let mut upload_id = None;
    let mut done = 0;
    let mut chunk = chunks.next()?.unwrap_or_default();
    loop {
        let following = chunks.next()?;
        let last = following.is_none();
        done += chunk.len() as u64;
        let params = SessionImportParams {
            upload_id: upload_id.take(),
            data: chunk,
            last,
            project_path: project.map(str::to_owned),
            dry_run,
        };
        let reply = cx.call_patiently::<SessionImport>(&params, PATIENCE)?;
        progress.set(done, size.max(done));
        let Some(following) = following else { return Ok(reply) };
        upload_id = reply.value.upload_id;
        chunk = following;
    }
}

/// The text of a source in chunks.
struct Chunks<R> {
    source: R,
    path: PathBuf,
    /// Read and not handed out yet; begins at a character.
    pending: Vec<u8>,
    /// How much of `pending` is known to be text.
    valid: usize,
    offset: u64,
    ended: bool,
}

impl<R: Read> Chunks<R> {
    fn new(source: R, path: &Path) -> Self {
        let path = path.to_owned();
        Self { source, path, pending: Vec::new(), valid: 0, offset: 0, ended: false }
    }

    /// The next chunk; `None` after the last. An empty source has none.
    fn next(&mut self) -> Result<Option<String>, CommandError> {
        self.fill()?;
        if self.pending.is_empty() {
            return Ok(None);
        }
        let text = match std::str::from_utf8(&self.pending[..self.valid]) {
            Ok(text) => text,
            Err(_) => return Err(self.not_text(self.valid)),
        };
        let end = chunk_end(text);
        let rest = self.pending.split_off(end);
        let chunk = std::mem::replace(&mut self.pending, rest);
        self.valid -= end;
        self.offset += end as u64;
        // It was checked a few lines above.
        String::from_utf8(chunk)
            .map(Some)
            .map_err(|error| self.not_text(error.utf8_error().valid_up_to()))
    }

    /// Reads until a whole chunk is there, and finds out how much of it is text.
    fn fill(&mut self) -> Result<(), CommandError> {
        let missing = (CHUNK_BYTES + 4).saturating_sub(self.pending.len());
        if !self.ended && missing > 0 {
            let read =
                self.source.by_ref().take(missing as u64).read_to_end(&mut self.pending).map_err(
                    |source| CommandError::File { action: "read", path: self.path.clone(), source },
                )?;
            self.ended = read < missing;
        }
        self.valid = match std::str::from_utf8(&self.pending) {
            Ok(text) => text.len(),
            // A character that is cut by the end of what was read is completed by the next read.
            Err(error) if error.error_len().is_none() && !self.ended => error.valid_up_to(),
            Err(error) => return Err(self.not_text(error.valid_up_to())),
        };
        Ok(())
    }

    fn not_text(&self, at: usize) -> CommandError {
        CommandError::NotUtf8 {
            path: self.path.clone(),
            offset: self.offset + at as u64,
            command: "sessions import",
        }
    }
}

/// Where a chunk ends: between characters, within both limits.
fn chunk_end(text: &str) -> usize {
    let mut encoded = 0;
    for (at, char) in text.char_indices() {
        encoded += match char {
            '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
            control if control < ' ' => 6,
            other => other.len_utf8(),
        };
        if at + char.len_utf8() > CHUNK_BYTES || encoded > ENCODED_BYTES {
            return at;
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunks(bytes: &[u8]) -> Result<Vec<String>, CommandError> {
        let mut source = Chunks::new(bytes, Path::new("f.jsonl"));
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
    fn a_chunk_that_needs_much_escaping_still_fits_a_frame() {
        let text = "\u{1}".repeat(CHUNK_BYTES + 17);
        let all = chunks(text.as_bytes()).unwrap();
        assert!(all.concat() == text);
        for chunk in all {
            assert!(serde_json::to_string(&chunk).unwrap().len() <= ENCODED_BYTES + 2);
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_named_by_their_offset() {
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
}
