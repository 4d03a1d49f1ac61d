//! The input of a build, and what follows from it: whether the epoch in force still holds, how much of the previous
//! build is repeated, and the errors of a build.

use std::collections::HashMap;

use ollm_protocol::Seq;
use ollm_protocol::content::{
    Checkpoint, CompactMode, ContextMessage, Epoch, EpochBasis, WindowLimits,
};
use serde_json::Value;

use super::path::{ContentsError, PathItem};
use crate::tokens::Counter;

/// The cause of a session's first epoch.
pub(super) const START: &str = "start";

/// A source of the facts that the user stated.
pub(crate) trait FactSource {
    /// Returns the lines of the best facts within `room` tokens, without those that `notes` say or that stand in a
    /// record that is shown; empty if there are none.
    ///
    /// `count` counts the tokens of a text.
    fn lines(
        &self,
        notes: &str,
        is_shown: &dyn Fn(Seq) -> bool,
        room: u64,
        count: &dyn Fn(&str) -> u64,
    ) -> String;

    /// Returns the records that state facts which are worth their tokens and which a text does not say, with the number of
    /// these facts that probably last.
    fn unsaid_records(&self, text: &str) -> HashMap<Seq, f32>;

    /// Returns how many sentences that last a text says, and how many there are, as far as that is known.
    fn count_lasting(&self, text: &str) -> (f32, f32);

    /// Returns the texts of all facts worth their tokens.
    fn texts(&self) -> Vec<String>;
}

/// The input of a build, except the contents of records.
pub(crate) struct BuildInput<'a> {
    /// The path from the root to the active leaf, oldest first.
    pub path: &'a [PathItem],
    pub system_prompt: Option<&'a str>,
    /// The text of the session's mode.
    pub mode_text: Option<&'a str>,
    /// The end of the system message: context entries, then the goal.
    pub additions: &'a str,
    /// The context entries in `additions`, by key and digest.
    pub entries: &'a [(String, String)],
    /// The context entries that the epoch in force has sent, in its system message or later.
    pub sent_entries: &'a [(String, String)],
    /// The decisions that the goal locks.
    pub decisions: &'a [String],
    /// Pinned records, in the order of pinning.
    pub pins: &'a [Seq],
    /// The facts that the user stated, if they are known.
    pub facts: Option<&'a dyn FactSource>,
    pub project_path: Option<&'a str>,
    pub model: Option<&'a str>,
    /// Tool definitions that will be sent along.
    pub tools: &'a [Value],
    /// The user message that will follow; it is not recorded yet.
    pub pending: Option<&'a str>,
    /// The size that a prompt with a new head must stay below, in tokens, because a compaction has to gain; `None` if only the
    /// window limits it.
    pub below_tokens: Option<u64>,
    /// Tokens that the conversation leaves free, for earlier messages that are brought back before the pending one.
    pub spare_tokens: u64,
    /// Set if a new head leaves as much room as any does, because a client asked for it.
    pub deep: bool,
    /// Whether the model reads images; those of a model that does not are left out.
    pub reads_images: bool,
    /// The window in tokens.
    pub context_size: u32,
    /// The reasons for its size, which are only reported.
    pub window: WindowLimits,
    /// Tokens to keep free for the answer.
    pub answer_reserve: u32,
    /// The share of the conversation that user messages may have in a head, from 0 to 1.
    pub user_share: f64,
    /// The name of a strategy; `None` takes the first that fits.
    pub strategy: Option<&'a str>,
    /// Whether the caller records a new epoch.
    pub compact: CompactMode,
    /// The checkpoints in force on the path, oldest first.
    pub checkpoints: &'a [Checkpoint],
    /// The epoch in force on the path and the record that opened it.
    pub epoch: Option<(Seq, &'a Epoch)>,
    pub previous: Option<&'a PreviousBuild>,
    pub counter: Counter,
    pub build_id: String,
}

