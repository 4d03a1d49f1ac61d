//! The changes of the state by answers of the daemon.

use ollm_protocol::SessionId;
use ollm_protocol::content::{FilePlan, Operation, Session};
use ollm_protocol::methods::session::SessionListResult;
use ollm_protocol::methods::session::branches::SessionUndoResult;

use super::super::calls::{CallProblem, UiAnswer, UiCall};
use super::super::text::{UiTone, shown_line};
use super::window::PageRequest;
use super::{UiPrompt, UiState, UiView};
use crate::commands::sessions::branches::moved_records;
use crate::commands::undo::StepDirection;
use crate::render::file_plan::{names_to_put_back, unfinished_call};
use crate::render::session_table::title;
use crate::render::units::counted;

impl UiState {
    /// Takes the answer to a call.
    pub(super) fn answered(&mut self, call: &UiCall, answer: UiAnswer) {
        self.n_changes = self.n_changes.saturating_sub(usize::from(call.is_change()));
        match (call, answer) {
            (UiCall::List { ticket, request, .. }, UiAnswer::List(page)) => {
                self.receive_page(*ticket, request, page);
            }
            (UiCall::One { ticket, session_id, .. }, UiAnswer::List(page)) => {
                if *ticket == self.ticket {
                    self.is_reading_one = false;
                    self.receive_one(*session_id, page.data.into_iter().next());
                }
            }
            (UiCall::Titles { request, .. }, UiAnswer::List(page)) => {
                if let Some(search) = &mut self.search {
                    search.receive_titles(request, Some(page));
                }
            }
            (UiCall::Hits { request, .. }, UiAnswer::Hits(page)) => {
                if let Some(search) = &mut self.search {
                    search.receive_hits(request, Ok(page));
                }
            }
            (UiCall::Records(target), UiAnswer::Records(page)) => {
                let wanted = self.target();
                self.read = Some(page.session);
                self.records.receive(*target, wanted, Ok(page.records), &self.times);
            }
            (UiCall::PreviewStep { session_id, step }, UiAnswer::Step(result)) => {
                self.receive_preview(*session_id, *step, &result);
            }
            (UiCall::Step { step, .. }, UiAnswer::Step(result)) => {
                let what = result.operations.first().map(operation_text).unwrap_or_default();
                let files = result.files.as_ref().map_or_else(String::new, |plan| {
                    format!(" · {} put back", counted(plan.counts.put_back, "file"))
                });
                self.say(UiTone::Plain, format!("{}: {what}{files}", step.done()));
                self.read_tree();
            }
            (call, answer) => self.changed_by(call, answer),
        }
    }

    /// Takes the answer to a call that changed something, or to one of a tree.
    fn changed_by(&mut self, call: &UiCall, answer: UiAnswer) {
        match (call, answer) {
            (UiCall::Rename { .. }, UiAnswer::Session(session)) => {
                self.say(UiTone::Plain, format!("renamed: {}", title(&session.title)));
                self.put(*session);
            }
            (UiCall::Archive { archive, .. }, UiAnswer::Session(session)) => {
                let done = if *archive { "archived" } else { "back from the archive" };
                self.say(UiTone::Plain, format!("{done}: {}", title(&session.title)));
                self.changed.insert(session.session_id);
            }
            (UiCall::Fork { .. }, UiAnswer::Session(session)) => {
                self.say(UiTone::Plain, format!("forked: {}", title(&session.title)));
                self.made = Some(session.session_id);
                self.changed.insert(session.session_id);
                // The keys that are typed now are meant for what is on the screen.
                if !self.is_search_edited() && self.prompt.is_none() {
                    (self.view, self.search) = (UiView::Sessions, None);
                }
            }
            (UiCall::Delete(id), UiAnswer::Done) => {
                self.forget(*id);
                self.say(UiTone::Plain, "deleted");
            }
            (UiCall::Branch { to, .. }, UiAnswer::Done) => {
                let text = format!("the conversation continues after #{to}; undo takes it back");
                self.say(UiTone::Plain, text);
                self.read_tree();
            }
            (UiCall::PreviewRestore { .. } | UiCall::Restore { .. }, UiAnswer::Restore(result)) => {
                self.receive_restore(call, *result);
            }
            (UiCall::Snapshot(_), UiAnswer::Done) => {
                self.say(UiTone::Plain, "the snapshot is taken");
                self.read_tree();
            }
            (call, answer) => {
                if let UiView::Tree(pane) = &mut self.view {
                    pane.receive(call, answer);
                }
            }
        }
    }

    /// Takes the problem of a call. While the connection is lost, the calls are made again later.
    pub(super) fn failed(&mut self, call: &UiCall, problem: CallProblem) {
        self.n_changes = self.n_changes.saturating_sub(usize::from(call.is_change()));
        if problem.is_lost && !call.is_change() {
            return;
        }
        match call {
            UiCall::List { ticket, .. } => {
                if *ticket == self.ticket {
                    self.list.hold();
                    self.is_behind = true;
                    self.say(UiTone::Bad, problem.text);
                }
            }
            UiCall::One { ticket, .. } => self.is_reading_one &= *ticket != self.ticket,
            UiCall::Titles { request, .. } => {
                if let Some(search) = &mut self.search {
                    search.receive_titles(request, None);
                }
            }
            UiCall::Hits { request, .. } => {
                if let Some(search) = &mut self.search {
                    search.receive_hits(request, Err(problem.text));
                }
            }
            UiCall::Records(target) => {
                let wanted = self.target();
                self.records.receive(*target, wanted, Err(problem.text), &self.times);
                if problem.is_gone {
                    self.forget(target.session_id);
                }
            }
            UiCall::PreviewStep { step, .. } => {
                self.say(UiTone::Bad, format!("cannot {}: {}", step.verb(), problem.text));
            }
            UiCall::PreviewRestore { .. } => {
                self.say(UiTone::Bad, format!("cannot restore: {}", problem.text));
            }
            UiCall::Tree { .. } => {
                if let UiView::Tree(pane) = &mut self.view {
                    pane.fail(call);
                }
                self.say(UiTone::Bad, problem.text);
            }
            UiCall::Status(_)
            | UiCall::History(_)
            | UiCall::Snapshots(_)
            | UiCall::Checkpoints(_) => {}
            _ => self.say(UiTone::Bad, problem.text),
        }
    }

