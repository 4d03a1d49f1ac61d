//! The tokenizer: a vocabulary with the rules of its family, counting exactly as the engine does.
//!
//! Must not know messages, templates or windows.
//!
//! **Invariant**: the ids are those that llama.cpp's `llama_tokenize` returns with `parse_special`, and a count is the
//! number of these ids.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use parking_lot::Mutex;
use thiserror::Error;

use super::byte_level::ByteLevel;
use super::char_level::CharLevel;
use super::special::{Fragment, SpecialTokens};
use super::split::PreTokenizer;
use super::vocab::{TokenRole, Vocabulary};
use super::words::{TokenCount, TokenSink, WordBuffers};

/// A part of every identity. It must be raised when the code returns other tokens for the same vocabulary.
const CODE_VERSION: u32 = 1;
/// Maximum number of idle buffers; if more threads count at once, the others create their own.
const MAX_IDLE_BUFFERS: usize = 4;

/// The reason why a vocabulary has no exact tokenizer. The caller falls back to an estimate.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum TokenizerError {
    /// The tokenizer family is unknown.
    #[error("unknown tokenizer model {0:?}")]
    UnknownModel(String),
    /// The pre-tokenizer is unknown.
    #[error("unknown pre-tokenizer {0:?}")]
    UnknownPreTokenizer(String),
    /// The name of the model is missing. For the Phi-3 architecture it decides whether special tokens consume white
    /// space.
    #[error("the name of the model is missing, on which the special tokens of Phi-3 depend")]
    MissingName,
}

/// The tokenizer of one vocabulary; threads can share it.
#[derive(Debug)]
pub struct Tokenizer {
    family: TokenizerFamily,
    specials: SpecialTokens,
    /// The token before a whole prompt.
    bos: Option<u32>,
    /// The token after a whole prompt.
    eos: Option<u32>,
    identity: Arc<str>,
    /// Buffers that no thread uses; locked only to take or return one.
    idle: Mutex<Vec<WordBuffers>>,
}

#[derive(Debug)]
enum TokenizerFamily {
    ByteLevel(ByteLevel),
    CharLevel(CharLevel),
}

/// The rules of a family for the tokens that the engine adds before and after a prompt.
struct AddedTokens {
    adds_bos: bool,
    /// The id of BOS in vocabularies that name none.
    default_bos: Option<u32>,
    /// The id of EOS in vocabularies that name none.
    default_eos: Option<u32>,
}

impl Tokenizer {
    /// Creates the tokenizer of a vocabulary, which it does not keep.
    ///
    /// **Errors**: if the rules of the vocabulary are unknown.
    pub fn new(vocabulary: &Vocabulary) -> Result<Self, TokenizerError> {
        let (family, added) = TokenizerFamily::new(vocabulary)?;
        let existing = |id: Option<u32>| id.filter(|id| *id < vocabulary.n_tokens);
        let bos = vocabulary.role(TokenRole::Bos).or(existing(added.default_bos));
        let eos = vocabulary.role(TokenRole::Eos).or(existing(added.default_eos));
        let hash = blake3::Hash::from(vocabulary.digest).to_hex();
        Ok(Self {
            family,
            specials: SpecialTokens::new(vocabulary),
            bos: bos.filter(|_| added.adds_bos),
            eos: eos.filter(|_| vocabulary.adds_eos.unwrap_or(false)),
            identity: format!("vocab-v{CODE_VERSION}-{}", &hash[..16]).into(),
            idle: Mutex::default(),
        })
    }

    /// Returns the name of the vocabulary and of the code that counts with it, which is stored beside every count.
    pub fn identity(&self) -> Arc<str> {
        Arc::clone(&self.identity)
    }

    /// Counts the tokens of a part of a prompt. Special tokens in the text are recognized.
    pub fn count(&self, text: &str) -> u32 {
        self.count_with(text, false)
    }

    /// Counts the tokens of a text; with `add_special` including BOS and EOS, as the engine adds them to a prompt.
    pub fn count_with(&self, text: &str, add_special: bool) -> u32 {
        let mut count = TokenCount::default();
        self.encode(text, add_special, &mut count);
        u32::try_from(count.0).unwrap_or(u32::MAX)
    }

