//! JSON for programs, which a terminal may show too.

use ollm_protocol::sanitize;
use std::fmt::Write as _;

use serde::Serialize;

/// A value as JSON: on one line for a pipe, indented for a terminal.
pub(crate) fn value(value: &impl Serialize, pretty: bool) -> Result<String, serde_json::Error> {
    let text =
        if pretty { serde_json::to_string_pretty(value)? } else { serde_json::to_string(value)? };
    Ok(escaped(&text))
}

/// The same JSON without characters that a terminal would obey: they can only stand inside strings, where an
/// escape means the same.
pub(crate) fn escaped(json: &str) -> String {
    if !json.chars().any(sanitize::is_unsafe) {
        return json.to_owned();
    }
    let mut out = String::with_capacity(json.len() + 16);
    for char in json.chars() {
        // JSON's own white space is not unsafe inside a document; the rest lies in the basic plane.
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
    fn what_a_terminal_obeys_is_escaped_and_means_the_same() {
        let original = serde_json::json!({"t": "a\u{9b}31m\u{202e}b\u{7f}\u{1b}[0m 日本"});
        for pretty in [false, true] {
            let text = value(&original, pretty).unwrap();
            assert!(!text.chars().any(sanitize::is_unsafe), "{text}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), original);
        }
    }
}
