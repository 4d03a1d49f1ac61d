//! The state of the view: all that is on the screen, as a value that inputs change.
//!
//! [`UiState::update`] takes an input and returns what is to be done; it waits for nothing, and reads no clock, terminal
//! or daemon. `actions` has what keys do, `answers` what answers of the daemon change, `restore` how a session returns to
//! a snapshot. **Invariant**: what is on the screen stays until its replacement has arrived, also while the daemon cannot
//! be reached.

mod actions;
mod answers;
pub(super) mod events;
pub(super) mod line_edit;
pub(super) mod live_answer;
pub(super) mod preview;
mod restore;
pub(super) mod search;
#[cfg(test)]
mod tests;
pub(super) mod tree;
pub(super) mod window;

use std::collections::BTreeSet;

use ollm_protocol::content::{Session, SessionStatus};
use ollm_protocol::methods::chat::FollowEvent;
use ollm_protocol::methods::session::{SessionListParams, SessionSearchParams};
use ollm_protocol::{Event, EventKind, SessionId, SnapshotId, Timestamp};

use self::events::EventLog;
use self::line_edit::LineEdit;
use self::live_answer::LiveAnswer;
use self::preview::{PreviewTarget, RecordPreview};
use self::search::{FoundItem, MAX_TITLES, PAGE_HITS, SearchBox, SearchRequest};
use self::tree::TreePane;
use self::window::SessionWindow;
use super::bindings::ViewKind;
use super::calls::{CallProblem, UiAnswer, UiCall};
use super::keys::UiKey;
use super::layout::UiLayout;
use super::text::{UiTone, shown_line};
use crate::commands::undo::StepDirection;
use crate::render::RenderOptions;
use crate::render::session_table::{short_id, title};

/// Sessions that changed and are read one by one; if more changed, the list is read again.
const MAX_CHANGED: usize = 16;

/// Something that happened.
#[derive(Debug)]
pub(super) enum UiInput {
    Key(UiKey),
    /// The size of the terminal in columns and rows.
    Resized((u16, u16)),
    /// Time went by.
    Tick(Timestamp),
    /// The daemon can be called.
    Connected,
    /// The connection was lost.
    Disconnected,
    /// The daemon could not be started, for the reason in the text.
    StartFailed(String),
    /// An answer arrived.
    Answered(Box<(UiCall, Result<UiAnswer, CallProblem>)>),
    Event(Box<Event>),
    /// An event of the turn that the view follows; `None` if there is no turn any more.
    Turn(SessionId, Option<Box<FollowEvent>>),
    /// The chat ended, and the terminal is ours again.
    ChatEnded,
}

impl UiInput {
    /// Returns the input for the answer to a call.
    pub(super) fn answered(call: UiCall, answer: Result<UiAnswer, CallProblem>) -> Self {
        Self::Answered(Box::new((call, answer)))
    }
}

/// Something to do.
#[derive(Debug)]
pub(super) enum UiRequest {
    Call(UiCall),
    /// Run a chat on the terminal: with a session, or a new one.
    Chat(Option<SessionId>),
    /// Start the daemon.
    StartDaemon,
    Suspend,
    Redraw,
    Quit,
}

/// The state of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DaemonLink {
    Connecting,
    Online,
    Lost,
}

/// The view on the screen.
#[derive(Debug)]
pub(super) enum UiView {
    Sessions,
    Tree(Box<TreePane>),
    Events,
}

/// A question to the person, whose answer the next keys are.
#[derive(Debug)]
pub(super) enum UiPrompt {
    /// The new title of a session.
    Rename { session_id: SessionId, edit: LineEdit },
    /// A call that is made after a yes, and the same with files, which is made after an `f`. `verb` names it.
    Confirm {
        lines: Vec<(UiTone, String)>,
        verb: String,
        call: Box<UiCall>,
        with_files: Option<Box<UiCall>>,
    },
}

/// A remark at the bottom of the screen, until the next key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UiRemark {
    pub(super) tone: UiTone,
    pub(super) text: String,
}

/// The project of the directory in which the view was started.
#[derive(Clone, Debug)]
pub(super) struct OwnProject {
    pub(super) path: String,
    pub(super) name: String,
}

