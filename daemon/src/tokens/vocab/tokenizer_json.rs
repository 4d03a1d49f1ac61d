//! Reads a vocabulary from a `tokenizer.json`, the file of Hugging Face's library `tokenizers`.
//!
//! The file describes a pipeline. Only what changes the tokens of a text is read: added tokens, normalizer,
//! pre-tokenizer and model. What the engine here does not do exactly is an error that names it.
//! Must not know how text is split or merged.
//!
//! **Invariant**: a vocabulary is returned only if every part of the pipeline is known, so nothing is guessed.
//!
//! **Source**: `tokenizers` 0.23: `AddedVocabulary`, the `serialization.rs` of the model `BPE`, and the normalizers
//! `Prepend`, `Replace` and `NFC`. The library composes characters (`NFC`) by an older Unicode than the engine here: where
//! a text has two characters in a row that only a later Unicode composes (U+11935 U+11930, U+16D63 U+16D67, U+105D2
//! U+0307), a model with `NFC` may be sent a few more tokens than are counted.

use std::borrow::Cow;
use std::fmt;

use rustc_hash::FxHashMap;
use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::builder::{MetadataKey, MetadataValue, VocabularyBuilder};
use super::vocabulary::{BYTE_LEVEL, CHAR_LEVEL, TokenKind, Vocabulary, VocabularyError};

/// The expressions by which byte-level models split text, and the names of the rules that do the same.
#[rustfmt::skip]
pub(super) const EXPRESSIONS: &[(&[&str], &str)] = &[
    (&[r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"],
     "llama3"),
    (&[r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"],
     "qwen2"),
    (&[r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"],
     "qwen35"),
    (&[r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"],
     "gpt-4o"),
    (&[r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"],
     "tekken"),
    (&[r"\p{N}{1,3}", "[一-龥\u{3040}-ゟ゠-ヿ]+",
       "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"],
     "deepseek-v3"),
];

/// The character that replaces a space.
const SPACE: &str = "▁";
/// The most ids without a token. Real files have some hundreds at most, and a large id must not allocate memory.
const MAX_GAPS: usize = 4096;
/// The most bytes of the normalizer, and of the pre-tokenizer. The known ones have some hundreds, and a value in memory is
/// many times larger than its text.
const MAX_STEPS_BYTES: usize = 64 * 1024;
/// The most bytes of an added token. Real ones have up to a hundred.
const MAX_ADDED_BYTES: usize = 256;
/// The most pairs of added tokens that are compared, which takes milliseconds. Real files have some thousand tokens, hardly
/// any of them normalized.
const MAX_ADDED_PAIRS: usize = 1 << 20;

#[derive(Deserialize)]
struct TokenizerFile<'f> {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    #[serde(borrow, default)]
    normalizer: Option<&'f RawValue>,
    #[serde(borrow, default)]
    pre_tokenizer: Option<&'f RawValue>,
    #[serde(borrow)]
    model: PairModel<'f>,
}

/// The beginning of every file: the kinds of models have different fields.
#[derive(Deserialize)]
struct AnyFile {
    model: AnyModel,
}

#[derive(Deserialize)]
struct AnyModel {
    #[serde(rename = "type")]
    kind: Option<String>,
}

#[derive(Deserialize)]
struct AddedToken {
    id: u32,
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    normalized: bool,
    #[serde(default)]
    special: bool,
}

/// A model of byte-pair encoding.
#[derive(Deserialize)]
struct PairModel<'f> {
    dropout: Option<f64>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
    #[serde(borrow)]
    vocab: TokenIds<'f>,
    #[serde(borrow)]
    merges: Vec<PairOfTexts<'f>>,
}

/// The two halves of a merge, which older files write as one text with a space between them.
struct PairOfTexts<'f>(Cow<'f, str>, Cow<'f, str>);

impl<'de: 'f, 'f> Deserialize<'de> for PairOfTexts<'f> {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        struct PairVisitor;

        impl<'de> Visitor<'de> for PairVisitor {
            type Value = PairOfTexts<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("two texts")
            }

            fn visit_str<E: Error>(self, both: &str) -> Result<Self::Value, E> {
                let halves = both.split_once(' ').filter(|(_, right)| !right.contains(' '));
                let (left, right) = halves.ok_or_else(|| E::custom("a merge is of two texts"))?;
                Ok(PairOfTexts(left.to_owned().into(), right.to_owned().into()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut halves: A) -> Result<Self::Value, A::Error> {
                let mut half = || {
                    let half = halves.next_element::<TokenText<'de>>()?;
                    half.ok_or_else(|| A::Error::custom("a merge is of two texts"))
                };
                let (left, right) = (half()?, half()?);
                Ok(PairOfTexts(left.0, right.0))
            }
        }

        source.deserialize_any(PairVisitor)
    }
}

/// The object that has the id of each token, as a list.
struct TokenIds<'f>(Vec<(Cow<'f, str>, u32)>);

