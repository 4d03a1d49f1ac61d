//! The configuration as modules receive it: one struct each, checked and with units.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Config;
use super::keys::Setting;
use super::modes::ModesConfig;
use super::raw::Settings;

/// The window of a session that does not say where the configuration does not either, in tokens: what local models
/// are commonly run with.
pub(crate) const DEFAULT_CONTEXT_SIZE: u32 = 8192;

/// The model server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OllamaConfig {
    /// Where it listens, as somebody wrote it: the setting, else `OLLAMA_HOST`, else empty for this machine.
    pub host: String,
    /// The key that it wants: `OLLAMA_API_KEY`. Never shown.
    pub api_key: Option<ApiKey>,
    /// The model where a session names none.
    pub model: Option<String>,
    /// Where its models lie, if on this machine: `OLLAMA_MODELS`, then the usual directory.
    pub models_dirs: Vec<PathBuf>,
    /// How long it keeps a model loaded.
    pub keep_alive: Duration,
    /// The longest wait for a connection.
    pub connect_timeout: Duration,
    /// The longest wait for the first token; loading and reading the prompt are silent.
    pub first_token_timeout: Duration,
    /// The longest wait between two tokens.
    pub idle_timeout: Duration,
    /// The longest wait for the results of tools that a client runs.
    pub tool_timeout: Duration,
}

/// A key that no log and no error shows.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ApiKey(pub String);

impl std::fmt::Debug for ApiKey {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("(secret)")
    }
}

/// What the environment says for all clients of model servers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ClientVariables {
    /// `OLLAMA_HOST`.
    pub host: Option<String>,
    /// `OLLAMA_API_KEY`.
    pub api_key: Option<ApiKey>,
    /// `OLLAMA_MODELS`.
    pub models: Option<PathBuf>,
    /// The user's own directory, in which models lie where nothing else is said.
    pub user_home: Option<PathBuf>,
}

impl ClientVariables {
    /// Keeps a variable if it is one of them; an empty one is none.
    pub(super) fn take(&mut self, name: &str, value: &str) {
        if value.trim().is_empty() {
            return;
        }
        match name {
            "OLLAMA_HOST" => self.host = Some(value.to_owned()),
            "OLLAMA_API_KEY" => self.api_key = Some(ApiKey(value.trim().to_owned())),
            "OLLAMA_MODELS" => self.models = Some(value.into()),
            "HOME" => self.user_home = Some(value.into()),
            _ => {}
        }
    }

    /// Where models lie on this machine, the likelier first.
    fn models_dirs(&self) -> Vec<PathBuf> {
        let usual = self.user_home.as_ref().map(|home| home.join(".ollama").join("models"));
        self.models.iter().cloned().chain(usual).filter(|dir| dir.is_absolute()).collect()
    }
}

/// What happens to the oldest sessions when there are too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnLimit {
    /// They are put away.
    Archive,
    /// They are removed with all their files.
    Delete,
}

/// Session storage and retention.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SessionsConfig {
    /// Where the logs lie.
    pub data_dir: PathBuf,
    /// The most closed sessions that are kept; 0: all.
    pub max_sessions: u32,
    /// What happens beyond.
    pub on_limit: OnLimit,
    /// The most sessions of a project that are not archived; 0: all.
    pub max_sessions_per_project: u32,
    /// Days without activity after which a session is archived; 0: never.
    pub auto_archive_after_days: u32,
    /// Whether documents are written when a session is idle.
    pub auto_save: bool,
    /// How long a session must be idle for that.
    pub document_idle: Duration,
}

/// Snapshots.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SnapshotsConfig {
    /// Whether snapshot files are written.
    pub enabled: bool,
    /// The most automatic ones of a session.
    pub max_count: u32,
    /// Whether one is taken by itself when usage passes the threshold.
    pub auto_create: bool,
    /// The share of the prompt limit.
    pub auto_threshold: f64,
}

/// How a compaction makes room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CompressionStrategy {
    /// A model writes a summary.
    Summarize,
    /// The oldest is left out.
    Truncate,
    /// Tool outputs are pruned, old messages summarized, recent ones kept.
    Hybrid,
}

