//! Replies for failed calls: the wire form of an error, and the kind, fields and hint of every error of the daemon.
//!
//! This is the only file that turns errors of the domain into error kinds. A message says what was attempted and why
//! it failed; the full chain of causes goes to the log. A hint is a command that a person can run.

use std::path::Path;

use jsonrpsee::types::ErrorObjectOwned;
use ollm_protocol::limits::{MAX_DATA_BYTES, MAX_RESULT_BYTES, shorten_value};
use ollm_protocol::{ErrorData, ErrorKind};
use serde_json::{Map, Value, json};

use crate::app::error::{AppError, ChatError, CompactError, NoServer};
use crate::backup::BackupError;
use crate::catalog::CatalogError;
use crate::context::ContextError;
use crate::error_chain::with_sources;
use crate::files::{FilesError, RootProblem};
use crate::fsutil::{FsError, is_full};
use crate::goal::{GoalError, MAX_ITEMS};
use crate::hooks::HookError;
use crate::model::{CallPhase, ModelError};
use crate::nesting::{MAX_LEVELS, MAX_PARSED_LEVELS};
use crate::projects::ProjectError;
use crate::session::SessionError;
use crate::session::import::ImportError;
use crate::shell::{is_shell_safe, quoted_path};
use crate::snapshot::SnapshotError;

/// The longest message in bytes, a few lines for a person. Messages quote names that clients chose, which may be as
/// long as a frame.
const MAX_MESSAGE_BYTES: usize = 1000;

/// The longest hint in bytes. It names ids, models and paths.
const MAX_HINT_BYTES: usize = 8 * 1024;

/// An error as a client receives it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct RpcError {
    pub(crate) kind: ErrorKind,
    pub(crate) message: String,
    /// A command that a person can run next.
    pub(crate) hint: Option<String>,
    /// The fields that the kind promises.
    pub(crate) fields: Box<Map<String, Value>>,
}

impl RpcError {
    /// Returns an error without hint and fields.
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None, fields: Box::default() }
    }

    /// Returns the error for a defect of the daemon; the log has the details.
    pub(crate) fn internal() -> Self {
        let message = "the daemon failed while it worked on the call; its log has the details";
        Self::new(ErrorKind::Internal, message).with_hint("ollmctl daemon status")
    }

    /// Returns the error for a call that the shutdown of the daemon ended.
    pub(crate) fn stopping() -> Self {
        Self::new(ErrorKind::Canceled, "the daemon is shutting down")
    }

    /// Returns the error for more bytes than a limit, in either direction.
    pub(crate) fn too_large(what: &str, limit: usize) -> Self {
        Self::new(ErrorKind::TooLarge, format!("{what} is larger than {limit} bytes"))
            .with_field("limit", limit)
    }

    /// Adds a command that a person can run next.
    #[must_use]
    pub(crate) fn with_hint(mut self, command: impl Into<String>) -> Self {
        self.hint = Some(command.into());
        self
    }

    /// Adds a field that the kind promises.
    #[must_use]
    pub(crate) fn with_field(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.fields.insert(name.to_owned(), value.into());
        self
    }

    /// Names the file that cannot be used; on a full disk the hint shows the free space.
    fn with_file(self, path: &Path, full: bool) -> Self {
        let hint = match path.parent().filter(|_| full) {
            Some(directory) => format!("df -h {}", quoted_path(directory)),
            None => "ollmctl daemon status".to_owned(),
        };
        self.with_hint(hint).with_field("path", path.to_string_lossy())
    }
}

impl From<RpcError> for ErrorObjectOwned {
    fn from(error: RpcError) -> Self {
        let RpcError { kind, mut message, mut hint, fields } = error;
        shorten(&mut message, MAX_MESSAGE_BYTES);
        // A command that is cut does something else.
        hint = hint.filter(|hint| hint.len() <= MAX_HINT_BYTES);
        let mut fields = Value::Object(*fields);
        shorten_value(&mut fields, MAX_DATA_BYTES);
        let Value::Object(fields) = fields else { unreachable!("it was an object") };
        Self::owned(kind.code(), message, Some(ErrorData { kind, hint, fields }))
    }
}

