//! The domain's errors as error kinds: one `From` an enum, each with the command that helps next.

use std::path::Path;

use ollm_protocol::ErrorKind;

use super::error::RpcError;
use crate::app::{AppError, ChatError, CompactError};
use crate::catalog::CatalogError;
use crate::causes::with_causes;
use crate::context::ContextError;
use crate::goal::{GoalError, MAX_ITEMS};
use crate::model::{CallPhase, ModelError};
use crate::projects::ProjectError;
use crate::session::SessionError;
use crate::session::import::ImportError;

impl RpcError {
    /// A file that cannot be used; where there is no room, the hint shows how much there is.
    fn storage(message: String, path: &Path, full: bool) -> Self {
        let hint = match path.parent().filter(|_| full) {
            Some(directory) => format!("df -h {}", directory.display()),
            None => "ollmctl daemon status".to_owned(),
        };
        Self::new(ErrorKind::Storage, message)
            .with_hint(hint)
            .with_field("path", path.to_string_lossy())
    }
}

impl From<SessionError> for RpcError {
    fn from(error: SessionError) -> Self {
        let message = error.to_string();
        match error {
            SessionError::NotFound { .. } => {
                Self::new(ErrorKind::SessionNotFound, message).with_hint("ollmctl sessions list")
            }
            SessionError::RecordNotFound { id, .. } => {
                Self::new(ErrorKind::RecordNotFound, message)
                    .with_hint(format!("ollmctl sessions view {id}"))
            }
            SessionError::KeyConflict { id, seq } => Self::new(ErrorKind::Conflict, message)
                .with_hint(format!("ollmctl sessions view {id} --from {seq} --limit 1"))
                .with_field("holder", seq.0),
            SessionError::Exists { id } => Self::new(ErrorKind::Conflict, message)
                .with_hint(format!("ollmctl sessions view {id}"))
                .with_field("holder", id.to_string()),
            SessionError::Damaged { .. } => Self::new(ErrorKind::Corrupted, message),
            SessionError::Busy { .. } | SessionError::LeafMoved { .. } => {
                Self::new(ErrorKind::Busy, message)
            }
            SessionError::Storage { path, full, .. } => Self::storage(message, &path, full),
            SessionError::UpgradeRequired { found, supported, .. } => {
                Self::new(ErrorKind::UnsupportedVersion, message)
                    .with_field("found", found)
                    .with_field("supported", supported)
            }
            SessionError::Stopping => Self::leaving(),
        }
    }
}

impl From<CatalogError> for RpcError {
    fn from(error: CatalogError) -> Self {
        let message = with_causes(&error);
        match error {
            CatalogError::EmptyQuery
            | CatalogError::QueryTooLong { .. }
            | CatalogError::InvalidCursor => Self::new(ErrorKind::InvalidParams, message),
            CatalogError::Closed | CatalogError::JournalInUse { .. } => {
                Self::new(ErrorKind::Busy, message).with_hint("ollmctl daemon status")
            }
            CatalogError::Database { path, .. } | CatalogError::Unusable { path } => {
                Self::new(ErrorKind::Storage, message).with_field("path", path.to_string_lossy())
            }
            CatalogError::File(error) => error.into(),
            CatalogError::Source(_) | CatalogError::Thread(_) => {
                Self::new(ErrorKind::Storage, message)
            }
        }
    }
}

impl From<ContextError> for RpcError {
    fn from(error: ContextError) -> Self {
        let message = with_causes(&error);
        match error {
            ContextError::Overflow { needed, available, .. } => {
                Self::new(ErrorKind::ContextOverflow, message)
                    .with_field("needed", needed)
                    .with_field("available", available)
            }
            ContextError::UnknownStrategy { .. } | ContextError::WindowTooSmall { .. } => {
                Self::new(ErrorKind::InvalidParams, message)
            }
            ContextError::Contents(_) => Self::new(ErrorKind::Storage, message),
        }
    }
}

impl From<ProjectError> for RpcError {
    fn from(error: ProjectError) -> Self {
        match error {
            ProjectError::NoDirectory { .. } | ProjectError::NotUtf8 { .. } => {
                Self::new(ErrorKind::InvalidParams, format!("projectPath: {}", with_causes(&error)))
            }
            ProjectError::Storage(error) => error.into(),
        }
    }
}

