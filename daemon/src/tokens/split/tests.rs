//! The words that each rule finds in texts on which the rules differ, and the completeness of all splits.

use proptest::prelude::*;

use super::*;

fn words<'t>(name: &str, text: &'t str) -> Vec<&'t str> {
    let mut words = Vec::new();
    let rule = PreTokenizer::by_name(name).unwrap().rule;
    rule.split(text.as_bytes(), &mut |start, end| words.push(&text[start..end]));
    words
}

#[track_caller]
fn check(name: &str, text: &str, expect: &[&str]) {
    assert_eq!(words(name, text), expect, "{name}");
}

#[test]
fn gpt2_keeps_digits_and_white_space_together() {
    check("gpt-2", "I'll go", &["I", "'ll", " go"]);
    check("gpt-2", "I'LL 12345", &["I", "'", "LL", " 12345"]);
    check("gpt-2", "a  b \n c\n", &["a", " ", " b", " \n", " c", "\n"]);
    check("gpt-2", "x += y", &["x", " +=", " y"]);
    check("gpt-2", "  ", &["  "]);
    check("gpt-2", "a\u{3000}\u{3000}b", &["a", "\u{3000}", "\u{3000}", "b"]);
}

#[test]
fn llama3_appends_line_breaks_to_signs() {
    check("llama-bpe", "I'LL go", &["I", "'LL", " go"]);
    check("llama-bpe", "1234567", &["123", "456", "7"]);
    check("llama-bpe", "if x {\n\n  y}", &["if", " x", " {\n\n", " ", " y", "}"]);
    check("llama-bpe", "a \n \n  b", &["a", " \n \n", " ", " b"]);
    check("llama-bpe", "(name\tof", &["(name", "\tof"]);
    check("llama-bpe", "x ", &["x", " "]);
    check("llama-bpe", "x  ", &["x", "  "]);
    check("llama-bpe", "e\u{301}t", &["e", "\u{301}t"]);
}

#[test]
fn qwen_splits_digits_and_qwen35_keeps_marks_in_words() {
    check("qwen2", "v12", &["v", "1", "2"]);
    check("qwen2", "e\u{301}\u{301}t", &["e", "\u{301}\u{301}", "t"]);
    check("qwen35", "e\u{301}\u{301}t", &["e\u{301}\u{301}t"]);
    check("qwen35", "-\u{301}", &["-\u{301}"]);
}

#[test]
fn cased_rules_begin_words_at_capitals() {
    check("gpt-4o", "HTMLParser isn't", &["HTMLParser", " isn't"]);
    check("gpt-4o", "fooBar FOO's", &["foo", "Bar", " FOO's"]);
    check("gpt-4o", "ÀBC", &["À", "BC"]);
    check("gpt-4o", "12345//\n x", &["123", "45", "//\n", " x"]);
    check("tekken", "isn't 42", &["isn", "'t", " ", "4", "2"]);
}

#[test]
fn starcoder_and_falcon_split_numbers() {
    check("starcoder", "a 12", &["a", " ", "1", "2"]);
    check("falcon", "a 12345 b", &["a", " ", "123", "45", " b"]);
    check("falcon", "a$`b", &["a", "$`", "b"]);
    check("default", "a$`b 1234", &["a", "$", "`", "b", " ", "123", "4"]);
}

#[test]
fn deepseek_splits_by_script() {
    check("deepseek-llm", "a b1  ", &["a", " b", "1", "  "]);
    check("deepseek-llm", "\n\na", &["\n", "\n", "a"]);
    // The rule's signs include the ASCII letters.
    check("deepseek-llm", "   über中文12", &["  ", " ü", "ber", "中文", "12"]);
    check("deepseek-coder", "x = 12;", &["x", " = ", "1", "2", ";"]);
    check("deepseek-v3", "x2345=(name)", &["x", "234", "5", "=(", "name", ")"]);
    check("deepseek-v3", "a.name", &["a", ".name"]);
    check("deepseek-v3", "中文か abc", &["中文か", " abc"]);
    check("deepseek-v3", "\u{1}\u{2}", &["\u{1}\u{2}"]);
}

#[test]
fn unknown_name_has_no_rule() {
    assert!(PreTokenizer::by_name("kimi-k2").is_none());
    assert!(PreTokenizer::by_name("LLAMA-BPE").is_none());
}

const NAMES: &[&str] = &[
    "default",
    "llama-bpe",
    "qwen2",
    "qwen35",
    "gpt-2",
    "starcoder",
    "falcon",
    "gpt-4o",
    "tekken",
    "deepseek-llm",
    "deepseek-coder",
    "deepseek-v3",
    "laguna",
];

proptest! {
    #[test]
    fn concatenated_words_are_the_text(
        text in prop_oneof![any::<String>(), "[ a-cA-C0-9'\\n\\r\\t.$é中\u{301}\u{3000}]{0,60}"],
    ) {
        for name in NAMES {
            let words = words(name, &text);
            prop_assert_eq!(words.concat(), text.as_str(), "{}", name);
            prop_assert!(words.iter().all(|word| !word.is_empty()));
        }
    }

    #[test]
    fn invalid_utf8_is_split_completely(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        for name in NAMES {
            let mut end = 0;
            PreTokenizer::by_name(name).unwrap().rule.split(&bytes, &mut |start, next| {
                assert_eq!(start, end);
                end = next;
            });
            prop_assert_eq!(end, bytes.len());
        }
    }
}
