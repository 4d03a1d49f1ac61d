//! A running turn: its request, its session, and the channel on which it reports to its client. The other files of this
//! folder add its steps.

use std::future::Future;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use ollm_protocol::content::{Part, Role};
use ollm_protocol::methods::chat::{
    AnswerCut, ChatEvent, ChatPhase, ChatSendParams, Think as WireThink, ThinkLevel,
};
use ollm_protocol::methods::session::MessageInput;
use ollm_protocol::{EventData, Seq, SessionId};
use serde_json::{Map, Value};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::early_reports::EarlyReports;
use super::recall_offer;
use crate::app::core::{Core, blocking};
use crate::app::error::{AppError, ChatError, Result};
use crate::app::models::answer_options::AnswerOptions;
use crate::app::models::gate;
use crate::app::models::window::{describe_soon, may_read_images};
use crate::app::models::{image_readers, model_or_default};
use crate::app::running::{Claim, RunningTurn};
use crate::app::turn_feed::TurnFeed;
use crate::model::{Backend, ChatEnd, LengthCause, Sampling, ThinkMode};
use crate::shutdown::Tasks;

/// The most likely tokens that a server reports at a position.
const MAX_TOP_LOGPROBS: u8 = 20;

/// A running turn.
pub(super) struct Turn {
    pub(super) core: Arc<Core>,
    pub(super) tasks: Tasks,
    pub(super) claim: Claim<RunningTurn>,
    pub(super) request: TurnRequest,
    pub(super) reports: EarlyReports,
    /// Closed after the last event, which the feed of the turn has.
    pub(super) events: mpsc::Sender<ChatEvent>,
}

/// A checked request for a turn.
pub(super) struct TurnRequest {
    pub(super) id: SessionId,
    /// The model as the client, the session or the configuration names it, which the log has.
    pub(super) named: String,
    /// The model of the one server that the turn asks.
    pub(super) model: String,
    /// The definitions of the tools that the model is offered: those of the client, then those of the daemon.
    pub(super) tools: Vec<Value>,
    /// Set if the last of `tools` are the recall tools of the daemon.
    pub(super) offers_recall: bool,
    /// The sampling options as they were named.
    pub(super) options: Map<String, Value>,
    /// The options that the server of the turn has; empty before they are checked.
    pub(super) sampling: Sampling,
    /// The longest answer in tokens, and the setting that limits it.
    pub(super) answer_limit: Option<(NonZeroU32, AnswerCut)>,
    pub(super) think: Option<ThinkMode>,
    /// The format of the answer.
    pub(super) format: Option<Value>,
    /// Set if the probabilities of tokens are reported: the number of the most likely ones at each position.
    pub(super) logprobs: Option<u8>,
    /// Whether the user's message has images.
    pub(super) has_images: bool,
    /// The window that the session names, in tokens.
    pub(super) context_size: Option<u32>,
}

/// The user's message of a turn.
pub(super) struct AcceptedMessage {
    /// Its record; `None` for a turn without a message.
    pub(super) seq: Option<Seq>,
    /// An earlier attempt with the same key recorded it.
    pub(super) duplicate: bool,
}

impl Turn {
    pub(super) fn cancel(&self) -> &CancellationToken {
        &self.claim.value.cancel
    }

    pub(super) fn feed(&self) -> &TurnFeed {
        &self.claim.value.feed
    }

    /// Reports an event to the followers of the turn and to the client that started it.
    pub(super) async fn report(&self, event: ChatEvent) {
        self.feed().publish(&event);
        self.send_to_owner(event).await;
    }

    /// Sends an event to the client that started the turn as long as it listens. Waits for a slow client, but not longer
    /// than until the turn is canceled.
    pub(super) async fn send_to_owner(&self, event: ChatEvent) {
        tokio::select! {
            biased;
            // Fails for a client that left.
            sent = self.events.send(event) => drop(sent),
            () = self.cancel().cancelled() => {}
        }
    }

    /// Publishes an event about the session to all subscribers.
    pub(super) fn publish(&self, seq: Option<Seq>, data: &impl EventData) {
        self.core.publish(self.request.id, seq, data);
    }

    /// Runs `work` unless the turn is canceled or the daemon shuts down first.
    pub(super) async fn unless_ended<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        tokio::select! {
            biased;
            () = self.cancel().cancelled() => Err(ChatError::Canceled { partial: None }.into()),
            () = self.tasks.stopping() => Err(AppError::Stopping),
            done = work => Ok(done),
        }
    }
}

impl TurnRequest {
    /// Returns the definitions of the client's tools.
    pub(super) fn client_tools(&self) -> &[Value] {
        let n_own = if self.offers_recall { recall_offer::definitions().len() } else { 0 };
        &self.tools[..self.tools.len() - n_own]
    }

    /// Returns the longest answer in tokens.
    pub(super) fn answer_limit(&self) -> Option<NonZeroU32> {
        self.answer_limit.map(|(most, _)| most)
    }

    /// Returns the limit that cut an answer.
    pub(super) fn cut_by(&self, end: &ChatEnd) -> Option<AnswerCut> {
        Some(match end.length_cause(self.answer_limit())? {
            LengthCause::Window => AnswerCut::Window,
            LengthCause::NumPredict => self.answer_limit.map_or(AnswerCut::Window, |(_, cut)| cut),
        })
    }

