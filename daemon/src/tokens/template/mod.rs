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

/// The rules by which messages become a prompt. Its serialized form is part of `vocab/models.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Template {
    seams: Vec<(Neighbor, Neighbor, Seam)>,
    /// The form of tool calls; `None` if it was not understood.
    calls: Option<CallForm>,
    /// The style of tool results that are written as JSON strings without quotes; `None` if they are written verbatim.
    results: Option<JsonStyle>,
    /// The white space that is trimmed from texts.
    trims: RoleTrims,
    /// Whether system messages are left out, as by Ollama's template of SmolLM2 for prompts with tools.
    #[serde(default)]
    is_system_dropped: bool,
}

/// A message kind, or an end of the conversation, on one side of a seam.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Neighbor {
    /// The start of the prompt.
    Start,
    System,
    User,
    Assistant,
    /// An assistant message with tool calls.
    Calls,
    Tool,
    /// The end of the prompt, where the model's answer begins.
    End,
}

/// A piece of a prompt that is counted separately.
pub(super) struct PromptChunk {
    pub(super) text: String,
    /// Tokens to add to the count of the text.
    pub(super) extra: i32,
}

impl Neighbor {
    /// Returns the kind of a message; [`Template::kind`] is the kind as which a template writes it.
    pub(super) const fn of(message: &ContextMessage) -> Self {
        match message.role {
            Role::System => Self::System,
            Role::User => Self::User,
            Role::Assistant if message.tool_calls.is_empty() => Self::Assistant,
            Role::Assistant => Self::Calls,
            Role::Tool => Self::Tool,
        }
    }

    /// Returns the kinds that usually precede and follow this one.
    pub(super) const fn usual_neighbors(self) -> (Self, Self) {
        match self {
            Self::Start | Self::System => (Self::Start, Self::User),
            Self::User => (Self::Assistant, Self::Assistant),
            Self::Assistant | Self::End => (Self::User, Self::User),
            Self::Calls => (Self::User, Self::Tool),
            Self::Tool => (Self::Calls, Self::Assistant),
        }
    }
}

impl Template {
    /// Returns the kind as which a message is written.
    pub(super) fn kind(&self, message: &ContextMessage) -> Neighbor {
        let drops_calls = |form: &CallForm| form.is_dropped_behind_text;
        match Neighbor::of(message) {
            Neighbor::Calls
                if !message.content.is_empty() && self.calls.as_ref().is_some_and(drops_calls) =>
            {
                Neighbor::Assistant
            }
            kind => kind,
        }
    }

    /// Returns the seam between two message kinds, if it is known.
    pub(super) fn seam(&self, before: Neighbor, after: Neighbor) -> Option<&Seam> {
        // Before its calls, a message with calls is written like any assistant message.
        let after = if after == Neighbor::Calls { Neighbor::Assistant } else { after };
        self.seams.iter().find(|(a, b, _)| (*a, *b) == (before, after)).map(|(.., seam)| seam)
    }

    /// Returns whether the template writes a text around messages.
    pub(super) fn writes(&self, text: &str) -> bool {
        self.seams.iter().any(|(.., seam)| seam.left.contains(text) || seam.right.contains(text))
    }

    /// Returns a message with its sides of the two seams, or `None` if the template does not cover it.
    pub(super) fn chunk(
        &self,
        message: &ContextMessage,
        before: Neighbor,
        after: Neighbor,
    ) -> Option<PromptChunk> {
        let kind = self.kind(message);
        let (first, last) = (self.seam(before, kind)?, self.seam(kind, after)?);
        if !message.images.is_empty() {
            return None;
        }
        let mut text = first.right.clone();
        text.push_str(&self.body(message)?);
        text.push_str(&last.left);
        Some(PromptChunk { text, extra: first.extra })
    }

    /// Returns the whole prompt in chunks, or `None` if the template does not cover every message.
    pub(super) fn chunks(&self, messages: &[ContextMessage]) -> Option<Vec<PromptChunk>> {
        let kind_at = |at: usize| messages.get(at).map_or(Neighbor::End, |next| self.kind(next));
        let mut before = Neighbor::Start;
        let chunk = |(at, message): (usize, &ContextMessage)| {
            let chunk = self.chunk(message, before, kind_at(at + 1));
            before = self.kind(message);
            chunk
        };
        let chunks: Option<Vec<PromptChunk>> = messages.iter().enumerate().map(chunk).collect();
        chunks.filter(|chunks| !chunks.is_empty())
    }

    /// Returns the text of a message as the template writes it.
    fn body<'m>(&self, message: &'m ContextMessage) -> Option<Cow<'m, str>> {
        if message.role == Role::System && self.is_system_dropped {
            return Some(Cow::Borrowed(""));
        }
        let content = self.trims.of(message.role).apply(&message.content);
        if let (Role::Tool, Some(style)) = (message.role, self.results) {
            return Some(style.unquoted(content)?.into());
        }
        if self.kind(message) != Neighbor::Calls {
            return Some(content.into());
        }
        Some(self.calls.as_ref()?.write(content, &message.tool_calls)?.into())
    }
}

/// The white space that a template trims from the ends of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Trim {
    start: TrimmedChars,
    end: TrimmedChars,
}

impl Trim {
    /// Returns every kind of trimming, the least first.
    fn all() -> impl Iterator<Item = Self> {
        let sets = TrimmedChars::ALL.into_iter();
        sets.flat_map(|start| TrimmedChars::ALL.into_iter().map(move |end| Self { start, end }))
    }

