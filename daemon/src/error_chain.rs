//! The text of an error together with its sources.
//!
//! An error's own text does not repeat its source, so whoever prints one for the last time prints the chain:
//! replies to clients and lines of the log.

use std::error::Error;

/// Returns the texts of the error and of all its sources on one line, separated by `: `.
pub(crate) fn with_sources(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text = format!("{text}: {source}");
        next = source.source();
    }
    text
}
