//! The configuration: one immutable value, merged from defaults, file, environment and flags.
//!
//! `sections` is the table of keys, from which the structs are made, `keys` what a key accepts, and `raw` merges the values
//! that were set and checks them.
//! A module receives its own struct, never [`Config`].
//!
//! **Invariant**: no other module reads the environment.

mod error;
mod keys;
mod lines;
mod portable;
mod raw;
mod sections;
mod servers;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value, json};

pub(crate) use self::error::{ConfigError, ConfigWarning};
use self::error::{ConfigNotices, ValueSource};
use self::keys::ConfigKey;
pub(crate) use self::portable::portable;
use self::raw::{ConfigFile, Settings};
use self::sections::KEYS;
pub(crate) use self::sections::{
    ApiKey, ChatConfig, CompressionConfig, CompressionStrategy, ContextConfig,
    DEFAULT_CONTEXT_SIZE, EnvironmentConfig, FilesConfig, GoalsConfig, HooksConfig, LogConfig,
    LoopDetectionConfig, ModelsConfig, ModesConfig, OllamaConfig, OnLimit, ProcessVariables,
    RecallConfig, RecallSetting, RecallTools, RunHooks, SessionsConfig, SnapshotsConfig,
};
pub(crate) use self::servers::{Affinity, ServedModel, ServerConfig, ServerKind};
use crate::fsutil;

/// The name of the default file in the home.
pub(crate) const FILE_NAME: &str = "config.yaml";

/// The beginning of the list of keys.
const KEYS_TEXT: &str = "\
# Configuration of ollmd

The file `config.yaml` in the home, usually `~/.ollm`, is optional. Environment variables override it:
`sessions.maxSessions` is also `OLLM_SESSIONS__MAX_SESSIONS`. The locations are not in the file but in the environment,
`OLLM_HOME`, `OLLM_SOCKET` and `OLLM_CONFIG`, or in the flags of `ollmd --help`.

`ollmctl config show` prints the settings in force with the source of each value, `ollmctl config check` reports
mistakes with file, line and key, and `ollmctl config list` prints this page. A change of the file takes effect at once,
also after `kill -HUP` or `ollmctl call daemon.reload`, or after a restart where this page says so, which `ollmctl
daemon status` reports.

Each line is a key, its default in parentheses, what it accepts, and what it sets.
";

/// Values from the command line.
///
/// **Shape**: `("sessions.dataDir", "/data")`; a later value of a key replaces an earlier one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FlagOverrides(pub Vec<(String, String)>);

/// The whole configuration.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Config {
    pub(crate) ollama: OllamaConfig,
    pub(crate) models: ModelsConfig,
    pub(crate) chat: ChatConfig,
    pub(crate) sessions: SessionsConfig,
    pub(crate) snapshots: SnapshotsConfig,
    pub(crate) compression: CompressionConfig,
    pub(crate) context: ContextConfig,
    pub(crate) goals: GoalsConfig,
    pub(crate) modes: ModesConfig,
    pub(crate) loop_detection: LoopDetectionConfig,
    pub(crate) recall: RecallConfig,
    pub(crate) environment: EnvironmentConfig,
    pub(crate) files: FilesConfig,
    pub(crate) hooks: HooksConfig,
    pub(crate) log: LogConfig,
    /// Ollama's API key, from `OLLAMA_API_KEY`. Never shown.
    #[serde(skip)]
    pub(crate) ollama_key: Option<ApiKey>,
    /// Directories on this machine that may hold Ollama's models: `OLLAMA_MODELS`, then the usual one.
    #[serde(skip)]
    pub(crate) ollama_models_dirs: Vec<PathBuf>,
    /// The model servers of the section `servers`, by name.
    #[serde(skip)]
    pub(crate) servers: BTreeMap<String, ServerConfig>,
    /// Set if the configuration names the model server, which otherwise comes from `OLLAMA_HOST` or the default.
    #[serde(skip)]
    pub(crate) is_ollama_host_set: bool,
    /// The variables of the daemon, of which hooks get those that tools may see.
    #[serde(skip)]
    pub(crate) variables: ProcessVariables,
    #[serde(skip)]
    settings: Settings,
}

/// The differences between two configurations, as keys like `sessions.maxSessions`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConfigDiff {
    /// Keys whose change applies as soon as the new configuration does.
    pub applied: Vec<String>,
    /// Keys whose change applies after a restart.
    pub restart_needed: Vec<String>,
}

