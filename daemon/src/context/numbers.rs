//! The numbers that decide what a prompt shows: shares of its room, sizes that are worth showing, and lengths of what is
//! kept of a record. Those of compaction are in `compact/numbers.rs`.
//!
//! A name in `PERCENT` is a share of what its section names; a divisor is the share of the tokens that are left at that
//! moment. Assertions below each table show that shares of one whole add up.

use std::ops::RangeInclusive;

// Percent of the prompt limit.

/// Percent of the prompt limit that the newest unit leaves to the other layers.
pub(super) const OTHERS_PERCENT: u64 = 10;
/// Percent of the prompt limit that older records may have beside a large newest unit, as long as the conversation stays
/// below [`CROWDED_PERCENT`] of its room.
pub(super) const BESIDE_PERCENT: u64 = 20;
/// Percent of the prompt limit that all context entries together may have.
pub(crate) const ENTRIES_PERCENT: u64 = 20;
/// Percent of the prompt limit that the goal may have.
pub(crate) const GOAL_PERCENT: u64 = 15;
/// Percent of the prompt limit that all pinned texts together may have.
pub(crate) const PIN_PERCENT: u64 = 10;
/// Percent of the prompt limit that one result of a tool for recall may have.
pub(crate) const RECALL_RESULT_PERCENT: u64 = 10;
/// Percent of the prompt limit for the facts that the user stated.
pub(super) const FACTS_PERCENT: u64 = 20;
/// Percent of a small prompt limit for facts, up to [`BEST_FACTS_TOKENS`]: the best ones are worth more than the turns that
/// would stand there.
pub(super) const BEST_FACTS_PERCENT: u64 = 32;
/// Percent of the prompt limit for file lists.
pub(super) const FILE_PERCENT: u64 = 2;
/// Percent of the prompt limit that is reserved for earlier messages at least.
pub(super) const EARLIER_PERCENT: u64 = 5;

/// Percent of the prompt limit that a checkpoint of each level may have, the oldest level first; the last is that of a new summary.
pub(super) const LEVEL_PERCENTS: [u64; 4] = [5, 10, 15, 25];
/// Percent of the prompt limit that all checkpoints may have together.
pub(super) const CHECKPOINTS_PERCENT: u64 = 40;

// A full system message leaves most of the limit to the conversation; the parts of an opening get what is left of it.
const _: () = assert!(ENTRIES_PERCENT + GOAL_PERCENT < 50);
// A new summary and an aged one fill the whole; older ones shrink further as they age.
const _: () = assert!(LEVEL_PERCENTS[3] + LEVEL_PERCENTS[2] <= CHECKPOINTS_PERCENT);
const _: () = assert!(FACTS_PERCENT < BEST_FACTS_PERCENT);
// The parts of an opening and all checkpoints leave some of the limit to the turns.
const _: () = assert!(
    PIN_PERCENT + BEST_FACTS_PERCENT + FILE_PERCENT + EARLIER_PERCENT + CHECKPOINTS_PERCENT < 100
);

// Percent of the room of the conversation: the prompt limit without system message, tools and checkpoints.

/// Percent of the room that a planner aims at for a new head, at least and at most: a head that leaves much room shows less
/// of the conversation, one that leaves little has to be replaced soon.
pub(super) const TARGET_PERCENTS: RangeInclusive<u64> = 50..=74;
/// Percent of the room that a new head and the next [`NEXT_TURNS`] fill.
pub(super) const GROWN_PERCENT: u64 = 89;
/// Turns for which a new head leaves room, each as large as the newest ones.
pub(super) const NEXT_TURNS: usize = 6;
/// Percent of the room that joins and markers may add to what a planner aimed at. So the next turns fit before another head
/// is needed. What is being answered may have more.
pub(super) const JOINS_PERCENT: u64 = 5;
/// Percent of the room that the whole history may have where a larger window opens a new epoch: below the share from which
/// it would be compacted in the next pause.
pub(super) const REGAINED_PERCENT: u64 = 80;
/// Percent of the room below which a conversation stays if older records have [`BESIDE_PERCENT`] beside a large newest unit.
pub(super) const CROWDED_PERCENT: u64 = 84;
/// Percent of the room below which a conversation stays if older records have [`LEAST_BESIDE`] beside a large newest unit.
pub(super) const FULL_PERCENT: u64 = 90;
/// Percent of the tokens of older records that checkpoints may have; larger ones are shortened.
pub(super) const NOTES_PERCENT: u64 = 65;

