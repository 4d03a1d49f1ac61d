//! What each rule makes of texts that show where they differ, and that no text is lost.

use proptest::prelude::*;

use super::*;

fn pieces<'t>(name: &str, text: &'t str) -> Vec<&'t str> {
    let mut pieces = Vec::new();
    let rule = pre_of(name).unwrap().rule;
    rule.split(text.as_bytes(), &mut |start, end| pieces.push(&text[start..end]));
    pieces
}

#[track_caller]
fn check(name: &str, text: &str, expect: &[&str]) {
    assert_eq!(pieces(name, text), expect, "{name}");
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
fn llama3_ends_signs_with_line_breaks() {
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
fn qwen_takes_digits_one_by_one_and_its_newest_takes_marks_into_words() {
    check("qwen2", "v12", &["v", "1", "2"]);
    check("qwen2", "e\u{301}\u{301}t", &["e", "\u{301}\u{301}", "t"]);
    check("qwen35", "e\u{301}\u{301}t", &["e\u{301}\u{301}t"]);
    check("qwen35", "-\u{301}", &["-\u{301}"]);
}

#[test]
fn capitals_begin_words_where_case_counts() {
    check("gpt-4o", "HTMLParser isn't", &["HTMLParser", " isn't"]);
    check("gpt-4o", "fooBar FOO's", &["foo", "Bar", " FOO's"]);
    check("gpt-4o", "ÀBC", &["À", "BC"]);
    check("gpt-4o", "12345//\n x", &["123", "45", "//\n", " x"]);
    check("tekken", "isn't 42", &["isn", "'t", " ", "4", "2"]);
}

#[test]
fn starcoder_and_falcon_cut_numbers_first_or_last() {
    check("starcoder", "a 12", &["a", " ", "1", "2"]);
    check("falcon", "a 12345 b", &["a", " ", "123", "45", " b"]);
    check("falcon", "a$`b", &["a", "$`", "b"]);
    check("default", "a$`b 1234", &["a", "$", "`", "b", " ", "123", "4"]);
}

#[test]
fn deepseek_cuts_by_script() {
    check("deepseek-llm", "a b1  ", &["a", " b", "1", "  "]);
    check("deepseek-llm", "\n\na", &["\n", "\n", "a"]);
    // What the rule calls signs has the ASCII letters in it.
    check("deepseek-llm", "   über中文12", &["  ", " ü", "ber", "中文", "12"]);
    check("deepseek-coder", "x = 12;", &["x", " = ", "1", "2", ";"]);
    check("deepseek-v3", "x2345=(name)", &["x", "234", "5", "=(", "name", ")"]);
    check("deepseek-v3", "a.name", &["a", ".name"]);
    check("deepseek-v3", "中文か abc", &["中文か", " abc"]);
    check("deepseek-v3", "\u{1}\u{2}", &["\u{1}\u{2}"]);
}

#[test]
fn an_unknown_name_has_no_rule() {
    assert!(pre_of("kimi-k2").is_none());
    assert!(pre_of("LLAMA-BPE").is_none());
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
    fn the_words_of_a_text_are_the_text(
        text in prop_oneof![any::<String>(), "[ a-cA-C0-9'\\n\\r\\t.$é中\u{301}\u{3000}]{0,60}"],
    ) {
        for name in NAMES {
            let pieces = pieces(name, &text);
            prop_assert_eq!(pieces.concat(), text.as_str(), "{}", name);
            prop_assert!(pieces.iter().all(|piece| !piece.is_empty()));
        }
    }

    #[test]
    fn bytes_that_are_no_text_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        for name in NAMES {
            let mut end = 0;
            pre_of(name).unwrap().rule.split(&bytes, &mut |start, next| {
                assert_eq!(start, end);
                end = next;
            });
            prop_assert_eq!(end, bytes.len());
        }
    }
}
