//! The recorded copy of a command's output: its beginning, which shows the command's work, and its end, which shows the
//! errors and results.
//!
//! The copy is the text that a terminal would show in the end: without escape sequences, and with only the last state of
//! an overwritten line. Pure.

use std::collections::VecDeque;

use ollm_protocol::sanitize;

use crate::render::units::grouped;

/// Bytes kept of the beginning of a stream.
const HEAD_BYTES: usize = 10 * 1024;
/// Bytes kept of the end of a stream.
///
/// Two streams stay below 64 KiB: about 16,000 tokens, more than a usual window has, and the size up to which the daemon
/// keeps a text in its record.
const TAIL_BYTES: usize = 20 * 1024;

/// The captured output of one stream.
#[derive(Debug, Default)]
pub(super) struct OutputCapture {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    total: u64,
}

impl OutputCapture {
    /// Appends bytes.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let (first, rest) = bytes.split_at(bytes.len().min(HEAD_BYTES - self.head.len()));
        self.head.extend_from_slice(first);
        let rest = &rest[rest.len().saturating_sub(TAIL_BYTES)..];
        let excess = (self.tail.len() + rest.len()).saturating_sub(TAIL_BYTES);
        self.tail.drain(..excess);
        self.tail.extend(rest);
    }

    /// Returns the number of bytes that were appended.
    pub(super) const fn total(&self) -> u64 {
        self.total
    }

    /// Returns whether the middle is missing.
    pub(super) fn is_cut(&self) -> bool {
        self.total > (self.head.len() + self.tail.len()) as u64
    }

    /// Returns the copy as text, with a line in place of the missing middle.
    pub(super) fn text(&self) -> String {
        let mut tail: Vec<u8> = self.tail.iter().copied().collect();
        if !self.is_cut() {
            let whole = [self.head.as_slice(), &tail].concat();
            return displayed(&String::from_utf8_lossy(&whole));
        }
        // Keeps whole lines if there are any, so that no sequence or character is cut in two.
        let head_end = self.head.iter().rposition(|byte| *byte == b'\n');
        let head = &self.head[..head_end.map_or(whole_characters(&self.head), |at| at + 1)];
        let tail_start =
            tail.iter().position(|byte| *byte == b'\n').filter(|at| at + 1 < tail.len());
        let is_continuation = |byte: &u8| byte & 0b1100_0000 == 0b1000_0000;
        let first_character =
            || tail.iter().position(|byte| !is_continuation(byte)).unwrap_or(tail.len());
        let start = tail_start.map_or_else(first_character, |at| at + 1);
        tail.drain(..start);
        let missing = grouped(self.total - (head.len() + tail.len()) as u64);
        let (head, tail) = (String::from_utf8_lossy(head), String::from_utf8_lossy(&tail));
        let line_break = if head.ends_with('\n') { "" } else { "\n" };
        let (head, tail) = (displayed(&head), displayed(&tail));
        format!("{head}{line_break}[... {missing} bytes left out ...]\n{tail}")
    }
}

/// Returns the length without a character that is cut in two at the end.
fn whole_characters(bytes: &[u8]) -> usize {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() => error.valid_up_to(),
        _ => bytes.len(),
    }
}

/// Returns the text that a terminal shows in the end.
fn displayed(text: &str) -> String {
    let lines: Vec<&str> = text.split('\n').map(last_state).collect();
    sanitize::text(&lines.join("\n"))
}

/// Returns the last state of a line that carriage returns overwrite, as progress bars do.
fn last_state(line: &str) -> &str {
    let line = line.trim_end_matches('\r');
    line.rsplit('\r').find(|state| !state.is_empty()).unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn capture(bytes: &[u8]) -> OutputCapture {
        let mut capture = OutputCapture::default();
        capture.push(bytes);
        capture
    }

    #[test]
    fn copy_is_the_displayed_text() {
        let check = |output: &[u8], text: &str| assert_eq!(capture(output).text(), text);
        check(b"", "");
        check(b"one\ntwo\n", "one\ntwo\n");
        check(b"\x1b[31mred\x1b[0m\x1b]0;title\x07 and plain\n", "red and plain\n");
        check(b"10 %\r50 %\r100 %\ndone\r\n", "100 %\ndone\n");
        check(b"gone\r\r\n", "gone\n");
        check("na\u{ef}ve \u{65e5}\u{672c}".as_bytes(), "na\u{ef}ve \u{65e5}\u{672c}");
        check(b"a\xffb", "a\u{fffd}b");
    }

    #[test]
    fn long_output_keeps_whole_lines_at_both_ends() {
        let line = |n: u32| format!("line {n:06}\n");
        let output: String = (0..10_000).map(line).collect();
        let copy = capture(output.as_bytes());
        let text = copy.text();
        assert!(copy.is_cut() && copy.total() == 120_000);
        assert!(text.len() <= HEAD_BYTES + TAIL_BYTES + 64, "{}", text.len());
        assert!(text.starts_with("line 000000\n") && text.ends_with("line 009999\n"));
        let (head, rest) = text.split_once("[... ").unwrap();
        let (missing, tail) = rest.split_once(" bytes left out ...]\n").unwrap();
        assert!(head.ends_with('\n') && tail.starts_with("line "), "{head} {tail}");
        let missing: usize = missing.replace(',', "").parse().unwrap();
        assert_eq!(head.len() + missing + tail.len(), 120_000);
        // An output without lines keeps whole characters.
        let text = capture("\u{65e5}".repeat(50_000).as_bytes()).text();
        assert!(!text.contains('\u{fffd}') && text.contains("bytes left out"));
    }

    proptest! {
        #[test]
        fn copy_is_bounded_and_the_same_for_any_pieces(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9000), 0..12)
        ) {
            let mut copy = OutputCapture::default();
            pieces.iter().for_each(|piece| copy.push(piece));
            let whole = capture(&pieces.concat());
            prop_assert_eq!(copy.text(), whole.text());
            prop_assert!(copy.head.len() <= HEAD_BYTES && copy.tail.len() <= TAIL_BYTES);
            prop_assert!(!copy.text().chars().any(sanitize::is_unsafe));
        }
    }
}
