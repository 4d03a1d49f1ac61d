//! `env.*`: filtering environment variables for tools.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::Value;

/// The params of `env.sanitize`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EnvSanitizeParams {
    /// The values of the variables, by name.
    pub variables: Variables,
}

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

/// The result of `env.sanitize`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EnvSanitizeResult {
    /// The variables that tools may see, unchanged.
    pub variables: Variables,
    /// The variables that were filtered out, by name.
    pub removed: Vec<RemovedVariable>,
    /// Problems of the configured rules.
    pub warnings: Vec<String>,
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

/// The result of `env.rules`: the rules in force.
///
/// The first list with a pattern that matches decides, in the order `core`, `deny`, `allow`. A variable that matches
/// none of them passes unless its value violates a rule of `denyValues`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EnvRulesResult {
    /// Patterns of names that always pass.
    pub core: Vec<String>,
    /// Patterns of names that never pass: the built-in ones, then the configured ones.
    pub deny: Vec<String>,
    /// Configured patterns of names that pass whatever their value.
    pub allow: Vec<String>,
    /// The names of the rules for values.
    pub deny_values: Vec<String>,
    /// Problems of the configured rules.
    pub warnings: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_appear_neither_in_errors_nor_in_debug() {
        let good = r#"{"variables":{"A":"hunter2"}}"#;
        let params: EnvSanitizeParams = serde_json::from_str(good).unwrap();
        assert_eq!(params.variables.0["A"], "hunter2");
        assert!(!format!("{params:?}").contains("hunter2"));
        for wrong in [
            r#"{"variables":"hunter2"}"#,
            r#"{"variables":["hunter2"]}"#,
            r#"{"variables":{"A":["hunter2"]}}"#,
            r#"{"variables":{"A":{"B":"hunter2"}}}"#,
            r#"{"variables":{"A":"hunter2","B":null}}"#,
            r#"{"variables":{"A":"hunter2"},"more":"hunter2"}"#,
            r#"{"variable":{"A":"hunter2"}}"#,
            r#"{"variables":{"A":"hunter2"}"#,
        ] {
            let error = serde_json::from_str::<EnvSanitizeParams>(wrong).unwrap_err();
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
        let number = r#"{"variables":{"PIN":271828}}"#;
        let error = serde_json::from_str::<EnvSanitizeParams>(number).unwrap_err().to_string();
        assert!(!error.contains("271828"), "{error}");
    }
}
