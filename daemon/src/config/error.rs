//! What is wrong with a configuration, where, and what was probably meant.

use std::fmt;
use std::path::{Path, PathBuf};

/// Where a value was set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the configuration file, on a line counted from 1 where it is known.
    File {
        /// The file.
        path: PathBuf,
        /// The line.
        line: Option<u64>,
    },
    /// In an environment variable.
    Variable(String),
    /// By a flag; its key.
    Flag(String),
}

impl Place {
    pub(super) fn file(path: &Path, line: Option<u64>) -> Self {
        Self::File { path: path.to_owned(), line }
    }

    /// In one line behind a value.
    pub(super) fn short(&self) -> String {
        let text = match self {
            Self::File { .. } => self.to_string(),
            Self::Variable(name) => name.clone(),
            // The level of the log is the one key that has a flag, with a variable of its own.
            Self::Flag(_) => "--log-level or OLLM_LOG".to_owned(),
        };
        text.replace(char::is_control, " ")
    }
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line: Some(line) } => write!(out, "{}:{line}", path.display()),
            Self::File { path, line: None } => write!(out, "{}", path.display()),
            Self::Variable(name) => write!(out, "variable {name}"),
            Self::Flag(key) => write!(out, "flag for {key}"),
        }
    }
}

/// The configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    /// The file cannot be read.
    #[error("reading the configuration {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The file is not YAML, or names a key twice.
    #[error("{place}: {message}")]
    Syntax {
        /// Where.
        place: Place,
        /// What the parser says.
        message: String,
    },
    /// A known section has no such key.
    #[error("{place}: unknown key {key}{}", did_you_mean(*hint))]
    UnknownKey {
        /// Where.
        place: Place,
        /// The key with its section.
        key: String,
        /// A key that looks like it.
        hint: Option<&'static str>,
    },
    /// A value is of the wrong type or out of range.
    #[error("{place}: {key} must be {expected}, not {found}")]
    Value {
        /// Where.
        place: Place,
        /// The key with its section.
        key: String,
        /// What it may be.
        expected: String,
        /// What it is.
        found: String,
    },
}

/// Something that is ignored, and probably not what was meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ConfigWarning {
    /// The file has a section that this version does not know.
    UnknownSection {
        /// Where.
        place: Place,
        /// The section.
        section: String,
        /// A section that looks like it.
        hint: Option<&'static str>,
    },
    /// A variable begins with `OLLM_` and names no key.
    UnknownVariable {
        /// The variable.
        variable: String,
        /// A section that looks like what it names.
        hint: Option<&'static str>,
    },
}

impl fmt::Display for ConfigWarning {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownSection { place, section, hint } => {
                write!(out, "{place}: unknown section {section} is ignored{}", did_you_mean(*hint))
            }
            Self::UnknownVariable { variable, hint } => {
                write!(out, "variable {variable} names no key and is ignored")?;
                match hint {
                    Some(hint) => write!(out, "; did you mean OLLM_{}__KEY?", hint.to_uppercase()),
                    None => Ok(()),
                }
            }
        }
    }
}

fn did_you_mean(hint: Option<&'static str>) -> String {
    hint.map_or_else(String::new, |hint| format!("; did you mean {hint}?"))
}

/// The name that looks most like another, if one does at all.
pub(super) fn nearest(
    name: &str,
    known: impl Iterator<Item = &'static str>,
) -> Option<&'static str> {
    let wanted = name.to_lowercase();
    let most = (wanted.len() / 3).max(1);
    known
        .map(|candidate| (distance(&wanted, &candidate.to_lowercase()), candidate))
        .filter(|(distance, _)| *distance <= most)
        .min()
        .map(|(_, candidate)| candidate)
}

/// Insertions, deletions and replacements that turn one text into the other.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
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
