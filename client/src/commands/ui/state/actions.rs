//! The changes of the state by keys, which answer a question, edit the text of a search, or start an action.

use ollm_protocol::SessionId;
use ollm_protocol::content::SessionStatus;

use super::super::bindings::{BINDINGS, UiAction, ViewKind, action_of};
use super::super::calls::UiCall;
use super::super::keys::UiKey;
use super::super::text::UiTone;
use super::line_edit::LineEdit;
use super::search::SearchBox;
use super::tree::TreePane;
use super::{DaemonLink, UiPrompt, UiRequest, UiState, UiView};
use crate::commands::undo::StepDirection;
use crate::render::session_table::title;
use crate::render::units::counted;

/// The rows by which the records are scrolled.
const SCROLL_ROWS: isize = 3;
/// More rows than any list has.
const MANY_ROWS: isize = 1 << 40;

impl UiState {
    /// Takes a key.
    pub(super) fn press(&mut self, key: UiKey) -> Vec<UiRequest> {
        self.remark = None;
        (self.asked_step, self.asked_restore) = (None, None);
        let is_edited = self.is_search_edited();
        let is_typed = is_edited || matches!(self.prompt, Some(UiPrompt::Rename { .. }));
        match key {
            // Esc and a letter arrive together over a slow connection.
            UiKey::Alt(char) if !is_typed => {
                let mut requests = self.press(UiKey::Esc);
                requests.extend(self.press(UiKey::Char(char)));
                return requests;
            }
            UiKey::Ctrl('z') => return vec![UiRequest::Suspend],
            UiKey::Ctrl('l') => {
                self.read_again();
                return vec![UiRequest::Redraw];
            }
            _ => {}
        }
        if let Some(prompt) = self.prompt.take() {
            return self.answer_prompt(prompt, &key);
        }
        if let Some(top) = self.help {
            self.help = scroll_help(top, &key);
            return Vec::new();
        }
        if is_edited {
            return self.edit_search(&key);
        }
        action_of(self.view_kind(), &key).map_or_else(Vec::new, |action| self.act(action))
    }

    fn answer_prompt(&mut self, prompt: UiPrompt, key: &UiKey) -> Vec<UiRequest> {
        match (prompt, key) {
            (_, UiKey::Esc | UiKey::Ctrl('c')) => self.say(UiTone::Faint, "nothing was changed"),
            (UiPrompt::Rename { session_id, edit }, UiKey::Enter) => {
                let title = edit.text().trim().to_owned();
                return vec![UiRequest::Call(UiCall::Rename { session_id, title })];
            }
            (UiPrompt::Rename { session_id, mut edit }, key) => {
                edit.edit(key);
                self.prompt = Some(UiPrompt::Rename { session_id, edit });
            }
            (UiPrompt::Confirm { call, verb, .. }, UiKey::Char('y' | 'Y'))
            | (UiPrompt::Confirm { with_files: Some(call), verb, .. }, UiKey::Char('f')) => {
                self.say(UiTone::Faint, format!("{verb}…"));
                return vec![UiRequest::Call(*call)];
            }
            (UiPrompt::Confirm { .. }, _) => self.say(UiTone::Faint, "nothing was changed"),
        }
        Vec::new()
    }

    fn edit_search(&mut self, key: &UiKey) -> Vec<UiRequest> {
        let Some(search) = &mut self.search else { return Vec::new() };
        match key {
            UiKey::Esc => self.search = None,
            UiKey::Tab => search.is_edited = false,
            UiKey::Up | UiKey::Ctrl('p') => search.move_by(-1),
            UiKey::Down | UiKey::Ctrl('n') => search.move_by(1),
            UiKey::PageUp | UiKey::PageDown => {
                let is_down = *key == UiKey::PageDown;
                return self.act(if is_down { UiAction::PageDown } else { UiAction::PageUp });
            }
            UiKey::Enter => return self.act(UiAction::Chat),
            UiKey::Ctrl('c') => return vec![UiRequest::Quit],
            key => {
                if search.input.edit(key) {
                    search.show_known(self.list.rows());
                }
            }
        }
        Vec::new()
    }

