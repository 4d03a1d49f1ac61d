//! Text with `▁` for its spaces, as SentencePiece and Gemma 4 read it, and where it can be cut without harm.
//!
//! Must not know merges. **Invariant**: a cut lies between two characters that no token has side by side, so that the
//! parts become the same tokens alone as together.

use rustc_hash::FxHashSet;

/// What stands for a space.
pub(super) const SPACE: &[u8] = "▁".as_bytes();

/// Which characters stand side by side in some text that merges can make. Between two that never do a text may be cut.
#[derive(Debug)]
pub(super) struct Cuts {
    /// For every ASCII character which ASCII characters follow it, as bits. `▁` is [`SPACE_BIT`] here.
    ascii: Vec<u128>,
    /// The other pairs: the left code point in the high half, the right one in the low half.
    wide: FxHashSet<u64>,
}

/// The ASCII character whose place `▁` takes, because it is as common as a space. That the two share their pairs only
/// means fewer cuts.
const SPACE_BIT: u32 = 0x1f;

impl Cuts {
    /// Looks at every text that merges can make.
    pub(super) fn new<'t>(texts: impl Iterator<Item = &'t [u8]>) -> Self {
        let mut cuts = Self { ascii: vec![0; 128], wide: FxHashSet::default() };
        for text in texts {
            let mut left = None;
            for (_, char) in chars(text) {
                let right = code(char);
                if let Some(left) = left {
                    cuts.join(left, right);
                }
                left = Some(right);
            }
        }
        cuts.wide.shrink_to_fit();
        cuts
    }

    fn join(&mut self, left: u32, right: u32) {
        if left < 128 && right < 128 {
            self.ascii[left as usize] |= 1 << right;
        } else {
            self.wide.insert(u64::from(left) << 32 | u64::from(right));
        }
    }

    #[inline]
    fn are_joined(&self, left: u32, right: u32) -> bool {
        if left < 128 && right < 128 {
            self.ascii[left as usize] >> right & 1 == 1
        } else {
            self.wide.contains(&(u64::from(left) << 32 | u64::from(right)))
        }
    }

    /// Gives every part of a text, in order, as its first byte and the one after its last.
    #[inline]
    pub(super) fn split(&self, text: &[u8], emit: &mut impl FnMut(usize, usize)) {
        let (mut start, mut left) = (0, None);
        for (at, char) in chars(text) {
            let right = code(char);
            if left.is_some_and(|left| !self.are_joined(left, right)) {
                emit(start, at);
                start = at;
            }
            left = Some(right);
        }
        if start < text.len() {
            emit(start, text.len());
        }
    }

    /// Bytes of memory.
    pub(super) fn heap_bytes(&self) -> usize {
        self.ascii.capacity() * size_of::<u128>() + self.wide.capacity() * 8 / 7 * 9
    }
}

/// The bytes of a character as a number: different ones for different characters, and itself for ASCII.
#[inline]
fn code(char: &[u8]) -> u32 {
    match *char {
        [a] => u32::from(a),
        _ if char == SPACE => SPACE_BIT,
        _ => char.iter().fold(0, |code, byte| code << 8 | u32::from(*byte)),
    }
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

/// The tokens `<0x00>` to `<0xFF>`.
pub(super) fn byte_tokens(find: impl Fn(&[u8]) -> Option<u32>) -> Vec<Option<u32>> {
    (0..=255_u8).map(|byte| find(format!("<0x{byte:02X}>").as_bytes())).collect()
}
