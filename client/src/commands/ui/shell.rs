//! The shell around the state: it brings keys, events, answers and signals to the state, does what the state requests,
//! and draws.
//!
//! A thread reads keys, and another one does everything else.
//!
//! **Invariants**: a frame is drawn at most 30 times a second, and once for all inputs that arrive together; the terminal is
//! given back however this ends.

use std::io;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use ollm_protocol::methods::chat::{ChatEvent, FollowEvent};
use ollm_protocol::methods::event::EventSubscribeParams;
use ollm_protocol::{Event, SessionId};
use rustix::process::{Pid, Signal, kill_process};
use serde::de::DeserializeOwned;
use tokio::signal::unix::SignalKind;
use tokio::sync::oneshot;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};

use super::ShellSettings;
use super::calls::{CHANGE_LIMIT, CallProblem, UiCall, perform};
use super::draw::{UiPalette, draw};
use super::keys::{Keyboard, UiKey};
use super::state::{UiInput, UiRequest, UiState};
use super::terminal::FullScreen;
use crate::background::{self, Signals};
use crate::command_error::{CommandError, CommandResult};
use crate::connection::{AsyncClient, Connector, EventStream};
use crate::error::{ClientError, Exit};
use crate::own_program;
use crate::render::units;

/// The time between two frames: at most 30 a second.
const FRAME_TIME: Duration = Duration::from_millis(33);
/// The wait for inputs that belong to the same frame, such as the answer to the call that a key made.
const GATHER_TIME: Duration = Duration::from_millis(5);
/// The time between two looks at the clock: ages are shown in minutes.
const SLOW_TICK: Duration = Duration::from_secs(30);
/// The same while something on the screen changes.
const FAST_TICK: Duration = Duration::from_secs(1);
/// The pause between two attempts to connect to a daemon that was stopped.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// The longest wait for a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(40);
/// Keys that are handled before the next look at everything else.
const MAX_KEYS: usize = 64;

/// The signals that the view handles; each other one does what it always does.
const SIGNALS: [Signal; 5] = [Signal::TERM, Signal::HUP, Signal::INT, Signal::WINCH, Signal::CONT];

/// A connection and its events.
type UiConnection = (AsyncClient, EventStream);

/// The events of the turn of a session; `None` if none runs.
type TurnOfSession = (SessionId, Option<EventStream<FollowEvent>>);

/// Something that arrived at the shell.
enum Arrival {
    Key(Option<UiKey>),
    Signal(Signal),
    Answer(Result<UiInput, JoinError>),
    Connection(Box<Result<Result<UiConnection, ClientError>, JoinError>>),
    Event(Option<Result<Event, ClientError>>),
    Joined(Result<TurnOfSession, JoinError>),
    Turn(Box<Option<Result<FollowEvent, ClientError>>>),
    ChatEnd(Result<io::Result<ExitStatus>, oneshot::error::RecvError>),
    FrameTime,
    Tick,
    RetryTime,
}

/// A chat that has the terminal.
struct RunningChat {
    pid: Option<Pid>,
    end: oneshot::Receiver<io::Result<ExitStatus>>,
}

/// The shell.
struct Shell {
    settings: ShellSettings,
    state: UiState,
    screen: FullScreen,
    keyboard: Option<Keyboard>,
    signals: Signals,
    client: Option<Arc<AsyncClient>>,
    events: Option<EventStream>,
    /// The session whose turn is followed, and whether one was known to run.
    followed: Option<(SessionId, bool)>,
    turn: Option<EventStream<FollowEvent>>,
    joining: JoinSet<TurnOfSession>,
    calls: JoinSet<UiInput>,
    connecting: JoinSet<Result<UiConnection, ClientError>>,
    /// The time of the next attempt to connect.
    retry_at: Option<Instant>,
    /// Set once there was a connection; a first one that fails ends the view.
    was_connected: bool,
    /// Set if the person wants the daemon to be started.
    wants_start: bool,
    /// Set if the attempt to connect may start the daemon.
    is_starting: bool,
    chat: Option<RunningChat>,
    /// Set if a chat failed, whose message stays on the screen until a key.
    waits_for_key: bool,
    /// The time of the first input that no frame shows.
    changed_at: Option<Instant>,
    drawn_at: Instant,
    ticked_at: Instant,
    ended: Option<CommandResult>,
}

/// Shows the view until the person leaves it.
pub(super) fn run(settings: ShellSettings, state: UiState) -> CommandResult {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(CommandError::Signals)?;
    let result = runtime.block_on(async { Shell::new(settings, state)?.run().await });
    // An attempt to connect may still wait for a silent daemon.
    runtime.shutdown_background();
    result
}

