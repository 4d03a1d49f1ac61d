//! Exact digests of tool calls and of outputs: two things are equal if their digests are.
//!
//! Arguments are compared by meaning at any depth: the order of keys is irrelevant, and numbers are compared by value.
//!
//! Outputs are compared without terminal sequences and with single spaces. Where enough words stand beside them,
//! numbers and ids are left out too, because times, process ids and addresses differ between two reports of one error.
//! Numbers that count something stay, because they show progress: `3 failed`, `12 files`, `errors=3`, `4 of 9`,
//! `12/40`, `45%`.

use std::borrow::Cow;

use ollm_protocol::sanitize;
use serde_json::{Number, Value};

/// The first half of a blake3 hash.
pub(crate) type Digest = u128;

/// Bytes of the longest output that is normalized, which takes some milliseconds. Longer outputs are compared as they
/// are.
const MAX_NORMALIZED_BYTES: usize = 1024 * 1024;
/// Distinct words with which numbers of an output are left out. Shorter outputs may consist of their numbers
/// (`exit 1`), as tables do.
const MIN_DISTINCT_WORDS: usize = 8;
/// Words of the shortest output whose repetition is a loop even if different calls gave it. Confirmations
/// (`The file a.rs has been updated.`) are shorter, and progress repeats them.
const MIN_WORDS: usize = 8;
/// Bytes of the longest count. Longer numbers are ids and timestamps.
const MAX_COUNT_BYTES: usize = 8;
/// Words beside which a number counts something, besides plurals.
const COUNTED: &[&str] = &[
    "fail",
    "failed",
    "failing",
    "pass",
    "passed",
    "passing",
    "skipped",
    "ignored",
    "pending",
    "done",
    "remaining",
    "left",
    "previous",
    "total",
    "of",
];
/// Plurals beside which a number is a duration.
const TIME_UNITS: &[&str] = &["secs", "seconds", "mins", "minutes", "hours", "days", "weeks"];

/// The result of a tool or the answer of a model, as the detection compares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Output {
    pub(super) digest: Digest,
    /// Whether its repetition is a loop even if different calls gave it.
    pub(super) is_substantial: bool,
}

impl Output {
    /// Digests a text. A failure is substantial if it has any word.
    pub(super) fn new(text: &str, is_failure: bool) -> Self {
        if text.len() > MAX_NORMALIZED_BYTES {
            return Self { digest: of_text(text), is_substantial: true };
        }
        let has_sequences = text.contains('\u{1b}') || text.contains('\u{9b}');
        let text =
            if has_sequences { Cow::Owned(sanitize::text(text)) } else { Cow::Borrowed(text) };
        let (min_words, min_distinct) =
            if is_failure { (1, 1) } else { (MIN_WORDS, MIN_DISTINCT_WORDS) };
        let normal = normalized(&text, has_distinct_words(&text, min_distinct));
        let is_substantial = text.split_ascii_whitespace().nth(min_words - 1).is_some();
        Self { digest: of_text(&normal), is_substantial }
    }
}

/// Digests a text as it is.
pub(super) fn of_text(text: &str) -> Digest {
    let mut half = [0; 16];
    half.copy_from_slice(&blake3::hash(text.as_bytes()).as_bytes()[..16]);
    Digest::from_be_bytes(half)
}

/// Digests a call by its tool and the meaning of its arguments.
pub(super) fn of_call(tool: &str, args: &Value) -> Digest {
    let mut canonical = Value::from(tool).to_string();
    push_canonical(&mut canonical, args);
    of_text(&canonical)
}

/// Appends a value as JSON with sorted keys and one spelling for each number.
fn push_canonical(out: &mut String, value: &Value) {
    match value {
        Value::Number(number) => out.push_str(&canonical_number(number)),
        Value::Array(items) => {
            out.push('[');
            for item in items {
                push_canonical(out, item);
                out.push(',');
            }
            out.push(']');
        }
        Value::Object(fields) => {
            let mut sorted: Vec<_> = fields.iter().collect();
            sorted.sort_unstable_by_key(|(name, _)| *name);
            out.push('{');
            for (name, value) in sorted {
                out.push_str(&Value::from(name.as_str()).to_string());
                push_canonical(out, value);
                out.push(',');
            }
            out.push('}');
        }
        Value::Null | Value::Bool(_) | Value::String(_) => out.push_str(&value.to_string()),
    }
}

fn canonical_number(number: &Number) -> String {
    /// 2^126: every smaller float without a fraction converts without loss.
    const LIMIT: f64 = 85_070_591_730_234_615_865_843_651_857_942_052_864.0;
    let float = number.as_f64().unwrap_or_default();
    #[expect(clippy::cast_possible_truncation, reason = "it is whole and within the bounds")]
    let whole = || (float.fract() == 0.0 && float.abs() < LIMIT).then_some(float as i128);
    number.as_i128().or_else(whole).map_or_else(|| float.to_string(), |whole| whole.to_string())
}

fn has_digit(word: &str) -> bool {
    word.bytes().any(|byte| byte.is_ascii_digit())
}

