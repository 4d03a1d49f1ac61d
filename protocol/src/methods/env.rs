//! `env.*`: filtering environment variables for tools.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::content::{RemovedVariable, Variables};

/// The params of `env.sanitize`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EnvSanitizeParams {
    /// The values of the variables, by name.
    pub variables: Variables,
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