    fn act(&mut self, action: UiAction) -> Vec<UiRequest> {
        match action {
            UiAction::Quit => return vec![UiRequest::Quit],
            UiAction::Suspend => return vec![UiRequest::Suspend],
            UiAction::Redraw => return vec![UiRequest::Redraw],
            UiAction::NewChat => return vec![UiRequest::Chat(None)],
            UiAction::StartDaemon if self.link == DaemonLink::Lost => {
                self.say(UiTone::Faint, "starting ollmd…");
                return vec![UiRequest::StartDaemon];
            }
            UiAction::StartDaemon => {}
            UiAction::Help => self.help = Some(0),
            UiAction::Back => self.go_back(),
            UiAction::Search => self.begin_search(),
            UiAction::Events => self.view = UiView::Events,
            UiAction::Scope => self.switch_scope(),
            UiAction::Archived => {
                self.is_archive = !self.is_archive;
                self.change_filters();
            }
            UiAction::Up => self.move_by(-1),
            UiAction::Down => self.move_by(1),
            UiAction::PageUp => self.move_by(-self.page_rows()),
            UiAction::PageDown => self.move_by(self.page_rows()),
            UiAction::First => self.move_by(-MANY_ROWS),
            UiAction::Last => self.move_by(MANY_ROWS),
            UiAction::NextBranch => self.move_to_branch(true),
            UiAction::PreviousBranch => self.move_to_branch(false),
            UiAction::RecordsUp => self.records.move_by(-SCROLL_ROWS),
            UiAction::RecordsDown => self.records.move_by(SCROLL_ROWS),
            _ => return self.act_on_session(action),
        }
        Vec::new()
    }

    /// Starts an action that is about the selected session.
    fn act_on_session(&mut self, action: UiAction) -> Vec<UiRequest> {
        let Some(target) = self.target().map(|target| target.session_id).or_else(|| self.tree_id())
        else {
            self.say(UiTone::Faint, "no session is selected");
            return Vec::new();
        };
        if action == UiAction::Chat {
            return vec![UiRequest::Chat(Some(target))];
        }
        if self.link != DaemonLink::Online {
            self.say(UiTone::Bad, "ollmd cannot be reached; R starts it");
            return Vec::new();
        }
        let call = match action {
            UiAction::Tree => {
                self.open_tree(target);
                None
            }
            UiAction::Rename => {
                let title = self.known_session(target).map(|session| session.title.clone());
                let edit = LineEdit::new(&title.unwrap_or_default());
                self.prompt = Some(UiPrompt::Rename { session_id: target, edit });
                None
            }
            UiAction::Archive => {
                let status = self.known_session(target).map(|session| session.status);
                let archive = status != Some(SessionStatus::Archived);
                Some(UiCall::Archive { session_id: target, archive })
            }
            UiAction::Delete => {
                self.ask_delete(target);
                None
            }
            UiAction::Fork => {
                let at = match &self.view {
                    UiView::Tree(pane) => pane.selected_seq(),
                    _ => None,
                };
                Some(UiCall::Fork { session_id: target, at })
            }
            UiAction::Branch => {
                self.ask_branch();
                None
            }
            UiAction::Snapshot => Some(UiCall::Snapshot(target)),
            UiAction::Restore => self.preview_restore(),
            UiAction::Undo => Some(self.preview_step(target, StepDirection::Back)),
            UiAction::Redo => Some(self.preview_step(target, StepDirection::Forward)),
            _ => None,
        };
        call.map(UiRequest::Call).into_iter().collect()
    }

    /// Returns the call that asks what a step would do.
    fn preview_step(&mut self, session_id: SessionId, step: StepDirection) -> UiCall {
        self.asked_step = Some((session_id, step));
        UiCall::PreviewStep { session_id, step }
    }

    fn tree_id(&self) -> Option<SessionId> {
        match &self.view {
            UiView::Tree(pane) => Some(pane.id()),
            _ => None,
        }
    }

