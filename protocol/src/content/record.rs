//! Records: the lines of a session's log, as clients see them. The kinds of records are a closed set.
//!
//! The one list below defines the kinds, their bodies and the JSON of a record, so that a new kind is one line.
//! FORMAT.md, "Record kinds", describes each kind.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::change::{
    Close, ContextEntryChange, Custom, Label, LeafMove, LoopMark, Meta, MetaPatch, ModeChange, Pin,
    RestMark, SnapshotMark,
};
use super::compaction::{BranchSummary, Compaction, Delta, Epoch, Usage};
use super::files::PutBack;
use super::goal::GoalChange;
use super::message::{Message, ToolCall};
use crate::{Seq, SessionId, Timestamp};

/// The scope of a record: whether moving the active leaf can undo it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordScope {
    /// The record is in force while it is on the path from the root to the active leaf.
    Path,
    /// The record is in force wherever the active leaf is.
    Session,
    /// The record is about the log itself: clients do not see it, and it does not count.
    Log,
}

macro_rules! record_kinds {
    ($($(#[$doc:meta])* $kind:ident = $code:literal, $field:ident: $body:ty, $scope:ident;)*) => {
        /// The kind of a record.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
        #[serde(rename_all = "camelCase")]
        #[repr(u8)]
        pub enum RecordKind {
            $($(#[$doc])* $kind = $code,)*
        }

        impl RecordKind {
            /// All kinds, in the order of their codes.
            pub const ALL: &[Self] = &[$(Self::$kind,)*];

            /// Returns the kind of a code, which is the kind as `u8`, or `None` for an unknown code.
            #[must_use]
            pub const fn from_code(code: u8) -> Option<Self> {
                match code {
                    $($code => Some(Self::$kind),)*
                    _ => None,
                }
            }

            /// Returns the scope of records of this kind.
            #[must_use]
            pub const fn scope(self) -> RecordScope {
                match self {
                    $(Self::$kind => RecordScope::$scope,)*
                }
            }
        }

        /// The content of a record.
        #[derive(Clone, Debug, PartialEq)]
        pub enum RecordBody {
            $($(#[$doc])* $kind($body),)*
        }

        impl RecordBody {
            /// Returns the kind of record that has this body.
            #[must_use]
            pub const fn kind(&self) -> RecordKind {
                match self {
                    $(Self::$kind(_) => RecordKind::$kind,)*
                }
            }
        }

        /// Serializes the body alone. A record has it in a field with the name of its kind.
        impl Serialize for RecordBody {
            fn serialize<S: serde::Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
                match self {
                    $(Self::$kind(body) => body.serialize(out),)*
                }
            }
        }

        /// A record: one line of a session's log, with its content in the field that `type` names.
        ///
        /// **Shape**: `{"seq":3,"parent":2,"at":"...","type":"message","tokens":12,"message":{...}}`
        #[skip_serializing_none]
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(rename_all = "camelCase", deny_unknown_fields)]
        pub struct Record {
            /// The number of the record: its position in the log, from 0.
            pub seq: Seq,
            /// The record before it: the active leaf when it was recorded; absent if there was none.
            pub parent: Option<Seq>,
            /// The time of recording.
            pub at: Timestamp,
            /// The kind of the record, and the name of the field with its content.
            #[serde(rename = "type")]
            pub kind: RecordKind,
            /// Whether the record is in force; false for a record off the active path. Default true.
            #[serde(default = "default_active", skip_serializing_if = "is_active")]
            pub active: bool,
            /// The idempotency key that the client gave.
            pub key: Option<String>,
            /// The tokens that the record takes in a context; absent for a record that never enters one.
            pub tokens: Option<u32>,
            /// The size of the record in bytes of JSON, if it is too large for a page of records. The record is then
            /// without its content, which `session.getRecord` returns in parts.
            pub size_bytes: Option<u64>,
            $(
                $(#[$doc])*
                pub $field: Option<$body>,
            )*
        }

        impl Record {
            /// Returns a record with this body and without key and token count.
            #[must_use]
            pub fn new(seq: Seq, parent: Option<Seq>, at: Timestamp, body: RecordBody) -> Self {
                let mut record = Self {
                    seq,
                    parent,
                    at,
                    kind: body.kind(),
                    active: true,
                    key: None,
                    tokens: None,
                    size_bytes: None,
                    $($field: None,)*
                };
                match body {
                    $(RecordBody::$kind(body) => record.$field = Some(body),)*
                }
                record
            }

            /// Returns the record without its content, whose size it names instead.
            #[must_use]
            pub fn without_content(self, size_bytes: u64) -> Self {
                Self { size_bytes: Some(size_bytes), $($field: None,)* ..self }
            }

            /// Returns the body, or `None` if the field that `type` names is missing.
            #[must_use]
            pub fn into_body(self) -> Option<RecordBody> {
                match self.kind {
                    $(RecordKind::$kind => self.$field.map(RecordBody::$kind),)*
                }
            }
        }
    };
}

const fn default_active() -> bool {
    true
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
const fn is_active(active: &bool) -> bool {
    *active
}

// The catalog stores the codes and the log stores the names. Neither may ever get another meaning.
record_kinds! {
    /// The header of the session; the newest one holds.
    Session = 0, session: SessionHeader, Session;
    /// A message.
    Message = 1, message: Message, Path;
    /// An executed tool call with its result.
    ToolCall = 2, tool_call: ToolCall, Path;
    /// A compaction: summaries take the place of older records in contexts.
    Compaction = 3, compaction: Compaction, Path;
    /// The opening of an epoch: a frozen beginning of all later contexts.
    Epoch = 4, epoch: Epoch, Path;
    /// A change outside of the conversation, as it was sent to the model at this place.
    Delta = 5, delta: Delta, Path;
    /// A change of the goals.
    Goal = 6, goal: GoalChange, Path;
    /// A context entry of the session was set or removed.
    ContextEntry = 7, context_entry: ContextEntryChange, Path;
    /// A record was pinned or unpinned.
    Pin = 8, pin: Pin, Path;
    /// A change of the mode.
    ModeChange = 9, mode_change: ModeChange, Path;
    /// A summary of an abandoned branch.
    BranchSummary = 10, branch_summary: BranchSummary, Path;
    /// Data of a client, or of the daemon.
    Custom = 11, custom: Custom, Path;
    /// The token counts of the model server for one call.
    Usage = 12, usage: Usage, Path;
    /// Changed fields of the session.
    Meta = 13, meta: MetaPatch, Session;
    /// A label of a record.
    Label = 14, label: Label, Session;
    /// A move of the active leaf.
    Leaf = 15, leaf: LeafMove, Session;
    /// A mark of the state before a change of the context.
    Snapshot = 16, snapshot: SnapshotMark, Session;
    /// A loop was detected, or the detection was reset.
    Loop = 17, r#loop: LoopMark, Session;
    /// The session was closed.
    Close = 18, close: Close, Session;
    /// Files were put back.
    PutBack = 19, put_back: PutBack, Session;
    /// The session rests: all records before this one are synced.
    Rest = 20, rest: RestMark, Log;
}

/// The header of a session: its fields at creation.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionHeader {
    /// The id of the session.
    pub session_id: SessionId,
    /// The time of creation.
    pub start_time: Timestamp,
    /// The directory of the project, as a canonical path.
    pub project_path: Option<String>,
    /// The model of the session, as the model server names it.
    pub model: Option<String>,
    /// The provider of the model, for example `ollama`; a label of the client.
    pub provider: Option<String>,
    /// The title, if a client set one.
    pub title: Option<String>,
    /// The system prompt.
    pub system_prompt: Option<String>,
    /// The context window to request, in tokens.
    pub context_size: Option<u32>,
    /// The time for which the model server keeps the model in memory after a request of the session, in seconds.
    pub keep_alive_seconds: Option<u32>,
    /// The model servers that may get texts of the session; empty for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed_servers: Vec<String>,
    /// The options of each answer, as `session.update` takes them.
    #[serde(default, skip_serializing_if = "Meta::is_empty")]
    pub options: Meta,
    /// The mode at creation.
    pub mode: Option<String>,
    /// The session that this one was forked from.
    pub forked_from: Option<SessionId>,
    /// The source of an imported session: the format and the blake3 hash of the file, as `format:hash`.
    pub imported_from: Option<String>,
    /// Data of clients, by name.
    #[serde(default, skip_serializing_if = "Meta::is_empty")]
    pub metadata: Meta,
}

impl SessionHeader {
    /// Returns a header without optional fields.
    #[must_use]
    pub const fn new(session_id: SessionId, start_time: Timestamp) -> Self {
        Self {
            session_id,
            start_time,
            project_path: None,
            model: None,
            provider: None,
            title: None,
            system_prompt: None,
            context_size: None,
            keep_alive_seconds: None,
            allowed_servers: Vec::new(),
            options: Meta::new(),
            mode: None,
            forked_from: None,
            imported_from: None,
            metadata: Meta::new(),
        }
    }
}
