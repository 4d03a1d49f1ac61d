//! Files: what tool calls wrote, what the daemon put back, and plans to put files back.
//!
//! A path is relative to the project's directory, in UTF-8, with `/` between its parts.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::{is_zero, named_enum};
use crate::ids::json_string;
use crate::{PlanId, Seq};

/// The blake3 of the content of a file, 64 lower-case hex digits in JSON.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileHash(pub [u8; 32]);

/// A text is not the hash of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a hash of a file has 64 hex digits (blake3)")]
pub struct InvalidFileHash;

impl FromStr for FileHash {
    type Err = InvalidFileHash;

    fn from_str(text: &str) -> Result<Self, InvalidFileHash> {
        let mut bytes = [0; 32];
        if text.len() != 2 * bytes.len() {
            return Err(InvalidFileHash);
        }
        // A record of put-back files has tens of thousands, so this is not a call of the library for each byte.
        for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            for digit in digits {
                let digit = char::from(*digit).to_digit(16).ok_or(InvalidFileHash)?;
                *byte = *byte << 4 | digit as u8;
            }
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for FileHash {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let digits = self.0.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        let text: String = digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect();
        out.write_str(&text)
    }
}

json_string!(FileHash, "blake3");

/// The state of a file at one time.
///
/// **Shape**: `"absent"`, `"unknown"` or `{"hash":"..."}`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum FileState {
    /// There was no file.
    Absent,
    /// The content is not known, or was not kept.
    Unknown,
    /// A regular file with this content.
    Hash(FileHash),
}

/// The permissions of a file before and after a write that changed them: nine bits, such as 420 for `rw-r--r--`.
#[skip_serializing_none]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FileModes {
    /// Before the write; absent for a file that did not exist, or if it is not known.
    pub before: Option<u32>,
    /// After the write; absent for a file that does not exist any more, or if it is not known.
    pub after: Option<u32>,
}

/// A file that a tool call wrote, created or removed.
///
/// **Shape**: `{"path":"src/a.rs","before":{"hash":"..."},"after":{"hash":"..."}}`
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FileWrite {
    /// The file.
    pub path: String,
    /// The file before the call. The daemon keeps the content of a hash.
    pub before: FileState,
    /// The file after the call.
    pub after: FileState,
    /// The permissions, if the call changed them.
    pub mode: Option<FileModes>,
    /// The file that the call renamed to this one, for people; the call lists it as removed.
    pub renamed_from: Option<String>,
    /// The number of directories that the call created for this file: the innermost ones of its path. Default 0.
    #[serde(default, skip_serializing_if = "is_none_created")]
    pub created_dirs: u32,
}

/// Returns whether no directories were created, for `skip_serializing_if`.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_none_created(created_dirs: &u32) -> bool {
    *created_dirs == 0
}

/// The state of a file as a client reports it.
///
/// **Shape**: `"absent"`, `"unknown"`, `{"hash":"..."}`, `{"text":"..."}` or `{"base64":"..."}`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum FileStateInput {
    /// There is no file.
    Absent,
    /// The content is not known.
    Unknown,
    /// A regular file with a content that the session has already, or, after a call, any.
    Hash(FileHash),
    /// A regular file with this text.
    Text(String),
    /// A regular file with these bytes, in base64 with padding.
    Base64(String),
}

/// A file that a tool call wrote, as a client reports it.
///
/// **Shape**: `{"path":"src/a.rs","before":{"text":"old\n"},"after":{"hash":"..."}}`
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FileWriteInput {
    /// The file, at most 4 KiB. A path occurs once in a call.
    pub path: String,
    /// The file before the call.
    pub before: FileStateInput,
    /// The file after the call.
    pub after: FileStateInput,
    /// The permissions, if the call changed them.
    pub mode: Option<FileModes>,
    /// The file that the call renamed to this one, for people; the call lists it as removed.
    pub renamed_from: Option<String>,
    /// The number of directories that the call created for this file: the innermost ones of its path. Default 0.
    #[serde(default, skip_serializing_if = "is_none_created")]
    pub created_dirs: u32,
}

named_enum! {
    /// The reason why the daemon did not keep the content of a file before a call, which therefore cannot be put back.
    pub enum NotKeptReason {
        /// The content is larger than `snapshots.fileLimit`.
        FileLimit = "fileLimit",
        /// All blobs of the session, its large texts among them, would have more than `snapshots.fileQuota`.
        FileQuota = "fileQuota",
        /// The client named a hash whose content the session does not have.
        Missing = "missing",
        /// The session has no project, so the path says nothing.
        NoProject = "noProject",
    }
}

