//! Bytes to frames and back, for both framings, without I/O.
//!
//! One socket speaks two framings, told apart by the first byte that is not blank: JSON values one a line, or
//! JSON values behind `Content-Length` headers as editors send them. Answers use the framing of the caller.
//!
//! **Invariants**: memory stays below one frame and one read; a byte is searched once; how the bytes were cut
//! into reads never shows in the frames.

mod partial;

use memchr::memchr;

pub use partial::partial_id;

/// The largest frame in bytes, in either direction: far more than a model's window as text, and small enough
/// that a few clients at once cannot exhaust the memory of a laptop.
pub const MAX_FRAME_BYTES: usize = 16 * 1024 * 1024;

/// Bytes kept of a frame that is too large: enough for the id, which clients write before the params.
pub const OVERSIZED_PREFIX_BYTES: usize = 1024;

/// The most bytes of headers before one frame; real ones have under 100.
const MAX_HEADER_BYTES: usize = 4096;

/// From this capacity on an empty buffer is given back, so that an idle connection stays small.
const KEEP_BUFFER_BYTES: usize = 64 * 1024;

/// How frames are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// One JSON value a line.
    Lines,
    /// `Content-Length: N`, an empty line, then N bytes.
    Headers,
}

/// What came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A frame without its framing; not yet checked to be JSON or UTF-8.
    Message(Vec<u8>),
    /// A frame beyond the limit was skipped.
    Oversized {
        /// Its first bytes, for [`partial_id`].
        prefix: Vec<u8>,
    },
}

/// Bytes after which the stream cannot be read any further.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The stream begins with neither framing.
    #[error(
        "this socket speaks JSON-RPC 2.0, one JSON value a line or behind Content-Length headers; the first byte was 0x{first:02x}"
    )]
    Foreign {
        /// The first byte that is not blank.
        first: u8,
    },
    /// The headers of a frame do not say how long it is.
    #[error("a frame needs a header line `Content-Length: N` with its length in bytes")]
    NoLength,
    /// The headers of a frame do not end.
    #[error("the headers of a frame are longer than {MAX_HEADER_BYTES} bytes")]
    LongHeaders,
}

/// Where in the stream the decoder stands.
#[derive(Debug)]
enum State {
    /// Before the first byte that is not blank.
    Start,
    /// In a line.
    Line,
    /// In a line beyond the limit; its first bytes are searched again, once.
    SkipLine { prefix: Vec<u8> },
    /// Among header lines.
    Header { length: Option<u64>, seen_bytes: usize },
    /// In a body.
    Body { length: usize },
    /// In a body beyond the limit.
    SkipBody { left: u64, prefix: Vec<u8> },
    /// After bytes that make no sense.
    Failed(FrameError),
}

/// Takes bytes as they come and gives frames back.
///
/// Append to [`Decoder::buffer`], then call [`Decoder::next_frame`] until it gives `None`; at the end of the
/// stream call [`Decoder::finish`] once.
#[derive(Debug)]
pub struct Decoder {
    max_frame_bytes: usize,
    buffer: Vec<u8>,
    /// Bytes of `buffer` that belong to earlier frames.
    taken: usize,
    /// Bytes of `buffer` in which no line end was found.
    searched: usize,
    framing: Option<Framing>,
    state: State,
}

impl Decoder {
    /// A decoder that finds out the framing from the first byte.
    #[must_use]
    pub fn new(max_frame_bytes: usize) -> Self {
        Self {
            max_frame_bytes,
            buffer: Vec::new(),
            taken: 0,
            searched: 0,
            framing: None,
            state: State::Start,
        }
    }

    /// The framing of the stream, once its first byte has been looked at.
    #[must_use]
    pub fn framing(&self) -> Option<Framing> {
        self.framing
    }

