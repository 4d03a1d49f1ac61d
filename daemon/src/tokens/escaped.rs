//! Text with `▁` for its spaces, as SentencePiece and Gemma 4 read it, and where it can be cut without harm.
//!
//! Must not know merges. **Invariant**: a cut lies between two characters that no token has side by side, so that the
//! parts become the same tokens alone as together.

/// What stands for a space.
pub(super) const SPACE: &[u8] = "▁".as_bytes();

/// Where a text may be cut: before a `▁` that does not follow another, unless some token has it behind the character
/// before.
#[derive(Debug)]
pub(super) struct Cuts {
    /// Characters that a token has before a `▁`, as their bytes; sorted.
    before_space: Vec<Vec<u8>>,
}

impl Cuts {
    /// Looks at every text that merges can make.
    pub(super) fn new<'t>(texts: impl Iterator<Item = &'t [u8]>) -> Self {
        let finder = memchr::memmem::Finder::new(SPACE);
        let mut before_space = Vec::new();
        for text in texts {
            for at in finder.find_iter(text) {
                let before = last_char(&text[..at]);
                if !before.is_empty() && before != SPACE {
                    before_space.push(before.to_vec());
                }
            }
        }
        before_space.sort_unstable();
        before_space.dedup();
        Self { before_space }
    }

    /// Gives every part of a text, in order, as its first byte and the one after its last.
    pub(super) fn split(&self, text: &[u8], emit: &mut impl FnMut(usize, usize)) {
        let mut start = 0;
        for at in memchr::memmem::find_iter(text, SPACE) {
            let before = last_char(&text[start..at]);
            let joins = || self.before_space.binary_search_by(|char| char.as_slice().cmp(before));
            if !before.is_empty() && before != SPACE && joins().is_err() {
                emit(start, at);
                start = at;
            }
        }
        if start < text.len() {
            emit(start, text.len());
        }
    }
}

/// The bytes of the last character.
fn last_char(text: &[u8]) -> &[u8] {
    let start = text.iter().rposition(|byte| byte & 0xc0 != 0x80);
    &text[start.unwrap_or(0)..]
}

/// Appends a text with `▁` for its spaces.
pub(super) fn escape(text: &[u8], out: &mut Vec<u8>) {
    let mut start = 0;
    for at in memchr::memchr_iter(b' ', text) {
        out.extend_from_slice(&text[start..at]);
        out.extend_from_slice(SPACE);
        start = at + 1;
    }
    out.extend_from_slice(&text[start..]);
}

/// The bytes of every character with where it begins.
pub(super) fn chars(text: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let first = text.get(start)?;
        let len = match first {
            0xf0.. => 4,
            0xe0.. => 3,
            0xc0.. => 2,
            _ => 1,
        };
        let end = (start + len).min(text.len());
        let char = (start, &text[start..end]);
        start = end;
        Some(char)
    })
}

/// The tokens `<0x00>` to `<0xFF>`.
pub(super) fn byte_tokens(find: impl Fn(&[u8]) -> Option<u32>) -> Vec<Option<u32>> {
    (0..=255_u8).map(|byte| find(format!("<0x{byte:02X}>").as_bytes())).collect()
}