impl Shell {
    fn new(settings: ShellSettings, state: UiState) -> CommandResult<Self> {
        let kinds = SIGNALS.map(|signal| SignalKind::from_raw(signal.as_raw()));
        let signals = Signals::listen(&kinds).map_err(CommandError::Signals)?;
        let now = Instant::now();
        let mut shell = Self {
            settings,
            state,
            screen: FullScreen::enter()?,
            keyboard: None,
            signals,
            client: None,
            events: None,
            followed: None,
            turn: None,
            joining: JoinSet::new(),
            calls: JoinSet::new(),
            connecting: JoinSet::new(),
            retry_at: None,
            was_connected: false,
            wants_start: true,
            is_starting: false,
            chat: None,
            waits_for_key: false,
            changed_at: None,
            drawn_at: now,
            ticked_at: now,
            ended: None,
        };
        // The decision about colors is ours, also if `--color` contradicts the environment.
        ratatui::crossterm::style::force_color_output(shell.settings.has_color);
        // The first frame waits for nothing.
        shell.draw()?;
        shell.keyboard = Some(Keyboard::start()?);
        shell.connect();
        Ok(shell)
    }

    async fn run(&mut self) -> CommandResult {
        loop {
            if let Some(end) = self.ended.take() {
                return end;
            }
            let arrival = self.next().await;
            self.arrived(arrival)?;
        }
    }

    /// Waits for what comes first.
    async fn next(&mut self) -> Arrival {
        let frame_at = self.frame_at();
        let tick = if self.state.is_moving() { FAST_TICK } else { SLOW_TICK };
        let tick_at = self.ticked_at + tick;
        let retry_at = self.retry_at;
        let Self { keyboard, signals, calls, connecting, events, joining, turn, chat, .. } = self;
        tokio::select! {
            key = next_key(keyboard) => Arrival::Key(key),
            at = signals.next() => Arrival::Signal(SIGNALS[at]),
            Some(answer) = calls.join_next() => Arrival::Answer(answer),
            Some(connection) = connecting.join_next() => Arrival::Connection(Box::new(connection)),
            event = next_event(events) => Arrival::Event(event),
            Some(joined) = joining.join_next() => Arrival::Joined(joined),
            event = next_event(turn) => Arrival::Turn(Box::new(event)),
            end = chat_end(chat) => Arrival::ChatEnd(end),
            () = wait_until(frame_at) => Arrival::FrameTime,
            () = sleep_until(tick_at) => Arrival::Tick,
            () = wait_until(retry_at) => Arrival::RetryTime,
        }
    }

    fn arrived(&mut self, arrival: Arrival) -> CommandResult {
        match arrival {
            Arrival::Key(_) if self.waits_for_key => {
                // The rest of the line is no key of the view. After Ctrl-D, the thread has ended.
                self.keyboard = None;
                self.take_terminal()?;
            }
            Arrival::Key(key) => self.pressed(key)?,
            Arrival::Signal(signal) => self.signaled(signal)?,
            Arrival::Answer(Ok(input)) => self.update(input)?,
            Arrival::Answer(Err(error)) => rethrow(error),
            Arrival::Connection(connection) => match *connection {
                Ok(connection) => self.connected(connection)?,
                Err(error) => rethrow(error),
            },
            Arrival::Event(Some(Ok(event))) => self.update(UiInput::Event(Box::new(event)))?,
            // An event of a kind that this version does not know.
            Arrival::Event(Some(Err(_))) => {}
            Arrival::Event(None) => self.disconnected()?,
            Arrival::Joined(Ok((id, turn))) => {
                // Otherwise another session is followed now.
                if self.turn.is_none() && self.followed.is_some_and(|(wanted, _)| wanted == id) {
                    self.turn = turn;
                }
            }
            Arrival::Joined(Err(error)) => rethrow(error),
            Arrival::Turn(event) => match *event {
                Some(Ok(event)) => self.turned(Some(event))?,
                Some(Err(_)) => {}
                None => self.turned(None)?,
            },
            Arrival::ChatEnd(end) => self.chat_ended(end.ok())?,
            Arrival::FrameTime => self.draw()?,
            Arrival::Tick => {
                self.ticked_at = Instant::now();
                self.update(UiInput::Tick(units::now()))?;
            }
            Arrival::RetryTime => {
                self.retry_at = None;
                self.connect();
            }
        }
        Ok(())
    }

    /// Gives an input to the state, and does what it requests.
    fn update(&mut self, input: UiInput) -> CommandResult {
        self.changed_at.get_or_insert_with(Instant::now);
        for request in self.state.update(input) {
            self.fulfil(request)?;
        }
        self.follow();
        Ok(())
    }

