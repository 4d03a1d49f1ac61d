//! The engine's own test cases, and the effect of special tokens.

use std::collections::HashMap;
use std::sync::LazyLock;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{Tokenizer, TokenizerError};
use crate::tokens::testing::{GgufBuilder, byte_level, byte_level_of, fixture, golden, vocabulary};
use crate::tokens::{Engine, Vocabulary};

static GPT2: LazyLock<Tokenizer> =
    LazyLock::new(|| Tokenizer::new(&vocabulary("gpt-2"), Engine::LlamaCpp).unwrap());
static LLAMA: LazyLock<Tokenizer> =
    LazyLock::new(|| Tokenizer::new(&vocabulary("llama-spm"), Engine::LlamaCpp).unwrap());

fn tokenizer(gguf: &GgufBuilder) -> Tokenizer {
    Tokenizer::new(&gguf.vocabulary(), Engine::LlamaCpp).unwrap()
}

#[test]
fn ids_equal_those_of_the_engine() {
    for (name, tokenizer) in [("gpt-2", &GPT2), ("llama-spm", &LLAMA)] {
        let cases = golden(name);
        assert!(cases.len() >= 46, "{name}");
        // Twice, so that the second time the words are in the cache.
        for (text, ids) in cases.iter().chain(&cases) {
            assert_eq!(tokenizer.ids(text), *ids, "{name}: {text:?}");
            assert_eq!(tokenizer.count(text) as usize, ids.len(), "{name}: {text:?}");
        }
    }
}

/// Texts and their ids in Ollama's engine in Go, for a vocabulary of the fixtures with another architecture and
/// pre-tokenizer.
#[derive(serde::Deserialize)]
struct EngineCases {
    vocabulary: String,
    architecture: String,
    pre: String,
    cases: Vec<(String, Vec<u32>)>,
}

#[test]
fn ids_in_go_equal_those_of_ollama() {
    // Encoded by Ollama 0.24.0: `Encode` in its package `tokenizer`, with the expressions of the architecture.
    let cases: Vec<EngineCases> = serde_json::from_slice(&fixture("ollama-0.24.json")).unwrap();
    assert_eq!(cases.len(), 8);
    let vocabularies = ["gpt-2", "llama-spm"].map(|name| (name, vocabulary(name)));
    for EngineCases { vocabulary, architecture, pre, cases } in cases {
        let (_, known) = vocabularies.iter().find(|(name, _)| *name == vocabulary).unwrap();
        let changed = Vocabulary { architecture: architecture.clone(), pre, ..known.clone() };
        let tokenizer = Tokenizer::new(&changed, Engine::OllamaGo).unwrap();
        for (text, ids) in cases {
            assert_eq!(tokenizer.ids(&text), ids, "{architecture}: {text:?}");
        }
    }
}

/// A `tokenizer.json` of a vocabulary of the fixtures, and the ids of all texts.
#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct TokenizerCases {
    vocabulary: String,
    normalizer: Value,
    pre_tokenizer: Value,
    ignore_merges: bool,
    added_tokens: Value,
    ids: Vec<Vec<u32>>,
}

impl TokenizerCases {
    /// Returns the file, with the tokens and merges of the vocabulary.
    fn file(&self, vocabulary: &Vocabulary) -> Value {
        let text = |id: u32| std::str::from_utf8(vocabulary.texts.of(id)).unwrap_or("\u{fffd}");
        let ids: HashMap<&str, u32> = (0..vocabulary.n_tokens).map(|id| (text(id), id)).collect();
        let is_pair = |pair: &(&str, &str)| ids.contains_key(pair.0) && ids.contains_key(pair.1);
        let mut merges = Vec::new();
        for merge in &vocabulary.merges {
            merges.push(text(merge.text).split_at(merge.left_bytes as usize));
        }
        for id in (0..vocabulary.n_tokens).filter(|_| vocabulary.merges.is_empty()) {
            let text = text(id);
            let splits = text.char_indices().skip(1).map(|(at, _)| text.split_at(at));
            let mut pairs: Vec<_> = splits.filter(is_pair).collect();
            pairs.sort_by_key(|(left, right)| (ids[left], ids[right]));
            merges.extend(pairs);
        }
        let has_bytes = vocabulary.merges.is_empty();
        json!({
            "added_tokens": self.added_tokens,
            "normalizer": self.normalizer,
            "pre_tokenizer": self.pre_tokenizer,
            "model": {
                "type": "BPE", "vocab": ids, "merges": merges, "byte_fallback": has_bytes,
                "ignore_merges": self.ignore_merges,
            },
        })
    }
}

