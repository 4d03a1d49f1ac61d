//! What stands before a conversation, as an epoch froze it: whether it still holds, and what has to be told since.

use ollm_protocol::content::EpochBasis;
use serde_json::Value;

use super::BuildInput;

/// Why an epoch is opened where there was none.
pub(super) const START: &str = "start";

/// What an epoch that is opened now is opened with.
pub(super) fn of(input: &BuildInput<'_>, additions: String) -> EpochBasis {
    EpochBasis {
        system: digest(input.system_prompt.unwrap_or_default()),
        mode: digest(input.mode_text.unwrap_or_default()),
        tools: if input.tools.is_empty() {
            String::new()
        } else {
            digest(&Value::from(input.tools.to_vec()).to_string())
        },
        model: input.model.unwrap_or_default().to_owned(),
        entries: input.entries.to_vec(),
        additions,
    }
}

/// Why the epoch in force no longer holds; `None` while it does.
///
/// An entry that is new or has changed is told behind the conversation and changes nothing here; one that is gone
/// cannot be untold. Epochs of older versions hold whatever stands before them.
pub(super) fn change(input: &BuildInput<'_>) -> Option<&'static str> {
    let Some((_, epoch)) = input.epoch else { return (!input.path.is_empty()).then_some(START) };
    let then = epoch.basis.as_ref()?;
    let now = of(input, String::new());
    let is_gone = |(key, _): &(String, String)| !now.entries.iter().any(|(other, _)| other == key);
    let causes = [
        (then.system != now.system, "systemPrompt"),
        (then.mode != now.mode, "mode"),
        (then.tools != now.tools, "tools"),
        (then.model != now.model, "model"),
        (input.told_entries.iter().any(is_gone), "entries"),
    ];
    causes.into_iter().find(|(differs, _)| *differs).map(|(_, cause)| cause)
}

/// Enough of a text's hash to tell it from another, empty for an empty text.
pub(crate) fn digest(text: &str) -> String {
    if text.is_empty() {
        return String::new();
    }
    blake3::hash(text.as_bytes()).to_hex()[..16].to_owned()
}
