//! The context window: the one place that decides how large the window of a session is for a model.
//!
//! Chats, builds, reports, quotas, compactions and loading all use [`window_of`], so that none of them promises room
//! that another one does not have.
//!
//! **Invariant**: a window is never larger than the model server is known to support.

use std::sync::Arc;

use ollm_protocol::SessionId;
use ollm_protocol::content::WindowLimits;

use crate::app::core::{Core, blocking};
use crate::app::error::Result;
use crate::app::model_limits::ModelLimits;
use crate::config::DEFAULT_CONTEXT_SIZE;
use crate::model::{ListedDigest, ModelError, ModelInfo, clamp_window};

/// The window of prompts for a model, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ContextWindow {
    /// The window to use.
    pub(crate) size: u32,
    /// The window that the model supports; the server may give it a smaller one.
    pub(crate) supported: u32,
    /// The window that the call, the session, the configuration or the Modelfile names, else the default.
    pub(crate) wanted: u32,
    pub(crate) origin: WindowOrigin,
    /// The longest window that the model was trained for.
    pub(crate) trained: Option<u32>,
    /// The window of every request, if the server alone decides about it.
    pub(crate) served: Option<u32>,
}

/// The origin of a wanted window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WindowOrigin {
    /// The call or the session.
    Caller,
    Config,
    Modelfile,
    /// The server, which gives every request this window.
    Server,
    /// The window is a default: no setting and no model gives one.
    Default,
}

impl ContextWindow {
    /// Returns the reasons for the size, as replies show them.
    pub(crate) fn limits(&self) -> WindowLimits {
        WindowLimits {
            // Nobody asked for a default, so it is not reported as wanted.
            wanted_context: (self.size < self.wanted && self.origin != WindowOrigin::Default)
                .then_some(self.wanted),
            trained_context: self.trained,
            verified: self.trained.or(self.served).is_some(),
        }
    }

    /// Returns whether somebody named the window.
    pub(crate) fn is_named(&self) -> bool {
        self.origin != WindowOrigin::Default
    }
}

/// Decides the window of prompts for a model. Blocks on the disk the first time.
///
/// `own`: the window that the call or the session names.
pub(crate) fn window_of(core: &Core, model: Option<&str>, own: Option<u32>) -> ContextWindow {
    let limits = model.and_then(|model| limits_of(core, model)).unwrap_or_default();
    let ModelLimits { trained_context: trained, served_context: served, .. } = limits;
    let (wanted, origin) = match (own, core.config().context.size, served) {
        (Some(own), ..) => (own, WindowOrigin::Caller),
        (None, Some(size), _) => (size, WindowOrigin::Config),
        // It takes no more memory than a smaller one.
        (None, None, Some(served)) => (served, WindowOrigin::Server),
        (None, None, None) => match limits.modelfile_context {
            Some(size) => (size, WindowOrigin::Modelfile),
            None => (DEFAULT_CONTEXT_SIZE, WindowOrigin::Default),
        },
    };
    // What the model was trained for does not limit a server that gives it more.
    let supported = match served {
        Some(served) => wanted.min(served),
        None => clamp_window(wanted, trained, limits.reads_images == Some(true)),
    };
    let effective = model.and_then(|model| core.speeds.get(model).effective);
    let size = supported.min(effective.unwrap_or(u32::MAX));
    ContextWindow { size, supported, wanted, origin, trained, served }
}

/// Returns the last known limits of a model. Blocks on the disk the first time.
fn limits_of(core: &Core, model: &str) -> Option<ModelLimits> {
    core.limits.get(&core.models.host_of(model), model)
}

/// Returns false if the server said that a model does not read images. Blocks on the disk the first time.
pub(crate) fn may_read_images(core: &Core, model: &str) -> bool {
    limits_of(core, model).is_none_or(|limits| limits.reads_images != Some(false))
}

/// Returns the description of a model, from the cache if it is recent, and remembers its limits.
pub(crate) async fn describe(
    core: &Arc<Core>,
    model: &str,
) -> std::result::Result<Arc<ModelInfo>, ModelError> {
    let (info, is_new) = core.models.info(model).await?;
    if is_new {
        remember(core, &info).await;
    }
    Ok(info)
}

/// Requests the description of a model, and remembers its limits.
pub(super) async fn describe_again(
    core: &Arc<Core>,
    model: &str,
) -> std::result::Result<Arc<ModelInfo>, ModelError> {
    let info = core.models.show(model).await?;
    remember(core, &info).await;
    Ok(info)
}

/// Loads a model whose server describes it only then, and describes it again.
pub(crate) async fn load_for_description(
    core: &Arc<Core>,
    info: &ModelInfo,
) -> std::result::Result<Arc<ModelInfo>, ModelError> {
    let supported = window_of(core, Some(&info.model), None).supported;
    core.models.warm(info, supported, core.config().ollama.keep_alive).await?;
    describe_again(core, &info.model).await
}

/// Remembers the limits of a new description, and that its digest is the one that the server lists.
async fn remember(core: &Arc<Core>, info: &Arc<ModelInfo>) {
    core.counts.note_listed(&info.model, ListedDigest::of(info.digest.clone()));
    let (info, host) = (Arc::clone(info), core.models.host_of(&info.model));
    let noted = blocking(core, move |core| {
        if !core.limits.is_known(&host, &info) {
            core.limits.note(&host, &info);
        }
        core.counts.forget_other(&info);
        Ok(())
    });
    drop(noted.await);
}

/// Learns the limits of the model that a session's prompts are for, if the model server describes it within a moment;
/// returns the description then.
///
/// `model`: the model that the call names.
pub(crate) async fn learn_limits(
    core: &Arc<Core>,
    id: SessionId,
    model: Option<&str>,
) -> Result<Option<Arc<ModelInfo>>> {
    let own = match model {
        Some(model) => Some(model.to_owned()),
        None => session_model(core, id).await?,
    };
    match core.placed_or_default(id, own) {
        Some(model) => Ok(describe_soon(core, &model).await),
        None => Ok(None),
    }
}

/// Returns the description of a model if its server sends it within a moment, and remembers its limits.
pub(crate) async fn describe_soon(core: &Arc<Core>, model: &str) -> Option<Arc<ModelInfo>> {
    let (info, is_new) = core.models.info_soon(model).await?;
    if is_new {
        remember(core, &info).await;
    }
    Some(info)
}

/// Returns the model that a session names.
async fn session_model(core: &Arc<Core>, id: SessionId) -> Result<Option<String>> {
    let open = core.sessions.peek(id, |live| live.state().model().map(str::to_owned));
    match open {
        Some(model) => Ok(model),
        None => blocking(core, move |core| Ok(core.settings(id)?.model)).await,
    }
}
