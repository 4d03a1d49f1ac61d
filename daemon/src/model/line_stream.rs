//! A streamed answer: lines out of the chunks of a response, and items out of the lines, as the parser of a kind of
//! server reads them.
//!
//! Must not know how a request is sent, or any server's lines.
//!
//! **Invariants**: only a line with the end marker ends an answer successfully; chunks may be split anywhere, even
//! within a character.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use reqwest::Response;
use serde_json::Value;

use super::backend::{AnswerStream, BackendFuture};
use super::chat::{ChatDelta, ChatEnd, ChatItem};
use super::error::{CallPhase, CallTarget, ModelError};
use super::error_response::from_error_line;
use super::http::{Deadline, Http, HttpAddress, next_chunk};
use crate::nesting;

/// The longest wait for the end of the body after the end marker, so that the connection can be reused. Servers send
/// both at once.
const DRAIN_LIMIT: Duration = Duration::from_millis(250);

/// Maximum length of a line.
///
/// A line is a piece of an answer: a few bytes, or complete tool calls. Ollama's own client accepts 8 MB, and the
/// daemon could not forward more than a frame of its own protocol. With a larger limit, a server that never ends its
/// line could occupy that much memory per call.
const MAX_LINE_BYTES: usize = 16 << 20;

/// Maximum content of an answer: text, thinking and tool calls together.
///
/// The text of the largest windows has about 4 MiB. An answer becomes one record, which must fit into a frame, and a
/// server that streams without end could otherwise occupy any amount of memory.
const MAX_ANSWER_BYTES: usize = 8 << 20;

/// The content of a line.
#[derive(Default)]
pub(super) struct ParsedLine {
    pub(super) deltas: Vec<ChatDelta>,
    /// The end marker, which follows them.
    pub(super) end: Option<ChatEnd>,
    /// The failure that follows them.
    pub(super) failed: Option<LineFailure>,
    /// Set if the line says nothing, so that the answer has not begun.
    pub(super) is_empty: bool,
}

/// The failure of an answer, as a line has it.
#[derive(Debug)]
pub(super) enum LineFailure {
    /// An error without the server's own text.
    Found(ModelError),
    /// The server's own error, which may repeat a key.
    Sent(Value),
}

impl From<ModelError> for LineFailure {
    fn from(error: ModelError) -> Self {
        Self::Found(error)
    }
}

impl LineFailure {
    /// Returns the error for people, without the secrets of the server's address.
    pub(super) fn into_error(self, to: &CallTarget, address: &HttpAddress) -> ModelError {
        match self {
            Self::Found(error) => error,
            Self::Sent(mut error) => {
                address.json_without_secrets(&mut error);
                from_error_line(to.clone(), &error)
            }
        }
    }
}

impl ParsedLine {
    /// Returns a line that is an error.
    pub(super) fn failed(failure: impl Into<LineFailure>) -> Self {
        Self { failed: Some(failure.into()), ..Self::default() }
    }

    /// Returns a line that says nothing.
    pub(super) fn empty() -> Self {
        Self { is_empty: true, ..Self::default() }
    }
}

/// Reads the lines of an answer. An error in a line precedes everything else in it.
pub(super) trait LineParser: Send + Sync {
    /// Reads a line, which is not blank. Lines are counted from 1.
    fn parse(&mut self, to: &CallTarget, number: u64, line: &[u8]) -> ParsedLine;
}

/// A streamed answer that consists of lines.
pub(super) struct LineStream<P> {
    to: CallTarget,
    /// Has the secrets that no error repeats.
    address: Arc<HttpAddress>,
    parser: P,
    /// `None` after the end of the body or an error.
    response: Option<Response>,
    buffer: LineBuffer,
    n_lines: u64,
    /// Bytes of content that arrived.
    n_bytes: usize,
    /// Items that were parsed but not returned yet.
    ready: VecDeque<ChatItem>,
    /// The error that follows them.
    failed: Option<ModelError>,
    /// The deadline of the next line that says something; `None` until it is waited for.
    deadline: Option<Deadline>,
    /// Set once such a line has arrived.
    has_begun: bool,
    idle: Duration,
}

impl<P: LineParser> LineStream<P> {
    pub(super) fn new(
        http: &Http,
        to: CallTarget,
        parser: P,
        response: Response,
        first: Deadline,
    ) -> Self {
        Self {
            to,
            address: Arc::clone(&http.address),
            parser,
            response: Some(response),
            buffer: LineBuffer::default(),
            n_lines: 0,
            n_bytes: 0,
            ready: VecDeque::new(),
            failed: None,
            deadline: Some(first),
            has_begun: false,
            idle: http.timeouts.idle,
        }
    }