/// A text that borrows from the file if it has no escapes.
#[derive(Deserialize)]
struct TokenText<'f>(#[serde(borrow)] Cow<'f, str>);

impl<'de: 'f, 'f> Deserialize<'de> for TokenIds<'f> {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        struct IdsVisitor;

        impl<'de> Visitor<'de> for IdsVisitor {
            type Value = TokenIds<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tokens and their ids")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut ids = Vec::new();
                while let Some((TokenText(text), id)) = map.next_entry()? {
                    ids.push((text, id));
                }
                Ok(TokenIds(ids))
            }
        }

        source.deserialize_map(IdsVisitor)
    }
}

/// Returns the error for a part of the file that the engine here does not do.
fn not_understood(part: &'static str, found: impl fmt::Display) -> VocabularyError {
    let mut found = found.to_string();
    if let Some((end, _)) = found.char_indices().nth(120) {
        found.truncate(end);
        found.push_str("...");
    }
    VocabularyError::NotUnderstood { part, found }
}

impl Vocabulary {
    /// Reads a `tokenizer.json`. The tokens that the library adds before and after a text are left out, because the
    /// template of a chat writes them.
    ///
    /// **Errors**: `Json` if it cannot be parsed, `NotUnderstood` for a pipeline that is not known exactly.
    pub fn from_tokenizer_json(json: &[u8]) -> Result<Self, VocabularyError> {
        let AnyFile { model } = serde_json::from_slice(json).map_err(VocabularyError::Json)?;
        let kind = model.kind.as_deref().unwrap_or("without a type");
        if kind != "BPE" {
            return Err(not_understood("model", kind));
        }
        let file: TokenizerFile<'_> =
            serde_json::from_slice(json).map_err(VocabularyError::Json)?;
        let (family, pre) = family_of(&file)?;
        check_added(&file, &pre)?;
        let mut builder = VocabularyBuilder::default();
        builder.set(MetadataKey::Model, MetadataValue::Text(family.as_bytes()));
        builder.set(MetadataKey::Pre, MetadataValue::Text(pre.as_bytes()));
        builder.set(MetadataKey::AddsBos, MetadataValue::Flag(false));
        let ids = append_tokens(&file, &mut builder)?;
        append_merges(&file.model.merges, &ids, &mut builder)?;
        builder.finish()
    }
}

/// Appends the tokens in the order of their ids; returns the ids by text.
fn append_tokens<'t>(
    file: &'t TokenizerFile<'_>,
    builder: &mut VocabularyBuilder,
) -> Result<FxHashMap<&'t str, u32>, VocabularyError> {
    let of_model = file.model.vocab.0.iter().map(|(text, id)| (&**text, *id, TokenKind::Normal));
    let mut ids: FxHashMap<&str, u32> = FxHashMap::default();
    ids.extend(of_model.clone().map(|(text, id, _)| (text, id)));
    let added = file.added_tokens.iter().map(|token| {
        let kind = if token.special { TokenKind::Control } else { TokenKind::UserDefined };
        (token.content.as_str(), token.id, kind)
    });
    let n_texts = file.model.vocab.0.len() + file.added_tokens.len();
    let mut tokens = Vec::new();
    for (text, id, kind) in of_model.chain(added) {
        let at = id as usize;
        if at > n_texts + MAX_GAPS {
            return Err(not_understood("token id", format_args!("{id} of {n_texts} tokens")));
        }
        if tokens.len() <= at {
            tokens.resize(at + 1, ("", TokenKind::Unused));
        }
        let is_other = |text: &str| ids.get(text).is_some_and(|other| *other != id);
        if text.is_empty() || is_other(text) || !["", text].contains(&tokens[at].0) {
            return Err(not_understood("token with two ids, or id with two tokens", text));
        }
        tokens[at] = (text, kind);
    }
    for (text, kind) in tokens {
        builder.append(MetadataKey::Tokens, MetadataValue::Text(text.as_bytes()))?;
        builder.append(MetadataKey::Kinds, MetadataValue::Integer(kind as i64))?;
    }
    Ok(ids)
}

