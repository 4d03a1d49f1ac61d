//! Bytes to frames and back, in both framings, without I/O.
//!
//! A socket accepts two framings: JSON values one per line, or JSON values after `Content-Length` headers, as
//! editors send them. The first byte that is not white space decides, and replies use the framing of the requests.
//! Implements PROTOCOL.md, section 2.
//!
//! **Invariants**: memory stays below one frame plus one read; each byte is searched once; the frames do not depend on
//! how the bytes were split into reads.

use std::fmt;

use memchr::memchr;
use serde::Deserializer as _;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

/// The largest frame in bytes, in both directions: far more than the text of a model's window, and small enough that a
/// few clients at once do not exhaust the memory of a laptop.
pub const MAX_FRAME_BYTES: usize = 16 * 1024 * 1024;

/// The bytes that are kept of a frame that is too large: enough for the id, which clients write before the params.
const OVERSIZED_PREFIX_BYTES: usize = 1024;

/// The most bytes of headers before one frame; real ones have under 100.
const MAX_HEADER_BYTES: usize = 4096;

/// An empty buffer of this capacity or more is freed, so that an idle connection stays small.
const KEEP_BUFFER_BYTES: usize = 64 * 1024;

/// A way to separate frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// One JSON value per line.
    Lines,
    /// `Content-Length: N`, an empty line, then N bytes.
    Headers,
}

/// A decoded frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The bytes of a frame, not yet checked to be UTF-8 or JSON.
    Message(Vec<u8>),
    /// A frame above the size limit; its bytes were skipped.
    Oversized {
        /// The first bytes of the frame, for [`partial_id`].
        prefix: Vec<u8>,
    },
}

/// The stream cannot be decoded any further.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The first byte belongs to neither framing.
    #[error(
        "this socket speaks JSON-RPC 2.0: one JSON value per line, or after Content-Length headers; the first byte was 0x{first:02x}"
    )]
    Foreign {
        /// The first byte that is not white space.
        first: u8,
    },
    /// The headers of a frame have no valid length.
    #[error("a frame needs a header line `Content-Length: N` with its length in bytes")]
    NoLength,
    /// The headers of a frame are too long.
    #[error("the headers of a frame are longer than {MAX_HEADER_BYTES} bytes")]
    LongHeaders,
}

/// Decodes bytes into frames.
///
/// Append bytes to [`Decoder::buffer`], then call [`Decoder::next_frame`] until it returns `None`. At the end of the
/// stream call [`Decoder::finish`] once.
#[derive(Debug)]
pub struct Decoder {
    max_frame_bytes: usize,
    buffer: Vec<u8>,
    /// Bytes at the beginning of `buffer` that belong to earlier frames.
    consumed: usize,
    /// Bytes at the beginning of `buffer` that were searched for a line end.
    searched: usize,
    framing: Option<Framing>,
    state: DecoderState,
}

impl Decoder {
    /// Creates a decoder that detects the framing from the first byte.
    #[must_use]
    pub fn new(max_frame_bytes: usize) -> Self {
        Self {
            max_frame_bytes,
            buffer: Vec::new(),
            consumed: 0,
            searched: 0,
            framing: None,
            state: DecoderState::Start,
        }
    }

    /// Returns the framing of the stream, or `None` before its first byte was decoded.
    #[must_use]
    pub fn framing(&self) -> Option<Framing> {
        self.framing
    }