/// All that is on the screen.
#[derive(Debug)]
pub(super) struct UiState {
    pub(super) size: (u16, u16),
    /// The time now, and how times are shown.
    pub(super) times: RenderOptions,
    pub(super) link: DaemonLink,
    pub(super) project: Option<OwnProject>,
    /// Set if only sessions of the project are listed.
    pub(super) is_of_project: bool,
    /// Set if archived sessions are listed, and not the others.
    pub(super) is_archive: bool,
    pub(super) list: SessionWindow,
    pub(super) search: Option<SearchBox>,
    pub(super) view: UiView,
    /// Set if the tree was opened from the events, to which it goes back.
    is_tree_of_events: bool,
    pub(super) records: RecordPreview,
    /// The answer that is being written in the session beside the list.
    answer: Option<LiveAnswer>,
    pub(super) events: EventLog,
    pub(super) prompt: Option<UiPrompt>,
    /// The step whose preview was requested by the last key: a later answer may not take the keys of something else.
    asked_step: Option<(SessionId, StepDirection)>,
    /// The same for the restore of a snapshot.
    asked_restore: Option<SnapshotId>,
    /// The first line of the help, if it is on the screen.
    pub(super) help: Option<usize>,
    pub(super) remark: Option<UiRemark>,
    /// Set if the daemon's list may lack sessions.
    pub(super) is_behind: bool,
    /// The number of the filters; an answer for other ones is dropped.
    ticket: u64,
    /// Set if the person chose the scope, so that an empty project does not change it.
    is_scope_chosen: bool,
    /// The sessions that changed since they were read.
    changed: BTreeSet<SessionId>,
    /// Set if a changed session is being read.
    is_reading_one: bool,
    /// The session whose records were read last.
    read: Option<Session>,
    /// The changes whose answers are awaited.
    n_changes: usize,
    /// The session to select as soon as it is in the list: one that was just made.
    made: Option<SessionId>,
    /// Set once a connection was lost.
    was_lost: bool,
}

impl UiState {
    pub(super) fn new(size: (u16, u16), times: RenderOptions, project: Option<OwnProject>) -> Self {
        Self {
            size,
            times,
            link: DaemonLink::Connecting,
            is_of_project: project.is_some(),
            project,
            is_archive: false,
            list: SessionWindow::default(),
            search: None,
            view: UiView::Sessions,
            is_tree_of_events: false,
            records: RecordPreview::default(),
            answer: None,
            events: EventLog::default(),
            prompt: None,
            asked_step: None,
            asked_restore: None,
            help: None,
            remark: None,
            is_behind: false,
            ticket: 0,
            is_scope_chosen: false,
            changed: BTreeSet::new(),
            is_reading_one: false,
            read: None,
            n_changes: 0,
            made: None,
            was_lost: false,
        }
    }

    /// Takes an input and returns what is to be done.
    pub(super) fn update(&mut self, input: UiInput) -> Vec<UiRequest> {
        let mut requests = Vec::new();
        match input {
            UiInput::Key(key) => requests = self.press(key),
            UiInput::Resized(size) => self.size = size,
            UiInput::Tick(now) => self.tick(now),
            UiInput::Connected => self.connected(),
            UiInput::Disconnected => self.disconnected(),
            UiInput::StartFailed(text) => self.say(UiTone::Bad, shown_line(&text)),
            UiInput::Answered(answered) => match *answered {
                (call, Ok(answer)) => self.answered(&call, answer),
                (call, Err(problem)) => self.failed(&call, problem),
            },
            UiInput::Event(event) => self.happened(&event),
            UiInput::Turn(id, event) => self.turned(id, event.map(|event| *event)),
            UiInput::ChatEnded => self.read_again(),
        }
        self.fit();
        for request in &requests {
            self.n_changes +=
                usize::from(matches!(request, UiRequest::Call(call) if call.is_change()));
        }
        requests.extend(self.missing().into_iter().map(UiRequest::Call));
        requests
    }

    /// Returns whether something on the screen is to be read again within a second.
    pub(super) fn is_moving(&self) -> bool {
        let is_stale = matches!(&self.view, UiView::Tree(pane) if pane.is_stale());
        self.link == DaemonLink::Online && (is_stale || self.is_behind)
    }

    /// Returns the session whose turn is to be followed, and whether one is known to run.
    pub(super) fn followed(&self) -> Option<(SessionId, bool)> {
        let is_seen = self.link == DaemonLink::Online && !self.layout().records.is_empty();
        let target = self.target().filter(|target| is_seen && target.seq.is_none())?;
        Some((target.session_id, self.events.is_live(target.session_id)))
    }

    /// Returns whether keys edit the text of a search.
    pub(super) fn is_search_edited(&self) -> bool {
        let is_edited = self.search.as_ref().is_some_and(|search| search.is_edited);
        is_edited && matches!(self.view, UiView::Sessions)
    }

    /// Returns the kind of the view, by which keys mean different things.
    pub(super) fn view_kind(&self) -> ViewKind {
        match self.view {
            UiView::Sessions => ViewKind::Sessions,
            UiView::Tree(_) => ViewKind::Tree,
            UiView::Events => ViewKind::Events,
        }
    }

