//! What a configuration key accepts. A checked value is held as JSON: text, number, switch or list as such, a duration as its text, no value as null.

use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

/// The values that a key accepts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum KeyKind {
    /// Any text, or no value.
    Text,
    /// An absolute path, or no value.
    Path,
    /// `true` or `false`.
    Switch,
    /// A whole number between two bounds, both included.
    Count(u32, u32),
    /// A whole number between two bounds, both included, or no value.
    OptionalCount(u32, u32),
    /// A number from 0 to 1.
    Share,
    /// A duration up to a number of seconds.
    Duration(u64),
    /// A number of bytes up to a bound.
    Size(u64),
    /// A word from a list.
    Choice(&'static [&'static str]),
    /// A list of texts.
    List,
}

/// One key of the configuration.
#[derive(Debug)]
pub(super) struct ConfigKey {
    pub section: &'static str,
    /// The name within the section.
    pub name: &'static str,
    pub kind: KeyKind,
    /// The default as a person would write it; empty for no value.
    pub default: &'static str,
    /// Whether a change applies without a restart.
    pub is_live: bool,
    /// What the key sets, in sentences.
    pub text: &'static str,
}

impl fmt::Display for ConfigKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{}", self.section, self.name)
    }
}

impl KeyKind {
    /// Parses the text of a variable or a flag; an empty text is no value. Returns `None` for an invalid text.
    pub(super) fn parse(self, text: &str) -> Option<Value> {
        match self {
            Self::Text | Self::Path | Self::OptionalCount(..) if text.is_empty() => {
                Some(Value::Null)
            }
            Self::Text => Some(json!(text)),
            Self::Path => std::path::Path::new(text).is_absolute().then(|| json!(text)),
            Self::Switch => text.parse().ok().map(Value::Bool),
            Self::Count(min, max) | Self::OptionalCount(min, max) => {
                let count: u32 = text.parse().ok()?;
                (min..=max).contains(&count).then(|| json!(count))
            }
            Self::Share => {
                let share: f64 = text.parse().ok()?;
                (0.0..=1.0).contains(&share).then(|| json!(share))
            }
            Self::Duration(max_seconds) => {
                let duration = parse_duration(text)?;
                (duration <= Duration::from_secs(max_seconds))
                    .then(|| json!(format_duration(duration)))
            }
            Self::Size(max) => {
                let bytes = parse_size(text)?;
                (bytes <= max).then(|| json!(format_size(bytes)))
            }
            Self::Choice(words) => words.contains(&text).then(|| json!(text)),
            Self::List => {
                let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
                Some(items.collect())
            }
        }
    }

    /// Returns whether the key can have no value.
    pub(super) const fn is_optional(self) -> bool {
        matches!(self, Self::Text | Self::Path | Self::OptionalCount(..))
    }
}

impl fmt::Display for KeyKind {
    /// Writes what the key accepts, for an error message.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text => out.write_str("a text"),
            Self::Path => out.write_str("an absolute path"),
            Self::Switch => out.write_str("true or false"),
            Self::Count(min, max) | Self::OptionalCount(min, max) => {
                write!(out, "a whole number from {min} to {max}")
            }
            Self::Share => out.write_str("a number from 0 to 1"),
            Self::Duration(max_seconds) => {
                let max = format_duration(Duration::from_secs(*max_seconds));
                write!(out, "a duration such as 500ms, 30s or 5m, up to {max}")
            }
            Self::Size(max) => {
                write!(out, "a size such as 512KiB or 1MiB, up to {}", format_size(*max))
            }
            Self::Choice(words) => write!(out, "one of {}", words.join(", ")),
            Self::List => out.write_str("a list of texts"),
        }
    }
}

/// The units of a duration in milliseconds, the largest first.
const UNITS: &[(&str, u64)] =
    &[("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

/// Parses a whole number with its unit; `0` needs none.
pub(super) fn parse_duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let digits = text.find(|char: char| !char.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let (_, ms) = UNITS.iter().find(|(name, _)| *name == unit)?;
    Some(Duration::from_millis(number.parse::<u64>().ok()?.checked_mul(*ms)?))
}

/// Formats a duration in the largest unit that divides it.
fn format_duration(duration: Duration) -> String {
    let ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let unit = UNITS.iter().find(|(_, unit_ms)| ms > 0 && ms.is_multiple_of(*unit_ms));
    unit.map_or_else(|| "0s".to_owned(), |(name, unit_ms)| format!("{}{name}", ms / unit_ms))
}

/// The units of a size in bytes, the largest first.
const SIZE_UNITS: &[(&str, u64)] =
    &[("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1024), ("B", 1), ("", 1)];

/// Parses a whole number with its unit; bytes need none.
pub(super) fn parse_size(text: &str) -> Option<u64> {
    let digits = text.find(|char: char| !char.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let (_, bytes) = SIZE_UNITS.iter().find(|(name, _)| *name == unit)?;
    number.parse::<u64>().ok()?.checked_mul(*bytes)
}

/// Formats a size in the largest unit that divides it.
fn format_size(bytes: u64) -> String {
    let unit = SIZE_UNITS.iter().find(|(_, size)| bytes > 0 && bytes.is_multiple_of(*size));
    unit.map_or_else(|| "0B".to_owned(), |(name, size)| format!("{}{name}", bytes / size))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::sections::KEYS;

    #[test]
    fn keys_are_unique_and_accept_their_defaults() {
        for (at, key) in KEYS.iter().enumerate() {
            assert!(key.kind.parse(key.default).is_some(), "{key}");
            let twin = KEYS[..at].iter().find(|other| other.to_string() == key.to_string());
            assert!(twin.is_none(), "{key} occurs twice");
        }
    }

    #[test]
    fn sizes_have_units() {
        let check = |text: &str, bytes: Option<u64>| {
            assert_eq!(parse_size(text), bytes, "{text}");
            if let Some(bytes) = bytes {
                assert_eq!(parse_size(&format_size(bytes)), Some(bytes));
            }
        };
        check("1MiB", Some(1024 * 1024));
        check("512KiB", Some(512 * 1024));
        check("1000", Some(1000));
        check("0", Some(0));
        check("1MB", None);
        check("MiB", None);
        check("-1", None);
        check("99999999999999999999GiB", None);
    }

    #[test]
    fn durations_have_units() {
        let check = |text: &str, ms: Option<u64>| {
            assert_eq!(parse_duration(text), ms.map(Duration::from_millis), "{text}");
            if let Some(ms) = ms {
                let formatted = format_duration(Duration::from_millis(ms));
                assert_eq!(parse_duration(&formatted), parse_duration(text));
            }
        };
        check("5m", Some(300_000));
        check("1500ms", Some(1500));
        check("0", Some(0));
        check("2h", Some(7_200_000));
        check("5", None);
        check("m", None);
        check("-1s", None);
        check("1.5s", None);
        check("99999999999999999999d", None);
        check("5 m", None);
    }
}
