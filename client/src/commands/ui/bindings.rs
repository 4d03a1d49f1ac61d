//! The keys of each view. Help and the hints at the bottom of the screen are made from this one table.

use super::keys::UiKey;

/// A view, by which keys mean different things.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ViewKind {
    Sessions,
    Tree,
    Events,
}

/// An action that a key starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UiAction {
    Chat,
    NewChat,
    Search,
    Scope,
    Archived,
    Tree,
    Events,
    Rename,
    Archive,
    Delete,
    Fork,
    Branch,
    Undo,
    Redo,
    Snapshot,
    Restore,
    NextBranch,
    PreviousBranch,
    Up,
    Down,
    PageUp,
    PageDown,
    First,
    Last,
    RecordsUp,
    RecordsDown,
    StartDaemon,
    Back,
    Help,
    Suspend,
    Redraw,
    Quit,
}

/// The keys of an action.
pub(super) struct KeyBinding {
    pub(super) action: UiAction,
    keys: &'static [UiKey],
    views: &'static [ViewKind],
    /// The keys, for people.
    pub(super) label: &'static str,
    /// A word for the bottom of the screen; empty if the action has no place there.
    pub(super) hint: &'static str,
    pub(super) help: &'static str,
}

const ALL: &[ViewKind] = &[ViewKind::Sessions, ViewKind::Tree, ViewKind::Events];
const LISTED: &[ViewKind] = &[ViewKind::Sessions];
const IN_TREE: &[ViewKind] = &[ViewKind::Tree];
const WITH_SESSION: &[ViewKind] = &[ViewKind::Sessions, ViewKind::Tree];
const WITH_CHAT: &[ViewKind] = &[ViewKind::Sessions, ViewKind::Events];

