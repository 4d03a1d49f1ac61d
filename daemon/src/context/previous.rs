//! How much of a build is the beginning of the one before: what a model server need not read again.

use ollm_protocol::content::ContextMessage;
use serde_json::Value;

use crate::tokens::Counter;

/// What is remembered of a build, so that the next one can be compared with it.
#[derive(Clone, Debug)]
pub(crate) struct PreviousBuild {
    /// Over the tool definitions, which chat templates put before everything else.
    tools: blake3::Hash,
    /// Of what stands before the messages.
    head_tokens: u64,
    /// Of each message: its hash and its tokens.
    marks: Vec<(blake3::Hash, u32)>,
    /// The last message, which the next build may extend.
    last: Option<ContextMessage>,
}

impl PreviousBuild {
    /// Remembers a build.
    pub(super) fn new(
        tools: &[Value],
        head_tokens: u64,
        messages: &[ContextMessage],
        tokens: &[u32],
    ) -> Self {
        let hash = |message: &ContextMessage| hash_json(message);
        Self {
            tools: hash_json(&tools),
            head_tokens,
            marks: messages.iter().map(hash).zip(tokens.iter().copied()).collect(),
            last: messages.last().cloned(),
        }
    }

    /// Over the messages.
    pub(crate) fn digest(&self) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
        for (hash, _) in &self.marks {
            hasher.update(hash.as_bytes());
        }
        hasher.finalize()
    }

    /// Tokens of this build that `next`, whose messages are given, begins with.
    pub(super) fn prefix_tokens(
        &self,
        counter: &Counter,
        next: &Self,
        messages: &[ContextMessage],
    ) -> u64 {
        if self.tools != next.tools {
            return 0;
        }
        let pairs = self.marks.iter().zip(&next.marks);
        let equal = pairs.take_while(|(before, now)| before.0 == now.0).count();
        // A message that was the last one had the end of the prompt besides.
        let marks = self.marks.iter().zip(&next.marks).take(equal);
        let whole: u64 = marks.map(|(before, now)| u64::from(before.1.min(now.1))).sum();
        let part = match (&self.last, messages.get(equal)) {
            (Some(before), Some(now)) if equal + 1 == self.marks.len() => {
                common_tokens(counter, before, now)
            }
            _ => 0,
        };
        self.head_tokens + whole + part
    }
}

/// Tokens of the text with which both messages begin.
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
    match serde_json::to_writer(&mut hasher, value) {
        Ok(()) => hasher.finalize(),
        // Neither a hasher nor a value with string keys fails; if one did, nothing would count as equal.
        Err(_) => blake3::hash(&[]),
    }
}
