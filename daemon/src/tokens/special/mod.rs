//! Special tokens: which tokens of a vocabulary are special, and where they split a text.
//!
//! Must not know how the text between special tokens becomes tokens.
//!
//! **Invariant**: like llama.cpp, `split` searches the whole text for the longest special token first, then the
//! remaining parts for the next longest. So a longer token wins over a shorter one that overlaps it from the left.
//! Ollama's engine in Go searches for the token with the lowest id first, and Hugging Face's library goes through the
//! text from the left.
//!
//! **Source**: `tokenizer_st_partition` and `llama_vocab::impl::load` in llama.cpp's `llama-vocab.cpp`, and `Encode` and
//! `SpecialVocabulary` in Ollama 0.24's `tokenizer`. For a role that several texts may have, llama.cpp takes the first
//! in the order of a hash table; this code takes the lowest id.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::cmp::Reverse;
use std::iter::successors;
use std::ops::Range;

use memchr::memmem;
use rustc_hash::{FxHashMap, FxHashSet};

use super::engine::Engine;
use super::vocab::{TokenKind, TokenRole, Vocabulary};

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
    /// Sorted by text, then by id.
    all: Vec<SpecialToken>,
    /// The bytes with which some special token begins.
    first_bytes: Vec<u8>,
    /// Whether some special token begins with a byte.
    is_first_byte: [bool; 256],
    order: SearchOrder,
}

/// The order in which special tokens are searched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SearchOrder {
    /// The longest token first, then by id.
    Longest,
    /// The special tokens by id.
    Id,
    /// The token that begins first in the text, and of those the longest.
    Leftmost,
}

#[derive(Clone, Debug)]
struct SpecialToken {
    text: Vec<u8>,
    id: u32,
    /// The index of the last token before this one whose text is a prefix of this text.
    prefix: Option<usize>,
    /// Whether the token consumes the white space before it.
    strips_left: bool,
    /// Whether the token consumes the white space after it.
    strips_right: bool,
    /// Whether the token controls a conversation, for example ends a message, and is no text of a user or a model.
    is_control: bool,
}

impl SpecialTokens {
    /// Finds the special tokens that a vocabulary has in an engine.
    pub(super) fn new(vocabulary: &Vocabulary, engine: Engine) -> Self {
        let (mut all, order) = match engine {
            Engine::LlamaCpp | Engine::OldLlamaCpp => {
                (special_tokens(vocabulary, engine), SearchOrder::Longest)
            }
            Engine::OllamaGo => (special_tokens_by_kind(vocabulary), SearchOrder::Id),
            Engine::HuggingFace => (special_tokens_by_kind(vocabulary), SearchOrder::Leftmost),
        };
        // Other texts could match inside of a character.
        all.retain(|special| {
            !special.text.is_empty() && std::str::from_utf8(&special.text).is_ok()
        });
        all.sort_by(|a, b| (&a.text, a.id).cmp(&(&b.text, b.id)));
        let mut is_first_byte = [false; 256];
        for at in 0..all.len() {
            is_first_byte[usize::from(all[at].text[0])] = true;
            let mut prefix = at.checked_sub(1);
            while let Some(other) =
                prefix.filter(|other| !all[at].text.starts_with(&all[*other].text))
            {
                prefix = all[other].prefix;
            }
            all[at].prefix = prefix;
        }
        let first_bytes = (0..=255).filter(|byte| is_first_byte[usize::from(*byte)]).collect();
        Self { all, first_bytes, is_first_byte, order }
    }

