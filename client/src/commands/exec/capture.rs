//! A bounded copy of what a command printed, as it is recorded.
//!
//! The beginning and the end are kept: a command says first what it does, and last how that went. What is
//! recorded is text as a person would have seen it: without escape sequences, and of a line that was written over
//! only the last state. Pure.

use ollm_protocol::sanitize;
use std::collections::VecDeque;

use crate::render::number::grouped;

/// Bytes that are kept of the beginning of a stream.
const HEAD_BYTES: usize = 10 * 1024;
/// Bytes that are kept of its end, where errors and results are.
///
/// Both streams together stay below 64 KiB, which is some 16,000 tokens, more than a usual window holds, and the
/// size up to which the daemon keeps a text inside its record.
const TAIL_BYTES: usize = 20 * 1024;

/// What was printed on one stream so far.
#[derive(Debug, Default)]
pub(super) struct Capture {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    total: u64,
}

impl Capture {
    /// Takes the next bytes.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let (first, rest) = bytes.split_at(bytes.len().min(HEAD_BYTES - self.head.len()));
        self.head.extend_from_slice(first);
        let rest = &rest[rest.len().saturating_sub(TAIL_BYTES)..];
        let over = (self.tail.len() + rest.len()).saturating_sub(TAIL_BYTES);
        self.tail.drain(..over);
        self.tail.extend(rest);
    }

    /// How many bytes were printed.
    pub(super) const fn total(&self) -> u64 {
        self.total
    }

    /// Whether something in the middle is missing.
    pub(super) fn is_cut(&self) -> bool {
        self.total > (self.head.len() + self.tail.len()) as u64
    }

    /// The copy as text, with a line that says what is missing.
    pub(super) fn text(&self) -> String {
        let mut tail: Vec<u8> = self.tail.iter().copied().collect();
        if !self.is_cut() {
            let whole = [self.head.as_slice(), &tail].concat();
            return seen(&String::from_utf8_lossy(&whole));
        }
        // Whole lines where there are any: a sequence or a character that is cut in two is gone with its line.
        let head_end = self.head.iter().rposition(|byte| *byte == b'\n');
        let head = &self.head[..head_end.map_or(whole_characters(&self.head), |at| at + 1)];
        let tail_start =
            tail.iter().position(|byte| *byte == b'\n').filter(|at| at + 1 < tail.len());
        let is_inside = |byte: &u8| byte & 0b1100_0000 == 0b1000_0000;
        let inside = || tail.iter().position(|byte| !is_inside(byte)).unwrap_or(tail.len());
        let start = tail_start.map_or_else(inside, |at| at + 1);
        tail.drain(..start);
        let missing = self.total - (head.len() + tail.len()) as u64;
        let (head, tail) = (String::from_utf8_lossy(head), String::from_utf8_lossy(&tail));
        let break_before = if head.ends_with('\n') { "" } else { "\n" };
        let missing = grouped(missing);
        format!("{}{break_before}[... {missing} bytes left out ...]\n{}", seen(&head), seen(&tail))
    }
}

/// The bytes up to a character that is cut in two.
fn whole_characters(bytes: &[u8]) -> usize {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() => error.valid_up_to(),
        _ => bytes.len(),
    }
}

/// A text as a terminal would show it in the end.
fn seen(text: &str) -> String {
    let lines: Vec<&str> = text.split('\n').map(last_state).collect();
    sanitize::text(&lines.join("\n"))
}

/// A progress bar returns to the beginning of its line and writes it again.
fn last_state(line: &str) -> &str {
    let line = line.trim_end_matches('\r');
    line.rsplit('\r').find(|state| !state.is_empty()).unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(bytes: &[u8]) -> Capture {
        let mut capture = Capture::default();
        capture.push(bytes);
        capture
    }

    #[test]
    fn what_is_recorded_is_what_a_person_saw() {
        let check = |printed: &[u8], text: &str| assert_eq!(of(printed).text(), text);
        check(b"", "");
        check(b"one\ntwo\n", "one\ntwo\n");
        check(b"\x1b[31mred\x1b[0m\x1b]0;title\x07 and plain\n", "red and plain\n");
        check(b"10 %\r50 %\r100 %\ndone\r\n", "100 %\ndone\n");
        check(b"gone\r\r\n", "gone\n");
        check("na\u{ef}ve \u{65e5}\u{672c}".as_bytes(), "na\u{ef}ve \u{65e5}\u{672c}");
        check(b"a\xffb", "a\u{fffd}b");
    }

    #[test]
    fn the_ends_of_a_long_output_are_kept_in_whole_lines() {
        let line = |n: u32| format!("line {n:06}\n");
        let printed: String = (0..10_000).map(line).collect();
        let capture = of(printed.as_bytes());
        let text = capture.text();
        assert!(capture.is_cut() && capture.total() == 120_000);
        assert!(text.len() <= HEAD_BYTES + TAIL_BYTES + 64, "{}", text.len());
        assert!(text.starts_with("line 000000\n") && text.ends_with("line 009999\n"));
        let (head, rest) = text.split_once("[... ").unwrap();
        let (missing, tail) = rest.split_once(" bytes left out ...]\n").unwrap();
        assert!(head.ends_with('\n') && tail.starts_with("line "), "{head} {tail}");
        let missing: usize = missing.replace(',', "").parse().unwrap();
        assert_eq!(head.len() + missing + tail.len(), 120_000);
        // Without lines, characters stay whole.
        let text = of("\u{65e5}".repeat(50_000).as_bytes()).text();
        assert!(!text.contains('\u{fffd}') && text.contains("bytes left out"));
    }

    proptest! {
        #[test]
        fn how_it_arrives_makes_no_difference_and_the_memory_is_bounded(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9000), 0..12)
        ) {
            let mut capture = Capture::default();
            pieces.iter().for_each(|piece| capture.push(piece));
            let whole = of(&pieces.concat());
            prop_assert_eq!(capture.text(), whole.text());
            prop_assert!(capture.head.len() <= HEAD_BYTES && capture.tail.len() <= TAIL_BYTES);
            prop_assert!(!capture.text().chars().any(sanitize::is_unsafe));
        }
    }
}
