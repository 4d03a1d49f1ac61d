//! An answer as it comes over HTTP.

use std::collections::VecDeque;
use std::time::Duration;

use reqwest::Response;

use super::error_response::broke_off;
use super::http::{Deadline, piece};
use super::wire::{ChatLine, ErrorLine};
use crate::model::backend::{Answer, ChatStream};
use crate::model::chat::ChatItem;
use crate::model::error::{ModelError, Phase, Target};
use crate::model::info::Version;

/// How long the end of the body is waited for after the end marker, so that the connection can be used again;
/// servers send both at once.
const DRAIN: Duration = Duration::from_millis(250);

/// A streamed answer.
pub(super) struct OllamaStream {
    to: Target,
    version: Version,
    /// `None` when nothing more is read.
    response: Option<Response>,
    lines: Lines,
    n_lines: u64,
    ready: VecDeque<ChatItem>,
    /// Until when the first line must be there.
    first: Option<Deadline>,
    idle: Duration,
}

impl OllamaStream {
    pub(super) fn new(
        to: Target,
        version: Version,
        response: Response,
        first: Deadline,
        idle: Duration,
    ) -> Self {
        Self {
            to,
            version,
            response: Some(response),
            lines: Lines::default(),
            n_lines: 0,
            ready: VecDeque::new(),
            first: Some(first),
            idle,
        }
    }

    async fn next_item(&mut self) -> Result<ChatItem, ModelError> {
        loop {
            if let Some(item) = self.ready.pop_front() {
                return Ok(item);
            }
            if let Err(error) = self.advance().await {
                // After an error nothing is to be expected, and the connection is of no use to anybody.
                self.response = None;
                return Err(error);
            }
        }
    }

    /// Takes one line, or reads on.
    async fn advance(&mut self) -> Result<(), ModelError> {
        let line = match self.lines.next_line() {
            Err(LineTooLong) => return Err(self.too_long()),
            Ok(line) => line.map(|line| parse(&self.to, self.n_lines + 1, line)),
        };
        if let Some(line) = line {
            return self.take(line?).await;
        }
        let Some(response) = &mut self.response else {
            return Err(ModelError::Incomplete { to: self.to.clone() });
        };
        let deadline = self.first.unwrap_or_else(|| Deadline::new(Phase::NextToken, self.idle));
        match deadline.bound(&self.to, piece(response, &self.to)).await?? {
            Some(bytes) => self.lines.push(&bytes).map_err(|LineTooLong| self.too_long()),
            None => self.finish().await,
        }
    }

    /// Uses what a line says.
    async fn take(&mut self, mut line: ChatLine) -> Result<(), ModelError> {
        self.n_lines += 1;
        self.first = None;
        self.ready.extend(line.take_deltas().into_iter().map(ChatItem::Delta));
        if line.is_done() {
            self.drain().await;
            self.ready.push_back(ChatItem::End(line.into_end(&self.version)));
        }
        Ok(())
    }

    /// The body is over: what follows the last line break may be the end marker of an answer that was not
    /// streamed, or the beginning of a line that never ended.
    async fn finish(&mut self) -> Result<(), ModelError> {
        self.response = None;
        let incomplete = ModelError::Incomplete { to: self.to.clone() };
        let Some(rest) = self.lines.rest() else { return Err(incomplete) };
        match parse(&self.to, self.n_lines + 1, rest) {
            Ok(line) if line.is_done() => self.take(line).await,
            Err(ModelError::Garbage { .. }) | Ok(_) => Err(incomplete),
            Err(error) => Err(error),
        }
    }

    /// Reads to the end of the body, which gives the connection back to the pool.
    async fn drain(&mut self) {
        let Some(mut response) = self.response.take() else { return };
        let end = async { while let Ok(Some(_)) = response.chunk().await {} };
        drop(tokio::time::timeout(DRAIN, end).await);
    }

    fn too_long(&self) -> ModelError {
        ModelError::TooLarge { to: self.to.clone(), what: "a line", limit_bytes: MAX_LINE_BYTES }
    }
}

/// Reads a line, whose error comes before everything else that it may say.
pub(super) fn parse(to: &Target, number: u64, line: &[u8]) -> Result<ChatLine, ModelError> {
    // What it says is not repeated: it may be part of a conversation.
    let garbage = || ModelError::Garbage {
        to: to.clone(),
        what: format!("line {number}, of {} bytes, which is no answer", line.len()),
    };
    // An array would be read as the fields in their order.
    if line.first() != Some(&b'{') {
        return Err(garbage());
    }
    let ErrorLine { error } = serde_json::from_slice(line).map_err(|_| garbage())?;
    if let Some(error) = error {
        return Err(broke_off(to.clone(), &error));
    }
    serde_json::from_slice(line).map_err(|_| garbage())
}

impl ChatStream for OllamaStream {
    fn next(&mut self) -> Answer<'_, ChatItem> {
        Box::pin(self.next_item())
    }
}

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
