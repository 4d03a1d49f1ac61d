//! JSON output, which is also safe to show on a terminal.

use std::fmt::Write as _;

use ollm_protocol::sanitize;
use serde::Serialize;

/// Returns a value as JSON: on one line, or indented for a terminal.
pub(crate) fn value(value: &impl Serialize, pretty: bool) -> Result<String, serde_json::Error> {
    let text =
        if pretty { serde_json::to_string_pretty(value)? } else { serde_json::to_string(value)? };
    Ok(escaped(&text))
}

/// Escapes the characters that a terminal would obey. In JSON they occur only in strings, in which the escape means
/// the same.
pub(crate) fn escaped(json: &str) -> String {
    if !json.chars().any(sanitize::is_unsafe) {
        return json.to_owned();
    }
    let mut out = String::with_capacity(json.len() + 16);
    for char in json.chars() {
        // A carriage return is white space between values. All other unsafe characters have four hexadecimal digits.
        if sanitize::is_unsafe(char) && char != '\r' {
            let _infallible = write!(out, "\\u{:04x}", u32::from(char));
        } else {
            out.push(char);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_characters_are_escaped_without_changing_the_value() {
        let original = serde_json::json!({"t": "a\u{9b}31m\u{202e}b\u{7f}\u{1b}[0m 日本"});
        for pretty in [false, true] {
            let text = value(&original, pretty).unwrap();
            assert!(!text.chars().any(sanitize::is_unsafe), "{text}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), original);
        }
    }
}
