//! The one table of keys: what each may hold, what it holds by default, and whether it can change live.

use std::fmt;
use std::time::Duration;

use ollm_protocol::content::MIN_CONTEXT_SIZE;
use serde_json::{Value, json};

/// What a key may hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    /// Any text, or nothing.
    Text,
    /// An absolute path, or nothing.
    Path,
    /// `true` or `false`.
    Switch,
    /// A whole number between two bounds, both included.
    Count(u32, u32),
    /// A whole number between two bounds, or nothing.
    MaybeCount(u32, u32),
    /// A number from 0 to 1.
    Share,
    /// A duration up to a bound, in seconds.
    Time(u64),
    /// One of some words.
    Choice(&'static [&'static str]),
    /// Texts.
    List,
}

/// A value as a key holds it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Setting {
    Nothing,
    Text(String),
    Switch(bool),
    Count(u32),
    Share(f64),
    Time(Duration),
    List(Vec<String>),
}

/// One key of the configuration.
#[derive(Debug)]
pub(super) struct Key {
    /// Its section.
    pub section: &'static str,
    /// Its name in the section.
    pub name: &'static str,
    /// What it may hold.
    pub kind: Kind,
    /// What it holds by default, as a person would write it; empty for nothing.
    pub default: &'static str,
    /// Whether a change takes effect without a restart.
    pub live: bool,
}

impl fmt::Display for Key {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{}", self.section, self.name)
    }
}

const fn key(section: &'static str, name: &'static str, kind: Kind, default: &'static str) -> Key {
    Key { section, name, kind, default, live: true }
}

/// Sections, and keys by their full names, that are checked and that nothing uses yet.
const NO_EFFECT_YET: &[&str] = &["snapshots", "files"];

impl Key {
    /// Whether this version uses it.
    pub(super) fn has_effect(&self) -> bool {
        let full = self.to_string();
        !NO_EFFECT_YET.iter().any(|name| *name == self.section || *name == full)
    }

    /// A change takes effect at the next start.
    const fn at_start(mut self) -> Self {
        self.live = false;
        self
    }
}

/// A day; no wait of a daemon is longer.
const DAY: u64 = 86_400;
/// More of anything countable than one machine has.
const MANY: u32 = 1_000_000;
/// The largest window that is worth asking for; model servers refuse far less.
const MAX_WINDOW: u32 = 16_777_216;

/// Every key, by section.
pub(super) const KEYS: &[Key] = &[
    key("ollama", "host", Kind::Text, ""),
    key("ollama", "model", Kind::Text, ""),
    key("ollama", "keepAlive", Kind::Time(30 * DAY), "5m"),
    key("ollama", "connectTimeout", Kind::Time(DAY), "5s"),
    key("ollama", "firstTokenTimeout", Kind::Time(DAY), "10m"),
    key("ollama", "idleTimeout", Kind::Time(DAY), "2m"),
    // A build or a test run takes minutes, and a person may be asked before.
    key("ollama", "toolTimeout", Kind::Time(DAY), "30m"),
    // Logs lie there and are locked from the start on.
    key("sessions", "dataDir", Kind::Path, "").at_start(),
    key("sessions", "maxSessions", Kind::Count(0, MANY), "100"),
    key("sessions", "onLimit", Kind::Choice(&["archive", "delete"]), "archive"),
    key("sessions", "maxSessionsPerProject", Kind::Count(0, MANY), "50"),
    key("sessions", "autoArchiveAfterDays", Kind::Count(0, 36_500), "30"),
    key("sessions", "autoSave", Kind::Switch, "true"),
    key("sessions", "documentIdle", Kind::Time(DAY), "2s"),
    key("snapshots", "enabled", Kind::Switch, "true"),
    key("snapshots", "maxCount", Kind::Count(1, 10_000), "5"),
    key("snapshots", "autoCreate", Kind::Switch, "true"),
    key("snapshots", "autoThreshold", Kind::Share, "0.85"),
    key("compression", "enabled", Kind::Switch, "true"),
    key("compression", "strategy", Kind::Choice(&["summarize", "truncate", "hybrid"]), "hybrid"),
    key("compression", "threshold", Kind::Share, "0.8"),
    key("compression", "preserveRecent", Kind::Count(0, MAX_WINDOW), "4096"),
    key("compression", "summaryMaxTokens", Kind::Count(64, MAX_WINDOW), "1024"),
    key("compression", "model", Kind::Text, ""),
    key("context", "size", Kind::MaybeCount(MIN_CONTEXT_SIZE, MAX_WINDOW), ""),
    key("context", "answerReserve", Kind::MaybeCount(0, MAX_WINDOW), ""),
    key("context", "userShare", Kind::Share, "0.5"),
    key("goals", "markers", Kind::Switch, "false"),
    key("modes", "assistant", Kind::Text, ""),
    key("modes", "developer", Kind::Text, ""),
    key("modes", "planning", Kind::Text, ""),
    key("modes", "debugger", Kind::Text, ""),
    key("modes", "user", Kind::Text, ""),
    key("loopDetection", "enabled", Kind::Switch, "true"),
    key("loopDetection", "maxTurns", Kind::Count(1, MANY), "50"),
    key("loopDetection", "repeatThreshold", Kind::Count(2, 1000), "3"),
    key("environment", "allow", Kind::List, ""),
    key("environment", "deny", Kind::List, ""),
    key("files", "maxDepth", Kind::MaybeCount(0, 10_000), ""),
    key("files", "ignore", Kind::List, ""),
    // The log is opened once, before anything else.
    key("log", "level", Kind::Choice(&["error", "warn", "info", "debug", "trace"]), "info")
        .at_start(),
    key("log", "keepDays", Kind::Count(1, 36_500), "7").at_start(),
];