/// Compaction.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CompressionConfig {
    /// Whether it happens by itself.
    pub enabled: bool,
    /// How.
    pub strategy: CompressionStrategy,
    /// The share of the available tokens at which it happens.
    pub threshold: f64,
    /// Recent tokens to keep where the window allows.
    pub preserve_recent_tokens: u32,
    /// The longest summary.
    pub summary_max_tokens: u32,
    /// The model that summarizes; absent: the session's own.
    pub model: Option<String>,
}

/// Windows and their division.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ContextConfig {
    /// The window where a session names none; absent: the model's, at most 8192.
    pub size: Option<u32>,
    /// Tokens to keep free for the answer; 0: the default share.
    pub answer_reserve: u32,
    /// The share of the conversation that user messages may have in a head.
    pub user_share: f64,
}

impl ContextConfig {
    /// The window of a session in tokens; `own` is what it names itself.
    pub(crate) fn size_for(&self, own: Option<u32>) -> u32 {
        own.or(self.size).unwrap_or(DEFAULT_CONTEXT_SIZE)
    }
}

/// Goals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GoalsConfig {
    /// Whether models are told to use markers.
    pub markers: bool,
}

/// Loop detection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LoopDetectionConfig {
    /// Whether it is on.
    pub enabled: bool,
    /// The most model calls since the last user message.
    pub max_turns: u32,
    /// How many repetitions are a loop.
    pub repeat_threshold: u32,
}

/// Environment sanitizing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EnvironmentConfig {
    /// Names that pass in addition.
    pub allow: Vec<String>,
    /// Patterns that do not pass in addition.
    pub deny: Vec<String>,
}

/// File discovery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FilesConfig {
    /// How deep a walk goes; absent: all the way.
    pub max_depth: Option<u32>,
    /// Patterns that are left out in addition.
    pub ignore: Vec<String>,
}

/// The daemon's own log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogConfig {
    /// The least severe level that is written, as `tracing` names it.
    pub level: String,
    /// Days that a log is kept.
    pub keep_days: u32,
}

impl Config {
    /// Turns checked settings into structs.
    pub(super) fn from_settings(
        home: &Path,
        settings: Settings,
        variables: ClientVariables,
    ) -> Self {
        let read = Reader(&settings);
        Self {
            ollama: read.ollama(variables),
            sessions: read.sessions(home),
            snapshots: SnapshotsConfig {
                enabled: read.switch("snapshots", "enabled"),
                max_count: read.count("snapshots", "maxCount"),
                auto_create: read.switch("snapshots", "autoCreate"),
                auto_threshold: read.share("snapshots", "autoThreshold"),
            },
            compression: read.compression(),
            context: ContextConfig {
                size: read.maybe_count("context", "size"),
                answer_reserve: read.maybe_count("context", "answerReserve").unwrap_or(0),
                user_share: read.share("context", "userShare"),
            },
            goals: GoalsConfig { markers: read.switch("goals", "markers") },
            modes: read.modes(),
            loop_detection: LoopDetectionConfig {
                enabled: read.switch("loopDetection", "enabled"),
                max_turns: read.count("loopDetection", "maxTurns"),
                repeat_threshold: read.count("loopDetection", "repeatThreshold"),
            },
            environment: EnvironmentConfig {
                allow: read.list("environment", "allow"),
                deny: read.list("environment", "deny"),
            },
            files: FilesConfig {
                max_depth: read.maybe_count("files", "maxDepth"),
                ignore: read.list("files", "ignore"),
            },
            log: LogConfig {
                level: read.text("log", "level").unwrap_or_default(),
                keep_days: read.count("log", "keepDays"),
            },
            settings,
        }
    }
}

/// Typed access to settings. The table fixes every key's type, so another type is a wrong name in this file, which
/// the first load in any test finds.
struct Reader<'a>(&'a Settings);

