//! Sessions as files: export and import.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Session;
use crate::SessionId;

/// The forms of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ExportFormat {
    /// The session document.
    Json,
    /// Every record, one a line; an import gives the same session back.
    Jsonl,
    /// For reading.
    Markdown,
    /// For a browser; one page without scripts.
    Html,
}

/// Reads a session as a file, chunk by chunk.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionExportParams {
    /// The session.
    pub session_id: SessionId,
    /// The form.
    pub format: ExportFormat,
    /// Continue after an earlier chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// A chunk of an export; all chunks show the session as it was at the first.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionExportResult {
    /// The text to append to the file.
    pub data: String,
    /// Where the next chunk begins; absent at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
    /// Records written so far.
    pub done_records: u64,
    /// Records in all.
    pub total_records: u64,
}

/// Gives the daemon a file to import, chunk by chunk; the format is found from the content.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionImportParams {
    /// The upload that this chunk continues; absent for the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upload_id: Option<String>,
    /// The text of this chunk.
    pub data: String,
    /// True for the last chunk: the import happens now.
    pub last: bool,
    /// The project's directory; default: what the file says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_path: Option<String>,
    /// Only say what would be imported.
    #[serde(default)]
    pub dry_run: bool,
}

/// Either the upload to continue, or what was imported.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionImportResult {
    /// Set until the last chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upload_id: Option<String>,
    /// The imported session; absent until the last chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<Session>,
    /// What was carried over and what was not; absent until the last chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<ImportReport>,
}

/// What an import carried over.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImportReport {
    /// The format that was found, for example `pi v1`.
    pub format: String,
    /// Records in the file.
    pub source_records: u64,
    /// Records written to the session.
    pub imported_records: u64,
    /// True when this file was imported before and nothing was written.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub already_imported: bool,
    /// What could not be carried over, or only in part.
    pub losses: Vec<ImportLoss>,
}

/// Something that an import could not carry over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImportLoss {
    /// The line of the file, from 1; absent for a file that is one document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    /// What it was, for example `thinking_level_change`.
    pub what: String,
    /// Why it was not carried over, or what was left out.
    pub reason: String,
}