    /// Counts the tokens of a whole prompt as the engine does: BOS and EOS are added unless the prompt begins with
    /// them.
    pub(super) fn count_prompt(&self, prompt: &str) -> u32 {
        let ids = self.ids(prompt);
        let added = self.ids_with("", true);
        let n_added = if ids.first() == added.first() { 0 } else { added.len() };
        u32::try_from(ids.len() + n_added).unwrap_or(u32::MAX)
    }

    /// Returns the tokens of a part of a prompt.
    pub fn ids(&self, text: &str) -> Vec<u32> {
        self.ids_with(text, false)
    }

    /// Returns the tokens of a text; with `add_special` including BOS and EOS.
    pub fn ids_with(&self, text: &str, add_special: bool) -> Vec<u32> {
        let mut ids = Vec::new();
        self.encode(text, add_special, &mut ids);
        ids
    }

    /// Returns whether the engine adds a BOS token to a prompt.
    pub fn adds_bos(&self) -> bool {
        self.bos.is_some()
    }

    fn encode<S: TokenSink>(&self, text: &str, add_special: bool, sink: &mut S) {
        let mut buffers = self.idle.lock().pop().unwrap_or_default();
        let added = |id: Option<u32>| id.filter(|_| add_special);
        sink.push_all(added(self.bos).as_slice());
        let text = text.as_bytes();
        let mut is_first = true;
        for fragment in self.specials.split(text) {
            match fragment {
                Fragment::Token(id) => sink.push_all(&[id]),
                Fragment::Text(ref range) => {
                    self.family.encode(&text[range.clone()], is_first, &mut buffers, sink);
                }
            }
            is_first = matches!(fragment, Fragment::Token(_));
        }
        sink.push_all(added(self.eos).as_slice());
        buffers.shrink();
        let mut idle = self.idle.lock();
        if idle.len() < MAX_IDLE_BUFFERS {
            idle.push(buffers);
        }
    }
}

impl TokenizerFamily {
    /// Builds the tables of a vocabulary.
    ///
    /// **Source**: `llama_vocab::impl::load`: the defaults of each family, overridden by the model, except that
    /// Gemma 4 always adds BOS.
    fn new(vocabulary: &Vocabulary) -> Result<(Self, AddedTokens), TokenizerError> {
        let pre = vocabulary.pre.as_str();
        let gemma = |has_line_feed_tokens| {
            Self::CharLevel(CharLevel::gemma(vocabulary, has_line_feed_tokens))
        };
        let adds_bos = |default: bool| vocabulary.adds_bos.unwrap_or(default);
        let (family, adds_bos, default_bos, default_eos) = match vocabulary.model.as_str() {
            "gemma4" => (gemma(true), true, None, None),
            "gpt2" => match pre {
                "gemma4" | "granite-embed-multi-311m" => (gemma(true), true, Some(11), Some(11)),
                "sarvam-moe" => (gemma(false), adds_bos(false), Some(11), Some(11)),
                _ => {
                    let Some(pre) = PreTokenizer::by_name(pre) else {
                        return Err(TokenizerError::UnknownPreTokenizer(pre.to_owned()));
                    };
                    let family = Self::ByteLevel(ByteLevel::new(vocabulary, pre));
                    (family, adds_bos(pre.adds_bos), pre.has_bos.then_some(11), Some(11))
                }
            },
            "llama" if vocabulary.architecture == "phi3" && vocabulary.name.is_none() => {
                return Err(TokenizerError::MissingName);
            }
            "llama" => {
                let family = Self::CharLevel(CharLevel::sentence_piece(vocabulary));
                (family, adds_bos(true), Some(1), Some(2))
            }
            model => return Err(TokenizerError::UnknownModel(model.to_owned())),
        };
        Ok((family, AddedTokens { adds_bos, default_bos, default_eos }))
    }

    #[inline]
    fn encode<S: TokenSink>(
        &self,
        text: &[u8],
        is_first: bool,
        buffers: &mut WordBuffers,
        sink: &mut S,
    ) {
        match self {
            Self::ByteLevel(family) => family.encode(text, buffers, sink),
            Self::CharLevel(family) => family.encode(text, is_first, buffers, sink),
        }
    }
}