impl Reader<'_> {
    fn ollama(&self, variables: ClientVariables) -> OllamaConfig {
        OllamaConfig {
            models_dirs: variables.models_dirs(),
            host: self.text("ollama", "host").or(variables.host).unwrap_or_default(),
            api_key: variables.api_key,
            model: self.text("ollama", "model"),
            keep_alive: self.time("ollama", "keepAlive"),
            connect_timeout: self.time("ollama", "connectTimeout"),
            first_token_timeout: self.time("ollama", "firstTokenTimeout"),
            idle_timeout: self.time("ollama", "idleTimeout"),
            tool_timeout: self.time("ollama", "toolTimeout"),
        }
    }

    fn sessions(&self, home: &Path) -> SessionsConfig {
        let data_dir = self.text("sessions", "dataDir").map(PathBuf::from);
        let delete = self.text("sessions", "onLimit").as_deref() == Some("delete");
        SessionsConfig {
            data_dir: data_dir.unwrap_or_else(|| home.join("sessions")),
            max_sessions: self.count("sessions", "maxSessions"),
            on_limit: if delete { OnLimit::Delete } else { OnLimit::Archive },
            max_sessions_per_project: self.count("sessions", "maxSessionsPerProject"),
            auto_archive_after_days: self.count("sessions", "autoArchiveAfterDays"),
            auto_save: self.switch("sessions", "autoSave"),
            document_idle: self.time("sessions", "documentIdle"),
        }
    }

    fn compression(&self) -> CompressionConfig {
        CompressionConfig {
            enabled: self.switch("compression", "enabled"),
            strategy: match self.text("compression", "strategy").as_deref() {
                Some("summarize") => CompressionStrategy::Summarize,
                Some("truncate") => CompressionStrategy::Truncate,
                _ => CompressionStrategy::Hybrid,
            },
            threshold: self.share("compression", "threshold"),
            preserve_recent_tokens: self.count("compression", "preserveRecent"),
            summary_max_tokens: self.count("compression", "summaryMaxTokens"),
            model: self.text("compression", "model"),
        }
    }

    fn modes(&self) -> ModesConfig {
        let modes = self.0.iter().filter(|((section, _), _)| *section == "modes");
        let texts = modes.filter_map(|((_, mode), (setting, _))| match setting {
            Setting::Text(text) => Some(((*mode).to_owned(), text.clone())),
            _ => None,
        });
        ModesConfig { texts: texts.collect() }
    }

    fn setting(&self, section: &'static str, name: &'static str) -> &Setting {
        match self.0.get(&(section, name)) {
            Some((setting, _)) => setting,
            None => unreachable!("the table has {section}.{name}"),
        }
    }

    fn text(&self, section: &'static str, name: &'static str) -> Option<String> {
        match self.setting(section, name) {
            Setting::Text(text) => Some(text.clone()),
            Setting::Nothing => None,
            other => unreachable!("{section}.{name} is {other:?}"),
        }
    }

    fn switch(&self, section: &'static str, name: &'static str) -> bool {
        match self.setting(section, name) {
            Setting::Switch(on) => *on,
            other => unreachable!("{section}.{name} is {other:?}"),
        }
    }

    fn maybe_count(&self, section: &'static str, name: &'static str) -> Option<u32> {
        match self.setting(section, name) {
            Setting::Count(count) => Some(*count),
            Setting::Nothing => None,
            other => unreachable!("{section}.{name} is {other:?}"),
        }
    }

    fn count(&self, section: &'static str, name: &'static str) -> u32 {
        match self.setting(section, name) {
            Setting::Count(count) => *count,
            other => unreachable!("{section}.{name} is {other:?}"),
        }
    }

    fn share(&self, section: &'static str, name: &'static str) -> f64 {
        match self.setting(section, name) {
            Setting::Share(share) => *share,
            other => unreachable!("{section}.{name} is {other:?}"),
        }
    }

    fn time(&self, section: &'static str, name: &'static str) -> Duration {
        match self.setting(section, name) {
            Setting::Time(time) => *time,
            other => unreachable!("{section}.{name} is {other:?}"),
        }
    }

    fn list(&self, section: &'static str, name: &'static str) -> Vec<String> {
        match self.setting(section, name) {
            Setting::List(items) => items.clone(),
            other => unreachable!("{section}.{name} is {other:?}"),
        }
    }
}
