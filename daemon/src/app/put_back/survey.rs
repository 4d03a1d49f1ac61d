//! The survey of files for a move of the leaf: reads the log as far as it concerns them, and examines the files.

use std::collections::HashSet;
use std::path::Path;

use ollm_protocol::content::{Message, RecordBody, RecordKind, Role, ToolCall, UnrecordedCall};
use ollm_protocol::{Seq, SessionId};

use super::{FileMove, private_dirs};
use crate::app::core::Core;
use crate::app::error::{AppError, Result};
use crate::catalog::{RECALL_READ, RECALL_SEARCH};
use crate::put_back::layers::{LayerChange, WrittenFiles};
use crate::put_back::plan::{FilePlanner, PlanItem, open_project};
use crate::session::SessionState;
use crate::session::index::{IndexEntry, own_header};

/// The records that are read at once.
const PAGE: usize = 256;
/// The most bytes of the paths of a plan: its record must fit beside other things into the largest record.
const MAX_PLAN_BYTES: usize = 24 * 1024 * 1024;
/// The bytes that a file of a plan takes besides its path.
const FILE_BYTES: usize = 400;
/// The calls that a plan lists because they did not say what they wrote.
const MAX_UNRECORDED: usize = 100;

/// The files of a move.
pub(super) struct FileSurvey {
    /// The project of the session.
    pub(super) root: Option<String>,
    pub(super) items: Vec<PlanItem>,
    pub(super) unrecorded: Vec<UnrecordedCall>,
    pub(super) unrecorded_calls: u64,
}

/// The records that concern a move.
struct Concerned {
    root: Option<String>,
    /// The starts of calls, the calls that say what they wrote, and the records of files that were put back, from the first
    /// of the move on.
    writers: Vec<Seq>,
    /// The calls and results of the move that do not say it, or that another session recorded.
    silent: Vec<Seq>,
}

/// Examines the files of a move. Blocks on the disk.
///
/// **Errors**: `Invalid` for more files than a record can have; `Storage`.
pub(super) fn survey(core: &Core, file_move: &FileMove) -> Result<FileSurvey> {
    let id = file_move.id;
    let Concerned { root, writers, silent } =
        core.sessions.with(id, |live| concerned(live.state(), file_move))?;
    let set = |seqs: &[Seq]| seqs.iter().copied().collect::<HashSet<Seq>>();
    let (removed, added) = (set(&file_move.removed), set(&file_move.added));
    let mut files = WrittenFiles::new(root.as_deref().unwrap_or_default());
    let mut unrecorded = Unrecorded::default();
    for page in writers.chunks(PAGE) {
        for (seq, body) in page.iter().zip(core.sessions.bodies(id, page)?) {
            match body {
                Some(RecordBody::ToolCall(call)) => {
                    files.tool_call(*seq, &call);
                    if removed.contains(seq) || added.contains(seq) {
                        unrecorded.recorded_call(*seq, &call);
                    }
                }
                Some(RecordBody::PutBack(record)) => files.put_back(&record),
                Some(RecordBody::Custom(custom)) => {
                    if let Ok(start) = serde_json::from_value(custom.data) {
                        files.tool_start(*seq, start);
                    }
                }
                _ => {}
            }
        }
    }
    unrecorded.read(core, id, &silent)?;
    let is_moved = |seq: &Seq| removed.contains(seq) || added.contains(seq);
    unrecorded.add_unfinished(files.unfinished().filter(|(_, seq, _)| is_moved(seq)));
    let changes = files.changes(&removed, &added);
    let n_bytes: usize = changes.iter().map(|change| change.path.len() + FILE_BYTES).sum();
    if n_bytes > MAX_PLAN_BYTES {
        let problem = "are too many for one call; skip them, or move less far";
        return Err(AppError::invalid("files", problem));
    }
    let items = plan(core, id, root.as_deref(), changes)?;
    let mut calls = unrecorded.calls;
    let unrecorded_calls = calls.len() as u64;
    // An unfinished call must not be cut: clients put nothing back behind it.
    calls.sort_by_key(|call| (!call.unfinished, call.seq));
    calls.truncate(MAX_UNRECORDED);
    Ok(FileSurvey { root, items, unrecorded: calls, unrecorded_calls })
}

