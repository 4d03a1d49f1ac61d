//! The numbers that decide which facts a session has and in which order a head shows them.

// Scores. The score of a fact is the logarithm of the odds that it lasts: that of its sentence (`points.txt`), and what the
// talk does with it.

/// The points of `points.txt` for a score of 1.
pub(super) const POINTS_PER_SCORE: f32 = 10.0;
/// The score of a sentence from which on it is kept, in case that the talk comes back to it.
pub(super) const MIN_CANDIDATE_SCORE: f32 = -2.0;
/// The score from which on a fact is listed, and shown to the model: odds of two to three.
pub(super) const MIN_SCORE: f32 = -0.4;
/// The score that a fact gains each time that it is said again, up to two times.
pub(super) const REPEAT_SCORE: f32 = 1.0;
/// The score that a fact loses if all of its values occur in many messages, for each doubling of their number.
pub(super) const COMMON_SCORE: f32 = 0.5;
/// The score that a fact loses if it stands within a long message: what a user says stands before or after what is pasted.
pub(super) const MIDDLE_SCORE: f32 = 1.0;
/// The score that a fact loses if it stands behind the announcement of a text to work on: `Shorten this:`.
pub(super) const PASTED_SCORE: f32 = 1.5;
/// The score that a pinned message's facts gain.
pub(super) const PIN_SCORE: f32 = 5.0;
/// The score that a fact gains which a model chose. A model of which a fifth of the answers is wrong multiplies the odds by
/// four; most are worse.
pub(super) const CHOSEN_SCORE: f32 = 1.2;
/// The score from which on a sentence takes the place of an earlier fact.
pub(super) const MIN_REPLACEMENT_SCORE: f32 = 0.0;
/// The score from which on it may, so that both are shown in one line.
pub(super) const MIN_DOUBT_SCORE: f32 = -0.7;
/// The score for which a fact may take this many more tokens than another.
pub(super) const TOKENS_PER_SCORE: f32 = 24.0;

const _: () = assert!(MIN_CANDIDATE_SCORE < MIN_SCORE && MIN_DOUBT_SCORE < MIN_REPLACEMENT_SCORE);

// Weights of values, by how much of them a reader could guess: `values` gives them.

/// The weight of values from which on a request says more than what to do.
pub(super) const MIN_WEIGHT: f32 = 1.0;
/// The weight of values from which on they are no words of the subject. A German noun is a word.
pub(super) const MIN_OWN_WEIGHT: f32 = 0.5;

// Lengths and numbers.

/// Characters of the longest text of a fact; of a longer sentence, the clauses with its values are kept.
pub(super) const MAX_TEXT_CHARS: usize = 240;
/// Fewest letters and digits of a word that can end a sentence before a small letter; a shorter one may be an abbreviation.
pub(super) const MIN_LAST_WORD_CHARS: usize = 3;
/// Bytes of the shortest quotation in lines of its own that is a text of others; a shorter one may be what to write or to say.
pub(super) const MIN_QUOTATION_BYTES: usize = 160;
/// Fewest words of a statement, and of a question that a comma joins to it; `isn't it?` only asks about the statement.
pub(super) const MIN_CLAUSE_WORDS: usize = 3;
/// Bytes of the longest sentence that is read; a longer one is data.
pub(super) const MAX_SENTENCE_BYTES: usize = 2000;
/// Most words of a sentence that is a label and what it stands for.
pub(super) const MAX_LABEL_WORDS: usize = 8;
/// Most words of a short sentence, which mostly says little.
pub(super) const SHORT_WORDS: usize = 3;
/// Fewest words of a long sentence, less one.
pub(super) const LONG_WORDS: usize = 30;
/// Most words of an answer that needs its question to be understood.
pub(super) const ANSWER_WORDS: usize = 8;
/// Fewest words between quotation marks that are words of others and no name, and characters in a script without spaces.
pub(super) const MIN_QUOTED_WORDS: usize = 4;
pub(super) const MIN_QUOTED_CHARS: usize = 8;
/// Most words of its own of a sentence that may need the one before it to be understood.
pub(super) const MAX_POINTING_WORDS: usize = 2;
/// Characters of the longest question that is kept with its answer.
pub(super) const MAX_QUESTION_CHARS: usize = 160;
/// Characters of the shortest number that names something, such as a port.
pub(super) const MIN_NAMED_NUMBER_CHARS: usize = 3;
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
/// Most numbers of something that are kept of one sentence.
pub(super) const MAX_COUNTS: usize = 8;
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
/// Maximum number of facts, sharing the most words with a sentence, that the sentence is compared with; and of the newest.
pub(super) const MAX_PAIRS: usize = 8;
/// Messages of the user within which `it` can mean the newest fact.
pub(super) const PRONOUN_MESSAGES: u32 = 3;
/// Maximum number of facts that a model is asked about at once; more are too many for a small one.
pub(super) const MAX_CANDIDATES: usize = 12;
/// Maximum number of those that a head shows already.
pub(super) const MAX_SHOWN_CANDIDATES: usize = 4;
/// Fewest facts that are worth two requests.
pub(super) const MIN_CANDIDATES: usize = 8;
/// The lasting sentences that a model must choose beyond the others before its choices count. Of models that guess, one in
/// fourteen does; of those of which a fifth of the answers is wrong, four in five.
pub(super) const EXAM_MARGIN: usize = 3;
/// Maximum number of facts that no longer hold and are looked for in notes: the newest. Notes have some fifty lines.
pub(super) const MAX_ENDED: usize = 256;
/// Maximum number of facts that can be suppressed by name.
pub(super) const MAX_FORGOTTEN: usize = 10_000;
/// Bytes of the shortest message whose facts can lose [`MIDDLE_SCORE`].
pub(super) const LONG_MESSAGE_BYTES: usize = 2000;
/// Bytes of the beginning and of the end of such a message.
pub(super) const END_BYTES: usize = 400;

const _: () = assert!(2 * END_BYTES < LONG_MESSAGE_BYTES);
