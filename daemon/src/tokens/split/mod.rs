//! Split rules: how the text of a byte-level vocabulary is cut into words before its merges.
//!
//! Must not know vocabularies or merges. **Invariant**: the words of a text, one after the other, are the text, and
//! the cost is linear in its length.
//!
//! A rule is a list of steps. Each step cuts every piece that the step before it left, and sees nothing beyond the
//! ends of that piece; what an expression does not match stays as a piece of its own.
//!
//! **Source**: `llm_tokenizer_bpe` in llama.cpp's `llama-vocab.cpp` and `unicode_regex_split` in its `unicode.cpp`.

mod class;
mod names;
mod sets;
mod steps;
#[cfg(test)]
mod tests;
mod words;

use class::Scan;
pub(super) use names::{Pre, pre_of};
use steps::{Step, cut_all, each};

/// How one family of vocabularies cuts text into words.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rule(&'static [Step]);

impl Rule {
    /// Gives every word of a text, in order, as its first byte and the one after its last.
    #[inline]
    pub(super) fn split(self, text: &[u8], emit: &mut impl FnMut(usize, usize)) {
        let scan = Scan::new(text);
        // The common rules have one step, which is worth a loop of its own for each.
        match self.0 {
            [Step::Gpt2] => each(scan, |at| words::gpt2(scan, at), emit),
            [Step::Words(rule)] => each(scan, |at| words::words(scan, at, *rule), emit),
            steps => cut_all(steps, text, 0, emit),
        }
    }
}
