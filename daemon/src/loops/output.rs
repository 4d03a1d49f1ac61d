//! Results and answers as fingerprints, and when two of them say the same.
//!
//! Two outputs say the same when they are equal apart from white space, or, for those with words enough, apart
//! from numbers, times and ids too, or when nine tenths of their three-word pieces are shared. One word changed
//! changes three pieces, so that is about one word in sixty: a log with another line in it is something new, a
//! page with another visitor count is not.
//!
//! Only an output that weighs something is judged on its own, without regard to the call: "ok" after three
//! different edits is three successes and no loop. That is one with eight words, or any word of a failure.

use super::canonical::{Digest, first_half};

/// Words that make an output weigh something: confirmations of tools ("The file a.rs has been updated.") have
/// fewer, what a tool found has more.
const MIN_WORDS: usize = 8;
/// Pieces that a fingerprint keeps, the smallest hashes; 128 estimate a share of nine tenths within about three
/// hundredths, in 1 KiB.
const MAX_PIECES: usize = 128;
/// Words of one piece.
const PIECE_WORDS: usize = 3;
/// Tenths of the pieces that must be shared.
const SHARED_TENTHS: usize = 9;
/// Of a longer output only so many bytes at each end are cut into words; equality is judged over all of it. At
/// 15 ms for a mebibyte of dense text that bounds the work for one record to 2 ms, during which its thread serves
/// nobody else.
const MAX_END_BYTES: usize = 64 * 1024;

/// What is kept of an output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Output {
    /// All of it, white space apart.
    exact: Digest,
    /// The words, numbers and times apart.
    normal: Digest,
    /// The smallest hashes of its pieces, in order; empty where it has too few words.
    pieces: Vec<u64>,
    /// Whether `normal` and `pieces` have words enough to mean something.
    wordy: bool,
    /// Whether it is judged on its own.
    pub(super) weighs: bool,
}

impl Output {
    /// The fingerprint of a text.
    pub(super) fn new(text: &str, failed: bool) -> Self {
        let mut exact = blake3::Hasher::new();
        let mut words = 0;
        for word in text.split_whitespace() {
            exact.update(word.as_bytes()).update(b" ");
            words += 1;
        }
        let mut normal = blake3::Hasher::new();
        let mut hashes = Vec::new();
        let mut distinct = Vec::with_capacity(MIN_WORDS);
        for word in ends(text).into_iter().flat_map(str::split_whitespace) {
            let word = without_numbers(word);
            normal.update(word.as_bytes()).update(b" ");
            let hash = hash(word.as_bytes());
            if distinct.len() < MIN_WORDS
                && word.contains(char::is_alphabetic)
                && !distinct.contains(&hash)
            {
                distinct.push(hash);
            }
            hashes.push(hash);
        }
        let wordy = distinct.len() == MIN_WORDS;
        Self {
            exact: first_half(&exact),
            normal: first_half(&normal),
            pieces: if wordy { smallest_pieces(&hashes) } else { Vec::new() },
            wordy: wordy || (failed && !distinct.is_empty()),
            weighs: words >= MIN_WORDS || (failed && words > 0),
        }
    }

    /// Whether two results of whatever calls say the same.
    pub(super) fn says_the_same(&self, other: &Self) -> bool {
        self.exact == other.exact
            || (self.wordy && other.wordy && self.normal == other.normal)
            || shares_most(&self.pieces, &other.pieces)
    }

    /// Whether two results of equal calls say the same; there, numbers alone make no difference.
    pub(super) fn repeats(&self, other: &Self) -> bool {
        self.normal == other.normal || self.says_the_same(other)
    }

    /// The digest that tells it apart.
    pub(super) const fn digest(&self) -> &Digest {
        &self.normal
    }
}

/// The text, or both its ends where it is too long.
fn ends(text: &str) -> Vec<&str> {
    if text.len() <= 2 * MAX_END_BYTES {
        return vec![text];
    }
    let boundary = |at: usize| (0..=at).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    let (head, tail) = (boundary(MAX_END_BYTES), boundary(text.len() - MAX_END_BYTES));
    vec![&text[..head], &text[tail..]]
}

/// A word with every number in it, and every piece of an id, replaced by one sign.
fn without_numbers(word: &str) -> String {
    let mut out = String::with_capacity(word.len());
    let mut rest = word;
    while let Some(first) = rest.chars().next() {
        if !first.is_ascii_alphanumeric() {
            out.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        }
        let end = rest.find(|char: char| !char.is_ascii_alphanumeric()).unwrap_or(rest.len());
        let (run, after) = rest.split_at(end);
        rest = after;
        if is_hexadecimal(run) {
            out.push('#');
        } else {
            add_run(&mut out, run);
        }
        // `1.5`, `10:00:01` and `1,234` are one number each.
        if out.ends_with('#') {
            let is_more = |rest: &str| {
                let mut signs = rest.chars();
                matches!(signs.next(), Some('.' | ',' | ':'))
                    && signs.next().is_some_and(|next| next.is_ascii_digit())
            };
            while is_more(rest) {
                rest = rest[1..].trim_start_matches(|char: char| char.is_ascii_digit());
            }
        }
    }
    out
}

/// A piece of an id: hexadecimal, with a letter and a digit, such as `e29b` or `0badc0de`.
fn is_hexadecimal(run: &str) -> bool {
    run.len() >= 4
        && run.bytes().all(|byte| byte.is_ascii_hexdigit())
        && run.bytes().any(|byte| byte.is_ascii_digit())
}

