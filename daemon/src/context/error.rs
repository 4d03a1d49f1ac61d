//! The errors of a build. They are in a file of their own because the files of every level return them.

/// The reason why a context cannot be built.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ContextError {
    /// The parts that cannot be left out do not fit.
    #[error("the {what} needs {needed} tokens of {available}")]
    Overflow {
        /// The fewest tokens with which a context could be built.
        needed: u64,
        available: u64,
        /// The part that is too large.
        what: &'static str,
    },
    #[error("no strategy is named {name}; there are {}", listed(known))]
    UnknownStrategy {
        name: String,
        /// The name of each strategy and what it keeps.
        known: Vec<(&'static str, &'static str)>,
    },
    #[error("a context window of {size} tokens is too small; the least is {minimum}")]
    WindowTooSmall { size: u32, minimum: u32 },
    #[error(transparent)]
    Contents(#[from] ContentsError),
}

/// The records of a context could not be read at all.
#[derive(Debug, thiserror::Error)]
#[error("reading the records of a context")]
pub(crate) struct ContentsError(#[from] std::io::Error);

/// Joins names and what they stand for on one line.
fn listed(known: &[(&str, &str)]) -> String {
    let items: Vec<String> =
        known.iter().map(|(name, about)| format!("{name} ({about})")).collect();
    items.join(", ")
}
