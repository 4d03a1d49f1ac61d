//! Special tokens inside of text: which there are, and where they cut a text before anything else is done to it.
//!
//! Must not know how the text between them becomes tokens. **Invariant**: the engine looks for the longest special
//! token in the whole text first, then for the next one in what is left; so a longer one further right wins over a
//! shorter one that overlaps it from the left.
//!
//! **Source**: `tokenizer_st_partition` and the end of `llama_vocab::impl::load` in llama.cpp's `llama-vocab.cpp`.

mod roles;

use std::ops::Range;

use memchr::memmem;

use super::vocab::Vocabulary;

/// A special token.
#[derive(Clone, Debug)]
struct Special {
    text: Vec<u8>,
    id: u32,
    /// It swallows the white space before it.
    strips_left: bool,
    /// It swallows the white space after it.
    strips_right: bool,
}

/// A part of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fragment {
    /// Bytes that are to be tokenized.
    Text(Range<usize>),
    /// A special token.
    Token(u32),
}

/// The special tokens of a vocabulary.
#[derive(Debug)]
pub(super) struct Specials {
    /// Longest first.
    all: Vec<Special>,
    /// Positions in `all`, by text.
    sorted: Vec<u32>,
    /// For every first byte the part of `sorted` that begins with it.
    by_byte: Vec<Range<u32>>,
    /// The first bytes, where they are few enough to search for them.
    first_bytes: Vec<u8>,
}

impl Specials {
    /// Finds the special tokens of a vocabulary.
    pub(super) fn new(vocabulary: &Vocabulary) -> Self {
        let mut all = roles::specials(vocabulary);
        // Texts that are no UTF-8 cannot begin and end between characters.
        all.retain(|special| {
            !special.text.is_empty() && std::str::from_utf8(&special.text).is_ok()
        });
        all.sort_by_key(|special| std::cmp::Reverse(special.text.len()));
        let number = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        let mut sorted: Vec<u32> = (0..all.len()).map(number).collect();
        sorted.sort_by(|a, b| all[*a as usize].text.cmp(&all[*b as usize].text));
        let begins = |byte: u16| {
            let before = |at: &u32| u16::from(all[*at as usize].text[0]) < byte;
            number(sorted.partition_point(before))
        };
        let by_byte: Vec<Range<u32>> =
            (0..256_u16).map(|byte| begins(byte)..begins(byte + 1)).collect();
        let first_bytes =
            (0..=255).filter(|byte| !by_byte[usize::from(*byte)].is_empty()).collect();
        Self { all, sorted, by_byte, first_bytes }
    }

    /// Cuts a text at its special tokens.
    pub(super) fn cut(&self, text: &[u8]) -> Vec<Fragment> {
        let mut fragments = Vec::new();
        if !text.is_empty() {
            fragments.push(Fragment::Text(0..text.len()));
        }
        for at in self.present(text) {
            let special = &self.all[at];
            let finder = memmem::Finder::new(&special.text);
            let mut cut = Vec::with_capacity(fragments.len());
            for fragment in fragments {
                match fragment {
                    Fragment::Text(range) => special.cut(&finder, text, range, &mut cut),
                    token @ Fragment::Token(_) => cut.push(token),
                }
            }
            fragments = cut;
        }
        fragments
    }

    /// The special tokens that occur in a text, in the order in which they are looked for.
    fn present(&self, text: &[u8]) -> Vec<usize> {
        let mut present = Vec::new();
        let mut at = 0;
        while let Some(next) = self.next_first_byte(text, at) {
            self.begin_at(&text[next..], &mut present);
            at = next + 1;
        }
        present.sort_unstable();
        present
    }

    /// Where the next byte is with which a special token begins.
    fn next_first_byte(&self, text: &[u8], at: usize) -> Option<usize> {
        let rest = &text[at..];
        let found = match self.first_bytes.as_slice() {
            [] => None,
            [a] => memchr::memchr(*a, rest),
            [a, b] => memchr::memchr2(*a, *b, rest),
            [a, b, c] => memchr::memchr3(*a, *b, *c, rest),
            _ => rest.iter().position(|byte| !self.by_byte[usize::from(*byte)].is_empty()),
        };
        found.map(|found| at + found)
    }

    /// Adds the special tokens with which `text` begins.
    fn begin_at(&self, text: &[u8], present: &mut Vec<usize>) {
        let Range { start, end } = self.by_byte[usize::from(text[0])].clone();
        let mut range = &self.sorted[start as usize..end as usize];
        let text_of = |at: &u32| self.all[*at as usize].text.as_slice();
        for len in 1.. {
            while let Some((first, rest)) = range.split_first()
                && text_of(first).len() == len
            {
                if !present.contains(&(*first as usize)) {
                    present.push(*first as usize);
                }
                range = rest;
            }
            let Some(&byte) = text.get(len).filter(|_| !range.is_empty()) else { return };
            let from = range.partition_point(|at| text_of(at)[len] < byte);
            let to = range.partition_point(|at| text_of(at)[len] <= byte);
            range = &range[from..to];
        }
    }
}

impl Special {
    /// Cuts a fragment at every occurrence of the token.
    fn cut(
        &self,
        finder: &memmem::Finder<'_>,
        text: &[u8],
        range: Range<usize>,
        fragments: &mut Vec<Fragment>,
    ) {
        let mut rest = range;
        while let Some(found) = finder.find(&text[rest.clone()]) {
            let found = rest.start + found;
            let mut before = rest.start..found;
            if self.strips_left {
                let kept = text[before.clone()].iter().rposition(|byte| !is_space(*byte));
                before.end = kept.map_or(before.start, |kept| before.start + kept + 1);
            }
            if !before.is_empty() {
                fragments.push(Fragment::Text(before));
            }
            fragments.push(Fragment::Token(self.id));
            rest.start = found + self.text.len();
            if self.strips_right {
                let kept = text[rest.clone()].iter().position(|byte| !is_space(*byte));
                rest.start = kept.map_or(rest.end, |kept| rest.start + kept);
            }
        }
        if !rest.is_empty() {
            fragments.push(Fragment::Text(rest));
        }
    }
}

/// C's `isspace`.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}
