//! Control tokens that are broken up.

use proptest::prelude::*;

use super::*;
use crate::tokens::testing::byte_level;

/// Returns the special tokens of a vocabulary with some control tokens.
fn specials(controls: &[&str]) -> SpecialTokens {
    SpecialTokens::new(&byte_level("gpt-2", &[], controls).vocabulary(), Engine::LlamaCpp)
}

#[test]
fn usual_controls_are_broken_up_in_one_pass() {
    let check = |text: &str, expect: &str| {
        let found = without_usual_controls(text, |_| true);
        assert_eq!(found, expect);
        assert_eq!(matches!(found, Cow::Borrowed(_)), text == expect, "{text}");
        assert!(matches!(without_usual_controls(&found, |_| true), Cow::Borrowed(_)), "{found}");
    };
    check("<|a|><|b-1|>[INST]", "< |a|>< |b-1|>[ INST]");
    check("<|<|a|>|> <start_of_turn", "<|< |a|>|> <start_of_turn");
    check("<| |> <|a b|> <||> <|", "<| |> <|a b|> <||> <|");
    check("é[/INST]é<end_of_turn>", "é[ /INST]é< end_of_turn>");
    let only_one = without_usual_controls("<|a|><|b|>[INST]", |control| control == "<|b|>");
    assert_eq!(only_one, "<|a|>< |b|>[INST]");
}

#[test]
fn many_different_controls_are_broken_up_at_once() {
    let text: String = (0..100_000).map(|n| format!("<|a{n}|>")).collect();
    assert_eq!(without_usual_controls(&text, |_| true).len(), text.len() + 100_000);
    let unclosed = "<|a".repeat(300_000);
    assert!(matches!(without_usual_controls(&unclosed, |_| true), Cow::Borrowed(_)));
}

#[test]
fn controls_of_a_vocabulary_are_broken_up() {
    let all = specials(&["<a>", "<a><b>", "a><", " x", "é", "é|", "cd", "c d", "c  d"]);
    let check = |text: &str, expect: &str| {
        let found = all.without_controls(text);
        assert_eq!(found, expect);
        assert_eq!(matches!(found, Cow::Borrowed(_)), text == expect, "{text}");
    };
    check("<a><a>", "< a >< a>");
    check("<a><b>", "< a ><b>");
    check("é|é", "é |é");
    check("a  x x", "a  x x");
    check("none < a>", "none < a>");
    // Each space completes another token.
    check("cd", "c   d");
}

proptest! {
    #[test]
    fn no_control_remains(text in "[<|>ab \\n]{0,40}") {
        let controls = ["<a>", "<|a|>", "a>", "|a", " b", "\nb", "b ", "a  b", "<a b", "<<<"];
        let all = specials(&controls);
        let found = all.without_controls(&text);
        for control in controls.iter().filter(|control| can_be_broken_up(control)) {
            prop_assert!(!found.contains(*control), "{found:?} has {control:?}");
        }
        let spelled = |text: &str| text.replace(' ', "");
        prop_assert_eq!(spelled(&found), spelled(&text));
        prop_assert!(matches!(all.without_controls(&found), Cow::Borrowed(_)));
    }
}
