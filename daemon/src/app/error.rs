//! The errors of the application layer: one enum for all of `app`, which contains those of chat turns and compactions.
//!
//! Must not know the wire: `rpc/error.rs` gives each variant its code, kind and hint.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use ollm_protocol::content::{
    FileHash, LoopPattern, MIN_CONTEXT_SIZE, Meta, PERMISSIONS, permissions,
};
use ollm_protocol::limits::{
    MAX_CONTEXT_SIZE, MAX_PAGE_BYTES, MAX_PART_BYTES, MAX_RESULT_BYTES, OverLimit, json_bytes,
    part_of,
};
use ollm_protocol::methods::TextPart;
use ollm_protocol::{Seq, SessionId, Timestamp};
use serde::Serialize;

use crate::backup::BackupError;
use crate::catalog::CatalogError;
use crate::context::ContextError;
use crate::context::compact::RejectedSummary;
use crate::files::FilesError;
use crate::fsutil::FsError;
use crate::goal::GoalError;
use crate::hooks::HookError;
use crate::model::{ModelError, ServerAdvice};
use crate::projects::ProjectError;
use crate::session::SessionError;
use crate::session::import::ImportError;
use crate::snapshot::SnapshotError;

/// The result of a call of the application layer.
pub(crate) type Result<T, E = AppError> = std::result::Result<T, E>;

