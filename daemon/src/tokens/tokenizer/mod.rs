//! The tokenizer: a vocabulary with the rules of its family, counting exactly as the engine does.
//!
//! Must not know messages, templates or windows.
//!
//! **Invariant**: the ids are those that the engine returns: llama.cpp's `llama_tokenize` with `parse_special`, `Encode`
//! of Ollama's engine in Go, or `encode` of Hugging Face's library without added tokens. A count is the number of these ids.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::sync::Arc;

use parking_lot::Mutex;
use thiserror::Error;

use super::byte_level::ByteLevel;
use super::char_level::{CharLevel, SpacePrefix};
use super::engine::Engine;
use super::special::{Fragment, SpecialTokens};
use super::split::PreTokenizer;
use super::vocab::{BYTE_LEVEL, CHAR_LEVEL, TokenRole, Vocabulary};
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
    /// A byte has no token, so some texts have none either.
    #[error("the vocabulary has no token for some bytes")]
    MissingByte,
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
    /// Whether the model itself says that its prompts begin with BOS, and not only its family.
    asks_for_bos: bool,
    engine: Engine,
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
    /// Creates the tokenizer that an engine has for a vocabulary, which it does not keep.
    ///
    /// **Errors**: if the rules of the vocabulary are unknown.
    pub fn new(vocabulary: &Vocabulary, engine: Engine) -> Result<Self, TokenizerError> {
        let (family, added, engine) = match engine {
            Engine::OllamaGo => match TokenizerFamily::in_go(vocabulary) {
                Some((family, added)) => (family, added, engine),
                // Ollama runs a vocabulary that its engine in Go refuses with llama.cpp.
                None => return Self::new(vocabulary, Engine::OldLlamaCpp),
            },
            Engine::HuggingFace => {
                let none = AddedTokens { adds_bos: false, default_bos: None, default_eos: None };
                (TokenizerFamily::in_hugging_face(vocabulary)?, none, engine)
            }
            Engine::LlamaCpp | Engine::OldLlamaCpp => {
                let (family, added) = TokenizerFamily::in_llama_cpp(vocabulary, engine)?;
                (family, added, engine)
            }
        };
        let existing = |id: Option<u32>| id.filter(|id| *id < vocabulary.n_tokens);
        let bos = vocabulary.role(TokenRole::Bos).or(existing(added.default_bos));
        let eos = vocabulary.role(TokenRole::Eos).or(existing(added.default_eos));
        Ok(Self {
            family,
            specials: SpecialTokens::new(vocabulary, engine),
            bos: bos.filter(|_| added.adds_bos),
            eos: eos.filter(|_| vocabulary.adds_eos.unwrap_or(false)),
            asks_for_bos: asks_for_bos(vocabulary),
            engine,
            identity: format!("vocab-v{CODE_VERSION}{}-{}", engine.mark(), vocabulary.file_name())
                .into(),
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

    /// Counts the tokens of a whole prompt as the engine does.
    pub(crate) fn count_prompt(&self, prompt: &str) -> u32 {
        let ids = self.ids(prompt);
        u32::try_from(ids.len() + self.n_added(prompt, ids.first())).unwrap_or(u32::MAX)
    }

    /// Returns the number of tokens that the engine adds to a prompt, of which `first` is the first token: BOS and EOS, or
    /// none if they take the place of a text of BOS.
    pub(super) fn n_added(&self, prompt: &str, first: Option<&u32>) -> usize {
        let added = self.ids_with("", true);
        let is_replaced = self.asks_for_bos && self.engine.removes_bos(prompt);
        if is_replaced && first == added.first() { 0 } else { added.len() }
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

    /// Returns whether a text contains a special token.
    pub(super) fn has_special_token(&self, text: &str) -> bool {
        self.specials.occur_in(text.as_bytes())
    }

    /// Returns a text in which no control token occurs, as [`Counter::defuse`](super::counter::Counter::defuse) does.
    pub(super) fn without_controls<'t>(&self, text: &'t str) -> Cow<'t, str> {
        self.specials.without_controls(text)
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
        for fragment in self.specials.split(text) {
            match fragment {
                Fragment::Token(id) => sink.push_all(&[id]),
                Fragment::Text(ref range) => {
                    let is_start = range.start == 0;
                    self.family.encode(&text[range.clone()], is_start, &mut buffers, sink);
                }
            }
        }
        sink.push_all(added(self.eos).as_slice());
        buffers.shrink();
        let mut idle = self.idle.lock();
        if idle.len() < MAX_IDLE_BUFFERS {
            idle.push(buffers);
        }
    }
}

/// Returns whether Ollama takes a model for one that adds BOS.
///
/// **Source**: `tokenizerAddsBOS` in `llm/llama_server.go` of Ollama 0.33.
fn asks_for_bos(vocabulary: &Vocabulary) -> bool {
    let is_gemma4 = [&vocabulary.pre, &vocabulary.model].into_iter().any(|name| name == "gemma4");
    is_gemma4 || vocabulary.pre == "lfm2" || vocabulary.adds_bos == Some(true)
}

impl TokenizerFamily {
    /// Builds the tables of a vocabulary for Ollama's engine in Go, or returns `None` if that engine refuses it.
    ///
    /// **Source**: the `New` functions in Ollama 0.24's `model/models`.
    fn in_go(vocabulary: &Vocabulary) -> Option<(Self, AddedTokens)> {
        let Vocabulary { architecture, model, pre, .. } = vocabulary;
        let refused = match architecture.as_str() {
            "deepseek2" => pre != "deepseek-v3",
            "glm4moelite" => pre != "glm4",
            "laguna" => pre != "laguna",
            "lfm2" | "lfm2moe" => model != "gpt2",
            "qwen2" => model == "llama",
            _ => false,
        };
        let family = match architecture.as_str() {
            _ if refused => return None,
            "gemma2" | "gemma3n" => {
                Self::CharLevel(CharLevel::sentence_piece(vocabulary, Engine::OllamaGo))
            }
            "gemma3" if model != "gpt2" => {
                Self::CharLevel(CharLevel::sentence_piece(vocabulary, Engine::OllamaGo))
            }
            "llama" if model == "llama" => {
                Self::CharLevel(CharLevel::sentence_piece(vocabulary, Engine::OllamaGo))
            }
            "gemma4" => Self::CharLevel(CharLevel::gemma_in_go(vocabulary)),
            architecture => {
                let pre = PreTokenizer::in_ollama_go(architecture, pre)?;
                Self::ByteLevel(ByteLevel::new(vocabulary, pre, Engine::OllamaGo))
            }
        };
        let without_bos = matches!(
            architecture.as_str(),
            "gemma4"
                | "glm4moelite"
                | "glmocr"
                | "gptoss"
                | "gpt-oss"
                | "nemotron_h"
                | "nemotron_h_moe"
                | "nemotron_h_omni"
                | "olmo3"
                | "qwen25vl"
                | "qwen35"
                | "qwen35moe"
                | "qwen3next"
                | "qwen3vl"
                | "qwen3vlmoe"
        );
        let adds_bos = vocabulary.adds_bos.unwrap_or(!without_bos);
        Some((family, AddedTokens { adds_bos, default_bos: Some(0), default_eos: Some(0) }))
    }

    /// Builds the tables of a vocabulary for llama.cpp.
    ///
    /// **Source**: `llama_vocab::impl::load`: the defaults of each family, overridden by the model, except that
    /// Gemma 4 always adds BOS.
    fn in_llama_cpp(
        vocabulary: &Vocabulary,
        engine: Engine,
    ) -> Result<(Self, AddedTokens), TokenizerError> {
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
                    let Some(pre) = PreTokenizer::in_llama_cpp(pre, engine) else {
                        return Err(TokenizerError::UnknownPreTokenizer(pre.to_owned()));
                    };
                    let family = Self::ByteLevel(ByteLevel::new(vocabulary, pre, engine));
                    (family, adds_bos(pre.adds_bos), pre.has_bos.then_some(11), Some(11))
                }
            },
            "llama" if vocabulary.needs_name() => {
                return Err(TokenizerError::MissingName);
            }
            "llama" => {
                let family = Self::CharLevel(CharLevel::sentence_piece(vocabulary, engine));
                (family, adds_bos(true), Some(1), Some(2))
            }
            model => return Err(TokenizerError::UnknownModel(model.to_owned())),
        };
        Ok((family, AddedTokens { adds_bos, default_bos, default_eos }))
    }

    /// Builds the tables of a vocabulary from a `tokenizer.json`.
    fn in_hugging_face(vocabulary: &Vocabulary) -> Result<Self, TokenizerError> {
        let pre = vocabulary.pre.as_str();
        let unknown = || TokenizerError::UnknownPreTokenizer(pre.to_owned());
        let (family, has_bytes) = match vocabulary.model.as_str() {
            BYTE_LEVEL => {
                let pre = PreTokenizer::in_hugging_face(pre).ok_or_else(unknown)?;
                let family = ByteLevel::new(vocabulary, pre, Engine::HuggingFace);
                let has_bytes = family.has_all_bytes();
                (Self::ByteLevel(family), has_bytes)
            }
            CHAR_LEVEL => {
                let prefix = SpacePrefix::by_name(pre).ok_or_else(unknown)?;
                let family = CharLevel::of_pairs(vocabulary, prefix);
                let has_bytes = family.has_all_bytes();
                (Self::CharLevel(family), has_bytes)
            }
            model => return Err(TokenizerError::UnknownModel(model.to_owned())),
        };
        if has_bytes { Ok(family) } else { Err(TokenizerError::MissingByte) }
    }

    #[inline]
    fn encode<S: TokenSink>(
        &self,
        text: &[u8],
        is_start: bool,
        buffers: &mut WordBuffers,
        sink: &mut S,
    ) {
        match self {
            Self::ByteLevel(family) => family.encode(text, buffers, sink),
            Self::CharLevel(family) => family.encode(text, is_start, buffers, sink),
        }
    }
}
