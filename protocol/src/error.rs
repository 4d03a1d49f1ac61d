//! The kinds of errors: number, stable name, class, and when each is sent. Implements PROTOCOL.md, section 12.
//!
//! The messages are written by the daemon. Clients decide by the kind and never by the message.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use serde_with::skip_serializing_none;

/// The class of an error, by who can resolve it. `ollmctl` has one exit code per class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// The request is wrong.
    User,
    /// The configuration or a version is wrong.
    Config,
    /// Other work is in the way; a retry can help.
    Busy,
    /// The object of the request does not exist.
    Gone,
    /// The daemon, the machine or the model server failed.
    Internal,
}

macro_rules! error_kinds {
    ($($(#[$doc:meta])* $kind:ident = $code:literal, $name:literal, $class:ident;)*) => {
        /// The kind of an error.
        ///
        /// Names in backticks are fields of `error.data`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
        pub enum ErrorKind {
            $($(#[$doc])* #[serde(rename = $name)] $kind,)*
        }

        impl ErrorKind {
            /// All kinds.
            pub const ALL: &[Self] = &[$(Self::$kind,)*];

            /// Returns the JSON-RPC error code.
            #[must_use]
            pub const fn code(self) -> i32 {
                match self {
                    $(Self::$kind => $code,)*
                }
            }

            /// Returns the name in `data.kind`.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)*
                }
            }

            /// Returns the class.
            #[must_use]
            pub const fn class(self) -> ErrorClass {
                match self {
                    $(Self::$kind => ErrorClass::$class,)*
                }
            }
        }
    };
}

error_kinds! {
    /// The bytes are not JSON, not UTF-8, or in neither framing.
    ParseError = -32700, "parseError", User;
    /// The JSON is not a request, or the method cannot be part of a batch.
    InvalidRequest = -32600, "invalidRequest", User;
    /// No method has this name.
    MethodNotFound = -32601, "methodNotFound", User;
    /// The params are invalid. `field` is the path of the invalid param, if it is known; `path` is a file or directory
    /// that a backup cannot use, and `reason` says what of its secret is missing or wrong.
    InvalidParams = -32602, "invalidParams", User;
    /// The call met a defect of the daemon. The daemon's log has the details under the id of the request.
    Internal = -32603, "internal", Internal;
    /// The connection already has `limit` subscriptions. A retry helps after one of them has ended.
    TooManySubscriptions = -32006, "tooManySubscriptions", Busy;
    /// A frame or a reply has more than `limit` bytes, or a goal has `limit` items of a kind.
    TooLarge = -32007, "tooLarge", User;
    /// Too much work waits, the session changed concurrently at each attempt, the catalog is being replaced, other work
    /// on the whole store is running, or the daemon works for a client and was asked to stop only if it does not;
    /// `running` is that work. A retry after a pause helps.
    Busy = -32009, "busy", Busy;
    /// A batch has more than `limit` calls.
    BatchTooLarge = -32010, "batchTooLarge", User;
    /// No session has this id.
    SessionNotFound = 1001, "sessionNotFound", Gone;
    /// The session has no record with this number.
    RecordNotFound = 1002, "recordNotFound", Gone;
    /// A param that holds an id is not a UUID. `field` is its path.
    InvalidId = 1003, "invalidId", User;
    /// The request contradicts existing content, or running work of the session is in its way. `holder` names
    /// the content or the work, if it is known. A retry helps only in the second case, after the work has ended.
    Conflict = 1004, "conflict", Busy;
    /// Reading or writing failed; `path` is the file or directory, if it is known. No acknowledged record is lost. A
    /// retry with the same key is safe.
    Storage = 1005, "storage", Internal;
    /// A record, a snapshot or a file of a backup that the call needs is damaged; `path` is the file, if it is known.
    Corrupted = 1006, "corrupted", Internal;
    /// A context, or a text that is part of every context, needs `needed` tokens and has `available`.
    ContextOverflow = 1007, "contextOverflow", User;
    /// The protocol, a log, an import, a snapshot or a backup has version `found`, which the daemon does not support;
    /// `supported` is its own, if it is known.
    UnsupportedVersion = 1008, "unsupportedVersion", Config;
    /// Another daemon owns the home directory or the socket. Only a daemon that fails to start reports it.
    Locked = 1009, "locked", Busy;
    /// The daemon shut down before the call was done, or the chat turn was canceled. A retry with the same key is
    /// safe.
    Canceled = 1010, "canceled", Busy;
    /// The configuration is invalid; the message names the setting.
    Config = 1011, "config", Config;
    /// The model server at `host` cannot be used, for `reason`. A retry helps after that has changed.
    ModelUnavailable = 1012, "modelUnavailable", Busy;
    /// The model server at `host` does not have `model`.
    ModelNotFound = 1013, "modelNotFound", Gone;
    /// The model server at `host`, or `model`, does not support the request, for `reason`.
    ModelRefused = 1014, "modelRefused", User;
    /// The model server or `model` failed at the request, for `reason`. A retry can help.
    ModelFailed = 1015, "modelFailed", Internal;
    /// The session has no such goal, checkpoint or decision, or no active goal.
    GoalNotFound = 1016, "goalNotFound", Gone;
    /// No session has a snapshot with this id.
    SnapshotNotFound = 1017, "snapshotNotFound", Gone;
    /// The root of `files.*` at `path` does not exist, or is not a directory. A retry helps when it does.
    RootNotFound = 1018, "rootNotFound", Gone;
    /// No turn of the session is running. Its answer is recorded, if there was one.
    TurnNotFound = 1019, "turnNotFound", Gone;
    /// The session repeats itself as `pattern` says, so its model is not called. A retry helps after `loop.reset` or a
    /// user message.
    LoopDetected = 1020, "loopDetected", Busy;
    /// The session does not keep this content of a file.
    ContentNotFound = 1021, "contentNotFound", Gone;
}

impl ErrorKind {
    /// Returns the kind of a name, or `None` for an unknown one.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.as_str() == name)
    }
}

/// The `data` of a JSON-RPC error.
///
/// **Shape**: `{"kind":"sessionNotFound","hint":"ollmctl sessions list"}` and the fields of the kind.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ErrorData {
    /// The kind of the error.
    pub kind: ErrorKind,
    /// A shell command that a person can run next.
    pub hint: Option<String>,
    /// The fields of the kind.
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_codes_are_unique() {
        for (at, kind) in ErrorKind::ALL.iter().enumerate() {
            for other in &ErrorKind::ALL[at + 1..] {
                assert_ne!(kind.code(), other.code());
                assert_ne!(kind.as_str(), other.as_str());
            }
            assert_eq!(ErrorKind::from_name(kind.as_str()), Some(*kind));
        }
    }
}
