//! The configuration as modules receive it: one struct for each section, checked and with units.
//!
//! The structs are read from the checked values of the keys, so a field has the name of its key.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use serde::de::Error;
use serde::{Deserialize, Deserializer};

use super::keys::{parse_duration, parse_size};

/// The context window of a session, in tokens, if neither the session, the configuration nor the model sets one: a
/// common size for local models.
pub(crate) const DEFAULT_CONTEXT_SIZE: u32 = 8192;

/// The server that `ollama` names.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct OllamaConfig {
    /// The server's address as the user wrote it: the setting, else `OLLAMA_HOST`, else empty for this machine.
    #[serde(deserialize_with = "default_if_null")]
    pub host: String,
    /// The server's API key, from `OLLAMA_API_KEY`. Never shown.
    #[serde(skip)]
    pub api_key: Option<ApiKey>,
    /// Directories on this machine that may hold the server's models: `OLLAMA_MODELS`, then the usual one.
    #[serde(skip)]
    pub models_dirs: Vec<PathBuf>,
    /// The time for which the server keeps a model loaded.
    #[serde(deserialize_with = "duration")]
    pub keep_alive: Duration,
    #[serde(deserialize_with = "duration")]
    pub connect_timeout: Duration,
    /// The longest wait for the first token; the server sends nothing while it loads a model and reads the prompt.
    #[serde(deserialize_with = "duration")]
    pub first_token_timeout: Duration,
    /// The longest wait between two tokens.
    #[serde(deserialize_with = "duration")]
    pub idle_timeout: Duration,
}

/// The choice of models.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct ModelsConfig {
    /// The model of sessions that name none.
    pub default: Option<String>,
}

/// Chat turns.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ChatConfig {
    /// The longest wait for the results of tools that a client runs.
    #[serde(deserialize_with = "duration")]
    pub tool_timeout: Duration,
}

/// An API key, which neither `Debug` nor an error shows.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ApiKey(pub String);

impl std::fmt::Debug for ApiKey {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("(secret)")
    }
}

/// Reads the text of a checked duration.
fn duration<'de, D: Deserializer<'de>>(input: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(input)?;
    parse_duration(&text).ok_or_else(|| D::Error::custom("not a duration"))
}

/// Reads the text of a checked size.
fn size<'de, D: Deserializer<'de>>(input: D) -> Result<u64, D::Error> {
    let text = String::deserialize(input)?;
    parse_size(&text).ok_or_else(|| D::Error::custom("not a size"))
}

/// Reads a key without a value as the default of its type.
fn default_if_null<'de, D, T>(input: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(input)?.unwrap_or_default())
}

/// The action on the oldest sessions beyond the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum OnLimit {
    Archive,
    /// Remove the sessions with all their files.
    Delete,
}

/// Session storage and retention.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SessionsConfig {
    /// The directory of the logs.
    #[serde(deserialize_with = "default_if_null")]
    pub data_dir: PathBuf,
    /// The most closed sessions that are kept; 0 for no limit.
    pub max_sessions: u32,
    /// The action on sessions beyond `max_sessions`.
    pub on_limit: OnLimit,
    /// The most sessions of a project that are not archived; 0 for no limit.
    pub max_sessions_per_project: u32,
    /// Days without activity after which a session is archived; 0 for never.
    pub auto_archive_after_days: u32,
    /// Whether the document of a session is written when the session is idle.
    pub auto_save: bool,
    /// The idle time after which a session's document is written.
    #[serde(deserialize_with = "duration")]
    pub document_idle: Duration,
}

/// Snapshots of context states.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SnapshotsConfig {
    /// Whether snapshot files are written.
    pub enabled: bool,
    /// The most automatic snapshots of a session.
    pub max_count: u32,
    /// Whether a snapshot is taken automatically when the usage passes the threshold.
    pub auto_create: bool,
    /// The threshold as a share of the prompt limit.
    pub auto_threshold: f64,
    /// The largest file whose content is kept, so that it can be put back.
    #[serde(rename = "fileLimit", deserialize_with = "size")]
    pub file_limit_bytes: u64,
    /// The most bytes of contents that a session keeps.
    #[serde(rename = "fileQuota", deserialize_with = "size")]
    pub file_quota_bytes: u64,
}

/// The method by which a compaction makes room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum CompressionStrategy {
    /// A model summarizes old messages.
    Summarize,
    /// Old messages are omitted.
    Truncate,
    /// Tool outputs are pruned, old messages summarized, recent ones kept.
    Hybrid,
}

/// Compaction.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CompressionConfig {
    /// Whether sessions are compacted automatically.
    pub enabled: bool,
    pub strategy: CompressionStrategy,
    /// The share of the available tokens at which a session is compacted.
    pub threshold: f64,
    /// Recent tokens that are kept if the window allows.
    #[serde(rename = "preserveRecent")]
    pub preserve_recent_tokens: u32,
    /// The longest summary.
    pub summary_max_tokens: u32,
    /// The model that summarizes; `None` for the session's own.
    pub model: Option<String>,
}

