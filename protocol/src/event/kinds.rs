//! The kinds of events, and the data of each kind. This list is the only description of the data: the OpenRPC document
//! and the table in PROTOCOL.md, section 11, follow from it.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;

use crate::content::{
    CloseReason, CompactionMethod, GoalSource, HookOccasion, LoopPattern, Retention, Role,
    named_enum,
};
use crate::{CheckpointId, Seq, SessionId, SnapshotId};

/// The data of one kind of event.
pub trait EventData: Serialize {
    /// The kind.
    const KIND: EventKind;
}

/// A kind of event, as a value.
#[derive(Clone, Copy)]
pub struct EventInfo {
    /// The kind.
    pub kind: EventKind,
    /// When the event is published, for people.
    pub summary: &'static str,
    /// Returns the schema of the data.
    pub data: fn(&mut SchemaGenerator) -> Schema,
}

/// Defines the kinds. The data of a kind are fields, or the same as those of another type.
macro_rules! event_kinds {
    ($(
        $(#[doc = $summary:literal])+
        $kind:ident($data:ident)
        $({ $($(#[$meta:meta])* $field:ident: $type:ty,)+ })?
        $(= $same:ty;)?
    )*) => {
        /// The kind of an event.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
        #[serde(rename_all = "kebab-case")]
        pub enum EventKind {
            $($(#[doc = $summary])+ $kind,)*
        }

        /// All kinds of events, by topic.
        pub const EVENTS: &[EventInfo] = &[
            $(EventInfo {
                kind: EventKind::$kind,
                summary: concat!($($summary),+),
                data: |generator| generator.subschema_for::<$data>(),
            },)*
        ];

        $(
            $(
                #[doc = concat!("The data of [`EventKind::", stringify!($kind), "`].")]
                #[skip_serializing_none]
                #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
                #[serde(rename_all = "camelCase")]
                pub struct $data {
                    $($(#[$meta])* pub $field: $type,)+
                }
            )?
            $(
                #[doc = concat!("The data of [`EventKind::", stringify!($kind), "`].")]
                #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
                pub struct $data(pub $same);
            )?

            impl EventData for $data {
                const KIND: EventKind = EventKind::$kind;
            }
        )*
    };
}

/// The absent data of an event without data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NoData;

named_enum! {
    /// A step of a compaction.
    pub enum CompressionStep {
        /// The compaction is planned.
        Planning = "planning",
        /// A model summarizes records.
        Summarizing = "summarizing",
        /// A model merges the two oldest summaries.
        Merging = "merging",
        /// The compaction is recorded.
        Writing = "writing",
    }
}

named_enum! {
    /// A step of putting many files back.
    pub enum PutBackStep {
        /// The contents are written beside the project's files. Nothing has changed yet.
        Staging = "staging",
        /// The files change. Until this ends, the call can be canceled.
        Moving = "moving",
        /// The earlier contents are kept, and the record is written. The call cannot be canceled any more.
        Recording = "recording",
    }
}

named_enum! {
    /// The reason for which a count differs from the server's.
    pub enum MismatchCause {
        /// The server tokenizes with another engine than its version and the model suggest.
        Engine = "engine",
        /// The server renders messages differently.
        Template = "template",
        /// The server finds other tokens in the same prompt.
        Tokens = "tokens",
        /// The counts of the server jump between two values: replicas behind its address count differently.
        Replicas = "replicas",
    }
}

event_kinds! {
    /// The files of a session were created, at its first write.
    SessionCreated(SessionCreatedData) {
        /// the title of the session
        title: String,
    }
    /// A client called `session.resume`.
    SessionResumed(SessionResumedData) = NoData;
    /// Fields of a session changed, a record was labeled, or the session was unarchived.
    SessionUpdated(SessionUpdatedData) {
        /// the names of the fields, `labels` for a label
        fields: Vec<String>,
        /// the labeled record
        target: Option<Seq>,
    }
    /// A client closed a session, or an imported record closed it.
    SessionClosed(SessionClosedData) {
        /// `client`
        reason: CloseReason,
    }
    /// A session was archived.
    SessionArchived(SessionArchivedData) {
        /// `client` or `retention`
        reason: String,
    }
    /// A session and all its files were deleted.
    SessionDeleted(SessionDeletedData) {
        /// `client`, `retention`, or `interrupted` for a deletion that a crash interrupted and the next start finished
        reason: String,
    }
    /// A message was recorded.
    MessageRecorded(MessageRecordedData) {
        /// the role of the message
        role: Role,
        /// its tokens
        tokens: u32,
    }
    /// A tool call was recorded.
    ToolCallRecorded(ToolCallRecordedData) {
        /// the name of the tool
        name: String,
        /// the tokens of the call and its result
        tokens: u32,
    }
    /// Records of a session were found damaged, or a file of them is missing; published once, until they can be read
    /// again. `session.list` returns the status `corrupted`.
    SessionDamaged(SessionDamagedData) {
        /// the number of damaged records
        damaged_records: u64,
    }
    /// Damaged records of a session can be read again.
    SessionHealed(SessionHealedData) {
        /// their number
        records: u64,
    }
    /// The session document was written.
    SessionSaved(SessionSavedData) {
        /// its size
        size_bytes: u64,
    }
    /// The mode changed.
    ModeChanged(ModeChangedData) {
        /// the mode before, null if there was none
        #[serialize_always]
        from: Option<String>,
        /// the new mode
        to: String,
        /// the cause of the change
        trigger: String,
    }
    /// The active leaf moved; once for each step of `session.undo` and `session.redo`.
    BranchChanged(BranchChangedData) {
        /// the new leaf, null for the position before the first record
        #[serialize_always]
        to: Option<Seq>,
        /// `branch`, `undo`, `redo`, `restore`, `retry` or `import`
        cause: String,
    }
    /// Files were put back, together with a move of the leaf.
    FilesPutBack(FilesPutBackData) {
        /// `undo`, `redo` or `restore`
        cause: String,
        /// the number of files that were put back
        put_back: usize,
        /// the number of files that stayed as they were
        left: usize,
    }
    /// Files are being put back: a step began, or went on for 1,000 files.
    FilesProgress(FilesProgressData) {
        /// `undo`, `redo` or `restore`
        cause: String,
        /// `staging`, `moving` or `recording`
        step: PutBackStep,
        /// the number of files that the step has done
        done: usize,
        /// the number of files
        total: usize,
    }
    /// A backup, a restore or a check of the store went on; concerns no session.
    StoreProgress(StoreProgressData) {
        /// the method that was called
        method: String,
        /// the number of bytes that are done
        done: u64,
        /// the number of bytes
        total: u64,
    }
    /// A change of goals, or the markers of a model, were recorded.
    GoalUpdated(GoalUpdatedData) {
        /// `client` or `marker`
        source: GoalSource,
        /// the actions of the steps, or `mark.` and the type of the marker
        actions: Vec<String>,
        /// the message with the markers
        message_seq: Option<Seq>,
    }
    /// A session repeats itself; published once per loop.
    LoopDetected(LoopDetectedData) {
        /// the loop, as `loop.status` returns it
        pattern: LoopPattern,
    }
    /// The configuration was read again and settings changed.
    ConfigReloaded(ConfigReloadedData) {
        /// the keys of the settings that apply now
        applied: Vec<String>,
        /// the keys of those that apply after a restart
        restart_needed: Vec<String>,
    }
    /// A chat turn started; `seq` is its user message, if it has one.
    TurnStarted(TurnStartedData) {
        /// the model
        model: String,
    }
    /// A chat turn ended; `seq` is its answer or partial answer.
    TurnEnded(TurnEndedData) {
        /// the model
        model: String,
        /// the reason for the end of the answer
        finish_reason: Option<String>,
        /// the text of the error, if there was one
        error: Option<String>,
    }
    /// The model server read fewer tokens of a prompt than were sent.
    ServerTruncated(ServerTruncatedData) {
        /// the model
        model: String,
        /// the tokens of the prompt, as the daemon counted
        context_tokens: u64,
        /// the tokens that the server read
        prompt_tokens: u64,
    }
    /// An exact count differed from the server's; only messages like those of `shapes` are not counted exactly, until
    /// the server confirms their counts again. Or replicas of the server count differently, which is reported once.
    CountMismatch(CountMismatchData) {
        /// the tokens of the prompt, as the daemon counted
        context_tokens: u64,
        /// `engine`, `template`, `tokens` or `replicas`
        cause: MismatchCause,
        /// the kinds of messages whose counts are in doubt, each with `message` and `traits`
        shapes: Vec<Value>,
        /// the model
        model: String,
        /// the tokens that the server read
        prompt_tokens: u64,
    }
    /// A compaction was recorded; `seq` is its record.
    Compressed(CompressedData) {
        /// the method
        method: CompactionMethod,
        /// the first record of the summarized range, null if there is none
        #[serialize_always]
        from: Option<Seq>,
        /// the last record of the range, null if there is none
        #[serialize_always]
        to: Option<Seq>,
        /// the tokens of the context before
        tokens_before: u64,
        /// those after
        tokens_after: u64,
        /// the difference
        freed_tokens: u64,
        /// whether the compaction was automatic
        automatic: bool,
        /// the number of the tier of the window, from 1
        tier: u8,
        /// the name of the tier
        tier_name: String,
        /// what the context kept
        retention: Retention,
        /// how much of the facts and values it kept
        retained_percent: u32,
        /// a text about what was lost, null if little is
        #[serialize_always]
        warning: Option<String>,
    }
    /// A compaction began a step.
    CompressionProgress(CompressionProgressData) {
        /// `planning`, `summarizing`, `merging` or `writing`
        step: CompressionStep,
        /// while summarizing, the number of the piece, from 1
        piece: Option<usize>,
        /// the number of pieces that are asked for now
        pieces: Option<usize>,
        /// the first record of the piece
        from: Option<Seq>,
        /// its last record
        to: Option<Seq>,
    }
    /// An automatic compaction was due and skipped; not published again while the reason stays the same.
    CompressionSkipped(CompressionSkippedData) {
        /// `recent`, `paused` or `nothing`
        reason: String,
    }
    /// An automatic compaction failed, or the model of a compaction wrote no summary.
    CompressionError(CompressionErrorData) {
        /// the kind of the error
        reason: String,
        /// its text
        error: String,
        /// whether lines of the records take the place of the summary; if false, nothing changed
        provisional: bool,
    }
    /// A compaction created or updated a checkpoint.
    CheckpointCreated(CheckpointCreatedData) {
        /// the id of the checkpoint
        checkpoint_id: CheckpointId,
        /// its level
        level: u8,
        /// the first record of its range
        from: Seq,
        /// the last record of its range
        to: Seq,
        /// the tokens of its summary
        tokens: u64,
        /// whether lines of the records take the place of a summary
        provisional: bool,
    }
    /// A compaction lowered the level of a checkpoint or shortened it.
    CheckpointAged(CheckpointAgedData) = CheckpointCreatedData;
    /// An automatic compaction recorded a summary of a model.
    AutoSummaryCreated(AutoSummaryCreatedData) {
        /// the checkpoint of the range, or null
        #[serialize_always]
        checkpoint_id: Option<CheckpointId>,
        /// the model that wrote the summary, or null
        #[serialize_always]
        model: Option<String>,
    }
    /// A compaction in a window of tier 1 was recorded.
    RolloverComplete(RolloverCompleteData) {
        /// the tokens of the context after it
        tokens_after: u64,
    }
    /// A compaction in a window of up to 4,096 tokens was recorded.
    Tier1Compressed(Tier1CompressedData) {
        /// the method
        method: CompactionMethod,
        /// the name of the tier
        tier_name: String,
    }
    /// A compaction in a window of up to 8,192 tokens was recorded.
    Tier2Compressed(Tier2CompressedData) = Tier1CompressedData;
    /// A compaction in a window of up to 16,384 tokens was recorded.
    Tier3Compressed(Tier3CompressedData) = Tier1CompressedData;
    /// A compaction in a window of up to 32,768 tokens was recorded.
    Tier4Compressed(Tier4CompressedData) = Tier1CompressedData;
    /// A compaction in a larger window was recorded.
    Tier5Compressed(Tier5CompressedData) = Tier1CompressedData;
    /// A context rose to 85 % of its prompt limit, or to a threshold of the subscriber.
    ContextThreshold(ContextThresholdData) {
        /// the tokens of the context, as the daemon counted
        context_tokens: u64,
        /// the most tokens that a prompt may have
        prompt_limit: u64,
        /// the share of the limit that was reached
        threshold: f64,
    }
    /// A context rose to 95 % of its prompt limit.
    BeforeOverflow(BeforeOverflowData) = ContextThresholdData;
    /// A client took a snapshot; `seq` is its record.
    SnapshotCreated(SnapshotCreatedData) {
        /// the id of the snapshot
        snapshot_id: SnapshotId,
        /// its reason
        reason: String,
        /// the active leaf, null before the first record
        #[serialize_always]
        leaf: Option<Seq>,
        /// whether the snapshot has a file
        file: bool,
    }
    /// The daemon took a snapshot by itself.
    AutoSnapshotCreated(AutoSnapshotCreatedData) = SnapshotCreatedData;
    /// A session returned to a snapshot, or a new session was made of one.
    SnapshotRestored(SnapshotRestoredData) {
        /// the id of the snapshot
        snapshot_id: SnapshotId,
        /// the session of the snapshot if a new one was made, else null
        #[serialize_always]
        from: Option<SessionId>,
    }
    /// The file of a snapshot was deleted.
    SnapshotDeleted(SnapshotDeletedData) {
        /// the id of the snapshot
        snapshot_id: SnapshotId,
        /// `client` or `cleanup`
        reason: String,
    }
    /// The file of a snapshot could not be written, or not be removed by the cleanup.
    SnapshotError(SnapshotErrorData) {
        /// the id of the snapshot
        snapshot_id: SnapshotId,
        /// the text of the error
        error: String,
    }
    /// A hook failed, or its output could not be used.
    HookFailed(HookFailedData) {
        /// the file
        hook: String,
        /// the occasion
        occasion: HookOccasion,
        /// the text of the error
        error: String,
    }
    /// A hook of a project did not run, because it is not trusted; published once for each content of the hook.
    HookUntrusted(HookUntrustedData) {
        /// the file
        hook: String,
        /// the occasion
        occasion: HookOccasion,
        /// whether another content of it was trusted
        changed: bool,
    }
    /// The subscriber was too slow and missed events. Passes every filter.
    Lagged(LaggedData) {
        /// the number of missed events
        missed: u64,
    }
    /// The subscription cannot continue from `since`, so the subscriber must read its state again. Passes every filter.
    Resync(ResyncData) = NoData;
}
