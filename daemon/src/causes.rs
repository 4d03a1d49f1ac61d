//! An error told with everything that led to it.

use std::error::Error;

/// The error and its causes on one line: what was attempted, and why it failed.
pub(crate) fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        text = format!("{text}: {source}");
        cause = source.source();
    }
    text
}
