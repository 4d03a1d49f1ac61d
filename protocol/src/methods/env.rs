//! `env.*`: which environment variables tools may see.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::content::{RemovedVariable, Variables};

/// Variables to be judged.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EnvSanitizeParams {
    /// Values by name.
    pub variables: Variables,
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
