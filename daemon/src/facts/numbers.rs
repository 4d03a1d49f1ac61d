//! The numbers that decide which facts a session has and in which order a head shows them.

// Points. A fact has those of its form (the table is `Classes::score`), of its values by their rarity, and of what
// became of it.

/// The points of a fact that was said again, for each time up to two.
pub(super) const REPEAT_POINTS: f32 = 1.0;
/// The points that a fact loses if it stands within a long message: what a user says stands before or after what is pasted.
pub(super) const MIDDLE_POINTS: f32 = 1.0;
/// The points of a pinned message's facts.
pub(super) const PIN_POINTS: f32 = 5.0;
/// The parts of the points of a fact's best values: the second value says less than the first, because the sentence is one
/// fact.
pub(super) const VALUE_PARTS: [f32; 3] = [1.0, 0.5, 0.25];
/// Score below which a fact is not worth its tokens.
pub(super) const MIN_SCORE: f32 = 1.0;
/// The points for which a fact may take this many more tokens than another.
pub(super) const TOKENS_PER_POINT: f32 = 12.0;

// Weights of values, by how much of them a reader could guess: `values` gives them.

/// The weight of values from which on a sentence states a fact without any rule.
pub(super) const MIN_WEIGHT: f32 = 1.0;
/// The weight of values from which on they are no words of the subject. A German noun is a word.
pub(super) const MIN_OWN_WEIGHT: f32 = 0.5;

// Lengths and numbers.

/// Characters of the longest text of a fact; of a longer sentence, the clauses with its values are kept.
pub(super) const MAX_TEXT_CHARS: usize = 240;
/// Bytes of the longest sentence that is read; a longer one is data.
pub(super) const MAX_SENTENCE_BYTES: usize = 2000;
/// Most words of a sentence that is a label and what it stands for.
pub(super) const MAX_LABEL_WORDS: usize = 8;
/// Most words that a subject is compared by.
pub(super) const MAX_SUBJECT_WORDS: usize = 24;
/// Characters by which words are compared, so that most endings do not matter.
pub(super) const STEM_CHARS: usize = 6;
/// Characters of the longest quoted text that counts as one value; longer quotes are prose.
pub(super) const MAX_QUOTE_CHARS: usize = 80;
/// Bytes of the longest word that counts as a value; longer words are data.
pub(super) const MAX_WORD_BYTES: usize = 200;
/// The largest bare number that counts as a small count.
pub(super) const MAX_SMALL_COUNT: u64 = 12;
/// Most values of one sentence; more of them are a table.
pub(super) const MAX_VALUES: usize = 12;
/// Bytes that are read at each end of a message. What lies between them is pasted data.
pub(super) const MAX_END_BYTES: usize = 32 * 1024;
/// Bytes of the longest line that is split; a longer one is data.
pub(super) const MAX_LINE_BYTES: usize = 8 * 1024;
/// Columns from which on a line may have been wrapped by an editor, so that its sentence goes on in the next one.
pub(super) const WRAP_COLUMNS: usize = 60;
/// Lines with a time in front from which on a message has a pasted log, of which these lines are.
pub(super) const MIN_LOG_LINES: usize = 3;
/// Maximum number of facts that are kept; beyond it, a quarter of them go, the least important first. The largest
/// window shows some hundred.
pub(super) const MAX_FACTS: usize = 1024;
/// Maximum number of facts of one message; a message with more is a table or a document.
pub(super) const MAX_MESSAGE_FACTS: usize = 64;
/// Maximum number of distinct values whose messages are counted. Later ones count as rare.
pub(super) const MAX_VALUES_COUNTED: usize = 8 * 1024;
/// Maximum number of facts that are compared by one common word: the newest.
pub(super) const MAX_COMPARED: usize = 32;
/// Messages of the user within which `it` can mean the newest fact.
pub(super) const PRONOUN_MESSAGES: u32 = 3;
/// Maximum number of facts that can be suppressed by name.
pub(super) const MAX_FORGOTTEN: usize = 10_000;
/// Bytes of the shortest message whose facts can lose [`MIDDLE_POINTS`].
pub(super) const LONG_MESSAGE_BYTES: usize = 2000;
/// Bytes of the beginning and of the end of such a message.
pub(super) const END_BYTES: usize = 400;

const _: () = assert!(2 * END_BYTES < LONG_MESSAGE_BYTES);
