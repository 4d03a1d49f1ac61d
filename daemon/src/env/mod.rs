//! Environment sanitizing: which variables of a client's environment its tools may see.
//!
//! Names are checked first: core names always pass, then denied names are removed, then allowed names pass. Any other
//! variable passes unless its value contains credentials in a URL. The daemon itself runs no tools; clients that do
//! ask it.
//!
//! **Invariants**: pure; a denied name never passes and a core name always does, whatever is configured; neither a
//! warning nor a rule contains a value.

mod pattern;

use std::collections::BTreeMap;

use ollm_protocol::content::{RemovedVariable, Variables};

use self::pattern::{NamePattern, VariableName};
use crate::config::EnvironmentConfig;

/// Names without which hardly any program runs.
const CORE: &[&str] = &["PATH", "HOME", "USER", "SHELL", "TERM", "LANG", "LC_*"];

/// Names of secrets: keys, tokens, passwords and credentials as the last word of a name or in the middle of it (`SK` is the
/// secret key beside an access key `AK`); all variables of two services that mostly use them for secrets; addresses of
/// databases; a file that has nothing but passwords; and the socket through which a program could sign with the user's keys.
///
/// `KUBECONFIG` passes. It names files and is not a secret. Without it, a program would act on another cluster than the user
/// chose.
const DENY: &[&str] = &[
    "*_KEY",
    "*_SECRET",
    "*_TOKEN",
    "*_PASSWORD",
    "*_CREDENTIAL",
    "AWS_*",
    "GITHUB_*",
    "TOKEN",
    "SECRET",
    "APIKEY",
    "*_PASS*",
    "*_PWD",
    "*CREDENTIAL*",
    "PG*PASSWORD",
    "PGPASSFILE",
    "DATABASE_URL",
    "*_DSN",
    "SSH_AUTH_SOCK",
    "*_APIKEY",
    "API_KEY_*",
    "*_API_KEY_*",
    "*_ACCESS_KEY_*",
    "*_PRIVATE_KEY_*",
    "TOKEN_*",
    "*_TOKEN_*",
    "*_TOKENS",
    "SECRET_*",
    "*_SECRET_*",
    "*_SECRETS",
    "*PASSWORD*",
    "*PASSWD*",
    "*PASSPHRASE*",
    "*_AUTH",
    "*_PAT",
    "*_SK",
    "*_CONNECTION_STRING",
    "*_WEBHOOK_URL",
];

/// The name of the rule that removes values with credentials in a URL.
pub(crate) const URL_CREDENTIALS: &str = "url-credentials";

/// The longest URL scheme that is recognized before `://`, in characters.
const MAX_SCHEME: usize = 32;

/// The built-in and configured rules.
pub(crate) struct EnvironmentRules {
    core: Vec<NamePattern>,
    deny: Vec<NamePattern>,
    allow: Vec<NamePattern>,
    warnings: Vec<String>,
}

/// An environment after sanitizing.
pub(crate) struct SanitizedEnvironment {
    /// The variables that pass, unchanged.
    pub passed: Variables,
    /// The variables that do not pass, ordered by name.
    pub removed: Vec<RemovedVariable>,
}

impl EnvironmentRules {
    /// Adds the configured rules to the built-in ones. An invalid pattern is ignored with a warning.
    pub(crate) fn new(config: &EnvironmentConfig) -> Self {
        let built_in = |patterns: &[&str]| {
            patterns.iter().map(|pattern| NamePattern::built_in(pattern)).collect()
        };
        let mut warnings = Vec::new();
        let mut configured = |key: &str, texts: &[String], effect: &str| -> Vec<NamePattern> {
            let parse = |text: &String| match NamePattern::parse(text) {
                Ok(pattern) => Some(pattern),
                Err(error) => {
                    let problem = format!("the pattern {text:?} {error}; it is ignored{effect}");
                    warnings.push(format!("environment.{key}: {problem}"));
                    None
                }
            };
            texts.iter().filter_map(parse).collect()
        };
        let mut deny: Vec<NamePattern> = built_in(DENY);
        deny.extend(configured("deny", &config.deny, ", and the built-in patterns apply"));
        let allow = configured("allow", &config.allow, "");
        let mut rules = Self { core: built_in(CORE), deny, allow, warnings };
        for allowed in &rules.allow {
            let name = VariableName::new(allowed.as_str());
            if let Some(denied) = rules.deny.iter().find(|denied| denied.matches(&name)) {
                rules.warnings.push(format!(
                    "environment.allow: {} has no effect, because {} is denied, which takes precedence",
                    allowed.as_str(),
                    denied.as_str()
                ));
            }
        }
        rules
    }

