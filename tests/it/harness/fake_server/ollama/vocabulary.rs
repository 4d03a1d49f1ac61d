//! The vocabulary of the fake: a token for each byte, merges of a few pairs of letters, and three special tokens.
//!
//! It is a byte-level BPE of the `gpt-2` kind. Its counts are the same under every pre-tokenizer rule, because no
//! rule splits one of its pairs: the pairs consist of lower-case letters, and none begins with the letter of an
//! English contraction (`'s`, `'t`, `'re`).

use serde_json::{Value, json};

/// The merges by priority.
const MERGES: &[(&str, &str)] =
    &[("i", "n"), ("o", "n"), ("a", "n"), ("in", "g"), ("o", "u"), ("h", "e"), ("a", "r")];

/// The special tokens; their ids follow those of the merges.
const SPECIALS: &[&str] = &["<|im_start|>", "<|im_end|>", "<|endoftext|>"];

/// The id of the BOS token, `<|endoftext|>`.
pub(super) const BOS: u32 = (256 + MERGES.len() + 2) as u32;

/// Returns the number of tokens of a text.
pub(crate) fn count(text: &str) -> u64 {
    tokenize(text).len() as u64
}

/// Returns the token ids of a text; special tokens are recognized.
pub(super) fn tokenize(text: &str) -> Vec<u32> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let special = SPECIALS
            .iter()
            .enumerate()
            .filter_map(|(at, special)| Some((rest.find(special)?, at, special.len())))
            .min();
        let (text, after) = match special {
            Some((start, ..)) => rest.split_at(start),
            None => (rest, ""),
        };
        text.split_inclusive(|char: char| !char.is_ascii_lowercase()).for_each(|run| {
            merge(run, &mut tokens);
        });
        if let Some((_, at, length)) = special {
            tokens.push((256 + MERGES.len() + at) as u32);
            rest = &after[length..];
        } else {
            rest = "";
        }
    }
    tokens
}

/// Appends the tokens of a run of letters and the bytes behind it; merges by priority, from left to right.
fn merge(run: &str, tokens: &mut Vec<u32>) {
    let mut pieces: Vec<&str> = Vec::new();
    let mut bytes = Vec::new();
    for (at, char) in run.char_indices() {
        if char.is_ascii_lowercase() {
            pieces.push(&run[at..=at]);
        } else {
            bytes.extend(run[at..].bytes());
            break;
        }
    }
    for (left, right) in MERGES {
        let mut at = 0;
        while at + 1 < pieces.len() {
            if pieces[at] == *left && pieces[at + 1] == *right {
                let start = pieces[at].as_ptr() as usize - run.as_ptr() as usize;
                pieces[at] = &run[start..start + left.len() + right.len()];
                let _merged = pieces.remove(at + 1);
            }
            at += 1;
        }
    }
    for piece in pieces {
        let merged = MERGES.iter().position(|(left, right)| format!("{left}{right}") == piece);
        tokens.push(match merged {
            Some(at) => (256 + at) as u32,
            None => u32::from(piece.as_bytes()[0]),
        });
    }
    tokens.extend(bytes.into_iter().map(u32::from));
}

/// Returns the metadata keys of the vocabulary; the arrays are null unless `is_verbose`.
pub(super) fn metadata(is_verbose: bool) -> Vec<(&'static str, Value)> {
    let merged = MERGES.iter().map(|(left, right)| format!("{left}{right}"));
    let mut tokens: Vec<String> = (0..=u8::MAX).map(|byte| byte_char(byte).to_string()).collect();
    tokens.extend(merged);
    tokens.extend(SPECIALS.iter().map(|special| (*special).to_owned()));
    let n_normal = 256 + MERGES.len();
    // Type 1 is a normal token, type 3 a control token.
    let types: Vec<u8> = (0..tokens.len()).map(|at| if at < n_normal { 1 } else { 3 }).collect();
    let merges: Vec<String> =
        MERGES.iter().map(|(left, right)| format!("{left} {right}")).collect();
    let list = |value: Value| if is_verbose { value } else { Value::Null };
    vec![
        ("tokenizer.ggml.model", json!("gpt2")),
        ("tokenizer.ggml.pre", json!("gpt-2")),
        ("tokenizer.ggml.tokens", list(json!(tokens))),
        ("tokenizer.ggml.token_type", list(json!(types))),
        ("tokenizer.ggml.merges", list(json!(merges))),
        ("tokenizer.ggml.add_bos_token", json!(false)),
        ("tokenizer.ggml.bos_token_id", json!(BOS)),
        ("tokenizer.ggml.eos_token_id", json!(n_normal + 1)),
    ]
}

/// Returns the character that stands for a byte in a byte-level BPE: a printable byte stands for itself, and the
/// others are numbered from U+0100 on.
fn byte_char(byte: u8) -> char {
    let is_printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if is_printable(byte) {
        return char::from(byte);
    }
    let number = (0..byte).filter(|byte| !is_printable(*byte)).count();
    char::from_u32(0x100 + number as u32).unwrap_or_default()
}

/// Returns the `tokenizer.json` of the vocabulary.
pub(crate) fn tokenizer_json() -> Value {
    let n_normal = 256 + MERGES.len();
    let mut ids = serde_json::Map::new();
    for byte in 0..=u8::MAX {
        ids.insert(byte_char(byte).to_string(), byte.into());
    }
    for (at, (left, right)) in MERGES.iter().enumerate() {
        ids.insert(format!("{left}{right}"), (256 + at).into());
    }
    let added = SPECIALS
        .iter()
        .enumerate()
        .map(|(at, special)| json!({ "id": n_normal + at, "content": special, "special": true }));
    json!({
        "added_tokens": added.collect::<Vec<_>>(),
        "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false },
        "model": { "type": "BPE", "vocab": ids, "merges": MERGES },
    })
}

/// Returns a GGUF file with the vocabulary and without weights.
pub(crate) fn gguf() -> Vec<u8> {
    let text = |text: &str, out: &mut Vec<u8>| {
        out.extend((text.len() as u64).to_le_bytes());
        out.extend(text.as_bytes());
    };
    let keys = metadata(true);
    let mut out = b"GGUF".to_vec();
    out.extend(3_u32.to_le_bytes());
    out.extend(0_u64.to_le_bytes());
    out.extend((keys.len() as u64).to_le_bytes());
    let type_of = |value: &Value| match value {
        Value::String(_) => 8_u32,
        Value::Bool(_) => 7,
        _ => 4,
    };
    let scalar = |value: &Value, out: &mut Vec<u8>| match value {
        Value::String(string) => text(string, out),
        Value::Bool(flag) => out.push(u8::from(*flag)),
        number => out.extend((number.as_u64().unwrap_or_default() as u32).to_le_bytes()),
    };
    for (name, value) in keys {
        text(name, &mut out);
        if let Some(values) = value.as_array() {
            out.extend(9_u32.to_le_bytes());
            out.extend(type_of(&values[0]).to_le_bytes());
            out.extend((values.len() as u64).to_le_bytes());
            values.iter().for_each(|value| scalar(value, &mut out));
        } else {
            out.extend(type_of(&value).to_le_bytes());
            scalar(&value, &mut out);
        }
    }
    out
}