impl From<ImportError> for RpcError {
    fn from(error: ImportError) -> Self {
        let message = with_causes(&error);
        match error {
            ImportError::Newer { found, supported } => {
                Self::new(ErrorKind::UnsupportedVersion, message)
                    .with_field("found", found)
                    .with_field("supported", supported)
            }
            _ => Self::new(ErrorKind::InvalidParams, message),
        }
    }
}

impl From<crate::fsutil::FsError> for RpcError {
    fn from(error: crate::fsutil::FsError) -> Self {
        let full = crate::fsutil::is_full(&error.source);
        Self::storage(with_causes(&error), &error.path, full)
    }
}

impl From<ModelError> for RpcError {
    fn from(error: ModelError) -> Self {
        let model = error.target().and_then(|to| to.model.clone());
        let list = || "ollmctl models list".to_owned();
        let (kind, hint) = match &error {
            ModelError::InvalidHost(_) => {
                (ErrorKind::Config, Some("ollmctl config show".to_owned()))
            }
            ModelError::Unreachable { .. } => {
                (ErrorKind::ModelUnavailable, Some("ollama serve".to_owned()))
            }
            ModelError::Timeout { phase: CallPhase::Connect | CallPhase::Response, .. }
            | ModelError::ForbiddenHost { .. }
            | ModelError::Unauthorized { .. }
            | ModelError::NotOllama { .. }
            | ModelError::Redirected { .. }
            | ModelError::Client { .. } => {
                (ErrorKind::ModelUnavailable, Some("ollmctl config show".to_owned()))
            }
            ModelError::Busy { .. } | ModelError::GivenUp { .. } => {
                (ErrorKind::ModelUnavailable, None)
            }
            ModelError::NotFound { .. } => {
                let pull = model.as_deref().filter(|model| is_typed_plainly(model));
                (
                    ErrorKind::ModelNotFound,
                    Some(pull.map_or_else(list, |model| format!("ollama pull {model}"))),
                )
            }
            ModelError::Unsupported { .. } | ModelError::Refused { .. } => {
                (ErrorKind::ModelRefused, Some(list()))
            }
            ModelError::Overflow { .. } => (ErrorKind::ContextOverflow, None),
            ModelError::Timeout { .. }
            | ModelError::LoadFailed { .. }
            | ModelError::Failed { .. }
            | ModelError::BrokeOff { .. }
            | ModelError::Incomplete { .. }
            | ModelError::Disconnected { .. }
            | ModelError::Garbage { .. }
            | ModelError::TooLarge { .. } => {
                (ErrorKind::ModelFailed, Some("ollmctl models running".to_owned()))
            }
        };
        let mut told = Self::new(kind, error.to_string()).with_field("reason", error.reason());
        told.hint = hint;
        if let Some(to) = error.target() {
            told = told.with_field("host", to.host.clone());
        }
        if let Some(model) = model {
            told = told.with_field("model", model);
        }
        match error {
            ModelError::Overflow { needed, window, .. } => {
                told.with_field("needed", needed).with_field("available", window)
            }
            _ => told,
        }
    }
}

/// Whether a name can be pasted into a shell as it is.
fn is_typed_plainly(name: &str) -> bool {
    !name.starts_with('-')
        && name.chars().all(|char| char.is_ascii_alphanumeric() || "-._:/".contains(char))
}