    /// Waits for the first line that says something.
    ///
    /// **Errors**: the answer failed before its first piece.
    pub(super) async fn begin(&mut self) -> Result<(), ModelError> {
        while !self.has_begun && self.ready.is_empty() {
            if let Err(error) = self.advance().await {
                self.response = None;
                return Err(error);
            }
        }
        Ok(())
    }

    async fn next_item(&mut self) -> Result<ChatItem, ModelError> {
        loop {
            if let Some(item) = self.ready.pop_front() {
                return Ok(item);
            }
            if let Some(error) = self.failed.take() {
                return Err(error);
            }
            if let Err(error) = self.advance().await {
                // Closes the connection. What the same line had before the error is kept.
                self.response = None;
                self.failed = Some(error);
            }
        }
    }

    /// Handles one line, or reads the next chunk.
    async fn advance(&mut self) -> Result<(), ModelError> {
        let number = self.n_lines + 1;
        let line = match self.buffer.next_line() {
            Err(LineTooLong) => return Err(self.too_large("a line", MAX_LINE_BYTES)),
            Ok(line) => line.map(|line| self.parser.parse(&self.to, number, line)),
        };
        if let Some(line) = line {
            return self.handle(line).await;
        }
        let Some(response) = &mut self.response else {
            return Err(ModelError::Incomplete { to: self.to.clone() });
        };
        let idle = || Deadline::new(CallPhase::NextToken, self.idle);
        let deadline = *self.deadline.get_or_insert_with(idle);
        match deadline.limit(&self.to, next_chunk(response, &self.to)).await?? {
            Some(chunk) => self
                .buffer
                .push(&chunk)
                .map_err(|LineTooLong| self.too_large("a line", MAX_LINE_BYTES)),
            None => self.finish().await,
        }
    }

    /// Converts a line to items.
    async fn handle(&mut self, line: ParsedLine) -> Result<(), ModelError> {
        self.n_lines += 1;
        if !line.is_empty && line.failed.is_none() {
            self.has_begun = true;
            self.deadline = None;
        }
        for delta in line.deltas {
            if let ChatDelta::ToolCalls(calls) = &delta
                && calls.iter().any(|call| nesting::check(&call.args).is_err())
            {
                return Err(ModelError::TooDeep { to: self.to.clone() });
            }
            self.n_bytes += delta.bytes();
            self.ready.push_back(ChatItem::Delta(delta));
        }
        if self.n_bytes > MAX_ANSWER_BYTES {
            self.ready.clear();
            return Err(self.too_large("an answer", MAX_ANSWER_BYTES));
        }
        if let Some(failure) = line.failed {
            return Err(failure.into_error(&self.to, &self.address));
        }
        if let Some(end) = line.end {
            self.ready.push_back(ChatItem::End(end));
            self.drain().await;
        }
        Ok(())
    }

    /// Handles the end of the body. The text after the last line feed can be the end marker; otherwise the answer is
    /// incomplete.
    async fn finish(&mut self) -> Result<(), ModelError> {
        self.response = None;
        let incomplete = ModelError::Incomplete { to: self.to.clone() };
        let Some(rest) = self.buffer.remainder() else { return Err(incomplete) };
        let line = self.parser.parse(&self.to, self.n_lines + 1, rest);
        match line.failed {
            None if line.end.is_some() => self.handle(line).await,
            None | Some(LineFailure::Found(ModelError::Garbage { .. })) => Err(incomplete),
            Some(failure) => Err(failure.into_error(&self.to, &self.address)),
        }
    }

    /// Reads to the end of the body, which returns the connection to the pool.
    async fn drain(&mut self) {
        let Some(mut response) = self.response.take() else { return };
        let end = async { while let Ok(Some(_)) = response.chunk().await {} };
        drop(tokio::time::timeout(DRAIN_LIMIT, end).await);
    }

    fn too_large(&self, what: &'static str, limit_bytes: usize) -> ModelError {
        ModelError::TooLarge { to: self.to.clone(), what, limit_bytes }
    }
}

impl<P: LineParser> AnswerStream for LineStream<P> {
    fn next(&mut self) -> BackendFuture<'_, ChatItem> {
        Box::pin(self.next_item())
    }
}

