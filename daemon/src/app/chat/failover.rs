//! The servers of a turn: what it does while one refuses requests for a time, and which one it asks instead if one fails
//! and others are equal.
//!
//! **Invariants**: no other server is asked after a piece of an answer arrived, and none with a smaller window than the
//! session's; every wait has a limit and is reported.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ollm_protocol::content::BuiltContext;
use ollm_protocol::methods::chat::{ChatEvent, WaitsFor};

use super::model_call::SentCall;
use super::turn::Turn;
use crate::app::core::{Core, blocking};
use crate::app::error::{AppError, ChatError, NoServer, Result};
use crate::app::models::window::{describe, window_of};
use crate::model::{ChatRequest, ModelError, ModelInfo, Ticket};

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
        core.placements.note_failure(&server, Instant::now());
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
        let own = self.server();
        if self.core.placements.is_avoided(&own, Instant::now()) {
            let mut avoided = FailedServers::default();
            avoided.tried.push((own, AVOIDED));
            let _is_asked_anyway = self.move_on(AVOIDED, "it failed before", &mut avoided).await?;
        }
        loop {
            let described = describe(&self.core, &self.request.model);
            match self.unless_ended(described).await? {
                Ok(info) => return Ok(info),
                Err(error) => self.fail_over(error.into(), failed).await?,
            }
        }
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

    /// Chooses another of the equal servers and reports it. Returns whether there is one that can be asked.
    async fn move_on(
        &mut self,
        reason: &str,
        message: &str,
        failed: &mut FailedServers,
    ) -> Result<bool> {
        let (core, id, named) =
            (Arc::clone(&self.core), self.request.id, self.request.named.clone());
        let window = self.window(&self.request.model).await?;
        loop {
            let mut servers = core.usable_servers(id, &named);
            servers.retain(|server| !failed.is_tried(server));
            let Some(server) = core.least_busy(id, &named, &servers) else { return Ok(false) };
            let model = format!("{named}@{server}");
            match self.unless_ended(describe(&core, &model)).await? {
                Ok(_) if self.window(&model).await? < window => {
                    failed.tried.push((server, SMALLER_WINDOW));
                }
                Ok(_) if !self.has_options(&model) => failed.tried.push((server, OTHER_OPTIONS)),
                Ok(_) => {
                    let (from, reason) = (self.server(), reason.to_owned());
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
        backend.is_ok_and(|backend| self.request.sampling.fits(backend.sampling()))
    }

    /// Returns the server that the turn asks.
    pub(super) fn server(&self) -> String {
        self.core.models.names().server_of(&self.request.model)
    }

    /// Returns the window of the session with a model, as far as it is known.
    async fn window(&self, model: &str) -> Result<u32> {
        let (model, own) = (model.to_owned(), self.request.context_size);
        blocking(&self.core, move |core| Ok(window_of(core, Some(&model), own).size)).await
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
