//! The servers of a turn: what it does while one refuses requests for a time, and which one it asks instead if one fails
//! and others are equal.
//!
//! **Invariants**: no other server is asked after a piece of an answer arrived, and none with a smaller window than the
//! session's; every wait has a limit and is reported.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ollm_protocol::content::BuiltContext;
use ollm_protocol::methods::chat::{ChatEvent, ChatPhase, WaitsFor};

use super::model_call::SentCall;
use super::turn::{Turn, phase};
use crate::app::core::{Core, blocking};
use crate::app::error::{AppError, ChatError, NoServer, Result};
use crate::app::models::window::{ContextWindow, describe, load_for_description, window_of};
use crate::model::{ChatRequest, ModelError, ModelInfo, Sampling, Ticket, at_server};

/// The longest time for which a turn waits because its server refuses requests: a user who reads that it waits for a
/// minute still waits for it.
const MAX_REFUSAL_WAIT: Duration = Duration::from_secs(60);
/// The shortest wait before a prompt is sent again.
const MIN_REFUSAL_WAIT: Duration = Duration::from_secs(1);
/// The reason for passing over a server that failed a short time ago, in another turn.
const AVOIDED: &str = "failedBefore";
/// The reason for passing over a server whose window is smaller than that of the session.
const SMALLER_WINDOW: &str = "smallerWindow";
/// The reason for passing over a server of another kind, which does not have the options of the turn.
const OTHER_OPTIONS: &str = "otherOptions";

/// The servers that a turn asked in vain.
#[derive(Default)]
pub(super) struct FailedServers {
    /// The first failure.
    first: Option<ModelError>,
    /// The name of each server and the reason.
    tried: Vec<(String, &'static str)>,
}

impl FailedServers {
    fn add(&mut self, core: &Core, server: String, error: ModelError) {
        if error.is_failure_of_server() {
            core.placements.note_failure(&server, Instant::now());
        }
        self.tried.push((server, error.reason()));
        self.first.get_or_insert(error);
    }

    fn is_tried(&self, server: &str) -> bool {
        self.tried.iter().any(|(tried, _)| tried == server)
    }
}

impl Turn {
    /// Describes the model at the server of the session, or at an equal one if that fails or failed a moment ago.
    pub(super) async fn describe_model(
        &mut self,
        failed: &mut FailedServers,
    ) -> Result<Arc<ModelInfo>> {
        if self.core.placements.is_avoided(&self.server(), Instant::now()) {
            // If all others failed too, the own one is asked.
            self.move_on(AVOIDED, "it failed before", failed).await?;
        }
        loop {
            match self.describe_own().await {
                Ok(info) => return Ok(info),
                Err(error) => self.fail_over(error, failed).await?,
            }
        }
    }

    /// Describes the model at the server of the turn, and checks the options of the turn for it.
    async fn describe_own(&mut self) -> Result<Arc<ModelInfo>> {
        let described = describe(&self.core, &self.request.model);
        let mut info = self.unless_ended(described).await??;
        if info.served_context.is_none() && info.is_window_known_later {
            self.report(phase(ChatPhase::Loading)).await;
            info = self.unless_ended(load_for_description(&self.core, &info)).await??;
        }
        let checked = self.request.checked_sampling(&self.core);
        self.request.sampling = self.unless_ended(checked).await??;
        Ok(info)
    }

    /// Goes on with an equal server after a call that failed before the first token.
    ///
    /// **Errors**: the error itself, if the request is its cause or the model has no equal servers; `NoServer` if all failed.
    pub(super) async fn fail_over(
        &mut self,
        error: AppError,
        failed: &mut FailedServers,
    ) -> Result<()> {
        let source = match error {
            AppError::Model(source) if source.is_of_server() => source,
            other => return Err(other),
        };
        let model = self.request.named.clone();
        if self.core.models.names().equal_servers(&model).is_empty() {
            return Err(source.into());
        }
        let (reason, message) = (source.reason(), source.to_string());
        failed.add(&self.core, self.server(), source.clone());
        if self.move_on(reason, &message, failed).await? {
            return Ok(());
        }
        let (source, tried) =
            (failed.first.take().unwrap_or(source), std::mem::take(&mut failed.tried));
        Err(ChatError::NoServer(Box::new(NoServer { source, model, tried })).into())
    }