fn add_run(out: &mut String, run: &str) {
    let mut in_number = false;
    for char in run.chars() {
        if !char.is_ascii_digit() {
            out.push(char);
        } else if !in_number {
            out.push('#');
        }
        in_number = char.is_ascii_digit();
    }
}

/// The smallest hashes of all pieces, sorted, each once.
fn smallest_pieces(words: &[u64]) -> Vec<u64> {
    let mut pieces: Vec<u64> = words
        .windows(PIECE_WORDS)
        .map(|piece| piece.iter().fold(0, |all: u64, word| mixed(all.rotate_left(21) ^ word)))
        .collect();
    pieces.sort_unstable();
    pieces.dedup();
    pieces.truncate(MAX_PIECES);
    pieces
}

/// Whether the sets that two samples stand for share nine tenths: the smallest hashes of their union are a fair
/// sample of it.
fn shares_most(left: &[u64], right: &[u64]) -> bool {
    let (mut at_left, mut at_right, mut shared, mut total) = (0, 0, 0, 0);
    while total < MAX_PIECES {
        let (one, other) = (left.get(at_left), right.get(at_right));
        let (Some(one), Some(other)) = (one, other) else { break };
        total += 1;
        shared += usize::from(one == other);
        at_left += usize::from(one <= other);
        at_right += usize::from(other <= one);
    }
    let rest = left.len().saturating_sub(at_left).max(right.len().saturating_sub(at_right));
    total = (total + rest).min(MAX_PIECES);
    total > 0 && shared * 10 >= total * SHARED_TENTHS
}

/// FNV-1a over the bytes, mixed; the same in every version, so that a log always means the same.
fn hash(bytes: &[u8]) -> u64 {
    let fold = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    mixed(bytes.iter().fold(0xcbf2_9ce4_8422_2325, fold))
}

/// The finalizer of SplitMix64: every bit of the input moves half of the output's, which taking the smallest
/// hashes for a sample needs.
const fn mixed(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ok(text: &str) -> Output {
        Output::new(text, false)
    }

    /// A text of so many different words.
    fn words(count: usize) -> Vec<String> {
        let letters = |n: usize| -> String {
            [n / 676, n / 26 % 26, n % 26].map(|n| char::from(b'a' + n as u8)).iter().collect()
        };
        (0..count).map(letters).collect()
    }

    #[test]
    fn outputs_that_say_the_same() {
        let check = |left: &str, right: &str, same: bool| {
            assert_eq!(ok(left).says_the_same(&ok(right)), same, "{left:?} {right:?}");
            assert_eq!(ok(right).says_the_same(&ok(left)), same, "{right:?} {left:?}");
        };
        check("a  b\n\nc\t", "a b c", true);
        check("a b c", "a b d", false);
        check(
            "[2026-01-27T10:00:00.123Z] worker 17 took 1.5s and could not reach the host db",
            "[2026-02-03T23:59:59.001Z] worker 4 took 12s and could not reach the host db",
            true,
        );
        check(
            "request 550e8400-e29b-41d4-a716-446655440000 failed: the server said it has no such page",
            "request 123e4567-e89b-12d3-a456-426614174000 failed: the server said it has no such page",
            true,
        );
        check(
            "the build failed in main because a semicolon is missing at the end",
            "the build failed in lib because a brace is missing at the end",
            false,
        );
        // Numbers alone are content: three pages of a table are three things.
        check(
            "1,2\n3,4\n5,6\n7,8\n9,1\n2,3\n4,5\n6,7\n",
            "9,8\n7,6\n5,4\n3,2\n1,9\n8,7\n6,5\n4,3\n",
            false,
        );
        // Too short for numbers to be noise.
        check("exit 1", "exit 2", false);
    }

    #[test]
    fn one_word_in_a_hundred_may_differ_and_one_in_ten_may_not() {
        let check = |count: usize, changed: &[usize], same: bool| {
            let (left, mut right) = (words(count), words(count));
            changed.iter().for_each(|at| right[*at] = "something-else".to_owned());
            let found = ok(&left.join(" ")).says_the_same(&ok(&right.join(" ")));
            assert_eq!(found, same, "{count} {changed:?}");
        };
        check(100, &[], true);
        check(100, &[50], true);
        check(100, &[10, 30, 50, 70, 90], false);
        check(20, &[10], false);
        check(8, &[4], false);
        // Far more pieces than are kept.
        check(5000, &[100, 2000, 4000], true);
        let many: Vec<usize> = (0..5000).step_by(10).collect();
        check(5000, &many, false);
    }

    #[test]
    fn a_confirmation_weighs_nothing_and_a_failure_does() {
        let weighs = |text: &str, failed| Output::new(text, failed).weighs;
        assert!(!weighs("", false) && !weighs("ok", false) && !weighs("", true));
        assert!(!weighs("The file src/a.rs has been updated.", false));
        assert!(weighs("error", true));
        assert!(weighs("fn main() { println!(\"{}\", one + two + three); }", false));
        let failure = |text| Output::new(text, true);
        assert!(failure("no line 12").says_the_same(&failure("no line 13")));
    }

    #[test]
    fn equal_calls_repeat_though_numbers_differ() {
        assert!(ok("output 1").repeats(&ok("output 3")));
        assert!(!ok("output 1").repeats(&ok("nothing")));
        assert!(ok("").repeats(&ok(" \n")));
    }

    #[test]
    fn a_very_long_output_is_told_apart_by_all_of_it() {
        let mut words = words(17_000).join(" ").repeat(20);
        let long = ok(&words);
        words.replace_range(700_000..700_001, "-");
        assert_ne!(long.exact, ok(&words).exact);
        assert!(long.says_the_same(&ok(&words)), "it differs in one word of 340,000");
    }
}
