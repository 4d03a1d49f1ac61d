//! A chat template, reduced to what counting needs: the text that it puts around and between messages.
//!
//! A template is a list of seams, one for each pair of neighboring message kinds. Each seam is divided at a position
//! where the tokens of both sides can be counted separately. `learn` derives a template from rendered probes.
//! Must not know how prompts are rendered or where templates are stored.
//!
//! **Invariant**: the concatenated chunks of a conversation are the prompt that the server renders.

pub(super) mod calls;
pub(super) mod learn;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use ollm_protocol::content::{ContextMessage, Role};
use serde::{Deserialize, Serialize};

use self::calls::{CallForm, JsonStyle};
use super::tokenizer::Tokenizer;

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

/// What is dropped of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Trim {
    /// Nothing.
    #[default]
    None,
    /// White space at both ends.
    Both,
    /// White space at the end.
    End,
    /// Line breaks at the beginning.
    FirstBreaks,
}

impl Trim {
    /// What a template may do, the usual first.
    pub(super) const ALL: [Self; 4] = [Self::None, Self::Both, Self::End, Self::FirstBreaks];

    /// What is left of a text.
    pub(super) fn apply(self, text: &str) -> &str {
        match self {
            Self::None => text,
            Self::Both => text.trim(),
            Self::End => text.trim_end(),
            Self::FirstBreaks => text.trim_start_matches('\n'),
        }
    }
}

/// What is dropped of each role's texts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Trims {
    pub(super) system: Trim,
    pub(super) user: Trim,
    pub(super) assistant: Trim,
    pub(super) tool: Trim,
}

impl Trims {
    /// What a template may do to conversations without tools.
    pub(super) fn plain() -> impl Iterator<Item = Self> {
        let each = |make: fn(Self, Trim) -> Self| {
            move |trims: Self| Trim::ALL.into_iter().map(move |trim| make(trims, trim))
        };
        Trim::ALL
            .into_iter()
            .map(|user| Self { user, ..Self::default() })
            .flat_map(each(|trims, assistant| Self { assistant, ..trims }))
            .flat_map(each(|trims, system| Self { system, ..trims }))
    }

    pub(super) const fn of(self, role: Role) -> Trim {
        match role {
            Role::System => self.system,
            Role::User => self.user,
            Role::Assistant => self.assistant,
            Role::Tool => self.tool,
        }
    }
}

/// Candidates at each end of a long text; what belongs to neighbors stands at its ends.
const NEAR_ENDS: usize = 96;
/// How messages end: with what tokenizers like to join with what follows.
const ENDS: [&str; 9] = ["a", "a.", "a\n", "a. \n\n", "12", "字", "a  ", "{\"a\":1}", "\t"];
/// How messages begin.
const BEGINNINGS: [&str; 9] = ["a", " a", "\na", ".", "12", "\n\n", "'s", "字", "  {"];

/// The text between two messages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::tokens) struct Seam {
    /// Its part that is counted with the message before it.
    pub(in crate::tokens) left: String,
    /// Its part that is counted with the message after it.
    pub(in crate::tokens) right: String,
    /// Tokens that the whole has more than the two sides.
    pub(in crate::tokens) extra: i32,
}

impl Seam {
    /// Divides a text between two messages; `None` where the sides never add up.
    pub(super) fn between(tokenizer: &Tokenizer, text: &str) -> Option<Self> {
        let places: Vec<usize> = (0..=text.len()).filter(|at| text.is_char_boundary(*at)).collect();
        let far = places.len().saturating_sub(NEAR_ENDS);
        let tried = places.iter().enumerate().filter(|(at, _)| *at < NEAR_ENDS || *at >= far);
        let mut second = None;
        for (_, at) in tried {
            let (left, right) = text.split_at(*at);
            match difference(tokenizer, left, right) {
                Some(0) => return Some(Self::of(left, right, 0)),
                Some(extra) => second = second.or(Some(Self::of(left, right, extra))),
                None => {}
            }
        }
        second
    }

    /// The text before the first message, which is counted with it.
    pub(super) fn start(tokenizer: &Tokenizer, text: &str) -> Option<Self> {
        let around = tokenizer.ids_with("", true);
        match around.as_slice() {
            [] => Some(Self::of("", text, 0)),
            // The engine puts it there unless the text brings it along.
            [bos] if tokenizer.adds_bos() => {
                let has = tokenizer.ids(text).first() == Some(bos);
                Some(Self::of("", text, i32::from(!has)))
            }
            _ => None,
        }
    }

    /// The text after the last message, which is counted with it.
    pub(super) fn end(text: &str) -> Self {
        Self::of(text, "", 0)
    }

    fn of(left: &str, right: &str, extra: i32) -> Self {
        Self { left: left.to_owned(), right: right.to_owned(), extra }
    }

    /// The whole text.
    pub(super) fn text(&self) -> String {
        format!("{}{}", self.left, self.right)
    }
}

/// What the whole has more than its sides, where that is the same for all neighbors.
fn difference(tokenizer: &Tokenizer, left: &str, right: &str) -> Option<i32> {
    let count = |text: &str| i64::from(tokenizer.count(text));
    let mut common = None;
    for end in ENDS {
        let before = format!("{end}{left}");
        let n_before = count(&before);
        for beginning in BEGINNINGS {
            let after = format!("{right}{beginning}");
            let extra = count(&format!("{before}{after}")) - n_before - count(&after);
            if *common.get_or_insert(extra) != extra {
                return None;
            }
        }
    }
    i32::try_from(common?).ok()
}
