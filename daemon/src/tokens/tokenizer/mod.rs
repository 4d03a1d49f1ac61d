//! Counting as the engine counts: a vocabulary, its rule, and nothing else.
//!
//! Must not know messages, templates or windows. **Invariant**: `count` is the length of `ids`, and `ids` are those of
//! llama.cpp's `llama_tokenize` with `parse_special`.

#[cfg(test)]
mod tests;

use parking_lot::Mutex;
use thiserror::Error;

use super::byte_level::ByteLevel;
use super::gemma::Gemma;
use super::sentence_piece::SentencePiece;
use super::special::{Fragment, Specials};
use super::split::pre_of;
use super::vocab::Vocabulary;
use super::words::{Count, Sink, Words};

/// Part of every identity: raised when the code gives other tokens for the same vocabulary.
const CODE_VERSION: u32 = 1;
/// Buffers that are kept; more threads at once make their own.
const KEPT_BUFFERS: usize = 4;

/// Why a vocabulary cannot be counted with. Nothing is guessed: the caller falls back to a number that says that it is
/// none.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum UnknownRule {
    /// The family has no tokenizer here.
    #[error("no tokenizer is known for vocabularies of the model {0:?}")]
    Model(String),
    /// The split rule is not in the table.
    #[error("no split rule is known by the name {0:?}")]
    Pre(String),
    /// The special tokens of a Phi-3 depend on what the model is called, and the description does not say it.
    #[error(
        "whether special tokens swallow white space depends on the model's name, which is missing"
    )]
    Name,
}

/// One of the ways from text to tokens.
#[derive(Debug)]
enum Family {
    ByteLevel(ByteLevel),
    Gemma(Gemma),
    SentencePiece(SentencePiece),
}

/// Turns text into tokens. It can be shared between threads.
#[derive(Debug)]
pub struct Tokenizer {
    family: Family,
    specials: Specials,
    /// Put before a text that stands alone.
    bos: Option<u32>,
    /// Put after it.
    eos: Option<u32>,
    identity: String,
    /// Buffers that nobody uses now. Held only to take one or to give it back.
    idle: Mutex<Vec<Words>>,
}

impl Tokenizer {
    /// Makes a tokenizer of a vocabulary; the vocabulary is not needed after that.
    ///
    /// **Errors**: where no rule is known for it.
    pub fn new(vocabulary: &Vocabulary) -> Result<Self, UnknownRule> {
        let family = Family::new(vocabulary)?;
        let hash = vocabulary.digest.to_hex();
        let (bos, eos) = family.ends(vocabulary);
        Ok(Self {
            family,
            specials: Specials::new(vocabulary),
            bos,
            eos,
            identity: format!("vocab-v{CODE_VERSION}-{}", &hash[..16]),
            idle: Mutex::default(),
        })
    }

    /// Names the vocabulary and the code that counts with it; stored beside every count.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Tokens of a part of a prompt, special tokens in it included.
    pub fn count(&self, text: &str) -> u32 {
        self.count_with(text, false)
    }

    /// Tokens of a text; with `add_special` of one that stands alone, as the engine counts a whole prompt.
    pub fn count_with(&self, text: &str, add_special: bool) -> u32 {
        let mut count = Count::default();
        self.run(text, add_special, &mut count);
        u32::try_from(count.0).unwrap_or(u32::MAX)
    }

    /// The tokens of a part of a prompt.
    pub fn ids(&self, text: &str) -> Vec<u32> {
        self.ids_with(text, false)
    }

    /// The tokens of a text; with `add_special` of one that stands alone.
    pub fn ids_with(&self, text: &str, add_special: bool) -> Vec<u32> {
        let mut ids = Vec::new();
        self.run(text, add_special, &mut ids);
        ids
    }

    /// Whether the engine puts a token of the beginning before a prompt.
    pub fn adds_bos(&self) -> bool {
        self.bos.is_some()
    }

