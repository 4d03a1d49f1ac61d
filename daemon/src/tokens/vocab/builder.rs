//! Collects what a reader finds under the keys of a model's description, and checks the whole.
//!
//! Must not know JSON or GGUF.
//!
//! **Source**: the keys and their meaning in llama.cpp's `llama-arch.cpp` and `llama_vocab::impl::load`.

use super::texts::{TextIndex, Texts};
use super::vocabulary::{self, Kind, Merge, Roles, Vocabulary, VocabularyError};

/// The most tokens of a vocabulary; the largest known has 262,144.
const MAX_TOKENS: usize = 4 << 20;
/// The most merges; the largest known has 514,906.
const MAX_MERGES: usize = 16 << 20;

/// The keys that matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Name,
    Architecture,
    Model,
    Pre,
    Tokens,
    Kinds,
    Scores,
    Merges,
    AddsBos,
    AddsEos,
    AddsSpacePrefix,
    /// An id, by its position in [`Roles::all_mut`].
    Role(usize),
}

impl Key {
    /// The key with a name.
    pub(super) fn of(name: &str) -> Option<Self> {
        let key = match name {
            "general.name" => Self::Name,
            "general.architecture" => Self::Architecture,
            _ => match name.strip_prefix("tokenizer.ggml.")? {
                "model" => Self::Model,
                "pre" => Self::Pre,
                "tokens" => Self::Tokens,
                "token_type" => Self::Kinds,
                "scores" => Self::Scores,
                "merges" => Self::Merges,
                "add_bos_token" => Self::AddsBos,
                "add_eos_token" => Self::AddsEos,
                "add_space_prefix" => Self::AddsSpacePrefix,
                "bos_token_id" => Self::Role(0),
                "eos_token_id" => Self::Role(1),
                "eot_token_id" => Self::Role(2),
                "eom_token_id" => Self::Role(3),
                "unknown_token_id" => Self::Role(4),
                "fim_pre_token_id" | "prefix_token_id" => Self::Role(5),
                "fim_suf_token_id" | "suffix_token_id" => Self::Role(6),
                "fim_mid_token_id" | "middle_token_id" => Self::Role(7),
                "fim_pad_token_id" => Self::Role(8),
                "fim_rep_token_id" => Self::Role(9),
                "fim_sep_token_id" => Self::Role(10),
                _ => return None,
            },
        };
        Some(key)
    }
}

/// A value, or an element of an array.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value<'v> {
    Text(&'v [u8]),
    Integer(i64),
    Real(f64),
    Flag(bool),
}

impl Value<'_> {
    fn text(self) -> Option<String> {
        match self {
            Self::Text(text) => Some(String::from_utf8_lossy(text).into_owned()),
            _ => None,
        }
    }

    fn flag(self) -> Option<bool> {
        match self {
            Self::Flag(flag) => Some(flag),
            _ => None,
        }
    }

    fn id(self) -> Option<u32> {
        match self {
            Self::Integer(id) => u32::try_from(id).ok(),
            _ => None,
        }
    }
}

/// A vocabulary that is being read.
#[derive(Debug, Default)]
pub(super) struct Builder {
    name: Option<String>,
    architecture: String,
    model: String,
    pre: String,
    tokens: Texts,
    kinds: Vec<Kind>,
    scores: Vec<f32>,
    merges: Texts,
    adds_bos: Option<bool>,
    adds_eos: Option<bool>,
    adds_space_prefix: Option<bool>,
    roles: Roles,
}

impl Builder {
    /// Takes a value that is no array; one of an unexpected type is as good as none.
    pub(super) fn value(&mut self, key: Key, value: Value<'_>) {
        match key {
            Key::Name => self.name = value.text(),
            Key::Architecture => self.architecture = value.text().unwrap_or_default(),
            Key::Model => self.model = value.text().unwrap_or_default(),
            Key::Pre => self.pre = value.text().unwrap_or_default(),
            Key::AddsBos => self.adds_bos = value.flag(),
            Key::AddsEos => self.adds_eos = value.flag(),
            Key::AddsSpacePrefix => self.adds_space_prefix = value.flag(),
            Key::Role(role) => *self.roles.all_mut()[role] = value.id(),
            Key::Tokens | Key::Kinds | Key::Scores | Key::Merges => {}
        }
    }

