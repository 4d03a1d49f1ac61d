//! The settings: one entry of one table for each key, from which the structs that modules receive are made.
//!
//! The comment of a key is its text for users: `ollmd --list-config` prints it.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use ollm_protocol::content::MIN_CONTEXT_SIZE;
use serde::de::Error;
use serde::{Deserialize, Deserializer};

use super::keys::{ConfigKey, KeyKind as Kind, parse_duration, parse_size};

/// The context window of a session, in tokens, if neither the session, the configuration nor the model sets one: a
/// common size for local models.
pub(crate) const DEFAULT_CONTEXT_SIZE: u32 = 8192;

/// One day in seconds: the upper limit of most durations, because the daemon never waits longer.
const DAY: u64 = 86_400;
/// The upper limit of counts: no machine has more of anything that is counted.
const MANY: u32 = 1_000_000;
const MIB: u64 = 1024 * 1024;
/// The largest file whose content can be kept: a frame has no larger one.
const MAX_FILE: u64 = 16 * MIB;
/// The most bytes of contents that a session can be allowed to keep.
const MAX_FILES: u64 = 1024 * 1024 * MIB;
/// The largest context window that can be configured; model servers reject far smaller ones.
pub(super) const MAX_WINDOW: u32 = 16_777_216;
/// Marks a key whose change applies at the next start.
const AT_START: bool = false;