/// Whether a text has at least `n` distinct words of letters.
fn has_distinct_words(text: &str, n: usize) -> bool {
    let is_word = |word: &&str| word.contains(char::is_alphabetic) && !has_digit(word);
    let mut distinct: Vec<&str> = Vec::with_capacity(n);
    text.split_ascii_whitespace().filter(is_word).any(|word| {
        if !distinct.contains(&word) {
            distinct.push(word);
        }
        distinct.len() == n
    })
}

/// The words of a text with single spaces between them; `drops_numbers` replaces those that count nothing.
fn normalized(text: &str, drops_numbers: bool) -> String {
    let mut out = String::with_capacity(text.len());
    let mut before = "";
    let mut words = text.split_ascii_whitespace().peekable();
    while let Some(word) = words.next() {
        let next = words.peek().copied().unwrap_or_default();
        if drops_numbers && has_digit(word) && !is_count(before, word, next) {
            push_without_numbers(&mut out, word);
        } else {
            out.push_str(word);
        }
        out.push(' ');
        before = word;
    }
    out
}

/// Whether the number in a word counts something, by itself or with the words around it.
fn is_count(before: &str, word: &str, next: &str) -> bool {
    let is_number = |text: &str| {
        (1..=MAX_COUNT_BYTES).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_digit() || b",.".contains(&byte))
    };
    let bare = word.trim_matches(|char: char| char.is_ascii_punctuation() && char != '%');
    if let Some(percent) = bare.strip_suffix('%') {
        return is_number(percent);
    }
    if let Some((done, all)) = bare.split_once('/') {
        return is_number(done) && is_number(all);
    }
    if let Some((key, number)) = bare.split_once([':', '=']) {
        return is_number(number) && is_counted(key);
    }
    let is_key = before.ends_with([':', '=']) || COUNTED.contains(&before);
    let is_followed = word.ends_with(|last: char| last.is_ascii_digit()) && is_counted(next);
    is_number(bare) && (is_followed || is_key && is_counted(before))
}

/// Whether a word is the unit or the thing that a number beside it counts.
fn is_counted(word: &str) -> bool {
    let word = word.trim_matches(|char: char| char.is_ascii_punctuation());
    let is_in = |words: &[&str]| words.iter().any(|one| one.eq_ignore_ascii_case(word));
    let is_plural = match word.as_bytes() {
        [_, _, .., before, b's' | b'S'] => !matches!(before, b's' | b'S') && !is_in(TIME_UNITS),
        _ => false,
    };
    is_plural || is_in(COUNTED)
}