/// A file whose content before a call was not kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NotKeptFile {
    /// The file.
    pub path: String,
    /// The reason.
    pub reason: NotKeptReason,
}

/// The files of one call whose contents were not kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NotKept {
    /// Their number.
    pub count: u64,
    /// The first 100 of them.
    pub files: Vec<NotKeptFile>,
}

impl NotKept {
    /// The most files that are listed.
    pub const MAX_FILES: usize = 100;

    /// Adds the files of another call.
    pub fn merge(&mut self, other: &Self) {
        self.count += other.count;
        let room = Self::MAX_FILES.saturating_sub(self.files.len());
        self.files.extend(other.files.iter().take(room).cloned());
    }

    /// Adds a file.
    pub fn add(&mut self, path: &str, reason: NotKeptReason) {
        self.count += 1;
        if self.files.len() < Self::MAX_FILES {
            self.files.push(NotKeptFile { path: path.to_owned(), reason });
        }
    }
}

/// Files that the daemon put back: the record of an applied plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PutBack {
    /// The plan.
    pub plan_id: PlanId,
    /// The call: `undo`, `redo` or `restore`.
    pub cause: String,
    /// The directory of the project.
    pub root: String,
    /// The files that have another state now, or for which the calls only changed sides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<PutBackFile>,
    /// The files that stayed as they were.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<PlannedFile>,
}

/// A file that the daemon put back.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PutBackFile {
    /// The file.
    pub path: String,
    /// The file before; its content is kept, so that this can be undone.
    pub before: FileState,
    /// The file after.
    pub after: FileState,
    /// The permissions, if they changed.
    pub mode: Option<FileModes>,
    /// The tool calls whose writes are not in the file any more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub back: Vec<Seq>,
    /// The tool calls whose writes are in the file again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forward: Vec<Seq>,
}

named_enum! {
    /// The planned change of a file, or its outcome.
    pub enum FileStatus {
        /// The file is put back, or was.
        PutBack = "putBack",
        /// The file is not as the session left it, so it stays.
        Conflict = "conflict",
        /// The content to put back is not known.
        Unknown = "unknown",
        /// The file has the wanted content already.
        Unchanged = "unchanged",
        /// The file is not in the project of the session.
        Outside = "outside",
        /// The file belongs to a repository of git.
        InGit = "inGit",
        /// The system refused the change, or the content that the file has could not be kept.
        Failed = "failed",
    }
}

named_enum! {
    /// The change of a file that is put back.
    pub enum FileAction {
        /// The file gets an earlier content, or a later one with `session.redo`.
        Replace = "replace",
        /// The file comes back.
        Create = "create",
        /// The file is removed.
        Remove = "remove",
        /// The file gets other permissions.
        SetMode = "setMode",
    }
}

named_enum! {
    /// A property that a replaced file loses, because the system does not let the daemon keep it.
    pub enum FileLoss {
        /// The other names of the file lead to the content that it has now, and not to the one that is put back.
        HardLinks = "hardLinks",
        /// The group.
        Group = "group",
        /// The set-user-ID, set-group-ID or sticky bit.
        SpecialBits = "specialBits",
        /// The access control list.
        Acl = "acl",
        /// Other extended attributes.
        ExtendedAttributes = "extendedAttributes",
    }
}

/// A file of a plan.
///
/// **Shape**: `{"path":"src/a.rs","status":"putBack","action":"replace"}`
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PlannedFile {
    /// The file.
    pub path: String,
    /// The status.
    pub status: FileStatus,
    /// For `putBack`: the change.
    pub action: Option<FileAction>,
    /// For `replace` and `create`: the content that the file gets, which `session.getFileContent` returns.
    pub hash: Option<FileHash>,
    /// For other statuses: the reason, for people.
    pub reason: Option<String>,
    /// For `putBack`: what the file loses. Everything else that belongs to it is kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub loses: Vec<FileLoss>,
}

/// A tool call that may have written files without saying which, so that they cannot be put back.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UnrecordedCall {
    /// The record of the call.
    pub seq: Seq,
    /// The tool.
    pub tool: String,
    /// The number of files that the client left out; absent if the call has no list of writes.
    pub omitted: Option<u64>,
    /// Whether the record is the start of a call whose result is not recorded: the tool still runs, or its client was
    /// killed. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unfinished: bool,
}

