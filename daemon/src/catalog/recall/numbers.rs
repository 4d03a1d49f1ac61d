//! The numbers that decide what recall finds: the scores of messages, when a message is worth a place in a prompt, and the
//! lengths of excerpts. The limits of the work are in `ranking`.

use std::ops::RangeInclusive;

// Scores.

/// The saturation of BM25.
pub(super) const SATURATION: f64 = 0.9;
/// The weight of a document's length in BM25.
pub(super) const LENGTH_SHARE: f64 = 0.4;
/// The shares of the scores of the message before and of the one before that.
pub(super) const BEFORE_SHARES: [f64; 2] = [0.6, 0.25];
/// The shares of the scores of the message after and of the one after that.
pub(super) const AFTER_SHARES: [f64; 2] = [0.25, 0.1];
/// The share of the session's score.
pub(super) const SESSION_SHARE: f64 = 0.3;
/// The greatest difference of two numbers of records that are neighbors: between two messages there are records that
/// are no messages.
pub(super) const NEAR_RECORDS: u64 = 12;
/// The greatest penalty for age, as a share of the score.
pub(super) const AGE_PENALTY: f64 = 0.04;
/// The age at which half of that penalty applies.
pub(super) const HALF_AGE_DAYS: f64 = 30.0;
/// The bytes of a record around its text.
pub(super) const RECORD_BYTES: u64 = 250;

// The nearer neighbor counts more, no neighbor as much as the message, and age never decides alone.
const _: () = assert!(BEFORE_SHARES[0] < 1.0 && BEFORE_SHARES[1] < BEFORE_SHARES[0]);
const _: () = assert!(AFTER_SHARES[1] < AFTER_SHARES[0] && AGE_PENALTY < AFTER_SHARES[1]);

// Terms.

/// Maximum number of terms of a question, one bit of [`super::terms::TermSet`] each.
pub(super) const MAX_TERMS: usize = 32;
/// A longer question is taken by this many bytes of its beginning and of its end, where the request itself mostly
/// stands.
pub(super) const MAX_SIDE_BYTES: usize = 4_096;
/// Minimum length of a number that a threshold counts as a value, in characters: `30` is in every conversation.
pub(super) const MIN_VALUE_DIGITS: usize = 3;
/// The numbers that are years.
pub(super) const YEARS: RangeInclusive<u16> = 1900..=2099;
/// The most words from the name of a month to the number of a day: `3 de octubre` has two.
pub(super) const DATE_WORDS: usize = 2;
/// The weight of a part of an identifier, which counts as a whole too.
pub(super) const PART_WEIGHT: f64 = 0.5;
/// The weight of a pair of CJK characters. A word of three characters has two.
pub(super) const CJK_WEIGHT: f64 = 0.6;
/// A question that has fewer new words than one in this number asks the same.
pub(super) const NEW_DIVISOR: usize = 4;

// When a message is recalled for a turn.

/// The least score of a message for a prompt, as a share of the weight of the question's words. Words that no message has
/// weigh most, so a question about something new finds nothing. Of 231 questions about earlier talk, 13 find nothing with 0.35,
/// 22 with 0.4 and 8 with 0.3; of 400 ordinary turns, 24 find something with 0.3 and 15 with 0.4.
pub(super) const MIN_SHARE: f64 = 0.35;
/// The same share for a message beside one that has [`MIN_SHARE`]: a question is often about several messages, and the one
/// that answers it does not always have most of its words.
pub(super) const MIN_SHARE_BESIDE: f64 = 0.2;
/// The same share for a question that points back: `the film that I told you about`.
pub(super) const MIN_SHARE_BACK: f64 = 0.12;

const _: () = assert!(MIN_SHARE_BACK < MIN_SHARE_BESIDE && MIN_SHARE_BESIDE < MIN_SHARE);

// Lengths of what is shown, in bytes.

/// The length up to which an answer is shown with the question before it, in bytes.
pub(super) const SHORT_ANSWER_BYTES: usize = 200;
/// The beginning of a text in which matches are looked for, in bytes. Longer texts are mostly data.
pub(super) const MAX_TEXT_BYTES: usize = 64 << 10;
/// The length in which matches count together, in bytes.
pub(super) const NEAR_BYTES: usize = 320;
/// The length up to which an excerpt is extended by the next sentence, in bytes.
pub(super) const EXTENDED_BYTES: usize = 310;
/// Maximum length of an excerpt in bytes. A text up to it is shown whole; a longer sentence is cut between two words.
pub(super) const MAX_EXCERPT_BYTES: usize = 600;
/// Maximum length of the excerpt of a neighboring message, in bytes.
pub(super) const MAX_NEIGHBOR_BYTES: usize = 300;

const _: () = assert!(EXTENDED_BYTES < NEAR_BYTES && NEAR_BYTES < MAX_EXCERPT_BYTES);
