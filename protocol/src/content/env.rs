//! Environment variables of tools.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::Value;

/// Environment variables by name. Their values are never shown: not by `Debug`, and not by an error of reading.
#[derive(Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Variables(pub BTreeMap<String, String>);

impl fmt::Debug for Variables {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Variables({})", self.0.len())
    }
}

impl<'de> Deserialize<'de> for Variables {
    /// Reads any JSON first: the errors of serde's own types quote what they refuse.
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let Value::Object(fields) = Value::deserialize(input)? else {
            return Err(de::Error::custom("variables must be an object of texts by name"));
        };
        let read = fields.into_iter().map(|(name, value)| match value {
            Value::String(text) => Ok((name, text)),
            _ => Err(de::Error::custom("the value of every variable must be a text")),
        });
        Ok(Self(read.collect::<Result<_, _>>()?))
    }
}

/// A variable that does not pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RemovedVariable {
    /// Its name.
    pub name: String,
    /// The pattern that its name fits, or `url-credentials` for its value.
    pub rule: String,
}
