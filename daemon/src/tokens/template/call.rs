//! How a template writes the calls of an assistant message. Pure.

use ollm_protocol::content::ContextToolCall;
use serde::{Deserialize, Serialize};

use super::arguments::ArgumentForm;

/// How calls are written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CallForm {
    /// Before the name of the first call, where the message has no text.
    pub(super) open: String,
    /// The same behind a text; absent where a text with calls is written in a way that was not understood.
    pub(super) open_behind_text: Option<String>,
    /// Between a call's name and its arguments.
    pub(super) middle: String,
    /// Between a call's arguments and the next call's name; absent where only one call is understood.
    pub(super) between: Option<String>,
    pub(super) arguments: ArgumentForm,
}

impl CallForm {
    /// A message's text with its calls; `None` where that is not known.
    pub(super) fn write(&self, content: &str, calls: &[ContextToolCall]) -> Option<String> {
        let mut text = content.to_owned();
        let open = if content.is_empty() { &self.open } else { self.open_behind_text.as_ref()? };
        text.push_str(open);
        for (at, call) in calls.iter().enumerate() {
            if at > 0 {
                text.push_str(self.between.as_ref()?);
            }
            text.push_str(&call.function.name);
            text.push_str(&self.middle);
            text.push_str(&self.arguments.write(&call.function.arguments)?);
        }
        Some(text)
    }
}
