//! Params and results of the methods: one file per noun, however short, so that a method is found by its name.
//!
//! **Invariant**: params refuse unknown fields, so that a misspelled option is an error and never a silent default.

pub mod backup;
pub mod chat;
pub mod context;
pub mod daemon;
pub mod env;
pub mod event;
pub mod files;
pub mod goal;
pub mod hook;
pub mod loops;
pub mod model;
pub mod session;
pub mod snapshot;
pub mod store;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

/// A part of a text that can be larger than a response: the JSON of a record, a build or a snapshot, an exported file,
/// or base64. All parts, joined, are the text. It stays the same from the first part to the last one.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TextPart {
    /// The part.
    pub data: String,
    /// The `cursor` of the next part; absent for the last part.
    pub next_cursor: Option<String>,
    /// How much is done with this part: bytes of JSON or of a file, or records of an export. A format can need several
    /// passes over the records, which begin at 0.
    pub done: u64,
    /// The number of all bytes or records.
    pub total: u64,
}
