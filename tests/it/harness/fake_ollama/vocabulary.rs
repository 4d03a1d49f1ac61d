//! The fake's own vocabulary: every byte is a token, a few pairs of letters are merged, three texts are special.
//!
//! It is a byte-level BPE of the `gpt-2` kind. Its pairs are chosen so that no rule that divides a text into
//! words ever divides a pair, so its counts are the same under all of them: they consist of small letters, and
//! begin with none that an apostrophe could draw away (`'s`, `'t`, `'re` and their like).

use serde_json::{Value, json};

/// The pairs in the order in which they are merged.
const MERGES: &[(&str, &str)] =
    &[("i", "n"), ("o", "n"), ("a", "n"), ("in", "g"), ("o", "u"), ("h", "e"), ("a", "r")];

/// The special texts; their tokens follow those of the pairs.
const SPECIALS: &[&str] = &["<|im_start|>", "<|im_end|>", "<|endoftext|>"];

/// How many tokens a text has.
pub(crate) fn count(text: &str) -> u64 {
    tokenize(text).len() as u64
}

/// The tokens of a text, special texts in it included.
pub(super) fn tokenize(text: &str) -> Vec<u32> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let special = SPECIALS
            .iter()
            .enumerate()
            .filter_map(|(at, special)| Some((rest.find(special)?, at, special.len())))
            .min();
        let (plain, after) = match special {
            Some((start, ..)) => rest.split_at(start),
            None => (rest, ""),
        };
        plain.split_inclusive(|char: char| !char.is_ascii_lowercase()).for_each(|run| {
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

/// Merges the pairs of a run of letters: the earliest pair of the table first, from left to right.
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
            None => id_of_byte(piece.as_bytes()[0]),
        });
    }
    tokens.extend(bytes.into_iter().map(id_of_byte));
}

fn id_of_byte(byte: u8) -> u32 {
    u32::from(byte)
}

/// The vocabulary as a model's metadata hold it: arrays where everything was asked for, else null.
pub(super) fn metadata(verbose: bool) -> Vec<(&'static str, Value)> {
    let merged = MERGES.iter().map(|(left, right)| format!("{left}{right}"));
    let mut tokens: Vec<String> = (0..=u8::MAX).map(|byte| letter_of(byte).to_string()).collect();
    tokens.extend(merged);
    tokens.extend(SPECIALS.iter().map(|special| (*special).to_owned()));
    let n_plain = 256 + MERGES.len();
    // 1 is a normal token, 3 one that controls.
    let types: Vec<u8> = (0..tokens.len()).map(|at| if at < n_plain { 1 } else { 3 }).collect();
    let merges: Vec<String> =
        MERGES.iter().map(|(left, right)| format!("{left} {right}")).collect();
    let list = |value: Value| if verbose { value } else { Value::Null };
    vec![
        ("tokenizer.ggml.model", json!("gpt2")),
        ("tokenizer.ggml.pre", json!("gpt-2")),
        ("tokenizer.ggml.tokens", list(json!(tokens))),
        ("tokenizer.ggml.token_type", list(json!(types))),
        ("tokenizer.ggml.merges", list(json!(merges))),
        ("tokenizer.ggml.add_bos_token", json!(false)),
        ("tokenizer.ggml.bos_token_id", json!(n_plain + 2)),
        ("tokenizer.ggml.eos_token_id", json!(n_plain + 1)),
    ]
}

/// The letter that stands for a byte in the vocabulary of a byte-level BPE: itself where it can be seen, else the
/// next free one from U+0100 on.
fn letter_of(byte: u8) -> char {
    let seen = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if seen(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|byte| !seen(*byte)).count();
    char::from_u32(0x100 + before as u32).unwrap()
}

/// The vocabulary as the header of a file with weights.
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
    let kind = |value: &Value| match value {
        Value::String(_) => 8_u32,
        Value::Bool(_) => 7,
        _ => 4,
    };
    let plain = |value: &Value, out: &mut Vec<u8>| match value {
        Value::String(string) => text(string, out),
        Value::Bool(flag) => out.push(u8::from(*flag)),
        number => out.extend((number.as_u64().unwrap() as u32).to_le_bytes()),
    };
    for (name, value) in keys {
        text(name, &mut out);
        if let Some(values) = value.as_array() {
            out.extend(9_u32.to_le_bytes());
            out.extend(kind(&values[0]).to_le_bytes());
            out.extend((values.len() as u64).to_le_bytes());
            values.iter().for_each(|value| plain(value, &mut out));
        } else {
            out.extend(kind(&value).to_le_bytes());
            plain(&value, &mut out);
        }
    }
    out
}
