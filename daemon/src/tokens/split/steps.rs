//! The steps that split rules are made of.
//!
//! Must not know which rule has which steps. **Invariant**: the pieces of a piece, one after the other, are the piece.

use super::class::{SPACE, Scan};
use super::sets::{self, Set};
use super::words::{self, Cased, Words};

/// One pass over the text.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// Words as GPT-2 cuts them.
    Gpt2,
    /// Words as cl100k and its descendants cut them.
    Words(Words),
    /// Words in which a capital begins a new one.
    Cased(Cased),
    /// The last step of DeepSeek V3.
    DeepSeek3,
    /// Runs of a set, at most so many characters each.
    Runs(Set, usize),
    /// Groups of exactly three ASCII digits.
    Triples,
    /// Runs of a set, each with one white space before it.
    AfterSpace(Set),
    /// The white space at the end: `\s+$`.
    TrailingSpace,
}

/// Cuts a text by a scanner that always finds a word.
#[inline]
pub(super) fn each(
    scan: Scan<'_>,
    end_of: impl Fn(usize) -> usize,
    emit: &mut impl FnMut(usize, usize),
) {
    let mut at = 0;
    while at < scan.text.len() {
        let end = end_of(at);
        emit(at, end);
        at = end;
    }
}
/// Cuts a piece by all steps; `offset` is where it lies in the text.
pub(super) fn cut_all(
    steps: &[Step],
    piece: &[u8],
    offset: usize,
    emit: &mut dyn FnMut(usize, usize),
) {
    match steps {
        [] => emit(offset, offset + piece.len()),
        [last] => last.cut(piece, &mut |start, end| emit(offset + start, offset + end)),
        [step, rest @ ..] => step.cut(piece, &mut |start, end| {
            cut_all(rest, &piece[start..end], offset + start, emit);
        }),
    }
}

impl Step {
    fn cut(self, piece: &[u8], emit: &mut dyn FnMut(usize, usize)) {
        let scan = Scan::new(piece);
        let mut emit = |start: usize, end: usize| emit(start, end);
        match self {
            Self::Gpt2 => each(scan, |at| words::gpt2(scan, at), &mut emit),
            Self::Words(rule) => each(scan, |at| words::words(scan, at, rule), &mut emit),
            Self::Cased(rule) => each(scan, |at| words::cased(scan, at, rule), &mut emit),
            Self::DeepSeek3 => matches(scan, |at| words::deepseek3(scan, at), &mut emit),
            Self::Runs(set, limit) => matches(scan, |at| run(scan, at, set, limit), &mut emit),
            Self::Triples => matches(
                scan,
                |at| run(scan, at, sets::digits, 3).filter(|end| end - at == 3),
                &mut emit,
            ),
            Self::AfterSpace(set) => matches(scan, |at| after_space(scan, at, set), &mut emit),
            Self::TrailingSpace => {
                let end = trailing_space(scan);
                for (start, end) in [(0, end), (end, piece.len())] {
                    if start < end {
                        emit(start, end);
                    }
                }
            }
        }
    }
}

/// Cuts a text by an expression: what lies between two matches is a piece too.
fn matches(
    scan: Scan<'_>,
    end_of: impl Fn(usize) -> Option<usize>,
    emit: &mut impl FnMut(usize, usize),
) {
    let (mut gap, mut at) = (0, 0);
    while at < scan.text.len() {
        let Some(end) = end_of(at) else {
            at += scan.class(at).1;
            continue;
        };
        if gap < at {
            emit(gap, at);
        }
        emit(at, end);
        (gap, at) = (end, end);
    }
    if gap < at {
        emit(gap, at);
    }
}

fn run(scan: Scan<'_>, at: usize, set: Set, limit: usize) -> Option<usize> {
    let mut end = at;
    for _ in 0..limit {
        let len = set(scan, end);
        if len == 0 {
            break;
        }
        end += len;
    }
    (end > at).then_some(end)
}

fn after_space(scan: Scan<'_>, at: usize, set: Set) -> Option<usize> {
    let (class, len) = scan.class(at);
    let behind = (class & SPACE != 0).then(|| run(scan, at + len, set, usize::MAX)).flatten();
    behind.or_else(|| run(scan, at, set, usize::MAX))
}

/// Where the white space at the end begins.
fn trailing_space(scan: Scan<'_>) -> usize {
    let mut begin = scan.text.len();
    while begin > 0 {
        let before = scan.text[..begin].iter().rposition(|byte| byte & 0xc0 != 0x80);
        match before {
            Some(at) if scan.class(at).0 & SPACE != 0 => begin = at,
            _ => break,
        }
    }
    begin
}
