//! The params of a chat turn, checked before anything is recorded.

use std::num::NonZeroU32;

use ollm_protocol::SessionId;
use ollm_protocol::methods::chat::{ChatSendParams, Think as WireThink, ThinkLevel};
use serde_json::Value;

use crate::app::context::quota::context_size;
use crate::app::core::Core;
use crate::app::error::{AppError, Result};
use crate::app::model_speed::MeasuredModel;
use crate::app::models::learning::CountedPrompts;
use crate::app::models::model_or_default;
use crate::model::{ModelInfo, Sampling, ThinkMode, clamp_window};

/// A checked request for a turn.
pub(super) struct TurnRequest {
    pub(super) id: SessionId,
    pub(super) model: String,
    /// The definitions of the client's tools.
    pub(super) tools: Vec<Value>,
    pub(super) sampling: Sampling,
    /// The longest answer in tokens.
    pub(super) max_tokens: Option<NonZeroU32>,
    pub(super) think: Option<ThinkMode>,
    /// The format of the answer.
    pub(super) format: Option<Value>,
    /// The window of the session in tokens.
    context_size: u32,
}

impl TurnRequest {
    /// Checks params; their message and key are checked elsewhere. Blocks on the disk.
    pub(super) fn check(core: &Core, params: ChatSendParams) -> Result<Self> {
        let ChatSendParams { session_id, model, tools, options, max_tokens, think, format, .. } =
            params;
        let session = core.summary(session_id)?;
        let model = model_or_default(core, model.or(session.model.clone()))?;
        let sampling = Sampling::check(options)
            .map_err(|error| AppError::invalid("options", error.to_string()))?;
        let too_few = || AppError::invalid("maxTokens", "must be at least 1");
        let max_tokens =
            max_tokens.map(|most| NonZeroU32::new(most).ok_or_else(too_few)).transpose()?;
        if let Some(tool) = tools.iter().find(|tool| tool["function"]["name"].as_str().is_none()) {
            let tool: String = tool.to_string().chars().take(80).collect();
            let problem = format!("a definition has no function.name: {tool}");
            return Err(AppError::invalid("tools", problem));
        }
        let context_size = context_size(core, session_id)?;
        let think = think.map(think_mode);
        Ok(Self { id: session_id, model, tools, sampling, max_tokens, think, format, context_size })
    }

    /// Returns the prompts that the turn counts.
    pub(super) fn counted_prompts(&self, num_ctx: u32) -> CountedPrompts {
        let (model, tools) = (self.model.clone(), self.tools.clone());
        CountedPrompts { model, think: self.think, tools, num_ctx: Some(num_ctx) }
    }

    /// Returns the window to build for: that of the session, within the limits of the model and the server.
    pub(super) fn window(&self, info: &ModelInfo, measured: MeasuredModel) -> u32 {
        let wanted = clamp_window(
            self.context_size,
            info.trained_context,
            info.can("vision").unwrap_or(false),
        );
        measured.effective.map_or(wanted, |effective| wanted.min(effective))
    }
}

const fn think_mode(think: WireThink) -> ThinkMode {
    match think {
        WireThink::Flag(false) => ThinkMode::Off,
        WireThink::Flag(true) => ThinkMode::On,
        WireThink::Level(ThinkLevel::Low) => ThinkMode::Low,
        WireThink::Level(ThinkLevel::Medium) => ThinkMode::Medium,
        WireThink::Level(ThinkLevel::High) => ThinkMode::High,
        WireThink::Level(ThinkLevel::Max) => ThinkMode::Max,
    }
}
