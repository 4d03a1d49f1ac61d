//! The request for a context, as everything below the edge of the protocol sees it.
//!
//! **Invariant**: a request is complete when it exists, and does not change: a variant of one is another value.

use ollm_protocol::SessionId;
use ollm_protocol::content::CompactMode;
use ollm_protocol::methods::context::ContextBuildParams;
use serde_json::Value;

/// A request for a context.
#[derive(Clone, Debug)]
pub(crate) struct BuildRequest {
    pub(crate) session_id: SessionId,
    /// The window in tokens, if the request names one.
    pub(crate) context_size: Option<u32>,
    /// The model, if the request names one.
    pub(crate) model: Option<String>,
    /// The name of a strategy; `None` for the first one that fits.
    pub(crate) strategy: Option<String>,
    /// The definitions of the tools that are sent beside the context.
    pub(crate) tools: Vec<Value>,
    /// A message of the user that follows and is not recorded yet.
    pub(crate) pending: Option<String>,
    /// The permission to record what the build plans.
    pub(crate) compact: CompactMode,
    /// Set for a build that brings back the earlier messages that its newest message asks for.
    pub(crate) recall: bool,
    /// Set for a compaction that a client asks for: its head leaves as much room as any does.
    pub(crate) deep: bool,
}

impl BuildRequest {
    /// Returns a request with all defaults.
    pub(crate) fn new(session_id: SessionId) -> Self {
        ContextBuildParams::new(session_id).into()
    }
}

impl From<ContextBuildParams> for BuildRequest {
    fn from(params: ContextBuildParams) -> Self {
        let ContextBuildParams {
            session_id,
            context_size,
            model,
            strategy,
            tools,
            pending,
            compact,
            recall,
        } = params;
        Self {
            session_id,
            context_size,
            model,
            strategy,
            tools,
            pending,
            compact,
            recall,
            deep: false,
        }
    }
}
