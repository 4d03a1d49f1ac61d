//! The builder that readers fill with the metadata of a model, and that validates the result.
//!
//! Must not know JSON or GGUF.
//!
//! **Source**: the keys in llama.cpp's `llama-arch.cpp`, and their meaning in `llama_vocab::impl::load`.

use super::texts::{TextIndex, Texts};
use super::vocabulary::{Merge, TokenKind, TokenRole, Vocabulary, VocabularyError};

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
    /// The id of the token that has a role.
    Role(TokenRole),
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
                "bos_token_id" => Self::Role(TokenRole::Bos),
                "eos_token_id" => Self::Role(TokenRole::Eos),
                "eot_token_id" => Self::Role(TokenRole::Eot),
                "eom_token_id" => Self::Role(TokenRole::Eom),
                "unknown_token_id" => Self::Role(TokenRole::Unknown),
                "fim_pre_token_id" | "prefix_token_id" => Self::Role(TokenRole::FimPrefix),
                "fim_suf_token_id" | "suffix_token_id" => Self::Role(TokenRole::FimSuffix),
                "fim_mid_token_id" | "middle_token_id" => Self::Role(TokenRole::FimMiddle),
                "fim_pad_token_id" => Self::Role(TokenRole::FimPad),
                "fim_rep_token_id" => Self::Role(TokenRole::FimRepo),
                "fim_sep_token_id" => Self::Role(TokenRole::FimSeparator),
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

/// A vocabulary under construction.
#[derive(Debug, Default)]
pub(super) struct VocabularyBuilder {
    /// The values so far; its texts are the tokens.
    vocabulary: Vocabulary,
    /// The merges in the form `left right`.
    merges: Texts,
}

impl VocabularyBuilder {
    /// Sets a value that is not an array. Ignores a value of an unexpected type.
    pub(super) fn set(&mut self, key: MetadataKey, value: MetadataValue<'_>) {
        let vocabulary = &mut self.vocabulary;
        match (key, value) {
            (MetadataKey::Name, MetadataValue::Text(text)) => vocabulary.name = Some(string(text)),
            (MetadataKey::Architecture, MetadataValue::Text(text)) => {
                vocabulary.architecture = string(text);
            }
            (MetadataKey::Model, MetadataValue::Text(text)) => vocabulary.model = string(text),
            (MetadataKey::Pre, MetadataValue::Text(text)) => vocabulary.pre = string(text),
            (MetadataKey::AddsBos, MetadataValue::Flag(flag)) => vocabulary.adds_bos = Some(flag),
            (MetadataKey::AddsEos, MetadataValue::Flag(flag)) => vocabulary.adds_eos = Some(flag),
            (MetadataKey::AddsSpacePrefix, MetadataValue::Flag(flag)) => {
                vocabulary.adds_space_prefix = Some(flag);
            }
            (MetadataKey::Role(role), MetadataValue::Integer(id)) => {
                vocabulary.roles[role as usize] = u32::try_from(id).ok();
            }
            _ => {}
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
        let vocabulary = &mut self.vocabulary;
        let has_room = match (key, value) {
            (MetadataKey::Tokens, MetadataValue::Text(text)) => {
                vocabulary.texts.len() < MAX_TOKENS && push_token(&mut vocabulary.texts, text)
            }
            (MetadataKey::Merges, MetadataValue::Text(text)) => {
                self.merges.len() < MAX_MERGES && self.merges.push(text)
            }
            (MetadataKey::Kinds, MetadataValue::Integer(kind)) => {
                vocabulary.kinds.push(TokenKind::from_number(kind));
                vocabulary.kinds.len() <= MAX_TOKENS
            }
            (MetadataKey::Scores, MetadataValue::Integer(_) | MetadataValue::Real(_)) => {
                vocabulary.scores.push(match value {
                    MetadataValue::Integer(score) => score as f32,
                    MetadataValue::Real(score) => score as f32,
                    _ => 0.0,
                });
                vocabulary.scores.len() <= MAX_TOKENS
            }
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

    /// Validates the values and resolves the merges.
    ///
    /// **Errors**: `NoTokens`, or `Malformed` if arrays have different lengths.
    pub(super) fn finish(self) -> Result<Vocabulary, VocabularyError> {
        let mut vocabulary = self.vocabulary;
        let n = vocabulary.texts.len();
        if n == 0 {
            return Err(VocabularyError::NoTokens);
        }
        let is_too_short = |len: usize| len != 0 && len < n;
        if is_too_short(vocabulary.scores.len()) || is_too_short(vocabulary.kinds.len()) {
            return Err(VocabularyError::Malformed("fewer scores or types than tokens"));
        }
        vocabulary.scores.truncate(n);
        vocabulary.kinds.truncate(n);
        if vocabulary.model != "llama" {
            // Some files contain scores although only SentencePiece merges by them.
            vocabulary.scores = Vec::new();
        }
        let n_tokens = u32::try_from(n).map_err(|_| VocabularyError::TooLarge("tokens"))?;
        vocabulary.n_tokens = n_tokens;
        vocabulary.roles = vocabulary.roles.map(|role| role.filter(|id| *id < n_tokens));
        vocabulary.merges = resolve(&mut vocabulary.texts, &self.merges)?;
        Ok(vocabulary.with_digest())
    }
}

fn string(text: &[u8]) -> String {
    String::from_utf8_lossy(text).into_owned()
}

/// Appends a token; like the engine, it replaces an empty text by a placeholder.
fn push_token(tokens: &mut Texts, text: &[u8]) -> bool {
    if text.is_empty() {
        let placeholder = format!("[EMPTY_{}]", tokens.len());
        return tokens.push(placeholder.as_bytes());
    }
    tokens.push(text)
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
