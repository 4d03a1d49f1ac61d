//! The files that tools read and changed, taken from the records and not from a model's memory. Pure.
//!
//! A [`Ledger`] names them for a model; [`FileUses`] is the fold of a whole path, with the records and times of the uses.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::context::numbers::*;
use ollm_protocol::content::{Checkpoint, Part, Record, RecordBody, ToolCall};
use ollm_protocol::{Seq, Timestamp};
use serde_json::Value;

/// Maximum number of requested calls whose results are awaited.
const MAX_OPEN_CALLS: usize = 256;
/// The names of arguments that hold a path.
const PATH_ARGS: &[&str] = &["path", "file_path", "filePath", "filepath", "file", "filename"];
/// Words in the names of tools that change a file.
const CHANGING: &[&str] = &[
    "write", "edit", "replace", "patch", "create", "insert", "append", "delete", "remove", "move",
];
/// Words in the names of tools that read a file.
const READING: &[&str] = &["read", "cat", "view", "open", "show"];

/// The use that a tool call makes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileUse {
    Read,
    Modified,
}

/// The files of some records, oldest use first, each once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ledger {
    pub modified: Vec<String>,
    /// Files that were read and not changed.
    pub read: Vec<String>,
}

impl Ledger {
    /// Returns the files that a checkpoint names.
    pub(super) fn of_checkpoint(checkpoint: &Checkpoint) -> Self {
        Self { modified: checkpoint.files_modified.clone(), read: checkpoint.files_read.clone() }
    }

    /// Adds the files of a record's calls.
    pub(super) fn add_record(&mut self, body: &RecordBody) {
        match body {
            RecordBody::ToolCall(call) => {
                self.add_call(&call.name, &call.args);
                let writes = call.writes.iter().flatten();
                writes.for_each(|write| self.add(FileUse::Modified, &write.path));
            }
            RecordBody::Message(message) => {
                for part in &message.parts {
                    if let Part::ToolCall { name, args, .. } = part {
                        self.add_call(name, args);
                    }
                }
            }
            _ => {}
        }
    }

    fn add_call(&mut self, name: &str, args: &Value) {
        if let Some((used, path)) = file_of(name, args) {
            self.add(used, path);
        }
    }

    /// Adds one file; a changed file is not listed as read.
    pub(super) fn add(&mut self, used: FileUse, path: &str) {
        self.read.retain(|known| known != path);
        match used {
            FileUse::Modified => {
                self.modified.retain(|known| known != path);
                push(&mut self.modified, path);
            }
            FileUse::Read if !self.modified.iter().any(|known| known == path) => {
                push(&mut self.read, path);
            }
            FileUse::Read => {}
        }
    }

    /// Adds the files of later records.
    pub(super) fn join(&mut self, later: &Self) {
        later.read.iter().for_each(|path| self.add(FileUse::Read, path));
        later.modified.iter().for_each(|path| self.add(FileUse::Modified, path));
    }
}

/// The newest uses that a session made of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UsedFile {
    /// The newest record of a call that read it.
    pub(crate) read: Option<Seq>,
    /// The newest record of a call that changed it.
    pub(crate) modified: Option<Seq>,
    /// The time of the newer one.
    pub(crate) at: Timestamp,
}

impl UsedFile {
    /// Returns the newest record that used the file.
    pub(crate) fn seq(&self) -> Option<Seq> {
        self.read.max(self.modified)
    }

    /// Adds the uses of the same file under another name.
    pub(crate) fn join(&mut self, other: &Self) {
        self.read = self.read.max(other.read);
        self.modified = self.modified.max(other.modified);
        self.at = self.at.max(other.at);
    }
}

/// The fold of the files that calls on a path used. A call counts at the time of its result, and not if it failed.
#[derive(Clone, Debug, Default)]
pub(crate) struct FileUses {
    files: BTreeMap<Arc<str>, UsedFile>,
    /// The file that each result shows.
    reads: BTreeMap<Seq, Arc<str>>,
    /// The requested calls without a result, by their ids, oldest first.
    open: VecDeque<(String, FileUse, Arc<str>)>,
}