    fn open_tree(&mut self, id: SessionId) {
        let seq = self.target().and_then(|target| target.seq);
        match self.known_session(id).cloned() {
            Some(session) => {
                self.is_tree_of_events = matches!(self.view, UiView::Events);
                self.view = UiView::Tree(Box::new(TreePane::new(session, seq)));
            }
            // Its records, with which the session comes, are still being read.
            None => self.say(UiTone::Faint, "the session is being read; try again"),
        }
    }

    fn ask_delete(&mut self, id: SessionId) {
        let name = self.title_of(id);
        let messages = self.known_session(id).map(|session| session.message_count);
        let messages = messages.map(|number| format!(" with {}", counted(number, "message")));
        let lines = vec![
            (UiTone::Bad, format!("delete “{name}”{}", messages.unwrap_or_default())),
            (UiTone::Plain, "This removes all its files. It cannot be undone.".to_owned()),
        ];
        let (verb, call) = ("delete".to_owned(), Box::new(UiCall::Delete(id)));
        self.prompt = Some(UiPrompt::Confirm { lines, verb, call, with_files: None });
    }

    fn ask_branch(&mut self) {
        let UiView::Tree(pane) = &self.view else { return };
        let Some(line) = pane.lines().nth(pane.selected()) else { return };
        if line.is_leaf {
            self.say(UiTone::Faint, "the conversation continues here already");
            return;
        }
        let (to, session_id) = (line.node.seq, pane.id());
        let lines = vec![
            (
                UiTone::Strong,
                format!("continue the conversation after #{to}: {}", title(&line.node.text)),
            ),
            (
                UiTone::Plain,
                "What follows it stays, on a branch of its own; undo goes back.".to_owned(),
            ),
        ];
        let call = Box::new(UiCall::Branch { session_id, to });
        let verb = "continue".to_owned();
        self.prompt = Some(UiPrompt::Confirm { lines, verb, call, with_files: None });
    }

    fn go_back(&mut self) {
        match (&self.view, &self.search) {
            (UiView::Sessions, Some(_)) => self.search = None,
            (UiView::Sessions, None) => {}
            (UiView::Tree(_), _) if self.is_tree_of_events => self.view = UiView::Events,
            _ => self.view = UiView::Sessions,
        }
    }

    fn begin_search(&mut self) {
        self.search.get_or_insert_with(SearchBox::default).is_edited = true;
    }

    fn switch_scope(&mut self) {
        if self.project.is_none() {
            self.say(UiTone::Faint, "this directory cannot be a project");
            return;
        }
        self.is_of_project = !self.is_of_project;
        self.is_scope_chosen = true;
        self.change_filters();
    }

    fn page_rows(&self) -> isize {
        isize::try_from(self.layout().list.height.saturating_sub(1).max(1)).unwrap_or(1)
    }

    fn move_to_branch(&mut self, is_next: bool) {
        if let UiView::Tree(pane) = &mut self.view
            && !pane.move_to_branch(is_next)
        {
            self.say(UiTone::Faint, "there is no other branch");
        }
    }

    fn move_by(&mut self, rows: isize) {
        match (&mut self.view, &mut self.search) {
            (UiView::Tree(pane), _) => pane.move_by(rows),
            (UiView::Events, _) => self.events.move_by(rows),
            (UiView::Sessions, Some(search)) => search.move_by(rows),
            (UiView::Sessions, None) => self.list.move_by(rows),
        }
    }
}

/// Returns the first line of the help after a key; `None` if the key closes it.
fn scroll_help(top: usize, key: &UiKey) -> Option<usize> {
    match action_of(ViewKind::Events, key) {
        Some(UiAction::Up) => Some(top.saturating_sub(1)),
        Some(UiAction::Down) => Some((top + 1).min(BINDINGS.len())),
        Some(UiAction::PageUp) => Some(top.saturating_sub(10)),
        Some(UiAction::PageDown) => Some((top + 10).min(BINDINGS.len())),
        _ => None,
    }
}
