//! Newtypes for ids and record numbers.
//!
//! **Invariant**: a `SessionId` is a parsed UUID, so it is safe in a file name whatever the client sent.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A text is not an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {}", Self::PROBLEM)]
pub struct InvalidId {
    /// The kind of id that was expected, for example `sessionId`.
    pub kind: &'static str,
}

impl InvalidId {
    /// The end of the message. A decoder recognizes this error by it, because serde keeps only the text of an error.
    pub const PROBLEM: &'static str = "must be a UUID in its hyphenated form";
}

/// Implements `Debug`, serde and the schema of a type that JSON has as a string: `Display` writes and `FromStr` reads it.
macro_rules! json_string {
    ($name:ident, $format:literal) => {
        impl std::fmt::Debug for $name {
            fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, out)
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
                out.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(input)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }

        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": "string", "format": $format })
            }
        }
    };
}
pub(crate) use json_string;

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Uuid);

        impl $name {
            /// Returns the id with this UUID.
            #[must_use]
            pub const fn from_uuid(uuid: Uuid) -> Self {
                Self(uuid)
            }

            /// Returns the UUID.
            #[must_use]
            pub const fn as_uuid(&self) -> Uuid {
                self.0
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            /// Parses the hyphenated form of 36 characters, in upper or lower case; no other form is accepted.
            fn from_str(text: &str) -> Result<Self, InvalidId> {
                let invalid = InvalidId { kind: $kind };
                if text.len() != 36 {
                    return Err(invalid);
                }
                Uuid::try_parse(text).map(Self).map_err(|_| invalid)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(out, "{}", self.0.as_hyphenated())
            }
        }

        json_string!($name, "uuid");
    };
}

uuid_id!(
    /// The id of a session: a UUID, of version 7 unless the session was imported.
    SessionId,
    "sessionId"
);
uuid_id!(
    /// The id of a plan to put files back: a UUID of version 7.
    PlanId,
    "planId"
);
uuid_id!(
    /// The id of a snapshot: a UUID of version 7.
    SnapshotId,
    "snapshotId"
);
uuid_id!(
    /// The id of a checkpoint of the context: a UUID of version 7.
    CheckpointId,
    "checkpointId"
);
uuid_id!(
    /// The id of a goal: a UUID of version 7.
    GoalId,
    "goalId"
);
uuid_id!(
    /// The id of a checkpoint of a goal: a UUID of version 7.
    GoalCheckpointId,
    "checkpointId"
);
uuid_id!(
    /// The id of a decision of a goal: a UUID of version 7.
    DecisionId,
    "decisionId"
);

/// The number of a record: its position in the log of its session, from 0.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
pub struct Seq(pub u64);

impl Seq {
    /// Returns the number after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_hyphenated_uuid_is_a_session_id() {
        let check = |text: &str, valid: bool| {
            assert_eq!(text.parse::<SessionId>().is_ok(), valid, "{text}");
        };
        check("550e8400-e29b-41d4-a716-446655440000", true);
        check("550E8400-E29B-41D4-A716-446655440000", true);
        check("550e8400e29b41d4a716446655440000", false);
        check("{550e8400-e29b-41d4-a716-446655440000}", false);
        check("../../etc/passwd", false);
        check("", false);
    }
}
