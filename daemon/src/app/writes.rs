//! The files that tool calls wrote, as clients report them.
//!
//! The contents from before a call are kept as blobs of the session, within `snapshots.fileLimit` and
//! `snapshots.fileQuota`. Nothing is read from the project: the earlier contents come from the client.

use std::collections::HashSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ollm_protocol::content::{
    FileHash, FileModes, FileState, FileStateInput, FileWrite, FileWriteInput, NotKeptReason,
    ToolCall,
};

use super::core::Core;
use super::error::{AppError, Result};
use crate::session::{KeptContent, KeptFiles};

/// The nine bits of permissions.
const MODE_BITS: u32 = 0o777;

/// Adds the writes that a client reports to a tool call, and returns the contents to keep.
///
/// **Errors**: `Invalid` for a path that is not relative, that leaves its directory or that occurs twice, for a
/// `renamedFrom` that is no path of the call, for wrong base64, for permissions of more than nine bits, and for more directories than the path has.
pub(crate) fn add_writes(
    core: &Core,
    call: &mut ToolCall,
    writes: Option<Vec<FileWriteInput>>,
    omitted: u64,
) -> Result<KeptFiles> {
    call.writes_omitted = omitted;
    let config = core.config();
    let mut kept =
        KeptFiles { quota_bytes: config.snapshots.file_quota_bytes, ..KeptFiles::default() };
    let Some(writes) = writes else { return Ok(kept) };
    let mut paths = HashSet::new();
    for write in &writes {
        check_path(&write.path)?;
        write.mode.as_ref().map(check_modes).transpose()?;
        check_dirs(write)?;
        if !paths.insert(write.path.as_str()) {
            return Err(AppError::invalid("toolCall.writes", "names a path twice"));
        }
    }
    let mut renamed_from = writes.iter().filter_map(|write| write.renamed_from.as_deref());
    if renamed_from.any(|path| !paths.contains(path)) {
        let problem = "has a `renamedFrom` that is no `path` of the same call";
        return Err(AppError::invalid("toolCall.writes", problem));
    }
    let limit_bytes = config.snapshots.file_limit_bytes;
    let writes: Result<Vec<_>> =
        writes.into_iter().map(|write| recorded(write, limit_bytes, &mut kept)).collect();
    call.writes = Some(writes?);
    Ok(kept)
}

fn recorded(write: FileWriteInput, limit_bytes: u64, kept: &mut KeptFiles) -> Result<FileWrite> {
    let FileWriteInput { path, before, after, mode, renamed_from, created_dirs } = write;
    let before = match content(before)? {
        (state, None) => state,
        (FileState::Hash(hash), Some(bytes)) if bytes.len() as u64 <= limit_bytes => {
            kept.contents.insert(hash, KeptContent::Bytes(bytes));
            FileState::Hash(hash)
        }
        _ => {
            kept.not_kept.add(&path, NotKeptReason::FileLimit);
            FileState::Unknown
        }
    };
    let (after, _) = content(after)?;
    Ok(FileWrite { path, before, after, mode, renamed_from, created_dirs })
}

/// Returns a state with the content, if the client sent it.
fn content(input: FileStateInput) -> Result<(FileState, Option<Vec<u8>>)> {
    let bytes = match input {
        FileStateInput::Absent => return Ok((FileState::Absent, None)),
        FileStateInput::Unknown => return Ok((FileState::Unknown, None)),
        FileStateInput::Hash(hash) => return Ok((FileState::Hash(hash), None)),
        FileStateInput::Text(text) => text.into_bytes(),
        FileStateInput::Base64(text) => STANDARD.decode(text).map_err(|_| {
            AppError::invalid("toolCall.writes", "has a content that is not base64")
        })?,
    };
    Ok((FileState::Hash(FileHash(*blake3::hash(&bytes).as_bytes())), Some(bytes)))
}

/// Refuses a path that does not name a file beneath the directory of the project.
fn check_path(path: &str) -> Result<()> {
    let is_part = |part: &str| !matches!(part, "" | "." | "..");
    if path.contains('\0') || !path.split('/').all(is_part) {
        let problem =
            "has a path that is not relative to the project, without `.`, `..` and empty parts";
        return Err(AppError::invalid("toolCall.writes", problem));
    }
    Ok(())
}

/// Refuses more directories than the path has.
fn check_dirs(write: &FileWriteInput) -> Result<()> {
    if write.created_dirs as usize <= write.path.matches('/').count() {
        return Ok(());
    }
    Err(AppError::invalid(
        "toolCall.writes",
        "has more `createdDirs` than its path has directories",
    ))
}

fn check_modes(modes: &FileModes) -> Result<()> {
    let is_mode = |mode: Option<u32>| mode.is_none_or(|mode| mode <= MODE_BITS);
    if is_mode(modes.before) && is_mode(modes.after) {
        return Ok(());
    }
    Err(AppError::invalid("toolCall.writes", "has a mode of more than nine bits"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_that_leaves_the_project_is_refused() {
        let check = |path: &str, is_valid: bool| {
            assert_eq!(check_path(path).is_ok(), is_valid, "{path:?}");
        };
        check("a", true);
        check("src/a b/ü.rs", true);
        check(".hidden/...", true);
        for path in ["", "/", "/etc/passwd", "..", "a/../b", "./a", "a/./b", "a//b", "a/", "a\0b"] {
            check(path, false);
        }
    }
}
