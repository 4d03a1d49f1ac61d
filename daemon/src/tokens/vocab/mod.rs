//! A model's vocabulary: its tokens, merges or scores, and the settings that decide how text becomes tokens.
//!
//! A vocabulary is read from verbose `/api/show` JSON (`show`), from the header of a GGUF file (`gguf`), from the
//! `tokenizer.json` of Hugging Face (`tokenizer_json`), or from its stored form (`vocabulary`). Must not know how text is
//! split or merged.
//!
//! **Invariant**: untrusted bytes never cause a panic, nor an allocation beyond a small multiple of their length.

mod builder;
mod gguf;
mod show;
#[cfg(test)]
mod tests;
mod texts;
mod tokenizer_json;
mod vocabulary;

pub(super) use texts::{TextIndex, Texts};
pub(super) use vocabulary::{BYTE_LEVEL, CHAR_LEVEL, TokenKind, TokenRole};
pub use vocabulary::{Vocabulary, VocabularyError};
