//! The lines of an editor that are extended: a prompt by what is recalled, a new session by a server of tools.
//!
//! **Invariant**: only the extension is inserted; every other byte of the line stays. A line that is not understood passes as
//! it is, and so does one that is longer than [`MAX_LINE_BYTES`].

use std::borrow::Cow;
use std::ffi::OsString;
use std::io;

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::recall::PromptRecall;
use crate::address::{Address, Environment};
use crate::command_error::{CommandError, CommandResult};
use crate::own_program;

/// The longest line that is held back until its end is there, in bytes.
const MAX_LINE_BYTES: usize = 16 << 20;

/// Extends the lines of one editor.
pub(super) struct Rewriter {
    recall: Option<PromptRecall>,
    server: Option<AddedServer>,
    /// The beginning of a line.
    partial: Vec<u8>,
    /// Set while the rest of a long line passes.
    is_passing: bool,
}

impl Rewriter {
    pub(super) fn new(recall: Option<PromptRecall>, server: Option<AddedServer>) -> Self {
        Self { recall, server, partial: Vec::new(), is_passing: false }
    }

    /// Adds a piece, and writes every line that it completes: `write` gets what was read and what takes its place.
    pub(super) fn push(
        &mut self,
        mut piece: &[u8],
        mut write: impl FnMut(&[u8], &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        while let Some(end) = piece.iter().position(|byte| *byte == b'\n') {
            let (line, rest) = piece.split_at(end + 1);
            piece = rest;
            if std::mem::take(&mut self.is_passing) {
                write(line, line)?;
                continue;
            }
            self.partial.extend_from_slice(line);
            let line = std::mem::take(&mut self.partial);
            match self.extended(&line) {
                Some(new) => write(&line, &new)?,
                None => write(&line, &line)?,
            }
        }
        if self.is_passing {
            return write(piece, piece);
        }
        self.partial.extend_from_slice(piece);
        if self.partial.len() > MAX_LINE_BYTES {
            self.is_passing = true;
            let partial = std::mem::take(&mut self.partial);
            return write(&partial, &partial);
        }
        Ok(())
    }

    /// Writes the beginning of a line whose end does not come.
    pub(super) fn finish(self, write: impl FnOnce(&[u8]) -> io::Result<()>) -> io::Result<()> {
        write(&self.partial)
    }

    /// Returns a line with its extension; `None` if it passes as it is.
    fn extended(&mut self, line: &[u8]) -> Option<Vec<u8>> {
        let text = std::str::from_utf8(line).ok()?;
        let request: Request<'_> = serde_json::from_str(text).ok()?;
        let params = request.params?.get();
        let (at, new) = match &*request.method {
            "session/new" | "session/load" | "session/resume" | "session/fork" => {
                self.recall.as_mut().into_iter().for_each(|recall| recall.note_session(params));
                self.server.as_ref()?.insertion(params)?
            }
            "session/prompt" => {
                let prompt: PromptParams<'_> = serde_json::from_str(params).ok()?;
                let block = self.recall.as_mut()?.block(&prompt.session_id, prompt.prompt.get())?;
                first_item(params, prompt.prompt.get(), &block)?
            }
            _ => return None,
        };
        let at = offset_in(text, params) + at;
        let mut extended = line[..at].to_vec();
        extended.extend_from_slice(new.as_bytes());
        extended.extend_from_slice(&line[at..]);
        Some(extended)
    }
}

#[derive(Deserialize)]
struct Request<'a> {
    #[serde(borrow)]
    method: Cow<'a, str>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PromptParams<'a> {
    #[serde(borrow)]
    session_id: Cow<'a, str>,
    #[serde(borrow)]
    prompt: &'a RawValue,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SessionParams<'a> {
    /// Also `null`, beside which the field cannot be added again.
    #[serde(borrow, default, deserialize_with = "present")]
    mcp_servers: Option<&'a RawValue>,
}

fn present<'de: 'a, 'a, D: Deserializer<'de>>(field: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(field).map(Some)
}

/// Returns the position of a part of a text.
fn offset_in(text: &str, part: &str) -> usize {
    part.as_ptr() as usize - text.as_ptr() as usize
}

/// Returns the place and the text that make a value the first item of an array.
fn first_item(text: &str, array: &str, item: &Value) -> Option<(usize, String)> {
    let rest = array.strip_prefix('[')?;
    let comma = if rest.trim_start().starts_with(']') { "" } else { "," };
    Some((offset_in(text, rest), format!("{item}{comma}")))
}

/// The server of `ollmctl mcp`, as ACP names it.
pub(super) struct AddedServer(Value);

impl AddedServer {
    /// Returns the server with the name under which this program is installed: the agent starts it later, maybe after an update.
    ///
    /// **Errors**: the path of this program or of the daemon's home is not UTF-8.
    pub(super) fn new(address: &Address, environment: &Environment) -> CommandResult<Self> {
        let program = own_program::installed(environment)?;
        let flags = address.flags().into_iter().chain(["mcp".into()]);
        let args = flags.map(OsString::into_string).collect::<Result<Vec<_>, _>>();
        let args = args.map_err(|path| CommandError::PathNotUtf8 { path: path.into() })?;
        Ok(Self(json!({ "name": "ollm", "command": program, "args": args, "env": [] })))
    }

    /// Returns the place in the params of a new session and the text that adds the server there.
    fn insertion(&self, params: &str) -> Option<(usize, String)> {
        let own: SessionParams<'_> = serde_json::from_str(params).ok()?;
        match own.mcp_servers {
            Some(servers) => first_item(params, servers.get(), &self.0),
            None => {
                let rest = params.strip_prefix('{')?;
                let comma = if rest.trim_start().starts_with('}') { "" } else { "," };
                Some((offset_in(params, rest), format!("\"mcpServers\":[{}]{comma}", self.0)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_server() -> Rewriter {
        Rewriter::new(None, Some(AddedServer(json!({ "name": "ollm" }))))
    }

    fn rewritten(rewriter: &mut Rewriter, pieces: &[&str]) -> String {
        let mut out = Vec::new();
        for piece in pieces {
            let write = |_: &[u8], bytes: &[u8]| {
                out.extend_from_slice(bytes);
                Ok(())
            };
            rewriter.push(piece.as_bytes(), write).unwrap();
        }
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn server_is_inserted_and_every_other_byte_stays() {
        let check = |line: &str, expect: &str| {
            assert_eq!(rewritten(&mut with_server(), &[line]), expect);
            let (one, two) = line.split_at(line.len() / 2);
            assert_eq!(rewritten(&mut with_server(), &[one, two]), expect);
        };
        check(
            "{ \"id\":1.0, \"method\":\"session/new\",\"params\": { \"cwd\":\"/\\u0041\", \"mcpServers\": [ ] , \"x\":12345678901234567890123 }}\n",
            "{ \"id\":1.0, \"method\":\"session/new\",\"params\": { \"cwd\":\"/\\u0041\", \"mcpServers\": [{\"name\":\"ollm\"} ] , \"x\":12345678901234567890123 }}\n",
        );
        check(
            "{\"method\":\"session/load\",\"params\":{\"mcpServers\":[{}]}}\n",
            "{\"method\":\"session/load\",\"params\":{\"mcpServers\":[{\"name\":\"ollm\"},{}]}}\n",
        );
        check(
            "{\"method\":\"session/resume\",\"params\":{\"a\":1}}\r\n",
            "{\"method\":\"session/resume\",\"params\":{\"mcpServers\":[{\"name\":\"ollm\"}],\"a\":1}}\r\n",
        );
        check(
            "{\"method\":\"session\\/new\",\"params\":{}}\n",
            "{\"method\":\"session\\/new\",\"params\":{\"mcpServers\":[{\"name\":\"ollm\"}]}}\n",
        );
        for same in [
            "garbage\n",
            "{\"method\":\"session/new\"}\n",
            "{\"method\":\"session/new\",\"params\":{\"mcpServers\":null}}\n",
            "{\"method\":\"x\",\"params\":{}}\n",
            "\n",
            "[1]\n",
            "{\"method\":\"session/prompt\",\"params\":{\"sessionId\":\"a\",\"prompt\":[]}}\n",
        ] {
            check(same, same);
        }
    }

    #[test]
    fn line_without_an_end_and_a_long_one_pass() {
        let mut rewriter = with_server();
        assert_eq!(rewritten(&mut rewriter, &["{\"a\""]), "");
        let mut left = Vec::new();
        rewriter
            .finish(|bytes| {
                left.extend_from_slice(bytes);
                Ok(())
            })
            .unwrap();
        assert_eq!(left, b"{\"a\"");
        let long = "x".repeat(MAX_LINE_BYTES);
        assert_eq!(
            rewritten(&mut with_server(), &[&long, "y", "z\n", "a\n"]),
            format!("{long}yz\na\n")
        );
    }
}
