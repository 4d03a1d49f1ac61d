//! One frame to bytes.

use memchr::memchr;

use super::Framing;

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