    /// Returns the problems of the configured patterns.
    pub(crate) fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Returns the patterns of names that always pass.
    pub(crate) fn core_patterns(&self) -> Vec<String> {
        texts(&self.core)
    }

    /// Returns the patterns of names that never pass, the built-in ones first.
    pub(crate) fn deny_patterns(&self) -> Vec<String> {
        texts(&self.deny)
    }

    /// Returns the patterns of names whose values are not checked.
    pub(crate) fn allow_patterns(&self) -> Vec<String> {
        texts(&self.allow)
    }

    /// Separates the variables that tools may see from the others.
    pub(crate) fn sanitize(&self, variables: Variables) -> SanitizedEnvironment {
        let mut removed = Vec::new();
        let mut passed = BTreeMap::new();
        for (name, value) in variables.0 {
            match self.denying_rule(&name, &value) {
                None => drop(passed.insert(name, value)),
                Some(rule) => removed.push(RemovedVariable { name, rule: rule.to_owned() }),
            }
        }
        SanitizedEnvironment { passed: Variables(passed), removed }
    }

    /// Returns the rule that removes a variable, or `None` if the variable passes.
    fn denying_rule(&self, name: &str, value: &str) -> Option<&str> {
        let name = VariableName::new(name);
        let is_listed = |patterns: &[NamePattern]| {
            patterns.iter().any(|pattern| pattern.matches_exactly(&name))
        };
        if is_listed(&self.core) {
            return None;
        }
        if let Some(denied) = self.deny.iter().find(|denied| denied.matches(&name)) {
            return Some(denied.as_str());
        }
        (!is_listed(&self.allow) && has_url_credentials(value)).then_some(URL_CREDENTIALS)
    }
}

fn texts(patterns: &[NamePattern]) -> Vec<String> {
    patterns.iter().map(|pattern| pattern.as_str().to_owned()).collect()
}

/// Returns whether a value contains a URL with a password, or with a user name that is probably a token.
fn has_url_credentials(value: &str) -> bool {
    value.match_indices("://").any(|(at, _)| {
        let scheme = scheme_before(&value[..at]);
        let rest = &value[at + 3..];
        let end = rest.find(|char: char| char.is_whitespace() || "\"'<>`".contains(char));
        !scheme.is_empty() && begins_with_credentials(&scheme, &rest[..end.unwrap_or(rest.len())])
    })
}

/// Returns the URL scheme at the end of a text in lower case, or an empty text if there is none.
fn scheme_before(text: &str) -> String {
    let is_part = |char: &char| char.is_ascii_alphanumeric() || "+-.".contains(*char);
    let mut scheme: Vec<char> = text.chars().rev().take(MAX_SCHEME).take_while(is_part).collect();
    scheme.reverse();
    scheme.into_iter().collect::<String>().to_ascii_lowercase()
}

/// Returns whether a URL, given without its scheme, begins with credentials.
fn begins_with_credentials(scheme: &str, url: &str) -> bool {
    let authority = &url[..url.find(['/', '?', '#']).unwrap_or(url.len())];
    if let Some((user, _host)) = authority.rsplit_once('@') {
        return match user.split_once(':') {
            Some((_, password)) => !password.is_empty(),
            // `ssh://git@host` names an account; for a web host, a user name alone is a token.
            None => !user.is_empty() && matches!(scheme, "http" | "https"),
        };
    }
    // A password may contain a slash that was not encoded: then the port is not a number, and an `@` follows.
    let is_number = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let port = authority.rsplit_once(':').map(|(_, port)| port);
    !authority.starts_with('[') && port.is_some_and(|port| !is_number(port)) && url.contains('@')
}

#[cfg(test)]
mod tests;