#[test]
fn ids_of_a_tokenizer_json_equal_those_of_the_library() {
    let fixture: Value = serde_json::from_slice(&fixture("tokenizers-0.23.json")).unwrap();
    let texts: Vec<String> = serde_json::from_value(fixture["texts"].clone()).unwrap();
    let files: Vec<TokenizerCases> = serde_json::from_value(fixture["files"].clone()).unwrap();
    assert_eq!((texts.len(), files.len()), (23, 11));
    let vocabularies = ["gpt-2", "llama-spm"].map(|name| (name, vocabulary(name)));
    for cases in files {
        let (_, known) = vocabularies.iter().find(|(name, _)| *name == cases.vocabulary).unwrap();
        let file = cases.file(known).to_string();
        let read = Vocabulary::from_tokenizer_json(file.as_bytes()).unwrap();
        assert!(Vocabulary::from_bytes(&read.to_bytes()).unwrap() == read);
        let tokenizer = Tokenizer::new(&read, Engine::HuggingFace).unwrap();
        for (text, ids) in texts.iter().zip(&cases.ids) {
            assert_eq!(tokenizer.ids(text), *ids, "{}: {text:?}", read.pre);
        }
    }
}

#[test]
fn gemma4_in_go_merges_whole_texts_in_the_order_of_the_heap() {
    let tokens = ["<bos>", "<0x21>", "▁", "a", "b", "a▁b", "a▁", "\n", "\n\n", "aa", "aaaa", "aaa"];
    let header = GgufBuilder::new("gemma4")
        .text("general.architecture", "gemma4")
        .texts("tokenizer.ggml.tokens", &tokens)
        .texts("tokenizer.ggml.merges", &["a ▁", "a▁ b", "a a", "aa aa", "a aa"])
        .numbers("tokenizer.ggml.token_type", &[3, 6, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
    let gemma = Tokenizer::new(&header.vocabulary(), Engine::OllamaGo).unwrap();
    // Encoded by Ollama 0.24.0.
    let cases: [(&str, &[u32]); 9] = [
        ("ab a!", &[3, 4, 2, 3, 1]),
        ("\n\n\n", &[7, 7, 7]),
        ("\n\na", &[7, 7, 3]),
        ("aaa", &[11]),
        ("aaaaa", &[9, 11]),
        ("aaaaaa", &[10, 9]),
        ("aaaaaaaaaaa", &[9, 11, 11, 11]),
        ("a a a b", &[6, 6, 5]),
        ("<bos>a b", &[0, 5]),
    ];
    for (text, ids) in cases {
        assert_eq!(gemma.ids(text), ids, "{text:?}");
    }
}

#[test]
fn old_llama_cpp_has_fewer_special_tokens_and_pre_tokenizers() {
    let ids = |gguf: &GgufBuilder, engine, text: &str| {
        Tokenizer::new(&gguf.vocabulary(), engine).unwrap().ids(text)
    };
    let plain = byte_level_of("qwen2", &[], &["</s>", "<|im_end|>"], 1);
    assert_eq!(ids(&plain, Engine::LlamaCpp, "</s>"), [256]);
    assert_eq!(ids(&plain, Engine::OldLlamaCpp, "</s>"), b"</s>".map(u32::from));
    assert_eq!(ids(&plain, Engine::OldLlamaCpp, "<|im_end|>"), [257]);
    // The old engine does not know the name `qwen35`: its default merges all digits but those before three others.
    let merges = ["1 2"];
    let [known, unknown] = ["qwen2", "qwen35"].map(|pre| byte_level(pre, &merges, &[]));
    assert_eq!(ids(&known, Engine::OldLlamaCpp, "12"), b"12".map(u32::from));
    assert_eq!(ids(&unknown, Engine::LlamaCpp, "12"), b"12".map(u32::from));
    assert_eq!(ids(&unknown, Engine::OldLlamaCpp, "12"), [256]);
}

#[test]
fn ollama_repeats_bos_unless_it_removes_its_text() {
    let count = |bos: &str, asks: bool, engine| {
        let header = byte_level("llama-bpe", &[], &[bos])
            .text("general.architecture", "llama")
            .number("tokenizer.ggml.bos_token_id", 256);
        let header = if asks { header.flag("tokenizer.ggml.add_bos_token", true) } else { header };
        let tokenizer = Tokenizer::new(&header.vocabulary(), engine).unwrap();
        tokenizer.count_prompt(&format!("{bos}a"))
    };
    // Counted by Ollama 0.33 with a template that begins with `<s>`, and by 0.24.
    assert_eq!(count("<s>", true, Engine::LlamaCpp), 3);
    assert_eq!(count("<bos>", true, Engine::LlamaCpp), 2);
    assert_eq!(count("<bos>", false, Engine::LlamaCpp), 3);
    for engine in [Engine::OldLlamaCpp, Engine::OllamaGo] {
        assert_eq!(count("<bos>", true, engine), 3);
    }
}

#[test]
fn whole_prompt_begins_with_bos_as_configured() {
    assert_eq!(LLAMA.ids_with("hello", true)[0], 1);
    assert_eq!(LLAMA.ids_with("", true), [1]);
    assert!(LLAMA.ids_with("", false).is_empty());
    assert_eq!(GPT2.ids_with("hello", true), GPT2.ids("hello"));
    let asked = byte_level("qwen2", &[], &["<s>"])
        .flag("tokenizer.ggml.add_bos_token", true)
        .number("tokenizer.ggml.bos_token_id", 256);
    assert_eq!(tokenizer(&asked).ids_with("a", true), [256, u32::from(b'a')]);
    // By default Llama 3 adds BOS and Qwen does not.
    let with_id = |pre: &str| {
        tokenizer(&byte_level(pre, &[], &["<s>"]).number("tokenizer.ggml.bos_token_id", 256))
    };
    assert!(with_id("llama-bpe").adds_bos());
    assert!(!with_id("qwen2").adds_bos());
}

#[test]
fn whole_word_token_precedes_merges_only_if_the_rule_ignores_merges() {
    let merges = ["b c", "a b", "ab c", "Ġ a"];
    let ids = |pre: &str, text: &str| tokenizer(&byte_level(pre, &merges, &[])).ids(text);
    // 256 is "bc"; 258 is "abc", the merge of "ab" and "c".
    assert_eq!(ids("gpt-2", "abc"), [u32::from(b'a'), 256]);
    assert_eq!(ids("llama-bpe", "abc"), [258]);
    assert_eq!(ids("gpt-2", "x a"), [u32::from(b'x'), 259]);
}

#[test]
fn merged_text_without_token_becomes_its_bytes() {
    let header = byte_level("gpt-2", &[], &[]).texts("tokenizer.ggml.merges", &["a b", "ab c"]);
    let expect = b"abc".map(u32::from);
    assert_eq!(tokenizer(&header).ids("abc"), expect);
}

#[test]
fn longest_special_token_matches_first() {
    let specials = ["<a>", "a><b", "<a", "<b>"];
    let ids = |text: &str| tokenizer(&byte_level("gpt-2", &[], &specials)).ids(text);
    let byte = u32::from;
    // "a><b" is the longest, although "<a>" begins further left.
    assert_eq!(ids("<a><b>"), [byte(b'<'), 257, byte(b'>')]);
    assert_eq!(ids("<a><a"), [256, 258]);
    assert_eq!(ids("x<b>y<b>"), [byte(b'x'), 259, byte(b'y'), 259]);
    assert_eq!(ids("<"), [byte(b'<')]);
}

#[test]
fn end_of_generation_is_special_regardless_of_its_type() {
    let plain = byte_level_of("gpt-2", &[], &["<|im_end|>", "<|other|>"], 1);
    let tokenizer = tokenizer(&plain);
    assert_eq!(tokenizer.ids("<|im_end|>"), [256]);
    assert!(tokenizer.count("<|other|>") > 1);
}

#[test]
fn special_tokens_strip_white_space_if_the_model_is_named_phi_3() {
    let phi = || {
        let tokens = ["<unk>", "<s>", "</s>", "<|end|>", "▁", "a", "▁a"];
        GgufBuilder::new("llama")
            .text("general.architecture", "phi3")
            .texts("tokenizer.ggml.tokens", &tokens)
            .numbers("tokenizer.ggml.token_type", &[2, 3, 3, 3, 1, 1, 1])
            .scores("tokenizer.ggml.scores", &[0.0, 0.0, 0.0, 0.0, -2.0, -3.0, -1.0])
    };
    let named = tokenizer(&phi().text("general.name", "Phi3"));
    assert_eq!(named.ids("<|end|> \n a<s> a"), [3, 6, 1, 4, 6]);
    let other = tokenizer(&phi().text("general.name", "other"));
    assert_eq!(other.ids("<|end|> a"), [3, 4, 6]);
    let unnamed = phi().vocabulary();
    assert_eq!(
        Tokenizer::new(&unnamed, Engine::LlamaCpp).unwrap_err(),
        TokenizerError::MissingName
    );
    assert_eq!(
        Tokenizer::new(&unnamed.with_name("Phi3"), Engine::LlamaCpp).unwrap().ids("a<|end|> a"),
        [6, 3, 6]
    );
}

#[test]
fn gemma_merges_across_words_and_falls_back_to_bytes() {
    let tokens = ["<bos>", "<0x21>", "▁", "a", "b", "a▁b", "a▁", "\n", "\n\n"];
    let header = GgufBuilder::new("gemma4")
        .texts("tokenizer.ggml.tokens", &tokens)
        .texts("tokenizer.ggml.merges", &["a ▁", "a▁ b"])
        .number("tokenizer.ggml.bos_token_id", 0);
    let gemma = tokenizer(&header);
    assert_eq!(gemma.ids("a b"), [5]);
    assert_eq!(gemma.ids("ab a!"), [3, 4, 2, 3, 1]);
    assert_eq!(gemma.ids("\n\n\n"), [7, 7, 7]);
    assert_eq!(gemma.ids("\n\na"), [8, 3]);
    assert_eq!(gemma.ids_with("a", true), [0, 3]);
}

#[test]
fn unknown_model_or_pre_tokenizer_is_an_error() {
    let error =
        |gguf: &GgufBuilder| Tokenizer::new(&gguf.vocabulary(), Engine::LlamaCpp).unwrap_err();
    let other = GgufBuilder::new("bert").texts("tokenizer.ggml.tokens", &["a"]);
    assert_eq!(error(&other), TokenizerError::UnknownModel("bert".into()));
    let newer = byte_level("qwen9", &[], &[]);
    assert_eq!(error(&newer), TokenizerError::UnknownPreTokenizer("qwen9".into()));
}

#[test]
fn identity_depends_on_the_vocabulary() {
    let a = tokenizer(&byte_level("gpt-2", &["a b"], &[]));
    let b = tokenizer(&byte_level("qwen2", &["a b"], &[]));
    assert_ne!(a.identity(), b.identity());
    assert_eq!(a.identity(), tokenizer(&byte_level("gpt-2", &["a b"], &[])).identity());
}

#[test]
fn threads_can_share_a_tokenizer() {
    let expect = GPT2.ids("the same text on every thread");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert_eq!(GPT2.ids("the same text on every thread"), expect));
        }
    });
}