impl FileUses {
    /// Returns the files with their names as the tools were given them, without `./` in front.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&str, &UsedFile)> {
        self.files.iter().map(|(path, used)| (&**path, used))
    }

    /// Returns the number of files and reads, which the memory of a fold depends on.
    pub(crate) fn n_items(&self) -> usize {
        self.files.len() + self.reads.len()
    }

    /// Returns the file that a result shows.
    pub(crate) fn read_by(&self, result: Seq) -> Option<&str> {
        self.reads.get(&result).map(|path| &**path)
    }

    /// Adds the next record of the path.
    pub(crate) fn apply(&mut self, record: Record) {
        let (seq, at) = (record.seq, record.at);
        match record.into_body() {
            Some(RecordBody::ToolCall(call)) => self.executed(seq, at, &call),
            // The file has a content again that the path knows.
            Some(RecordBody::PutBack(record)) => {
                for file in &record.files {
                    self.files.entry(file.path.as_str().into()).and_modify(|used| used.at = at);
                }
            }
            Some(RecordBody::Message(message)) => {
                for part in &message.parts {
                    if let Part::ToolCall { id, name, args } = part
                        && let Some((used, path)) = file_of(name, args)
                    {
                        self.open.truncate(MAX_OPEN_CALLS - 1);
                        self.open.push_front((id.clone(), used, plain_path(path).into()));
                    }
                }
                let of_id = |id: &String| self.open.iter().position(|(open, ..)| open == id);
                let answered = message.tool_call_id.as_ref().and_then(of_id);
                if let Some((_, used, path)) = answered.and_then(|at| self.open.remove(at)) {
                    self.add(seq, at, used, path);
                }
            }
            _ => {}
        }
    }

    fn executed(&mut self, seq: Seq, at: Timestamp, call: &ToolCall) {
        self.open.retain(|(id, ..)| *id != call.id);
        if call.result.success != Some(false)
            && call.result.error.is_none()
            && let Some((used, path)) = file_of(&call.name, &call.args)
        {
            self.add(seq, at, used, plain_path(path).into());
        }
        for write in call.writes.iter().flatten() {
            self.add(seq, at, FileUse::Modified, write.path.as_str().into());
        }
    }

    fn add(&mut self, seq: Seq, at: Timestamp, used: FileUse, path: Arc<str>) {
        if used == FileUse::Read {
            self.reads.insert(seq, Arc::clone(&path));
            if self.reads.len() > MAX_USED_FILES {
                self.reads.pop_first();
            }
        }
        let file = self.files.entry(path).or_insert(UsedFile { read: None, modified: None, at });
        file.at = at;
        match used {
            FileUse::Read => file.read = Some(seq),
            FileUse::Modified => file.modified = Some(seq),
        }
        // Half of them at once, so that the oldest are seldom looked for.
        if self.files.len() > 2 * MAX_USED_FILES {
            let mut seqs: Vec<Option<Seq>> = self.files.values().map(UsedFile::seq).collect();
            seqs.sort_unstable();
            let first = seqs[seqs.len() - MAX_USED_FILES];
            self.files.retain(|_, file| file.seq() >= first);
        }
    }
}

/// Returns a path without `./` in front.
pub(crate) fn plain_path(path: &str) -> &str {
    path.trim_start_matches("./")
}

fn push(list: &mut Vec<String>, path: &str) {
    if list.len() == MAX_PATHS {
        list.remove(0);
    }
    list.push(path.to_owned());
}

/// Returns the uses of files that a record shows by itself: of a request whose result is not known, and of a call that did
/// not fail. Each has the path as the tool was given it, and the name of the tool.
pub(crate) fn touches(body: &RecordBody) -> Vec<(FileUse, &str, &str)> {
    let of_call = |name, args| file_of(name, args).map(|(used, path)| (used, path, name));
    match body {
        RecordBody::ToolCall(call) => {
            let failed = call.result.success == Some(false) || call.result.error.is_some();
            let own = of_call(call.name.as_str(), &call.args).filter(|_| !failed);
            let writes = call.writes.iter().flatten();
            let writes = writes.map(|write| (FileUse::Modified, &*write.path, &*call.name));
            own.into_iter().chain(writes).collect()
        }
        RecordBody::Message(message) => {
            let calls = message.parts.iter().filter_map(|part| match part {
                Part::ToolCall { name, args, .. } => of_call(name.as_str(), args),
                _ => None,
            });
            calls.collect()
        }
        _ => Vec::new(),
    }
}

