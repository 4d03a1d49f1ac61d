//! How results look: for people as text, for programs as JSON.
//!
//! Everything but [`terminal`], [`progress`] and [`waiting`] is pure: values in, text out. Text that came from models,
//! tools or files passes [`ollm_protocol::sanitize`] before it enters a text for people.

pub(crate) mod answer;
pub(crate) mod compaction;
pub(crate) mod context;
pub(crate) mod daemon;
pub(crate) mod entries;
pub(crate) mod event;
pub(crate) mod goal;
pub(crate) mod import;
pub(crate) mod json;
pub(crate) mod loops;
pub(crate) mod models;
pub(crate) mod number;
pub(crate) mod progress;
pub(crate) mod search;
pub(crate) mod sessions;
pub(crate) mod style;
pub(crate) mod table;
pub(crate) mod terminal;
pub(crate) mod time;
pub(crate) mod transcript;
pub(crate) mod usage;
pub(crate) mod waiting;
pub(crate) mod window;

use ollm_protocol::Timestamp;

/// For whom something is laid out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    /// Columns of a line.
    pub(crate) width: usize,
    /// The present instant.
    pub(crate) now: Timestamp,
    /// Whether long texts are printed whole.
    pub(crate) full: bool,
}