/// A call of the application layer failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AppError {
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    #[error(transparent)]
    Context(#[from] ContextError),
    #[error(transparent)]
    Project(#[from] ProjectError),
    #[error(transparent)]
    Import(#[from] ImportError),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Goal(#[from] GoalError),
    #[error(transparent)]
    Chat(#[from] ChatError),
    #[error(transparent)]
    Compact(#[from] CompactError),
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    #[error(transparent)]
    Files(#[from] FilesError),
    #[error(transparent)]
    Hook(#[from] HookError),
    #[error(transparent)]
    Backup(#[from] BackupError),
    #[error(transparent)]
    Storage(#[from] FsError),
    /// A parameter is invalid. `field` is its name on the wire.
    #[error("{field}: {problem}")]
    Invalid { field: &'static str, problem: String },
    /// A field is larger than its limit.
    #[error(transparent)]
    TooLarge(#[from] OverLimit),
    /// All context entries that apply together have more bytes than a list of them can have.
    #[error("all context entries together would have {bytes} bytes; the limit is {limit}")]
    EntriesTooLarge { bytes: usize, limit: usize },
    /// A context, or its inspection, is larger than a response; `context.getBuild` returns it in parts.
    #[error(
        "the context has {bytes} bytes of JSON, and a response at most {MAX_RESULT_BYTES}; \
         context.getBuild returns build {build_id} in parts"
    )]
    ContextTooLarge { id: SessionId, build_id: String, bytes: usize },
    /// A build cannot be repeated, because the configuration or the tokenizer changed since.
    #[error(
        "build {build_id} cannot be repeated: the configuration or the tokenizer changed; build again"
    )]
    BuildChanged { build_id: String },
    /// The session keeps no content with this hash.
    #[error("session {id} does not keep the content {hash}")]
    ContentNotKept { id: SessionId, hash: FileHash },
    /// A content that the session keeps is damaged.
    #[error("a content that session {id} keeps is damaged")]
    ContentDamaged { id: SessionId, path: PathBuf },
    /// The configuration allows no snapshot files.
    #[error("snapshots.enabled is false, so no snapshot is written; undo works without them")]
    SnapshotsDisabled,
    /// The upload is unknown or too large.
    #[error("upload {id}: {problem}")]
    Upload { id: String, problem: &'static str },
    /// Files of the session are being put back, or an interrupted change of them is being finished.
    #[error("files of session {id} are being put back")]
    PuttingBack { id: SessionId },
    /// The client left before the files of the session had moved.
    #[error("files of session {id} stay as they were, because the call was canceled")]
    PutBackCanceled { id: SessionId },
    /// An interrupted change of files waits for its project.
    #[error(
        "an earlier change of files of session {id} was interrupted and waits for {}, which is gone; \
         bring the directory back, or leave the files as they are",
        root.display()
    )]
    PutBackPending { id: SessionId, root: PathBuf },
    /// Another backup, restore or check is running.
    #[error("another backup, restore or check of the store is running")]
    StoreBusy,
    /// The client left.
    #[error("{method} was canceled")]
    StoreWorkCanceled { method: &'static str },
    /// A whole backup is restored into a home without sessions only.
    #[error("the home has sessions, and a whole backup is restored into an empty home only")]
    HomeInUse,
    /// The home has a session with the same id and other records.
    #[error(
        "session {id} exists with {}, and was not changed",
        if *is_longer { "the first records of those in the backup" } else { "other records" }
    )]
    RestoreConflict {
        id: SessionId,
        /// Set if the log of the backup continues that of the home.
        is_longer: bool,
        path: PathBuf,
        backup_id: String,
    },
    /// No backup has the session.
    #[error("{} has no backup of session {id}", path.display())]
    NotInBackup { id: SessionId, path: PathBuf },
    /// The files of a restore are durable and not all in their places.
    #[error("the restore is complete only after a restart, which finishes it")]
    RestoreUnfinished {
        #[source]
        source: FsError,
    },
    /// Loop detection stopped the session.
    #[error("session {id} repeats itself ({pattern}), so the model is not called")]
    LoopDetected { id: SessionId, pattern: LoopPattern },
    /// The daemon shut down before the work was done.
    #[error("the daemon is shutting down")]
    Stopping,
}

impl AppError {
    /// Returns the error for an invalid parameter.
    pub(crate) fn invalid(field: &'static str, problem: impl Into<String>) -> Self {
        Self::Invalid { field, problem: problem.into() }
    }
}

/// The longest time for which a session can keep its model in memory: 30 days, as in the configuration.
const MAX_KEEP_ALIVE_SECONDS: u32 = 30 * 86_400;

/// Refuses a time to keep a model in memory that is too long.
pub(crate) fn check_keep_alive(seconds: Option<u32>) -> Result<()> {
    if seconds.is_some_and(|seconds| seconds > MAX_KEEP_ALIVE_SECONDS) {
        let problem = format!("must be at most {MAX_KEEP_ALIVE_SECONDS}");
        return Err(AppError::invalid("keepAliveSeconds", problem));
    }
    Ok(())
}

/// Refuses a window below the smallest one or above the largest one.
pub(crate) fn check_context_size(size: Option<u32>) -> Result<()> {
    match size {
        Some(size) if size < MIN_CONTEXT_SIZE => {
            let problem = format!(
                "{size} is below {MIN_CONTEXT_SIZE} tokens; a model with a smaller window uses its own"
            );
            Err(AppError::invalid("contextSize", problem))
        }
        Some(size) if size > MAX_CONTEXT_SIZE => {
            let problem = format!("{size} is above {MAX_CONTEXT_SIZE} tokens");
            Err(AppError::invalid("contextSize", problem))
        }
        _ => Ok(()),
    }
}

/// Refuses permissions of tools that no client could read.
pub(crate) fn check_permissions(metadata: &Meta) -> Result<()> {
    let problem = |problem| AppError::invalid("metadata", format!("{PERMISSIONS} {problem}"));
    permissions(metadata).map(drop).map_err(problem)
}

/// Returns the number of items that a page may have.
///
/// **Errors**: `Invalid` for a `limit` outside of 1 to `max`.
pub(crate) fn page_limit(limit: Option<u32>, default: u32, max: u32) -> Result<usize> {
    let limit = limit.unwrap_or(default);
    if (1..=max).contains(&limit) {
        return Ok(limit as usize);
    }
    Err(AppError::invalid("limit", format!("must lie between 1 and {max}")))
}

/// Returns the part of a JSON text at a cursor, which is the position in bytes. Without a cursor, returns the first part.
///
/// **Errors**: `Invalid` for a position within a character, or at or behind the end.
pub(crate) fn json_part(json: &str, cursor: Option<&str>) -> Result<TextPart> {
    let at = cursor.map_or(Some(0), |cursor| cursor.parse::<usize>().ok());
    let rest = at.and_then(|at| json.get(at..)).filter(|rest| !rest.is_empty());
    let rest = rest.ok_or_else(|| AppError::invalid("cursor", "is not the cursor of a part"))?;
    let data = rest[..part_of(rest, MAX_PART_BYTES)].to_owned();
    let done = json.len() - rest.len() + data.len();
    let next_cursor = (done < json.len()).then(|| done.to_string());
    Ok(TextPart { data, next_cursor, done: done as u64, total: json.len() as u64 })
}

/// Shortens a page to the first items that fit into a reply, at least one; returns whether some were dropped.
pub(crate) fn limit_page<T: Serialize>(items: &mut Vec<T>) -> bool {
    let n_items = items.len();
    let mut bytes = 0;
    let mut n_fitting = 0;
    for item in items.iter() {
        bytes += json_bytes(item) + ",".len();
        if bytes > MAX_PAGE_BYTES && n_fitting > 0 {
            break;
        }
        n_fitting += 1;
    }
    items.truncate(n_fitting);
    n_fitting < n_items
}

/// A chat turn did not start, or ended without an answer.
///
/// `partial` is the record of the partial answer.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum ChatError {
    /// Another turn of the session is running.
    #[error("session {id} is being answered by {model} since {since}")]
    Conflict { id: SessionId, model: String, since: Timestamp },
    /// No turn of the session waits for tool results.
    #[error("no turn of session {id} waits for results of tools")]
    NoPendingCalls { id: SessionId },
    /// No turn of the session is running.
    #[error("no turn of session {id} is running; its answers are in the session")]
    NotRunning { id: SessionId },
    #[error("too many clients follow the turn of session {id}")]
    TooManyFollowers { id: SessionId },
    #[error("the turn was canceled")]
    Canceled { partial: Option<Seq> },
    #[error("{source}")]
    Model { source: ModelError, partial: Option<Seq> },
    #[error(transparent)]
    NoServer(Box<NoServer>),
    /// The model answered with neither text nor a tool call.
    #[error(
        "{model} answered nothing; the prompt has {context_tokens} tokens of at most {prompt_limit}"
    )]
    EmptyAnswer { model: String, context_tokens: u64, prompt_limit: u64, partial: Option<Seq> },
    /// The model spent its whole answer on thinking.
    #[error("{model} {spent}")]
    OnlyThinking { id: SessionId, model: String, spent: SpentTokens, partial: Option<Seq> },
    /// The server read fewer tokens than were sent.
    #[error("{model} read {read} of the {sent} tokens that were sent: the server cut the prompt")]
    Truncated { model: String, sent: u64, read: u64, partial: Option<Seq> },
    /// The client did not submit the results of `missing` calls in time.
    #[error("no results of {} within {} s", .missing.join(", "), .after.as_secs())]
    ToolTimeout { missing: Vec<String>, after: Duration },
    /// The user's message has images, and the model reads none. `readers` are installed models that do.
    #[error("{model} does not read images; {}", Readers(.readers))]
    NoVision {
        model: String,
        host: String,
        readers: Vec<String>,
        advice: Option<&'static ServerAdvice>,
    },
    /// The model called a tool although the client offered none.
    #[error("{model} called {name}, and no tool was offered to it")]
    UnexpectedCall { model: String, name: String, partial: Seq },
}

impl ChatError {
    /// Returns the record of the partial answer.
    pub(crate) const fn partial(&self) -> Option<Seq> {
        match self {
            Self::Canceled { partial }
            | Self::Model { partial, .. }
            | Self::EmptyAnswer { partial, .. }
            | Self::OnlyThinking { partial, .. }
            | Self::Truncated { partial, .. } => *partial,
            Self::UnexpectedCall { partial, .. } => Some(*partial),
            Self::Conflict { .. }
            | Self::NoPendingCalls { .. }
            | Self::NotRunning { .. }
            | Self::TooManyFollowers { .. }
            | Self::NoServer(_)
            | Self::ToolTimeout { .. }
            | Self::NoVision { .. } => None,
        }
    }
}

/// None of the equal servers of a model answered.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{source}; the servers of {model} were tried: {}", TriedServers(tried))]
pub(crate) struct NoServer {
    /// The first failure.
    pub(crate) source: ModelError,
    pub(crate) model: String,
    /// The name of each server and the reason.
    pub(crate) tried: Vec<(String, &'static str)>,
}

/// Prints servers, each with the reason of its failure.
struct TriedServers<'a>(&'a [(String, &'static str)]);

impl fmt::Display for TriedServers<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<_> =
            self.0.iter().map(|(name, reason)| format!("{name} ({reason})")).collect();
        out.write_str(&all.join(", "))
    }
}

/// Prints the installed models that read images.
struct Readers<'a>(&'a [String]);

impl fmt::Display for Readers<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => out.write_str("no installed model is known to read them"),
            [one] => write!(out, "{one} does"),
            many => write!(out, "these do: {}", many.join(", ")),
        }
    }
}