#[test]
fn long_repetitive_text_is_counted() {
    for text in ["a", " ", "7", "\n", "🦀", "ab", "<"] {
        let text = text.repeat(100_000);
        assert_eq!(GPT2.count(&text) as usize, GPT2.ids(&text).len());
        assert!(LLAMA.count(&text) > 0);
    }
}

/// Returns the bytes that tokens of GPT-2 represent.
fn spelled(ids: &[u32]) -> Vec<u8> {
    let mut texts = vec![Vec::new(); 256];
    for byte in 0..=255_u8 {
        // The tokens of GPT-2 begin with the printable bytes.
        let printable = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
        let order = (0..=255).filter(printable).chain((0..=255).filter(|byte| !printable(byte)));
        let at = order.clone().position(|other| other == byte).unwrap();
        texts[at] = vec![byte];
    }
    let vocabulary = vocabulary("gpt-2");
    let symbol = |char: char| {
        let mut buffer = [0; 4];
        let char = char.encode_utf8(&mut buffer).as_bytes();
        let at = (0..256).find(|id| vocabulary.texts.of(*id) == char).unwrap();
        texts[at as usize].clone()
    };
    let text = |id: &u32| String::from_utf8(vocabulary.texts.of(*id).to_vec()).unwrap();
    ids.iter().flat_map(|id| text(id).chars().flat_map(symbol).collect::<Vec<u8>>()).collect()
}

