//! Counting tokens of texts, messages, records and whole prompts.
//!
//! The rest of the daemon uses [`Counter`]. It estimates, or counts exactly with a [`Tokenizer`], which returns the token
//! ids of llama.cpp ("the engine"), and a [`Template`], which knows the text between messages. A [`Calibration`] corrects counts
//! that are not exact. One file per tokenizer family turns words into tokens.
//! Must not know sessions, windows or budgets, and does no I/O.
//!
//! **Invariants**: a count depends only on its input and on what its counter was created from; an unknown vocabulary or
//! rule is an error, never a guess.

mod byte_level;
mod calibration;
mod char_level;
mod counter;
mod doubt;
mod engine;
mod estimate;
mod exact;
mod go_heap;
mod linear_fit;
mod merge;
mod replicas;
mod served;
mod special;
mod split;
mod template;
#[cfg(test)]
pub(crate) mod testing;
mod tokenizer;
mod vocab;
mod words;

pub(crate) use calibration::{Calibration, is_plausible};
pub(crate) use counter::Counter;
pub(crate) use doubt::{Doubts, MessageShape};
pub use engine::Engine;
pub(crate) use estimate::{ESTIMATE_MARGIN_DIVISOR, IMAGE_TOKENS};
pub(crate) use exact::{CachedTokenizer, ExactCounter, Fault};
pub(crate) use served::ServedTexts;
pub(crate) use template::Template;
pub(crate) use template::learn::{learn, probes};
pub use tokenizer::{Tokenizer, TokenizerError};
pub use vocab::{Vocabulary, VocabularyError};