/// The tokens of an answer that ended before its first word, and the settings that would leave room for one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SpentTokens {
    pub(crate) thinking_tokens: u64,
    pub(crate) context_tokens: u64,
    /// The largest prompt, in tokens.
    pub(crate) prompt_limit: u64,
    /// The context window, in tokens.
    pub(crate) window: u32,
    /// The setting that limits answers, and the limit, if the answer ended there.
    pub(crate) limited_by: Option<(&'static str, u32)>,
    /// Whether a larger `context.answerReserve` would shorten the prompt.
    pub(crate) reserve_helps: bool,
    /// The window that the model was trained for, if it is larger.
    pub(crate) trained: Option<u32>,
}

impl fmt::Display for SpentTokens {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { thinking_tokens, context_tokens, window, .. } = self;
        let off = "have it think less (think: false)";
        if let Some((setting, _)) = self.limited_by {
            return write!(
                out,
                "spent all {thinking_tokens} tokens that {setting} allows on thinking and answered nothing; \
                 {off}, or allow more"
            );
        }
        write!(
            out,
            "spent {thinking_tokens} tokens on thinking and answered nothing: the prompt has \
             {context_tokens} tokens, and the window of {window} is full; {off}"
        )?;
        if let Some(trained) = self.trained {
            write!(out, ", or set a larger context.size, up to {trained}")?;
        }
        if self.reserve_helps {
            out.write_str(", or a larger context.answerReserve")?;
        }
        Ok(())
    }
}