impl BuildInput<'_> {
    /// Returns whether a system message stands before the conversation.
    pub(super) fn has_system(&self) -> bool {
        let texts = [self.system_prompt, self.mode_text, Some(self.additions)];
        texts.into_iter().flatten().any(|text| !text.is_empty())
    }

    /// Returns the basis of an epoch that is opened now, with the end of its system message.
    pub(super) fn basis(&self, additions: String) -> EpochBasis {
        EpochBasis {
            system: digest(self.system_prompt.unwrap_or_default()),
            mode: digest(self.mode_text.unwrap_or_default()),
            tools: if self.tools.is_empty() {
                String::new()
            } else {
                digest(&Value::from(self.tools.to_vec()).to_string())
            },
            model: self.model.unwrap_or_default().to_owned(),
            entries: self.entries.to_vec(),
            additions,
        }
    }

    /// Returns the cause for a new epoch, or `None` while the basis of the epoch in force holds.
    ///
    /// New and changed entries are sent behind the conversation and need no new epoch; a removed entry does, because
    /// the epoch in force shows it. Epochs of other programs have no basis and always hold.
    pub(super) fn changed_basis(&self) -> Option<&'static str> {
        let Some((_, epoch)) = self.epoch else { return (!self.path.is_empty()).then_some(START) };
        let then = epoch.basis.as_ref()?;
        let now = self.basis(String::new());
        let is_removed =
            |(key, _): &(String, String)| !now.entries.iter().any(|(other, _)| other == key);
        let causes = [
            (then.system != now.system, "systemPrompt"),
            (then.mode != now.mode, "mode"),
            (then.tools != now.tools, "tools"),
            (then.model != now.model, "model"),
            (self.sent_entries.iter().any(is_removed), "entries"),
        ];
        causes.into_iter().find(|(differs, _)| *differs).map(|(_, cause)| cause)
    }
}

/// The reason why a context cannot be built.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ContextError {
    /// The parts that cannot be left out do not fit.
    #[error("the {what} needs {needed} tokens of {available}")]
    Overflow {
        /// The fewest tokens with which a context could be built.
        needed: u64,
        available: u64,
        /// The part that is too large.
        what: &'static str,
    },
    #[error("no strategy is named {name}; there are {}", listed(known))]
    UnknownStrategy {
        name: String,
        /// The name of each strategy and what it keeps.
        known: Vec<(&'static str, &'static str)>,
    },
    #[error(transparent)]
    Contents(#[from] ContentsError),
}

/// Joins names and what they stand for on one line.
fn listed(known: &[(&str, &str)]) -> String {
    let items: Vec<String> =
        known.iter().map(|(name, about)| format!("{name} ({about})")).collect();
    items.join(", ")
}

/// Returns a short digest of a text, empty for an empty text.
pub(crate) fn digest(text: &str) -> String {
    if text.is_empty() {
        return String::new();
    }
    blake3::hash(text.as_bytes()).to_hex()[..16].to_owned()
}

/// The hashes of a build. They show how much of this build the next one repeats; a model server need not compute that
/// part again.
#[derive(Clone, Debug)]
pub(crate) struct PreviousBuild {
    /// The hash of the tool definitions, which chat templates put before everything else.
    tools: blake3::Hash,
    /// Tokens before the first message.
    head_tokens: u64,
    /// The hash and the tokens of each message.
    messages: Vec<(blake3::Hash, u32)>,
    /// The last message, which the next build may extend.
    last: Option<ContextMessage>,
}

impl PreviousBuild {
    pub(super) fn new(
        tools: &[Value],
        head_tokens: u64,
        messages: &[ContextMessage],
        tokens: &[u32],
    ) -> Self {
        let hashes = messages.iter().map(hash_json);
        Self {
            tools: hash_json(&tools),
            head_tokens,
            messages: hashes.zip(tokens.iter().copied()).collect(),
            last: messages.last().cloned(),
        }
    }

    /// Returns a hash of all messages.
    pub(crate) fn digest(&self) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
        for (hash, _) in &self.messages {
            hasher.update(hash.as_bytes());
        }
        hasher.finalize()
    }

    /// Returns the tokens of this build that `next`, whose messages are given, begins with.
    pub(super) fn prefix_tokens(
        &self,
        counter: &Counter,
        next: &Self,
        messages: &[ContextMessage],
    ) -> u64 {
        if self.tools != next.tools {
            return 0;
        }
        let pairs = || self.messages.iter().zip(&next.messages);
        let n_equal = pairs().take_while(|(before, now)| before.0 == now.0).count();
        // The last message of a build also counts the end of the prompt.
        let whole: u64 =
            pairs().take(n_equal).map(|(before, now)| u64::from(before.1.min(now.1))).sum();
        let part = match (&self.last, messages.get(n_equal)) {
            (Some(before), Some(now)) if n_equal + 1 == self.messages.len() => {
                common_tokens(counter, before, now)
            }
            _ => 0,
        };
        self.head_tokens + whole + part
    }
}

/// Returns the tokens of the text with which both messages begin.
fn common_tokens(counter: &Counter, before: &ContextMessage, now: &ContextMessage) -> u64 {
    if before.role != now.role || !now.images.starts_with(&before.images) {
        return 0;
    }
    let pairs = before.content.chars().zip(now.content.chars());
    let bytes = pairs.take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum();
    u64::from(counter.count_text(&before.content[..bytes]))
}

fn hash_json(value: &impl serde::Serialize) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    serde_json::to_writer(&mut hasher as &mut dyn std::io::Write, value)
        .expect("neither a hasher nor a value with string keys fails");
    hasher.finalize()
}