fn concerned(state: &SessionState, file_move: &FileMove) -> Concerned {
    let entries = state.entries();
    let own = own_header(entries) as u64;
    let moved = || file_move.removed.iter().chain(&file_move.added).copied();
    let lists = |seq: Seq| {
        let flags = [IndexEntry::LISTS_WRITES, IndexEntry::STARTS_CALL];
        let lists = |entry: IndexEntry| flags.iter().any(|flag| entry.has(*flag));
        seq.0 > own && state.entry(seq).is_some_and(lists)
    };
    let is_silent = |seq: &Seq| {
        let Some(entry) = state.entry(*seq) else { return false };
        let is_call = entry.kind() == Some(RecordKind::ToolCall);
        (is_call || entry.role() == Some(Role::Tool)) && !lists(*seq)
    };
    let silent = moved().filter(is_silent).collect();
    let first = moved().filter(|seq| lists(*seq)).min();
    let writers = first.map_or_else(Vec::new, |first| {
        let after = (first.0..entries.len() as u64).map(Seq);
        let concerns = |seq: &Seq| {
            let kind = state.entry(*seq).and_then(|entry| entry.kind());
            lists(*seq) || kind == Some(RecordKind::PutBack)
        };
        after.filter(concerns).collect()
    });
    Concerned { root: state.project_path().map(str::to_owned), writers, silent }
}

fn plan(
    core: &Core,
    id: SessionId,
    root: Option<&str>,
    changes: Vec<LayerChange>,
) -> Result<Vec<PlanItem>> {
    let opened = match root {
        Some(root) => open_project(Path::new(root))
            .map_err(|error| format!("the project cannot be opened: {error}")),
        None => Err("the session has no project".to_owned()),
    };
    let private = private_dirs(core);
    let private: Vec<&Path> = private.iter().map(std::path::PathBuf::as_path).collect();
    let quota_bytes = core.config().snapshots.file_quota_bytes;
    let planner = FilePlanner {
        root: opened.as_ref().map_err(Clone::clone),
        private: &private,
        is_kept: &|hash| core.sessions.keeps_file(id, hash),
        free_bytes: &|| core.sessions.free_file_bytes(id, quota_bytes),
    };
    Ok(planner.plan(changes))
}

/// The calls that may have written files without saying which.
#[derive(Default)]
struct Unrecorded {
    calls: Vec<UnrecordedCall>,
    /// The calls whose results are recorded as tool calls.
    known_ids: HashSet<String>,
}

impl Unrecorded {
    fn recorded_call(&mut self, seq: Seq, call: &ToolCall) {
        self.known_ids.insert(call.id.clone());
        if call.writes_omitted > 0 {
            self.add(seq, &call.name, Some(call.writes_omitted));
        }
    }

    /// Adds the calls that do not list their writes. Blocks on the disk.
    fn read(&mut self, core: &Core, id: SessionId, silent: &[Seq]) -> Result<()> {
        let mut results: Vec<(Seq, Message)> = Vec::new();
        for page in silent.chunks(PAGE) {
            for (seq, body) in page.iter().zip(core.sessions.bodies(id, page)?) {
                match body {
                    Some(RecordBody::ToolCall(call)) => {
                        self.known_ids.insert(call.id);
                        // The tools of the daemon read only.
                        if ![RECALL_READ, RECALL_SEARCH].contains(&call.name.as_str()) {
                            self.add(*seq, &call.name, None);
                        }
                    }
                    Some(RecordBody::Message(message)) => results.push((*seq, message)),
                    _ => {}
                }
            }
        }
        for (seq, message) in results {
            // A result can be recorded in two forms.
            let is_known = message.tool_call_id.is_some_and(|id| self.known_ids.contains(&id));
            if !is_known {
                self.add(seq, message.tool_name.as_deref().unwrap_or("tool"), None);
            }
        }
        Ok(())
    }

    /// Adds the starts of calls, of which none has a record with a list of writes, unless it has one without.
    fn add_unfinished<'a>(&mut self, starts: impl Iterator<Item = (&'a str, Seq, &'a str)>) {
        for (_, seq, tool) in starts.filter(|(id, ..)| !self.known_ids.contains(*id)) {
            let (tool, omitted, unfinished) = (tool.to_owned(), None, true);
            self.calls.push(UnrecordedCall { seq, tool, omitted, unfinished });
        }
    }

    fn add(&mut self, seq: Seq, tool: &str, omitted: Option<u64>) {
        let (tool, unfinished) = (tool.to_owned(), false);
        self.calls.push(UnrecordedCall { seq, tool, omitted, unfinished });
    }
}
