//! Params from JSON, with errors that name the place.

use jsonrpsee::types::Params;
use ollm_protocol::{ErrorKind, InvalidId};
use serde::de::DeserializeOwned;

use super::error::{RpcError, shorten};

/// Levels of a path that are named; a deeper place is found from there, and a message stays readable.
const PATH_LEVELS: usize = 12;

/// The longest path that an answer names; the keys in it are the client's.
const MAX_PATH_BYTES: usize = 200;

/// Reads the params of a call to `method`: an object; absent counts as an empty one.
///
/// **Errors**: `invalidParams` with serde's text and the path of the field, which is in `data.field` too.
pub(crate) fn decode<P: DeserializeOwned>(
    method: &str,
    params: &Params<'_>,
) -> Result<P, RpcError> {
    let text = match params.as_str().map(str::trim) {
        None | Some("" | "null") => "{}",
        Some(text) if text.starts_with('{') => text,
        Some(_) => {
            let message = format!("{method} takes its params by name, in one JSON object");
            return Err(RpcError::new(ErrorKind::InvalidParams, message));
        }
    };
    serde_json::from_str(text).map_err(|error| {
        let full = error.to_string();
        let reason = full.rsplit_once(" at line ").map_or(full.as_str(), |(reason, _)| reason);
        let end = offset_of(text, error.line(), error.column());
        let mut path = path_at(text, end);
        if path.is_empty() && !reason.starts_with("missing field") {
            // A value that its own type refuses is reported when the object was read to its end: it is the last.
            path = path_at(text, end.saturating_sub(1));
        }
        shorten(&mut path, MAX_PATH_BYTES);
        if path.is_empty() {
            let message = format!("the params of {method} do not fit: {reason}");
            return RpcError::new(ErrorKind::InvalidParams, message);
        }
        let message = format!("the params of {method} do not fit at `{path}`: {reason}");
        // The one refusal that clients tell apart: what was given is no id at all.
        let is_id = reason.ends_with(InvalidId::PROBLEM);
        let kind = if is_id { ErrorKind::InvalidId } else { ErrorKind::InvalidParams };
        RpcError::new(kind, message).with_field("field", path)
    })
}

/// The place in bytes behind a line, counted from 1, and the bytes read of it.
fn offset_of(text: &str, line: usize, column: usize) -> usize {
    let before: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
    (before + column).min(text.len())
}

/// One level of nesting on the way to a place.
enum Level {
    Object { key: String, reading_key: bool },
    Array { index: usize },
}

/// Where in valid JSON the value lies that ends at or around `end`, for example `message.parts[0].text`.
fn path_at(text: &str, end: usize) -> String {
    let bytes = &text.as_bytes()[..end];
    let mut levels = Vec::new();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'{' => levels.push(Level::Object { key: String::new(), reading_key: true }),
            b'[' => levels.push(Level::Array { index: 0 }),
            b'}' | b']' => drop(levels.pop()),
            b',' => match levels.last_mut() {
                Some(Level::Object { reading_key, .. }) => *reading_key = true,
                Some(Level::Array { index }) => *index += 1,
                None => {}
            },
            b'"' => {
                let start = at;
                at += 1;
                while bytes.get(at).is_some_and(|byte| *byte != b'"') {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                if let Some(Level::Object { key, reading_key: reading_key @ true }) =
                    levels.last_mut()
                {
                    let name =
                        text.get(start..=at).and_then(|name| serde_json::from_str(name).ok());
                    *key = name.unwrap_or_default();
                    *reading_key = false;
                }
            }
            _ => {}
        }
        at += 1;
    }
    let mut path = String::new();
    for level in levels.into_iter().take(PATH_LEVELS) {
        match level {
            Level::Object { key, .. } => {
                if !path.is_empty() && !key.is_empty() {
                    path.push('.');
                }
                path.push_str(&key);
            }
            Level::Array { index } => path.push_str(&format!("[{index}]")),
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use ollm_protocol::methods::daemon::{DaemonHelloParams, NoParams};
    use ollm_protocol::methods::session::{
        SessionCreateParams, SessionListParams, SessionRecordParams,
    };

    use super::*;

    fn check<P: DeserializeOwned>(params: Option<&str>, field: Option<&str>, text: &str) {
        let error = decode::<P>("a.b", &Params::new(params)).err().expect("is refused");
        let is_id = text == InvalidId::PROBLEM;
        let expect = if is_id { ErrorKind::InvalidId } else { ErrorKind::InvalidParams };
        assert_eq!(error.kind, expect);
        assert!(error.message.contains(text), "{}", error.message);
        let found = error.fields.get("field").and_then(|field| field.as_str());
        assert_eq!(found, field, "{}", error.message);
    }

    #[test]
    fn an_error_names_the_field() {
        check::<SessionListParams>(Some(r#"{"limt":1}"#), Some("limt"), "unknown field `limt`");
        check::<SessionListParams>(Some(r#"{"limit":"ten","idPrefix":"a"}"#), Some("limit"), "u32");
        check::<SessionListParams>(
            Some("{\n \"idPrefix\":\"é\",\n \"limit\":-1}"),
            Some("limit"),
            "-1",
        );
        check::<SessionListParams>(Some("[25]"), None, "by name");
        check::<SessionListParams>(Some("25"), None, "by name");
        check::<DaemonHelloParams>(None, None, "missing field");
        check::<NoParams>(Some(r#"{"a":{"b":1}}"#), Some("a"), "unknown field");
        check::<SessionRecordParams>(
            Some(r#"{"sessionId":"../../etc/passwd"}"#),
            Some("sessionId"),
            InvalidId::PROBLEM,
        );
        let nested =
            format!(r#"{{"metadata":{{"a":{}1{}}}}}"#, "[".repeat(10_000), "]".repeat(10_000));
        let deepest = format!("metadata.a{}", "[0]".repeat(PATH_LEVELS - 2));
        check::<SessionCreateParams>(Some(&nested), Some(&deepest), "recursion limit");
    }

    #[test]
    fn absent_params_are_an_empty_object() {
        for params in [None, Some("{}"), Some(" null ")] {
            assert!(decode::<NoParams>("a.b", &Params::new(params)).is_ok(), "{params:?}");
        }
    }

    #[test]
    fn a_path_leads_to_the_value() {
        let text = r#"{"a":[{"b\"c":1},{"d":"x,}"}],"e":2}"#;
        let check = |before: &str, path: &str| {
            let end = text.find(before).expect("is there") + before.len();
            assert_eq!(path_at(text, end), path, "{before}");
        };
        check("1", "a[0].b\"c");
        check("x,}\"", "a[1].d");
        check("}]", "a");
        check(":2", "e");
        check(":2}", "");
    }
}
