//! Chat turns: follows the events of a turn, reports that time passes, and cancels the turn after Ctrl-C; a turn of another
//! client is only left.
//!
//! **Invariant**: the connection of a turn belongs to a thread of its own, so that the user can leave even if the daemon
//! hangs.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use ollm_protocol::method::{ChatCancel, ChatSend};
use ollm_protocol::methods::chat::{ChatEvent, ChatSendParams, FollowEvent};
use ollm_protocol::methods::session::SessionIdParams;
use ollm_protocol::{ErrorKind, Method as _, SessionId};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::suspend::{self, StopGuard, StopKey};
use crate::background;
use crate::command_context::CommandContext;
use crate::command_error::{CommandError, CommandResult};
use crate::connection::{BlockingClient, BlockingEvents, Connector, ShownTurn, TurnStep};
use crate::error::ClientError;
use crate::interrupts::Interrupts;
use crate::render::terminal::Terminal;

/// Events that wait to be shown; further ones wait in the daemon, so that a stopped terminal costs no memory here.
const WAITING_EVENTS: usize = 256;
/// The time between two checks for Ctrl-C, and two redraws of the time.
const TICK: Duration = Duration::from_millis(100);
/// The time between two attempts to send a message to a session that is answering another one.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// The end of a turn that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TurnEnd {
    /// The model answered.
    Answered,
    /// Ctrl-C canceled the turn.
    Canceled {
        /// A part of the answer is recorded.
        has_answer: bool,
    },
    /// A second Ctrl-C arrived before the turn was canceled.
    Abandoned,
    /// Ctrl-C took the message back, which waited for the answer to another one and is not recorded.
    TakenBack,
}

/// The treatment of a message for a session in which another client's answer is being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WhenBusy {
    /// The message waits for its turn, until Ctrl-C takes it back.
    Wait,
    /// The turn fails.
    Fail,
}

/// Shows a turn.
pub(super) trait TurnOutput {
    /// Shows an event; `event` is `None` for a kind that this version does not know.
    fn on_event(
        &mut self,
        event: Option<&ChatEvent>,
        raw: &RawValue,
        terminal: &mut Terminal,
    ) -> CommandResult;

    /// Returns the time until something waits to be shown; `None` if nothing does.
    fn tick_in(&self) -> Option<Duration> {
        None
    }

    /// Shows that time passes without an event.
    fn on_tick(&mut self, _: &mut Terminal) -> CommandResult {
        Ok(())
    }

    /// Shows that the message waits for the end of another client's answer.
    fn on_wait(&mut self, _: &mut Terminal) {}

    /// Shows that the turn is being canceled.
    fn on_cancel(&mut self, _: &mut Terminal) -> CommandResult {
        Ok(())
    }

    /// Puts the terminal back before this process stops for a while.
    fn on_stop(&mut self, _: &mut Terminal) -> CommandResult {
        Ok(())
    }

    /// Shows the turn again, below what the shell has printed in between.
    fn on_continue(&mut self, _: &mut Terminal) -> CommandResult {
        Ok(())
    }

    /// Finishes the output after the last event.
    fn on_end(&mut self, _: &mut Terminal) -> CommandResult {
        Ok(())
    }
}

/// Runs turns, which Ctrl-C cancels and Ctrl-Z stops for a while.
pub(super) struct TurnRunner {
    when_busy: WhenBusy,
    interrupts: Arc<Interrupts>,
    stop_key: Arc<StopKey>,
}

/// The next event of a turn, or the error that ended it.
type TurnUpdate = Result<Box<RawValue>, ClientError>;

impl TurnRunner {
    pub(super) const fn new(
        when_busy: WhenBusy,
        interrupts: Arc<Interrupts>,
        stop_key: Arc<StopKey>,
    ) -> Self {
        Self { when_busy, interrupts, stop_key }
    }

    /// Returns the Ctrl-Z of the terminal.
    pub(super) fn stop_key(&self) -> &StopKey {
        &self.stop_key
    }

