//! Special tokens: which tokens of a vocabulary are special, and where they split a text.
//!
//! Must not know how the text between special tokens becomes tokens.
//!
//! **Invariant**: like the engine, `split` searches the whole text for the longest special token first, then the
//! remaining parts for the next longest. So a longer token wins over a shorter one that overlaps it from the left.
//!
//! **Source**: `tokenizer_st_partition` and `llama_vocab::impl::load` in llama.cpp's `llama-vocab.cpp`. For a role that
//! several texts may have, the engine takes the first in the order of a hash table; this code takes the lowest id.

use std::ops::Range;

use memchr::memmem;
use rustc_hash::{FxHashMap, FxHashSet};

use super::vocab::{TokenKind, Vocabulary};

/// A part of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fragment {
    /// A byte range of ordinary text.
    Text(Range<usize>),
    /// The id of a special token.
    Token(u32),
}

/// The special tokens of a vocabulary, indexed for searching them in texts.
#[derive(Debug)]
pub(super) struct SpecialTokens {
    /// The longest first.
    all: Vec<SpecialToken>,
    /// Indexes into `all`, sorted by text.
    sorted: Vec<u32>,
    /// For each byte, the range of `sorted` whose texts begin with it.
    by_first_byte: Vec<Range<u32>>,
    /// The bytes with which some special token begins.
    first_bytes: Vec<u8>,
}

#[derive(Clone, Debug)]
struct SpecialToken {
    text: Vec<u8>,
    id: u32,
    /// Whether the token consumes the white space before it.
    strips_left: bool,
    /// Whether the token consumes the white space after it.
    strips_right: bool,
}

impl SpecialTokens {
    /// Finds the special tokens of a vocabulary.
    pub(super) fn new(vocabulary: &Vocabulary) -> Self {
        let mut all = special_tokens(vocabulary);
        // Other texts could match inside of a character.
        all.retain(|special| {
            !special.text.is_empty() && std::str::from_utf8(&special.text).is_ok()
        });
        all.sort_by_key(|special| std::cmp::Reverse(special.text.len()));
        let number = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        let mut sorted: Vec<u32> = (0..all.len()).map(number).collect();
        sorted.sort_by(|a, b| all[*a as usize].text.cmp(&all[*b as usize].text));
        let start_of = |byte: u16| {
            let is_before = |at: &u32| u16::from(all[*at as usize].text[0]) < byte;
            number(sorted.partition_point(is_before))
        };
        let by_first_byte: Vec<Range<u32>> =
            (0..256_u16).map(|byte| start_of(byte)..start_of(byte + 1)).collect();
        let first_bytes =
            (0..=255).filter(|byte| !by_first_byte[usize::from(*byte)].is_empty()).collect();
        Self { all, sorted, by_first_byte, first_bytes }
    }

    /// Splits a text at its special tokens.
    pub(super) fn split(&self, text: &[u8]) -> Vec<Fragment> {
        let mut fragments = Vec::new();
        if !text.is_empty() {
            fragments.push(Fragment::Text(0..text.len()));
        }
        for at in self.occurring(text) {
            let special = &self.all[at];
            let finder = memmem::Finder::new(&special.text);
            let mut split = Vec::with_capacity(fragments.len());
            for fragment in fragments {
                match fragment {
                    Fragment::Text(range) => special.split(&finder, text, range, &mut split),
                    token @ Fragment::Token(_) => split.push(token),
                }
            }
            fragments = split;
        }
        fragments
    }

    /// Returns the special tokens that occur in a text, as ascending indexes into `all`.
    fn occurring(&self, text: &[u8]) -> Vec<usize> {
        let mut found = Vec::new();
        let mut at = 0;
        while let Some(next) = self.next_first_byte(text, at) {
            self.add_prefixes(&text[next..], &mut found);
            at = next + 1;
        }
        found.sort_unstable();
        found
    }

    /// Returns the position, from `at` on, of the next byte with which a special token begins.
    fn next_first_byte(&self, text: &[u8], at: usize) -> Option<usize> {
        let rest = &text[at..];
        let found = match self.first_bytes.as_slice() {
            [] => None,
            [a] => memchr::memchr(*a, rest),
            [a, b] => memchr::memchr2(*a, *b, rest),
            [a, b, c] => memchr::memchr3(*a, *b, *c, rest),
            _ => rest.iter().position(|byte| !self.by_first_byte[usize::from(*byte)].is_empty()),
        };
        found.map(|found| at + found)
    }