    /// Memory that is given back when the tokenizer is dropped, about.
    ///
    /// **Units**: bytes.
    pub fn heap_bytes(&self) -> usize {
        let family = match &self.family {
            Family::ByteLevel(family) => family.heap_bytes(),
            Family::Gemma(family) => family.heap_bytes(),
            Family::SentencePiece(family) => family.heap_bytes(),
        };
        family + self.idle.lock().iter().map(Words::heap_bytes).sum::<usize>()
    }

    fn run<S: Sink>(&self, text: &str, add_special: bool, sink: &mut S) {
        let mut words = self.idle.lock().pop().unwrap_or_default();
        let around = |id: Option<u32>| id.filter(|_| add_special);
        sink.take(around(self.bos).as_slice());
        let text = text.as_bytes();
        let mut is_behind_special = true;
        for fragment in self.specials.cut(text) {
            match fragment {
                Fragment::Token(id) => sink.take(&[id]),
                Fragment::Text(ref range) => {
                    let text = &text[range.clone()];
                    self.family.encode(text, is_behind_special, &mut words, sink);
                }
            }
            is_behind_special = matches!(fragment, Fragment::Token(_));
        }
        sink.take(around(self.eos).as_slice());
        words.shrink();
        let mut idle = self.idle.lock();
        if idle.len() < KEPT_BUFFERS {
            idle.push(words);
        }
    }
}

impl Family {
    fn new(vocabulary: &Vocabulary) -> Result<Self, UnknownRule> {
        let pre = vocabulary.pre.as_str();
        match vocabulary.model.as_str() {
            "gemma4" => Ok(Self::Gemma(Gemma::new(vocabulary, true))),
            "gpt2" if matches!(pre, "gemma4" | "granite-embed-multi-311m") => {
                Ok(Self::Gemma(Gemma::new(vocabulary, true)))
            }
            "gpt2" if pre == "sarvam-moe" => Ok(Self::Gemma(Gemma::new(vocabulary, false))),
            "gpt2" => match pre_of(pre) {
                Some(pre) => Ok(Self::ByteLevel(ByteLevel::new(vocabulary, pre))),
                None => Err(UnknownRule::Pre(pre.to_owned())),
            },
            "llama" if vocabulary.architecture == "phi3" && vocabulary.name.is_none() => {
                Err(UnknownRule::Name)
            }
            "llama" => Ok(Self::SentencePiece(SentencePiece::new(vocabulary))),
            model => Err(UnknownRule::Model(model.to_owned())),
        }
    }

    /// The tokens around a text that stands alone.
    ///
    /// **Source**: `llama_vocab::impl::load`: the defaults of each family, then what the model says, then Gemma 4,
    /// which begins with one whatever the model says.
    fn ends(&self, vocabulary: &Vocabulary) -> (Option<u32>, Option<u32>) {
        let asked = vocabulary.adds_bos;
        let (adds_bos, default_bos, default_eos) = match self {
            Self::Gemma(_) if vocabulary.pre == "sarvam-moe" => {
                (asked.unwrap_or(false), Some(11), Some(11))
            }
            Self::Gemma(_) if vocabulary.model == "gpt2" => (true, Some(11), Some(11)),
            Self::Gemma(_) => (true, None, None),
            Self::SentencePiece(_) => (asked.unwrap_or(true), Some(1), Some(2)),
            Self::ByteLevel(family) => {
                let pre = family.pre();
                let bos = pre.has_bos.then_some(11);
                (asked.unwrap_or(pre.adds_bos), bos, Some(11))
            }
        };
        let known = |id: Option<u32>| id.filter(|id| *id < vocabulary.n_tokens);
        let bos = vocabulary.roles.bos.or(known(default_bos)).filter(|_| adds_bos);
        let eos = vocabulary.roles.eos.or(known(default_eos));
        (bos, eos.filter(|_| vocabulary.adds_eos.unwrap_or(false)))
    }

    #[inline]
    fn encode<S: Sink>(&self, text: &[u8], is_first: bool, words: &mut Words, sink: &mut S) {
        match self {
            Self::ByteLevel(family) => family.encode(text, words, sink),
            Self::Gemma(family) => family.encode(text, words, sink),
            Self::SentencePiece(family) => family.encode(text, is_first, words, sink),
        }
    }
}