    fn receive_page(&mut self, ticket: u64, request: &PageRequest, page: SessionListResult) {
        if ticket != self.ticket {
            return;
        }
        let is_behind = page.behind;
        if !self.list.receive(request, page) {
            return;
        }
        self.is_behind = is_behind;
        let is_empty = self.list.len() == 0 && !is_behind;
        if is_empty && self.is_of_project && !self.is_scope_chosen && !self.is_archive {
            self.is_of_project = false;
            self.change_filters();
        }
        self.select_made();
    }

    /// Takes what the list says of one session; `None` if the filters do not admit it.
    fn receive_one(&mut self, id: SessionId, session: Option<Session>) {
        match session {
            Some(session) => self.put(session),
            None => self.list.remove(id),
        }
        self.select_made();
    }

    /// Selects the session that was just made, once it is in the list.
    fn select_made(&mut self) {
        let Some(id) = self.made else { return };
        if self.list.rows().any(|session| session.session_id == id) {
            self.list.select(id);
            self.made = None;
        }
    }

    /// Puts what is known of a session now on the screen.
    fn put(&mut self, session: Session) {
        if let Some(search) = &mut self.search {
            search.put(&session);
        }
        if let UiView::Tree(pane) = &mut self.view
            && pane.id() == session.session_id
        {
            pane.session.clone_from(&session);
        }
        self.list.put(session);
    }

    /// Takes what a step would do, and asks whether to do it, unless a key was pressed since the request: that key was
    /// meant for something else, and so may be the next one.
    fn receive_preview(
        &mut self,
        session_id: SessionId,
        step: StepDirection,
        result: &SessionUndoResult,
    ) {
        let is_asked = self.asked_step == Some((session_id, step)) && self.prompt.is_none();
        match result.operations.first() {
            Some(operation) if is_asked => self.ask_step(session_id, step, operation, result),
            Some(_) => {
                let key = if step == StepDirection::Back { 'u' } else { 'U' };
                self.say(UiTone::Plain, format!("press {key} again to {}", step.verb()));
            }
            None => self.say(UiTone::Bad, format!("there is nothing to {}", step.verb())),
        }
    }

    /// Shows what a step would do, and asks whether to do it.
    fn ask_step(
        &mut self,
        session_id: SessionId,
        step: StepDirection,
        operation: &Operation,
        result: &SessionUndoResult,
    ) {
        let mut lines =
            vec![(UiTone::Strong, format!("{} {}", step.verb(), operation_text(operation)))];
        let (added, removed) = match step {
            StepDirection::Back => (&operation.removed, &operation.added),
            StepDirection::Forward => (&operation.added, &operation.removed),
        };
        let moved = moved_records(added, removed);
        lines.extend(moved.lines().map(|line| (UiTone::Plain, line.trim_start().to_owned())));
        let n_files = operation.files.as_ref().map_or(0, |files| files.count);
        let operation = operation.seq;
        let step_with = |plan| Box::new(UiCall::Step { session_id, step, operation, plan });
        let offered = files_to_put_back(result.files.as_ref());
        let n_put_back = offered.as_ref().map_or(0, |(plan, _)| plan.counts.put_back);
        lines.extend(offered.iter().map(|(_, line)| (UiTone::Plain, line.clone())));
        if n_files > n_put_back {
            let files = counted(n_files - n_put_back, "file");
            let command = format!("ollmctl {} --files preview --session {session_id}", step.verb());
            lines.push((UiTone::Plain, format!("{files} cannot be put back; why: {command}")));
        }
        lines.push((UiTone::Faint, remaining(step, result)));
        let with_files = offered.map(|(plan, _)| step_with(Some(plan.plan_id)));
        let (verb, call) = (step.verb().to_owned(), step_with(None));
        self.prompt = Some(UiPrompt::Confirm { lines, verb, call, with_files });
    }
}

/// Returns the plan that a person may choose, with a line that names its files; `None` if there are none, or if a tool that
/// may still write did not end.
pub(super) fn files_to_put_back(plan: Option<&FilePlan>) -> Option<(&FilePlan, String)> {
    let plan = plan.filter(|plan| unfinished_call(plan).is_none())?;
    let names = names_to_put_back(plan)?;
    Some((plan, format!("f puts files back too: {names}")))
}

fn operation_text(operation: &Operation) -> String {
    let kind = operation.kind.as_str();
    format!("{kind} #{}: {}", operation.seq, shown_line(&operation.text))
}

/// Returns how many steps of a direction are possible.
fn remaining(step: StepDirection, result: &SessionUndoResult) -> String {
    match step {
        StepDirection::Back => format!("after that, {} more can be undone", result.undoable),
        StepDirection::Forward => format!("after that, {} more can be redone", result.redoable),
    }
}
