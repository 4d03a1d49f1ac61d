//! Faults in the handling of one request, as edits of its reply.

use std::time::Duration;

use serde_json::json;

use super::super::http::{Step, response};
use super::wire;

/// A fault in the handling of one request.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// A status with an error text.
    Error { status: u16, text: String },
    /// Status 403 with an empty body, as for a host name that is not local.
    ForbiddenHost,
    /// Status 401 with a sign-in address.
    Unauthorized,
    /// Status 307.
    Redirect(String),
    /// An HTML page with status 200.
    Page,
    /// Bytes that are not JSON, with status 200.
    Garbage,
    /// A broken connection after the response head.
    Disconnect,
    /// A pause before a normal response.
    Delay(Duration),
    /// No response until the client disconnects.
    Hang,
    /// An error line after some lines of the answer, which ends it.
    ErrorLine { after: usize, text: String },
    /// An end without the `done` line, after some lines.
    EndWithoutDone { after: usize },
    /// A broken connection after some lines.
    Break { after: usize },
    /// A line that is not JSON after some lines.
    GarbageLine { after: usize },
    /// A pause after some lines, until [`FakeOllama::resume`](super::FakeOllama::resume) or a disconnect.
    Stall { after: usize },
    /// Some bytes without a line break before the first line.
    HugeLine(usize),
    /// Chunks of one byte, so that characters are split.
    SplitBytes,
    /// A pause before each line.
    SlowLines(Duration),
}

impl Fault {
    /// Returns what is sent instead of `reply`, which is made only if the server gets as far.
    pub(super) fn apply(self, reply: impl FnOnce() -> Vec<Step>) -> Vec<Step> {
        match self {
            Self::Error { status, text } => wire::error(status, &text),
            Self::ForbiddenHost => response(403, "", b""),
            Self::Unauthorized => {
                let body = json!({ "error": "unauthorized", "signin_url": "https://example.com/" });
                wire::json_with_status(401, &body)
            }
            Self::Redirect(to) => response(307, &format!("Location: {to}\r\n"), b""),
            Self::Page => {
                let page = b"<!doctype html><title>Welcome</title>";
                response(200, "Content-Type: text/html\r\n", page)
            }
            Self::Garbage => {
                response(200, "Content-Type: application/json\r\n", &[0xff, 0x00, b'{', 0xfe])
            }
            Self::Hang => vec![Step::Hang],
            Self::Delay(time) => [vec![Step::Pause(time)], reply()].concat(),
            Self::Disconnect => {
                drop(reply());
                vec![wire::LINES, Step::Close]
            }
            fault => fault.edit(reply()),
        }
    }

    /// Edits a streamed answer; any other reply stays as it is.
    fn edit(self, steps: Vec<Step>) -> Vec<Step> {
        let [begin @ Step::Begin(_), lines @ .., Step::End] = &*steps else { return steps };
        let after = match &self {
            Self::ErrorLine { after, .. }
            | Self::EndWithoutDone { after }
            | Self::Break { after }
            | Self::GarbageLine { after }
            | Self::Stall { after } => *after,
            _ => 0,
        };
        let Some((before, rest)) = lines.split_at_checked(after) else { return steps };
        let edited = match self {
            Self::ErrorLine { text, .. } => {
                [before, &[Step::line(&json!({ "error": text }))]].concat()
            }
            Self::EndWithoutDone { .. } => before.to_vec(),
            Self::Break { .. } => [before, &[Step::Close]].concat(),
            Self::GarbageLine { .. } => {
                [before, &[Step::Chunk(b"this is no JSON\n".to_vec())], rest].concat()
            }
            Self::Stall { .. } => [before, &[Step::Stall], rest].concat(),
            Self::HugeLine(bytes) => [&[Step::Flood(bytes)], rest].concat(),
            Self::SlowLines(time) => {
                rest.iter().flat_map(|line| [Step::Pause(time), line.clone()]).collect()
            }
            _ => rest.iter().flat_map(split).collect(),
        };
        [std::slice::from_ref(begin), &*edited, &[Step::End]].concat()
    }
}

/// Returns chunks of one byte.
fn split(line: &Step) -> Vec<Step> {
    let Step::Chunk(bytes) = line else { return vec![line.clone()] };
    bytes.iter().map(|byte| Step::Chunk(vec![*byte])).collect()
}