    /// Checks params and the message of the user before anything is recorded.
    pub(super) async fn new(
        core: &Arc<Core>,
        params: ChatSendParams,
        message: Option<&MessageInput>,
    ) -> Result<Self> {
        if message.is_some_and(|message| message.role != Role::User) {
            return Err(AppError::invalid(
                "message.role",
                "a turn begins with a message of the user",
            ));
        }
        let has_images = message.is_some_and(has_images);
        let read = blocking(core, move |core| Self::of_params(core, params, has_images));
        let request = read.await?;
        match gate::backend_for(core, request.id, &request.model).await {
            // What the options are called depends on the kind of the server. No message waits for it: the turn checks them,
            // too.
            Ok(backend) if backend.is_identified() => drop(request.sampling_for(core, &*backend)?),
            Ok(_) => {}
            // An equal server may answer.
            Err(error)
                if error.is_failure_of_server()
                    && !core.models.names().equal_servers(&request.named).is_empty() => {}
            Err(error) => return Err(error.into()),
        }
        if has_images {
            describe_soon(core, &request.model).await;
            request.check_images(core).await?;
        }
        Ok(request)
    }

    /// Returns the sampling options, checked for the server of the turn, which must be allowed to answer it.
    pub(super) async fn checked_sampling(&self, core: &Arc<Core>) -> Result<Sampling> {
        let backend = gate::backend_for(core, self.id, &self.model).await?;
        if !self.options.is_empty() {
            // What the options are called depends on the kind of the server.
            backend.identify().await?;
        }
        self.sampling_for(core, &*backend)
    }

    /// Returns the sampling options, checked for a server whose kind is known.
    fn sampling_for(&self, core: &Core, backend: &dyn Backend) -> Result<Sampling> {
        Sampling::check(self.options.clone(), backend.sampling()).map_err(|error| {
            let kept = core.sessions.peek(self.id, |live| live.state().options());
            let is_kept = kept.is_some_and(|kept| kept.contains_key(error.name()));
            let by = if is_kept { "; the session keeps it" } else { "" };
            AppError::invalid("options", format!("{error}{by}"))
        })
    }

    /// Returns the request that some params make, without a check of its options. Blocks on the disk.
    fn of_params(core: &Core, mut params: ChatSendParams, has_images: bool) -> Result<Self> {
        let logprobs = wanted_logprobs(&params)?;
        let session = core.summary(params.session_id)?;
        let options = AnswerOptions::kept(&session.options)?.with_turn(&mut params);
        let AnswerOptions { sampling: options, answer_limit, think, format } = options;
        let ChatSendParams { session_id, model, tools, .. } = params;
        let named = model_or_default(core, model.or(session.model.clone()))?;
        let too_few = || AppError::invalid("answerLimit", "must be at least 1");
        let own = answer_limit.map(|most| NonZeroU32::new(most).ok_or_else(too_few)).transpose()?;
        let configured = core.config().context.answer_limit;
        let answer_limit = own
            .map(|most| (most, AnswerCut::Call))
            .or(configured.map(|most| (most, AnswerCut::Config)));
        if let Some(tool) = tools.iter().find(|tool| tool["function"]["name"].as_str().is_none()) {
            let tool: String = tool.to_string().chars().take(80).collect();
            let problem = format!("a definition has no function.name: {tool}");
            return Err(AppError::invalid("tools", problem));
        }
        let offers_recall = recall_offer::are_offered(core, &tools);
        let mut tools = tools;
        if offers_recall {
            tools.extend(recall_offer::definitions());
        }
        let context_size = core.settings(session_id)?.context_size;
        let think = think.map(think_mode);
        Ok(Self {
            id: session_id,
            model: core.placed(session_id, &named),
            named,
            tools,
            offers_recall,
            options,
            sampling: Sampling::default(),
            answer_limit,
            think,
            format,
            logprobs,
            has_images,
            context_size,
        })
    }

    /// Refuses a message with images for a model that does not read them: servers drop them silently.
    pub(super) async fn check_images(&self, core: &Arc<Core>) -> Result<()> {
        let model = self.model.clone();
        if !self.has_images || blocking(core, move |core| Ok(may_read_images(core, &model))).await?
        {
            return Ok(());
        }
        let (model, host) = (self.model.clone(), core.models.host_of(&self.model));
        let (readers, advice) = (image_readers(core, &model).await, core.models.advice_for(&model));
        Err(ChatError::NoVision { model, host, readers, advice }.into())
    }
}

/// Returns whether a message has images.
fn has_images(message: &MessageInput) -> bool {
    let mut parts = message.parts.iter().flatten();
    parts.any(|part| matches!(part, Part::Image { .. }))
}

/// Returns the number of the most likely tokens to report at each position, if probabilities are reported.
fn wanted_logprobs(params: &ChatSendParams) -> Result<Option<u8>> {
    match params.top_logprobs {
        Some(_) if !params.logprobs => Err(AppError::invalid("topLogprobs", "needs logprobs")),
        Some(n) if n > MAX_TOP_LOGPROBS => {
            Err(AppError::invalid("topLogprobs", format!("must be at most {MAX_TOP_LOGPROBS}")))
        }
        n => Ok(params.logprobs.then(|| n.unwrap_or_default())),
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

/// Returns the event of a phase without numbers.
pub(super) const fn phase(name: ChatPhase) -> ChatEvent {
    ChatEvent::Phase { name, tokens: None, expected_ms: None, ahead: None, waits_for: None }
}

pub(super) fn as_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
