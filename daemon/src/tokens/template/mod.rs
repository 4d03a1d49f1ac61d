//! What a chat template puts around messages, so that a conversation is counted without asking the server.
//!
//! A template is known by its seams: the text between two neighbors, by who they are. It is learned from rendered
//! probes (`learn`), and each seam is divided where counting its two sides apart changes nothing (`seam`).
//!
//! Must not know how prompts are rendered or where templates are kept. **Invariant**: the texts of the chunks of a
//! conversation, one after the other, are the prompt that the server renders.

mod arguments;
mod call;
mod json;
mod learn;
mod seam;
#[cfg(test)]
mod tests;
mod trim;

use std::borrow::Cow;

use ollm_protocol::content::{ContextMessage, Role};
use serde::{Deserialize, Serialize};

use self::call::CallForm;
use self::json::JsonStyle;
pub(super) use self::learn::whole;
pub(crate) use self::learn::{learn, probes};
use self::seam::Seam;
use self::trim::Trims;

/// One side of a seam.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Place {
    /// Before the first message.
    Start,
    System,
    User,
    Assistant,
    /// An assistant message that calls tools.
    Calls,
    Tool,
    /// After the last message, where the model goes on.
    End,
}

impl Place {
    /// Where a message stands.
    pub(super) const fn of(message: &ContextMessage) -> Self {
        match message.role {
            Role::System => Self::System,
            Role::User => Self::User,
            Role::Assistant if message.tool_calls.is_empty() => Self::Assistant,
            Role::Assistant => Self::Calls,
            Role::Tool => Self::Tool,
        }
    }

    /// Who mostly stands before and after it.
    pub(super) const fn neighbors(self) -> (Self, Self) {
        match self {
            Self::Start | Self::System => (Self::Start, Self::User),
            Self::User => (Self::Assistant, Self::Assistant),
            Self::Assistant | Self::End => (Self::User, Self::User),
            Self::Calls => (Self::User, Self::Tool),
            Self::Tool => (Self::Calls, Self::Assistant),
        }
    }
}

/// A piece of a prompt that is counted by itself.
pub(super) struct Chunk {
    /// Its text.
    pub(super) text: String,
    /// What counting it by itself misses.
    pub(super) extra: i32,
}

/// How messages become a prompt. Its serialized form is that of `vocab/models.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Template {
    seams: Vec<(Place, Place, Seam)>,
    /// How calls are written; absent where that was not understood.
    calls: Option<CallForm>,
    /// How results of tools are written where that is as JSON, without their quotes; absent: as they are.
    results: Option<JsonStyle>,
    /// Which white space at the ends of texts is dropped.
    trims: Trims,
}

impl Template {
    pub(super) fn seam(&self, before: Place, after: Place) -> Option<&Seam> {
        // A message that begins with calls is an assistant's message to what stands before it.
        let after = if after == Place::Calls { Place::Assistant } else { after };
        self.seams.iter().find(|(a, b, _)| (*a, *b) == (before, after)).map(|(.., seam)| seam)
    }

    /// A message with the sides of its seams; `None` where the template of such a message is not known.
    pub(super) fn chunk(
        &self,
        message: &ContextMessage,
        before: Place,
        after: Place,
    ) -> Option<Chunk> {
        let place = Place::of(message);
        let (first, last) = (self.seam(before, place)?, self.seam(place, after)?);
        if !message.images.is_empty() {
            return None;
        }
        let mut text = first.right.clone();
        text.push_str(&self.body(message)?);
        text.push_str(&last.left);
        Some(Chunk { text, extra: first.extra })
    }

    fn body<'m>(&self, message: &'m ContextMessage) -> Option<Cow<'m, str>> {
        let content = self.trims.of(message.role).apply(&message.content);
        if let (Role::Tool, Some(style)) = (message.role, self.results) {
            return Some(style.unquoted(content)?.into());
        }
        if message.tool_calls.is_empty() {
            return Some(content.into());
        }
        Some(self.calls.as_ref()?.write(content, &message.tool_calls)?.into())
    }

    /// Whether every message of a conversation is understood.
    pub(super) fn covers(&self, messages: &[ContextMessage]) -> bool {
        self.chunks(messages).is_some()
    }

    /// The prompt in pieces.
    pub(super) fn chunks(&self, messages: &[ContextMessage]) -> Option<Vec<Chunk>> {
        let place = |at: usize| messages.get(at).map_or(Place::End, Place::of);
        let mut before = Place::Start;
        let chunk = |(at, message): (usize, &ContextMessage)| {
            let chunk = self.chunk(message, before, place(at + 1));
            before = Place::of(message);
            chunk
        };
        let chunks: Option<Vec<Chunk>> = messages.iter().enumerate().map(chunk).collect();
        chunks.filter(|chunks| !chunks.is_empty())
    }
}