/// Returns the file of a call and its use, if the name and the arguments of the call show them.
pub(super) fn file_of<'a>(name: &str, args: &'a Value) -> Option<(FileUse, &'a str)> {
    let path = PATH_ARGS.iter().find_map(|arg| args.get(*arg)?.as_str())?;
    if path.is_empty() || path.len() > MAX_PATH_BYTES || path.contains(['\n', '\r']) {
        return None;
    }
    let name = name.to_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| name.contains(word));
    if has(CHANGING) {
        return Some((FileUse::Modified, path));
    }
    has(READING).then_some((FileUse::Read, path))
}

#[cfg(test)]
mod tests {
    use ollm_protocol::content::{Message, Role, ToolResult};
    use serde_json::json;

    use super::*;

    #[test]
    fn file_of_a_call_is_found_by_name_and_arguments() {
        let check = |name: &str, args: Value, expect| assert_eq!(file_of(name, &args), expect);
        check("read_file", json!({"path": "a.rs"}), Some((FileUse::Read, "a.rs")));
        check("Edit", json!({"file_path": "b.rs"}), Some((FileUse::Modified, "b.rs")));
        check("str_replace_editor", json!({"path": "c"}), Some((FileUse::Modified, "c")));
        check("bash", json!({"path": "c"}), None);
        check("read", json!({"path": ""}), None);
        check("read", json!({"path": 3}), None);
        check("read", json!("a.rs"), None);
    }

    #[test]
    fn file_is_listed_once_and_as_modified_if_it_was_changed() {
        let mut ledger = Ledger::default();
        ledger.add(FileUse::Read, "a");
        ledger.add(FileUse::Read, "b");
        ledger.add(FileUse::Modified, "a");
        ledger.add(FileUse::Read, "a");
        ledger.add(FileUse::Modified, "c");
        ledger.add(FileUse::Modified, "a");
        assert_eq!(
            (ledger.modified, ledger.read),
            (vec!["c".into(), "a".into()], vec!["b".into()])
        );
    }

    fn message(parts: Vec<Part>, answered: Option<&str>) -> RecordBody {
        let mut message = Message::text(Role::Assistant, "", Timestamp::from_unix_ms(0));
        message.parts = parts;
        message.tool_call_id = answered.map(str::to_owned);
        RecordBody::Message(message)
    }

    fn requested(id: &str, path: &str) -> RecordBody {
        let (id, name) = (id.to_owned(), "read_file".to_owned());
        message(vec![Part::ToolCall { id, name, args: json!({ "path": path }) }], None)
    }

    fn executed(path: &str, error: Option<&str>) -> RecordBody {
        let result = ToolResult { error: error.map(str::to_owned), ..ToolResult::default() };
        let call = json!({ "id": "x", "name": "edit", "args": { "path": path }, "result": result,
            "timestamp": "2026-01-02T03:04:05.678Z" });
        RecordBody::ToolCall(serde_json::from_value(call).expect("a call"))
    }

    fn uses(bodies: Vec<RecordBody>) -> FileUses {
        let mut uses = FileUses::default();
        for (at, body) in bodies.into_iter().enumerate() {
            let seq = Seq(at as u64);
            let time = Timestamp::from_unix_ms(1000 * at as i64);
            uses.apply(Record::new(seq, None, time, body));
        }
        uses
    }

    #[test]
    fn file_of_a_call_counts_with_its_result() {
        let found = uses(vec![
            requested("a", "./a.rs"),
            requested("b", "b.rs"),
            message(Vec::new(), Some("a")),
            executed("b.rs", Some("denied")),
            executed("c.rs", None),
        ]);
        let files: Vec<_> =
            found.files().map(|(path, used)| (path, used.read, used.modified)).collect();
        assert_eq!(files, [("a.rs", Some(Seq(2)), None), ("c.rs", None, Some(Seq(4)))]);
        assert_eq!((found.read_by(Seq(2)), found.read_by(Seq(0))), (Some("a.rs"), None));
    }

    #[test]
    fn files_of_a_fold_are_bounded_and_the_newest_stay() {
        let n = 3 * MAX_USED_FILES;
        let found = uses((0..n).map(|at| executed(&format!("f{at}"), None)).collect());
        assert!((MAX_USED_FILES..=2 * MAX_USED_FILES).contains(&found.files().count()));
        let newest = format!("f{}", n - 1);
        assert!(found.files().any(|(path, _)| path == newest));
        let open = uses((0..1000).map(|at| requested(&at.to_string(), "f")).collect());
        assert_eq!(open.open.len(), MAX_OPEN_CALLS);
    }
}
