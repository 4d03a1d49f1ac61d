//! The id of a request of which only the first bytes are known.
//!
//! An error reply must name its call: a client cannot assign an error without an id, and some clients then close the
//! connection. So a frame that is too large is searched for its id, although it is never parsed as a whole.

use serde_json::Value;

/// Returns the `id` of the JSON-RPC request or response that begins with these bytes, or `None` if they do not contain
/// a complete string or number as its id.
#[must_use]
pub fn partial_id(prefix: &[u8]) -> Option<Value> {
    let mut scanner = PrefixScanner { bytes: prefix, at: 0 };
    scanner.expect(b'{')?;
    loop {
        let key: String = serde_json::from_slice(scanner.string()?).ok()?;
        scanner.expect(b':')?;
        let value = scanner.value()?;
        if key == "id" {
            let id = serde_json::from_slice(value).ok()?;
            return matches!(id, Value::String(_) | Value::Number(_)).then_some(id);
        }
        scanner.expect(b',')?;
    }
}

/// Reads JSON tokens from bytes that may end anywhere. Its methods return `None` if the bytes end too early or are not
/// JSON.
struct PrefixScanner<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> PrefixScanner<'a> {
    /// Skips white space and returns the next byte.
    fn peek(&mut self) -> Option<u8> {
        while self.bytes.get(self.at)?.is_ascii_whitespace() {
            self.at += 1;
        }
        self.bytes.get(self.at).copied()
    }

    /// Skips white space and the byte `wanted`.
    fn expect(&mut self, wanted: u8) -> Option<()> {
        (self.peek()? == wanted).then(|| self.at += 1)
    }

    /// Returns a string with its quotes.
    fn string(&mut self) -> Option<&'a [u8]> {
        self.peek().filter(|byte| *byte == b'"')?;
        let start = self.at;
        self.at += 1;
        loop {
            match self.bytes.get(self.at)? {
                b'\\' => self.at += 2,
                b'"' => break,
                _ => self.at += 1,
            }
        }
        self.at += 1;
        self.bytes.get(start..self.at)
    }

    /// Returns a value of any kind. A number or a word is complete only if a `,`, `}` or `]` follows it.
    fn value(&mut self) -> Option<&'a [u8]> {
        let first = self.peek()?;
        let start = self.at;
        match first {
            b'"' => return self.string(),
            b'{' | b'[' => self.skip_nested()?,
            _ => {
                while !matches!(self.bytes.get(self.at)?, b',' | b'}' | b']') {
                    self.at += 1;
                }
            }
        }
        Some(self.bytes.get(start..self.at)?.trim_ascii())
    }

    /// Skips an object or array by counting brackets outside of strings.
    fn skip_nested(&mut self) -> Option<()> {
        let mut depth = 0_usize;
        loop {
            match self.bytes.get(self.at)? {
                b'"' => {
                    self.string()?;
                    continue;
                }
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth -= 1,
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return Some(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn id_is_found_only_if_it_is_complete() {
        let check = |prefix: &str, expect: Option<Value>| {
            assert_eq!(partial_id(prefix.as_bytes()), expect, "{prefix}");
        };
        check(r#"{"jsonrpc":"2.0","id":17,"method":"x","params":{"a":"#, Some(json!(17)));
        check(r#" { "id" : "a\"b" , "#, Some(json!("a\"b")));
        check(r#"{"params":{"id":1,"x":["]}",{}]},"id":2,"#, Some(json!(2)));
        check(r#"{"method":"a\\","id":-1.5}"#, Some(json!(-1.5)));
        check(r#"{"id":17"#, None);
        check(r#"{"id":"17"#, None);
        check(r#"{"id":"17\"#, None);
        check(r#"{"id":null,"id":3,"#, None);
        check(r#"{"id":{"a":1},"#, None);
        check(r#"{"params":{"id":1"#, None);
        check(r#"[{"id":1}"#, None);
        check("", None);
        check(r#"{"a":]]]]"#, None);
    }
}
