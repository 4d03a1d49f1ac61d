//! The closed list of event kinds, and the event that a subscriber receives. Implements PROTOCOL.md, section 11.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;

use crate::{Seq, SessionId, Timestamp};

/// The kind of an event: when it is published, and which fields its `data` has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum EventKind {
    /// The files of a session were created, at its first write. Data: `title`.
    SessionCreated,
    /// A client called `session.resume`. Data: none.
    SessionResumed,
    /// Fields of a session changed. Data: `fields`, their names; for a label also `target`, the labeled record.
    SessionUpdated,
    /// A `close` record was written. Data: `reason`: `client`; imported records can also have `idle` or `import`.
    SessionClosed,
    /// A session was archived. Data: `reason`: `client` or `retention`.
    SessionArchived,
    /// A session and all of its files were deleted. Data: `reason`: `client`, `retention`, or `interrupted` for a
    /// deletion that a crash interrupted and the next start finished.
    SessionDeleted,
    /// A message was recorded. Data: `role`, `tokens`.
    MessageRecorded,
    /// A tool call was recorded. Data: `name`, `tokens`.
    ToolCallRecorded,
    /// Records of a session were found damaged; published once, until they can be read again. Data: `damagedRecords`.
    SessionDamaged,
    /// Damaged records of a session can be read again. Data: `records`, their number.
    SessionHealed,
    /// The session document was written. Data: `sizeBytes`.
    SessionSaved,
    /// The mode changed. Data: `from` (null if there was none), `to`, `trigger`.
    ModeChanged,
    /// The active leaf moved. Data: `to` (null for before the first record), `cause`.
    BranchChanged,
    /// Files were put back, together with a move of the leaf. Data: `cause`, `putBack`, `left`: numbers of files.
    FilesPutBack,
    /// A change of the goals was recorded, or the markers of a model. Data: `source`, `actions`, and `messageSeq` for
    /// the markers in a recorded message.
    GoalUpdated,
    /// A session repeats itself; published once per loop. Data: `pattern`.
    LoopDetected,
    /// The configuration was read again and settings changed. Data: `applied`, `restartNeeded`.
    ConfigReloaded,
    /// A chat turn started; `seq` is the user's message, if the turn has one. Data: `model`.
    TurnStarted,
    /// A chat turn ended; `seq` is its answer, or the part that was recorded. Data: `model`, and `finishReason` or
    /// `error`, a text.
    TurnEnded,
    /// The model server read fewer tokens of a prompt than were sent. Data: `model`, `sentTokens`, `readTokens`.
    ServerTruncated,
    /// An exact count differed from the server's. Data: `model`, `countedTokens`, `readTokens`, `cause`: `engine`,
    /// `template` or `tokens`, and `shapes`: the kinds of messages that are not counted exactly until the server
    /// confirms their counts again, each with `message` and `traits`.
    CountMismatch,
    /// A compaction was recorded. Data: `method`, `from`, `to`, `tokensBefore`, `tokensAfter`, `freedTokens`,
    /// `automatic`, `tier`, `tierName`.
    Compressed,
    /// A compaction began a step. Data: `step`: `planning`, `summarizing` (with `piece` of `pieces`, and the records
    /// `from` to `to`), `merging` or `writing`.
    CompressionProgress,
    /// An automatic compaction was due and was skipped; not published again while the reason stays the same. Data:
    /// `reason`: `recent`, `paused` or `nothing`.
    CompressionSkipped,
    /// A model's summary or an automatic compaction failed. Data: `reason`, `error`, a text, and `provisional`:
    /// whether lines of the records take the place of the summary.
    CompressionError,
    /// A compaction created a checkpoint. Data: `checkpointId`, `level`, `from`, `to`, `tokens`, `provisional`.
    CheckpointCreated,
    /// A compaction lowered the level of a checkpoint or shortened it. Data: as of `checkpoint-created`.
    CheckpointAged,
    /// A compaction in a window of tier 1 was recorded. Data: `tokensAfter`.
    RolloverComplete,
    /// An automatic compaction recorded a summary that a model wrote. Data: `checkpointId`, `model`.
    AutoSummaryCreated,
    /// A compaction in a window of up to 4,096 tokens was recorded. Data: `method`, `tierName`.
    Tier1Compressed,
    /// A compaction in a window of up to 8,192 tokens was recorded. Data: `method`, `tierName`.
    Tier2Compressed,
    /// A compaction in a window of up to 16,384 tokens was recorded. Data: `method`, `tierName`.
    Tier3Compressed,
    /// A compaction in a window of up to 32,768 tokens was recorded. Data: `method`, `tierName`.
    Tier4Compressed,
    /// A compaction in a larger window was recorded. Data: `method`, `tierName`.
    Tier5Compressed,
    /// A context rose to 85 % of its prompt limit, or to a threshold of the subscriber. Data: `usedTokens`,
    /// `promptLimit`, `threshold`.
    ContextThreshold,
    /// A context rose to 95 % of its prompt limit. Data: as of `context-threshold`.
    BeforeOverflow,
    /// A client took a snapshot; `seq` is its record. Data: `snapshotId`, `reason`, `leaf` (null before the first record),
    /// and `file`: whether there is a file.
    SnapshotCreated,
    /// The daemon took a snapshot by itself. Data: as of `snapshot-created`.
    AutoSnapshotCreated,
    /// A session returned to a snapshot, or a new session was made of one. Data: `snapshotId`, `from`: the session of the
    /// snapshot if another one was made of it.
    SnapshotRestored,
    /// The file of a snapshot was deleted. Data: `snapshotId`, `reason`: `client` or `cleanup`.
    SnapshotDeleted,
    /// The file of a snapshot was not written, or not removed by the cleanup. Data: `snapshotId`, `error`, a text.
    SnapshotError,
    /// The subscriber was too slow and missed events. Passes every filter. Data: `missed`, their number.
    Lagged,
    /// Events cannot be continued from `since`, so the subscriber must read its state again. Passes every filter.
    /// Data: none.
    Resync,
}

/// An event.
///
/// **Shape**: `{"epoch":"...","eventSeq":7,"sessionId":"...","seq":3,"kind":"message-recorded","at":"...","data":{}}`
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// The run of the daemon that published the event.
    pub epoch: String,
    /// The number of the event within the epoch, from 1.
    pub event_seq: u64,
    /// The session that the event concerns, if it concerns one.
    pub session_id: Option<SessionId>,
    /// The record that the event concerns, if it concerns one.
    pub seq: Option<Seq>,
    /// The kind of the event.
    pub kind: EventKind,
    /// The time of the event.
    pub at: Timestamp,
    /// An object with the fields of the kind; absent if it has none.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub data: Value,
}

/// A position in the stream of events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EventCursor {
    /// The epoch of the event.
    pub epoch: String,
    /// The number of the last event that the client has seen.
    pub event_seq: u64,
}