    /// Chooses another of the equal servers and reports it. Returns whether there is one that can be asked: one that was not
    /// tried, and instead of an avoided server only one that is not avoided either.
    async fn move_on(
        &mut self,
        reason: &str,
        message: &str,
        failed: &mut FailedServers,
    ) -> Result<bool> {
        let (core, id, named) =
            (Arc::clone(&self.core), self.request.id, self.request.named.clone());
        let (own, window) = (self.server(), self.window(&self.request.model).await?);
        // The default for a server that was never asked is not yet the window of any prompt.
        let is_in_force = window.is_named() || window.limits().verified;
        loop {
            let mut servers = core.usable_servers(id, &named);
            let is_avoided = |server: &str| core.placements.is_avoided(server, Instant::now());
            servers.retain(|server| *server != own && !failed.is_tried(server));
            servers.retain(|server| reason != AVOIDED || !is_avoided(server));
            let Some(server) = core.least_busy(id, &named, &servers) else { return Ok(false) };
            let model = at_server(&named, &server);
            match self.unless_ended(describe(&core, &model)).await? {
                Ok(_) if is_in_force && self.window(&model).await?.size < window.size => {
                    failed.tried.push((server, SMALLER_WINDOW));
                }
                Ok(_) if !self.has_options(&model) => failed.tried.push((server, OTHER_OPTIONS)),
                Ok(_) => {
                    let (from, reason) = (own, reason.to_owned());
                    core.placements.keep(id, &named, &server);
                    self.request.model = model;
                    tracing::info!(session = %id, "{server} is asked instead of {from}: {message}");
                    let message = message.to_owned();
                    self.report(ChatEvent::Failover { from, to: server, reason, message }).await;
                    return Ok(true);
                }
                Err(error) => failed.add(&core, server, error),
            }
        }
    }

    /// Returns whether the server of a model has the sampling options of the turn.
    fn has_options(&self, model: &str) -> bool {
        let backend = self.core.models.backend_for(model);
        let options = self.request.options.clone();
        backend.is_ok_and(|backend| Sampling::check(options, backend.sampling()).is_ok())
    }

    /// Returns the server that the turn asks.
    pub(super) fn server(&self) -> String {
        self.core.models.names().server_of(&self.request.model)
    }

    /// Returns the window of the session with a model.
    async fn window(&self, model: &str) -> Result<ContextWindow> {
        let (model, own) = (model.to_owned(), self.request.context_size);
        blocking(&self.core, move |core| Ok(window_of(core, Some(&model), own))).await
    }

    /// Sends a prompt. If the server refuses requests for a time, waits as long as it says and sends the prompt again;
    /// background calls give way meanwhile.
    pub(super) async fn send_when_accepted(
        &self,
        ticket: &Ticket,
        request: &ChatRequest,
        built: &BuiltContext,
    ) -> Result<SentCall> {
        let mut left = MAX_REFUSAL_WAIT;
        loop {
            let call = self.send(request, built).await?;
            let wait = match &call.sent {
                Ok(_) => {
                    self.core.placements.note_answer(&self.server());
                    return Ok(call);
                }
                Err(ModelError::Busy { retry_after: Some(wait), .. }) if *wait <= left => {
                    (*wait).max(MIN_REFUSAL_WAIT)
                }
                Err(_) => return Ok(call),
            };
            left = left.saturating_sub(wait);
            ticket.hold_up(true);
            self.report_queued(None, Some(WaitsFor::Limit), Some(wait)).await;
            let waited = self.unless_ended(tokio::time::sleep(wait)).await;
            ticket.hold_up(false);
            waited?;
        }
    }
}
