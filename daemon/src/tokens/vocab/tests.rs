//! The readers agree, and untrusted bytes cause errors, never panics.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::tokens::testing::{GgufBuilder, byte_level, vocabulary};
use crate::tokens::{Engine, Tokenizer, TokenizerError};

fn small() -> GgufBuilder {
    byte_level("llama-bpe", &["a b", "ab c", "Ġ a"], &["<|end|>"])
        .text("general.name", "small")
        .number("tokenizer.ggml.bos_token_id", 256)
        .number("tokenizer.ggml.eos_token_id", 9999)
        .flag("tokenizer.ggml.add_bos_token", false)
}

/// Returns the response of a model server for a vocabulary.
fn show(vocabulary: &Vocabulary) -> Value {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let texts = &vocabulary.texts;
    let tokens: Vec<String> = texts.iter().take(vocabulary.n_tokens as usize).map(text).collect();
    let merges: Vec<String> = vocabulary
        .merges
        .iter()
        .map(|merge| {
            let (left, right) = texts.of(merge.text).split_at(merge.left_bytes as usize);
            format!("{} {}", text(left), text(right))
        })
        .collect();
    let kinds: Vec<u8> = vocabulary.kinds.iter().map(|kind| *kind as u8).collect();
    json!({
        "license": "any",
        "model_info": {
            "general.architecture": vocabulary.architecture,
            "general.name": vocabulary.name,
            "llama.rope.freq_base": 10000.0,
            "tokenizer.ggml.add_bos_token": vocabulary.adds_bos,
            "tokenizer.ggml.add_eos_token": vocabulary.adds_eos,
            "tokenizer.ggml.add_space_prefix": vocabulary.adds_space_prefix,
            "tokenizer.ggml.bos_token_id": vocabulary.role(TokenRole::Bos),
            "tokenizer.ggml.eos_token_id": vocabulary.role(TokenRole::Eos),
            "tokenizer.ggml.unknown_token_id": vocabulary.role(TokenRole::Unknown),
            "tokenizer.ggml.merges": merges,
            "tokenizer.ggml.model": vocabulary.model,
            "tokenizer.ggml.pre": vocabulary.pre,
            "tokenizer.ggml.scores": vocabulary.scores,
            "tokenizer.ggml.token_type": kinds,
            "tokenizer.ggml.tokens": tokens,
        },
        "details": { "families": ["llama"] },
    })
}

#[test]
fn all_readers_return_the_same_vocabulary() {
    for vocabulary in [vocabulary("gpt-2"), vocabulary("llama-spm"), small().vocabulary()] {
        let json = show(&vocabulary).to_string();
        assert!(Vocabulary::from_show(json.as_bytes()).unwrap() == vocabulary);
        assert!(Vocabulary::from_bytes(&vocabulary.to_bytes()).unwrap() == vocabulary);
    }
}

#[test]
fn role_id_beyond_the_tokens_is_none() {
    let vocabulary = small().vocabulary();
    let ids = [TokenRole::Bos, TokenRole::Eos].map(|role| vocabulary.role(role));
    assert_eq!(ids, [Some(256), None]);
    assert_eq!(vocabulary.n_tokens, 260);
}

#[test]
fn response_that_is_not_verbose_has_no_tokens() {
    let answer = json!({ "model_info": {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": null, "tokenizer.ggml.merges": [],
    }});
    let error = Vocabulary::from_show(answer.to_string().as_bytes()).unwrap_err();
    assert!(matches!(error, VocabularyError::NoTokens), "{error:?}");
}

#[test]
fn invalid_response_is_an_error() {
    let check = |text: &str| Vocabulary::from_show(text.as_bytes()).unwrap_err();
    for text in [
        "",
        "[]",
        "{",
        "{\"model_info\":3}",
        "{\"model_info\":{\"tokenizer.ggml.tokens\":[[\"a\"]]}}",
    ] {
        assert!(matches!(check(text), VocabularyError::Json(_)), "{text}");
    }
    let wrong = check("{\"model_info\":{\"tokenizer.ggml.tokens\":[1]}}");
    assert!(matches!(wrong, VocabularyError::Malformed(_)), "{wrong:?}");
    let short = json!({ "model_info": {
        "tokenizer.ggml.tokens": ["a", "b"], "tokenizer.ggml.token_type": [1],
    }});
    assert!(matches!(check(&short.to_string()), VocabularyError::Malformed(_)));
}

