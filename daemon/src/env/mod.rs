//! Environment sanitizing: which variables of a client's environment its tools may see.
//!
//! Names are judged first: core names always pass, then what is denied does not, then what is allowed passes.
//! What is in no list passes unless its value embeds a password in a URL.
//!
//! **Invariants**: pure; a denied name never passes and a core name always does, whatever is configured; nothing
//! here puts a value into a text. The daemon runs no tools: whoever does, asks.

mod pattern;
mod url;

use std::collections::BTreeMap;

use ollm_protocol::methods::env::{EnvRulesResult, EnvSanitizeResult, RemovedVariable, Variables};

use self::pattern::{Name, Pattern};
use crate::config::EnvironmentConfig;

/// Without these hardly a program runs; they tell where things are and who runs them.
const CORE: &[&str] = &["PATH", "HOME", "USER", "SHELL", "TERM", "LANG", "LC_*"];

/// Names that mean a secret wherever they are seen: keys, tokens, passwords and credentials as the last word of a
/// name or in the middle of it, everything of two services whose variables mostly are secrets, addresses of
/// databases, and the socket through which a program could sign with the user's keys.
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
    "*_CONNECTION_STRING",
    "*_WEBHOOK_URL",
];

/// The rule for values, as answers name it.
const URL_CREDENTIALS: &str = "url-credentials";

/// Rules, ready to judge.
pub(crate) struct Rules {
    core: Vec<Pattern>,
    deny: Vec<Pattern>,
    allow: Vec<Pattern>,
    warnings: Vec<String>,
}

impl Rules {
    /// The built-in rules and those of the configuration. A pattern that cannot be read is left out with a
    /// warning; the built-in ones are in force in any case.
    pub(crate) fn new(config: &EnvironmentConfig) -> Self {
        let built_in = |texts: &[&str]| texts.iter().map(|text| Pattern::built_in(text)).collect();
        let mut rules = Self {
            core: built_in(CORE),
            deny: built_in(DENY),
            allow: Vec::new(),
            warnings: Vec::new(),
        };
        for text in &config.deny {
            match Pattern::read(text) {
                Ok(pattern) => rules.deny.push(pattern),
                Err(problem) => rules.warnings.push(format!(
                    "environment.deny: the pattern {text:?} {problem}; it is left out, and the built-in ones hold"
                )),
            }
        }
        for text in &config.allow {
            match Pattern::read(text) {
                Ok(pattern) => rules.allow.push(pattern),
                Err(problem) => rules.warnings.push(format!(
                    "environment.allow: the pattern {text:?} {problem}; it is left out"
                )),
            }
        }
        for allowed in &rules.allow {
            let name = Name::new(allowed.text());
            if let Some(denied) = rules.deny.iter().find(|denied| denied.fits(&name)) {
                let (allowed, denied) = (allowed.text(), denied.text());
                rules.warnings.push(format!(
                    "environment.allow: {allowed} has no effect, because {denied} is denied and that wins"
                ));
            }
        }
        rules
    }

    /// What is wrong with the configured patterns.
    pub(crate) fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The rule that keeps a variable from tools; `None` when it passes.
    fn refusal(&self, name: &str, value: &str) -> Option<&str> {
        let name = Name::new(name);
        let fits = |patterns: &[Pattern]| patterns.iter().any(|pattern| pattern.fits_as_is(&name));
        if fits(&self.core) {
            return None;
        }
        if let Some(denied) = self.deny.iter().find(|denied| denied.fits(&name)) {
            return Some(denied.text());
        }
        (!fits(&self.allow) && url::embeds_credentials(value)).then_some(URL_CREDENTIALS)
    }

    /// The variables that tools may see, and why not the others.
    pub(crate) fn sanitize(self, variables: Variables) -> EnvSanitizeResult {
        let mut removed = Vec::new();
        let mut passing = BTreeMap::new();
        for (name, value) in variables.0 {
            match self.refusal(&name, &value) {
                None => drop(passing.insert(name, value)),
                Some(rule) => removed.push(RemovedVariable { name, rule: rule.to_owned() }),
            }
        }
        EnvSanitizeResult { variables: Variables(passing), removed, warnings: self.warnings }
    }

    /// The rules as a client sees them.
    pub(crate) fn describe(self) -> EnvRulesResult {
        let texts = |patterns: &[Pattern]| {
            patterns.iter().map(|pattern| pattern.text().to_owned()).collect()
        };
        EnvRulesResult {
            core: texts(&self.core),
            deny: texts(&self.deny),
            allow: texts(&self.allow),
            deny_values: vec![URL_CREDENTIALS.to_owned()],
            warnings: self.warnings,
        }
    }
}

#[cfg(test)]
mod tests;
