//! Texts that a model server counted, for a model whose vocabulary is not known.
//!
//! Must not know when and how the server is asked.

use std::collections::HashMap;

/// The most texts that are remembered; each takes about 50 bytes. Beyond it, the texts of the next prompts are counted again.
const MAX_TEXTS: usize = 1 << 13;

/// The counts of texts by the digest of each.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServedTexts(HashMap<[u8; 32], u32>);

impl ServedTexts {
    /// Returns the server's count of a text.
    pub(crate) fn get(&self, text: &str) -> Option<u32> {
        if text.is_empty() {
            return Some(0);
        }
        self.0.get(blake3::hash(text.as_bytes()).as_bytes()).copied()
    }

    /// Adds the server's count of a text.
    pub(crate) fn insert(&mut self, text: &str, tokens: u32) {
        if self.0.len() >= MAX_TEXTS {
            self.0.clear();
        }
        self.0.insert(*blake3::hash(text.as_bytes()).as_bytes(), tokens);
    }
}