impl Config {
    /// Reads the configuration: defaults, then the file, then `OLLM_*` variables, then flags. A model server that none
    /// of them sets is taken from `OLLAMA_HOST`, as the server's own clients do.
    ///
    /// `explicit_file` must exist; without it, `config.yaml` in the home is read if it exists.
    ///
    /// **Errors**: `Read` if the file cannot be read, `Syntax` if it is not YAML, `UnknownKey` and `Value` for a key that
    /// is wrong, `Several` for more than one.
    pub(crate) fn load(
        home: &Path,
        explicit_file: Option<&Path>,
        env: impl Iterator<Item = (String, String)>,
        flags: &FlagOverrides,
    ) -> Result<(Self, Vec<ConfigWarning>), ConfigError> {
        let default = home.join(FILE_NAME);
        let path = explicit_file.unwrap_or(&default);
        let file = match fsutil::read_linked_text(path) {
            Ok(text) => Some(ConfigFile { path, text }),
            Err(error)
                if explicit_file.is_none() && error.kind() == std::io::ErrorKind::NotFound =>
            {
                None
            }
            Err(source) => return Err(ConfigError::Read { path: path.to_owned(), source }),
        };
        let env: BTreeMap<String, String> = env.collect();
        let mut notices = ConfigNotices::default();
        let (settings, servers) = Settings::read(file.as_ref(), &env, &flags.0, &mut notices)?;
        let warnings = notices.into_warnings()?;
        let config = Self::from_settings(home, settings, &env);
        let variables = ProcessVariables(env);
        Ok((Self { servers, variables, ..config }, warnings))
    }

    fn from_settings(home: &Path, settings: Settings, env: &BTreeMap<String, String>) -> Self {
        let variable = |name: &str| env.get(name).filter(|value| !value.trim().is_empty());
        let mut config: Self = serde_json::from_value(settings.values())
            .unwrap_or_else(|error| unreachable!("a struct and the table of keys differ: {error}"));
        if config.sessions.data_dir.as_os_str().is_empty() {
            config.sessions.data_dir = home.join("sessions");
        }
        config.is_ollama_host_set = !config.ollama.host.is_empty();
        if !config.is_ollama_host_set {
            config.ollama.host = variable("OLLAMA_HOST").cloned().unwrap_or_default();
        }
        let key = variable("OLLAMA_API_KEY").map(|key| ApiKey(key.trim().to_owned()));
        config.ollama_key = key;
        let usual_dir = variable("HOME").map(|home| Path::new(home).join(".ollama").join("models"));
        let models_dirs = variable("OLLAMA_MODELS").map(PathBuf::from).into_iter().chain(usual_dir);
        config.ollama_models_dirs = models_dirs.filter(|dir| dir.is_absolute()).collect();
        Self { settings, ..config }
    }

    /// Returns every key, in sections, as a page that a terminal shows as well.
    #[must_use]
    pub(crate) fn keys_as_text() -> String {
        let mut page = KEYS_TEXT.to_owned();
        let mut section = "";
        for key in KEYS {
            if key.section != section {
                section = key.section;
                let _ = writeln!(page, "\n## {section}\n");
            }
            let ConfigKey { kind, default, text, .. } = key;
            let default =
                if default.is_empty() { "no value".to_owned() } else { format!("`{default}`") };
            let restart = if key.is_live { "" } else { ", after a restart" };
            let _ = writeln!(page, "- `{key}` ({default}): {kind}{restart}. {}", text.trim_start());
        }
        page.push_str(servers::TEXT);
        page
    }

    /// Returns every key.
    ///
    /// **Shape**: `{"data":[{"key":"sessions.maxSessions","default":"100","accepts":"a whole number from 0 to
    /// 1000000","restart":false,"text":"The most unused sessions ..."}]}`
    #[must_use]
    pub(crate) fn keys_as_json() -> Value {
        let entry = |key: &ConfigKey| {
            let text = key.text.trim_start();
            json!({ "key": key.to_string(), "default": key.default, "accepts": key.kind.to_string(),
                "restart": !key.is_live, "text": text })
        };
        json!({ "data": KEYS.iter().map(entry).collect::<Vec<_>>() })
    }