    fn apply(self, text: &str) -> &str {
        let text = text.trim_start_matches(|char| self.start.contains(char));
        text.trim_end_matches(|char| self.end.contains(char))
    }
}

/// The characters that are trimmed from one end of a text. Each set contains the one before it.
///
/// **Source**: `strings.TrimSpace` and `strings.TrimLeft(text, "\n")` in Ollama's renderers, `isspace` in llama.cpp's
/// template engine, and `" \t\n\r"` in the one that it had before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum TrimmedChars {
    #[default]
    None,
    /// Line feeds.
    LineFeeds,
    /// Spaces, tabs, line feeds and carriage returns.
    Blanks,
    /// The same, vertical tabs and form feeds.
    Ascii,
    /// All white space of Unicode.
    Unicode,
}

impl TrimmedChars {
    const ALL: [Self; 5] = [Self::None, Self::LineFeeds, Self::Blanks, Self::Ascii, Self::Unicode];

    fn contains(self, char: char) -> bool {
        match self {
            Self::None => false,
            Self::LineFeeds => char == '\n',
            Self::Blanks => matches!(char, ' ' | '\t' | '\n' | '\r'),
            Self::Ascii => matches!(char, ' ' | '\t'..='\r'),
            Self::Unicode => char.is_whitespace(),
        }
    }
}

/// The trimming of each role's texts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct RoleTrims {
    system: Trim,
    user: Trim,
    assistant: Trim,
    tool: Trim,
}

impl RoleTrims {
    const fn set(&mut self, role: Role, trim: Trim) {
        match role {
            Role::System => self.system = trim,
            Role::User => self.user = trim,
            Role::Assistant => self.assistant = trim,
            Role::Tool => self.tool = trim,
        }
    }

    const fn of(self, role: Role) -> Trim {
        match role {
            Role::System => self.system,
            Role::User => self.user,
            Role::Assistant => self.assistant,
            Role::Tool => self.tool,
        }
    }
}

/// The text between two messages, divided into the parts that are counted with each of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Seam {
    /// The part that is counted with the message before it.
    pub(super) left: String,
    /// The part that is counted with the message after it.
    pub(super) right: String,
    /// The difference between the tokens of the whole and of the two sides.
    pub(super) extra: i32,
}

/// Number of positions at each end of a long seam where a division is tried. The parts that belong to the neighbors
/// are at the ends.
const TRIED_AT_ENDS: usize = 96;
/// Ends of messages that tokenizers tend to merge with the following text.
const MESSAGE_ENDS: [&str; 9] = ["a", "a.", "a\n", "a. \n\n", "12", "字", "a  ", "{\"a\":1}", "\t"];
/// Beginnings of messages that tokenizers tend to merge with the preceding text.
const MESSAGE_STARTS: [&str; 9] = ["a", " a", "\na", ".", "12", "\n\n", "'s", "字", "  {"];

impl Seam {
    /// Divides the text between two messages; `None` if the sides cannot be counted separately at any position.
    fn between(tokenizer: &Tokenizer, text: &str) -> Option<Self> {
        let positions: Vec<usize> =
            (0..=text.len()).filter(|at| text.is_char_boundary(*at)).collect();
        let far = positions.len().saturating_sub(TRIED_AT_ENDS);
        let tried =
            positions.iter().enumerate().filter(|(at, _)| *at < TRIED_AT_ENDS || *at >= far);
        let mut second_best = None;
        for (_, at) in tried {
            let (left, right) = text.split_at(*at);
            match extra_tokens(tokenizer, left, right) {
                Some(0) => return Some(Self::new(left, right, 0)),
                Some(extra) => second_best = second_best.or(Some(Self::new(left, right, extra))),
                None => {}
            }
        }
        second_best
    }

    /// Creates the seam before the first message; `None` if the engine adds more than a BOS token.
    fn start(tokenizer: &Tokenizer, text: &str) -> Option<Self> {
        match tokenizer.ids_with("", true).as_slice() {
            [] => Some(Self::new("", text, 0)),
            // The engine adds BOS, which may take the place of the text of BOS.
            [_] if tokenizer.adds_bos() => {
                let n_added = tokenizer.n_added(text, tokenizer.ids(text).first());
                Some(Self::new("", text, i32::try_from(n_added).ok()?))
            }
            _ => None,
        }
    }

    fn new(left: &str, right: &str, extra: i32) -> Self {
        Self { left: left.to_owned(), right: right.to_owned(), extra }
    }

    fn text(&self) -> String {
        format!("{}{}", self.left, self.right)
    }
}

/// Returns by how many tokens the whole exceeds its two sides, or `None` if that depends on the neighbors.
fn extra_tokens(tokenizer: &Tokenizer, left: &str, right: &str) -> Option<i32> {
    let count = |text: &str| i64::from(tokenizer.count(text));
    let mut common = None;
    for end in MESSAGE_ENDS {
        let before = format!("{end}{left}");
        let n_before = count(&before);
        for start in MESSAGE_STARTS {
            let after = format!("{right}{start}");
            let extra = count(&format!("{before}{after}")) - n_before - count(&after);
            if *common.get_or_insert(extra) != extra {
                return None;
            }
        }
    }
    i32::try_from(common?).ok()
}