    /// Splits a text at its special tokens.
    pub(super) fn split(&self, text: &[u8]) -> Vec<Fragment> {
        if self.order == SearchOrder::Leftmost {
            return self.split_from_left(text);
        }
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

    fn split_from_left(&self, text: &[u8]) -> Vec<Fragment> {
        let (mut fragments, mut done) = (Vec::new(), 0);
        for (start, at) in self.places(text) {
            // Of the tokens at one place, the longest comes first.
            if start < done {
                continue;
            }
            if done < start {
                fragments.push(Fragment::Text(done..start));
            }
            fragments.push(Fragment::Token(self.all[at].id));
            done = start + self.all[at].text.len();
        }
        if done < text.len() {
            fragments.push(Fragment::Text(done..text.len()));
        }
        fragments
    }

    /// Returns whether a special token occurs in a text.
    pub(super) fn occur_in(&self, text: &[u8]) -> bool {
        !self.occurring(text).is_empty()
    }

    /// Returns a text in which no control token occurs: a space stands behind the first character of each. A text without
    /// any is unchanged.
    pub(super) fn without_controls<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let mut text = Cow::Borrowed(text);
        // A space can complete a control token that has spaces itself. No control token begins with one, so each pass makes
        // a run of spaces longer, and no run remains that a token has.
        loop {
            let places = self.places(text.as_bytes());
            let controls = places.filter(|(_, at)| self.all[*at].is_control);
            let Some(broken) = broken_up(&text, controls.map(|(start, _)| start)) else {
                return text;
            };
            text = Cow::Owned(broken);
        }
    }

    /// Returns the special tokens that occur in a text, as indexes into `all`, in the order of the search.
    fn occurring(&self, text: &[u8]) -> Vec<usize> {
        let mut found = Vec::new();
        for (_, at) in self.places(text) {
            if !found.contains(&at) {
                found.push(at);
            }
        }
        match self.order {
            SearchOrder::Longest => found
                .sort_unstable_by_key(|at| (Reverse(self.all[*at].text.len()), self.all[*at].id)),
            SearchOrder::Id => found.sort_unstable_by_key(|at| self.all[*at].id),
            SearchOrder::Leftmost => {}
        }
        found
    }

    /// Returns each position, in ascending order, at which a special token occurs, with the token as an index into `all`.
    fn places<'a>(&'a self, text: &'a [u8]) -> impl Iterator<Item = (usize, usize)> + 'a {
        let first = self.next_first_byte(text, 0);
        let starts = successors(first, move |start: &usize| self.next_first_byte(text, start + 1));
        starts.flat_map(move |start| {
            let rest = &text[start..];
            // Every token that is a prefix of `rest` is a prefix of the greatest token that is not greater than `rest`.
            // They mostly differ in the second byte, so comparing byte by byte is faster than `<=`.
            let n_until = self.all.partition_point(|special| special.text.iter().le(rest));
            let candidates =
                successors(n_until.checked_sub(1), move |at: &usize| self.all[*at].prefix);
            let found = candidates.filter(move |at: &usize| rest.starts_with(&self.all[*at].text));
            found.map(move |at| (start, at))
        })
    }

    /// Returns the position, from `at` on, of the next byte with which a special token begins.
    fn next_first_byte(&self, text: &[u8], at: usize) -> Option<usize> {
        let rest = &text[at..];
        let found = match self.first_bytes.as_slice() {
            [] => None,
            [a] => memchr::memchr(*a, rest),
            [a, b] => memchr::memchr2(*a, *b, rest),
            [a, b, c] => memchr::memchr3(*a, *b, *c, rest),
            _ => rest.iter().position(|byte| self.is_first_byte[usize::from(*byte)]),
        };
        found.map(|found| at + found)
    }
}

/// Breaks up the control tokens as most models have them, texts such as `<|im_end|>` and a few others, of which `is_read`
/// says that a model reads them.
pub(super) fn without_usual_controls(text: &str, is_read: impl Fn(&str) -> bool) -> Cow<'_, str> {
    let is_control = |start: &usize| usual_control(&text[*start..]).is_some_and(&is_read);
    let starts = memchr::memchr2_iter(b'<', b'[', text.as_bytes());
    broken_up(text, starts.filter(is_control)).map_or(Cow::Borrowed(text), Cow::Owned)
}