    /// Returns the buffer to append received bytes to. The caller must not change it otherwise.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    /// Returns the next complete frame, or `None` if more bytes are needed.
    ///
    /// **Errors**: the stream cannot be decoded any further; every later call returns the same error.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let frame = loop {
            let step = match &mut self.state {
                DecoderState::Start => self.detect_framing(),
                DecoderState::Line => Ok(self.line()),
                DecoderState::SkipLine { .. } => Ok(self.skip_line()),
                DecoderState::Header { .. } => self.header(),
                DecoderState::Body { length } => {
                    let length = *length;
                    Ok(self.body(length))
                }
                DecoderState::SkipBody { .. } => Ok(self.skip_body()),
                DecoderState::Failed(error) => Err(error.clone()),
            };
            match step {
                Ok(DecoderStep::Continue) => {}
                Ok(DecoderStep::NeedBytes) => break None,
                Ok(DecoderStep::Frame(frame)) => break Some(frame),
                Err(error) => {
                    self.state = DecoderState::Failed(error.clone());
                    self.buffer = Vec::new();
                    (self.consumed, self.searched) = (0, 0);
                    return Err(error);
                }
            }
        };
        self.free_consumed();
        Ok(frame)
    }

    /// Returns the number of bytes of the frame that is not complete yet.
    ///
    /// Call it after [`Decoder::next_frame`] returned `None`.
    #[must_use]
    pub fn unfinished_bytes(&self) -> usize {
        self.buffer.len() - self.consumed
    }

    /// Frees the bytes of the frame that is not complete yet and skips it to its end, where it is returned as
    /// [`Frame::Oversized`]. Has no effect between two frames.
    ///
    /// Call it after [`Decoder::next_frame`] returned `None`.
    pub fn skip_unfinished(&mut self) {
        let pending = &self.buffer[self.consumed..];
        let mut prefix = Vec::new();
        extend_prefix(&mut prefix, pending);
        match self.state {
            DecoderState::Line if !pending.is_empty() => {
                self.state = DecoderState::SkipLine { prefix };
            }
            DecoderState::Body { length } => {
                let left = (length - pending.len()) as u64;
                self.state = DecoderState::SkipBody { left, prefix };
            }
            _ => return,
        }
        self.consume_to(self.buffer.len());
        self.free_consumed();
    }

    /// Returns the frame that the end of the stream completes: a last line needs no line end.
    ///
    /// Call it after [`Decoder::next_frame`] returned `None`.
    pub fn finish(&mut self) -> Option<Frame> {
        match std::mem::replace(&mut self.state, DecoderState::Start) {
            DecoderState::Line => {
                let line = trim(&self.buffer[self.consumed..]).to_vec();
                self.consumed = self.buffer.len();
                (!line.is_empty()).then_some(Frame::Message(line))
            }
            DecoderState::SkipLine { prefix } => Some(Frame::Oversized { prefix }),
            _ => None,
        }
    }

    fn detect_framing(&mut self) -> Result<DecoderStep, FrameError> {
        self.skip_white_space();
        let Some(&first) = self.buffer.get(self.consumed) else {
            return Ok(DecoderStep::NeedBytes);
        };
        let (framing, state) = match first {
            b'{' | b'[' => (Framing::Lines, DecoderState::Line),
            b'C' | b'c' => (Framing::Headers, DecoderState::HEADERS),
            _ => return Err(FrameError::Foreign { first }),
        };
        self.framing = Some(framing);
        self.state = state;
        Ok(DecoderStep::Continue)
    }

    fn line(&mut self) -> DecoderStep {
        let end = self.find_line_end();
        let line = &self.buffer[self.consumed..end.unwrap_or(self.buffer.len())];
        if line.len() > self.max_frame_bytes {
            self.state = DecoderState::SkipLine { prefix: Vec::new() };
            return DecoderStep::Continue;
        }
        let Some(end) = end else { return DecoderStep::NeedBytes };
        let text = trim(line);
        if text.is_empty() {
            self.consume_to(end + 1);
            return DecoderStep::Continue;
        }
        let start = self.consumed + (text.as_ptr() as usize - line.as_ptr() as usize);
        let frame = self.take_frame(start, start + text.len(), end + 1);
        DecoderStep::Frame(Frame::Message(frame))
    }

    fn skip_line(&mut self) -> DecoderStep {
        let end = memchr(b'\n', &self.buffer[self.consumed..]).map(|at| self.consumed + at);
        let DecoderState::SkipLine { prefix } = &mut self.state else {
            return DecoderStep::Continue;
        };
        extend_prefix(prefix, &self.buffer[self.consumed..end.unwrap_or(self.buffer.len())]);
        let Some(end) = end else {
            self.consume_to(self.buffer.len());
            return DecoderStep::NeedBytes;
        };
        let prefix = std::mem::take(prefix);
        self.consume_to(end + 1);
        self.state = DecoderState::Line;
        DecoderStep::Frame(Frame::Oversized { prefix })
    }

    fn header(&mut self) -> Result<DecoderStep, FrameError> {
        let DecoderState::Header { length, seen_bytes } = self.state else {
            return Ok(DecoderStep::Continue);
        };
        if seen_bytes == 0 {
            self.skip_white_space();
        }
        let Some(end) = self.find_line_end() else {
            let too_long = seen_bytes + (self.buffer.len() - self.consumed) > MAX_HEADER_BYTES;
            return if too_long {
                Err(FrameError::LongHeaders)
            } else {
                Ok(DecoderStep::NeedBytes)
            };
        };
        let line = trim(&self.buffer[self.consumed..end]);
        let seen_bytes = seen_bytes + (end + 1 - self.consumed);
        if seen_bytes > MAX_HEADER_BYTES {
            return Err(FrameError::LongHeaders);
        }
        if line.is_empty() {
            let length = length.ok_or(FrameError::NoLength)?;
            self.consume_to(end + 1);
            self.state = match usize::try_from(length) {
                Ok(length) if length <= self.max_frame_bytes => DecoderState::Body { length },
                _ => DecoderState::SkipBody { left: length, prefix: Vec::new() },
            };
            return Ok(DecoderStep::Continue);
        }
        let length = content_length(line)?.or(length);
        self.consume_to(end + 1);
        self.state = DecoderState::Header { length, seen_bytes };
        Ok(DecoderStep::Continue)
    }

    fn body(&mut self, length: usize) -> DecoderStep {
        let end = self.consumed + length;
        if self.buffer.len() < end {
            return DecoderStep::NeedBytes;
        }
        self.state = DecoderState::HEADERS;
        if trim(&self.buffer[self.consumed..end]).is_empty() {
            self.consume_to(end);
            return DecoderStep::Continue;
        }
        let frame = self.take_frame(self.consumed, end, end);
        DecoderStep::Frame(Frame::Message(frame))
    }

    fn skip_body(&mut self) -> DecoderStep {
        let DecoderState::SkipBody { left, prefix } = &mut self.state else {
            return DecoderStep::Continue;
        };
        let pending = &self.buffer[self.consumed..];
        let here = usize::try_from(*left).map_or(pending.len(), |left| left.min(pending.len()));
        extend_prefix(prefix, &pending[..here]);
        *left -= here as u64;
        let complete = (*left == 0).then(|| std::mem::take(prefix));
        self.consume_to(self.consumed + here);
        let Some(prefix) = complete else { return DecoderStep::NeedBytes };
        self.state = DecoderState::HEADERS;
        DecoderStep::Frame(Frame::Oversized { prefix })
    }

    /// Finds the next line end; searches only bytes that were not searched before.
    fn find_line_end(&mut self) -> Option<usize> {
        let from = self.searched.max(self.consumed);
        let found = memchr(b'\n', &self.buffer[from..]).map(|at| from + at);
        self.searched = found.unwrap_or(self.buffer.len());
        found
    }

    fn skip_white_space(&mut self) {
        let pending = &self.buffer[self.consumed..];
        let skipped = pending.iter().take_while(|byte| is_white_space(**byte)).count();
        self.consume_to(self.consumed + skipped);
    }

    fn consume_to(&mut self, end: usize) {
        self.consumed = end;
        self.searched = self.searched.max(end);
    }

    /// Consumes the bytes before `next` and returns those of `start..end`. A large frame that fills the whole buffer
    /// is moved instead of copied.
    fn take_frame(&mut self, start: usize, end: usize, next: usize) -> Vec<u8> {
        if start == 0 && next == self.buffer.len() && next >= KEEP_BUFFER_BYTES {
            let mut frame = std::mem::take(&mut self.buffer);
            frame.truncate(end);
            (self.consumed, self.searched) = (0, 0);
            return frame;
        }
        let frame = self.buffer[start..end].to_vec();
        self.consume_to(next);
        frame
    }

    /// Frees the memory of consumed bytes. The remaining bytes are moved only if they are the smaller part.
    fn free_consumed(&mut self) {
        if self.consumed < self.buffer.len() {
            if self.consumed > self.buffer.len() / 2 {
                self.buffer.drain(..self.consumed);
                self.searched -= self.consumed;
                self.consumed = 0;
            }
            return;
        }
        self.buffer.clear();
        if self.buffer.capacity() > KEEP_BUFFER_BYTES {
            self.buffer = Vec::new();
        }
        (self.consumed, self.searched) = (0, 0);
    }
}