    /// Adds the special tokens that are prefixes of `text`.
    fn add_prefixes(&self, text: &[u8], found: &mut Vec<usize>) {
        let Range { start, end } = self.by_first_byte[usize::from(text[0])].clone();
        let mut range = &self.sorted[start as usize..end as usize];
        let text_of = |at: &u32| self.all[*at as usize].text.as_slice();
        for len in 1.. {
            while let Some((first, rest)) = range.split_first()
                && text_of(first).len() == len
            {
                if !found.contains(&(*first as usize)) {
                    found.push(*first as usize);
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

impl SpecialToken {
    /// Splits a range of the text at every occurrence of the token.
    fn split(
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

/// Returns what C's `isspace` returns.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

/// The texts that end a generation. Such tokens are special regardless of their type in the file.
const ENDS_OF_GENERATION: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

/// The texts that delimit a message of gpt-oss. Such tokens are special regardless of their type in the file.
const MESSAGE_DELIMITERS: &[&str] = &["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

const FIM_PREFIX: &[&str] = &[
    "<|fim_prefix|>",
    "<fim-prefix>",
    "<fim_prefix>",
    "<｜fim▁begin｜>",
    "<PRE>",
    "▁<PRE>",
    "<|code_prefix|>",
    "<|prefix|>",
];
const FIM_SUFFIX: &[&str] = &[
    "<|fim_suffix|>",
    "<fim-suffix>",
    "<fim_suffix>",
    "<｜fim▁hole｜>",
    "<SUF>",
    "▁<SUF>",
    "<|code_suffix|>",
    "<|suffix|>",
];
const FIM_MIDDLE: &[&str] = &[
    "<|fim_middle|>",
    "<fim-middle>",
    "<fim_middle>",
    "<｜fim▁end｜>",
    "<MID>",
    "▁<MID>",
    "<|code_middle|>",
    "<|middle|>",
];
const FIM_PAD: &[&str] = &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"];
const FIM_REPO: &[&str] = &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"];
const FIM_SEPARATOR: &[&str] = &["<|file_sep|>"];

/// Returns the ids of the texts listed above; of duplicate texts the last one wins, as in the engine.
fn listed_texts(vocabulary: &Vocabulary) -> FxHashMap<&[u8], u32> {
    let lists = [
        ENDS_OF_GENERATION,
        MESSAGE_DELIMITERS,
        FIM_PREFIX,
        FIM_SUFFIX,
        FIM_MIDDLE,
        FIM_PAD,
        FIM_REPO,
        FIM_SEPARATOR,
    ];
    let texts: FxHashSet<&[u8]> = lists.into_iter().flatten().map(|text| text.as_bytes()).collect();
    let tokens = vocabulary.texts.iter().zip(0..vocabulary.n_tokens);
    tokens.filter(|(text, _)| texts.contains(text)).collect()
}

/// Returns the special tokens of a vocabulary, by id.
fn special_tokens(vocabulary: &Vocabulary) -> Vec<SpecialToken> {
    let listed = listed_texts(vocabulary);
    let find = |text: &str| listed.get(text.as_bytes()).copied();
    let mut is_special = vec![false; vocabulary.n_tokens as usize];
    for (is_special, kind) in is_special.iter_mut().zip(&vocabulary.kinds) {
        *is_special =
            matches!(kind, TokenKind::Control | TokenKind::UserDefined | TokenKind::Unknown);
    }
    for id in ENDS_OF_GENERATION.iter().chain(MESSAGE_DELIMITERS).filter_map(|text| find(text)) {
        is_special[id as usize] = true;
    }
    let roles = vocabulary.roles;
    let roles_by_text = [
        (roles.fim_prefix, FIM_PREFIX),
        (roles.fim_suffix, FIM_SUFFIX),
        (roles.fim_middle, FIM_MIDDLE),
        (roles.fim_pad, FIM_PAD),
        (roles.fim_repo, FIM_REPO),
        (roles.fim_separator, FIM_SEPARATOR),
    ];
    for (_, texts) in roles_by_text.into_iter().filter(|(role, _)| role.is_none()) {
        if let Some(id) = texts.iter().filter_map(|text| find(text)).min() {
            is_special[id as usize] = true;
        }
    }
    // In Gemma 4 and PLaMo `</s>` is an ordinary token.
    let ends_by_role = [roles.eos, roles.eot].into_iter().flatten();
    let is_plamo = ends_by_role.into_iter().any(|id| vocabulary.texts.of(id) == b"<|plamo:eos|>");
    if (is_plamo || find("<|tool_response>").is_some())
        && let Some(id) = find("</s>")
    {
        is_special[id as usize] = false;
    }
    let special = |(id, _): (u32, &bool)| SpecialToken {
        text: vocabulary.texts.of(id).to_vec(),
        id,
        strips_left: false,
        strips_right: false,
    };
    let mut specials: Vec<SpecialToken> =
        (0..).zip(&is_special).filter(|(_, is_special)| **is_special).map(special).collect();
    set_stripping(vocabulary, &mut specials);
    specials
}

/// Marks the special tokens that consume adjacent white space. Like the engine, it recognizes such models by name.
fn set_stripping(vocabulary: &Vocabulary, specials: &mut [SpecialToken]) {
    const WITH_MASK: [&str; 3] = ["jina-v2-de", "jina-v2-es", "jina-v2-code"];
    let name = vocabulary.name.as_deref().unwrap_or_default().to_ascii_lowercase();
    let strips_left = if WITH_MASK.iter().any(|pre| vocabulary.pre.contains(pre)) {
        Some("<mask>")
    } else if name.contains("phi-3") || name.contains("phi3") {
        for special in specials.iter_mut() {
            let exempt: [&[u8]; 3] = [b"<unk>", b"<s>", b"<|endoftext|>"];
            special.strips_right = !exempt.contains(&special.text.as_slice());
        }
        None
    } else if name.contains("modern-bert") {
        Some("[MASK]")
    } else {
        None
    };
    for special in specials.iter_mut() {
        special.strips_left = strips_left.is_some_and(|text| special.text == text.as_bytes());
    }
}
