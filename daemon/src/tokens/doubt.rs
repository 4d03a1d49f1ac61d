//! Doubts: shapes of messages for which an exact count was found wrong.
//!
//! A contradiction between a count and the server concerns the messages that caused it, not the whole model: a message
//! with the same features is counted with a margin from then on, and all others stay exact. A doubt ends when the
//! server has confirmed such counts again.
//! Must not know prompts or templates.
//!
//! **Invariant**: the doubts depend only on the contradictions and confirmations, in their order.

use ollm_protocol::content::ContextMessage;
use serde::{Deserialize, Serialize};

use super::template::Neighbor;
use super::tokenizer::Tokenizer;

/// The most doubts of a model; more would be a wrong template.
const MAX_DOUBTS: usize = 16;
/// A doubt ends after this many counts in a row that the server confirmed.
const CONFIRMATIONS: u8 = 3;

/// A feature of a message that templates or tokenizers may treat in a special way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum MessageTrait {
    /// The message has no text.
    Empty,
    /// The text begins or ends with ASCII white space.
    BlankEnd,
    /// The text begins or ends with other white space.
    WideBlankEnd,
    /// The text contains that of a special token.
    SpecialToken,
    /// The text contains a tag of thinking.
    ThinkTag,
    /// The text contains a control character.
    Control,
    /// The text contains characters outside ASCII.
    NonAscii,
    /// The message has tool calls beside text.
    CallBesideText,
    /// The message has several tool calls.
    SeveralCalls,
}

/// The kind of a message and its special features. Its serialized form is part of `vocab/models.json` and of the event
/// `count-mismatch`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MessageShape {
    message: Neighbor,
    traits: Vec<MessageTrait>,
}

impl MessageShape {
    /// Returns the shape of a message.
    pub(super) fn of(message: &ContextMessage, tokenizer: &Tokenizer) -> Self {
        let text = message.content.as_str();
        let ends = [text.chars().next(), text.chars().next_back()];
        let ends_in = |is: fn(char) -> bool| ends.iter().flatten().any(|char| is(*char));
        let is_control = |char: char| char.is_control() && !matches!(char, '\t' | '\n' | '\r');
        let n_calls = message.tool_calls.len();
        let all = [
            (MessageTrait::Empty, text.is_empty() && n_calls == 0),
            (MessageTrait::BlankEnd, ends_in(|char| matches!(char, ' ' | '\t'..='\r'))),
            (MessageTrait::WideBlankEnd, ends_in(|char| char.is_whitespace() && !char.is_ascii())),
            (MessageTrait::SpecialToken, tokenizer.has_special_token(text)),
            (MessageTrait::ThinkTag, text.contains("think>")),
            (MessageTrait::Control, text.contains(is_control)),
            (MessageTrait::NonAscii, !text.is_ascii()),
            (MessageTrait::CallBesideText, n_calls > 0 && !text.is_empty()),
            (MessageTrait::SeveralCalls, n_calls > 1),
        ];
        let traits = all.into_iter().filter(|(_, has)| *has).map(|(one, _)| one).collect();
        Self { message: Neighbor::of(message), traits }
    }

    /// Returns whether nothing distinguishes the message from others of its kind.
    pub(crate) fn is_plain(&self) -> bool {
        self.traits.is_empty()
    }

    /// Returns whether another shape has the same kind and all features of this one.
    fn includes(&self, other: &Self) -> bool {
        let has = |one: &MessageTrait| other.traits.contains(one);
        self.message == other.message && self.traits.iter().all(has)
    }
}

/// A shape of messages whose count was wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Doubt {
    shape: MessageShape,
    /// The largest difference between our count and the server's, in tokens.
    error: u64,
    /// The number of counts that the server confirmed since.
    confirmed: u8,
}

/// The doubts about the counts of a model. Its serialized form is part of `vocab/models.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Doubts(Vec<Doubt>);

impl Doubts {
    /// Returns doubts about every message, each of which may be wrong by `error` tokens.
    pub(crate) fn of_all(error: u64) -> Self {
        use Neighbor::{Assistant, Calls, System, Tool, User};
        let all = [System, User, Assistant, Calls, Tool];
        let shape = |message| MessageShape { message, traits: Vec::new() };
        Self(all.map(|kind| Doubt { shape: shape(kind), error, confirmed: 0 }).into())
    }

    /// Adds a doubt about every message.
    #[must_use]
    pub(crate) fn and_all(&self, error: u64) -> Self {
        let mut all = Self::of_all(error);
        all.0.extend_from_slice(&self.0);
        all
    }

