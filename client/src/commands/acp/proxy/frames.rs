//! Lines from the pieces of a stream.

/// The longest line that is recorded, in bytes. Longer ones are counted as lost.
const MAX_LINE_BYTES: usize = 32 << 20;

/// The lines of one direction.
#[derive(Default)]
pub(super) struct Lines {
    partial: Vec<u8>,
    /// Set while the rest of a line is skipped, because a part of it is missing.
    is_skipping: bool,
    /// The lines that were lost, at least in part.
    lost: u64,
}

impl Lines {
    /// Adds a piece and calls `each` with every line that it completes, without the line break.
    pub(super) fn push(&mut self, mut piece: &[u8], mut each: impl FnMut(&[u8])) {
        while let Some(end) = piece.iter().position(|byte| *byte == b'\n') {
            let line = &piece[..end];
            piece = &piece[end + 1..];
            if std::mem::take(&mut self.is_skipping) {
                self.partial.clear();
            } else if self.partial.is_empty() {
                each(line);
            } else {
                self.partial.extend_from_slice(line);
                each(&self.partial);
                // A large line leaves no large buffer.
                self.partial = Vec::new();
            }
        }
        if self.is_skipping || piece.is_empty() {
            return;
        }
        if self.partial.len() + piece.len() > MAX_LINE_BYTES {
            self.skip();
        } else {
            self.partial.extend_from_slice(piece);
        }
    }

    /// Skips up to the next line break, because a piece is missing.
    pub(super) fn skip(&mut self) {
        self.partial = Vec::new();
        self.is_skipping = true;
        self.lost += 1;
    }

    /// Returns what follows the last line break: a whole message if only its line break is missing.
    pub(super) fn rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.partial)
    }

    /// Returns the number of lines that were lost.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_joined_from_pieces_and_a_gap_costs_one_line() {
        let mut lines = Lines::default();
        let mut found = Vec::new();
        for piece in ["a", "b\nc\n\n", "d", "e"] {
            lines.push(piece.as_bytes(), |line| {
                found.push(String::from_utf8_lossy(line).into_owned())
            });
        }
        lines.skip();
        for piece in ["rest\nf", "\n"] {
            lines.push(piece.as_bytes(), |line| {
                found.push(String::from_utf8_lossy(line).into_owned())
            });
        }
        assert_eq!(found, ["ab", "c", "", "f"]);
        assert_eq!(lines.lost(), 1);
        lines.push(b"g", |line| panic!("{line:?} has no end"));
        assert_eq!((lines.rest(), lines.rest()), (b"g".to_vec(), Vec::new()));
    }
}
