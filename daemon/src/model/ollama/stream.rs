//! An answer as it comes over HTTP.

use std::collections::VecDeque;
use std::time::Duration;

use reqwest::Response;

use super::http::{Deadline, piece};
use super::ndjson::{LineTooLong, Lines, MAX_LINE_BYTES};
use super::refusal::broke_off;
use super::wire::{ChatLine, ErrorLine};
use crate::model::{Answer, ChatItem, ChatStream, ModelError, Phase, Target, Version};

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
