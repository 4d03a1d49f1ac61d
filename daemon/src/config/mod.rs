//! The configuration: one immutable value made once from defaults, file, environment and flags.
//!
//! A module receives its own struct, never [`Config`], and reads no environment. `keys` is the one table of keys;
//! `raw` says what was set where; `sections` are the structs.

mod error;
mod keys;
mod lines;
mod raw;
mod sections;

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Map, Value, json};

pub(crate) use self::error::{ConfigError, ConfigWarning};
use self::keys::KEYS;
use self::raw::{File, Settings};
pub(crate) use self::sections::{
    CompressionConfig, ContextConfig, EnvironmentConfig, FilesConfig, GoalsConfig, LogConfig,
    LoopDetectionConfig, ModesConfig, OllamaConfig, OnLimit, SessionsConfig, SnapshotsConfig,
};

/// The file that is read when none is named, in the home.
pub(crate) const FILE_NAME: &str = "config.yaml";

/// Values given on the command line.
///
/// **Shape**: `("sessions.dataDir", "/data")`; a later one of the same key wins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FlagOverrides(pub Vec<(String, String)>);

/// Everything that can be configured.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Config {
    /// The model server.
    pub(crate) ollama: OllamaConfig,
    /// Session storage and retention.
    pub(crate) sessions: SessionsConfig,
    /// Snapshots.
    pub(crate) snapshots: SnapshotsConfig,
    /// Compaction.
    pub(crate) compression: CompressionConfig,
    /// Windows and their division.
    pub(crate) context: ContextConfig,
    /// Goals.
    pub(crate) goals: GoalsConfig,
    /// Texts of the modes.
    pub(crate) modes: ModesConfig,
    /// Loop detection.
    pub(crate) loop_detection: LoopDetectionConfig,
    /// Environment sanitizing.
    pub(crate) environment: EnvironmentConfig,
    /// File discovery.
    pub(crate) files: FilesConfig,
    /// The daemon's own log.
    pub(crate) log: LogConfig,
    settings: Settings,
}

/// What differs between two configurations, as keys like `sessions.maxSessions`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConfigDiff {
    /// In force as soon as the new configuration is.
    pub applied: Vec<String>,
    /// In force after a restart.
    pub restart_needed: Vec<String>,
}

impl Config {
    /// Reads the configuration: defaults, then the file, then `OLLM_*` variables, then flags.
    ///
    /// `explicit_file` must exist; without one `config.yaml` in the home is read where there is one.
    ///
    /// **Errors**: `Read` when the file cannot be read, `Syntax` when it is not YAML, `UnknownKey` and `Value`
    /// for the first key that is wrong.
    pub(crate) fn load(
        home: &Path,
        explicit_file: Option<&Path>,
        env: impl Iterator<Item = (String, String)>,
        flags: &FlagOverrides,
    ) -> Result<(Self, Vec<ConfigWarning>), ConfigError> {
        let default = home.join(FILE_NAME);
        let path = explicit_file.unwrap_or(&default);
        let file = match std::fs::read_to_string(path) {
            Ok(text) => Some(File { path, text }),
            Err(error)
                if explicit_file.is_none() && error.kind() == std::io::ErrorKind::NotFound =>
            {
                None
            }
            Err(source) => return Err(ConfigError::Read { path: path.to_owned(), source }),
        };
        let mut warnings = Vec::new();
        let settings = raw::read(file.as_ref(), env, &flags.0, &mut warnings)?;
        Ok((Self::from_settings(home, settings), warnings))
    }

    /// What changed since `old`.
    pub(crate) fn diff(&self, old: &Self) -> ConfigDiff {
        let mut diff = ConfigDiff::default();
        for key in KEYS {
            let at = &(key.section, key.name);
            let value = |config: &Self| config.settings.get(at).map(|(value, _)| value.clone());
            if value(self) == value(old) {
                continue;
            }
            let list = if key.live { &mut diff.applied } else { &mut diff.restart_needed };
            list.push(key.to_string());
        }
        diff
    }

    /// The values in force with the source of each.
    ///
    /// **Shape**: `{"sessions":{"maxSessions":{"value":100,"source":"default"}}}`
    #[must_use]
    pub(crate) fn to_json(&self) -> Value {
        let mut sections = Map::new();
        for key in KEYS {
            let Some((value, source)) = self.settings.get(&(key.section, key.name)) else {
                continue;
            };
            let shown = json!({ "value": value.to_json(), "source": source.as_str() });
            let section = sections.entry(key.section).or_insert_with(|| json!({}));
            section[key.name] = shown;
        }
        Value::Object(sections)
    }

    /// The values in force as a configuration file, with the source of each in a comment.
    #[must_use]
    pub(crate) fn to_yaml(&self) -> String {
        let mut yaml = String::new();
        let mut section = "";
        for key in KEYS {
            let Some((value, source)) = self.settings.get(&(key.section, key.name)) else {
                continue;
            };
            if key.section != section {
                section = key.section;
                let _ = writeln!(yaml, "{section}:");
            }
            // A JSON value is YAML too, and its quotes keep texts texts.
            let value = match value.to_json() {
                Value::Null => "~".to_owned(),
                value => value.to_string(),
            };
            let _ = writeln!(yaml, "  {}: {value}  # {}", key.name, source.as_str());
        }
        yaml
    }
}

#[cfg(test)]
mod tests;
