//! Which format a file has, told from its first lines, never from its name.

use serde_json::Value;

/// Lines at the beginning of a file that may tell its format; more than one because the first may be damaged.
const DETECT_LINES: usize = 5;
/// Nested brackets that a file may have; the JSON reader stops there to protect the stack.
pub(super) const MAX_DEPTH: usize = 128;

/// The formats of lines.
pub(super) enum Format {
    /// An own export.
    Export,
    /// A pi session.
    Pi,
}

/// The format that the first lines name; `None` where they name none, as in one document.
pub(super) fn by_lines(text: &str) -> Option<Format> {
    let lines = text.lines().filter(|line| !line.trim().is_empty()).take(DETECT_LINES);
    for line in lines {
        let Ok(Value::Object(object)) = serde_json::from_str::<Value>(line) else { continue };
        if object.contains_key("ollmExport") {
            return Some(Format::Export);
        }
        let is_session = object.get("type").and_then(Value::as_str) == Some("session");
        // Lines of our own log have a `seq`; they are no pi entries.
        if is_session
            && object.get("id").is_some_and(Value::is_string)
            && !object.contains_key("seq")
        {
            return Some(Format::Pi);
        }
    }
    None
}

/// Whether the brackets of what may be JSON are nested deeper than the JSON reader goes.
pub(super) fn too_deep(text: &str) -> bool {
    if !text.trim_start().starts_with(['{', '[']) {
        return false;
    }
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => {
                depth += 1;
                if depth >= MAX_DEPTH {
                    return true;
                }
            }
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}
