//! Ids against the engine's own cases, and what special tokens do to a text.

use std::sync::LazyLock;

use proptest::prelude::*;

use super::{Tokenizer, UnknownRule};
use crate::tokens::testing::{Header, byte_level, byte_level_of, golden, vocabulary};

static GPT2: LazyLock<Tokenizer> = LazyLock::new(|| Tokenizer::new(&vocabulary("gpt-2")).unwrap());
static LLAMA: LazyLock<Tokenizer> =
    LazyLock::new(|| Tokenizer::new(&vocabulary("llama-spm")).unwrap());

fn tokenizer(header: &Header) -> Tokenizer {
    Tokenizer::new(&header.vocabulary()).unwrap()
}

#[test]
fn the_ids_are_those_of_the_engine() {
    for (name, tokenizer) in [("gpt-2", &GPT2), ("llama-spm", &LLAMA)] {
        let cases = golden(name);
        assert!(cases.len() >= 46, "{name}");
        // Twice, so that the second time the words come from the cache.
        for (text, ids) in cases.iter().chain(&cases) {
            assert_eq!(tokenizer.ids(text), *ids, "{name}: {text:?}");
            assert_eq!(tokenizer.count(text) as usize, ids.len(), "{name}: {text:?}");
        }
    }
}

#[test]
fn a_text_that_stands_alone_begins_as_the_model_says() {
    assert_eq!(LLAMA.ids_with("hello", true)[0], 1);
    assert_eq!(LLAMA.ids_with("", true), [1]);
    assert!(LLAMA.ids_with("", false).is_empty());
    assert_eq!(GPT2.ids_with("hello", true), GPT2.ids("hello"));
    let asked = byte_level("qwen2", &[], &["<s>"])
        .flag("tokenizer.ggml.add_bos_token", true)
        .number("tokenizer.ggml.bos_token_id", 256);
    assert_eq!(tokenizer(&asked).ids_with("a", true), [256, u32::from(b'a')]);
    // Llama 3 begins with one unless the model says otherwise, and GLM has none.
    let with_id = |pre: &str| {
        tokenizer(&byte_level(pre, &[], &["<s>"]).number("tokenizer.ggml.bos_token_id", 256))
    };
    assert!(with_id("llama-bpe").adds_bos());
    assert!(!with_id("qwen2").adds_bos());
}

#[test]
fn merges_go_by_rank_and_a_whole_word_by_itself_only_where_the_rule_says_so() {
    let merges = ["b c", "a b", "ab c", "Ġ a"];
    let ids = |pre: &str, text: &str| tokenizer(&byte_level(pre, &merges, &[])).ids(text);
    // 256 is "bc", 258 is "abc", which only "ab" and "c" make.
    assert_eq!(ids("gpt-2", "abc"), [u32::from(b'a'), 256]);
    assert_eq!(ids("llama-bpe", "abc"), [258]);
    assert_eq!(ids("gpt-2", "x a"), [u32::from(b'x'), 259]);
}

#[test]
fn a_merge_whose_text_is_no_token_gives_its_bytes() {
    let header = byte_level("gpt-2", &[], &[]).texts("tokenizer.ggml.merges", &["a b", "ab c"]);
    let expect = b"abc".map(u32::from);
    assert_eq!(tokenizer(&header).ids("abc"), expect);
}

#[test]
fn the_longest_special_token_is_taken_first() {
    let specials = ["<a>", "a><b", "<a", "<b>"];
    let ids = |text: &str| tokenizer(&byte_level("gpt-2", &[], &specials)).ids(text);
    let byte = u32::from;
    // "a><b" is the longest, though "<a>" begins further left; what is left of it is cut by the others.
    assert_eq!(ids("<a><b>"), [byte(b'<'), 257, byte(b'>')]);
    assert_eq!(ids("<a><a"), [256, 258]);
    assert_eq!(ids("x<b>y<b>"), [byte(b'x'), 259, byte(b'y'), 259]);
    assert_eq!(ids("<"), [byte(b'<')]);
}

#[test]
fn ends_of_generation_are_special_whatever_the_file_says() {
    let plain = byte_level_of("gpt-2", &[], &["<|im_end|>", "<|other|>"], 1);
    let tokenizer = tokenizer(&plain);
    assert_eq!(tokenizer.ids("<|im_end|>"), [256]);
    assert!(tokenizer.count("<|other|>") > 1);
}

#[test]
fn the_special_tokens_of_phi_3_swallow_white_space_and_its_name_decides() {
    let phi = || {
        let tokens = ["<unk>", "<s>", "</s>", "<|end|>", "▁", "a", "▁a"];
        Header::new("llama")
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
    assert_eq!(Tokenizer::new(&unnamed).unwrap_err(), UnknownRule::Name);
    assert_eq!(Tokenizer::new(&unnamed.with_name("Phi3")).unwrap().ids("a<|end|> a"), [6, 3, 6]);
}

#[test]
fn gemma_joins_across_words_and_writes_unknown_bytes() {
    let tokens = ["<bos>", "<0x21>", "▁", "a", "b", "a▁b", "a▁", "\n", "\n\n"];
    let header = Header::new("gemma4")
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
fn what_is_not_known_is_not_guessed() {
    let error = |header: &Header| Tokenizer::new(&header.vocabulary()).unwrap_err();
    let other = Header::new("bert").texts("tokenizer.ggml.tokens", &["a"]);
    assert_eq!(error(&other), UnknownRule::Model("bert".into()));
    let newer = byte_level("qwen9", &[], &[]);
    assert_eq!(error(&newer), UnknownRule::Pre("qwen9".into()));
}

#[test]
fn the_identity_names_the_vocabulary() {
    let a = tokenizer(&byte_level("gpt-2", &["a b"], &[]));
    let b = tokenizer(&byte_level("qwen2", &["a b"], &[]));
    assert_ne!(a.identity(), b.identity());
    assert_eq!(a.identity(), tokenizer(&byte_level("gpt-2", &["a b"], &[])).identity());
    assert!(a.heap_bytes() > 0);
}

#[test]
fn threads_share_a_tokenizer() {
    let expect = GPT2.ids("the same text on every thread");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert_eq!(GPT2.ids("the same text on every thread"), expect));
        }
    });
}

#[test]
fn one_long_word_ends() {
    for text in ["a", " ", "7", "\n", "🦀", "ab", "<"] {
        let text = text.repeat(100_000);
        assert_eq!(GPT2.count(&text) as usize, GPT2.ids(&text).len());
        assert!(LLAMA.count(&text) > 0);
    }
}

/// The bytes of tokens of a vocabulary without special tokens in the text.
fn spelled(ids: &[u32]) -> Vec<u8> {
    let mut texts = vec![Vec::new(); 256];
    for byte in 0..=255_u8 {
        // In this order GPT-2 has its bytes: those that print first.
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
fn the_tokens_of_a_text_spell_it() {
    let text = "naïve “quotes”, 中文, \u{0}\u{7f}, 👩‍👩‍👧 and \r\n\ttabs  ";
    assert_eq!(spelled(&GPT2.ids(text)), text.as_bytes());
}

proptest! {
    #[test]
    fn any_text_is_counted_as_it_is_cut(text in any::<String>()) {
        for tokenizer in [&*GPT2, &*LLAMA] {
            let ids = tokenizer.ids_with(&text, true);
            prop_assert_eq!(tokenizer.count_with(&text, true) as usize, ids.len());
            // The first time words are merged, the second time they are remembered.
            prop_assert_eq!(tokenizer.ids_with(&text, true), ids);
        }
    }

    #[test]
    fn special_tokens_cut_text_into_independent_parts(
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