#[test]
fn tokens_of_a_text_spell_it() {
    let text = "naïve “quotes”, 中文, \u{0}\u{7f}, 👩‍👩‍👧 and \r\n\ttabs  ";
    assert_eq!(spelled(&GPT2.ids(text)), text.as_bytes());
}

proptest! {
    #[test]
    fn count_equals_the_number_of_ids(text in any::<String>()) {
        for tokenizer in [&*GPT2, &*LLAMA] {
            let ids = tokenizer.ids_with(&text, true);
            prop_assert_eq!(tokenizer.count_with(&text, true) as usize, ids.len());
            // The first time words are merged, the second time they are cached.
            prop_assert_eq!(tokenizer.ids_with(&text, true), ids);
        }
    }

    #[test]
    fn special_token_splits_text_into_independent_parts(
        a in "[a-z <|>]{0,30}",
        b in "[a-z <|>]{0,30}",
    ) {
        let end = "<|endoftext|>";
        let mut expect = GPT2.ids(&a);
        expect.push(50256);
        expect.extend(GPT2.ids(&b));
        prop_assert_eq!(GPT2.ids(&format!("{a}{end}{b}")), expect);
    }
}

#[test]
fn control_tokens_are_broken_up_and_user_defined_ones_are_not() {
    let check = |kind, text: &str, expect: &str| {
        let others = ["<|x|>", "<tag>", "<|end|>", "|>|"];
        let vocabulary = byte_level_of("gpt-2", &[], &others, kind).vocabulary();
        let tokenizer = Tokenizer::new(&vocabulary, Engine::LlamaCpp).unwrap();
        assert_eq!(tokenizer.without_controls(text), expect);
    };
    let (control, user_defined) = (3, 4);
    check(control, "a <|x|><tag> <|y|>", "a < |x|>< tag> <|y|>");
    check(control, "<|x|>|", "< |x| >|");
    check(control, "nothing < | x", "nothing < | x");
    check(user_defined, "<|x|><tag>", "<|x|><tag>");
    check(user_defined, "<|end|>", "< |end|>");
}
