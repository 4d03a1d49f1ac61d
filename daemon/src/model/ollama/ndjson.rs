//! Lines out of bytes that arrive in any pieces. Pure.
//!
//! Only the byte of a line break divides: a piece may end anywhere, inside a character too.

/// The largest line that is taken.
///
/// A line is one piece of an answer: a few bytes, or whole tool calls. Ollama's own client takes 8 MB; what is
/// larger than a frame of our own protocol could not be passed on. Larger would let a server that never ends its
/// line take that much memory for each call.
pub(super) const MAX_LINE_BYTES: usize = 16 << 20;

/// Collects bytes and gives lines.
#[derive(Debug, Default)]
pub(super) struct Lines {
    buffer: Vec<u8>,
    /// Where the first line that was not given begins.
    start: usize,
    /// Up to where no line break was found.
    scanned: usize,
}

/// A line has no end within the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LineTooLong;

impl Lines {
    /// Takes a piece as it arrived; lines that are complete are to be taken first.
    pub(super) fn push(&mut self, piece: &[u8]) -> Result<(), LineTooLong> {
        if self.start > 0 {
            self.buffer.drain(..self.start);
            self.scanned -= self.start;
            self.start = 0;
        }
        let first_break = memchr::memchr(b'\n', piece).unwrap_or(piece.len());
        if self.buffer.len() + first_break > MAX_LINE_BYTES {
            return Err(LineTooLong);
        }
        self.buffer.extend_from_slice(piece);
        Ok(())
    }

    /// The next complete line that is not blank, without its line break.
    pub(super) fn next_line(&mut self) -> Result<Option<&[u8]>, LineTooLong> {
        loop {
            let Some(found) = memchr::memchr(b'\n', &self.buffer[self.scanned..]) else {
                self.scanned = self.buffer.len();
                let waiting = self.buffer.len() - self.start;
                return if waiting > MAX_LINE_BYTES { Err(LineTooLong) } else { Ok(None) };
            };
            let (start, end) = (self.start, self.scanned + found);
            self.start = end + 1;
            self.scanned = self.start;
            if end - start > MAX_LINE_BYTES {
                return Err(LineTooLong);
            }
            if !self.buffer[start..end].trim_ascii().is_empty() {
                return Ok(Some(self.buffer[start..end].trim_ascii()));
            }
        }
    }

    /// What came after the last line break, unless it is blank.
    pub(super) fn rest(&self) -> Option<&[u8]> {
        let rest = self.buffer[self.start..].trim_ascii();
        (!rest.is_empty()).then_some(rest)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(pieces: &[&[u8]]) -> (Vec<Vec<u8>>, Option<Vec<u8>>) {
        let mut lines = Lines::default();
        let mut found = Vec::new();
        for piece in pieces {
            lines.push(piece).expect("short");
            while let Some(line) = lines.next_line().expect("short") {
                found.push(line.to_vec());
            }
        }
        (found, lines.rest().map(<[u8]>::to_vec))
    }

    #[test]
    fn lines_come_whole_from_any_pieces() {
        let text = "{\"a\":\"é\"}\n\n \r\n{\"b\":1}\r\n{\"c\"";
        let expect = vec!["{\"a\":\"é\"}".as_bytes().to_vec(), b"{\"b\":1}".to_vec()];
        for cut in 0..=text.len() {
            let (left, right) = text.as_bytes().split_at(cut);
            assert_eq!(all(&[left, right]), (expect.clone(), Some(b"{\"c\"".to_vec())), "{cut}");
        }
        assert_eq!(all(&[b"\n \n"]), (vec![], None));
    }

    #[test]
    fn a_line_without_an_end_is_refused_at_the_limit() {
        let mut lines = Lines::default();
        let piece = vec![b'x'; 1 << 20];
        for _ in 0..16 {
            lines.push(&piece).expect("within the limit");
            assert_eq!(lines.next_line(), Ok(None));
        }
        assert_eq!(lines.push(b"x"), Err(LineTooLong));
        let mut lines = Lines::default();
        lines.push(b"a\n").expect("short");
        let long = vec![b'x'; MAX_LINE_BYTES + 1];
        assert_eq!(lines.push(&long), Err(LineTooLong));
        // A long piece of short lines is none.
        let mut lines = Lines::default();
        let short = b"{}\n".repeat(MAX_LINE_BYTES / 2);
        lines.push(&short).expect("short lines");
        assert_eq!(lines.next_line(), Ok(Some(b"{}".as_slice())));
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(
            bytes in proptest::collection::vec(prop_oneof![Just(b'\n'), Just(0xc3), any::<u8>()], 0..60),
            cuts in proptest::collection::vec(0_usize..60, 0..5),
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.push(0);
            cuts.push(bytes.len());
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]).collect();
            prop_assert_eq!(all(&pieces), all(&[&bytes]));
        }
    }
}