/// Cuts a text, which may quote a client, at a character boundary.
pub(crate) fn shorten(text: &mut String, max_bytes: usize) {
    if text.len() > max_bytes {
        let end = (0..=max_bytes).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
}

impl From<SessionError> for RpcError {
    fn from(error: SessionError) -> Self {
        let message = error.to_string();
        let reply = |kind| Self::new(kind, message);
        match error {
            SessionError::NotFound { .. } => {
                reply(ErrorKind::SessionNotFound).with_hint("ollmctl sessions list")
            }
            SessionError::RecordNotFound { id, .. } => {
                reply(ErrorKind::RecordNotFound).with_hint(format!("ollmctl sessions view {id}"))
            }
            SessionError::KeyConflict { id, seq } => reply(ErrorKind::Conflict)
                .with_hint(format!("ollmctl sessions view {id} --from {seq} --limit 1"))
                .with_field("holder", seq.0),
            SessionError::Exists { id } => reply(ErrorKind::Conflict)
                .with_hint(format!("ollmctl sessions view {id}"))
                .with_field("holder", id.to_string()),
            SessionError::TooDeep { .. } => {
                reply(ErrorKind::InvalidParams).with_field("limit", MAX_LEVELS)
            }
            SessionError::Damaged { .. } => reply(ErrorKind::Corrupted),
            SessionError::Busy { .. }
            | SessionError::TooManyDrafts { .. }
            | SessionError::LeafMoved { .. } => reply(ErrorKind::Busy),
            SessionError::Storage { path, full, .. } => {
                reply(ErrorKind::Storage).with_file(&path, full)
            }
            SessionError::UpgradeRequired { found, supported, .. } => {
                reply(ErrorKind::UnsupportedVersion)
                    .with_field("found", found)
                    .with_field("supported", supported)
            }
            SessionError::Stopping => Self::stopping(),
        }
    }
}

impl From<CatalogError> for RpcError {
    fn from(error: CatalogError) -> Self {
        let message = with_sources(&error);
        let reply = |kind| Self::new(kind, message);
        match error {
            CatalogError::EmptyQuery
            | CatalogError::QueryTooLong { .. }
            | CatalogError::InvalidCursor => reply(ErrorKind::InvalidParams),
            CatalogError::Closed | CatalogError::JournalInUse { .. } => {
                reply(ErrorKind::Busy).with_hint("ollmctl daemon status")
            }
            CatalogError::Database { path, .. }
            | CatalogError::Damaged { path }
            | CatalogError::Unusable { path } => {
                reply(ErrorKind::Storage).with_field("path", path.to_string_lossy())
            }
            CatalogError::File(error) => error.into(),
            CatalogError::Source(_) | CatalogError::Thread(_) => reply(ErrorKind::Storage),
        }
    }
}

impl From<ContextError> for RpcError {
    fn from(error: ContextError) -> Self {
        let message = with_sources(&error);
        let reply = |kind| Self::new(kind, message);
        match error {
            ContextError::Overflow { needed, available, .. } => reply(ErrorKind::ContextOverflow)
                .with_field("needed", needed)
                .with_field("available", available),
            ContextError::UnknownStrategy { .. } => reply(ErrorKind::InvalidParams),
            ContextError::Contents(error) => error.0.into(),
        }
    }
}

impl From<SnapshotError> for RpcError {
    fn from(error: SnapshotError) -> Self {
        let message = with_sources(&error);
        let reply = |kind| Self::new(kind, message);
        match error {
            SnapshotError::NotFound { .. } => {
                reply(ErrorKind::SnapshotNotFound).with_hint("ollmctl snapshot list --all")
            }
            SnapshotError::OtherSession { owner, .. } => reply(ErrorKind::InvalidParams)
                .with_hint(format!("ollmctl snapshot list --session {owner}")),
            SnapshotError::Damaged { path, .. } => {
                reply(ErrorKind::Corrupted).with_field("path", path.to_string_lossy())
            }
            SnapshotError::Newer { found, supported, .. } => reply(ErrorKind::UnsupportedVersion)
                .with_field("found", found)
                .with_field("supported", supported),
            SnapshotError::Storage(error) => error.into(),
        }
    }
}

impl From<FilesError> for RpcError {
    fn from(error: FilesError) -> Self {
        let message = error.to_string();
        let reply = |kind| Self::new(kind, message);
        match error {
            FilesError::Root { path, problem } => {
                let kind = match problem {
                    RootProblem::NotFound | RootProblem::NotADirectory => ErrorKind::RootNotFound,
                    RootProblem::Unreadable(_) => ErrorKind::Storage,
                    RootProblem::Internal => ErrorKind::Internal,
                };
                reply(kind).with_field("path", path.to_string_lossy())
            }
            FilesError::NoAnswer { path } | FilesError::Slow { path } => reply(ErrorKind::Storage)
                .with_hint("ollmctl files status")
                .with_field("path", path.to_string_lossy()),
            FilesError::NotAbsolute { .. } => {
                reply(ErrorKind::InvalidParams).with_field("field", "root")
            }
            FilesError::Pattern { field, .. } => {
                reply(ErrorKind::InvalidParams).with_field("field", field)
            }
            FilesError::Cursor => reply(ErrorKind::InvalidParams).with_field("field", "cursor"),
            FilesError::TooManyRoots | FilesError::Thread { .. } => {
                reply(ErrorKind::Busy).with_hint("ollmctl files status")
            }
            FilesError::Stopping => Self::stopping(),
        }
    }
}

impl From<ProjectError> for RpcError {
    fn from(error: ProjectError) -> Self {
        match error {
            ProjectError::NoDirectory { .. } | ProjectError::NotUtf8 { .. } => {
                let message = format!("projectPath: {}", with_sources(&error));
                Self::new(ErrorKind::InvalidParams, message)
            }
            ProjectError::Storage(error) => error.into(),
        }
    }
}

impl From<ImportError> for RpcError {
    fn from(error: ImportError) -> Self {
        let message = with_sources(&error);
        let reply = |kind| Self::new(kind, message);
        match error {
            ImportError::TooDeep { .. } => {
                reply(ErrorKind::InvalidParams).with_field("limit", MAX_PARSED_LEVELS)
            }
            ImportError::Newer { found, supported } => reply(ErrorKind::UnsupportedVersion)
                .with_field("found", found)
                .with_field("supported", supported),
            _ => reply(ErrorKind::InvalidParams),
        }
    }
}

impl From<FsError> for RpcError {
    fn from(error: FsError) -> Self {
        let message = with_sources(&error);
        Self::new(ErrorKind::Storage, message).with_file(&error.path, is_full(&error.source))
    }
}

impl From<ModelError> for RpcError {
    fn from(error: ModelError) -> Self {
        let model = error.target().and_then(|to| to.model.clone());
        let (kind, hint) = match &error {
            ModelError::InvalidHost(_) | ModelError::Setup { .. } => {
                (ErrorKind::Config, Some("ollmctl config show"))
            }
            ModelError::NotAllowed { change, .. } => (ErrorKind::Config, Some(change.as_str())),
            ModelError::Unreachable { to, .. } => {
                (ErrorKind::ModelUnavailable, Some(to.advice.start))
            }
            ModelError::Timeout { phase: CallPhase::Connect | CallPhase::Response, .. }
            | ModelError::ForbiddenHost { .. }
            | ModelError::Unauthorized { .. }
            | ModelError::OtherServer { .. }
            | ModelError::Redirected { .. }
            | ModelError::Client { .. } => {
                (ErrorKind::ModelUnavailable, Some("ollmctl config show"))
            }
            ModelError::Busy { .. } | ModelError::GivenUp { .. } => {
                (ErrorKind::ModelUnavailable, None)
            }
            ModelError::NotFound { .. } => (ErrorKind::ModelNotFound, Some("ollmctl models list")),
            ModelError::Unsupported { .. } | ModelError::Refused { .. } => {
                (ErrorKind::ModelRefused, Some("ollmctl models list"))
            }
            ModelError::Overflow { .. } => (ErrorKind::ContextOverflow, None),
            ModelError::Timeout { to, .. }
            | ModelError::LoadFailed { to, .. }
            | ModelError::Failed { to, .. }
            | ModelError::BrokeOff { to, .. }
            | ModelError::Incomplete { to }
            | ModelError::Disconnected { to, .. }
            | ModelError::Garbage { to, .. }
            | ModelError::TooDeep { to }
            | ModelError::TooLarge { to, .. } => (ErrorKind::ModelFailed, Some(to.advice.state)),
        };
        let mut reply = Self::new(kind, error.to_string()).with_field("reason", error.reason());
        reply.hint = hint.map(str::to_owned);
        if let ModelError::NotFound { to } = &error
            && !to.advice.get_model.is_empty()
            && let Some(model) = model.as_ref().filter(|model| is_shell_safe(model))
        {
            reply.hint = Some(format!("{} {model}", to.advice.get_model));
        }
        if let Some(to) = error.target() {
            reply = reply.with_field("host", to.host.clone());
            if kind == ErrorKind::ModelUnavailable {
                reply = reply.with_field("address", to.advice.address);
            }
        }
        if let Some(model) = model {
            reply = reply.with_field("model", model);
        }
        match error {
            ModelError::NotAllowed { server, allowed, .. } => {
                reply.with_field("server", server).with_field("allowed", allowed)
            }
            ModelError::Overflow { needed, window, .. } => {
                reply.with_field("needed", needed).with_field("available", window)
            }
            _ => reply,
        }
    }
}

impl From<ChatError> for RpcError {
    fn from(error: ChatError) -> Self {
        let message = error.to_string();
        let reply = |kind| Self::new(kind, message);
        let partial = error.partial();
        let reply = match error {
            ChatError::Conflict { id, model, since } => reply(ErrorKind::Conflict)
                .with_hint(format!("ollmctl call chat.cancel '{{\"sessionId\":\"{id}\"}}'"))
                .with_field("holder", format!("{model} since {since}")),
            ChatError::NoPendingCalls { .. } => reply(ErrorKind::Conflict),
            ChatError::NotRunning { id } => {
                reply(ErrorKind::TurnNotFound).with_hint(format!("ollmctl sessions view {id}"))
            }
            ChatError::TooManyFollowers { .. } => reply(ErrorKind::Busy),
            ChatError::Canceled { .. } => reply(ErrorKind::Canceled),
            ChatError::Model { source, .. } => source.into(),
            ChatError::NoServer(none) => {
                let NoServer { source, tried, .. } = *none;
                let tried: Vec<_> = tried.into_iter().map(|(server, _)| server).collect();
                let Self { message, .. } = reply(ErrorKind::ModelUnavailable);
                Self { message, ..source.into() }.with_field("tried", tried)
            }
            ChatError::EmptyAnswer { model, context_tokens, prompt_limit, .. } => {
                reply(ErrorKind::ModelFailed)
                    .with_field("reason", "emptyAnswer")
                    .with_field("model", model)
                    .with_field("contextTokens", context_tokens)
                    .with_field("promptLimit", prompt_limit)
            }
            ChatError::OnlyThinking { id, model, spent, .. } => reply(ErrorKind::ModelFailed)
                .with_hint(format!("ollmctl chat --resume {id} --no-think  # then /retry"))
                .with_field("reason", "onlyThinking")
                .with_field("model", model)
                .with_field("thinkingTokens", spent.thinking_tokens)
                .with_field("contextTokens", spent.context_tokens)
                .with_field("promptLimit", spent.prompt_limit)
                .with_field("contextSize", spent.window),
            ChatError::Truncated { model, sent, read, .. } => reply(ErrorKind::ModelFailed)
                .with_field("reason", "truncated")
                .with_field("model", model)
                .with_field("contextTokens", sent)
                .with_field("promptTokens", read),
            ChatError::ToolTimeout { missing, .. } => reply(ErrorKind::Canceled)
                .with_field("reason", "toolTimeout")
                .with_field("missing", missing),
            ChatError::NoVision { model, host, readers, advice } => reply(ErrorKind::ModelRefused)
                .with_hint(match (readers.first(), advice) {
                    (Some(reader), _) if is_shell_safe(reader) => {
                        format!("ollmctl models show {reader}")
                    }
                    (None, Some(advice)) => advice.get_image_reader.to_owned(),
                    _ => "ollmctl models list".to_owned(),
                })
                .with_field("reason", "noVision")
                .with_field("host", host)
                .with_field("model", model)
                .with_field("models", readers),
            ChatError::UnexpectedCall { model, name, .. } => reply(ErrorKind::ModelFailed)
                .with_field("reason", "unexpectedCall")
                .with_field("model", model)
                .with_field("tool", name),
        };
        match partial {
            Some(seq) => reply.with_field("seq", seq.0),
            None => reply,
        }
    }
}

impl From<HookError> for RpcError {
    fn from(error: HookError) -> Self {
        let message = with_sources(&error);
        let reply = |kind| Self::new(kind, message);
        match error {
            HookError::Changed { project, .. } => reply(ErrorKind::Conflict)
                .with_hint(format!("ollmctl hooks trust {}", quoted_path(&project)))
                .with_field("holder", "the file"),
            HookError::File(error) => error.into(),
            // The run of a hook that has such an error is a result.
            HookError::Start { .. } | HookError::NoReply { .. } => reply(ErrorKind::Internal),
        }
    }
}

impl From<BackupError> for RpcError {
    fn from(error: BackupError) -> Self {
        let message = with_sources(&error);
        let reply = |kind| Self::new(kind, message);
        match error {
            BackupError::File(error) => error.into(),
            BackupError::NotABackup { path }
            | BackupError::NotEmpty { path }
            | BackupError::OneFile { path } => {
                reply(ErrorKind::InvalidParams).with_field("path", path.to_string_lossy())
            }
            BackupError::Exists { path } => {
                let hint = format!("ollmctl backup list {}", quoted_path(&path));
                reply(ErrorKind::Conflict).with_hint(hint).with_field("holder", "the file")
            }
            BackupError::Newer { found, .. } => {
                reply(ErrorKind::UnsupportedVersion).with_field("found", found)
            }
            BackupError::Locked { .. } => {
                reply(ErrorKind::Busy).with_field("holder", "another backup")
            }
            BackupError::Damaged { path, name, offset, .. } => reply(ErrorKind::Corrupted)
                .with_hint(format!("ollmctl backup verify {}", quoted_path(&path)))
                .with_field("path", path.join(name).to_string_lossy())
                .with_field("offset", offset),
            BackupError::NeedsSecret { with_passphrase, .. } => {
                let reason = if with_passphrase { "passphraseNeeded" } else { "identityNeeded" };
                reply(ErrorKind::InvalidParams).with_field("reason", reason)
            }
            BackupError::WrongPassphrase { .. } => {
                reply(ErrorKind::InvalidParams).with_field("reason", "wrongPassphrase")
            }
            BackupError::WrongKey { .. } => {
                reply(ErrorKind::InvalidParams).with_field("reason", "wrongIdentity")
            }
            BackupError::BadSecret { .. } => {
                reply(ErrorKind::InvalidParams).with_field("field", "secret")
            }
            BackupError::NoSuchBackup { path, .. } => reply(ErrorKind::InvalidParams)
                .with_hint(format!("ollmctl backup list {}", quoted_path(&path))),
        }
    }
}

impl From<GoalError> for RpcError {
    fn from(error: GoalError) -> Self {
        let message = error.to_string();
        let reply = |kind| Self::new(kind, message);
        match error {
            GoalError::NoActiveGoal
            | GoalError::NoGoal { .. }
            | GoalError::NoCheckpoint { .. }
            | GoalError::NoDecision { .. } => {
                reply(ErrorKind::GoalNotFound).with_hint("ollmctl goal list")
            }
            GoalError::Superseded { by, .. } => {
                reply(ErrorKind::Conflict).with_field("holder", by.to_string())
            }
            GoalError::Exists { id, .. } => reply(ErrorKind::Conflict).with_field("holder", id),
            GoalError::TooMany { .. } => reply(ErrorKind::TooLarge).with_field("limit", MAX_ITEMS),
        }
    }
}

impl From<CompactError> for RpcError {
    fn from(error: CompactError) -> Self {
        let (message, reason) = (error.to_string(), error.reason());
        let reply = |kind| Self::new(kind, message);
        match error {
            CompactError::Conflict { holder, since, .. } => {
                reply(ErrorKind::Conflict).with_field("holder", format!("{holder} since {since}"))
            }
            CompactError::Model(error) => error.into(),
            CompactError::Rejected { model, .. } => reply(ErrorKind::ModelFailed)
                .with_field("reason", reason)
                .with_field("model", model),
            CompactError::ModelBusy { model } | CompactError::Slow { model } => {
                reply(ErrorKind::ModelUnavailable)
                    .with_field("reason", reason)
                    .with_field("model", model)
            }
            CompactError::NoRoom { model, window } => reply(ErrorKind::ContextOverflow)
                .with_field("model", model)
                .with_field("available", window),
            CompactError::BranchMoved { .. } => reply(ErrorKind::Busy),
            CompactError::NoGain { before, after, .. } => reply(ErrorKind::ContextOverflow)
                .with_field("available", before)
                .with_field("needed", after),
        }
    }
}

impl From<AppError> for RpcError {
    fn from(error: AppError) -> Self {
        let message = error.to_string();
        let reply = |kind| Self::new(kind, message);
        match error {
            AppError::Session(error) => error.into(),
            AppError::Catalog(error) => error.into(),
            AppError::Context(error) => error.into(),
            AppError::Project(error) => error.into(),
            AppError::Import(error) => error.into(),
            AppError::Model(error) => error.into(),
            AppError::Goal(error) => error.into(),
            AppError::Chat(error) => error.into(),
            AppError::Compact(error) => error.into(),
            AppError::Snapshot(error) => error.into(),
            AppError::Files(error) => error.into(),
            AppError::Storage(error) => error.into(),
            AppError::ContentNotKept { .. } => reply(ErrorKind::ContentNotFound),
            AppError::ContentDamaged { path, .. } => {
                reply(ErrorKind::Corrupted).with_field("path", path.to_string_lossy())
            }
            AppError::SnapshotsDisabled => reply(ErrorKind::Config),
            AppError::Invalid { field: "model", .. } => {
                reply(ErrorKind::InvalidParams).with_hint("ollmctl models list")
            }
            AppError::Invalid { .. } | AppError::Upload { .. } => reply(ErrorKind::InvalidParams),
            AppError::TooLarge(over) => reply(ErrorKind::TooLarge)
                .with_field("field", over.field.name())
                .with_field("limit", over.field.max_bytes()),
            AppError::EntriesTooLarge { limit, .. } => {
                reply(ErrorKind::TooLarge).with_field("limit", limit)
            }
            AppError::ContextTooLarge { id, build_id, bytes } => reply(ErrorKind::TooLarge)
                .with_hint(format!("ollmctl context build {id}"))
                .with_field("limit", MAX_RESULT_BYTES)
                .with_field("sizeBytes", bytes)
                .with_field("sessionId", id.to_string())
                .with_field("buildId", build_id),
            AppError::BuildChanged { .. } => reply(ErrorKind::Conflict),
            AppError::PuttingBack { .. } => {
                reply(ErrorKind::Conflict).with_field("holder", "files are being put back")
            }
            AppError::PutBackCanceled { .. } => reply(ErrorKind::Canceled),
            AppError::PutBackPending { root, .. } => reply(ErrorKind::Conflict)
                .with_field("holder", "an interrupted change of files")
                .with_field("path", root.to_string_lossy()),
            AppError::Hook(error) => error.into(),
            AppError::Backup(error) => error.into(),
            AppError::StoreBusy => reply(ErrorKind::Busy),
            AppError::StoreWorkCanceled { .. } => reply(ErrorKind::Canceled),
            AppError::HomeInUse => reply(ErrorKind::Conflict)
                .with_hint("ollmctl backup restore --help")
                .with_field("holder", "the sessions of the home"),
            AppError::RestoreConflict { id, is_longer, path, backup_id } => {
                let path = quoted_path(&path);
                // Nothing is deleted before the backup is known to be whole.
                let hint = match is_longer {
                    true => format!(
                        "ollmctl backup verify {path} && ollmctl sessions delete {id} && \
                         ollmctl backup restore {path} --session {id} --backup {backup_id}"
                    ),
                    false => format!("ollmctl sessions view {id}"),
                };
                reply(ErrorKind::Conflict).with_hint(hint).with_field("holder", id.to_string())
            }
            AppError::NotInBackup { path, .. } => reply(ErrorKind::SessionNotFound)
                .with_hint(format!("ollmctl backup list {}", quoted_path(&path))),
            AppError::RestoreUnfinished { source } => {
                let hint = "ollmctl daemon restart".to_owned();
                let Self { message, .. } = reply(ErrorKind::Storage);
                let message = format!("{message}: {}", with_sources(&source));
                Self { message, ..source.into() }.with_hint(hint)
            }
            AppError::LoopDetected { id, pattern } => reply(ErrorKind::LoopDetected)
                .with_hint(format!("ollmctl loop reset {id}"))
                .with_field("pattern", json!(pattern)),
            AppError::Stopping => Self::stopping(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn fields_of_an_error_are_shortened_and_a_long_hint_is_left_out() {
        let error = RpcError::new(ErrorKind::Canceled, "x".repeat(10_000))
            .with_hint("y".repeat(10_000))
            .with_field("missing", vec!["a".repeat(4096); 5000])
            .with_field("reason", "toolTimeout");
        let reply = ErrorObjectOwned::from(error);
        let json = serde_json::to_value(&reply).expect("becomes JSON");
        assert!(json.to_string().len() < MAX_DATA_BYTES + 2000);
        assert_eq!(
            (&json["data"]["reason"], json["data"].get("hint")),
            (&json!("toolTimeout"), None)
        );
        assert!(json["data"]["missing"].as_array().is_some_and(|missing| missing.len() > 50));
    }

    #[test]
    fn wire_form_has_kind_hint_and_fields() {
        let error = RpcError::too_large("the frame", 16).with_hint("ollmctl daemon status");
        let wire = serde_json::to_value(ErrorObjectOwned::from(error)).expect("serializes");
        let expect = serde_json::json!({
            "code": -32007,
            "message": "the frame is larger than 16 bytes",
            "data": { "kind": "tooLarge", "hint": "ollmctl daemon status", "limit": 16 },
        });
        assert_eq!(wire, expect);
    }

    #[test]
    fn quoted_names_are_cut_in_messages() {
        let error = RpcError::new(ErrorKind::MethodNotFound, "é".repeat(1 << 20));
        let wire = ErrorObjectOwned::from(error);
        assert_eq!(wire.message().len(), MAX_MESSAGE_BYTES + "…".len());
    }

    #[test]
    fn full_disk_hints_at_free_space() {
        let hint = |kind| {
            let path = Path::new("/home/ada/.ollm/sessions/x.jsonl");
            let id = ollm_protocol::SessionId::from_uuid(uuid::Uuid::nil());
            let error = FsError::new("append to", path, io::Error::from(kind));
            let of_session = RpcError::from(SessionError::fs(id, &error)).hint;
            assert_eq!(RpcError::from(error).hint, of_session);
            of_session.expect("a hint")
        };
        assert_eq!(hint(io::ErrorKind::StorageFull), "df -h /home/ada/.ollm/sessions");
        assert_eq!(hint(io::ErrorKind::QuotaExceeded), "df -h /home/ada/.ollm/sessions");
        assert_eq!(hint(io::ErrorKind::PermissionDenied), "ollmctl daemon status");
    }

    #[test]
    fn hint_that_deletes_reads_the_backup_first_and_quotes_its_path() {
        let id = ollm_protocol::SessionId::from_uuid(uuid::Uuid::nil());
        let (path, backup_id) = ("/mnt/ada's disk".into(), "B".to_owned());
        let error = AppError::RestoreConflict { id, is_longer: true, path, backup_id };
        let place = r"'/mnt/ada'\''s disk'";
        let expected = format!(
            "ollmctl backup verify {place} && ollmctl sessions delete {id} && \
             ollmctl backup restore {place} --session {id} --backup B"
        );
        assert_eq!(RpcError::from(error).hint, Some(expected));
    }
}
