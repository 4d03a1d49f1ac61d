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

use std::io::Read;

pub(super) use texts::{TextIndex, Texts};
pub(super) use vocabulary::Kind;
pub use vocabulary::{Vocabulary, VocabularyError};

impl Vocabulary {
    /// Reads the answer of `/api/show` with `verbose: true`.
    ///
    /// **Errors**: `Json` where it does not parse, `NoTokens` where it was not verbose.
    pub fn from_show(json: &[u8]) -> Result<Self, VocabularyError> {
        show::read(json)?.finish()
    }

    /// Reads the header of a GGUF file, version 2 or 3, up to where the tensors are listed.
    ///
    /// **Errors**: `Io` where the reader ends or fails, `Malformed` where it is no such file.
    pub fn from_gguf(file: impl Read) -> Result<Self, VocabularyError> {
        gguf::read(file)?.finish()
    }
}
