//! Errors and warnings about the configuration, with the source of the value and a similar known name.

use std::fmt;
use std::path::{Path, PathBuf};

/// The place in which a value was set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ValueSource {
    /// In the configuration file, on a line counted from 1 if it is known.
    File { path: PathBuf, line: Option<u64> },
    /// In the environment variable of this name.
    Variable(String),
    /// By the flag for this key.
    Flag(String),
}

impl ValueSource {
    pub(super) fn file(path: &Path, line: Option<u64>) -> Self {
        Self::File { path: path.to_owned(), line }
    }

    /// Returns a short form for a comment after the value, without control characters.
    pub(super) fn short(&self) -> String {
        let text = match self {
            Self::File { .. } => self.to_string(),
            Self::Variable(name) => name.clone(),
            // Only the log level has a flag, which has a variable of its own.
            Self::Flag(_) => "--log-level or OLLM_LOG".to_owned(),
        };
        text.replace(char::is_control, " ")
    }
}

impl fmt::Display for ValueSource {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line: Some(line) } => write!(out, "{}:{line}", path.display()),
            Self::File { path, line: None } => write!(out, "{}", path.display()),
            Self::Variable(name) => write!(out, "variable {name}"),
            Self::Flag(key) => write!(out, "flag for {key}"),
        }
    }
}

/// The warnings and mistakes of the settings that were read so far.
#[derive(Debug, Default)]
pub(super) struct ConfigNotices {
    pub(super) warnings: Vec<ConfigWarning>,
    pub(super) mistakes: Vec<ConfigError>,
}

impl ConfigNotices {
    /// Returns the value; notes the error if there is none.
    pub(super) fn value_of<T>(&mut self, found: Result<T, ConfigError>) -> Option<T> {
        found.map_err(|mistake| self.mistakes.push(mistake)).ok()
    }

    /// Returns the warnings.
    ///
    /// **Errors**: the mistakes, if there are any.
    pub(super) fn into_warnings(mut self) -> Result<Vec<ConfigWarning>, ConfigError> {
        match self.mistakes.len() {
            0 => Ok(self.warnings),
            1 => Err(self.mistakes.remove(0)),
            _ => Err(ConfigError::Several(self.mistakes)),
        }
    }
}

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// The file is not YAML, or contains a key twice.
    #[error("{location}: {message}")]
    Syntax {
        location: ValueSource,
        /// The message of the parser.
        message: String,
    },
    /// A known section does not have this key.
    #[error("{location}: unknown key {key}{}", did_you_mean(*hint))]
    UnknownKey {
        location: ValueSource,
        /// The key with its section.
        key: String,
        /// A known key with a similar name.
        hint: Option<&'static str>,
    },
    /// A value has the wrong type or is out of range.
    #[error("{location}: {key} must be {expected}, not {found}")]
    Value {
        location: ValueSource,
        /// The key with its section.
        key: String,
        expected: String,
        found: String,
    },
    /// More than one key is wrong.
    #[error("{}", lines(_0))]
    Several(Vec<ConfigError>),
}

/// Returns each mistake on a line.
fn lines(mistakes: &[ConfigError]) -> String {
    mistakes.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// A setting that is ignored, probably by mistake.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ConfigWarning {
    /// The file has a section that this version does not know.
    #[error("{location}: unknown section {section} is ignored{}", did_you_mean(*hint))]
    UnknownSection {
        location: ValueSource,
        section: String,
        /// A known section with a similar name.
        hint: Option<&'static str>,
    },
    /// A server of the section `servers` cannot be used.
    #[error("{location}: the server {name} {problem}")]
    UnusableServer {
        location: ValueSource,
        name: String,
        /// The problem, as the predicate of a sentence.
        problem: String,
    },
    /// A variable begins with `OLLM_` and does not name a key.
    #[error("variable {variable} names no key and is ignored{}", did_you_mean_variable(*hint))]
    UnknownVariable {
        variable: String,
        /// A known section with a similar name.
        hint: Option<&'static str>,
    },
}

fn did_you_mean(hint: Option<&str>) -> String {
    hint.map_or_else(String::new, |hint| format!("; did you mean {hint}?"))
}

/// Suggests a variable of a section.
fn did_you_mean_variable(section: Option<&str>) -> String {
    did_you_mean(section.map(|section| format!("OLLM_{}__KEY", section.to_uppercase())).as_deref())
}

/// Returns the known name that is most similar to `name`; `None` if none is similar.
pub(super) fn nearest(
    name: &str,
    known: impl Iterator<Item = &'static str>,
) -> Option<&'static str> {
    let name = name.to_lowercase();
    let max_distance = (name.len() / 3).max(1);
    known
        .map(|candidate| (strsim::levenshtein(&name, &candidate.to_lowercase()), candidate))
        .filter(|(distance, _)| *distance <= max_distance)
        .min()
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_similar_names_are_suggested() {
        let check = |name: &str, expect: Option<&str>| {
            let known = ["maxSessions", "onLimit", "autoSave"];
            assert_eq!(nearest(name, known.into_iter()), expect, "{name}");
        };
        check("maxSesions", Some("maxSessions"));
        check("maxsessions", Some("maxSessions"));
        check("autosafe", Some("autoSave"));
        check("colour", None);
        check("", None);
    }
}