    /// Takes the next element of an array.
    ///
    /// **Errors**: `TooLarge` beyond any real vocabulary, `Malformed` where the type is wrong.
    #[expect(clippy::cast_possible_truncation, reason = "scores are stored as 32 bits")]
    #[expect(clippy::cast_precision_loss, reason = "integral scores are small")]
    pub(super) fn element(&mut self, key: Key, value: Value<'_>) -> Result<(), VocabularyError> {
        let has_room = match (key, value) {
            (Key::Tokens, Value::Text(text)) => {
                self.tokens.len() < MAX_TOKENS && self.push_token(text)
            }
            (Key::Merges, Value::Text(text)) => {
                self.merges.len() < MAX_MERGES && self.merges.push(text)
            }
            (Key::Kinds, Value::Integer(kind)) => {
                self.kinds.push(Kind::of(kind));
                self.kinds.len() <= MAX_TOKENS
            }
            (Key::Scores, Value::Integer(score)) => {
                self.scores.push(score as f32);
                self.scores.len() <= MAX_TOKENS
            }
            (Key::Scores, Value::Real(score)) => {
                self.scores.push(score as f32);
                self.scores.len() <= MAX_TOKENS
            }
            (Key::Tokens | Key::Merges | Key::Kinds | Key::Scores, _) => {
                return Err(VocabularyError::Malformed("an array holds values of a wrong type"));
            }
            _ => true,
        };
        if has_room { Ok(()) } else { Err(VocabularyError::TooLarge("entries")) }
    }

    /// An empty text stands for a placeholder, as in the engine.
    fn push_token(&mut self, text: &[u8]) -> bool {
        if text.is_empty() {
            let placeholder = format!("[EMPTY_{}]", self.tokens.len());
            return self.tokens.push(placeholder.as_bytes());
        }
        self.tokens.push(text)
    }

    /// Checks the whole and resolves the merges.
    ///
    /// **Errors**: `NoTokens`, or `Malformed` where arrays disagree.
    pub(super) fn finish(mut self) -> Result<Vocabulary, VocabularyError> {
        let n = self.tokens.len();
        if n == 0 {
            return Err(VocabularyError::NoTokens);
        }
        let disagree = |len: usize| len != 0 && len < n;
        if disagree(self.scores.len()) || disagree(self.kinds.len()) {
            return Err(VocabularyError::Malformed("fewer scores or types than tokens"));
        }
        self.scores.truncate(n);
        self.kinds.truncate(n);
        if self.model != "llama" {
            // Only SentencePiece merges by scores; some files carry them all the same.
            self.scores = Vec::new();
        }
        let n_tokens = u32::try_from(n).map_err(|_| VocabularyError::TooLarge("tokens"))?;
        for role in self.roles.all_mut() {
            *role = role.filter(|id| *id < n_tokens);
        }
        let merges = resolve(&mut self.tokens, &self.merges)?;
        let mut vocabulary = Vocabulary {
            model: self.model,
            pre: self.pre,
            name: self.name,
            architecture: self.architecture,
            texts: self.tokens,
            n_tokens,
            merges,
            scores: self.scores,
            kinds: self.kinds,
            roles: self.roles,
            adds_bos: self.adds_bos,
            adds_eos: self.adds_eos,
            adds_space_prefix: self.adds_space_prefix,
            digest: blake3::Hash::from_bytes([0; 32]),
        };
        vocabulary.digest = vocabulary::digest(&vocabulary);
        Ok(vocabulary)
    }
}

/// Turns `left right` into the number of the text that both make; a text that is no token gets a number behind them.
fn resolve(texts: &mut Texts, merges: &Texts) -> Result<Vec<Merge>, VocabularyError> {
    let mut index = TextIndex::of(texts);
    let mut resolved = Vec::with_capacity(merges.len());
    let mut whole = Vec::new();
    for merge in merges.iter() {
        // The first space that is not the very first byte; a merge without one joins nothing.
        let space = merge.iter().skip(1).position(|byte| *byte == b' ').map(|at| at + 1);
        let Some(space) = space else { continue };
        let (left, right) = (&merge[..space], &merge[space + 1..]);
        whole.clear();
        whole.extend_from_slice(left);
        whole.extend_from_slice(right);
        let text = match index.find(texts, &whole) {
            Some(text) => text,
            None => {
                let at = u32::try_from(texts.len()).unwrap_or(u32::MAX);
                if !texts.push(&whole) {
                    return Err(VocabularyError::TooLarge("merges"));
                }
                index.insert(texts, at);
                at
            }
        };
        let left_bytes = u32::try_from(left.len()).unwrap_or(u32::MAX);
        resolved.push(Merge { text, left_bytes });
    }
    Ok(resolved)
}