const _: () = assert!(*TARGET_PERCENTS.start() < *TARGET_PERCENTS.end());
const _: () = assert!(*TARGET_PERCENTS.end() + JOINS_PERCENT < REGAINED_PERCENT);
const _: () = assert!(*TARGET_PERCENTS.end() < GROWN_PERCENT && GROWN_PERCENT < FULL_PERCENT);
const _: () = assert!(REGAINED_PERCENT < CROWDED_PERCENT && CROWDED_PERCENT < FULL_PERCENT);
const _: () = assert!(NOTES_PERCENT < 100 && FULL_PERCENT < 100);

// Percent of the target of a head.

/// Percent of a target that the newest turns may have where summaries, files, pins and earlier messages stand too.
pub(super) const RECENT_PERCENT: u64 = 80;
/// Percent of the target for the state in `minimal-state`.
pub(super) const STATE_PERCENT: u64 = 40;

const _: () = assert!(RECENT_PERCENT < 100 && STATE_PERCENT < 50);

// Divisors of the tokens that are left.

/// The divisor for the part of the room that the explanation of the notes may take.
pub(super) const NOTICE_DIVISOR: u64 = 10;
/// The divisor for the part of the tokens left that facts may have before the turns are chosen.
pub(super) const FACTS_DIVISOR: u64 = 2;
/// The divisor for the part of the tokens left that [`EARLIER_PERCENT`] may take.
pub(super) const EARLIER_REST_DIVISOR: u64 = 2;
/// The divisor for the part of the user messages' tokens that is reserved for earlier ones.
pub(super) const EARLIER_DIVISOR: u64 = 8;
/// The divisor for the part of the tokens left that one quote, or the list of files, may have before it is cut.
pub(super) const QUOTE_DIVISOR: u64 = 4;
/// The divisor for the part of the tokens left that pins may have in `floor`, and facts.
pub(super) const PART_DIVISOR: u64 = 4;

// Pins and facts of the smallest head leave half of it to the turns.
const _: () = assert!(2 * 100 / PART_DIVISOR <= 50);

// Sizes in tokens.

/// Tokens of the smallest useful conversation beside a system message, and of the lines that explain its notes.
pub(crate) const MIN_TURN_TOKENS: u64 = 384;
/// Tokens that older records may have beside a large newest unit in the smallest windows: enough for the task, the pins, the
/// newest file and the message before.
pub(super) const LEAST_BESIDE: u64 = MIN_TURN_TOKENS;
/// Tokens that the best facts of a session have.
pub(super) const BEST_FACTS_TOKENS: u64 = 1000;
/// Tokens of the smallest target of `floor`, below which nothing useful can be kept.
pub(super) const FLOOR_TOKENS: u64 = 96;
/// The fewest tokens that the newest unit leaves to the other layers: both ends of the original task, in the smallest
/// windows.
pub(super) const MIN_OTHERS: u64 = 96;
/// Tokens that suffice to show both ends of any record.
pub(super) const MIN_SHARE: u64 = 48;
/// Tokens that show a little of both ends of a record of the newest unit.
pub(super) const MIN_NEWEST_SHARE: u64 = 24;
/// Tokens below which nothing useful is left of a checkpoint.
pub(super) const MIN_NOTES_TOKENS: u64 = 32;
/// Tokens that suffice for the newest file and the number of the others.
pub(super) const MIN_FILE_TOKENS: u64 = 48;
/// Tokens of an earlier message that is cut: the user asks at its beginning or at its end, and the middle is mostly pasted
/// text.
pub(super) const CUT_QUOTE_TOKENS: u64 = 96;
/// Maximum tokens of the state in any window: it is a few lines, and turns say more.
pub(super) const MAX_STATE_TOKENS: u64 = 400;
/// Tokens around a quote: its mark and the line breaks.
pub(super) const QUOTE_TOKENS: u64 = 10;
/// Most tokens of a message that is quoted, for each of its facts that probably last and that nothing else says. With 30 or 115,
/// prompts say less of what users stated in all: quotes displace turns, and turns displace short quotes.
pub(super) const TOKENS_PER_FACT: f32 = 90.0;
/// Tokens of a stub: one short line.
pub(super) const STUB_TOKENS: u64 = 18;
/// Tokens of the tags and the lines around the blocks of an opening.
pub(super) const FRAME_TOKENS: u64 = 40;

