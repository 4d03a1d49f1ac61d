//! The lines of a file, one at a time.

use std::io::{self, BufRead};

use memchr::memchr;

/// A line without the white space around it.
pub(super) struct FileLine<'a> {
    /// The number of the line, from 1.
    pub(super) number: u64,
    /// The beginning of the line; the whole line unless it is too long.
    pub(super) text: &'a [u8],
    pub(super) is_too_long: bool,
    /// Whether the file ends within the line.
    pub(super) is_torn: bool,
}

/// A reader of lines that holds at most `max_bytes` of a line.
pub(super) struct LineReader<R> {
    source: R,
    line: Vec<u8>,
    number: u64,
    max_bytes: usize,
}

impl<R: BufRead> LineReader<R> {
    pub(super) fn new(source: R, max_bytes: usize) -> Self {
        Self { source, line: Vec::new(), number: 0, max_bytes }
    }

    /// Returns the next line that is not blank, or `None` at the end of the file.
    pub(super) fn next(&mut self) -> io::Result<Option<FileLine<'_>>> {
        loop {
            let Some((length, is_torn)) = self.read_line()? else { return Ok(None) };
            self.number += 1;
            if length > self.max_bytes || !self.line.trim_ascii().is_empty() {
                let is_too_long = length > self.max_bytes;
                let (number, text) = (self.number, self.line.trim_ascii());
                return Ok(Some(FileLine { number, text, is_too_long, is_torn }));
            }
        }
    }

    /// Reads a line into `line`, or its beginning. Returns its length and whether the file ends within it.
    fn read_line(&mut self) -> io::Result<Option<(usize, bool)>> {
        self.line.clear();
        self.line.shrink_to(64 * 1024);
        let mut length = 0;
        loop {
            let bytes = match self.source.fill_buf() {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if bytes.is_empty() {
                return Ok((length > 0).then_some((length, true)));
            }
            let end = memchr(b'\n', bytes);
            let taken = &bytes[..end.unwrap_or(bytes.len())];
            let room = self.max_bytes.saturating_sub(self.line.len()).min(taken.len());
            self.line.extend_from_slice(&taken[..room]);
            length += taken.len();
            let n_used = taken.len() + usize::from(end.is_some());
            self.source.consume(n_used);
            if end.is_some() {
                return Ok(Some((length, false)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;

    use super::*;

    #[test]
    fn lines_are_numbered_and_only_the_beginning_of_a_long_line_is_held() {
        let text = format!("a\n \t\r\n{}\n  c ", "x".repeat(100));
        let mut lines = LineReader::new(BufReader::with_capacity(7, text.as_bytes()), 10);
        let mut found = Vec::new();
        while let Some(line) = lines.next().expect("reads") {
            let text = String::from_utf8_lossy(line.text).into_owned();
            found.push((line.number, text, line.is_too_long, line.is_torn));
        }
        let expected = [
            (1, "a".to_owned(), false, false),
            (3, "x".repeat(10), true, false),
            (4, "c".to_owned(), false, true),
        ];
        assert_eq!(found, expected);
    }
}