    /// Returns whether there are no doubts.
    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds shapes of a prompt whose count differed by `error` tokens from the server's.
    #[must_use]
    pub(crate) fn with(&self, shapes: &[MessageShape], error: u64) -> Self {
        let mut doubts = self.0.clone();
        for shape in shapes {
            // A doubt about more messages takes the place of this one.
            if !doubts.iter().any(|doubt| doubt.shape.includes(shape)) {
                doubts.retain(|doubt| !shape.includes(&doubt.shape));
                doubts.push(Doubt { shape: shape.clone(), error, confirmed: 0 });
            }
        }
        doubts.drain(..doubts.len().saturating_sub(MAX_DOUBTS));
        Self(doubts)
    }

    /// Adds the server's count of a prompt with messages of some shapes; `error` is 0 if it equals our count.
    #[must_use]
    pub(crate) fn observed(&self, shapes: &[MessageShape], error: u64) -> Self {
        let observe = |doubt: &Doubt| {
            let mut doubt = doubt.clone();
            if shapes.iter().any(|shape| doubt.shape.includes(shape)) {
                doubt.error = doubt.error.max(error);
                doubt.confirmed = if error == 0 { doubt.confirmed + 1 } else { 0 };
            }
            doubt
        };
        let observed = self.0.iter().map(observe);
        Self(observed.filter(|doubt| doubt.confirmed < CONFIRMATIONS).collect())
    }

    /// Returns whether a message has a shape that is in doubt.
    pub(super) fn concern(&self, shape: &MessageShape) -> bool {
        self.0.iter().any(|doubt| doubt.shape.includes(shape))
    }

    /// Returns the maximum error of the count of a message: twice the largest difference so far, because the next one
    /// may be larger.
    pub(super) fn margin(&self, shape: &MessageShape) -> u64 {
        let errors = self.0.iter().filter(|doubt| doubt.shape.includes(shape));
        errors.map(|doubt| doubt.error.saturating_mul(2)).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use ollm_protocol::content::Role;

    use super::*;
    use crate::tokens::Engine;
    use crate::tokens::testing::byte_level;

    fn shape(role: Role, text: &str) -> MessageShape {
        let vocabulary = byte_level("gpt-2", &[], &["<|end|>"]).vocabulary();
        let tokenizer = Tokenizer::new(&vocabulary, Engine::LlamaCpp).unwrap();
        MessageShape::of(&ContextMessage::text(role, text), &tokenizer)
    }

    #[test]
    fn doubt_concerns_messages_with_the_same_features_only() {
        let user = |text| shape(Role::User, text);
        let doubts = Doubts::default().with(&[user("wide\u{3000}")], 2);
        assert!(doubts.concern(&user("\u{a0}other")));
        assert!(doubts.concern(&user(" <|end|>\u{3000}")), "has more features");
        for text in ["plain", "字", "blank \n", "<|end|>"] {
            assert!(!doubts.concern(&user(text)), "{text}");
        }
        assert!(!doubts.concern(&shape(Role::Assistant, "wide\u{3000}")));
        assert_eq!((doubts.margin(&user("\u{3000}")), doubts.margin(&user("a"))), (4, 0));
    }

    #[test]
    fn doubt_ends_after_confirmations_in_a_row() {
        let odd = [shape(Role::User, "<|end|>"), shape(Role::User, "plain")];
        let mut doubts = Doubts::default().with(&odd[..1], 5);
        for error in [0, 0, 7, 0, 0] {
            doubts = doubts.observed(&odd, error);
            assert!(doubts.concern(&odd[0]));
        }
        assert_eq!(doubts.margin(&odd[0]), 14);
        let other = doubts.observed(&odd[1..], 0);
        assert_eq!(other, doubts, "a prompt without such a message confirms nothing");
        assert!(doubts.observed(&odd, 0).is_empty());
    }

    #[test]
    fn doubt_about_every_message_keeps_larger_ones() {
        let [odd, plain] = ["<|end|>", "plain"].map(|text| shape(Role::User, text));
        let doubts = Doubts::default().with(std::slice::from_ref(&odd), 50).and_all(6);
        assert!(doubts.concern(&plain) && doubts.concern(&shape(Role::Tool, "plain")));
        assert_eq!((doubts.margin(&odd), doubts.margin(&plain)), (100, 12));
    }

    #[test]
    fn doubt_about_more_messages_replaces_others() {
        let [odd, plain] = ["<|end|>", "plain"].map(|text| shape(Role::User, text));
        let doubts = Doubts::default().with(std::slice::from_ref(&odd), 1);
        let wider = doubts.with(std::slice::from_ref(&plain), 3);
        assert_eq!(wider.0.len(), 1);
        assert!(plain.is_plain() && wider.concern(&odd));
    }
}
