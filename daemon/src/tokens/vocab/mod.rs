//! A model's vocabulary: the texts of its tokens, its merges or scores, and what else decides how text becomes tokens.
//!
//! Must not know how text is split or merged. Three readers make one: verbose `/api/show` JSON (`show`), the header of
//! a GGUF file (`gguf`) and our own stored form (`stored`).
//!
//! **Invariants**: every id is below the number of tokens, every merge names texts that exist, and no bytes from
//! outside make a panic or an allocation beyond a small multiple of their own length.

mod builder;
mod gguf;
mod show;
mod stored;
#[cfg(test)]
mod tests;
mod texts;

use std::io::Read;

use thiserror::Error;

pub(super) use builder::Kind;
pub(super) use texts::{TextIndex, Texts};

/// Why bytes are not a vocabulary.
#[derive(Debug, Error)]
pub enum VocabularyError {
    /// The bytes are not what they were said to be.
    #[error("not a vocabulary: {0}")]
    Malformed(&'static str),
    /// The JSON does not parse.
    #[error("read the description of the model")]
    Json(#[source] serde_json::Error),
    /// The file cannot be read, or ends too early.
    #[error("read the header of the model file")]
    Io(#[source] std::io::Error),
    /// The model says nothing of its tokens; a server leaves them out where it was not asked for all of them.
    #[error("the model's description holds no tokens")]
    NoTokens,
    /// More or longer than any vocabulary.
    #[error("the vocabulary has too many {0}")]
    TooLarge(&'static str),
    /// A stored vocabulary of another version of the daemon.
    #[error("the stored vocabulary is of version {found}, this daemon writes {supported}")]
    Version {
        /// The version in the bytes.
        found: u32,
        /// The only one that is read.
        supported: u32,
    },
    /// A stored vocabulary that is damaged.
    #[error("the stored vocabulary does not match its checksum")]
    Checksum,
}

/// A merge: the text that it makes, and how many bytes of that are its left half. Its rank is its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Merge {
    pub(super) text: u32,
    pub(super) left_bytes: u32,
}

/// The tokens that a model names by their role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Roles {
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
    pub(super) eot: Option<u32>,
    pub(super) eom: Option<u32>,
    pub(super) unknown: Option<u32>,
    pub(super) fim_prefix: Option<u32>,
    pub(super) fim_suffix: Option<u32>,
    pub(super) fim_middle: Option<u32>,
    pub(super) fim_pad: Option<u32>,
    pub(super) fim_repo: Option<u32>,
    pub(super) fim_separator: Option<u32>,
}

impl Roles {
    fn all_mut(&mut self) -> [&mut Option<u32>; 11] {
        [
            &mut self.bos,
            &mut self.eos,
            &mut self.eot,
            &mut self.eom,
            &mut self.unknown,
            &mut self.fim_prefix,
            &mut self.fim_suffix,
            &mut self.fim_middle,
            &mut self.fim_pad,
            &mut self.fim_repo,
            &mut self.fim_separator,
        ]
    }
}

/// What a model says of its tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Vocabulary {
    /// `tokenizer.ggml.model`: the family.
    pub(super) model: String,
    /// `tokenizer.ggml.pre`: the split rule; empty where the model names none.
    pub(super) pre: String,
    /// `general.name`; `None` where it was left out, as a model server does.
    pub(super) name: Option<String>,
    /// `general.architecture`.
    pub(super) architecture: String,
    /// The tokens by id; behind them the texts that only merges make.
    pub(super) texts: Texts,
    /// How many of the texts are tokens.
    pub(super) n_tokens: u32,
    pub(super) merges: Vec<Merge>,
    /// One for each token, or none at all.
    pub(super) scores: Vec<f32>,
    /// One for each token, or none at all.
    pub(super) kinds: Vec<Kind>,
    pub(super) roles: Roles,
    pub(super) adds_bos: Option<bool>,
    pub(super) adds_eos: Option<bool>,
    pub(super) adds_space_prefix: Option<bool>,
    /// The hash of all of the above.
    pub(super) digest: blake3::Hash,
}

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

    /// Reads what [`Self::to_bytes`] wrote.
    ///
    /// **Errors**: `Version` where another daemon wrote it, `Checksum` or `Malformed` where it is damaged.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, VocabularyError> {
        stored::decode(bytes)
    }

    /// The compact form for `vocab/<digest>`; FORMAT.md describes it.
    pub fn to_bytes(&self) -> Vec<u8> {
        stored::encode(self)
    }

    /// Says what the model is called, which a model server leaves out of its description.
    #[must_use]
    pub fn with_name(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self.digest = stored::digest(&self);
        self
    }

    /// The number of tokens.
    pub fn n_tokens(&self) -> u32 {
        self.n_tokens
    }
}