    /// Returns the places of the parts of the screen.
    pub(super) fn layout(&self) -> UiLayout {
        let top_rows = match (&self.view, &self.search) {
            (UiView::Tree(_), _) => 2,
            (UiView::Sessions, Some(_)) => 1,
            _ => 0,
        };
        UiLayout::new(self.size, top_rows)
    }

    /// Returns the records to show beside the list.
    pub(super) fn target(&self) -> Option<PreviewTarget> {
        match &self.view {
            UiView::Sessions => {
                let (session_id, seq) = match self.search.as_ref().map(SearchBox::selected_item) {
                    None => (self.list.selected_session()?.session_id, None),
                    Some(None) => return None,
                    Some(Some(FoundItem::Title(session))) => (session.session_id, None),
                    Some(Some(FoundItem::Hit(hit))) => (hit.session_id, Some(hit.seq)),
                };
                Some(PreviewTarget { session_id, seq })
            }
            UiView::Tree(pane) => {
                Some(PreviewTarget { session_id: pane.id(), seq: Some(pane.selected_seq()?) })
            }
            UiView::Events => {
                let event = self.events.selected_event()?;
                if event.kind == EventKind::SessionDeleted {
                    return None;
                }
                let session_id = event.session_id?;
                // An answer that is being written is at the end of its session.
                let seq = event.seq.filter(|_| !self.events.is_live(session_id));
                Some(PreviewTarget { session_id, seq })
            }
        }
    }

    /// Returns what is known of a session.
    pub(super) fn known_session(&self, id: SessionId) -> Option<&Session> {
        let found = self.search.iter().flat_map(SearchBox::items).filter_map(|item| match item {
            FoundItem::Title(session) => Some(session),
            FoundItem::Hit(_) => None,
        });
        let open = match &self.view {
            UiView::Tree(pane) => Some(&pane.session),
            _ => None,
        };
        let mut known = self.list.rows().chain(found).chain(open).chain(&self.read);
        known.find(|session| session.session_id == id)
    }

    /// Returns the title of a session; an id stands for an unknown one.
    pub(super) fn title_of(&self, id: SessionId) -> String {
        if let Some(session) = self.known_session(id) {
            return title(&session.title);
        }
        let hits = self.search.iter().flat_map(SearchBox::items).find_map(|item| match item {
            FoundItem::Hit(hit) if hit.session_id == id => Some(title(&hit.title)),
            _ => None,
        });
        hits.unwrap_or_else(|| short_id(None, id))
    }

    /// Says something at the bottom of the screen.
    fn say(&mut self, tone: UiTone, text: impl Into<String>) {
        self.remark = Some(UiRemark { tone, text: text.into() });
    }

    /// Returns the filters of the list.
    fn filters(&self) -> SessionListParams {
        let project = self.project.as_ref().filter(|_| self.is_of_project);
        SessionListParams {
            project_path: project.map(|project| project.path.clone()),
            status: self.is_archive.then_some(SessionStatus::Archived),
            ..SessionListParams::default()
        }
    }

    /// Lists sessions by other filters.
    fn change_filters(&mut self) {
        self.ticket += 1;
        self.list = SessionWindow::default();
        self.changed.clear();
        self.is_reading_one = false;
        if let Some(search) = &mut self.search {
            search.refresh();
        }
    }

    fn tick(&mut self, now: Timestamp) {
        self.times.now = now;
        if self.is_behind {
            self.list.refresh();
        }
        if let UiView::Tree(pane) = &mut self.view {
            pane.read_stale();
        }
    }

    fn connected(&mut self) {
        self.link = DaemonLink::Online;
        if self.was_lost {
            self.say(UiTone::Live, "connected to ollmd again: everything is read anew");
        }
        self.read_again();
    }

    fn disconnected(&mut self) {
        if self.n_changes > 0 {
            let text = "ollmd was stopped; it is unknown whether the last change was made";
            self.say(UiTone::Bad, text);
        }
        self.link = DaemonLink::Lost;
        self.was_lost = true;
        self.n_changes = 0;
        self.events.forget_live();
        self.list.stop_waiting();
        self.is_reading_one = false;
        self.records.stop_waiting();
        if let Some(search) = &mut self.search {
            search.refresh();
        }
        if let UiView::Tree(pane) = &mut self.view {
            pane.stop_waiting();
        }
    }

    /// Reads everything on the screen again.
    fn read_again(&mut self) {
        self.changed.clear();
        self.list.refresh();
        self.records.refresh();
        if let Some(search) = &mut self.search {
            search.refresh();
        }
        self.read_tree();
    }

    /// Reads the tree on the screen again, at once.
    fn read_tree(&mut self) {
        if let UiView::Tree(pane) = &mut self.view {
            pane.refresh();
            pane.read_stale();
        }
    }

