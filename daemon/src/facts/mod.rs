//! Facts: what the user said and what still holds, found without a model in any language.
//!
//! - [`FactFold`] folds the messages of the user, and the context entries that users wrote, record by record.
//! - `sentences`, `values`, `counts`, `lexicon`, `features`, `words`, `candidate`, `before`: from a message to the sentences that
//!   state something, and how likely each of them lasts.
//! - [`recall_need`]: whether a message needs earlier ones.
//! - [`fact_block`] chooses the facts that a prompt shows; [`SaidText`] knows what it says already.
//!
//! **Invariants**: pure; the same records give the same facts in every replay; memory and time are bounded for any
//! text. Must not know contexts, strategies or the wire.

mod before;
mod block;
mod candidate;
mod counts;
mod features;
mod fold;
mod lexicon;
mod need;
mod numbers;
mod replacement;
mod said;
mod selection;
mod sentences;
#[cfg(test)]
mod tests;
mod values;
mod words;

pub(crate) use block::{ShownText, block_lines, fact_block};
pub(crate) use candidate::{Statement, for_each_statement, is_plain_request, is_talk};
pub(crate) use features::feature_names;
pub(crate) use fold::{
    FORGET_RECORD, FactFold, ForgottenFact, KnownFact, RankedFact, judge, judge_pairs,
};
pub(crate) use need::{RecallNeed, recall_need};
pub(crate) use replacement::pair_feature_names;
pub(crate) use said::SaidText;
pub(crate) use selection::{
    EXAM, FactCandidate, answer_format, chosen_places, fact_candidates, is_agreed, passes_exam,
    selection_request,
};
pub(crate) use sentences::{for_each_sentence_of_line, one_line};
pub(crate) use values::{FactValueKind, values_of_line};
pub(crate) use words::for_each_word;
