//! Whether the line of a record can have a phrase, from its bytes alone.
//!
//! The words of a common phrase come in many texts that have them elsewhere; parsing a thousand lines to find that
//! out takes longer than all the rest of a search. Here a line is only refused when nothing that JSON can hide,
//! an escape, a further part of the message, a letter that is lower-cased into ASCII, could make it match.
//!
//! Pure. Must not know records.

/// Characters above ASCII whose lower case has an ASCII letter: the Kelvin sign, and the capital I with a dot.
const FOLDED_INTO_ASCII: [&[u8]; 2] = ["\u{212A}".as_bytes(), "\u{130}".as_bytes()];

/// False only when no text in a line of JSON can have `wanted`, which is folded as for [`super::terms::Term`].
pub(super) fn may_have(json: &[u8], wanted: &[char]) -> bool {
    let Some(wanted) = wanted.iter().map(|char| plain(*char)).collect::<Option<Vec<u8>>>() else {
        return true;
    };
    let Some(first) = wanted.first() else { return true };
    memchr::memchr2_iter(*first, first.to_ascii_uppercase(), json)
        .any(|at| goes_on(&json[at..], &wanted))
        || FOLDED_INTO_ASCII.iter().any(|char| memchr::memmem::find(json, char).is_some())
}

/// A character that stands in JSON as itself.
fn plain(char: char) -> Option<u8> {
    u8::try_from(char)
        .ok()
        .filter(|byte| byte.is_ascii() && !byte.is_ascii_control() && !matches!(byte, b'"' | b'\\'))
}

/// Whether the bytes begin with `wanted`, or cannot be told from it.
fn goes_on(json: &[u8], wanted: &[u8]) -> bool {
    let mut at = 0;
    for byte in wanted {
        let Some(found) = json.get(at) else { return false };
        at += 1;
        if byte == found || byte.eq_ignore_ascii_case(found) {
            continue;
        }
        // White space may be longer than one space, escaped, above ASCII, or lie between two parts.
        let hides_space = |byte: u8| matches!(byte, b' ' | b'\\' | b'"') || !byte.is_ascii();
        let before = at.checked_sub(2).map(|before| json[before]);
        let next = json.get(at).copied();
        // Numbers among the arguments of a call are parts of their own.
        let ends_number = matches!(found, b',' | b'}' | b']') && next != Some(b' ');
        return *byte == b' ' && (hides_space(*found) || ends_number)
            || hides_space(*found) && before == Some(b' ');
    }
    true
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::catalog::terms::{Terms, first_matches};

    #[test]
    fn a_line_is_refused_only_when_it_cannot_match() {
        let check = |text: &str, wanted: &str, expect: bool| {
            let json = serde_json::to_vec(&serde_json::json!({ "text": text })).expect("is JSON");
            let wanted: Vec<char> = wanted.chars().collect();
            assert_eq!(may_have(&json, &wanted), expect, "{wanted:?} in {text}");
        };
        check("say Hello world", "hello world", true);
        check("hello there, world", "hello world", false);
        check("hello", "hello world", true);
        check("hello\nworld", "hello world", true);
        check("hello  \n world", "hello world", true);
        check("hello\u{3000}world", "hello world", true);
        check("worldhello", "hello world", true);
        check("os.path", "os.path", true);
        check("os path", "os.path", false);
        check("\u{212A}elvin scale", "kelvin scale", true);
        check("elvin scale", "kelvin scale", false);
        check("any", "größe", true);
        let wanted: Vec<char> = "1 2".chars().collect();
        assert!(may_have(br#"{"args":{"a":1,"b":2}}"#, &wanted));
    }

    proptest! {
        /// What matches is never refused.
        #[test]
        fn nothing_that_matches_is_refused(
            texts in prop::collection::vec("[abAB \\n\\t\"\\\\é.\u{3000}\u{212A}k]{0,12}", 1..4),
            query in "[abk]{1,2}[ .][abk]{1,2}( [abk])?",
        ) {
            let terms = Terms::parse(&format!("\"{query}\"")).expect("parses");
            let json = serde_json::to_vec(&texts).expect("is JSON");
            if first_matches(&terms.terms, &texts.join("\n")).is_some() {
                prop_assert!(terms.may_match(&json), "{query:?} in {texts:?}");
            }
        }
    }
}
