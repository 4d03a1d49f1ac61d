//! `ollmctl call`: any method by name.

use std::io::Read as _;

use ollm_protocol::{Class, ErrorKind, METHODS};
use serde_json::Value;

use super::{CommandError, Cx};
use crate::cli::{CallArgs, closest};
use crate::error::ClientError;

pub(super) fn run(args: &CallArgs, cx: &mut Cx<'_>) -> Result<(), CommandError> {
    let known = METHODS.iter().find(|method| method.name == args.method);
    if known.is_some_and(|method| method.class == Class::Stream) {
        return Err(CommandError::usage(
            format!("{} is a subscription", args.method),
            "ollmctl events",
        ));
    }
    let params = params(args.params.as_deref())?;
    // A name that is not known here is sent all the same: the daemon may be newer.
    match cx.client()?.call_raw(&args.method, &params) {
        Ok(result) => cx.print_raw_json(&result),
        Err(ClientError::Rpc(failure)) if failure.kind == Some(ErrorKind::MethodNotFound) => {
            let near = closest(&args.method);
            let mut message = format!("ollmd has no method {:?}", args.method);
            if near.len() > 1 {
                message.push_str(&format!("; near it are {}", near.join(", ")));
            }
            let first = near.first().copied().unwrap_or("rpc.discover");
            Err(CommandError::usage(message, &format!("ollmctl call {first}")))
        }
        Err(error) => Err(error.into()),
    }
}

fn params(given: Option<&str>) -> Result<Value, CommandError> {
    let mut piped = String::new();
    let text =
        match given {
            None => return Ok(Value::Object(serde_json::Map::new())),
            Some("-") => {
                std::io::stdin().read_to_string(&mut piped).map_err(|source| {
                    CommandError::File { action: "read", path: "-".into(), source }
                })?;
                piped.as_str()
            }
            Some(text) => text,
        };
    let value: Value =
        serde_json::from_str(text).map_err(|source| CommandError::BadJson { source })?;
    if !value.is_object() && !value.is_array() {
        return Err(CommandError::usage(
            "the parameters must be a JSON object",
            "ollmctl call session.list '{\"limit\": 3}'",
        ));
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_an_object() {
        assert_eq!(params(None).unwrap(), serde_json::json!({}));
        assert_eq!(params(Some("{\"a\": 1}")).unwrap(), serde_json::json!({"a": 1}));
        assert!(matches!(params(Some("{")), Err(CommandError::BadJson { .. })));
        assert!(matches!(params(Some("3")), Err(CommandError::Usage { .. })));
    }
}