/// A compaction failed or did not start; the context is unchanged.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum CompactError {
    /// Another compaction of the session is running, started by `holder`.
    #[error("session {id} is being compacted for {holder} since {since}")]
    Conflict { id: SessionId, holder: &'static str, since: Timestamp },
    #[error("no summary was made: {0}")]
    Model(ModelError),
    /// Both answers of the model were rejected; `reason` is that of the second.
    #[error("{model} wrote no summary: {reason}")]
    Rejected { model: String, reason: RejectedSummary },
    /// Chats needed the model until the time for the summary was over.
    #[error("no summary was made, because {model} was busy with chats")]
    ModelBusy { model: String },
    /// The model had written no summary when the turn stopped to wait for it.
    #[error("{model} took too long to write a summary")]
    Slow { model: String },
    /// The summarizer's window has no room for records.
    #[error("a window of {window} tokens is too small to make a summary with {model}")]
    NoRoom { model: String, window: u32 },
    /// A client moved the session to another branch.
    #[error("session {id} moved to another branch")]
    BranchMoved { id: SessionId },
    /// The new context would not be smaller: `after` tokens instead of `before`, both equal if no head could be
    /// planned.
    #[error(
        "the context of session {id} would not become smaller: {before} tokens now, {after} then"
    )]
    NoGain { id: SessionId, before: u64, after: u64 },
}

impl CompactError {
    /// Returns the stable name of the error, which events carry.
    pub(crate) const fn reason(&self) -> &'static str {
        match self {
            Self::Conflict { .. } => "conflict",
            Self::Model(error) => error.reason(),
            Self::Rejected { .. } => "noSummary",
            Self::ModelBusy { .. } => "crowded",
            Self::Slow { .. } => "slow",
            Self::NoRoom { .. } => "noRoom",
            Self::BranchMoved { .. } => "moved",
            Self::NoGain { .. } => "noGain",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spent_tokens_name_only_settings_that_would_help() {
        let check = |limited_by, reserve_helps, trained, expect: &str| {
            let spent = SpentTokens {
                thinking_tokens: 900,
                context_tokens: 3195,
                prompt_limit: 3482,
                window: 4096,
                limited_by,
                reserve_helps,
                trained,
            };
            assert_eq!(spent.to_string(), expect);
        };
        let window = "spent 900 tokens on thinking and answered nothing: the prompt has 3195 tokens, \
                      and the window of 4096 is full; have it think less (think: false)";
        check(None, false, None, window);
        let size = format!("{window}, or set a larger context.size, up to 40960");
        check(None, false, Some(40_960), &size);
        check(None, true, Some(40_960), &format!("{size}, or a larger context.answerReserve"));
        check(
            Some(("answerLimit", 900)),
            true,
            Some(40_960),
            "spent all 900 tokens that answerLimit allows on thinking and answered nothing; \
             have it think less (think: false), or allow more",
        );
    }
}