/// Context windows and their division.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ContextConfig {
    /// The window of sessions that have none of their own.
    pub size: Option<u32>,
    /// Tokens reserved for the answer; 0 for the default share.
    #[serde(deserialize_with = "default_if_null")]
    pub answer_reserve: u32,
    /// The longest answer in tokens of turns that name none; `None` for the rest of the window.
    pub answer_limit: Option<NonZeroU32>,
    /// The largest share of a head's conversation that user messages take.
    pub user_share: f64,
}

/// Goals.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GoalsConfig {
    /// Whether models are instructed to use markers.
    pub markers: bool,
}

/// The sessions in which a chat turn looks for messages that its question needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum RecallSetting {
    Session,
    /// All sessions of the session's project.
    Project,
    All,
    Off,
}

/// The turns in which a model is offered the recall tools of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum RecallTools {
    /// In turns whose client passes tools.
    Auto,
    Off,
}

/// Recall.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RecallConfig {
    pub scope: RecallSetting,
    /// The share of the prompt limit that recalled messages may have.
    pub share: f64,
    pub tools: RecallTools,
}

/// The texts of modes.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "BTreeMap<String, Option<String>>")]
pub(crate) struct ModesConfig {
    /// The configured texts, by mode.
    pub texts: BTreeMap<String, String>,
}

impl From<BTreeMap<String, Option<String>>> for ModesConfig {
    fn from(texts: BTreeMap<String, Option<String>>) -> Self {
        Self { texts: texts.into_iter().filter_map(|(mode, text)| Some((mode, text?))).collect() }
    }
}

impl ModesConfig {
    /// Returns the text that the system message has in a mode: the configured one, else the built-in one.
    ///
    /// Returns `None` for an unknown mode, and for a mode whose configured text has only spaces.
    pub(crate) fn text(&self, mode: &str) -> Option<&str> {
        let text = match self.texts.get(mode) {
            Some(text) => text.as_str(),
            None => built_in_text(mode)?,
        };
        (!text.trim().is_empty()).then_some(text)
    }
}

/// Returns the built-in text of a mode. The texts are short, because every prompt contains them, and concern the manner
/// of an answer, not its content.
fn built_in_text(mode: &str) -> Option<&'static str> {
    Some(match mode {
        "assistant" => {
            "You are a helpful assistant. Answer what is asked, plainly and as briefly as it allows. Say so when you \
             are not sure or do not know."
        }
        "developer" => {
            "You help to write software. Read before you change, keep to the style and the structure that are there, \
             and make the smallest change that does the job. Say what you changed, and what you could not check."
        }
        "planning" => {
            "You help to plan, and change nothing yet. Find out what is wanted and what is there, name the choices \
             with what speaks for and against each, and end with steps small enough to be checked one by one."
        }
        "debugger" => {
            "You help to find the cause of a fault. Begin with what was observed, name possible causes, and check the \
             likeliest with the cheapest test. Change nothing until the cause is shown, and tell it apart from what \
             you guess."
        }
        "user" => {
            "You explain things to somebody who uses a program and does not write it. Use everyday words, leave out \
             how it works inside, and give steps that can be followed one after the other."
        }
        _ => return None,
    })
}

/// Loop detection.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LoopDetectionConfig {
    pub enabled: bool,
    /// The most model calls since the last user message.
    pub max_turns: u32,
    /// Number of repetitions that make a loop.
    pub repeat_threshold: u32,
}

/// Environment sanitizing.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EnvironmentConfig {
    /// Names whose values are not checked.
    pub allow: Vec<String>,
    /// Patterns of names that do not pass, in addition to the built-in ones.
    pub deny: Vec<String>,
}

/// File discovery.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FilesConfig {
    /// The depth of a walk; `None` for no limit.
    pub max_depth: Option<u32>,
    /// Patterns that are excluded in addition.
    pub ignore: Vec<String>,
}

/// The daemon's own log.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LogConfig {
    /// The least severe level that is logged, by its name in `tracing`.
    pub level: String,
    /// Number of daily logs that are kept.
    pub keep_days: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mode_text_is_the_configured_one_or_the_built_in_one() {
        let texts = [("developer", "Be brief."), ("planning", " ")];
        let texts = texts.map(|(mode, text)| (mode.to_owned(), text.to_owned())).into();
        let modes = ModesConfig { texts };
        assert_eq!(modes.text("developer"), Some("Be brief."));
        assert_eq!(modes.text("planning"), None, "turned off");
        for mode in ["assistant", "debugger", "user"] {
            let text = modes.text(mode).expect("built in");
            let sentences = text.matches(". ").count() + 1;
            assert!((2..=3).contains(&sentences), "{mode}: {text}");
        }
        assert_eq!(modes.text("pirate"), None);
    }
}
