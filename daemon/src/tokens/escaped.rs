//! Escaped text, with `▁` for spaces, as SentencePiece and Gemma 4 vocabularies read it.
//!
//! These vocabularies do not split text into words. Instead, [`CutPoints`] finds the positions that no token spans,
//! so that the text between two of them can be merged and cached on its own.
//! Must not know merges.
//!
//! **Invariant**: a text is cut only between two characters that no token has next to each other, so its parts have
//! the same tokens separately as together.

use rustc_hash::FxHashSet;

/// The replacement of a space.
pub(super) const SPACE: &[u8] = "▁".as_bytes();

/// The pairs of characters that are adjacent in some token. A text may be cut between any other two characters.
#[derive(Debug)]
pub(super) struct CutPoints {
    /// For each ASCII character, the set of ASCII characters that may follow it, as bits. `▁` is [`SPACE_CODE`] here.
    ascii: Vec<u128>,
    /// The other pairs, with the left character's code in the high half and the right one's in the low half.
    wide: FxHashSet<u64>,
}

/// The code of `▁`, which is common enough for the ASCII table. A control character shares this code, which only means
/// fewer cuts.
const SPACE_CODE: u32 = 0x1f;

impl CutPoints {
    /// Collects the adjacent pairs of `texts`, which must be all texts that merges can produce.
    pub(super) fn new<'t>(texts: impl Iterator<Item = &'t [u8]>) -> Self {
        let mut points = Self { ascii: vec![0; 128], wide: FxHashSet::default() };
        for text in texts {
            let mut left = None;
            for (_, char) in chars(text) {
                let right = code(char);
                if let Some(left) = left {
                    points.insert(left, right);
                }
                left = Some(right);
            }
        }
        points.wide.shrink_to_fit();
        points
    }

    fn insert(&mut self, left: u32, right: u32) {
        if left < 128 && right < 128 {
            self.ascii[left as usize] |= 1 << right;
        } else {
            self.wide.insert(u64::from(left) << 32 | u64::from(right));
        }
    }

    #[inline]
    fn are_adjacent(&self, left: u32, right: u32) -> bool {
        if left < 128 && right < 128 {
            self.ascii[left as usize] >> right & 1 == 1
        } else {
            self.wide.contains(&(u64::from(left) << 32 | u64::from(right)))
        }
    }

    /// Calls `emit` with the start and end of each part of a text, in order.
    #[inline]
    pub(super) fn split(&self, text: &[u8], emit: &mut impl FnMut(usize, usize)) {
        let (mut start, mut left) = (0, None);
        for (at, char) in chars(text) {
            let right = code(char);
            if left.is_some_and(|left| !self.are_adjacent(left, right)) {
                emit(start, at);
                start = at;
            }
            left = Some(right);
        }
        if start < text.len() {
            emit(start, text.len());
        }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.ascii.capacity() * size_of::<u128>() + self.wide.capacity() * 8 / 7 * 9
    }
}

/// Returns the bytes of a character as a number, which for ASCII is the character itself.
#[inline]
fn code(char: &[u8]) -> u32 {
    match *char {
        [a] => u32::from(a),
        _ if char == SPACE => SPACE_CODE,
        _ => char.iter().fold(0, |code, byte| code << 8 | u32::from(*byte)),
    }
}

/// Appends a text with `▁` for each space.
pub(super) fn escape(text: &[u8], out: &mut Vec<u8>) {
    let mut start = 0;
    for at in memchr::memchr_iter(b' ', text) {
        out.extend_from_slice(&text[start..at]);
        out.extend_from_slice(SPACE);
        start = at + 1;
    }
    out.extend_from_slice(&text[start..]);
}

/// Returns the position and the bytes of each character.
#[inline]
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

/// Looks up the tokens `<0x00>` to `<0xFF>`.
pub(super) fn byte_tokens(find: impl Fn(&[u8]) -> Option<u32>) -> Vec<Option<u32>> {
    (0..=255_u8).map(|byte| find(format!("<0x{byte:02X}>").as_bytes())).collect()
}