impl From<ChatError> for RpcError {
    fn from(error: ChatError) -> Self {
        let message = error.to_string();
        let partial = error.partial();
        let told = match error {
            ChatError::Conflict { id, model, since } => Self::new(ErrorKind::Conflict, message)
                .with_hint(format!("ollmctl call chat.cancel '{{\"sessionId\":\"{id}\"}}'"))
                .with_field("holder", format!("{model} since {since}")),
            ChatError::NothingAwaited { .. } => Self::new(ErrorKind::Conflict, message),
            ChatError::Canceled { .. } => Self::new(ErrorKind::Cancelled, message),
            ChatError::Model { source, .. } => source.into(),
            ChatError::Empty { model, prompt_tokens, prompt_limit, .. } => {
                Self::new(ErrorKind::ModelFailed, message)
                    .with_field("reason", "emptyAnswer")
                    .with_field("model", model)
                    .with_field("promptTokens", prompt_tokens)
                    .with_field("promptLimit", prompt_limit)
            }
            ChatError::OnlyThought { id, model, spent, .. } => {
                Self::new(ErrorKind::ModelFailed, message)
                    .with_hint(format!("ollmctl chat --resume {id} --no-think  # then /retry"))
                    .with_field("reason", "onlyThinking")
                    .with_field("model", model)
                    .with_field("thinkingTokens", spent.thinking_tokens)
                    .with_field("promptTokens", spent.prompt_tokens)
                    .with_field("promptLimit", spent.prompt_limit)
                    .with_field("contextSize", spent.window)
            }
            ChatError::Truncated { model, sent, read, .. } => {
                Self::new(ErrorKind::ModelFailed, message)
                    .with_field("reason", "truncated")
                    .with_field("model", model)
                    .with_field("sentTokens", sent)
                    .with_field("readTokens", read)
            }
            ChatError::ToolTimeout { missing, .. } => Self::new(ErrorKind::Cancelled, message)
                .with_field("reason", "toolTimeout")
                .with_field("missing", missing),
            ChatError::UnexpectedCall { model, name, .. } => {
                Self::new(ErrorKind::ModelFailed, message)
                    .with_field("reason", "unexpectedCall")
                    .with_field("model", model)
                    .with_field("tool", name)
            }
        };
        match partial {
            Some(seq) => told.with_field("seq", seq.0),
            None => told,
        }
    }
}

impl From<GoalError> for RpcError {
    fn from(error: GoalError) -> Self {
        let message = error.to_string();
        match error {
            GoalError::NoActiveGoal
            | GoalError::NoGoal { .. }
            | GoalError::NoCheckpoint { .. }
            | GoalError::NoDecision { .. } => {
                Self::new(ErrorKind::GoalNotFound, message).with_hint("ollmctl goal list")
            }
            GoalError::Superseded { by, .. } => {
                Self::new(ErrorKind::Conflict, message).with_field("holder", by.to_string())
            }
            GoalError::Exists { id, .. } => {
                Self::new(ErrorKind::Conflict, message).with_field("holder", id)
            }
            GoalError::TooMany { .. } => {
                Self::new(ErrorKind::TooLarge, message).with_field("limit", MAX_ITEMS)
            }
        }
    }
}

impl From<CompactError> for RpcError {
    fn from(error: CompactError) -> Self {
        let (message, reason) = (error.to_string(), error.reason());
        match error {
            CompactError::Conflict { holder, since, .. } => Self::new(ErrorKind::Conflict, message)
                .with_field("holder", format!("{holder} since {since}")),
            CompactError::Model(error) => error.into(),
            CompactError::Rejected { model, .. } => Self::new(ErrorKind::ModelFailed, message)
                .with_field("reason", reason)
                .with_field("model", model),
            CompactError::Crowded { model } => Self::new(ErrorKind::ModelUnavailable, message)
                .with_field("reason", reason)
                .with_field("model", model),
            CompactError::NoRoom { model, window } => {
                Self::new(ErrorKind::ContextOverflow, message)
                    .with_field("model", model)
                    .with_field("available", window)
            }
            CompactError::Moved { .. } => Self::new(ErrorKind::Busy, message),
            CompactError::NoGain { before, after, .. } => {
                Self::new(ErrorKind::ContextOverflow, message)
                    .with_field("available", before)
                    .with_field("needed", after)
            }
        }
    }
}

impl From<AppError> for RpcError {
    fn from(error: AppError) -> Self {
        let message = error.to_string();
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
            AppError::Storage(error) => error.into(),
            AppError::Invalid { .. } | AppError::Upload { .. } => {
                Self::new(ErrorKind::InvalidParams, message)
            }
            AppError::LoopDetected { id, pattern } => Self::new(ErrorKind::LoopDetected, message)
                .with_hint(format!("ollmctl loop reset {id}"))
                .with_field("pattern", serde_json::json!(pattern)),
            AppError::Stopping => Self::leaving(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::fsutil::FsError;

    #[test]
    fn a_full_disk_is_to_be_looked_at() {
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
}
