//! The configuration: one immutable value made once from defaults, file, environment and flags.
//!
//! A module receives its own struct, never [`Config`], and reads no environment. `keys` is the one table of keys;
//! `raw` says what was set where; `sections` are the structs.

mod error;
mod keys;
mod lines;
mod modes;
mod raw;
mod sections;

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Map, Value, json};

use self::error::Place;
pub(crate) use self::error::{ConfigError, ConfigWarning};
use self::keys::{KEYS, Key, Setting};
pub(crate) use self::modes::ModesConfig;
use self::raw::{File, Settings};
use self::sections::ClientVariables;
pub(crate) use self::sections::{
    CompressionConfig, CompressionStrategy, ContextConfig, DEFAULT_CONTEXT_SIZE, EnvironmentConfig,
    FilesConfig, GoalsConfig, LogConfig, LoopDetectionConfig, OllamaConfig, OnLimit,
    SessionsConfig, SnapshotsConfig,
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
    /// Where none of them names a model server, `OLLAMA_HOST` does, as for its own clients.
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
        let mut variables = ClientVariables::default();
        let own = env.inspect(|(name, value)| variables.take(name, value));
        let mut warnings = Vec::new();
        let settings = raw::read(file.as_ref(), own, &flags.0, &mut warnings)?;
        Ok((Self::from_settings(home, settings, variables), warnings))
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
    /// **Shape**: `{"sessions":{"maxSessions":{"value":77,"source":"file","file":"/x/config.yaml","line":2}}}`;
    /// the source is `default`, `computed`, `file`, `env` with a `variable`, or `flag`. `noEffectYet` marks what is
    /// checked and not used.
    #[must_use]
    pub(crate) fn to_json(&self) -> Value {
        let mut sections = Map::new();
        for (key, value, place) in self.listed() {
            let computed = self.computed(key, value);
            let mut shown = match &computed {
                Some((value, how)) => json!({ "value": value, "source": "computed", "how": how }),
                None => json!({ "value": value.to_json(), "source": "default" }),
            };
            if let Some(place) = place {
                tell_place(place, &mut shown);
            }
            if !key.has_effect() {
                shown["noEffectYet"] = true.into();
            }
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
        for (key, value, place) in self.listed() {
            if key.section != section {
                section = key.section;
                let _ = writeln!(yaml, "{section}:");
            }
            let mut notes: Vec<String> = place.iter().map(|place| place.short()).collect();
            let shown = match self.computed(key, value) {
                Some((value, how)) => {
                    notes.push(format!("computed: {how}"));
                    value
                }
                None => value.to_json(),
            };
            if notes.is_empty() {
                notes.push("default".to_owned());
            }
            if !key.has_effect() {
                notes.push("no effect yet".to_owned());
            }
            // A JSON value is YAML too, and its quotes keep texts texts.
            let shown = if shown.is_null() { "~".to_owned() } else { shown.to_string() };
            let _ = writeln!(yaml, "  {}: {shown}  # {}", key.name, notes.join("; "));
        }
        yaml
    }

    fn listed(&self) -> impl Iterator<Item = (&'static Key, &Setting, Option<&Place>)> {
        KEYS.iter().filter_map(|key| {
            let (value, place) = self.settings.get(&(key.section, key.name))?;
            Some((key, value, place.as_ref()))
        })
    }

    /// What holds for a key that says nothing, and how it comes about; the value is absent where it depends on more
    /// than the configuration.
    fn computed(&self, key: &Key, value: &Setting) -> Option<(Value, &'static str)> {
        if *value != Setting::Nothing {
            return None;
        }
        match (key.section, key.name) {
            ("ollama", "host") => {
                let host = (!self.ollama.host.is_empty()).then_some(&self.ollama.host);
                Some((json!(host), "OLLAMA_HOST, else this machine"))
            }
            ("sessions", "dataDir") => Some((json!(self.sessions.data_dir), "in the home")),
            ("context", "size") => {
                Some((json!(DEFAULT_CONTEXT_SIZE), "for sessions that do not say"))
            }
            ("context", "answerReserve") => Some((Value::Null, "15 % of each window")),
            _ => None,
        }
    }
}

/// Adds to a shown value where it was set.
fn tell_place(place: &Place, shown: &mut Value) {
    match place {
        Place::File { path, line } => {
            shown["source"] = "file".into();
            shown["file"] = json!(path.to_string_lossy());
            shown["line"] = json!(line);
        }
        Place::Variable(name) => {
            shown["source"] = "env".into();
            shown["variable"] = json!(name);
        }
        Place::Flag(_) => shown["source"] = "flag".into(),
    }
}

#[cfg(test)]
mod tests;
