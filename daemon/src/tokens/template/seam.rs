//! Dividing the text between two messages where its sides can be counted apart. Pure.

use serde::{Deserialize, Serialize};

use crate::tokens::Tokenizer;

/// Candidates at each end of a long text; what belongs to neighbors stands at its ends.
const NEAR_ENDS: usize = 96;
/// How messages end: with what tokenizers like to join with what follows.
const ENDS: [&str; 9] = ["a", "a.", "a\n", "a. \n\n", "12", "字", "a  ", "{\"a\":1}", "\t"];
/// How messages begin.
const BEGINNINGS: [&str; 9] = ["a", " a", "\na", ".", "12", "\n\n", "'s", "字", "  {"];

/// The text between two messages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::tokens) struct Seam {
    /// Its part that is counted with the message before it.
    pub(in crate::tokens) left: String,
    /// Its part that is counted with the message after it.
    pub(in crate::tokens) right: String,
    /// Tokens that the whole has more than the two sides.
    pub(in crate::tokens) extra: i32,
}

impl Seam {
    /// Divides a text between two messages; `None` where the sides never add up.
    pub(super) fn between(tokenizer: &Tokenizer, text: &str) -> Option<Self> {
        let places: Vec<usize> = (0..=text.len()).filter(|at| text.is_char_boundary(*at)).collect();
        let far = places.len().saturating_sub(NEAR_ENDS);
        let tried = places.iter().enumerate().filter(|(at, _)| *at < NEAR_ENDS || *at >= far);
        let mut second = None;
        for (_, at) in tried {
            let (left, right) = text.split_at(*at);
            match difference(tokenizer, left, right) {
                Some(0) => return Some(Self::of(left, right, 0)),
                Some(extra) => second = second.or(Some(Self::of(left, right, extra))),
                None => {}
            }
        }
        second
    }

    /// The text before the first message, which is counted with it.
    pub(super) fn start(tokenizer: &Tokenizer, text: &str) -> Option<Self> {
        let around = tokenizer.ids_with("", true);
        match around.as_slice() {
            [] => Some(Self::of("", text, 0)),
            // The engine puts it there unless the text brings it along.
            [bos] if tokenizer.adds_bos() => {
                let has = tokenizer.ids(text).first() == Some(bos);
                Some(Self::of("", text, i32::from(!has)))
            }
            _ => None,
        }
    }

    /// The text after the last message, which is counted with it.
    pub(super) fn end(text: &str) -> Self {
        Self::of(text, "", 0)
    }

    fn of(left: &str, right: &str, extra: i32) -> Self {
        Self { left: left.to_owned(), right: right.to_owned(), extra }
    }

    /// The whole text.
    pub(super) fn text(&self) -> String {
        format!("{}{}", self.left, self.right)
    }
}

/// What the whole has more than its sides, where that is the same for all neighbors.
fn difference(tokenizer: &Tokenizer, left: &str, right: &str) -> Option<i32> {
    let count = |text: &str| i64::from(tokenizer.count(text));
    let mut common = None;
    for end in ENDS {
        let before = format!("{end}{left}");
        let n_before = count(&before);
        for beginning in BEGINNINGS {
            let after = format!("{right}{beginning}");
            let extra = count(&format!("{before}{after}")) - n_before - count(&after);
            if *common.get_or_insert(extra) != extra {
                return None;
            }
        }
    }
    i32::try_from(common?).ok()
}