/// Returns the control token with which a text begins: a name between `<|` and `|>`, or one of a few others.
fn usual_control(text: &str) -> Option<&str> {
    const OTHERS: [&str; 4] = ["<start_of_turn>", "<end_of_turn>", "[INST]", "[/INST]"];
    let Some(rest) = text.strip_prefix("<|") else {
        return OTHERS.into_iter().find(|other| text.starts_with(other));
    };
    let is_name = |char: char| char.is_ascii_alphanumeric() || "_-.:".contains(char);
    let end = rest.trim_start_matches(is_name);
    let is_named = end.len() < rest.len() && end.starts_with("|>");
    is_named.then(|| &text[..text.len() - end.len() + "|>".len()])
}

/// Puts a space behind the character at each of some positions, which ascend; returns `None` if there are none.
fn broken_up(text: &str, starts: impl Iterator<Item = usize>) -> Option<String> {
    let (mut broken, mut done) = (String::new(), 0);
    for start in starts {
        let end = start + text[start..].chars().next().map_or(0, char::len_utf8);
        // Several tokens can begin at one position.
        if end > done {
            broken.push_str(&text[done..end]);
            broken.push(' ');
            done = end;
        }
    }
    if broken.is_empty() {
        return None;
    }
    broken.push_str(&text[done..]);
    Some(broken)
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

/// Texts of special tokens, of which the first few are also listed by the llama.cpp in Ollama 0.24.
struct ListedTexts {
    texts: &'static [&'static str],
    n_old: usize,
}

impl ListedTexts {
    const fn new(n_old: usize, texts: &'static [&'static str]) -> Self {
        Self { texts, n_old }
    }

    fn of(&self, engine: Engine) -> &'static [&'static str] {
        if engine == Engine::OldLlamaCpp { &self.texts[..self.n_old] } else { self.texts }
    }
}

/// The texts that end a generation. Such tokens are special regardless of their type in the file.
const ENDS_OF_GENERATION: ListedTexts = ListedTexts::new(
    12,
    &[
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|eom_id|>",
        "<EOT>",
        "_<EOT>",
        "<|end_of_text|>",
        "<end_of_utterance>",
        "</s>",
        "<|flush|>",
        "<|calls|>",
        "[EOT]",
        "[EOS]",
        "<eos>",
        "<turn|>",
        "<|tool_response>",
        "<｜end▁of▁sentence｜>",
        "[e~[",
    ],
);

/// The texts that delimit a message of gpt-oss. Such tokens are special regardless of their type in the file.
const MESSAGE_DELIMITERS: ListedTexts =
    ListedTexts::new(4, &["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"]);