/// Appends one frame to `out`.
///
/// `json` is one JSON value. With [`Framing::Lines`], its line ends become spaces; JSON allows them only between
/// tokens.
pub fn encode(framing: Framing, json: &[u8], out: &mut Vec<u8>) {
    match framing {
        Framing::Lines => {
            let start = out.len();
            out.extend_from_slice(json);
            if memchr(b'\n', json).is_some() {
                out[start..]
                    .iter_mut()
                    .filter(|byte| **byte == b'\n')
                    .for_each(|byte| *byte = b' ');
            }
            out.push(b'\n');
        }
        Framing::Headers => {
            out.extend_from_slice(format!("Content-Length: {}\r\n\r\n", json.len()).as_bytes());
            out.extend_from_slice(json);
        }
    }
}

/// Returns the `id` of the JSON-RPC request or response that begins with these bytes, or `None` if they do not contain
/// a complete string or number as its id.
///
/// An error reply must name its call: a client cannot assign an error without an id, and some clients then close the
/// connection. So a frame that is too large is searched for its id, although it is never parsed as a whole.
#[must_use]
pub fn partial_id(prefix: &[u8]) -> Option<Value> {
    let mut id = None;
    // Fails even after the id was found, because the bytes end within the frame.
    let _parsed = serde_json::Deserializer::from_slice(prefix).deserialize_map(IdVisitor(&mut id));
    let id = id?.get();
    let is_at_end = id.as_bytes().as_ptr_range().end == prefix.as_ptr_range().end;
    match serde_json::from_str(id).ok()? {
        text @ Value::String(_) => Some(text),
        // More digits may follow at the end of the bytes.
        number @ Value::Number(_) if !is_at_end => Some(number),
        _ => None,
    }
}

