//! What to type next after an error, in words of a chat: a shell's command would leave it.

use ollm_protocol::ErrorKind;

use super::super::CommandError;
use crate::error::ClientError;

/// What helps within a chat; `None` where that is what helps elsewhere too.
pub(super) fn hint(error: &CommandError) -> Option<String> {
    let CommandError::Client(ClientError::Rpc(failure)) = error else { return None };
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
}
