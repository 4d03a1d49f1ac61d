//! Environment variables of tools.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::Value;

/// Environment variables: values by name.
///
/// Neither `Debug` nor a deserialization error shows a value.
#[derive(Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Variables(pub BTreeMap<String, String>);

impl fmt::Debug for Variables {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Variables({})", self.0.len())
    }
}

impl<'de> Deserialize<'de> for Variables {
    /// Deserializes any JSON first, because the errors of serde's own types quote the value.
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let Value::Object(fields) = Value::deserialize(input)? else {
            return Err(de::Error::custom("variables must be an object with strings by name"));
        };
        let read = fields.into_iter().map(|(name, value)| match value {
            Value::String(text) => Ok((name, text)),
            _ => Err(de::Error::custom("the value of every variable must be a string")),
        });
        Ok(Self(read.collect::<Result<_, _>>()?))
    }
}

/// A variable that was filtered out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RemovedVariable {
    /// The name of the variable.
    pub name: String,
    /// The pattern that the name matches, or `url-credentials` for the value.
    pub rule: String,
}