/// The position of a decoder in its stream.
#[derive(Debug)]
enum DecoderState {
    /// Before the first byte that is not white space.
    Start,
    Line,
    /// In a line above the limit.
    SkipLine {
        prefix: Vec<u8>,
    },
    /// In the header lines of a frame.
    Header {
        length: Option<u64>,
        seen_bytes: usize,
    },
    Body {
        length: usize,
    },
    /// In a body above the limit.
    SkipBody {
        left: u64,
        prefix: Vec<u8>,
    },
    Failed(FrameError),
}

impl DecoderState {
    /// Before the headers of a frame.
    const HEADERS: Self = Self::Header { length: None, seen_bytes: 0 };
}

/// The result of one look at the buffer.
enum DecoderStep {
    /// The state changed: look again.
    Continue,
    NeedBytes,
    Frame(Frame),
}

/// Returns the length that a header line gives, or `None` for another header.
fn content_length(line: &[u8]) -> Result<Option<u64>, FrameError> {
    let Some(colon) = memchr(b':', line) else { return Err(FrameError::NoLength) };
    if !line[..colon].trim_ascii().eq_ignore_ascii_case(b"content-length") {
        return Ok(None);
    }
    std::str::from_utf8(line[colon + 1..].trim_ascii())
        .ok()
        .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
        .and_then(|digits| digits.parse().ok())
        .map(Some)
        .ok_or(FrameError::NoLength)
}

/// Finds the `id` of an object.
struct IdVisitor<'a, 'de>(&'a mut Option<&'de RawValue>);

impl<'de> Visitor<'de> for IdVisitor<'_, 'de> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        while let Some(name) = fields.next_key::<String>()? {
            if name == "id" {
                *self.0 = Some(fields.next_value()?);
                break;
            }
            fields.next_value::<IgnoredAny>()?;
        }
        Ok(())
    }
}

fn extend_prefix(prefix: &mut Vec<u8>, bytes: &[u8]) {
    let wanted = OVERSIZED_PREFIX_BYTES.saturating_sub(prefix.len()).min(bytes.len());
    prefix.extend_from_slice(&bytes[..wanted]);
}

fn is_white_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}

fn trim(bytes: &[u8]) -> &[u8] {
    let start = bytes.iter().take_while(|byte| is_white_space(**byte)).count();
    let end = bytes.iter().rev().take_while(|byte| is_white_space(**byte)).count();
    if start == bytes.len() { &[] } else { &bytes[start..bytes.len() - end] }
}

#[cfg(test)]
mod tests;
