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

#[test]
fn tokenizer_json_that_is_not_understood_is_an_error_that_names_the_part() {
    let file = byte_file();
    let read = |file: &Value| Vocabulary::from_tokenizer_json(file.to_string().as_bytes());
    let vocabulary = read(&file).unwrap();
    assert_eq!((vocabulary.n_tokens, vocabulary.merges.len()), (258, 1));
    let ids = |text| Tokenizer::new(&vocabulary, Engine::HuggingFace).unwrap().ids(text);
    assert_eq!(ids("ab<x>"), [256, 257]);
    let check = |at: &str, value: Value, expect: &str| {
        let mut changed = file.clone();
        *changed.pointer_mut(at).unwrap() = value;
        let error = read(&changed).unwrap_err().to_string();
        assert_eq!(error, expect);
    };
    check("/model/type", json!("Unigram"), "the model is not understood: Unigram");
    check(
        "/normalizer",
        json!({ "type": "NFKC" }),
        "the normalizer is not understood: {\"type\":\"NFKC\"}",
    );
    check(
        "/pre_tokenizer",
        json!({ "type": "Whitespace" }),
        "the pre-tokenizer is not understood: [{\"type\":\"Whitespace\"}]",
    );
    let split = json!({ "type": "Split", "pattern": { "Regex": "x" }, "behavior": "Isolated",
        "invert": false });
    let bytes = json!({ "type": "ByteLevel", "add_prefix_space": false, "use_regex": false });
    let sequence = json!({ "type": "Sequence", "pretokenizers": [split, bytes] });
    let expect = format!("the pre-tokenizer is not understood: {split}");
    check("/pre_tokenizer", sequence, &expect);
    check(
        "/pre_tokenizer/add_prefix_space",
        json!(true),
        "the pre-tokenizer with add_prefix_space is not understood: \
         {\"type\":\"ByteLevel\",\"add_prefix_space\":true}",
    );
    let stripping = json!({ "id": 257, "content": "<x>", "rstrip": true });
    let expect = "the added token is not understood: \"<x>\" with rstrip";
    check("/added_tokens/0", stripping, expect);
    check(
        "/added_tokens/0/id",
        json!(u32::MAX),
        "the token id is not understood: 4294967295 of 258 tokens",
    );
    check(
        "/added_tokens/0/id",
        json!(7),
        "the token with two ids, or id with two tokens is not understood: <x>",
    );
    let late = json!([
        { "id": 257, "content": "<x>", "special": true },
        { "id": 258, "content": "x><", "normalized": true },
    ]);
    let expect = "the added token is not understood: \"x><\" with normalized";
    check("/added_tokens", late, expect);
    let expect = "not a vocabulary: a merge is of texts that are no tokens";
    check("/model/merges/0", json!("a c"), expect);
    let mut missing = file.clone();
    missing["model"]["vocab"].as_object_mut().unwrap().remove("a");
    missing["model"]["merges"] = json!([]);
    let without = Tokenizer::new(&read(&missing).unwrap(), Engine::HuggingFace);
    assert_eq!(without.unwrap_err(), TokenizerError::MissingByte);
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
