//! `files.*`: the files of workspaces, their changes, and search by name.
//!
//! A root is an absolute path. Paths of files are relative to their root, with `/` between their parts; one that is not
//! UTF-8 has `U+FFFD` in `path`, and all its bytes in `pathBytes`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::Timestamp;
use crate::content::named_enum;

/// The params of `files.discover`.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FilesDiscoverParams {
    /// The directory, an absolute path.
    pub root: String,
    /// The depth of the deepest files: those of the root have depth 1. Default `files.maxDepth`, which it cannot exceed.
    pub max_depth: Option<u32>,
    /// Only files that match one of these patterns, or are in a directory that does: at most 1,000 patterns in the syntax
    /// of `.gitignore`, relative to the root. Default all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub include: Vec<String>,
    /// Files to leave out, as in `include`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    /// Whether files are listed whose names, or those of whose directories, begin with a dot. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hidden: bool,
    /// Whether size and time are returned, for which each file of the page is looked up. Default true.
    pub details: Option<bool>,
    /// The most files of the page, 1 to 10,000; default 1,000.
    pub limit: Option<u32>,
    /// The `nextCursor` of the page before; absent for the first page.
    pub cursor: Option<String>,
    /// Set to walk the root again although its changes are followed, and to try again to watch one that is polled.
    /// Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub refresh: bool,
}

/// The result of `files.discover`: a page of files.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FilesDiscoverResult {
    /// The files, in the order of the bytes of their directories and names; during the first walk of a root, in the order
    /// in which it finds directories.
    pub data: Vec<WorkspaceFile>,
    /// The warnings about what was left out, at most 100: on the first and the last page.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<WorkspaceWarning>,
    /// The generation of the root before the page was made: `files.watch` continues after it.
    pub generation: u64,
    /// The cursor of the next page; absent at the end.
    pub next_cursor: Option<String>,
}

/// A file or a symbolic link of a workspace.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceFile {
    /// The path.
    #[serde(flatten)]
    pub path: WorkspacePath,
    /// The kind of the entry.
    pub kind: WorkspaceFileKind,
    /// The size in bytes; that of a link is the length of its target. Absent without `details`, and if the file cannot be
    /// looked up.
    pub size: Option<u64>,
    /// The time of the last change of the content. Absent as `size` is.
    pub modified_at: Option<Timestamp>,
}

/// The path of a file, relative to its root.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkspacePath {
    /// The path as text.
    pub path: String,
    /// The bytes of the path in Base64 (RFC 4648, section 4, with padding); only if they are not UTF-8.
    pub path_bytes: Option<String>,
}

named_enum! {
    /// The kind of an entry of a workspace.
    pub enum WorkspaceFileKind {
        /// A regular file.
        File = "file",
        /// A symbolic link, which is not followed.
        Symlink = "symlink",
    }
}

/// Something in a workspace that was left out or not understood.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceWarning {
    /// The directory, relative to the root, or the absolute path of an ignore file.
    pub path: String,
    /// The problem, for people.
    pub message: String,
}

/// The params of `files.search`.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FilesSearchParams {
    /// The directory, an absolute path.
    pub root: String,
    /// Words whose letters must occur in a path in their order, at most 1,024 bytes. A word with an upper-case letter
    /// matches case.
    pub query: String,
    /// Only some files, as for `files.discover`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub include: Vec<String>,
    /// Files to leave out, as for `files.discover`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    /// Whether hidden files are searched, as for `files.discover`. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hidden: bool,
    /// The most files, 1 to 1,000; default 50.
    pub limit: Option<u32>,
}

/// The result of `files.search`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FilesSearchResult {
    /// The files, the best first.
    pub data: Vec<WorkspaceHit>,
    /// The generation of the root.
    pub generation: u64,
    /// The number of files that were searched.
    pub searched: u64,
    /// Whether the first walk of the root still runs, so that files may be missing. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub walking: bool,
}