    /// Returns what changed since `old`.
    pub(crate) fn diff(&self, old: &Self) -> ConfigDiff {
        let is_changed = |key: &&ConfigKey| self.settings.entry(key).0 != old.settings.entry(key).0;
        let (live, at_start): (Vec<_>, Vec<_>) =
            KEYS.iter().filter(is_changed).partition(|key| key.is_live);
        let names = |keys: Vec<&ConfigKey>| keys.iter().map(ToString::to_string).collect();
        let mut applied: Vec<String> = names(live);
        if self.servers != old.servers {
            applied.push(servers::SECTION.to_owned());
        }
        ConfigDiff { applied, restart_needed: names(at_start) }
    }

    /// Returns the effective values with their sources.
    ///
    /// **Shape**: `{"sessions":{"maxSessions":{"value":77,"source":"file","file":"/x/config.yaml","line":2}}}`;
    /// the source is `default`, `computed`, `file`, `env` with a `variable`, or `flag`.
    #[must_use]
    pub(crate) fn to_json(&self) -> Value {
        let mut sections = Map::new();
        for key in KEYS {
            let (value, source) = self.settings.entry(key);
            let mut shown = match self.computed(key, value) {
                Some((value, how)) => json!({ "value": value, "source": "computed", "how": how }),
                None => json!({ "value": value, "source": "default" }),
            };
            match source {
                Some(ValueSource::File { path, line }) => {
                    shown["source"] = "file".into();
                    shown["file"] = json!(path.to_string_lossy());
                    shown["line"] = json!(line);
                }
                Some(ValueSource::Variable(name)) => {
                    shown["source"] = "env".into();
                    shown["variable"] = json!(name);
                }
                Some(ValueSource::Flag(_)) => shown["source"] = "flag".into(),
                None => {}
            }
            let section = sections.entry(key.section).or_insert_with(|| json!({}));
            section[key.name] = shown;
        }
        let shown = self.servers.iter().map(|(name, server)| {
            (name.clone(), json!({ "value": server.shown(), "source": "file" }))
        });
        sections.insert(servers::SECTION.to_owned(), Value::Object(shown.collect()));
        Value::Object(sections)
    }

    /// Returns the effective values as a configuration file, with the source of each in a comment.
    #[must_use]
    pub(crate) fn to_yaml(&self) -> String {
        let mut yaml = String::new();
        let mut section = "";
        for key in KEYS {
            if key.section != section {
                section = key.section;
                let _ = writeln!(yaml, "{section}:");
            }
            let (value, source) = self.settings.entry(key);
            let mut notes: Vec<String> = source.iter().map(|source| source.short()).collect();
            let computed = self.computed(key, value);
            notes.extend(computed.as_ref().map(|(_, how)| format!("computed: {how}")));
            if notes.is_empty() {
                notes.push("default".to_owned());
            }
            let shown = computed.as_ref().map_or(value, |(value, _)| value);
            // A JSON value is valid YAML, and its quotes keep texts from being read as other types.
            let shown = if shown.is_null() { "~".to_owned() } else { shown.to_string() };
            let _ = writeln!(yaml, "  {}: {shown}  # {}", key.name, notes.join("; "));
        }
        if !self.servers.is_empty() {
            let _ = writeln!(yaml, "{}:", servers::SECTION);
        }
        for (name, server) in &self.servers {
            let _ = writeln!(yaml, "  {name}: {}  # file", server.shown());
        }
        yaml
    }

    /// Returns the effective value of a key without a value, and how it is computed. The value is null where it
    /// depends on more than the configuration.
    fn computed(&self, key: &ConfigKey, value: &Value) -> Option<(Value, &'static str)> {
        if !value.is_null() {
            return None;
        }
        match (key.section, key.name) {
            ("ollama", "host") => {
                let host = (!self.ollama.host.is_empty()).then_some(&self.ollama.host);
                Some((json!(host), "OLLAMA_HOST, else this machine"))
            }
            ("sessions", "dataDir") => {
                Some((json!(self.sessions.data_dir.to_string_lossy()), "in the home"))
            }
            ("context", "size") => {
                Some((json!(DEFAULT_CONTEXT_SIZE), "unless the session or the Modelfile sets one"))
            }
            ("context", "answerReserve") => Some((Value::Null, "15 % of each window")),
            ("context", "answerLimit") => Some((Value::Null, "the rest of the window")),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
