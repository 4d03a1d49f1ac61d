//! Decodes params from JSON, with errors that name the field.

use jsonrpsee::types::Params;
use ollm_protocol::{ErrorKind, InvalidId};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::{RpcError, shorten};
use crate::nesting::{self, MAX_LEVELS};

/// The longest path in a message, in bytes. Its keys come from the client and may be long.
const MAX_PATH_BYTES: usize = 200;

/// Reads the params of a call to `method`: an object; absent params count as an empty one.
///
/// **Errors**: `invalidParams` with serde's text and the path of the field, which is also in `data.field`; `invalidId`
/// for an invalid id; `invalidParams` with `data.limit` for a value that is nested too deeply.
pub(crate) fn decode<P: DeserializeOwned + Serialize>(
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
    match serde_json::from_str::<P>(text) {
        Ok(params) => match nesting::check(&params) {
            Ok(()) => Ok(params),
            Err(too_deep) => Err(too_deep_refusal(method, too_deep.field)),
        },
        Err(_) if nesting::is_unparsable(text.as_bytes()) => {
            Err(too_deep_refusal(method, error_path::<P>(text)))
        }
        Err(error) => Err(refusal(method, error_path::<P>(text), &error)),
    }
}

/// Returns the error for a value that is nested too deeply.
fn too_deep_refusal(method: &str, mut path: String) -> RpcError {
    shorten(&mut path, MAX_PATH_BYTES);
    let message = format!(
        "the params of {method} are invalid at `{path}`: nested deeper than {MAX_LEVELS} levels"
    );
    RpcError::new(ErrorKind::InvalidParams, message)
        .with_field("field", path)
        .with_field("limit", MAX_LEVELS)
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
        SessionCreateParams, SessionListParams, SessionRecordCustomParams, SessionRecordParams,
    };

    use super::*;

    fn check<P: DeserializeOwned + Serialize>(
        params: Option<&str>,
        field: Option<&str>,
        text: &str,
    ) {
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
    fn value_at_the_limit_is_accepted_and_a_deeper_one_is_refused_with_its_field() {
        let id = "00000000-0000-7000-8000-000000000000";
        let nested = |levels: usize| format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
        let check = |levels: usize, limit: Option<u64>| {
            let data = nested(levels);
            let text = format!(r#"{{"sessionId":"{id}","name":"n","data":{data}}}"#);
            let found = decode::<SessionRecordCustomParams>("a.b", &Params::new(Some(&text)));
            let refused = found.as_ref().err().map(|error| &error.fields);
            assert_eq!(refused.and_then(|fields| fields.get("limit")?.as_u64()), limit, "{levels}");
            let field = refused.and_then(|fields| fields.get("field")?.as_str());
            assert_eq!(field.is_some_and(|field| field.starts_with("data")), limit.is_some());
        };
        check(1, None);
        check(96, None);
        for levels in [97, 122, 125, 126, 127, 128, 10_000] {
            check(levels, Some(96));
        }
    }

    #[test]
    fn deep_nesting_is_refused_with_a_short_path() {
        let nested =
            format!(r#"{{"metadata":{{"a":{}1{}}}}}"#, "[".repeat(10_000), "]".repeat(10_000));
        let error = decode::<SessionCreateParams>("a.b", &Params::new(Some(&nested)));
        let error = error.map(drop).expect_err("is refused");
        assert!(error.message.contains("deeper than 96 levels"), "{}", error.message);
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
