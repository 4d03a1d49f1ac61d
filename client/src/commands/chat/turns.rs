//! One turn after the other: events as they come, time that passes, and Ctrl-C.
//!
//! Invariant: a turn's connection lives in a thread of its own, so that a daemon that hangs never keeps anybody from
//! leaving.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use ollm_protocol::ErrorKind;
use ollm_protocol::method::{ChatCancel, ChatSend, Method as _};
use ollm_protocol::methods::chat::{ChatEvent, ChatSendParams};
use ollm_protocol::methods::session::SessionIdParams;
use serde_json::value::RawValue;

use super::super::{CommandError, Cx};
use super::echo::Quiet;
use super::interrupts::Interrupts;
use crate::connection::{BlockingClient, Connector};
use crate::error::ClientError;
use crate::render::terminal::Terminal;

/// Events that wait to be shown; more wait in the daemon. A terminal that stands still is no reason to grow.
const WAITING_EVENTS: usize = 256;
/// How often it is looked whether Ctrl-C was pressed, and time is shown.
const TICK: Duration = Duration::from_millis(100);

/// How a turn ended that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The model answered.
    Done,
    /// Ctrl-C ended it.
    Canceled,
    /// A second Ctrl-C came before it ended.
    Left,
}

/// Whoever shows a turn.
pub(super) trait Watch {
    /// Something happened. One that this version does not know has no event.
    fn event(
        &mut self,
        event: Option<&ChatEvent>,
        raw: &RawValue,
        terminal: &mut Terminal,
    ) -> Result<(), CommandError>;
    /// Time passed.
    fn tick(&mut self);
    /// The turn was asked to end, and has not yet.
    fn canceling(&mut self, terminal: &mut Terminal) -> Result<(), CommandError>;
    /// Nothing more comes.
    fn end(&mut self, terminal: &mut Terminal) -> Result<(), CommandError>;
}

/// Runs turns.
pub(super) struct Turns {
    send: SyncSender<Happening>,
    happenings: Receiver<Happening>,
    /// Names the turn; what is left of an earlier one is not heard.
    number: u64,
    interrupts: Interrupts,
}

struct Happening {
    turn: u64,
    /// The next event, or why none follows.
    what: Result<Box<RawValue>, ClientError>,
}

impl Turns {
    /// Listens for Ctrl-C from now on.
    pub(super) fn new() -> Result<Self, CommandError> {
        let (send, happenings) = sync_channel(WAITING_EVENTS);
        Ok(Self { send, happenings, number: 0, interrupts: Interrupts::watch()? })
    }

    /// Runs a turn to its end.
    pub(super) fn run(
        &mut self,
        params: ChatSendParams,
        accepted: &mut dyn FnMut(&mut Cx<'_>),
        watch: &mut dyn Watch,
        cx: &mut Cx<'_>,
    ) -> Result<Outcome, CommandError> {
        self.number += 1;
        self.interrupts.set_in_turn(true);
        // A pager behind a pipe may use the same terminal, and wants its own settings left alone.
        let quiet = if cx.terminal.is_interactive() { Quiet::new() } else { None };
        let outcome = self.follow(params, accepted, watch, cx);
        drop(quiet);
        self.interrupts.set_in_turn(false);
        let ended = watch.end(cx.terminal);
        let outcome = outcome?;
        ended.map(|()| outcome)
    }

    /// Does something that is no turn, and that Ctrl-C ends: it asks whether it is still wanted.
    pub(super) fn unless_interrupted<T>(
        &self,
        cx: &mut Cx<'_>,
        work: impl FnOnce(&mut Cx<'_>, &dyn Fn() -> bool) -> T,
    ) -> T {
        self.interrupts.set_in_turn(true);
        let quiet = if cx.terminal.is_interactive() { Quiet::new() } else { None };
        let done = work(cx, &|| self.interrupts.count() == 0);
        drop(quiet);
        self.interrupts.set_in_turn(false);
        done
    }

    fn follow(
        &mut self,
        params: ChatSendParams,
        accepted: &mut dyn FnMut(&mut Cx<'_>),
        watch: &mut dyn Watch,
        cx: &mut Cx<'_>,
    ) -> Result<Outcome, CommandError> {
        let session = SessionIdParams { session_id: params.session_id };
        self.begin(cx.connector().clone(), params)?;
        let (mut has_begun, mut is_unwanted, mut is_canceled) = (false, false, false);
        loop {
            let interrupts = self.interrupts.count();
            if interrupts > 1 {
                return Ok(Outcome::Left);
            }
            if interrupts == 1 && !is_unwanted {
                is_unwanted = true;
                watch.canceling(cx.terminal)?;
            }
            // Before it has begun nobody knows of it.
            if is_unwanted && has_begun && !is_canceled {
                is_canceled = true;
                cancel(cx.connector().clone(), session.clone())?;
            }
            let happening = match self.happenings.recv_timeout(TICK) {
                Ok(happening) if happening.turn == self.number => happening,
                Ok(_) => continue,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    watch.tick();
                    continue;
                }
            };
            let raw = happening.what?;
            let event = serde_json::from_str::<ChatEvent>(raw.get()).ok();
            watch.event(event.as_ref(), &raw, cx.terminal)?;
            match event {
                Some(ChatEvent::Accepted { .. }) => {
                    has_begun = true;
                    accepted(cx);
                }
                Some(ChatEvent::Done { .. }) => return Ok(Outcome::Done),
                Some(ChatEvent::Error { code, message, data }) => {
                    let error = ClientError::of_turn(code, message, data);
                    if is_canceled && error.kind() == ErrorKind::Cancelled.as_str() {
                        return Ok(Outcome::Canceled);
                    }
                    return Err(error.into());
                }
                _ => {}
            }
        }
    }

    /// Begins a turn in a thread that ends with it, or with the process.
    fn begin(&self, connector: Connector, params: ChatSendParams) -> Result<(), CommandError> {
        let (turn, send) = (self.number, self.send.clone());
        let follow = move || {
            let last = (|| {
                let mut events = BlockingClient::connect(&connector)?.send_chat(&params)?;
                while let Some(raw) = events.next_raw()? {
                    if send.send(Happening { turn, what: Ok(raw) }).is_err() {
                        break;
                    }
                }
                Err(ClientError::Closed { method: ChatSend::NAME.to_owned() })
            })();
            // Nobody is left to hear it when the process ends.
            drop(send.send(Happening { turn, what: last }));
        };
        let thread = std::thread::Builder::new().name("ollmctl-turn".to_owned());
        drop(thread.spawn(follow).map_err(CommandError::Input)?);
        Ok(())
    }
}

/// Asks the daemon to end a turn, without waiting for it.
fn cancel(connector: Connector, session: SessionIdParams) -> Result<(), CommandError> {
    let ask = move || {
        // A daemon that cannot be asked any more has ended the turn; a second Ctrl-C leaves in any case.
        let client = BlockingClient::connect(&connector.without_spawn());
        drop(client.and_then(|mut client| client.call::<ChatCancel>(&session)));
    };
    let thread = std::thread::Builder::new().name("ollmctl-cancel".to_owned());
    drop(thread.spawn(ask).map_err(CommandError::Input)?);
    Ok(())
}
