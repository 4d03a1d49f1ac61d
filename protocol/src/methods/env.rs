//! `env.*`: which environment variables tools may see.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::Value;

/// Variables to be judged.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EnvSanitizeParams {
    /// Values by name.
    pub variables: Variables,
}

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

/// What tools may see.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EnvSanitizeResult {
    /// The variables that pass, unchanged.
    pub variables: Variables,
    /// Those that do not, by name.
    pub removed: Vec<RemovedVariable>,
    /// What is wrong with the configured rules.
    pub warnings: Vec<String>,
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

/// The rules in force. A name that fits `core` passes; else one that fits `deny` does not; else one that fits
/// `allow` passes; else it passes unless its value fits a rule of `denyValues`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EnvRulesResult {
    /// Names that always pass.
    pub core: Vec<String>,
    /// Patterns of names that never do: the built-in ones, then the configured ones.
    pub deny: Vec<String>,
    /// Configured patterns of names whose values are not judged.
    pub allow: Vec<String>,
    /// Rules for values.
    pub deny_values: Vec<String>,
    /// What is wrong with the configured rules.
    pub warnings: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_errors_nor_debug_show_a_value() {
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