/// Defines the struct of each section and the table of all keys. An entry is
/// `field: type = ("name", kind, "default" as a person would write it, empty for no value)`, and `AT_START` if it
/// applies only at the start.
macro_rules! settings {
    ($($(#[doc = $about:literal])+ $section:literal $Struct:ident {
        $($(#[doc = $text:literal])+ $(#[serde($($serde:tt)+)])?
        $field:ident: $type:ty = ($name:literal, $kind:expr, $default:literal $(, $start:ident)?);)+
    })+) => {
        $($(#[doc = $about])+
        #[derive(Clone, Debug, PartialEq, Deserialize)]
        pub(crate) struct $Struct {
            $($(#[doc = $text])+
            #[serde(rename = $name, $($($serde)+)?)]
            pub $field: $type,)+
        })+

        /// All keys, ordered by section.
        pub(super) const KEYS: &[ConfigKey] = &[$($(ConfigKey {
            section: $section,
            name: $name,
            kind: $kind,
            default: $default,
            is_live: [true $(, $start)?].len() == 1,
            text: concat!($($text),+),
        },)+)+];
    };
}

settings! {
    /// The server that `ollama` names.
    "ollama" OllamaConfig {
        /// The address of Ollama, in any form that `OLLAMA_HOST` takes; without it, the value of that variable, else
        /// this machine. The API key is read from `OLLAMA_API_KEY`, and vocabularies from the models on this machine,
        /// in `OLLAMA_MODELS`, else `~/.ollama/models`.
        #[serde(deserialize_with = "default_if_null")]
        host: String = ("host", Kind::Text, "");
        /// The time for which the server keeps a model loaded.
        #[serde(deserialize_with = "duration")]
        keep_alive: Duration = ("keepAlive", Kind::Duration(30 * DAY), "5m");
        /// The longest wait for a connection.
        #[serde(deserialize_with = "duration")]
        connect_timeout: Duration = ("connectTimeout", Kind::Duration(DAY), "5s");
        /// The longest wait for the first token; the server sends nothing while it loads a model and reads the prompt.
        #[serde(deserialize_with = "duration")]
        first_token_timeout: Duration = ("firstTokenTimeout", Kind::Duration(DAY), "10m");
        /// The longest pause within an answer.
        #[serde(deserialize_with = "duration")]
        idle_timeout: Duration = ("idleTimeout", Kind::Duration(DAY), "2m");
    }
    /// The choice of models.
    "models" ModelsConfig {
        /// The model of sessions and calls that name none.
        default: Option<String> = ("default", Kind::Text, "");
    }
    /// Chat turns.
    "chat" ChatConfig {
        /// The longest wait for the results of tools that a client runs: a build or a test run takes minutes, and a
        /// person may be asked first.
        #[serde(deserialize_with = "duration")]
        tool_timeout: Duration = ("toolTimeout", Kind::Duration(DAY), "30m");
    }
    /// Session storage and retention.
    "sessions" SessionsConfig {
        /// The directory of the session logs, which is locked at the start; without it, `sessions` in the home.
        #[serde(deserialize_with = "default_if_null")]
        data_dir: PathBuf = ("dataDir", Kind::Path, "", AT_START);
        /// The most unused sessions that are kept; 0 for no limit. A session is unused if it was closed, or had no
        /// record for 24 hours. Pinned, archived, imported and active sessions do not count.
        max_sessions: u32 = ("maxSessions", Kind::Count(0, MANY), "100");
        /// The action on the oldest sessions beyond that limit.
        on_limit: OnLimit = ("onLimit", Kind::Choice(&["archive", "delete"]), "archive");
        /// The most sessions of a project that are not archived; 0 for no limit.
        max_sessions_per_project: u32 = ("maxSessionsPerProject", Kind::Count(0, MANY), "50");
        /// The days without activity after which a session is archived; 0 for never.
        auto_archive_after_days: u32 = ("autoArchiveAfterDays", Kind::Count(0, 36_500), "30");
        /// Whether the readable `<id>.json` is written beside a log when its session is idle; the log itself is always
        /// durable.
        auto_save: bool = ("autoSave", Kind::Switch, "true");
        /// The idle time after which that file is written.
        #[serde(deserialize_with = "duration")]
        document_idle: Duration = ("documentIdle", Kind::Duration(DAY), "2s");
    }
    /// Snapshots of context states.
    "snapshots" SnapshotsConfig {
        /// Whether files of snapshots are written; without them, undo works, and snapshots cannot be requested.
        enabled: bool = ("enabled", Kind::Switch, "true");
        /// The most automatic snapshots of a session that keep their files; requested and pinned ones do not count.
        max_count: u32 = ("maxCount", Kind::Count(1, 10_000), "5");
        /// Whether a snapshot is taken when a context becomes nearly full.
        auto_create: bool = ("autoCreate", Kind::Switch, "true");
        /// The share of the prompt limit at which that happens.
        auto_threshold: f64 = ("autoThreshold", Kind::Share, "0.85");
        /// The largest file that a tool call wrote whose earlier content is kept, so that it can be put back.
        #[serde(deserialize_with = "size")]
        file_limit_bytes: u64 = ("fileLimit", Kind::Size(MAX_FILE), "1MiB");
        /// The most bytes of such contents that a session keeps, its large texts counted too.
        #[serde(deserialize_with = "size")]
        file_quota_bytes: u64 = ("fileQuota", Kind::Size(MAX_FILES), "256MiB");
    }
    /// Compaction.
    "compression" CompressionConfig {
        /// Whether conversations that fill their window are compacted automatically; `ollmctl context compact` works
        /// at any time.
        enabled: bool = ("enabled", Kind::Switch, "true");
        /// The way to make room: a model summarizes old messages (`summarize`), old messages are left out
        /// (`truncate`), or old tool results are shortened first (`hybrid`).
        strategy: CompressionStrategy =
            ("strategy", Kind::Choice(&["summarize", "truncate", "hybrid"]), "hybrid");
        /// The share of its room at which a conversation is compacted: in a pause at 90 to 120 % of it, the later the shorter
        /// its turns are.
        threshold: f64 = ("threshold", Kind::Share, "0.8");
        /// The newest tokens that stay verbatim, as far as the window allows.
        preserve_recent_tokens: u32 = ("preserveRecent", Kind::Count(0, MAX_WINDOW), "4096");
        /// The longest summary, in tokens.
        summary_max_tokens: u32 = ("summaryMaxTokens", Kind::Count(64, MAX_WINDOW), "1024");
        /// The model that writes summaries; without it, the session's model.
        model: Option<String> = ("model", Kind::Text, "");
    }
    /// Context windows and their division.
    "context" ContextConfig {
        /// The context window, in tokens, of sessions that set none, never more than the model supports; without it,
        /// the `num_ctx` of the Modelfile, else 8192.
        size: Option<u32> = ("size", Kind::OptionalCount(MIN_CONTEXT_SIZE, MAX_WINDOW), "");
        /// The tokens that are kept free for the answer, if that is more than 15 % of the window, and at most 40 %.
        #[serde(deserialize_with = "default_if_null")]
        answer_reserve: u32 = ("answerReserve", Kind::OptionalCount(0, MAX_WINDOW), "");
        /// The longest answer, in tokens and with thinking, of turns that name none; without it, the rest of the
        /// window.
        answer_limit: Option<NonZeroU32> =
            ("answerLimit", Kind::OptionalCount(1, MAX_WINDOW), "");
        /// The share of the conversation that earlier user messages may have if not everything fits.
        user_share: f64 = ("userShare", Kind::Share, "0.5");
    }
    /// Goals.
    "goals" GoalsConfig {
        /// Whether models are asked to report progress on the goal in their answers.
        markers: bool = ("markers", Kind::Switch, "false");
    }
    /// The texts that the system message has for sessions in a mode.
    "modes" ModesConfig {
        /// The text for sessions in the mode `assistant`; without it, a built-in one. A text of spaces is none.
        assistant: Option<String> = ("assistant", Kind::Text, "");
        /// The same for the mode `developer`.
        developer: Option<String> = ("developer", Kind::Text, "");
        /// The same for the mode `planning`.
        planning: Option<String> = ("planning", Kind::Text, "");
        /// The same for the mode `debugger`.
        debugger: Option<String> = ("debugger", Kind::Text, "");
        /// The same for the mode `user`.
        user: Option<String> = ("user", Kind::Text, "");
    }
    /// Loop detection.
    "loopDetection" LoopDetectionConfig {
        /// Whether a session that repeats itself is kept from calling the model.
        enabled: bool = ("enabled", Kind::Switch, "true");
        /// The most model calls since the last user message.
        max_turns: u32 = ("maxTurns", Kind::Count(1, MANY), "50");
        /// The number of equal calls or results that are a loop.
        repeat_threshold: u32 = ("repeatThreshold", Kind::Count(2, 1000), "3");
    }
    /// Recall.
    "recall" RecallConfig {
        /// Where a chat turn looks for earlier messages that the question needs and the prompt does not show.
        scope: RecallSetting = ("scope", Kind::Choice(&["session", "project", "all", "off"]), "session");
        /// The share of the prompt limit that these messages may have.
        share: f64 = ("share", Kind::Share, "0.1");
        /// Whether models are offered two tools that search earlier messages and read them, in turns whose client
        /// passes tools.
        tools: RecallTools = ("tools", Kind::Choice(&["auto", "off"]), "auto");
    }
    /// Environment sanitizing.
    "environment" EnvironmentConfig {
        /// Variables that tools may see although their value embeds a password in a URL; `deny` wins.
        allow: Vec<String> = ("allow", Kind::List, "");
        /// Further patterns of variables that tools must not see; `ollmctl call env.rules` lists the built-in ones,
        /// which always hold.
        deny: Vec<String> = ("deny", Kind::List, "");
    }
    /// File discovery.
    "files" FilesConfig {
        /// The depth to which `files.*` lists directories; without it, all of them.
        max_depth: Option<u32> = ("maxDepth", Kind::OptionalCount(0, 10_000), "");
        /// Patterns of files that `files.*` leaves out, as in `.gitignore`; `.ollmignore` is stronger.
        ignore: Vec<String> = ("ignore", Kind::List, "");
    }
    /// Hooks: programs of yours in `hooks` of the home, or in `.ollm/hooks` of a project that you trust.
    "hooks" HooksConfig {
        /// Whether hooks run.
        enabled: bool = ("enabled", Kind::Switch, "true");
        /// The time after which a hook is killed. A turn and a compaction wait no longer for all hooks together.
        #[serde(deserialize_with = "duration")]
        timeout: Duration = ("timeout", Kind::Duration(600), "5s");
        /// The program that starts hooks: systemd, which needs the user's D-Bus, if it runs the daemon as a service, else the
        /// daemon (`auto`). Hooks that the daemon of a service starts have its restrictions, in which node and Java do not run.
        run_by: RunHooks = ("runBy", Kind::Choice(&["auto", "daemon", "systemd"]), "auto");
    }
    /// The daemon's own log, which is opened once, before anything else.
    "log" LogConfig {
        /// The least severe level that is logged; the contents of messages are logged at `trace` only.
        level: String =
            ("level", Kind::Choice(&["error", "warn", "info", "debug", "trace"]), "info", AT_START);
        /// The number of daily log files that are kept.
        keep_days: u32 = ("keepDays", Kind::Count(1, 36_500), "7", AT_START);
    }
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

/// The program that starts hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum RunHooks {
    /// Systemd if it runs the daemon, else the daemon.
    Auto,
    Daemon,
    Systemd,
}

/// The variables of the daemon's environment, whose values neither `Debug` nor an error shows.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct ProcessVariables(pub BTreeMap<String, String>);

impl std::fmt::Debug for ProcessVariables {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "({} variables)", self.0.len())
    }
}

impl ModesConfig {
    /// Returns the text that the system message has in a mode: the configured one, else the built-in one. The built-in
    /// texts are short, because every prompt contains them, and concern the manner of an answer, not its content.
    ///
    /// Returns `None` for an unknown mode, and for a mode whose configured text has only spaces.
    pub(crate) fn text(&self, mode: &str) -> Option<&str> {
        let (configured, built_in) = match mode {
            "assistant" => (
                &self.assistant,
                "You are a helpful assistant. Answer what is asked, plainly and as briefly as it allows. Say so when you \
             are not sure or do not know.",
            ),
            "developer" => (
                &self.developer,
                "You help to write software. Read before you change, keep to the style and the structure that are there, \
             and make the smallest change that does the job. Say what you changed, and what you could not check.",
            ),
            "planning" => (
                &self.planning,
                "You help to plan, and change nothing yet. Find out what is wanted and what is there, name the choices \
             with what speaks for and against each, and end with steps small enough to be checked one by one.",
            ),
            "debugger" => (
                &self.debugger,
                "You help to find the cause of a fault. Begin with what was observed, name possible causes, and check the \
             likeliest with the cheapest test. Change nothing until the cause is shown, and tell it apart from what \
             you guess.",
            ),
            "user" => (
                &self.user,
                "You explain things to somebody who uses a program and does not write it. Use everyday words, leave out \
             how it works inside, and give steps that can be followed one after the other.",
            ),
            _ => return None,
        };
        let text = configured.as_deref().unwrap_or(built_in);
        (!text.trim().is_empty()).then_some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mode_text_is_the_configured_one_or_the_built_in_one() {
        let modes = serde_json::json!({ "developer": "Be brief.", "planning": " " });
        let modes: ModesConfig = serde_json::from_value(modes).expect("modes");
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