#[test]
fn truncated_header_is_an_error() {
    let bytes = small().bytes();
    for len in 0..bytes.len() {
        assert!(Vocabulary::from_gguf(&bytes[..len]).is_err(), "{len}");
    }
}

#[test]
fn header_with_false_lengths_is_an_error() {
    let header = |n_keys: u64, rest: &[u8]| {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend(0_u64.to_le_bytes());
        bytes.extend(n_keys.to_le_bytes());
        bytes.extend(rest);
        Vocabulary::from_gguf(bytes.as_slice()).unwrap_err()
    };
    let key = b"\x15\0\0\0\0\0\0\0tokenizer.ggml.tokens\x09\0\0\0\x08\0\0\0";
    let max = u64::MAX.to_le_bytes();
    assert!(matches!(header(u64::MAX, &[]), VocabularyError::TooLarge(_)));
    assert!(matches!(header(1, &max), VocabularyError::TooLarge(_)));
    assert!(matches!(header(1, &[key, &max[..]].concat()), VocabularyError::Io(_)));
    let other = b"\x01\0\0\0\0\0\0\0x\x09\0\0\0\x0c\0\0\0";
    assert!(matches!(header(1, &[other, &max[..]].concat()), VocabularyError::Io(_)));
    assert!(matches!(header(1, b"\x01\0\0\0\0\0\0\0x\x63\0\0\0"), VocabularyError::Malformed(_)));
    let version = Vocabulary::from_gguf(&b"GGUF\0\0\0\x03"[..]).unwrap_err();
    assert!(matches!(version, VocabularyError::Malformed(_)));
}

#[test]
fn damaged_stored_vocabulary_is_an_error() {
    let bytes = small().vocabulary().to_bytes();
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        assert!(Vocabulary::from_bytes(&damaged).is_err(), "{at}");
        assert!(Vocabulary::from_bytes(&bytes[..at]).is_err(), "{at}");
    }
    let mut newer = bytes;
    newer[8] = 9;
    let error = Vocabulary::from_bytes(&newer).unwrap_err();
    assert!(matches!(error, VocabularyError::Version { found: 9, supported: 1 }));
}

/// Returns a `tokenizer.json` with a token for each byte.
fn byte_file() -> Value {
    let vocabulary = byte_level("gpt-2", &["a b"], &[]).vocabulary();
    let text = |id: u32| String::from_utf8(vocabulary.texts.of(id).to_vec()).unwrap();
    let ids: serde_json::Map<_, _> =
        (0..vocabulary.n_tokens).map(|id| (text(id), id.into())).collect();
    json!({
        "added_tokens": [{ "id": 257, "content": "<x>", "special": true }],
        "normalizer": null,
        "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false },
        "model": { "type": "BPE", "vocab": ids, "merges": ["a b", ["a", "b"]] },
    })
}

fn read(file: &Value) -> Result<Vocabulary, VocabularyError> {
    Vocabulary::from_tokenizer_json(file.to_string().as_bytes())
}

/// Checks the errors of files in which one value is replaced.
fn check_refused(file: &Value, cases: Vec<(&str, Value, &str)>) {
    for (at, value, expect) in cases {
        let mut changed = file.clone();
        *changed.pointer_mut(at).unwrap() = value;
        assert_eq!(read(&changed).unwrap_err().to_string(), expect);
    }
}

#[test]
fn tokenizer_json_of_bytes_is_read() {
    let file = byte_file();
    let vocabulary = read(&file).unwrap();
    assert_eq!((vocabulary.n_tokens, vocabulary.merges.len()), (258, 1));
    let ids = |text| Tokenizer::new(&vocabulary, Engine::HuggingFace).unwrap().ids(text);
    assert_eq!(ids("ab<x>"), [256, 257]);
    let mut missing = file;
    missing["model"]["vocab"].as_object_mut().unwrap().remove("a");
    missing["model"]["merges"] = json!([]);
    let without = Tokenizer::new(&read(&missing).unwrap(), Engine::HuggingFace);
    assert_eq!(without.unwrap_err(), TokenizerError::MissingByte);
}