    /// Follows the turn of the session beside the list, if one runs.
    fn follow(&mut self) {
        let wanted = self.state.followed();
        let is_same = |id: SessionId| wanted.is_some_and(|(wanted, _)| wanted == id);
        let is_followed = self.turn.is_some() && self.followed.is_some_and(|(id, _)| is_same(id));
        if !is_followed && wanted != self.followed {
            self.turn = None;
            self.joining.abort_all();
            if let (Some((id, _)), Some(client)) = (wanted, self.client.clone()) {
                // Refused if no turn runs.
                let join = async move { (id, client.follow_chat(id).await.ok()) };
                drop(self.joining.spawn(join));
            }
        }
        self.followed = wanted;
    }

    /// Gives an event of the followed turn to the state; `None` at its end.
    fn turned(&mut self, event: Option<FollowEvent>) -> CommandResult {
        let last = |event: &FollowEvent| {
            matches!(event, FollowEvent::Event(ChatEvent::Done { .. } | ChatEvent::Error { .. }))
        };
        let event = event.filter(|event| !last(event));
        if event.is_none() {
            self.turn = None;
        }
        match self.followed {
            Some((id, _)) => self.update(UiInput::Turn(id, event.map(Box::new))),
            None => Ok(()),
        }
    }

    fn fulfil(&mut self, request: UiRequest) -> CommandResult {
        match request {
            UiRequest::Call(call) => self.call(call),
            UiRequest::Chat(session_id) => self.start_chat(session_id)?,
            UiRequest::StartDaemon => {
                self.wants_start = true;
                self.connect();
            }
            UiRequest::Suspend => {
                // The shell that continues this process may have typed keys of its own in between.
                self.keyboard = None;
                self.screen.suspend()?;
                self.keyboard = Some(Keyboard::start()?);
                self.update(UiInput::Resized(size()))?;
            }
            UiRequest::Redraw => self.screen.redraw()?,
            UiRequest::Quit => self.ended = Some(Ok(())),
        }
        Ok(())
    }

    fn call(&mut self, call: UiCall) {
        let limit = self.settings.timeout;
        match self.client.clone() {
            Some(client) => {
                let work = async move {
                    let answer = perform(client, call.clone(), limit).await;
                    UiInput::answered(call, answer)
                };
                drop(self.calls.spawn(work));
            }
            None => {
                let text = "ollmd cannot be reached; nothing was changed".to_owned();
                let problem = CallProblem { text, is_gone: false, is_lost: true };
                drop(self.calls.spawn(async move { UiInput::answered(call, Err(problem)) }));
            }
        }
    }

    fn pressed(&mut self, key: Option<UiKey>) -> CommandResult {
        let mut next = key;
        if next.is_none() {
            self.leave_by(Signal::HUP);
        }
        let mut n_keys = 0;
        while let Some(key) = next.take() {
            self.update(UiInput::Key(key))?;
            n_keys += 1;
            if self.ended.is_none() && n_keys < MAX_KEYS {
                next = self.keyboard.as_mut().and_then(Keyboard::next_waiting);
            }
        }
        Ok(())
    }

    fn signaled(&mut self, signal: Signal) -> CommandResult {
        match signal {
            Signal::WINCH if self.chat.is_none() => self.update(UiInput::Resized(size())),
            Signal::CONT if self.chat.is_none() && !self.waits_for_key => {
                self.screen.take()?;
                self.update(UiInput::Resized(size()))
            }
            Signal::WINCH | Signal::CONT => Ok(()),
            // In a chat, Ctrl-C is the chat's.
            Signal::INT if self.chat.is_some() => Ok(()),
            signal => {
                if let Some(pid) = self.chat.as_ref().and_then(|chat| chat.pid) {
                    kill_process(pid, signal).ok();
                }
                self.leave_by(signal);
                Ok(())
            }
        }
    }

    /// Ends as a process does that a signal ended.
    fn leave_by(&mut self, signal: Signal) {
        let code = u8::try_from(128 + signal.as_raw()).unwrap_or(Exit::Interrupted as u8);
        self.ended = Some(Err(CommandError::CommandExit { code }));
    }

    /// Begins to connect, unless that has begun. A daemon that was stopped is started only if the person wants that.
    fn connect(&mut self) {
        if !self.connecting.is_empty() {
            return;
        }
        self.retry_at = None;
        self.is_starting = std::mem::take(&mut self.wants_start);
        let connector = self.settings.connector.clone();
        let connector = if self.is_starting { connector } else { connector.without_spawn() };
        drop(self.connecting.spawn(async move {
            let silent =
                ClientError::Timeout { method: "daemon.hello".to_owned(), after: CONNECT_LIMIT };
            // The limit of a call is set with each call.
            let work = open(connector.with_timeout(CHANGE_LIMIT));
            tokio::time::timeout(CONNECT_LIMIT, work).await.unwrap_or(Err(silent))
        }));
    }

