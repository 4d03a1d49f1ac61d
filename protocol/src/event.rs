//! The closed list of event kinds, and the event that a subscriber receives.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Seq, SessionId, Timestamp};

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum EventKind {
    /// A session began. Data: `title`.
    SessionCreated,
    /// A client took a session up again. Data: none.
    SessionResumed,
    /// Fields of a session changed. Data: the changed fields' names in `fields`.
    SessionUpdated,
    /// A session was closed. Data: `reason`.
    SessionClosed,
    /// A session was put away. Data: `reason`, `client` or `retention`.
    SessionArchived,
    /// A session and all its files are gone. Data: `reason`: `client`, `retention`, or `interrupted` for a deletion
    /// that a crash had interrupted.
    SessionDeleted,
    /// A message is durable. Data: `role`, `tokens`.
    MessageRecorded,
    /// A tool call is durable. Data: `name`, `tokens`.
    ToolCallRecorded,
    /// The session document was written. Data: `sizeBytes`.
    SessionSaved,
    /// The mode changed. Data: `from`, `to`, `trigger`.
    ModeChanged,
    /// The active leaf moved. Data: `to`, `cause`.
    BranchChanged,
    /// The goals changed, or a model asked for it with markers. Data: `source`, `actions`, for markers `messageSeq`.
    GoalUpdated,
    /// A session repeats itself. Data: `pattern`.
    LoopDetected,
    /// The configuration was read again. Data: `applied`, `restartNeeded`.
    ConfigReloaded,
    /// A model is asked for an answer. Data: `model`.
    TurnStarted,
    /// The turn is over. Data: `model`, and `finishReason`, or `error` in words.
    TurnEnded,
    /// The model server read less of a prompt than was sent. Data: `model`, `sentTokens`, `readTokens`.
    ServerTruncated,
    /// A context was made shorter. Data: `method`, `from`, `to`, `tokensBefore`, `tokensAfter`, `freedTokens`,
    /// `automatic`, `tier`, `tierName`.
    Compressed,
    /// A compaction is at another step. Data: `step`: `planning`, `summarizing` (`piece` of `pieces`, the
    /// records `from` to `to`), `merging` or `writing`.
    CompressionProgress,
    /// A compaction was due and left out; told once. Data: `reason`: `recent`, `paused` or `nothing`.
    CompressionSkipped,
    /// No summary was made. Data: `reason`, `error` in words, and `provisional` when one by lines stands in.
    CompressionError,
    /// A summary stands for a range. Data: `checkpointId`, `level`, `from`, `to`, `tokens`, `provisional`.
    CheckpointCreated,
    /// A summary became older or shorter. Data: as of `checkpoint-created`.
    CheckpointAged,
    /// A compaction in the smallest class of windows is done. Data: `tokensAfter`.
    RolloverComplete,
    /// A model wrote a summary that nobody asked for. Data: `checkpointId`, `model`.
    AutoSummaryCreated,
    /// A compaction in a window of up to 4,096 tokens is done. Data: `method`, `tierName`.
    Tier1Compressed,
    /// The same in one of up to 8,192 tokens.
    Tier2Compressed,
    /// The same in one of up to 16,384 tokens.
    Tier3Compressed,
    /// The same in one of up to 32,768 tokens.
    Tier4Compressed,
    /// The same in a larger one.
    Tier5Compressed,
    /// A context passed 85 % of its prompt limit, or a threshold that the subscriber names. Data: `usedTokens`,
    /// `promptLimit`, `threshold`.
    ContextThreshold,
    /// A context passed 95 % of its prompt limit. Data: as of `context-threshold`.
    BeforeOverflow,
    /// Always delivered: the subscriber was too slow and missed events. Data: `missed`.
    Lagged,
    /// Always delivered: `since` cannot be replayed from; read the state again. Data: none.
    Resync,
}

/// One event.
///
/// **Shape**: `{"epoch":"...","eventSeq":7,"sessionId":"...","seq":3,"kind":"message-recorded","at":"...","data":{}}`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// The run of the daemon that sent it.
    pub epoch: String,
    /// Its number within the epoch, from 1.
    pub event_seq: u64,
    /// The session it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// The record it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<Seq>,
    /// What happened.
    pub kind: EventKind,
    /// When.
    pub at: Timestamp,
    /// What the kind says of it.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub data: Value,
}

/// A place in the stream of events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EventCursor {
    /// The run of the daemon that sent it.
    pub epoch: String,
    /// The last event seen.
    pub event_seq: u64,
}