impl Kind {
    /// Reads what a variable or a flag says; empty is nothing.
    pub(super) fn read(self, text: &str) -> Option<Setting> {
        let within = |(low, high)| {
            let count: u32 = text.parse().ok()?;
            (low..=high).contains(&count).then_some(Setting::Count(count))
        };
        match self {
            Self::Text | Self::Path | Self::MaybeCount(..) if text.is_empty() => {
                Some(Setting::Nothing)
            }
            Self::Text => Some(Setting::Text(text.to_owned())),
            Self::Path => {
                std::path::Path::new(text).is_absolute().then(|| Setting::Text(text.to_owned()))
            }
            Self::Switch => text.parse().ok().map(Setting::Switch),
            Self::Count(low, high) | Self::MaybeCount(low, high) => within((low, high)),
            Self::Share => {
                let share: f64 = text.parse().ok()?;
                (0.0..=1.0).contains(&share).then_some(Setting::Share(share))
            }
            Self::Time(most) => {
                let time = read_time(text)?;
                (time <= Duration::from_secs(most)).then_some(Setting::Time(time))
            }
            Self::Choice(words) => words.contains(&text).then(|| Setting::Text(text.to_owned())),
            Self::List => {
                let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
                Some(Setting::List(items.map(str::to_owned).collect()))
            }
        }
    }

    /// Whether the key may hold nothing.
    pub(super) const fn takes_nothing(self) -> bool {
        matches!(self, Self::Text | Self::Path | Self::MaybeCount(..))
    }
}

impl fmt::Display for Kind {
    /// What the key may hold, as an error says it.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text => out.write_str("a text"),
            Self::Path => out.write_str("an absolute path"),
            Self::Switch => out.write_str("true or false"),
            Self::Count(low, high) | Self::MaybeCount(low, high) => {
                write!(out, "a whole number from {low} to {high}")
            }
            Self::Share => out.write_str("a number from 0 to 1"),
            Self::Time(most) => {
                let most = write_time(Duration::from_secs(*most));
                write!(out, "a duration such as 500ms, 30s or 5m, up to {most}")
            }
            Self::Choice(words) => write!(out, "one of {}", words.join(", ")),
            Self::List => out.write_str("a list of texts"),
        }
    }
}

impl Setting {
    /// The value as JSON shows it; durations as they are written.
    pub(super) fn to_json(&self) -> Value {
        match self {
            Self::Nothing => Value::Null,
            Self::Text(text) => json!(text),
            Self::Switch(on) => json!(on),
            Self::Count(count) => json!(count),
            Self::Share(share) => json!(share),
            Self::Time(time) => json!(write_time(*time)),
            Self::List(items) => json!(items),
        }
    }
}

/// Units of a duration in milliseconds, largest first.
const UNITS: &[(&str, u64)] =
    &[("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

/// A whole number and its unit; `0` needs none.
fn read_time(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let digits = text.find(|sign: char| !sign.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let (_, ms) = UNITS.iter().find(|(name, _)| *name == unit)?;
    Some(Duration::from_millis(number.parse::<u64>().ok()?.checked_mul(*ms)?))
}

/// The duration in the largest unit that divides it.
fn write_time(time: Duration) -> String {
    let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let unit = UNITS.iter().find(|(_, each)| ms > 0 && ms.is_multiple_of(*each));
    unit.map_or_else(|| "0s".to_owned(), |(name, each)| format!("{}{name}", ms / each))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_effect_is_in_the_table() {
        for name in NO_EFFECT_YET {
            let known = KEYS.iter().any(|key| key.section == *name || key.to_string() == *name);
            assert!(known, "{name}");
        }
    }

    #[test]
    fn every_default_is_a_value_that_its_key_takes() {
        for (at, key) in KEYS.iter().enumerate() {
            assert!(key.kind.read(key.default).is_some(), "{key}");
            let twin = KEYS[..at].iter().find(|other| other.to_string() == key.to_string());
            assert!(twin.is_none(), "{key} is there twice");
        }
    }

    #[test]
    fn durations_have_units() {
        let check = |text: &str, ms: Option<u64>| {
            assert_eq!(read_time(text), ms.map(Duration::from_millis), "{text}");
            if let Some(ms) = ms {
                assert_eq!(read_time(&write_time(Duration::from_millis(ms))), read_time(text));
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