/// Appends the merges. Of duplicates the last one counts, and one with a space applies to no text.
fn append_merges(
    merges: &[PairOfTexts<'_>],
    ids: &FxHashMap<&str, u32>,
    builder: &mut VocabularyBuilder,
) -> Result<(), VocabularyError> {
    let mut joined = String::new();
    let mut last = FxHashMap::default();
    let mut pairs = Vec::with_capacity(merges.len());
    for (at, PairOfTexts(left, right)) in merges.iter().enumerate() {
        joined.clear();
        joined.extend([&**left, &**right]);
        let [Some(left), Some(right), Some(_)] =
            [left, right, &*joined].map(|text| ids.get(text).copied())
        else {
            return Err(VocabularyError::Malformed("a merge is of texts that are no tokens"));
        };
        last.insert((left, right), at);
        pairs.push((left, right));
    }
    for (at, (PairOfTexts(left, right), pair)) in merges.iter().zip(pairs).enumerate() {
        if last[&pair] != at || left.contains(' ') || right.contains(' ') {
            continue;
        }
        joined.clear();
        joined.extend([&**left, " ", &**right]);
        builder.append(MetadataKey::Merges, MetadataValue::Text(joined.as_bytes()))?;
    }
    Ok(())
}

/// Checks that the added tokens are found as one search through the text finds them.
fn check_added(file: &TokenizerFile<'_>, pre: &str) -> Result<(), VocabularyError> {
    for token in &file.added_tokens {
        let options = [
            (token.single_word, "single_word"),
            (token.lstrip, "lstrip"),
            (token.rstrip, "rstrip"),
            (token.content.is_empty(), "no text"),
        ];
        if let Some((_, option)) = options.iter().find(|(is_set, _)| *is_set) {
            let found = format_args!("{:?} with {option}", token.content);
            return Err(not_understood("added token", found));
        }
        if token.content.len() > MAX_ADDED_BYTES {
            let found = format_args!("{} bytes", token.content.len());
            return Err(not_understood("added token", found));
        }
    }
    // The library searches for those that are not normalized first, in the text as it is.
    let (later, first): (Vec<_>, Vec<_>) =
        file.added_tokens.iter().partition(|token| token.normalized);
    if later.is_empty() {
        return Ok(());
    }
    if later.len().saturating_mul(first.len()) > MAX_ADDED_PAIRS {
        let found = format_args!("{} with normalized, {} without", later.len(), first.len());
        return Err(not_understood("list of added tokens", found));
    }
    let is_normalized = file.model.byte_fallback || pre.contains("nfc");
    let overlap = later.iter().find(|token| {
        is_normalized || first.iter().any(|other| overlap(&token.content, &other.content))
    });
    overlap.map_or(Ok(()), |token| {
        Err(not_understood("added token", format_args!("{:?} with normalized", token.content)))
    })
}

/// Returns whether two different tokens can share a part of a text.
fn overlap(a: &str, b: &str) -> bool {
    let joins = |left: &str, right: &str| {
        left.char_indices().skip(1).any(|(at, _)| right.starts_with(&left[at..]))
    };
    a.contains(b) || b.contains(a) || joins(a, b) || joins(b, a)
}

/// Returns the family of the model, and the name of what happens to a text before its merges.
fn family_of(file: &TokenizerFile<'_>) -> Result<(&'static str, String), VocabularyError> {
    let model = &file.model;
    let affixes = [&model.continuing_subword_prefix, &model.end_of_word_suffix];
    if let Some(affix) = affixes.into_iter().flatten().find(|affix| !affix.is_empty()) {
        return Err(not_understood("model with the affix", affix));
    }
    if model.dropout.is_some_and(|dropout| dropout != 0.0) {
        return Err(not_understood("model with dropout", model.dropout.unwrap_or_default()));
    }
    let normalizer = value_of(file.normalizer, "normalizer")?;
    let normalizers = steps_of(&normalizer, "normalizers");
    let pre_tokenizer = value_of(file.pre_tokenizer, "pre-tokenizer")?;
    let splits = steps_of(&pre_tokenizer, "pretokenizers");
    if !model.byte_fallback {
        let normalized = match normalizers.as_slice() {
            [] => "",
            [only] if kind_of(only) == "NFC" => " nfc",
            [other, ..] => return Err(not_understood("normalizer", other)),
        };
        let whole = if model.ignore_merges { " whole-words" } else { "" };
        return Ok((BYTE_LEVEL, format!("{}{normalized}{whole}", byte_level_rule(&splits)?)));
    }
    if model.ignore_merges {
        return Err(not_understood("model with byte_fallback and", "ignore_merges"));
    }
    Ok((CHAR_LEVEL, space_prefix(&normalizers, &splits)?.to_owned()))
}

/// Parses a part of the pipeline, if it is no larger than the known ones may be.
fn value_of(raw: Option<&RawValue>, part: &'static str) -> Result<Value, VocabularyError> {
    let text = raw.map_or("null", RawValue::get);
    if text.len() > MAX_STEPS_BYTES {
        return Err(not_understood(part, format_args!("{} bytes", text.len())));
    }
    serde_json::from_str(text).map_err(VocabularyError::Json)
}

/// Returns the steps of a sequence, or of a single step.
fn steps_of<'v>(value: &'v Value, key: &str) -> Vec<&'v Value> {
    match value {
        Value::Null => Vec::new(),
        value if kind_of(value) == "Sequence" => {
            let steps = value[key].as_array().into_iter().flatten();
            steps.flat_map(|step| steps_of(step, key)).collect()
        }
        value => vec![value],
    }
}