/// Returns a pre-tokenizer that splits by expressions, and its first step.
fn splits_by(expressions: &[&str], behavior: &str) -> (Value, Value) {
    let split = |expression| {
        json!({ "type": "Split", "pattern": { "Regex": expression }, "behavior": behavior,
            "invert": behavior == "Removed" })
    };
    let mut steps: Vec<Value> = expressions.iter().map(split).collect();
    let first = steps[0].clone();
    steps.push(json!({ "type": "ByteLevel", "add_prefix_space": false, "use_regex": false }));
    (json!({ "type": "Sequence", "pretokenizers": steps }), first)
}

#[test]
fn pipeline_that_is_not_understood_is_an_error_that_names_the_part() {
    let pre = "/pre_tokenizer";
    let (unknown, first) = splits_by(&["x"], "Isolated");
    let unknown_split = format!("the pre-tokenizer is not understood: {first}");
    // Text that the first of these expressions does not match would be removed.
    let (several, _) = tokenizer_json::EXPRESSIONS.iter().find(|(all, _)| all.len() > 1).unwrap();
    let (removing, first) = splits_by(several, "Removed");
    let removing_split = format!("the pre-tokenizer is not understood: {first}");
    let large = json!({ "type": "NFC", "x": "x".repeat(70_000) });
    let large_steps =
        format!("the normalizer is not understood: {} bytes", large.to_string().len());
    #[rustfmt::skip]
    let cases = vec![
        ("/model/type", json!("Unigram"), "the model is not understood: Unigram"),
        ("/normalizer", json!({ "type": "NFKC" }),
            "the normalizer is not understood: {\"type\":\"NFKC\"}"),
        ("/normalizer", large, &large_steps),
        (pre, json!({ "type": "Whitespace" }),
            "the pre-tokenizer is not understood: [{\"type\":\"Whitespace\"}]"),
        (pre, unknown, &unknown_split),
        (pre, removing, &removing_split),
        ("/pre_tokenizer/add_prefix_space", json!(true),
            "the pre-tokenizer with add_prefix_space is not understood: \
             {\"type\":\"ByteLevel\",\"add_prefix_space\":true}"),
        ("/model/merges/0", json!("a c"),
            "not a vocabulary: a merge is of texts that are no tokens"),
    ];
    check_refused(&byte_file(), cases);
    let (known, _) = splits_by(several, "Isolated");
    let mut file = byte_file();
    file["pre_tokenizer"] = known;
    read(&file).unwrap();
}

#[test]
fn added_token_that_is_not_understood_is_an_error() {
    let late = json!([
        { "id": 257, "content": "<x>", "special": true },
        { "id": 258, "content": "x><", "normalized": true },
    ]);
    let many: Vec<Value> = (0..2050)
        .map(|at| json!({ "id": 257 + at, "content": format!("<{at}>"), "normalized": at < 1025 }))
        .collect();
    #[rustfmt::skip]
    let cases = vec![
        ("/added_tokens/0", json!({ "id": 257, "content": "<x>", "rstrip": true }),
            "the added token is not understood: \"<x>\" with rstrip"),
        ("/added_tokens/0/id", json!(u32::MAX),
            "the token id is not understood: 4294967295 of 258 tokens"),
        ("/added_tokens/0/id", json!(7),
            "the token with two ids, or id with two tokens is not understood: <x>"),
        ("/added_tokens/0/content", json!("x".repeat(257)),
            "the added token is not understood: 257 bytes"),
        ("/added_tokens", late, "the added token is not understood: \"x><\" with normalized"),
        ("/added_tokens", json!(many),
            "the list of added tokens is not understood: 1025 with normalized, 1025 without"),
    ];
    check_refused(&byte_file(), cases);
}

#[test]
fn normalized_added_token_of_a_model_that_normalizes_is_an_error() {
    let mut normalized = byte_file();
    normalized["added_tokens"][0]["normalized"] = json!(true);
    read(&normalized).unwrap();
    let expect = "the added token is not understood: \"<x>\" with normalized";
    check_refused(&normalized, vec![("/normalizer", json!({ "type": "NFC" }), expect)]);
    normalized["pre_tokenizer"] = Value::Null;
    normalized["normalizer"] =
        json!({ "type": "Replace", "pattern": { "String": " " }, "content": "▁" });
    normalized["model"]["byte_fallback"] = json!(false);
    check_refused(&normalized, vec![("/model/byte_fallback", json!(true), expect)]);
}

