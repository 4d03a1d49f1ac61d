//! What to type next after an error, in words of a chat: a shell's command would leave it.

use ollm_protocol::ErrorKind;

use super::super::CommandError;
use crate::error::ClientError;

/// What is left of a turn that failed, and how it is tried again; `None` where that was said already.
pub(super) fn kept(error: &CommandError, was_said: bool) -> Option<&'static str> {
    let partial = match error {
        CommandError::Client(ClientError::Rpc(failure)) => failure.fields.contains_key("seq"),
        _ => false,
    };
    match (was_said, partial) {
        _ if hint(error).is_some_and(|hint| hint.contains("/retry")) => None,
        (true, true) => Some("your message and what came of the answer are kept: /retry asks anew"),
        (true, false) => Some("your message is kept: /retry asks for an answer to it"),
        (false, true) => Some("what came of the answer is kept: /retry asks anew"),
        (false, false) => None,
    }
}

/// What helps within a chat; `None` where that is what helps elsewhere too.
pub(super) fn hint(error: &CommandError) -> Option<String> {
    let failure = match error {
        CommandError::Client(ClientError::Rpc(failure)) => failure,
        CommandError::Client(ClientError::Closed { .. } | ClientError::Broken { .. }) => {
            return Some("/retry, which starts ollmd where it does not run".to_owned());
        }
        _ => return None,
    };
    let reason = failure.fields.get("reason").and_then(|reason| reason.as_str());
    match (failure.kind?, reason) {
        (ErrorKind::ModelFailed, Some("onlyThinking")) => {
            Some("/think off, and then /retry".to_owned())
        }
        (ErrorKind::LoopDetected, _) => {
            let reset = failure.hint.as_deref().map(|reset| format!(", or {reset} in a shell"));
            Some(format!("say something new, which ends the loop{}", reset.unwrap_or_default()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_chat_is_not_left_for_what_can_be_typed_in_it() {
        let check = |data: serde_json::Value, expect: Option<&str>| {
            let error = ClientError::of_turn(1, "m".to_owned(), data);
            assert_eq!(hint(&error.into()).as_deref(), expect);
        };
        let spent = json!({ "kind": "modelFailed", "reason": "onlyThinking", "hint": "ollmctl x" });
        check(spent, Some("/think off, and then /retry"));
        let looped = json!({ "kind": "loopDetected", "hint": "ollmctl loop reset x" });
        check(
            looped,
            Some("say something new, which ends the loop, or ollmctl loop reset x in a shell"),
        );
        check(json!({ "kind": "modelFailed", "reason": "brokeOff" }), None);
    }

    #[test]
    fn what_is_kept_is_said_once() {
        let check = |data: serde_json::Value, was_said, expect: Option<&str>| {
            let error = ClientError::of_turn(1, "m".to_owned(), data).into();
            let kept = kept(&error, was_said);
            assert_eq!(kept.map(|text| text.split(':').next().unwrap()), expect);
        };
        let broken = json!({ "kind": "modelFailed", "reason": "brokeOff", "seq": 4 });
        check(broken.clone(), true, Some("your message and what came of the answer are kept"));
        check(broken, false, Some("what came of the answer is kept"));
        check(json!({ "kind": "modelUnavailable" }), true, Some("your message is kept"));
        check(json!({ "kind": "modelUnavailable" }), false, None);
        check(json!({ "kind": "modelFailed", "reason": "onlyThinking", "seq": 4 }), true, None);
    }
}