/// A content that was in a file when files were put back or taken back, and that could not return to its place.
///
/// **Shape**: `{"path":"src/a.rs","file":".ollm-undo-01a2078e-2837-74a1-ab02-363a2e5b039f/0"}`
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KeptFile {
    /// The file that had the content; empty for a file that somebody else put into the directory of the plan.
    pub path: String,
    /// The file that has it now, relative to the project.
    pub file: String,
}

/// The numbers of files of a plan by status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FileCounts {
    /// Put back.
    pub put_back: u64,
    /// Not as the session left them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub conflict: u64,
    /// Without a known content.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unknown: u64,
    /// As wanted already.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unchanged: u64,
    /// Outside of the project.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub outside: u64,
    /// In a repository of git.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub in_git: u64,
    /// Refused by the system, or with a content that could not be kept.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failed: u64,
}

impl FileCounts {
    /// Counts files.
    #[must_use]
    pub fn of(files: &[PlannedFile]) -> Self {
        let mut counts = Self::default();
        for file in files {
            *match file.status {
                FileStatus::PutBack => &mut counts.put_back,
                FileStatus::Conflict => &mut counts.conflict,
                FileStatus::Unknown => &mut counts.unknown,
                FileStatus::Unchanged => &mut counts.unchanged,
                FileStatus::Outside => &mut counts.outside,
                FileStatus::InGit => &mut counts.in_git,
                FileStatus::Failed => &mut counts.failed,
            } += 1;
        }
        counts
    }
}

/// A plan to put files back, or the result of one.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FilePlan {
    /// The plan, which the call that applies it names.
    pub plan_id: PlanId,
    /// The directory of the project; absent if the session has none.
    pub root: Option<String>,
    /// Whether the files were put back. Default false: nothing was changed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub applied: bool,
    /// The record with the results of all files, if files were put back.
    pub seq: Option<Seq>,
    /// The numbers of files.
    pub counts: FileCounts,
    /// The files by path; a list of more than 6 MiB is cut.
    pub files: Vec<PlannedFile>,
    /// The number of files that are not listed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unlisted: u64,
    /// The tool calls that may have written files without saying which: the first 100, unfinished ones before others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unrecorded: Vec<UnrecordedCall>,
    /// The number of all such calls.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unrecorded_calls: u64,
    /// The contents that this call and earlier ones left in the project, because nothing else has them: the first 1,000.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<KeptFile>,
}

named_enum! {
    /// The way in which `session.undo`, `session.redo` and `snapshot.restore` treat files.
    #[derive(Default)]
    pub enum FilesMode {
        /// Files are not examined.
        #[default]
        Skip = "skip",
        /// Nothing changes; the result has the plan.
        Preview = "preview",
        /// The files of a plan are put back together with the conversation.
        Apply = "apply",
    }
}

impl FilesMode {
    /// Returns whether files are not examined, for `skip_serializing_if`.
    #[must_use]
    pub const fn is_skip(&self) -> bool {
        matches!(self, Self::Skip)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn states_of_files_are_words_or_hashes() {
        let hash = FileHash([0xab; 32]);
        let check = |state: FileState, expect: serde_json::Value| {
            assert_eq!(serde_json::to_value(state).unwrap(), expect);
            assert_eq!(serde_json::from_value::<FileState>(expect).unwrap(), state);
        };
        check(FileState::Absent, json!("absent"));
        check(FileState::Unknown, json!("unknown"));
        check(FileState::Hash(hash), json!({ "hash": "ab".repeat(32) }));
        let hash = FileHash(std::array::from_fn(|at| at as u8 * 8 + 7));
        assert!(hash.to_string().starts_with("070f171f"), "{hash}");
        assert_eq!(hash.to_string().parse(), Ok(hash));
        assert_eq!(hash.to_string().to_uppercase().parse(), Ok(hash));
        for wrong in ["", "ab", &"g".repeat(64), &"é".repeat(32)] {
            assert_eq!(wrong.parse::<FileHash>(), Err(InvalidFileHash), "{wrong}");
        }
        let input: FileStateInput = serde_json::from_value(json!({ "text": "x" })).unwrap();
        assert_eq!(input, FileStateInput::Text("x".to_owned()));
    }
}