// What is kept of one record.

/// Characters of the smallest cut. Anything smaller would be little more than its marker.
pub(super) const MIN_CUT_CHARS: u32 = 16;
/// Bytes of the longest word that is left out rather than divided. Scripts without spaces have longer ones.
pub(super) const MAX_WORD_BYTES: usize = 40;
/// Bytes of the longest line that is left out rather than divided, beside whole lines: about the width of code. Longer ones
/// are paragraphs.
pub(super) const MAX_LINE_BYTES: usize = 120;
/// Maximum number of arguments of a call that are cut one by one; more of them are cut as one text.
pub(super) const MAX_CUT_ARGS: usize = 16;
/// Newest messages that `pruned-tools` leaves as they are: the last three exchanges.
pub(super) const RECENT_MESSAGES: usize = 6;
/// Lines of a file that are kept at each end.
pub(super) const FILE_LINES: usize = 10;
/// Characters that are kept at each end of a command's long output.
pub(super) const SHELL_CHARS: u32 = 400;
/// Characters of the longest output of a command that stays whole.
pub(super) const SHELL_WHOLE_CHARS: usize = 1000;
/// Characters that are kept of any other long result.
pub(super) const OTHER_CHARS: u32 = 600;
/// Characters of the longest other result that stays whole.
pub(super) const OTHER_WHOLE_CHARS: usize = 800;
/// Bytes of the shortest result that is replaced or cut. Shorter results are no longer than what would replace them.
pub(super) const MIN_PRUNED_BYTES: usize = 64;
/// Characters of the last answer in a state.
pub(super) const STATUS_CHARS: usize = 300;
/// Characters of a blocker in a state.
pub(super) const BLOCKER_CHARS: usize = 160;

const _: () = assert!(2 * SHELL_CHARS as usize <= SHELL_WHOLE_CHARS);
const _: () = assert!(OTHER_CHARS as usize <= OTHER_WHOLE_CHARS);

// How many records and lines are looked at.

/// Newest records that are searched for the status and the blockers of a state.
pub(super) const RECENT_RECORDS: usize = 64;
/// Maximum number of decisions of a state, the newest.
pub(super) const MAX_DECISIONS: usize = 12;
/// Maximum number of blockers of a state, the newest.
pub(super) const MAX_BLOCKERS: usize = 3;
/// Number of the newest earlier messages that are quoted if they got no answer.
pub(super) const MAX_OPEN_MESSAGES: usize = 8;
/// Maximum number of records behind the last checkpoint that are searched for files.
pub(super) const MAX_LEDGER_RECORDS: usize = 2000;
/// Maximum number of paths of each list; the oldest are dropped. The blocks made of a ledger show fewer.
pub(super) const MAX_PATHS: usize = 500;
/// Maximum number of files of a fold, and of its reads; the oldest are dropped.
pub(super) const MAX_USED_FILES: usize = 2000;
/// Bytes of the longest argument that is taken as a path.
pub(super) const MAX_PATH_BYTES: usize = 1024;