    fn happened(&mut self, event: &Event) {
        self.events.add(event);
        match event.kind {
            // Nothing else on the screen changes with these.
            EventKind::SessionSaved | EventKind::FilesProgress | EventKind::CompressionProgress => {
                return;
            }
            EventKind::Lagged | EventKind::Resync => {
                self.events.forget_live();
                self.read_again();
                return;
            }
            _ => {}
        }
        let Some(id) = event.session_id else { return };
        if self.target().is_some_and(|target| target.session_id == id) {
            self.records.refresh();
        }
        if let UiView::Tree(pane) = &mut self.view
            && pane.id() == id
        {
            pane.refresh();
        }
        if event.kind == EventKind::SessionDeleted {
            self.forget(id);
        } else {
            self.changed.insert(id);
        }
        if self.changed.len() > MAX_CHANGED {
            self.changed.clear();
            self.list.refresh();
        }
    }

    /// Shows an event of the turn in the session beside the list.
    fn turned(&mut self, id: SessionId, event: Option<FollowEvent>) {
        let Some(event) = event else {
            self.answer.take_if(|answer| answer.session_id == id);
            self.events.unset_live(id);
            return;
        };
        if matches!(event, FollowEvent::Running { .. }) {
            self.events.set_live(id);
        }
        let answer = self.answer.take().filter(|answer| answer.session_id == id);
        let answer = self.answer.insert(answer.unwrap_or_else(|| LiveAnswer::new(id)));
        if answer.add(event) {
            self.records.refresh();
        }
    }

    /// Removes a session that was deleted.
    fn forget(&mut self, id: SessionId) {
        self.changed.remove(&id);
        self.list.remove(id);
        if let Some(search) = &mut self.search {
            search.remove(id);
        }
        if matches!(&self.view, UiView::Tree(pane) if pane.id() == id) {
            self.view = UiView::Sessions;
            self.say(UiTone::Bad, "the session was deleted");
        }
    }

    /// Fits lists and records to the places on the screen.
    fn fit(&mut self) {
        let layout = self.layout();
        let height = usize::from(layout.list.height);
        self.list.scroll(height);
        self.events.scroll(height);
        if let Some(search) = &mut self.search {
            search.scroll(height);
        }
        if let UiView::Tree(pane) = &mut self.view {
            pane.scroll(height);
        }
        let (width, rows) = (layout.records.width, layout.records.height);
        self.records.resize((usize::from(width), usize::from(rows)));
        let followed = self.followed().map(|(id, _)| id);
        self.answer.take_if(|answer| followed != Some(answer.session_id));
        self.records.show_live(self.answer.as_ref());
    }

    /// Returns the calls for everything that is missing on the screen.
    fn missing(&mut self) -> Vec<UiCall> {
        if self.link != DaemonLink::Online {
            return Vec::new();
        }
        let height = usize::from(self.size.1);
        let mut calls = Vec::new();
        let filters = self.filters();
        let ticket = self.ticket;
        if let Some(request) = self.list.next_request(height) {
            let (cursor, limit) = (request.cursor.clone(), Some(request.limit));
            let params = SessionListParams { cursor, limit, ..filters.clone() };
            calls.push(UiCall::List { ticket, request, params });
        }
        if !self.is_reading_one
            && let Some(session_id) = self.changed.pop_first()
        {
            self.is_reading_one = true;
            let (id_prefix, limit) = (Some(session_id.to_string()), Some(1));
            let params = SessionListParams { id_prefix, limit, ..filters.clone() };
            calls.push(UiCall::One { ticket, session_id, params });
        }
        if let Some(search) = &mut self.search {
            let requests = search.next_requests(height);
            calls.extend(requests.into_iter().map(|request| search_call(request, &filters)));
        }
        let has_room = !self.layout().records.is_empty();
        let target = self.target().filter(|_| has_room);
        calls.extend(self.records.next_request(target).map(UiCall::Records));
        if let UiView::Tree(pane) = &mut self.view {
            calls.extend(pane.next_calls());
        }
        calls
    }
}

fn search_call(request: SearchRequest, filters: &SessionListParams) -> UiCall {
    match &request {
        SearchRequest::Titles { text } => {
            let (title, limit) = (Some(text.clone()), Some(MAX_TITLES));
            let params = SessionListParams { title, limit, ..filters.clone() };
            UiCall::Titles { request, params }
        }
        SearchRequest::Hits { query, cursor } => {
            let params = SessionSearchParams {
                query: query.clone(),
                session_id: None,
                project_path: filters.project_path.clone(),
                role: None,
                since: None,
                until: None,
                sort: ollm_protocol::content::SearchSort::Newest,
                limit: Some(PAGE_HITS),
                cursor: cursor.clone(),
            };
            UiCall::Hits { request, params }
        }
    }
}
