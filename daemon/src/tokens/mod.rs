//! Counting tokens: what a text, a message or a record costs in a context.
//!
//! Must not know sessions, windows or budgets. Every count is a pure function of its input, so the same log
//! always gives the same context.

mod byte_level;
mod calibration;
mod counter;
mod escaped;
mod estimate;
mod exact;
mod gemma;
mod merge;
mod sentence_piece;
mod special;
mod split;
mod template;
#[cfg(test)]
mod testing;
mod tokenizer;
mod vocab;
mod words;

pub(crate) use calibration::{Calibration, is_plausible};
pub(crate) use counter::Counter;
pub(crate) use estimate::{ESTIMATE_MARGIN_DIVISOR, IMAGE_TOKENS};
pub(crate) use exact::{Engine, Exact};
pub(crate) use template::Template;
pub(crate) use template::learn::{learn, probes};
pub use tokenizer::{Tokenizer, UnknownRule};
pub use vocab::{Vocabulary, VocabularyError};
