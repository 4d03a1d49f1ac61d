//! Loop detection: finds repetition in the records of one session.
//!
//! [`observe()`] extracts from a record what the detection compares, [`Detector::fold`] takes observations in the
//! order of the log, and [`Detector::found`] reports what repeats: a call with equal arguments, a cycle of two to
//! four calls, equal results or answers, or more model calls than allowed since the last user message.
//!
//! **Invariants**: pure; a loop follows from the records since the last user message or reset alone, so a restart
//! changes nothing; the memory of a detector is bounded. Must not know where records come from nor what a loop stops.

mod detector;
mod digest;

pub(crate) use detector::{Detector, Observation, look_back, observe};

#[cfg(test)]
mod tests;