/// Appends a word with `#` in place of each run of letters and digits that has a digit.
fn push_without_numbers(out: &mut String, word: &str) {
    for piece in word.split_inclusive(|char: char| !char.is_ascii_alphanumeric()) {
        let run = piece.trim_end_matches(|char: char| !char.is_ascii_alphanumeric());
        if has_digit(run) {
            // `1.5` and `10:00:01` are one number each.
            match out.strip_suffix(['.', ',', ':']) {
                Some(number) if number.ends_with('#') => drop(out.pop()),
                _ => out.push('#'),
            }
            out.push_str(&piece[run.len()..]);
        } else {
            out.push_str(piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn arguments_of_equal_meaning_are_equal() {
        let read = |text: &str| -> Value { serde_json::from_str(text).unwrap() };
        let check = |left: &str, right: &str, equal: bool| {
            let digests = (of_call("t", &read(left)), of_call("t", &read(right)));
            assert_eq!(digests.0 == digests.1, equal, "{left} {right}");
        };
        check(r#"{"a":1,"b":{"c":[1,2],"d":null}}"#, r#"{"b":{"d":null,"c":[1,2]},"a":1}"#, true);
        check("[1,100,0]", "[1.0,1e2,-0.0]", true);
        check("[10000000000000000000,0.5]", "[1e19,5e-1]", true);
        // Neighbors that a conversion to floats would merge.
        check("9007199254740993", "9007199254740992", false);
        check("1", r#""1""#, false);
        check("1", "true", false);
        check("1", "1.5", false);
        check(r#"{"a":{"b":{"c":1}}}"#, r#"{"a":{"b":{"c":2}}}"#, false);
        check(r#"{"a":{"b":1}}"#, r#"{"a":{"c":1}}"#, false);
        check("[[1],2]", "[1,[2]]", false);
        check("[1,2]", "[2,1]", false);
        check(r#"["ab","c"]"#, r#"["a","bc"]"#, false);
        check(r#"["a,b"]"#, r#"["a","b"]"#, false);
        check(r#"{"a":null}"#, "{}", false);
        check("null", "{}", false);
        check(r#"" a""#, r#""a""#, false);
        assert_ne!(of_call("read", &json!({})), of_call("write", &json!({})));
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            (-1e30..1e30_f64).prop_map(Value::from),
            "[a-c ]{0,3}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            let fields = prop::collection::btree_map("[a-c]{0,2}", inner.clone(), 0..4);
            prop_oneof![
                prop::collection::vec(inner, 0..4).prop_map(Value::from),
                fields.prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    /// The value with the keys of every object in reverse order.
    fn reversed(value: &Value) -> Value {
        match value {
            Value::Array(items) => items.iter().map(reversed).collect(),
            Value::Object(fields) => {
                let fields = fields.iter().rev();
                Value::Object(fields.map(|(key, value)| (key.clone(), reversed(value))).collect())
            }
            leaf => leaf.clone(),
        }
    }

    proptest! {
        #[test]
        fn key_order_is_irrelevant_and_nested_differences_are_not(value in any_json()) {
            prop_assert_eq!(of_call("t", &value), of_call("t", &reversed(&value)));
            prop_assert_ne!(of_call("t", &json!({ "a": [value, 1] })), of_call("t", &json!({ "a": [value, 2] })));
        }
    }

    #[test]
    fn outputs_that_differ_in_what_counts_nothing_are_equal() {
        let check = |left: &str, right: &str| {
            let digests = [left, right].map(|text| Output::new(text, false).digest);
            assert_eq!(digests[0], digests[1], "{left:?} {right:?}");
        };
        check("", " \n");
        check("a  b\n\nc\t", "a b c");
        check("\u{1b}[31mfailed\u{1b}[0m: no\r\nsuch file", "failed: no such file");
        check(
            "[2026-01-27T10:00:00.123Z] worker 17 took 1.5s and could not reach the host db",
            "[2026-02-03T23:59:59.001Z] worker 4 took 12s and could not reach the host db",
        );
        check(
            "request 550e8400-e29b-41d4-a716-446655440000 failed: the server said it has no such page",
            "request 123e4567-e89b-12d3-a456-426614174000 failed: the server said it has no such page",
        );
        // Compares two values of `{}`.
        let check_in = |text: &str, left: &str, right: &str| {
            let text = format!("{text}: the server could not reach any host of the database");
            check(&text.replace("{}", left), &text.replace("{}", right));
        };
        check_in("{} ERROR", "2026-01-27 10:00:00,123", "2026-02-03 23:59:59,001");
        check_in("ERROR {} [main]", "1769508001", "1769508002");
        check_in("Checked 232 files in {}", "121ms", "1.2s");
        check_in("finished in {} seconds", "1", "12.5");
        check_in("container {} is gone", "4f1a9be02c11", "9e0077aa41bd");
        check_in("cannot open /tmp/tmp.{}/a.sock", "x7Kp2Q", "b3Zt9L");
        check_in("thread 'main' ({}) panicked", "81234", "917");
        check_in("src/main.rs:{}: error", "10:5", "112:17");
        check_in("segfault at {}", "0x7ffd12ab34", "0x55d01c02e");
    }

    #[test]
    fn outputs_that_differ_in_what_counts_are_different() {
        let check = |left: &str, right: &str, is_failure| {
            let digests = [left, right].map(|text| Output::new(text, is_failure).digest);
            assert_ne!(digests[0], digests[1], "{left:?} {right:?}");
        };
        check("a b c", "a b d", false);
        check("exit 1", "exit 2", false);
        check("progress 10", "progress 20", false);
        check("1,2\n3,4\n5,6\n7,8\n9,1\n2,3\n", "9,8\n7,6\n5,4\n3,2\n1,9\n8,7\n", false);
        let failed = "the build failed in main because a semicolon is missing at the end";
        check(failed, &failed.replace("main", "lib"), false);
        for text in [
            "test result: FAILED. 115 passed; {} failed; 0 ignored",
            "===== {} failed, 97 passed in 12.34s =====",
            "Tests: {} failed, 48 passed, 50 total",
            "FAILED (failures={}, errors=1)",
            "Tests run: 5, Failures: {}, Errors: 0",
            "# pass {}",
            "Found {} errors in 2 files.",
            "could not compile the crate due to {} previous errors",
            "\u{2716} 12 problems ({} errors, 2 warnings)",
            "Successfully replaced text in a.ts. Changed {} characters to 668 characters.",
            "Receiving objects: {}% done",
            "[{}/345] Compiling",
            "Downloaded {} of 40",
        ] {
            let text = format!("{text}\nthe whole log of this run lies in the directory");
            let of = |number| text.replace("{}", number);
            check(&of("12"), &of("9"), false);
            check(&of("12"), &of("9"), true);
        }
    }

    #[test]
    fn confirmations_are_not_substantial_and_failures_are() {
        let is_substantial = |text, is_failure| Output::new(text, is_failure).is_substantial;
        assert!(!is_substantial("", false) && !is_substantial("ok", false));
        assert!(!is_substantial("", true) && is_substantial("error", true));
        assert!(!is_substantial("The file src/a.rs has been updated.", false));
        assert!(is_substantial("fn main() { println!(\"{}\", one + two + three); }", false));
        let failure = |text| Output::new(text, true);
        assert_eq!(failure("no line 12"), failure("no line 13"));
    }

    #[test]
    fn long_outputs_are_compared_whole() {
        for n_lines in [20_000, 30_000] {
            let line = "some words of a log that is long, and its number 12\n";
            let mut text = line.repeat(n_lines);
            let whole = Output::new(&text, false);
            text.replace_range(500_000..500_001, "-");
            assert_ne!(whole, Output::new(&text, false));
        }
    }
}