    /// Where the bytes go. Only append to it.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    /// The next complete frame; `None` when more bytes are needed.
    ///
    /// **Errors**: the stream cannot be read any further; every later call says the same.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let frame = loop {
            let step = match &mut self.state {
                State::Start => self.sniff(),
                State::Line => self.line(),
                State::SkipLine { .. } => self.skip_line(),
                State::Header { .. } => self.header(),
                State::Body { length } => {
                    let length = *length;
                    self.body(length)
                }
                State::SkipBody { .. } => self.skip_body(),
                State::Failed(error) => Step::Fail(error.clone()),
            };
            match step {
                Step::Again => {}
                Step::More => break None,
                Step::Frame(frame) => break Some(frame),
                Step::Fail(error) => {
                    self.state = State::Failed(error.clone());
                    self.buffer = Vec::new();
                    (self.taken, self.searched) = (0, 0);
                    return Err(error);
                }
            }
        };
        self.release();
        Ok(frame)
    }

    /// The frame that the end of the stream completes: a last line needs no line end.
    ///
    /// Call it after [`Decoder::next_frame`] gave `None`.
    pub fn finish(&mut self) -> Option<Frame> {
        match std::mem::replace(&mut self.state, State::Start) {
            State::Line => {
                let line = trim(&self.buffer[self.taken..]).to_vec();
                self.taken = self.buffer.len();
                (!line.is_empty()).then_some(Frame::Message(line))
            }
            State::SkipLine { prefix } => Some(Frame::Oversized { prefix }),
            _ => None,
        }
    }

    fn sniff(&mut self) -> Step {
        self.skip_blanks();
        let Some(&first) = self.buffer.get(self.taken) else { return Step::More };
        match first {
            b'{' | b'[' => {
                self.framing = Some(Framing::Lines);
                self.state = State::Line;
                Step::Again
            }
            b'C' | b'c' => {
                self.framing = Some(Framing::Headers);
                self.state = State::Header { length: None, seen_bytes: 0 };
                Step::Again
            }
            _ => Step::Fail(FrameError::Foreign { first }),
        }
    }

    fn line(&mut self) -> Step {
        let Some(end) = self.find_line_end() else {
            let length = self.buffer.len() - self.taken;
            if length > self.max_frame_bytes {
                self.state = State::SkipLine { prefix: Vec::new() };
                return Step::Again;
            }
            return Step::More;
        };
        let line = &self.buffer[self.taken..end];
        if line.len() > self.max_frame_bytes {
            self.state = State::SkipLine { prefix: Vec::new() };
            return Step::Again;
        }
        let text = trim(line);
        if text.is_empty() {
            self.take_to(end + 1);
            return Step::Again;
        }
        let start = self.taken + (text.as_ptr() as usize - line.as_ptr() as usize);
        let frame = self.copy_or_move(start, start + text.len(), end + 1);
        Step::Frame(Frame::Message(frame))
    }

    fn skip_line(&mut self) -> Step {
        let end = memchr(b'\n', &self.buffer[self.taken..]).map(|at| self.taken + at);
        let State::SkipLine { prefix } = &mut self.state else { return Step::Again };
        extend_prefix(prefix, &self.buffer[self.taken..end.unwrap_or(self.buffer.len())]);
        let Some(end) = end else {
            self.take_to(self.buffer.len());
            return Step::More;
        };
        let prefix = std::mem::take(prefix);
        self.take_to(end + 1);
        self.state = State::Line;
        Step::Frame(Frame::Oversized { prefix })
    }

    fn header(&mut self) -> Step {
        let State::Header { length, seen_bytes } = self.state else { return Step::Again };
        if seen_bytes == 0 {
            self.skip_blanks();
        }
        let Some(end) = self.find_line_end() else {
            let too_long = seen_bytes + (self.buffer.len() - self.taken) > MAX_HEADER_BYTES;
            return if too_long { Step::Fail(FrameError::LongHeaders) } else { Step::More };
        };
        let line = trim(&self.buffer[self.taken..end]);
        let seen_bytes = seen_bytes + (end + 1 - self.taken);
        if seen_bytes > MAX_HEADER_BYTES {
            return Step::Fail(FrameError::LongHeaders);
        }
        if line.is_empty() {
            let Some(length) = length else { return Step::Fail(FrameError::NoLength) };
            self.take_to(end + 1);
            self.state = match usize::try_from(length) {
                Ok(length) if length <= self.max_frame_bytes => State::Body { length },
                _ => State::SkipBody { left: length, prefix: Vec::new() },
            };
            return Step::Again;
        }
        let length = match content_length(line) {
            Ok(found) => found.or(length),
            Err(error) => return Step::Fail(error),
        };
        self.take_to(end + 1);
        self.state = State::Header { length, seen_bytes };
        Step::Again
    }

    fn body(&mut self, length: usize) -> Step {
        let end = self.taken + length;
        if self.buffer.len() < end {
            return Step::More;
        }
        self.state = State::Header { length: None, seen_bytes: 0 };
        if trim(&self.buffer[self.taken..end]).is_empty() {
            self.take_to(end);
            return Step::Again;
        }
        let frame = self.copy_or_move(self.taken, end, end);
        Step::Frame(Frame::Message(frame))
    }

    fn skip_body(&mut self) -> Step {
        let State::SkipBody { left, prefix } = &mut self.state else { return Step::Again };
        let pending = &self.buffer[self.taken..];
        let here = usize::try_from(*left).map_or(pending.len(), |left| left.min(pending.len()));
        extend_prefix(prefix, &pending[..here]);
        *left -= here as u64;
        let complete = (*left == 0).then(|| std::mem::take(prefix));
        self.take_to(self.taken + here);
        let Some(prefix) = complete else { return Step::More };
        self.state = State::Header { length: None, seen_bytes: 0 };
        Step::Frame(Frame::Oversized { prefix })
    }

    /// The place of the next line end, searching only what was not searched before.
    fn find_line_end(&mut self) -> Option<usize> {
        let from = self.searched.max(self.taken);
        let found = memchr(b'\n', &self.buffer[from..]).map(|at| from + at);
        self.searched = found.unwrap_or(self.buffer.len());
        found
    }

    fn skip_blanks(&mut self) {
        let blank = self.buffer[self.taken..].iter().take_while(|byte| is_blank(**byte)).count();
        self.take_to(self.taken + blank);
    }

    fn take_to(&mut self, end: usize) {
        self.taken = end;
        self.searched = self.searched.max(end);
    }

    /// Takes the bytes up to `next` and gives `start..end` of them; a large frame that is all there is in the
    /// buffer is moved out of it instead of copied.
    fn copy_or_move(&mut self, start: usize, end: usize, next: usize) -> Vec<u8> {
        if start == 0 && next == self.buffer.len() && next >= KEEP_BUFFER_BYTES {
            let mut frame = std::mem::take(&mut self.buffer);
            frame.truncate(end);
            (self.taken, self.searched) = (0, 0);
            return frame;
        }
        let frame = self.buffer[start..end].to_vec();
        self.take_to(next);
        frame
    }

    /// Gives the memory of taken bytes back, moving what is left only when that is the smaller part.
    fn release(&mut self) {
        if self.taken < self.buffer.len() {
            if self.taken > self.buffer.len() / 2 {
                self.buffer.drain(..self.taken);
                self.searched -= self.taken;
                self.taken = 0;
            }
            return;
        }
        self.buffer.clear();
        if self.buffer.capacity() > KEEP_BUFFER_BYTES {
            self.buffer = Vec::new();
        }
        (self.taken, self.searched) = (0, 0);
    }
}

/// What one look at the buffer came to.
enum Step {
    /// The state changed; look again.
    Again,
    /// More bytes are needed.
    More,
    /// A frame is complete.
    Frame(Frame),
    /// The stream cannot be read.
    Fail(FrameError),
}

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

fn extend_prefix(prefix: &mut Vec<u8>, bytes: &[u8]) {
    let wanted = OVERSIZED_PREFIX_BYTES.saturating_sub(prefix.len()).min(bytes.len());
    prefix.extend_from_slice(&bytes[..wanted]);
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}

fn trim(bytes: &[u8]) -> &[u8] {
    let start = bytes.iter().take_while(|byte| is_blank(**byte)).count();
    let end = bytes.iter().rev().take_while(|byte| is_blank(**byte)).count();
    if start == bytes.len() { &[] } else { &bytes[start..bytes.len() - end] }
}

/// Appends one frame to `out`.
///
/// `json` is one JSON value. Line ends in it, which JSON allows only between tokens, become spaces in the
/// framing by lines.
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

#[cfg(test)]
mod tests;