/// All keys, the hints in the order of their importance.
#[rustfmt::skip]
pub(super) const BINDINGS: &[KeyBinding] = &[
    KeyBinding { action: UiAction::Chat, keys: &[UiKey::Enter], views: WITH_CHAT, label: "Enter", hint: "chat", help: "talk on in the session" },
    KeyBinding { action: UiAction::Branch, keys: &[UiKey::Enter], views: IN_TREE, label: "Enter", hint: "continue here", help: "continue the conversation after the record" },
    KeyBinding { action: UiAction::Search, keys: &[UiKey::Char('/'), UiKey::Ctrl('f')], views: LISTED, label: "/", hint: "search", help: "search titles and messages as you type" },
    KeyBinding { action: UiAction::Chat, keys: &[UiKey::Char('c')], views: IN_TREE, label: "c", hint: "chat", help: "talk on in the session" },
    KeyBinding { action: UiAction::NewChat, keys: &[UiKey::Char('n')], views: LISTED, label: "n", hint: "new", help: "begin a new chat in this directory" },
    KeyBinding { action: UiAction::Tree, keys: &[UiKey::Char('t'), UiKey::Right, UiKey::Char('l')], views: &[ViewKind::Sessions, ViewKind::Events], label: "t", hint: "tree", help: "show branches, snapshots and the window of the session" },
    KeyBinding { action: UiAction::Undo, keys: &[UiKey::Char('u')], views: WITH_SESSION, label: "u", hint: "undo", help: "undo the last turn or change; shows it first" },
    KeyBinding { action: UiAction::Redo, keys: &[UiKey::Char('U'), UiKey::Ctrl('r')], views: WITH_SESSION, label: "U", hint: "redo", help: "redo what was undone last; shows it first" },
    KeyBinding { action: UiAction::Scope, keys: &[UiKey::Char('p')], views: LISTED, label: "p", hint: "projects", help: "switch between this project and all projects" },
    KeyBinding { action: UiAction::Rename, keys: &[UiKey::Char('r')], views: WITH_SESSION, label: "r", hint: "rename", help: "change the title; an empty one restores the automatic title" },
    KeyBinding { action: UiAction::Fork, keys: &[UiKey::Char('f')], views: WITH_SESSION, label: "f", hint: "fork", help: "copy the session, in the tree up to the record" },
    KeyBinding { action: UiAction::Archive, keys: &[UiKey::Char('a')], views: LISTED, label: "a", hint: "archive", help: "archive the session, or take it back from the archive" },
    KeyBinding { action: UiAction::Delete, keys: &[UiKey::Char('d'), UiKey::Delete], views: LISTED, label: "d", hint: "delete", help: "delete the session with all its files; asks first" },
    KeyBinding { action: UiAction::Snapshot, keys: &[UiKey::Char('s')], views: IN_TREE, label: "s", hint: "snapshot", help: "take a snapshot" },
    KeyBinding { action: UiAction::Restore, keys: &[UiKey::Char('S')], views: IN_TREE, label: "S", hint: "restore", help: "restore the newest snapshot at the record; shows first what changes" },
    KeyBinding { action: UiAction::NextBranch, keys: &[UiKey::Tab], views: IN_TREE, label: "Tab", hint: "branches", help: "go to the end of the next branch" },
    KeyBinding { action: UiAction::PreviousBranch, keys: &[UiKey::BackTab], views: IN_TREE, label: "Shift-Tab", hint: "", help: "go to the end of the branch before" },
    KeyBinding { action: UiAction::Events, keys: &[UiKey::Char('e')], views: WITH_SESSION, label: "e", hint: "events", help: "follow what happens, and answers that are being written" },
    KeyBinding { action: UiAction::Archived, keys: &[UiKey::Char('A')], views: LISTED, label: "A", hint: "", help: "show archived sessions, or the others again" },
    KeyBinding { action: UiAction::Up, keys: &[UiKey::Up, UiKey::Char('k'), UiKey::Ctrl('p')], views: ALL, label: "Up k", hint: "", help: "select the line before" },
    KeyBinding { action: UiAction::Down, keys: &[UiKey::Down, UiKey::Char('j'), UiKey::Ctrl('n')], views: ALL, label: "Down j", hint: "", help: "select the line after" },
    KeyBinding { action: UiAction::PageUp, keys: &[UiKey::PageUp, UiKey::Ctrl('b')], views: ALL, label: "PgUp", hint: "", help: "go up by a page" },
    KeyBinding { action: UiAction::PageDown, keys: &[UiKey::PageDown, UiKey::Char(' ')], views: ALL, label: "PgDn Space", hint: "", help: "go down by a page" },
    KeyBinding { action: UiAction::First, keys: &[UiKey::Home, UiKey::Char('g')], views: ALL, label: "Home g", hint: "", help: "go to the first line" },
    KeyBinding { action: UiAction::Last, keys: &[UiKey::End, UiKey::Char('G')], views: ALL, label: "End G", hint: "", help: "go to the last line that is loaded" },
    KeyBinding { action: UiAction::RecordsUp, keys: &[UiKey::Char('K'), UiKey::Char('['), UiKey::Ctrl('u')], views: ALL, label: "K [", hint: "", help: "scroll the messages up" },
    KeyBinding { action: UiAction::RecordsDown, keys: &[UiKey::Char('J'), UiKey::Char(']'), UiKey::Ctrl('d')], views: ALL, label: "J ]", hint: "", help: "scroll the messages down" },
    KeyBinding { action: UiAction::Back, keys: &[UiKey::Esc, UiKey::Left, UiKey::Char('h'), UiKey::Backspace], views: ALL, label: "Esc", hint: "", help: "go back: from a search, a tree or the events" },
    KeyBinding { action: UiAction::StartDaemon, keys: &[UiKey::Char('R')], views: ALL, label: "R", hint: "", help: "start ollmd, if it was stopped" },
    KeyBinding { action: UiAction::Redraw, keys: &[UiKey::Ctrl('l')], views: ALL, label: "Ctrl-L", hint: "", help: "read and draw everything again" },
    KeyBinding { action: UiAction::Suspend, keys: &[UiKey::Ctrl('z')], views: ALL, label: "Ctrl-Z", hint: "", help: "stop for a while; fg in the shell continues" },
    KeyBinding { action: UiAction::Help, keys: &[UiKey::Char('?')], views: ALL, label: "?", hint: "", help: "show this help" },
    KeyBinding { action: UiAction::Quit, keys: &[UiKey::Char('q'), UiKey::Ctrl('c')], views: ALL, label: "q Ctrl-C", hint: "", help: "leave" },
];

/// Returns the bindings of a view.
pub(super) fn bindings_of(view: ViewKind) -> impl Iterator<Item = &'static KeyBinding> {
    BINDINGS.iter().filter(move |binding| binding.views.contains(&view))
}

/// Returns the action of a key in a view.
pub(super) fn action_of(view: ViewKind, key: &UiKey) -> Option<UiAction> {
    bindings_of(view).find(|binding| binding.keys.contains(key)).map(|binding| binding.action)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_has_one_meaning_in_a_view() {
        for view in ALL.iter().copied() {
            let keys: Vec<&UiKey> = bindings_of(view).flat_map(|binding| binding.keys).collect();
            for (at, key) in keys.iter().enumerate() {
                assert!(!keys[at + 1..].contains(key), "{key:?} in {view:?}");
            }
        }
    }

    #[test]
    fn every_view_can_be_left_and_explained() {
        for view in ALL.iter().copied() {
            assert_eq!(action_of(view, &UiKey::Char('?')), Some(UiAction::Help));
            assert_eq!(action_of(view, &UiKey::Ctrl('c')), Some(UiAction::Quit));
            assert_eq!(action_of(view, &UiKey::Esc), Some(UiAction::Back));
        }
        assert_eq!(action_of(ViewKind::Events, &UiKey::Char('d')), None);
    }
}