/// A file that a search found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceHit {
    /// The path.
    #[serde(flatten)]
    pub path: WorkspacePath,
    /// The kind of the entry.
    pub kind: WorkspaceFileKind,
    /// The rank; greater is better. Comparable within one search only.
    pub score: u32,
    /// The matched characters of `path`, as numbers of Unicode scalar values from 0, rising.
    pub positions: Vec<u32>,
}

/// The params of `files.watch`.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FilesWatchParams {
    /// The directory, an absolute path.
    pub root: String,
    /// Only some files, as for `files.discover`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub include: Vec<String>,
    /// Files to leave out, as for `files.discover`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    /// Whether hidden files are watched, as for `files.discover`. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hidden: bool,
    /// The last generation that the client knows: the changes after it come first, or `resync` if they are not known any
    /// more. Default: only new changes.
    pub since: Option<u64>,
}

/// An item of a `files.watch` subscription.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case", rename_all_fields = "camelCase")]
pub enum FilesEvent {
    /// The first item: changes after this generation follow.
    Watching {
        /// The generation.
        generation: u64,
        /// The way in which changes are noticed.
        mode: WatchMode,
    },
    /// Files changed. `added`, `modified` and `removed` have no path in common; a renamed file whose content changed is
    /// also in `modified`, by its new path.
    FilesChanged {
        /// The generation after the changes.
        generation: u64,
        /// Files that are new, or not ignored any more.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        added: Vec<WorkspacePath>,
        /// Files that were written, replaced, or whose rights or times changed.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        modified: Vec<WorkspacePath>,
        /// Files that are gone, or ignored now.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        removed: Vec<WorkspacePath>,
        /// Files that have another path now.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        renamed: Vec<RenamedPath>,
    },
    /// More changed than is known one by one, so the client lists again with `files.discover`.
    Resync {
        /// The generation.
        generation: u64,
    },
    /// The root cannot be read any more. When it can again, `resync` follows.
    RootGone {
        /// The generation.
        generation: u64,
        /// The reason, for people.
        message: String,
    },
}

/// A file that was renamed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RenamedPath {
    /// The path before.
    pub from: WorkspacePath,
    /// The path after.
    pub to: WorkspacePath,
}

named_enum! {
    /// The way in which changes of a root are noticed.
    pub enum WatchMode {
        /// The system reports them.
        Watch = "watch",
        /// The root is walked again: every few seconds while it is watched, and before it is listed.
        Poll = "poll",
    }
}

/// The result of `files.status`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FilesStatusResult {
    /// The roots in memory, in the order of their paths.
    pub roots: Vec<WorkspaceRoot>,
    /// The most roots at once; the least recently used one gives way to another.
    pub max_roots: u32,
    /// Problems that a person can solve, such as too few watches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// A root in memory.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceRoot {
    /// The directory.
    pub root: String,
    /// Whether hidden files are among its files. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hidden: bool,
    /// The depth of its deepest files; absent without a limit.
    pub max_depth: Option<u32>,
    /// The stage.
    pub state: WorkspaceState,
    /// The reason why it cannot be read; only in the state `gone`.
    pub problem: Option<String>,
    /// The way in which changes are noticed.
    pub mode: WatchMode,
    /// The number of files and links.
    pub files: u64,
    /// The number of directories.
    pub directories: u64,
    /// The generation.
    pub generation: u64,
    /// The number of `files.watch` subscriptions.
    pub subscriptions: u64,
    /// The memory of its files, in bytes.
    pub memory_bytes: u64,
    /// The time of its last walk, in milliseconds.
    pub walk_ms: u64,
    /// Whether it has more files than are kept, so that some are missing. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    /// The number of warnings that `files.discover` returns.
    pub warnings: u64,
    /// The seconds since a call used it.
    pub idle_seconds: u64,
}

named_enum! {
    /// The stage of a root.
    pub enum WorkspaceState {
        /// The first walk runs.
        Walking = "walking",
        /// Its files are known.
        Ready = "ready",
        /// Its disk does not answer.
        Hanging = "hanging",
        /// The root cannot be read.
        Gone = "gone",
    }
}
