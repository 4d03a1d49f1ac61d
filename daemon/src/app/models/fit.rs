//! `model.fitText`: how much of a text has at most some tokens, for clients that show a model texts within a budget.

use std::sync::Arc;

use ollm_protocol::methods::model::{ModelFitTextParams, ModelFitTextResult};

use super::super::core::Core;
use super::super::error::Result;
use super::model_or_default;
use crate::tokens::Counter;

/// The bytes of a token that are tried first: about those of English text. The length is doubled until it is too much, so
/// the work depends on the limit and not on the text.
const FIRST_BYTES_PER_TOKEN: u64 = 4;

/// Returns the longest beginning of a text that has at most some tokens (`model.fitText`). Blocks on the disk. Asks no
/// model server.
pub(crate) fn fit_text(core: &Arc<Core>, params: ModelFitTextParams) -> Result<ModelFitTextResult> {
    let ModelFitTextParams { model, text, token_limit } = params;
    let model = match core.model_or_default(model) {
        None => None,
        named => Some(model_or_default(core, named)?),
    };
    let counter = core.counts.load(model.as_deref(), None, &[]);
    let bytes = fitting_bytes(&counter, &text, token_limit);
    let fitting = &text[..bytes];
    let tokens = u64::from(counter.count_text(fitting));
    Ok(ModelFitTextResult {
        bytes: bytes as u64,
        tokens,
        count_kind: counter.kind_of_text(fitting),
    })
}

/// Returns the length of a beginning that fits while one more character would not.
fn fitting_bytes(counter: &Counter, text: &str, limit: u64) -> usize {
    let fits = |bytes: usize| u64::from(counter.count_text(&text[..bytes])) <= limit;
    let first = limit.saturating_mul(FIRST_BYTES_PER_TOKEN).max(1);
    let mut fitting = 0;
    let mut tried = boundary(text, usize::try_from(first).unwrap_or(usize::MAX));
    while tried > fitting && fits(tried) {
        fitting = tried;
        tried = boundary(text, tried.saturating_mul(2));
    }
    let mut too_many = tried.max(after(text, fitting));
    while let next = after(text, fitting)
        && next < too_many
    {
        let middle = boundary(text, fitting.midpoint(too_many)).max(next);
        if fits(middle) {
            fitting = middle;
        } else {
            too_many = middle;
        }
    }
    let next = after(text, fitting);
    if next > fitting && fits(next) { next } else { fitting }
}

/// Returns the last boundary of a character at or before a byte.
fn boundary(text: &str, byte: usize) -> usize {
    (0..=byte.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

/// Returns the end of the character that begins at a byte; the end of the text at the end.
fn after(text: &str, byte: usize) -> usize {
    text[byte..].chars().next().map_or(text.len(), |char| byte + char.len_utf8())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beginning_fits_and_one_more_character_does_not() {
        let count = |text: &str| u64::from(Counter::ESTIMATE.count_text(text));
        let texts = [
            "",
            "a",
            "one two three four five six",
            "é字🙂 ".repeat(50).as_str(),
            &"x".repeat(5000),
        ]
        .map(str::to_owned);
        for text in &texts {
            for limit in [0, 1, 2, 3, 7, 50, 100_000] {
                let bytes = fitting_bytes(&Counter::ESTIMATE, text, limit);
                assert!(count(&text[..bytes]) <= limit, "{limit} of {text:?}");
                let next = after(text, bytes);
                assert!(bytes == text.len() || count(&text[..next]) > limit, "{limit} of {text:?}");
            }
        }
    }
}
