//! The builder that readers fill with the metadata of a model, and that validates the result.
//!
//! Must not know JSON or GGUF.
//!
//! **Source**: the keys in llama.cpp's `llama-arch.cpp`, and their meaning in `llama_vocab::impl::load`.

use super::texts::{TextIndex, Texts};
use super::vocabulary::{Merge, TokenKind, TokenRoles, Vocabulary, VocabularyError};

/// Maximum number of tokens; the largest known vocabulary has 262,144.
const MAX_TOKENS: usize = 4 << 20;
/// Maximum number of merges; the largest known vocabulary has 514,906.
const MAX_MERGES: usize = 16 << 20;

/// A metadata key that a vocabulary depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MetadataKey {
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
    /// A token id, by its position in [`TokenRoles::all_mut`].
    Role(usize),
}

impl MetadataKey {
    /// Returns the key with a name, or `None` for a key that does not matter.
    pub(super) fn by_name(name: &str) -> Option<Self> {
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

/// A metadata value, or an element of an array.
#[derive(Clone, Copy, Debug)]
pub(super) enum MetadataValue<'v> {
    Text(&'v [u8]),
    Integer(i64),
    Real(f64),
    Flag(bool),
}

impl MetadataValue<'_> {
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

/// A vocabulary under construction.
#[derive(Debug, Default)]
pub(super) struct VocabularyBuilder {
    name: Option<String>,
    architecture: String,
    model: String,
    pre: String,
    tokens: Texts,
    kinds: Vec<TokenKind>,
    scores: Vec<f32>,
    merges: Texts,
    adds_bos: Option<bool>,
    adds_eos: Option<bool>,
    adds_space_prefix: Option<bool>,
    roles: TokenRoles,
}

impl VocabularyBuilder {
    /// Sets a value that is not an array. A value of an unexpected type counts as missing.
    pub(super) fn set(&mut self, key: MetadataKey, value: MetadataValue<'_>) {
        match key {
            MetadataKey::Name => self.name = value.text(),
            MetadataKey::Architecture => self.architecture = value.text().unwrap_or_default(),
            MetadataKey::Model => self.model = value.text().unwrap_or_default(),
            MetadataKey::Pre => self.pre = value.text().unwrap_or_default(),
            MetadataKey::AddsBos => self.adds_bos = value.flag(),
            MetadataKey::AddsEos => self.adds_eos = value.flag(),
            MetadataKey::AddsSpacePrefix => self.adds_space_prefix = value.flag(),
            MetadataKey::Role(role) => *self.roles.all_mut()[role] = value.id(),
            MetadataKey::Tokens
            | MetadataKey::Kinds
            | MetadataKey::Scores
            | MetadataKey::Merges => {}
        }
    }

    /// Appends the next element of an array.
    ///
    /// **Errors**: `TooLarge` if there are more elements than in any real vocabulary, `Malformed` for a wrong type.
    #[expect(clippy::cast_possible_truncation, reason = "scores are stored as 32 bits")]
    #[expect(clippy::cast_precision_loss, reason = "integral scores are small")]
    pub(super) fn append(
        &mut self,
        key: MetadataKey,
        value: MetadataValue<'_>,
    ) -> Result<(), VocabularyError> {
        let has_room = match (key, value) {
            (MetadataKey::Tokens, MetadataValue::Text(text)) => {
                self.tokens.len() < MAX_TOKENS && self.push_token(text)
            }
            (MetadataKey::Merges, MetadataValue::Text(text)) => {
                self.merges.len() < MAX_MERGES && self.merges.push(text)
            }
            (MetadataKey::Kinds, MetadataValue::Integer(kind)) => {
                self.kinds.push(TokenKind::from_number(kind));
                self.kinds.len() <= MAX_TOKENS
            }
            (MetadataKey::Scores, MetadataValue::Integer(score)) => self.push_score(score as f32),
            (MetadataKey::Scores, MetadataValue::Real(score)) => self.push_score(score as f32),
            (
                MetadataKey::Tokens
                | MetadataKey::Merges
                | MetadataKey::Kinds
                | MetadataKey::Scores,
                _,
            ) => {
                return Err(VocabularyError::Malformed("an array contains values of a wrong type"));
            }
            _ => true,
        };
        if has_room { Ok(()) } else { Err(VocabularyError::TooLarge("entries")) }
    }

    fn push_score(&mut self, score: f32) -> bool {
        self.scores.push(score);
        self.scores.len() <= MAX_TOKENS
    }

    /// Appends a token; like the engine, it replaces an empty text by a placeholder.
    fn push_token(&mut self, text: &[u8]) -> bool {
        if text.is_empty() {
            let placeholder = format!("[EMPTY_{}]", self.tokens.len());
            return self.tokens.push(placeholder.as_bytes());
        }
        self.tokens.push(text)
    }

    /// Validates the values and resolves the merges.
    ///
    /// **Errors**: `NoTokens`, or `Malformed` if arrays have different lengths.
    pub(super) fn finish(mut self) -> Result<Vocabulary, VocabularyError> {
        let n = self.tokens.len();
        if n == 0 {
            return Err(VocabularyError::NoTokens);
        }
        let is_too_short = |len: usize| len != 0 && len < n;
        if is_too_short(self.scores.len()) || is_too_short(self.kinds.len()) {
            return Err(VocabularyError::Malformed("fewer scores or types than tokens"));
        }
        self.scores.truncate(n);
        self.kinds.truncate(n);
        if self.model != "llama" {
            // Some files contain scores although only SentencePiece merges by them.
            self.scores = Vec::new();
        }
        let n_tokens = u32::try_from(n).map_err(|_| VocabularyError::TooLarge("tokens"))?;
        for role in self.roles.all_mut() {
            *role = role.filter(|id| *id < n_tokens);
        }
        let merges = resolve(&mut self.tokens, &self.merges)?;
        Ok(Vocabulary {
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
        }
        .with_digest())
    }
}

/// Resolves merges of the form `left right` to the number of the merged text. A text that is not a token is appended
/// to `texts`.
fn resolve(texts: &mut Texts, merges: &Texts) -> Result<Vec<Merge>, VocabularyError> {
    let mut index = TextIndex::of(texts);
    let mut resolved = Vec::with_capacity(merges.len());
    let mut whole = Vec::new();
    for merge in merges.iter() {
        // The separator is the first space after the first byte; a merge without one is ignored.
        let space = merge.iter().skip(1).position(|byte| *byte == b' ').map(|at| at + 1);
        let Some(space) = space else { continue };
        let (left, right) = (&merge[..space], &merge[space + 1..]);
        whole.clear();
        whole.extend_from_slice(left);
        whole.extend_from_slice(right);
        let text = index.add(texts, &whole).ok_or(VocabularyError::TooLarge("merges"))?;
        let left_bytes = u32::try_from(left.len()).unwrap_or(u32::MAX);
        resolved.push(Merge { text, left_bytes });
    }
    Ok(resolved)
}
