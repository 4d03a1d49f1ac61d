//! Decodes params from JSON, with errors that name the field.

use jsonrpsee::types::Params;
use ollm_protocol::{ErrorKind, InvalidId};
use serde::de::DeserializeOwned;

use super::error::{RpcError, shorten};

/// The longest path in a message, in bytes. Its keys come from the client and may be long.
const MAX_PATH_BYTES: usize = 200;

/// Reads the params of a call to `method`: an object; absent params count as an empty one.
///
/// **Errors**: `invalidParams` with serde's text and the path of the field, which is also in `data.field`; `invalidId`
/// for an invalid id.
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
    serde_json::from_str(text).map_err(|error| refusal(method, error_path::<P>(text), &error))
}

/// Returns the path of the first error in `text`; empty if the error is in no field. Params are read a second time for
/// it, because following the path slows every call down.
fn error_path<P: DeserializeOwned>(text: &str) -> String {
    let mut json = serde_json::Deserializer::from_str(text);
    let read: Result<P, _> = serde_path_to_error::deserialize(&mut json);
    let error = read.err().filter(|error| error.path().iter().len() > 0);
    error.map(|error| error.path().to_string()).unwrap_or_default()
}

fn refusal(method: &str, mut path: String, error: &serde_json::Error) -> RpcError {
    let full = error.to_string();
    let reason = full.rsplit_once(" at line ").map_or(full.as_str(), |(reason, _)| reason);
    // For an unknown field, the path ends at its object.
    if let Some(name) =
        reason.strip_prefix("unknown field `").and_then(|rest| rest.split('`').next())
        && !path.ends_with(name)
    {
        path = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    }
    shorten(&mut path, MAX_PATH_BYTES);
    if path.is_empty() {
        let message = format!("the params of {method} are invalid: {reason}");
        return RpcError::new(ErrorKind::InvalidParams, message);
    }
    let message = format!("the params of {method} are invalid at `{path}`: {reason}");
    let is_id = reason.ends_with(InvalidId::PROBLEM);
    let kind = if is_id { ErrorKind::InvalidId } else { ErrorKind::InvalidParams };
    RpcError::new(kind, message).with_field("field", path)
}

#[cfg(test)]
mod tests {
    use ollm_protocol::methods::daemon::{DaemonHelloParams, NoParams};
    use ollm_protocol::methods::session::{
        SessionCreateParams, SessionListParams, SessionRecordParams,
    };

    use super::*;

    fn check<P: DeserializeOwned>(params: Option<&str>, field: Option<&str>, text: &str) {
        let error = decode::<P>("a.b", &Params::new(params)).map(drop).expect_err("is refused");
        let is_id = text == InvalidId::PROBLEM;
        let expect = if is_id { ErrorKind::InvalidId } else { ErrorKind::InvalidParams };
        assert_eq!(error.kind, expect);
        assert!(error.message.contains(text), "{}", error.message);
        let found = error.fields.get("field").and_then(|field| field.as_str());
        assert_eq!(found, field, "{}", error.message);
    }

    #[test]
    fn errors_name_the_field() {
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
        let id = "00000000-0000-7000-8000-000000000000";
        let message =
            |parts: &str| format!(r#"{{"sessionId":"{id}","message":{{"role":"user",{parts}}}}}"#);
        let wrong = message(r#""content":1"#);
        check::<SessionRecordParams>(Some(&wrong), Some("message.content"), "invalid type");
        let wrong = message(r#""parts":[{"type":"text","text":"a"},{"type":"text","text":2}]"#);
        check::<SessionRecordParams>(Some(&wrong), Some("message.parts[1]"), "invalid type");
        let wrong = message(r#""content":"a","modle":"m""#);
        check::<SessionRecordParams>(Some(&wrong), Some("message.modle"), "unknown field");
    }

    #[test]
    fn deep_nesting_is_refused_with_a_short_path() {
        let nested =
            format!(r#"{{"metadata":{{"a":{}1{}}}}}"#, "[".repeat(10_000), "]".repeat(10_000));
        let error = decode::<SessionCreateParams>("a.b", &Params::new(Some(&nested)));
        let error = error.map(drop).expect_err("is refused");
        assert!(error.message.contains("recursion limit"), "{}", error.message);
        let field = error.fields["field"].as_str().expect("a path");
        assert!(field.starts_with("metadata.a[0]"), "{field}");
        assert!(field.len() <= MAX_PATH_BYTES + "…".len());
    }

    #[test]
    fn absent_params_are_an_empty_object() {
        for params in [None, Some("{}"), Some(" null ")] {
            assert!(decode::<NoParams>("a.b", &Params::new(params)).is_ok(), "{params:?}");
        }
    }
}
