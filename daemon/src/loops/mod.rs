//! Loop detection: whether a session repeats itself, folded from its records.
//!
//! [`observe()`] takes from one record what counts, [`Detector::fold`] takes observations in the order of the log,
//! [`Detector::found`] says what repeats. Four things are loops: one call with equal arguments again and again,
//! two to four calls that take turns, results or answers that say the same, and more calls of the model than are
//! allowed since the user last said something.
//!
//! **Invariants**: pure; what is found follows from the records since the last user message or reset alone, so a
//! restart changes nothing; the memory of a detector does not grow with the session. Must not know where records
//! come from nor what becomes of a loop.

mod canonical;
mod detector;
mod observe;
mod output;
mod runs;

pub(crate) use detector::Detector;
pub(crate) use observe::{Observation, observe};

use crate::config::LoopDetectionConfig;

/// Records that are enough to find whatever repeats `threshold` times: as many rounds of the longest cycle, each
/// call with its message, its tool call and its result.
pub(crate) fn look_back(config: &LoopDetectionConfig) -> usize {
    3 * (config.repeat_threshold as usize + 1) * runs::MAX_CYCLE
}

#[cfg(test)]
mod tests;