/// Returns small values, among them those that a `tokenizer.json` has.
fn small_value() -> impl Strategy<Value = Value> {
    let text = prop::sample::select(vec!["", "a", "ab", "a b", "▁", "<x>", "BPE", "NFC", "Split"]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (0_u32..300).prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        text.prop_map(Value::from),
    ];
    let name = prop::sample::select(vec!["type", "id", "content", "a", "normalizers", "vocab"]);
    leaf.prop_recursive(3, 12, 4, move |inner| {
        let entries = prop::collection::vec((name.clone(), inner.clone()), 0..4);
        prop_oneof![
            prop::collection::vec(inner, 0..4).prop_map(Value::from),
            entries.prop_map(|all| all.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()),
        ]
    })
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        drop(Vocabulary::from_gguf(bytes.as_slice()));
        drop(Vocabulary::from_show(&bytes));
        drop(Vocabulary::from_tokenizer_json(&bytes));
        drop(Vocabulary::from_bytes(&bytes));
    }

    #[test]
    fn modified_header_is_an_error_or_a_usable_vocabulary(
        at in 0_usize..8000,
        byte in any::<u8>(),
    ) {
        let mut bytes = small().bytes();
        let at = at % bytes.len();
        bytes[at] = byte;
        if let Ok(vocabulary) = Vocabulary::from_gguf(bytes.as_slice())
            && let Ok(tokenizer) = Tokenizer::new(&vocabulary, Engine::LlamaCpp)
        {
            tokenizer.count("a ab abc <|end|> é");
        }
    }

    #[test]
    fn modified_tokenizer_json_is_an_error_or_a_usable_vocabulary(
        at in 0_usize..8000,
        byte in any::<u8>(),
    ) {
        let mut bytes = byte_file().to_string().into_bytes();
        let at = at % bytes.len();
        bytes[at] = byte;
        if let Ok(vocabulary) = Vocabulary::from_tokenizer_json(&bytes)
            && let Ok(tokenizer) = Tokenizer::new(&vocabulary, Engine::HuggingFace)
        {
            tokenizer.count("a ab abc <x> é");
        }
    }

    #[test]
    fn tokenizer_json_with_other_values_is_an_error_or_a_usable_vocabulary(
        changes in prop::collection::vec((0_usize..16, small_value()), 1..4),
    ) {
        const FIELDS: [&str; 16] = [
            "/added_tokens", "/added_tokens/0", "/added_tokens/0/id", "/added_tokens/0/content",
            "/normalizer", "/pre_tokenizer", "/pre_tokenizer/type",
            "/pre_tokenizer/add_prefix_space", "/model", "/model/type", "/model/vocab",
            "/model/vocab/a", "/model/merges", "/model/merges/0", "/model/merges/1",
            "/model/merges/1/0",
        ];
        let mut file = byte_file();
        for (at, value) in changes {
            if let Some(place) = file.pointer_mut(FIELDS[at]) {
                *place = value;
            }
        }
        if let Ok(vocabulary) = read(&file)
            && let Ok(tokenizer) = Tokenizer::new(&vocabulary, Engine::HuggingFace)
        {
            tokenizer.count("a ab abc <x> é");
        }
    }

    #[test]
    fn modified_body_with_valid_checksum_never_panics(
        changes in prop::collection::vec((0_usize..8000, any::<u8>()), 1..4),
    ) {
        const BODY: usize = 8 + 4 + 32;
        let mut bytes = small().vocabulary().to_bytes();
        for (at, byte) in changes {
            let at = BODY + at % (bytes.len() - BODY);
            bytes[at] = byte;
        }
        let hash = blake3::hash(&bytes[BODY..]);
        bytes[BODY - 32..BODY].copy_from_slice(hash.as_bytes());
        if let Ok(vocabulary) = Vocabulary::from_bytes(&bytes)
            && let Ok(tokenizer) = Tokenizer::new(&vocabulary, Engine::LlamaCpp)
        {
            tokenizer.count_with("a ab abc <|end|> é", true);
        }
    }
}
