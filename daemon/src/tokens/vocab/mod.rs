//! A model's vocabulary: its tokens, merges or scores, and the settings that decide how text becomes tokens.
//!
//! A vocabulary is read from verbose `/api/show` JSON (`show`), from the header of a GGUF file (`gguf`), or from its
//! stored form (`vocabulary`). Must not know how text is split or merged.
//!
//! **Invariant**: untrusted bytes never cause a panic, nor an allocation beyond a small multiple of their length.

mod builder;
mod gguf;
mod show;
#[cfg(test)]
mod tests;
mod texts;
mod vocabulary;

pub(super) use texts::{TextIndex, Texts};
pub(super) use vocabulary::{TokenKind, TokenRole};
pub use vocabulary::{Vocabulary, VocabularyError};
