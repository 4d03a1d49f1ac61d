//! The files that tools read and changed, taken from the records and not from a model's memory. Pure.

use ollm_protocol::content::{Checkpoint, Part, RecordBody};
use serde_json::Value;

/// Maximum number of paths of each list; the oldest are dropped. The blocks made of a ledger show fewer.
const MAX_PATHS: usize = 500;
/// Bytes of the longest argument that is taken as a path.
const MAX_PATH_BYTES: usize = 1024;
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
pub(super) enum FileUse {
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
            RecordBody::ToolCall(call) => self.add_call(&call.name, &call.args),
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

fn push(list: &mut Vec<String>, path: &str) {
    if list.len() == MAX_PATHS {
        list.remove(0);
    }
    list.push(path.to_owned());
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
}