fn kind_of(step: &Value) -> &str {
    step["type"].as_str().unwrap_or_default()
}

/// Returns the name of the rule that splits a text as some steps do, the last of which writes bytes as characters.
fn byte_level_rule(splits: &[&Value]) -> Result<&'static str, VocabularyError> {
    let Some((last, before)) = splits.split_last().filter(|(last, _)| kind_of(last) == "ByteLevel")
    else {
        return Err(not_understood("pre-tokenizer", json!(splits)));
    };
    if last["add_prefix_space"] != false {
        return Err(not_understood("pre-tokenizer with add_prefix_space", last));
    }
    let is_split_again = last.get("use_regex") != Some(&Value::Bool(false));
    let digits = json!({ "type": "Digits", "individual_digits": true });
    let known = match before {
        [] if is_split_again => Some("gpt-2"),
        [only] if is_split_again && **only == digits => Some("starcoder"),
        splits if !is_split_again => {
            let expressions: Option<Vec<&str>> =
                splits.iter().map(|split| expression_of(split, splits.len() == 1)).collect();
            let same = |(known, _): &&(&[&str], _)| expressions.as_deref() == Some(*known);
            EXPRESSIONS.iter().find(same).map(|(_, name)| *name)
        }
        _ => None,
    };
    known.ok_or_else(|| not_understood("pre-tokenizer", before.first().unwrap_or(last)))
}

/// Returns the expression of a step that makes each match a word of its own. One that keeps matches only is the same if it
/// is the only one, because the known expressions of one step match every text; the steps before another one do not.
fn expression_of(split: &Value, is_only: bool) -> Option<&str> {
    let isolates = match split["behavior"].as_str()? {
        "Isolated" => split["invert"] == false,
        "Removed" => is_only && split["invert"] == true,
        _ => false,
    };
    let is_split = kind_of(split) == "Split" && isolates;
    split["pattern"]["Regex"].as_str().filter(|_| is_split)
}

/// Returns where a text gets a space before it: `always`, `first` or `never`.
fn space_prefix(
    normalizers: &[&Value],
    splits: &[&Value],
) -> Result<&'static str, VocabularyError> {
    let replace = json!({ "type": "Replace", "pattern": { "String": " " }, "content": SPACE });
    let prepend = json!({ "type": "Prepend", "prepend": SPACE });
    // Nothing is left to split: the spaces were replaced.
    let without_effect = json!({
        "type": "Split", "pattern": { "String": " " }, "behavior": "MergedWithPrevious", "invert": false,
    });
    match (normalizers, splits) {
        ([only], []) if **only == replace => Ok("never"),
        ([only], [split]) if **only == replace && **split == without_effect => Ok("never"),
        ([first, second], []) if **first == prepend && **second == replace => Ok("always"),
        ([], [split]) if kind_of(split) == "Metaspace" => {
            match (split["replacement"].as_str(), split["prepend_scheme"].as_str(), &split["split"])
            {
                (Some(SPACE), Some("first"), Value::Bool(false)) => Ok("first"),
                (Some(SPACE), Some("never"), Value::Bool(false)) => Ok("never"),
                _ => Err(not_understood("pre-tokenizer", split)),
            }
        }
        (normalizers, []) => Err(not_understood("normalizer", json!(normalizers))),
        (_, splits) => Err(not_understood("pre-tokenizer", json!(splits))),
    }
}
