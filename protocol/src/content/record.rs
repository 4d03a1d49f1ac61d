//! The closed set of record kinds.
//!
//! The one list below makes the kinds, the bodies and the wire shape, so that a new kind is one line.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::change::{
    Close, ContextEntryChange, Custom, Label, LeafMove, LoopMark, Meta, MetaPatch, ModeChange, Pin,
    SnapshotMark,
};
use super::context::{BranchSummary, Compaction, Delta, Epoch, Usage};
use super::goal::GoalChange;
use super::message::Message;
use super::tool_call::ToolCall;
use crate::{Seq, SessionId, Timestamp};

/// Whether moving the leaf undoes a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Holds only while it lies between the root and the active leaf.
    Path,
    /// Holds whatever the leaf.
    Session,
}

macro_rules! record_kinds {
    ($($(#[$doc:meta])* $kind:ident = $code:literal, $field:ident: $body:ty, $scope:ident;)*) => {
        /// What a record is.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
        #[serde(rename_all = "camelCase")]
        #[repr(u8)]
        pub enum RecordKind {
            $($(#[$doc])* $kind = $code,)*
        }

        impl RecordKind {
            /// Every kind, in the order of their codes.
            pub const ALL: &[Self] = &[$(Self::$kind,)*];

            /// The kind of a code that [`RecordKind`] has as `u8`.
            #[must_use]
            pub const fn from_code(code: u8) -> Option<Self> {
                match code {
                    $($code => Some(Self::$kind),)*
                    _ => None,
                }
            }

            /// Whether moving the leaf undoes records of this kind.
            #[must_use]
            pub const fn scope(self) -> Scope {
                match self {
                    $(Self::$kind => Scope::$scope,)*
                }
            }
        }

        /// What a record says.
        #[derive(Clone, Debug, PartialEq)]
        pub enum RecordBody {
            $($(#[$doc])* $kind($body),)*
        }

        impl RecordBody {
            /// The kind of this body.
            #[must_use]
            pub const fn kind(&self) -> RecordKind {
                match self {
                    $(Self::$kind(_) => RecordKind::$kind,)*
                }
            }
        }

        /// Writes the body alone; who writes a record puts it under the name of its kind.
        impl Serialize for RecordBody {
            fn serialize<S: serde::Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
                match self {
                    $(Self::$kind(body) => body.serialize(out),)*
                }
            }
        }

        /// One line of a session's log as clients see it: the field named by `type` holds the body.
        ///
        /// **Shape**: `{"seq":3,"parent":2,"at":"...","type":"message","tokens":12,"message":{...}}`
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(rename_all = "camelCase", deny_unknown_fields)]
        pub struct Record {
            /// Its position in the log.
            pub seq: Seq,
            /// The record before it on its path; absent for the first.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub parent: Option<Seq>,
            /// When it was recorded.
            pub at: Timestamp,
            /// Which of the fields below is present.
            #[serde(rename = "type")]
            pub kind: RecordKind,
            /// False where it lies off the path from the root to the active leaf.
            #[serde(default = "yes", skip_serializing_if = "is_yes")]
            pub active: bool,
            /// The client's idempotency key.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub key: Option<String>,
            /// Tokens that it costs in a context.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub tokens: Option<u32>,
            $(
                $(#[$doc])*
                #[serde(default, skip_serializing_if = "Option::is_none")]
                pub $field: Option<$body>,
            )*
        }

        impl Record {
            /// A record around a body.
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
                    $($field: None,)*
                };
                match body {
                    $(RecordBody::$kind(body) => record.$field = Some(body),)*
                }
                record
            }

            /// The body, or `None` where the field that `type` names is missing.
            #[must_use]
            pub fn into_body(self) -> Option<RecordBody> {
                match self.kind {
                    $(RecordKind::$kind => self.$field.map(RecordBody::$kind),)*
                }
            }
        }
    };
}

const fn yes() -> bool {
    true
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
const fn is_yes(value: &bool) -> bool {
    *value
}

// The codes are stored in the catalog; the names are stored in the log. Neither is ever used again for
// something else.
record_kinds! {
    /// The header; the last one wins.
    Session = 0, session: SessionHeader, Session;
    /// An utterance.
    Message = 1, message: Message, Path;
    /// An executed tool call with its result.
    ToolCall = 2, tool_call: ToolCall, Path;
    /// A range replaced by a summary.
    Compaction = 3, compaction: Compaction, Path;
    /// A frozen context head.
    Epoch = 4, epoch: Epoch, Path;
    /// Volatile text that was sent.
    Delta = 5, delta: Delta, Path;
    /// A change of the goals.
    Goal = 6, goal: GoalChange, Path;
    /// A keyed text of the system message.
    ContextEntry = 7, context_entry: ContextEntryChange, Path;
    /// A pinned or released record.
    Pin = 8, pin: Pin, Path;
    /// A change of mode.
    ModeChange = 9, mode_change: ModeChange, Path;
    /// What became of a branch that was left.
    BranchSummary = 10, branch_summary: BranchSummary, Path;
    /// Data of a client.
    Custom = 11, custom: Custom, Path;
    /// What the model server counted.
    Usage = 12, usage: Usage, Path;
    /// Changed fields of the session.
    Meta = 13, meta: MetaPatch, Session;
    /// A name for a record.
    Label = 14, label: Label, Session;
    /// The active leaf moved.
    Leaf = 15, leaf: LeafMove, Session;
    /// A snapshot was taken.
    Snapshot = 16, snapshot: SnapshotMark, Session;
    /// Repetition was found or reset.
    Loop = 17, r#loop: LoopMark, Session;
    /// The session was closed.
    Close = 18, close: Close, Session;
}

/// What a session is born with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionHeader {
    /// The session.
    pub session_id: SessionId,
    /// When it began.
    pub start_time: Timestamp,
    /// The project's directory, as a canonical path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_path: Option<String>,
    /// The model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The model's provider, for example `ollama`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// The title, where someone set one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The system prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    /// The context window to ask for, in tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_size: Option<u32>,
    /// The mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// The session that this one was forked from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<SessionId>,
    /// Where an imported session came from: the format and the blake3 of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imported_from: Option<String>,
    /// Client data.
    #[serde(default, skip_serializing_if = "Meta::is_empty")]
    pub metadata: Meta,
}

impl SessionHeader {
    /// A header of which only the necessary is known.
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
            mode: None,
            forked_from: None,
            imported_from: None,
            metadata: Meta::new(),
        }
    }
}
