//! The check of the frame decoder and of the envelope of JSON-RPC.

use ollm_protocol::frame::{Decoder, Frame, FrameError, Framing, encode, partial_id};
use serde_json::Value;

use crate::server::parse_request_id;

/// The largest frame of the check: small, so that short inputs have frames above it.
const LIMIT: usize = 256;
/// The bytes that a decoder may hold beside one frame: the headers of a frame, and the buffer that it keeps.
const HELD_BYTES: usize = 8 * 1024;

/// Checks the decoder on a stream, and on its messages as requests.
///
/// **Shape**: the first byte sets the length of the reads; the others are the stream.
pub fn frames(bytes: &[u8]) {
    let Some((&step, stream)) = bytes.split_first() else { return };
    let whole = decode(stream, stream.len().max(1));
    // One byte at a time, some bytes at a time, and two parts.
    assert_eq!(decode(stream, 1), whole, "split at every byte");
    assert_eq!(decode(stream, usize::from(step).max(1)), whole, "split every {step} bytes");
    assert_eq!(decode(stream, (stream.len() / 2).max(1)), whole, "split in the middle");
    for frame in &whole.0 {
        match frame {
            Frame::Message(json) => check_message(json),
            Frame::Oversized { prefix } => drop(partial_id(prefix)),
        }
    }
}

/// Decodes a stream that arrives in reads of `step` bytes.
fn decode(stream: &[u8], step: usize) -> (Vec<Frame>, Option<FrameError>, Option<Framing>) {
    let mut decoder = Decoder::new(LIMIT);
    let mut frames = Vec::new();
    for piece in stream.chunks(step) {
        decoder.buffer().extend_from_slice(piece);
        loop {
            match decoder.next_frame() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => {
                    assert_eq!(decoder.next_frame(), Err(error.clone()), "stays failed");
                    assert_eq!(decoder.finish(), None);
                    return (frames, Some(error), decoder.framing());
                }
            }
        }
        let held = decoder.buffer().len();
        assert!(held <= LIMIT + HELD_BYTES + piece.len(), "{held} bytes are held");
        assert!(decoder.unfinished_bytes() <= held);
    }
    frames.extend(decoder.finish());
    (frames, None, decoder.framing())
}

/// Checks that a message is the same in both framings, and that its id is found in its beginning.
fn check_message(json: &[u8]) {
    let request_id = std::str::from_utf8(json).ok().and_then(parse_request_id);
    if let (Some(id), Some(found)) = (&request_id, partial_id(json)) {
        assert_eq!(*id, found, "the beginning of a request names its id");
    }
    let Ok(value) = serde_json::from_slice::<Value>(json) else { return };
    if !value.is_object() && !value.is_array() {
        return;
    }
    for framing in [Framing::Lines, Framing::Headers] {
        let mut stream = Vec::new();
        encode(framing, json, &mut stream);
        encode(framing, b"{}", &mut stream);
        let (frames, error, found) = decode(&stream, stream.len());
        assert_eq!((error, found, frames.len()), (None, Some(framing), 2));
        let Frame::Message(again) = &frames[0] else { continue };
        let again: Option<Value> = serde_json::from_slice(again).ok();
        assert_eq!(again.as_ref(), Some(&value), "{framing:?}");
        assert_eq!(frames[1], Frame::Message(b"{}".to_vec()));
    }
}
