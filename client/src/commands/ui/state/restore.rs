//! The return of a session to a snapshot: the question with what it would do, and the answer.

use ollm_protocol::SnapshotId;
use ollm_protocol::methods::snapshot::SnapshotRestoreResult;

use super::super::calls::UiCall;
use super::super::text::{UiTone, shown_line};
use super::answers::files_to_put_back;
use super::{UiPrompt, UiState, UiView};
use crate::commands::sessions::branches::{moved_records, path_records};
use crate::commands::snapshot::changes;
use crate::render::session_table::title;
use crate::render::units::counted;

impl UiState {
    /// Returns the call that asks what the restore of the selected snapshot would do; `None` if no snapshot is selected.
    pub(super) fn preview_restore(&mut self) -> Option<UiCall> {
        let UiView::Tree(pane) = &self.view else { return None };
        let session_id = pane.id();
        let Some(snapshot_id) = pane.selected_snapshot().map(|snapshot| snapshot.snapshot_id)
        else {
            self.say(UiTone::Faint, "no snapshot was taken at this record; s takes one");
            return None;
        };
        self.asked_restore = Some(snapshot_id);
        Some(UiCall::PreviewRestore { session_id, snapshot_id })
    }

    /// Takes what a restore would do or has done.
    pub(super) fn receive_restore(&mut self, call: &UiCall, result: SnapshotRestoreResult) {
        if matches!(call, UiCall::Restore { .. }) {
            self.restored(result);
            return;
        }
        // A key that was pressed since the request was meant for something else, and so may be the next one.
        if self.asked_restore == Some(result.snapshot_id) && self.prompt.is_none() {
            self.ask_restore(&result);
        } else {
            self.say(UiTone::Plain, "press S again to restore");
        }
    }

    /// Shows what a restore would do, and asks whether to do it.
    fn ask_restore(&mut self, result: &SnapshotRestoreResult) {
        let Some(mut lines) = self.snapshot_line(result.snapshot_id).map(|line| vec![line]) else {
            self.say(UiTone::Bad, "the snapshot is not there any more");
            return;
        };
        let offered = files_to_put_back(result.files.as_ref());
        let is_there = result.added.is_empty() && result.removed.is_empty();
        if !result.new_session && is_there && offered.is_none() {
            self.say(UiTone::Faint, "the session is at the snapshot already");
            return;
        }
        let changed = changes_of(result);
        lines.extend(changed.lines().map(|line| (UiTone::Plain, line.trim_start().to_owned())));
        lines.extend(offered.iter().map(|(_, line)| (UiTone::Plain, line.clone())));
        lines.push((UiTone::Faint, "nothing is removed; undo takes it back".to_owned()));
        let (session_id, snapshot_id) = (result.session_id, result.snapshot_id);
        let call = |plan| Box::new(UiCall::Restore { session_id, snapshot_id, plan });
        let with_files = offered.map(|(plan, _)| call(Some(plan.plan_id)));
        let verb = "restore".to_owned();
        self.prompt = Some(UiPrompt::Confirm { lines, verb, call: call(None), with_files });
    }

    /// Returns a line that names a snapshot of the tree on the screen; `None` if the tree has none of that id.
    fn snapshot_line(&self, id: SnapshotId) -> Option<(UiTone, String)> {
        let UiView::Tree(pane) = &self.view else { return None };
        let snapshot = pane.snapshot(id)?;
        let (reason, summary) = (shown_line(&snapshot.reason), shown_line(&snapshot.summary));
        let at = self.times.minute(snapshot.timestamp);
        let text = format!("restore the snapshot of {at}, {reason}: {summary}");
        Some((UiTone::Strong, text))
    }

    fn restored(&mut self, result: SnapshotRestoreResult) {
        if let Some(session) = result.session {
            let text = format!("restored as a new session: {}", title(&session.title));
            self.say(UiTone::Plain, text);
            self.made = Some(session.session_id);
            self.changed.insert(session.session_id);
        } else if result.seq.is_none() {
            self.say(UiTone::Plain, "the session is at the snapshot already");
        } else {
            let moved = moved_records(&result.added, &result.removed);
            let moved: Vec<&str> = moved.lines().map(str::trim).collect();
            let files = result.files.as_ref().map_or_else(String::new, |plan| {
                format!(" · {} put back", counted(plan.counts.put_back, "file"))
            });
            let text = format!("restored: {}{files} · u takes it back", moved.join(", "));
            self.say(UiTone::Plain, text);
        }
        self.read_tree();
    }
}

/// Returns what a restore would change, one thing a line.
fn changes_of(result: &SnapshotRestoreResult) -> String {
    if result.new_session {
        let records = path_records(&result.added);
        return format!("its record is lost, so it becomes a new session with {records}\n");
    }
    let mut text = moved_records(&result.added, &result.removed);
    if let (Some(before), Some(after)) = (&result.before, &result.after) {
        text.push_str(&changes(before, after));
    }
    text
}
