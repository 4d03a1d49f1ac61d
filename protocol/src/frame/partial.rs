//! The id of a request of which only the beginning is known.

use serde_json::Value;

/// The `id` of the JSON-RPC request that begins so, if it stands whole in these bytes.
///
/// An error must name the call it answers: a client that gets one without an id cannot tell which of its calls
/// failed, and some give up the connection.
#[must_use]
pub fn partial_id(prefix: &[u8]) -> Option<Value> {
    let mut scan = Scan { bytes: prefix, at: 0 };
    scan.expect(b'{')?;
    loop {
        let key: String = serde_json::from_slice(scan.string()?).ok()?;
        scan.expect(b':')?;
        let value = scan.value()?;
        if key == "id" {
            let id = serde_json::from_slice(value).ok()?;
            return matches!(id, Value::String(_) | Value::Number(_)).then_some(id);
        }
        scan.expect(b',')?;
    }
}

/// Reads JSON tokens from bytes that may end anywhere; `None` means that they end too early or are not JSON.
struct Scan<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Scan<'a> {
    fn peek(&mut self) -> Option<u8> {
        while self.bytes.get(self.at)?.is_ascii_whitespace() {
            self.at += 1;
        }
        self.bytes.get(self.at).copied()
    }

    fn expect(&mut self, wanted: u8) -> Option<()> {
        (self.peek()? == wanted).then(|| self.at += 1)
    }

    /// A string with its quotes.
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

    /// A value of any kind, which must be followed by something that shows that it is complete.
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

    /// Passes an object or array by counting brackets outside of strings.
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
    fn finds_the_id_wherever_it_stands_whole() {
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