    /// Runs a turn to its end. Calls `on_accepted` when the daemon has accepted the message.
    pub(super) fn run(
        &self,
        params: ChatSendParams,
        on_accepted: &mut dyn FnMut(&mut CommandContext<'_>),
        output: &mut dyn TurnOutput,
        ctx: &mut CommandContext<'_>,
    ) -> CommandResult<TurnEnd> {
        let guard = self.interrupts.begin(ctx.terminal);
        let stops = self.stop_key.guard();
        let end = self.run_when_free(params, on_accepted, output, &stops, ctx);
        drop(guard);
        let shown = output.on_end(ctx.terminal);
        drop(stops);
        let end = end?;
        shown.map(|()| end)
    }

    /// Shows the turn of another client from now on; `None` if none runs. Ctrl-C leaves the turn, which goes on
    /// (`Abandoned`). Calls `on_joined` before anything is shown.
    pub(super) fn join(
        &self,
        session_id: SessionId,
        on_joined: &dyn Fn(&Terminal),
        output: &mut dyn TurnOutput,
        ctx: &mut CommandContext<'_>,
    ) -> CommandResult<Option<TurnEnd>> {
        let guard = self.interrupts.begin(ctx.terminal);
        let stops = self.stop_key.guard();
        let end = self.follow_joined(session_id, on_joined, output, &stops, ctx);
        drop(guard);
        let shown = output.on_end(ctx.terminal);
        drop(stops);
        let end = end?;
        shown.map(|()| end)
    }

    fn follow_joined(
        &self,
        session_id: SessionId,
        on_joined: &dyn Fn(&Terminal),
        output: &mut dyn TurnOutput,
        stops: &StopGuard<'_>,
        ctx: &mut CommandContext<'_>,
    ) -> CommandResult<Option<TurnEnd>> {
        let connector = ctx.connector().clone();
        let updates = spawn_events(connector, move |client| client.follow_chat(session_id))?;
        let mut joined = JoinedTurn::default();
        loop {
            stop_if_wanted(stops, output, ctx.terminal)?;
            if self.interrupts.count() > 0 {
                return Ok(Some(TurnEnd::Abandoned));
            }
            let raw = match next_update(&updates, output, ctx.terminal)? {
                Some(Ok(raw)) => raw,
                Some(Err(error)) if error.kind() == ErrorKind::TurnNotFound.as_str() => {
                    return Ok(None);
                }
                Some(Err(error)) => return Err(error.into()),
                None => continue,
            };
            let Ok(event) = serde_json::from_str(raw.get()) else { continue };
            if !joined.has_begun {
                on_joined(ctx.terminal);
            }
            for event in joined.events(event) {
                output.on_event(Some(&event), &raw, ctx.terminal)?;
                match event {
                    ChatEvent::Done { .. } => return Ok(Some(TurnEnd::Answered)),
                    ChatEvent::Error { code, message, data } => {
                        return Err(ClientError::of_turn(code, message, data).into());
                    }
                    _ => {}
                }
            }
        }
    }

    /// Runs a turn, if its message waits after the answer that the session is giving to another one.
    fn run_when_free(
        &self,
        params: ChatSendParams,
        on_accepted: &mut dyn FnMut(&mut CommandContext<'_>),
        output: &mut dyn TurnOutput,
        stops: &StopGuard<'_>,
        ctx: &mut CommandContext<'_>,
    ) -> CommandResult<TurnEnd> {
        let mut is_accepted = false;
        loop {
            let mut accept = |ctx: &mut CommandContext<'_>| {
                is_accepted = true;
                on_accepted(ctx);
            };
            let error = match self.follow(params.clone(), &mut accept, output, stops, ctx) {
                Err(error) if !is_accepted && is_answering_another(&error) => error,
                end => return end,
            };
            if self.when_busy == WhenBusy::Fail || params.message.is_none() {
                return Err(without_canceling(error, params.session_id, ctx));
            }
            output.on_wait(ctx.terminal);
            if !self.pause(RETRY_PAUSE, output, stops, ctx.terminal)? {
                return Ok(TurnEnd::TakenBack);
            }
        }
    }

    /// Waits; returns false after Ctrl-C.
    fn pause(
        &self,
        time: Duration,
        output: &mut dyn TurnOutput,
        stops: &StopGuard<'_>,
        terminal: &mut Terminal,
    ) -> CommandResult<bool> {
        let end = Instant::now() + time;
        while self.interrupts.count() == 0 && Instant::now() < end {
            std::thread::sleep(TICK);
            stop_if_wanted(stops, output, terminal)?;
            output.on_tick(terminal)?;
        }
        Ok(self.interrupts.count() == 0)
    }

    fn follow(
        &self,
        params: ChatSendParams,
        on_accepted: &mut dyn FnMut(&mut CommandContext<'_>),
        output: &mut dyn TurnOutput,
        stops: &StopGuard<'_>,
        ctx: &mut CommandContext<'_>,
    ) -> CommandResult<TurnEnd> {
        let session = SessionIdParams { session_id: params.session_id };
        let connector = ctx.connector().clone();
        let updates = spawn_events(connector, move |client| client.send_chat(&params))?;
        let (mut is_accepted, mut is_unwanted, mut is_canceled) = (false, false, false);
        let mut has_answer = false;
        loop {
            stop_if_wanted(stops, output, ctx.terminal)?;
            let interrupts = self.interrupts.count();
            if interrupts > 1 {
                return Ok(TurnEnd::Abandoned);
            }
            if interrupts == 1 && !is_unwanted {
                is_unwanted = true;
                output.on_cancel(ctx.terminal)?;
            }
            // The daemon can cancel a turn only after it has accepted it.
            if is_unwanted && is_accepted && !is_canceled {
                is_canceled = true;
                spawn_cancel(ctx.connector().clone(), session.clone())?;
            }
            let Some(update) = next_update(&updates, output, ctx.terminal)? else { continue };
            let raw = update?;
            let event = serde_json::from_str::<ChatEvent>(raw.get()).ok();
            output.on_event(event.as_ref(), &raw, ctx.terminal)?;
            match event {
                Some(ChatEvent::Accepted { .. }) => {
                    is_accepted = true;
                    on_accepted(ctx);
                }
                Some(ChatEvent::Delta { .. }) => has_answer = true,
                Some(ChatEvent::Done { .. }) => return Ok(TurnEnd::Answered),
                Some(ChatEvent::Error { code, message, data }) => {
                    let error = ClientError::of_turn(code, message, data);
                    if is_canceled && error.kind() == ErrorKind::Canceled.as_str() {
                        has_answer |=
                            error.fields().is_some_and(|fields| fields.contains_key("seq"));
                        return Ok(TurnEnd::Canceled { has_answer });
                    }
                    return Err(error.into());
                }
                _ => {}
            }
        }
    }
}

/// A turn of another client, as far as it is shown.
#[derive(Default)]
struct JoinedTurn {
    shown: ShownTurn,
    has_begun: bool,
}

impl JoinedTurn {
    /// Returns the events of the turn that show an event of its follower.
    fn events(&mut self, event: FollowEvent) -> Vec<ChatEvent> {
        let (seq, model, missing, answer_seq) = match event {
            FollowEvent::Event(event) => {
                let is_new = self.shown.add(&event);
                return is_new.then_some(event).into_iter().collect();
            }
            FollowEvent::Running { seq, model, thinking, text, answer_seq, .. } => {
                (seq, model, self.shown.catch_up(thinking, text, answer_seq), answer_seq)
            }
        };
        let missing = missing.into_iter().filter_map(|step| match step {
            TurnStep::Event(event) => Some(*event),
            TurnStep::Restarted => None,
        });
        if std::mem::replace(&mut self.has_begun, true) {
            return missing.collect();
        }
        let accepted = ChatEvent::Accepted { seq, duplicate: false, model };
        // What is recorded is among the messages that are shown already.
        [accepted].into_iter().chain(missing.filter(|_| answer_seq.is_none())).collect()
    }
}

/// Stops this process for a while if Ctrl-Z has arrived.
fn stop_if_wanted(
    stops: &StopGuard<'_>,
    output: &mut dyn TurnOutput,
    terminal: &mut Terminal,
) -> CommandResult {
    if !stops.take() {
        return Ok(());
    }
    output.on_stop(terminal)?;
    suspend::stop();
    output.on_continue(terminal)
}

/// Returns whether a turn was refused because the session answers another message.
fn is_answering_another(error: &CommandError) -> bool {
    error.rpc_failure().is_some_and(|failure| failure.kind == Some(ErrorKind::Conflict))
}

/// Replaces the daemon's hint, which would cancel the answer to somebody else.
fn without_canceling(
    mut error: CommandError,
    id: SessionId,
    ctx: &CommandContext<'_>,
) -> CommandError {
    if let CommandError::Client(ClientError::Rpc(failure)) = &mut error {
        let again =
            if ctx.in_chat() { "/retry".to_owned() } else { format!("ollmctl chat --resume {id}") };
        failure.hint = Some(format!("{again}  # when that answer has ended"));
    }
    error
}

/// Waits for the next update; shows that time passes, and returns `None`, if none arrives for a while.
fn next_update(
    updates: &Receiver<TurnUpdate>,
    output: &mut dyn TurnOutput,
    terminal: &mut Terminal,
) -> CommandResult<Option<TurnUpdate>> {
    match updates.recv_timeout(output.tick_in().map_or(TICK, |time| time.min(TICK))) {
        Ok(update) => Ok(Some(update)),
        Err(RecvTimeoutError::Timeout) => {
            output.on_tick(terminal)?;
            Ok(None)
        }
        Err(RecvTimeoutError::Disconnected) => Ok(Some(Err(closed()))),
    }
}

/// Reads the events of a turn in a thread that ends with the turn, with the receiver, or with the process.
fn spawn_events<E: DeserializeOwned>(
    connector: Connector,
    open: impl FnOnce(BlockingClient) -> Result<BlockingEvents<E>, ClientError> + Send + 'static,
) -> CommandResult<Receiver<TurnUpdate>> {
    let (sender, updates) = sync_channel(WAITING_EVENTS);
    let send_events = move |sender: &SyncSender<TurnUpdate>| {
        let mut events = open(BlockingClient::connect(&connector)?)?;
        while let Some(raw) = events.next_raw()? {
            if sender.send(Ok(raw)).is_err() {
                break;
            }
        }
        Err(closed())
    };
    background::spawn("ollmctl-turn", move || {
        let last = send_events(&sender);
        // Fails if the user has left the turn.
        drop(sender.send(last));
    })?;
    Ok(updates)
}

fn closed() -> ClientError {
    ClientError::Closed { method: ChatSend::NAME.to_owned() }
}

/// Returns the error of a chat that a signal ended; `message` says what is kept.
pub(super) fn canceled(message: &'static str) -> CommandError {
    CommandError::Canceled { message, hint: Some("ollmctl chat --continue".to_owned()) }
}

/// Asks the daemon to cancel a turn, in a thread so that nothing waits for the reply.
fn spawn_cancel(connector: Connector, session: SessionIdParams) -> CommandResult {
    let cancel = move || {
        // A failure is ignored: a daemon that cannot be reached has ended the turn, and a second Ctrl-C leaves anyway.
        let client = BlockingClient::connect(&connector.without_spawn());
        drop(client.and_then(|mut client| client.call::<ChatCancel>(&session)));
    };
    background::spawn("ollmctl-cancel", cancel)
}
