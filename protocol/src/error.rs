//! The error kinds of the daemon: number, stable name, class, and when each is sent.
//!
//! Texts are made where an error is turned into a reply; a client decides by `kind`, never by text.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Who can do something about an error; `ollmctl` has one exit code a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// The request is wrong.
    User,
    /// The configuration is wrong.
    Config,
    /// Something else is in the way; a retry can help.
    Busy,
    /// What was asked for does not exist.
    Gone,
    /// The daemon or the machine failed.
    Internal,
}

macro_rules! error_kinds {
    ($($(#[$doc:meta])* $kind:ident = $code:literal, $name:literal, $class:ident;)*) => {
        /// The stable name of an error.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
        pub enum ErrorKind {
            $($(#[$doc])* #[serde(rename = $name)] $kind,)*
        }

        impl ErrorKind {
            /// Every kind.
            pub const ALL: &[Self] = &[$(Self::$kind,)*];

            /// The JSON-RPC error code.
            #[must_use]
            pub const fn code(self) -> i32 {
                match self {
                    $(Self::$kind => $code,)*
                }
            }

            /// The name in `data.kind`.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)*
                }
            }

            /// Who can do something about it.
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
    /// The bytes are not JSON.
    ParseError = -32700, "parseError", User;
    /// The JSON is not a request.
    InvalidRequest = -32600, "invalidRequest", User;
    /// There is no such method.
    MethodNotFound = -32601, "methodNotFound", User;
    /// The parameters do not fit; names the field.
    InvalidParams = -32602, "invalidParams", User;
    /// A defect of the daemon; the log has the details under the request's id.
    Internal = -32603, "internal", Internal;
    /// The connection has as many subscriptions as it may.
    TooManySubscriptions = -32006, "tooManySubscriptions", Busy;
    /// A frame, a reply or a text is larger than allowed; `limit` is in `data`.
    TooLarge = -32007, "tooLarge", User;
    /// Too much is going on; try again.
    Busy = -32009, "busy", Busy;
    /// A batch has more calls than allowed.
    BatchTooLarge = -32010, "batchTooLarge", User;
    /// No session has this id.
    SessionNotFound = 1001, "sessionNotFound", Gone;
    /// The session has no record with this number.
    RecordNotFound = 1002, "recordNotFound", Gone;
    /// The text is not an id.
    InvalidId = 1003, "invalidId", User;
    /// The key was used with other content, or somebody else holds what was asked for; `holder` is in `data`.
    Conflict = 1004, "conflict", Busy;
    /// Reading or writing failed; `path` is in `data`. Nothing that was acknowledged is lost.
    Storage = 1005, "storage", Internal;
    /// The record that was asked for is damaged.
    Corrupted = 1006, "corrupted", Internal;
    /// The context cannot be made to fit; `needed` and `available` are in `data`.
    ContextOverflow = 1007, "contextOverflow", User;
    /// The log was written by a newer version; `found` and `supported` are in `data`.
    UnsupportedVersion = 1008, "unsupportedVersion", Config;
    /// Another daemon owns this home.
    Locked = 1009, "locked", Busy;
    /// The daemon is leaving, or the caller gave up.
    Cancelled = 1010, "cancelled", Busy;
    /// The configuration is wrong; file, line and key are in the message.
    Config = 1011, "config", Config;
    /// The model server cannot be used: nobody answers, it is busy, or something else listens there; `host` and
    /// `reason` are in `data`.
    ModelUnavailable = 1012, "modelUnavailable", Busy;
    /// The model server does not have the model; `host` and `model` are in `data`.
    ModelNotFound = 1013, "modelNotFound", Gone;
    /// The model server or the model does not do what was asked for; `host`, `model` and `reason` are in `data`.
    ModelRefused = 1014, "modelRefused", User;
    /// The model server failed at it; `host`, `model` and `reason` are in `data`.
    ModelFailed = 1015, "modelFailed", Internal;
    /// The session has no such goal, checkpoint or decision, or no active goal.
    GoalNotFound = 1016, "goalNotFound", Gone;
    /// The session repeats itself, so no model is called; `pattern` is in `data`.
    LoopDetected = 1020, "loopDetected", Busy;
}

impl ErrorKind {
    /// The kind behind a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.as_str() == name)
    }
}

/// What `error.data` holds.
///
/// **Shape**: `{"kind":"sessionNotFound","hint":"ollmctl sessions list"}` and the fields of the kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ErrorData {
    /// The stable name.
    pub kind: ErrorKind,
    /// A command that helps, ready to type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
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
