//! Which files tools read and changed, by the records and not by a model's memory. Pure.

use ollm_protocol::content::{Part, RecordBody};
use serde_json::Value;

/// Most paths that a ledger keeps of a kind; the oldest go first, and the blocks made of it say less anyway.
const MAX_PATHS: usize = 500;
/// Longest path that is taken for one.
const MAX_PATH_BYTES: usize = 1024;
/// Names under which tools are given a path.
const PATH_ARGS: &[&str] = &["path", "file_path", "filePath", "filepath", "file", "filename"];
/// Words in the names of tools that change files.
const CHANGING: &[&str] = &[
    "write", "edit", "replace", "patch", "create", "insert", "append", "delete", "remove", "move",
];
/// Words in the names of tools that read a file.
const READING: &[&str] = &["read", "cat", "view", "open", "show"];

/// What a tool call does to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileUse {
    /// It looks at it.
    Read,
    /// It changes it.
    Modified,
}

/// The files of some records, oldest first, each once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ledger {
    /// Files that were changed.
    pub modified: Vec<String>,
    /// Files that were only read.
    pub read: Vec<String>,
}

impl Ledger {
    /// Notes what the calls of a record do.
    pub(crate) fn note(&mut self, body: &RecordBody) {
        match body {
            RecordBody::ToolCall(call) => self.note_call(&call.name, &call.args),
            RecordBody::Message(message) => {
                for part in &message.parts {
                    if let Part::ToolCall { name, args, .. } = part {
                        self.note_call(name, args);
                    }
                }
            }
            _ => {}
        }
    }

    fn note_call(&mut self, name: &str, args: &Value) {
        if let Some((used, path)) = file_of(name, args) {
            self.add(used, path);
        }
    }

    /// Adds one file; what was changed is not listed as read.
    pub(crate) fn add(&mut self, used: FileUse, path: &str) {
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
}

impl Ledger {
    /// Adds the files of later records.
    pub(crate) fn join(&mut self, later: &Self) {
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

/// The file that a call is about, where its name and its arguments tell.
pub(crate) fn file_of<'a>(name: &str, args: &'a Value) -> Option<(FileUse, &'a str)> {
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
    fn a_call_tells_its_file() {
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
    fn a_file_is_listed_once_and_as_changed_where_it_was() {
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