/// The texts of tokens that have a role unless the file gives it to another token. They are special too.
const ROLES: [(TokenRole, ListedTexts); 6] = [
    (
        TokenRole::FimPrefix,
        ListedTexts::new(
            7,
            &[
                "<|fim_prefix|>",
                "<fim-prefix>",
                "<fim_prefix>",
                "<｜fim▁begin｜>",
                "<PRE>",
                "▁<PRE>",
                "<|code_prefix|>",
                "<|prefix|>",
            ],
        ),
    ),
    (
        TokenRole::FimSuffix,
        ListedTexts::new(
            7,
            &[
                "<|fim_suffix|>",
                "<fim-suffix>",
                "<fim_suffix>",
                "<｜fim▁hole｜>",
                "<SUF>",
                "▁<SUF>",
                "<|code_suffix|>",
                "<|suffix|>",
            ],
        ),
    ),
    (
        TokenRole::FimMiddle,
        ListedTexts::new(
            7,
            &[
                "<|fim_middle|>",
                "<fim-middle>",
                "<fim_middle>",
                "<｜fim▁end｜>",
                "<MID>",
                "▁<MID>",
                "<|code_middle|>",
                "<|middle|>",
            ],
        ),
    ),
    (
        TokenRole::FimPad,
        ListedTexts::new(4, &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"]),
    ),
    (
        TokenRole::FimRepo,
        ListedTexts::new(
            5,
            &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"],
        ),
    ),
    (TokenRole::FimSeparator, ListedTexts::new(1, &["<|file_sep|>"])),
];

/// Returns the ids of the listed texts; of duplicate texts the last one wins, as in the engine.
fn listed_ids(vocabulary: &Vocabulary, engine: Engine) -> FxHashMap<&[u8], u32> {
    let lists =
        ROLES.iter().map(|(_, list)| list).chain([&ENDS_OF_GENERATION, &MESSAGE_DELIMITERS]);
    let texts = lists.flat_map(|list| list.of(engine));
    let texts: FxHashSet<&[u8]> = texts.map(|text| text.as_bytes()).collect();
    let tokens = vocabulary.texts.iter().zip(0..vocabulary.n_tokens);
    tokens.filter(|(text, _)| texts.contains(text)).collect()
}

/// Returns the special tokens that a vocabulary has in an engine without a list of its own, by id.
fn special_tokens_by_kind(vocabulary: &Vocabulary) -> Vec<SpecialToken> {
    let kinds = (0..).zip(&vocabulary.kinds);
    let special = |kind: &TokenKind| matches!(kind, TokenKind::Control | TokenKind::UserDefined);
    kinds.filter(|(_, kind)| special(kind)).map(|(id, _)| special_token(vocabulary, id)).collect()
}

fn special_token(vocabulary: &Vocabulary, id: u32) -> SpecialToken {
    let text = vocabulary.texts.of(id).to_vec();
    // A user-defined token, such as a tag for calls or for HTML, is written by users and models too, unless it ends messages.
    let mut ends = ENDS_OF_GENERATION.texts.iter().chain(MESSAGE_DELIMITERS.texts);
    let is_control = vocabulary.kinds.get(id as usize) != Some(&TokenKind::UserDefined)
        || ends.any(|end| end.as_bytes() == text);
    let is_control = is_control && can_be_broken_up(&String::from_utf8_lossy(&text));
    SpecialToken { text, id, prefix: None, strips_left: false, strips_right: false, is_control }
}

/// Returns whether a token does not occur in its own text with a space behind the first character, as one of a single character
/// or one that begins with a space does.
fn can_be_broken_up(token: &str) -> bool {
    broken_up(token, std::iter::once(0)).is_some_and(|broken| !broken.contains(token))
}

/// Returns the special tokens that a vocabulary has in llama.cpp, by id.
fn special_tokens(vocabulary: &Vocabulary, engine: Engine) -> Vec<SpecialToken> {
    let ids = listed_ids(vocabulary, engine);
    let find = |text: &str| ids.get(text.as_bytes()).copied();
    let mut is_special = vec![false; vocabulary.n_tokens as usize];
    for (is_special, kind) in is_special.iter_mut().zip(&vocabulary.kinds) {
        *is_special =
            matches!(kind, TokenKind::Control | TokenKind::UserDefined | TokenKind::Unknown);
    }
    let always = ENDS_OF_GENERATION.of(engine).iter().chain(MESSAGE_DELIMITERS.of(engine));
    for id in always.filter_map(|text| find(text)) {
        is_special[id as usize] = true;
    }
    for (role, list) in &ROLES {
        if vocabulary.role(*role).is_none()
            && let Some(id) = list.of(engine).iter().filter_map(|text| find(text)).min()
        {
            is_special[id as usize] = true;
        }
    }
    // In Gemma 4 and PLaMo `</s>` is an ordinary token.
    let ends_by_role = [TokenRole::Eos, TokenRole::Eot].map(|role| vocabulary.role(role));
    let mut ends = ends_by_role.into_iter().flatten();
    let is_plamo = ends.any(|id| vocabulary.texts.of(id) == b"<|plamo:eos|>");
    if (is_plamo || find("<|tool_response>").is_some())
        && let Some(id) = find("</s>")
    {
        is_special[id as usize] = false;
    }
    let ids = (0..).zip(&is_special).filter(|(_, is_special)| **is_special);
    let mut specials: Vec<SpecialToken> =
        ids.map(|(id, _)| special_token(vocabulary, id)).collect();
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
