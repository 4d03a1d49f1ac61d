//! The parts of a context that is larger than a response, joined. Without I/O: both clients fetch the parts.

use ollm_protocol::method::{ContextBuild, ContextInspect};
use ollm_protocol::methods::context::{ContextGetBuildParams, ContextGetBuildResult};
use ollm_protocol::{ErrorKind, Method as _};

use crate::error::ClientError;

/// The parts of one context that were received.
pub(super) struct ContextParts {
    /// The params of the call for the next part.
    pub(super) params: ContextGetBuildParams,
    json: String,
}

impl ContextParts {
    /// Returns no parts yet, of the context that was too large for the response of `method`; `None` for other errors.
    pub(super) fn of(method: &str, error: &ClientError) -> Option<Self> {
        let ClientError::Rpc(failure) = error else { return None };
        let inspect = method == ContextInspect::NAME;
        if failure.kind != Some(ErrorKind::TooLarge) || !(inspect || method == ContextBuild::NAME) {
            return None;
        }
        let text = |name: &str| failure.fields.get(name)?.as_str();
        let (session_id, build_id) =
            (text("sessionId")?.parse().ok()?, text("buildId")?.to_owned());
        let params = ContextGetBuildParams { session_id, build_id, inspect, offset: 0 };
        Some(Self { params, json: String::new() })
    }

    /// Adds a part; returns the JSON of the whole result when it was the last one.
    pub(super) fn add(&mut self, part: &ContextGetBuildResult) -> Option<String> {
        self.json.push_str(&part.data);
        let next = part.next_offset.filter(|next| *next > self.params.offset);
        self.params.offset = next.unwrap_or(self.params.offset);
        next.is_none().then(|| std::mem::take(&mut self.json))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_a_context_that_is_too_large_is_read_in_parts() {
        let id = "01890000-0000-7000-8000-000000000000";
        let data = json!({ "kind": "tooLarge", "sessionId": id, "buildId": "b", "limit": 1 });
        let error = ClientError::of_turn(-32007, "too large".to_owned(), data);
        assert!(ContextParts::of("session.get", &error).is_none());
        let mut parts = ContextParts::of("context.inspect", &error).expect("can be read in parts");
        assert!(parts.params.inspect && parts.params.build_id == "b");
        let part = |data: &str, next_offset| ContextGetBuildResult {
            data: data.to_owned(),
            next_offset,
            size_bytes: 8,
        };
        assert_eq!(parts.add(&part("{\"a\"", Some(4))), None);
        assert_eq!(parts.params.offset, 4);
        assert_eq!(parts.add(&part(":1}", None)).as_deref(), Some("{\"a\":1}"));
        let other =
            ClientError::of_turn(-32007, "too large".to_owned(), json!({ "kind": "tooLarge" }));
        assert!(ContextParts::of("context.build", &other).is_none());
    }
}
