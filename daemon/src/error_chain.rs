//! The text of an error together with its sources.
//!
//! The text of an error does not repeat its source, so replies to clients and log lines contain the whole chain.

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
