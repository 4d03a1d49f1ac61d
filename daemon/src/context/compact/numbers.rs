//! The numbers that decide what a summary has, which summaries are accepted, and what becomes of checkpoints.

use std::ops::RangeInclusive;

/// The level of a new checkpoint; it falls as the checkpoint ages.
pub(crate) const RECENT_LEVEL: u8 = 3;
/// The longest instructions in characters, of a client or of all hooks together; every request for a summary repeats them.
pub(crate) const MAX_INSTRUCTIONS: usize = 2000;

// Percent of the target of a summary.

/// Percent of a target for each section in the order of rendering: goal, constraints, progress, decisions, next steps and
/// critical context. A section that needs less leaves the rest to the others.
pub(super) const SECTION_PERCENTS: [u64; 6] = [12, 18, 20, 20, 8, 22];

const _: () = {
    let [goal, constraints, progress, decisions, next, critical] = SECTION_PERCENTS;
    assert!(goal + constraints + progress + decisions + next + critical == 100);
};

// Percent of the room of the conversation.

/// The smallest gain of a compaction, in percent of the room of the conversation.
pub(super) const MIN_GAIN_PERCENT: u64 = 10;

// Sizes in tokens.

/// Tokens of the smallest range that is worth a summary.
pub(super) const MIN_RANGE_TOKENS: u64 = 128;
/// Tokens of the smallest summary with its headings.
pub(super) const MIN_SUMMARY_TOKENS: u64 = 96;

// What a summarizer is shown of each text, in characters at the beginning and at the end.

/// Characters of a message of the user, which is worth most.
pub(super) const SHOWN_OF_USER: (usize, usize) = (3000, 1000);
/// Characters of an answer.
pub(super) const SHOWN_OF_ASSISTANT: (usize, usize) = (1500, 500);
/// Characters of the result of a tool, of which only the ends matter once it is old.
pub(super) const SHOWN_OF_RESULT: (usize, usize) = (400, 200);
/// Characters of the arguments of a call.
pub(super) const SHOWN_OF_ARGUMENTS: (usize, usize) = (160, 40);

// What a summary without a model takes.

/// Characters kept of a line, at the beginning and at the end.
pub(super) const KEPT_OF_LINE: (usize, usize) = (200, 40);
/// Characters of the longest line that is kept whole.
pub(super) const MAX_WHOLE_CHARS: usize = 280;
/// Characters kept of the original request.
pub(super) const KEPT_OF_REQUEST: (usize, usize) = (500, 100);
/// Bytes of the shortest sentence that stands for an answer.
pub(super) const MIN_SENTENCE_BYTES: usize = 40;
/// Bytes of the shortest answer that reports progress.
pub(super) const MIN_ANSWER_BYTES: usize = 12;
/// Maximum number of lines of each kind; more do not fit into any target.
pub(super) const MAX_LINES: usize = 48;
/// Maximum number of sentences with values that are taken of one answer; an answer with more explains something.
pub(super) const MAX_REPORTS: usize = 2;
/// Digits of the shortest number that an answer reports.
pub(super) const MIN_REPORTED_DIGITS: usize = 3;
/// Numbers that are years.
pub(super) const YEARS: RangeInclusive<u32> = 1500..=2100;
/// Bytes of the longest line that is searched; longer lines are data.
pub(super) const MAX_SEARCHED_BYTES: usize = 1000;
/// Lines of a text that are searched.
pub(super) const MAX_TEXT_LINES: usize = 2000;

const _: () = assert!(KEPT_OF_LINE.0 + KEPT_OF_LINE.1 < MAX_WHOLE_CHARS);

// The form of a summary.

/// Characters of the shortest line that is cut; a shorter line is dropped, because its beginning says nothing.
pub(super) const MIN_LINE_CHARS: usize = 24;
/// The most digits of a number in a list.
pub(super) const MAX_NUMBER_DIGITS: usize = 3;
/// Characters of the longest line that can be a heading without marks.
pub(super) const MAX_HEADING_CHARS: usize = 40;
/// Letters that a narrative has at least; less is a remark.
pub(super) const MIN_NARRATIVE_CHARS: usize = 60;
/// Maximum number of lines of each list beside a summary.
pub(super) const MAX_LISTED: usize = 32;

// When an answer is no summary.

/// The fewest lines of a summary; one line stands for no conversation.
pub(super) const MIN_LINES: usize = 2;
/// The fewest words by which a line is recognized as a part of the instructions.
pub(super) const MIN_ECHOED_WORDS: usize = 4;
/// The fewest headlines that are questions, by which an answer to the conversation is recognized.
pub(super) const MIN_ANSWERED: usize = 2;
/// The fewest repeated lines, and the divisor of all lines, from which an answer goes round in circles.
pub(super) const REPEATED: (usize, usize) = (3, 4);
/// The fewest values of a summary that its records do not name, from which it is judged by them.
pub(super) const MIN_INVENTED: usize = 4;
/// The fewest words of the task that a line about the task has, beside those of the records.
pub(super) const MIN_TASK_WORDS: usize = 2;
/// The most invented values that the reason of a rejection names.
pub(super) const MAX_INVENTED_NAMED: usize = 4;
/// The most lost values that a rejection names.
pub(super) const MAX_LOST_NAMED: usize = 8;
/// The fewest values of earlier notes by which a new summary is judged.
pub(super) const MIN_JUDGED_VALUES: usize = 3;
/// The part of the earlier values that an update keeps, as a numerator and a divisor.
pub(super) const KEPT_VALUES: (usize, usize) = (2, 3);

// When two lines are about the same.

/// Percent of the words of two lines of progress that both have if they say the same.
pub(super) const SAME_SUBJECT_PERCENT: usize = 80;
/// The fewest words that such lines both have.
pub(super) const MIN_SUBJECT_WORDS: usize = 3;
/// Words that a text must have before the share of its capitals says anything.
pub(super) const MIN_WORDS_FOR_CAPITALS: usize = 8;
/// The divisor of the words within sentences that may be capitalized in a text whose capitals are names.
pub(super) const CAPITALS_DIVISOR: usize = 4;