/// Splits chunks of bytes into lines.
#[derive(Debug, Default)]
struct LineBuffer {
    bytes: Vec<u8>,
    /// The start of the first line that was not returned yet.
    start: usize,
    /// The end of the bytes that were searched for a line feed.
    scanned: usize,
}

/// A line exceeds [`MAX_LINE_BYTES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LineTooLong;

impl LineBuffer {
    /// Appends a chunk. The complete lines before it should have been taken.
    fn push(&mut self, chunk: &[u8]) -> Result<(), LineTooLong> {
        if self.start > 0 {
            self.bytes.drain(..self.start);
            self.scanned -= self.start;
            self.start = 0;
        }
        let first_line_feed = memchr::memchr(b'\n', chunk).unwrap_or(chunk.len());
        if self.bytes.len() + first_line_feed > MAX_LINE_BYTES {
            return Err(LineTooLong);
        }
        self.bytes.extend_from_slice(chunk);
        Ok(())
    }

    /// Returns the next complete line that is not blank, without its line feed.
    fn next_line(&mut self) -> Result<Option<&[u8]>, LineTooLong> {
        loop {
            let Some(found) = memchr::memchr(b'\n', &self.bytes[self.scanned..]) else {
                self.scanned = self.bytes.len();
                let waiting = self.bytes.len() - self.start;
                return if waiting > MAX_LINE_BYTES { Err(LineTooLong) } else { Ok(None) };
            };
            let (start, end) = (self.start, self.scanned + found);
            self.start = end + 1;
            self.scanned = self.start;
            if end - start > MAX_LINE_BYTES {
                return Err(LineTooLong);
            }
            if !self.bytes[start..end].trim_ascii().is_empty() {
                return Ok(Some(self.bytes[start..end].trim_ascii()));
            }
        }
    }

    /// Returns the text after the last line feed, unless it is blank.
    fn remainder(&self) -> Option<&[u8]> {
        let remainder = self.bytes[self.start..].trim_ascii();
        (!remainder.is_empty()).then_some(remainder)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn split(chunks: &[&[u8]]) -> (Vec<Vec<u8>>, Option<Vec<u8>>) {
        let mut buffer = LineBuffer::default();
        let mut lines = Vec::new();
        for chunk in chunks {
            buffer.push(chunk).expect("short");
            while let Some(line) = buffer.next_line().expect("short") {
                lines.push(line.to_vec());
            }
        }
        (lines, buffer.remainder().map(<[u8]>::to_vec))
    }

    #[test]
    fn lines_do_not_depend_on_the_position_of_a_split() {
        let text = "{\"a\":\"é\"}\n\n \r\n{\"b\":1}\r\n{\"c\"";
        let expect = vec!["{\"a\":\"é\"}".as_bytes().to_vec(), b"{\"b\":1}".to_vec()];
        for cut in 0..=text.len() {
            let (left, right) = text.as_bytes().split_at(cut);
            assert_eq!(split(&[left, right]), (expect.clone(), Some(b"{\"c\"".to_vec())), "{cut}");
        }
        assert_eq!(split(&[b"\n \n"]), (vec![], None));
    }

    #[test]
    fn line_beyond_the_limit_is_refused() {
        let mut buffer = LineBuffer::default();
        let chunk = vec![b'x'; 1 << 20];
        for _ in 0..16 {
            buffer.push(&chunk).expect("within the limit");
            assert_eq!(buffer.next_line(), Ok(None));
        }
        assert_eq!(buffer.push(b"x"), Err(LineTooLong));
        let mut buffer = LineBuffer::default();
        buffer.push(b"a\n").expect("short");
        let long = vec![b'x'; MAX_LINE_BYTES + 1];
        assert_eq!(buffer.push(&long), Err(LineTooLong));
        // A long chunk of short lines is accepted.
        let mut buffer = LineBuffer::default();
        let short = b"{}\n".repeat(MAX_LINE_BYTES / 2);
        buffer.push(&short).expect("short lines");
        assert_eq!(buffer.next_line(), Ok(Some(b"{}".as_slice())));
    }

    proptest! {
        #[test]
        fn lines_do_not_depend_on_the_chunks(
            bytes in proptest::collection::vec(prop_oneof![Just(b'\n'), Just(0xc3), any::<u8>()], 0..60),
            cuts in proptest::collection::vec(0_usize..60, 0..5),
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.push(0);
            cuts.push(bytes.len());
            cuts.sort_unstable();
            let chunks: Vec<&[u8]> = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]).collect();
            prop_assert_eq!(split(&chunks), split(&[&bytes]));
        }
    }
}