    fn connected(&mut self, connection: Result<UiConnection, ClientError>) -> CommandResult {
        match connection {
            Ok((client, events)) => {
                self.client = Some(Arc::new(client));
                self.events = Some(events);
                (self.was_connected, self.retry_at) = (true, None);
                self.update(UiInput::Connected)
            }
            Err(error) if !self.was_connected => Err(error.into()),
            Err(error) => {
                self.retry_at = Some(Instant::now() + RETRY_PAUSE);
                if self.is_starting {
                    self.update(UiInput::StartFailed(CommandError::from(error).message()))
                } else {
                    Ok(())
                }
            }
        }
    }

    fn disconnected(&mut self) -> CommandResult {
        self.client = None;
        self.events = None;
        (self.followed, self.turn) = (None, None);
        self.calls.abort_all();
        self.retry_at = Some(Instant::now());
        self.update(UiInput::Disconnected)
    }

    /// Gives the terminal to a chat.
    fn start_chat(&mut self, session_id: Option<SessionId>) -> CommandResult {
        self.keyboard = None;
        self.screen.leave();
        let spawned = own_program::command().and_then(|mut command| {
            command.args(&self.settings.flags).arg("chat");
            if let Some(id) = session_id {
                command.args(["--resume", &id.to_string()]);
            }
            command.stdin(Stdio::inherit()).spawn()
        });
        let (sender, end) = oneshot::channel();
        match spawned {
            Ok(mut child) => {
                let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
                background::spawn("ollmctl-chat", move || drop(sender.send(child.wait())))?;
                self.chat = Some(RunningChat { pid, end });
            }
            Err(error) => {
                drop(sender.send(Err(error)));
                self.chat = Some(RunningChat { pid: None, end });
            }
        }
        Ok(())
    }

    /// Takes the terminal back, at once or after the person has read why the chat failed.
    fn chat_ended(&mut self, end: Option<io::Result<ExitStatus>>) -> CommandResult {
        self.chat = None;
        let mut note = String::new();
        let has_failed = match end {
            Some(Ok(status)) => {
                !status.success() && status.code() != Some(Exit::Interrupted as i32)
            }
            Some(Err(error)) => {
                note = format!("error: cannot start the chat: {error}\n");
                true
            }
            None => true,
        };
        if !has_failed {
            return self.take_terminal();
        }
        let text = format!("{note}\nPress Enter to go back to the sessions.\n");
        drop(io::Write::write_all(&mut io::stderr(), text.as_bytes()));
        self.waits_for_key = true;
        self.keyboard = Some(Keyboard::start()?);
        Ok(())
    }

    fn take_terminal(&mut self) -> CommandResult {
        self.waits_for_key = false;
        self.screen.take()?;
        if self.keyboard.is_none() {
            self.keyboard = Some(Keyboard::start()?);
        }
        self.update(UiInput::Resized(size()))?;
        self.update(UiInput::ChatEnded)
    }

    /// Returns the time of the next frame; `None` if nothing has changed or the terminal is given away.
    fn frame_at(&self) -> Option<Instant> {
        let changed_at = self.changed_at.filter(|_| self.chat.is_none() && !self.waits_for_key)?;
        Some((changed_at + GATHER_TIME).max(self.drawn_at + FRAME_TIME))
    }

    fn draw(&mut self) -> CommandResult {
        self.changed_at = None;
        self.drawn_at = Instant::now();
        let palette = UiPalette { has_color: self.settings.has_color };
        let state = &self.state;
        Ok(self.screen.draw(|frame| draw(state, palette, frame))?)
    }
}

/// Returns the size of the terminal in columns and rows.
pub(super) fn size() -> (u16, u16) {
    let size = ratatui::crossterm::terminal::size().ok();
    size.filter(|(width, height)| *width > 0 && *height > 0).unwrap_or((80, 24))
}

async fn open(connector: Connector) -> Result<UiConnection, ClientError> {
    let client = AsyncClient::connect(connector).await?;
    let events = client.subscribe_events(&EventSubscribeParams::default()).await?;
    Ok((client, events))
}

async fn next_key(keyboard: &mut Option<Keyboard>) -> Option<UiKey> {
    match keyboard {
        Some(keyboard) => keyboard.next().await,
        None => std::future::pending().await,
    }
}

async fn next_event<E: DeserializeOwned>(
    events: &mut Option<EventStream<E>>,
) -> Option<Result<E, ClientError>> {
    match events {
        Some(events) => events.next().await,
        None => std::future::pending().await,
    }
}

async fn chat_end(
    chat: &mut Option<RunningChat>,
) -> Result<io::Result<ExitStatus>, oneshot::error::RecvError> {
    match chat {
        Some(chat) => (&mut chat.end).await,
        None => std::future::pending().await,
    }
}

async fn wait_until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Continues the panic of a call; a call that was given up has none.
fn rethrow(error: JoinError) {
    if let Ok(panic) = error.try_into_panic() {
        std::panic::resume_unwind(panic);
    }
}
