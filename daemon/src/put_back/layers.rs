//! The fold of what a session wrote: for each file the layers that its tool calls put on it, and which are in place.
//!
//! A layer is what one call made of a file. Putting a file back takes the newest layers off, and putting it forward puts
//! them on again; both are records. Layers do not follow the active path: a move of the leaf leaves files as they are.
//! Pure.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use ollm_protocol::content::{FileModes, FileState, PutBack, ToolCall, ToolStart};
use ollm_protocol::{Seq, Timestamp};

/// The writes of a session beneath one directory.
#[derive(Debug)]
pub(crate) struct WrittenFiles<'a> {
    root: &'a str,
    files: BTreeMap<String, FileLayers>,
    /// The files that calls wrote beneath another directory, which was the project of the session then.
    elsewhere: Vec<(Seq, String)>,
    /// The starts of calls whose records did not follow so far, by the ids of the calls.
    started: BTreeMap<String, (Seq, String)>,
}

/// The layers of a file.
#[derive(Debug)]
struct FileLayers {
    layers: Vec<Layer>,
    /// The file after the newest record that wrote it.
    last: FileState,
}

/// The change that one call made to a file.
#[derive(Clone, Debug)]
struct Layer {
    call: Seq,
    /// The copies of the record of the call on other branches, as a retry writes them.
    copies: Vec<Seq>,
    /// The identity of the call, which a copy of its record has as well.
    origin: CallOrigin,
    before: FileState,
    after: FileState,
    modes: FileModes,
    /// The innermost directories of the path, which the call created.
    created_dirs: u32,
    in_place: bool,
}

/// The identity of a call, whichever record it has.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CallOrigin {
    id: Arc<str>,
    timestamp: Timestamp,
}

/// The change of a file for which layers are taken off or put on, as far as the log says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LayerChange {
    pub(crate) path: String,
    /// The layers that are taken off, by their calls.
    pub(crate) back: Vec<Seq>,
    /// The layers that are put on.
    pub(crate) forward: Vec<Seq>,
    pub(crate) change: Result<StateChange, LayerProblem>,
}

/// The state that a file must have, and its new state. Neither is `Unknown`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StateChange {
    pub(crate) expected: FileState,
    pub(crate) wanted: FileState,
    /// The new permissions; `None` to keep them.
    pub(crate) mode: Option<PermissionChange>,
    /// The number of the innermost directories that are removed with the file, if they are empty then.
    pub(crate) dirs: u32,
}

/// A change of permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PermissionChange {
    /// The permissions that the file must have; `None` if they are not known.
    pub(crate) expected: Option<u32>,
    pub(crate) wanted: u32,
}

/// The reason why layers cannot be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LayerProblem {
    /// A content is not known, or was not kept.
    Unknown,
    /// A call that stays in place wrote the file later.
    LaterCall(Seq),
    /// Something else changed the file between two calls of the session.
    ChangedBetween,
    /// The file was written beneath another directory.
    Elsewhere,
}

impl<'a> WrittenFiles<'a> {
    /// Returns the fold of no records, for the files beneath `root`.
    pub(crate) const fn new(root: &'a str) -> Self {
        let started = BTreeMap::new();
        Self { root, files: BTreeMap::new(), elsewhere: Vec::new(), started }
    }

    /// Adds the start of a tool call.
    pub(crate) fn tool_start(&mut self, seq: Seq, start: ToolStart) {
        self.started.insert(start.id, (seq, start.name));
    }

    /// Returns the starts of calls that have no record: the id of the call, the record of the start, and the tool.
    pub(crate) fn unfinished(&self) -> impl Iterator<Item = (&str, Seq, &str)> {
        self.started.iter().map(|(id, (seq, tool))| (id.as_str(), *seq, tool.as_str()))
    }

    /// Adds the writes of a tool call. Records come in the order of the log.
    pub(crate) fn tool_call(&mut self, seq: Seq, call: &ToolCall) {
        self.started.remove(&call.id);
        let origin = CallOrigin { id: call.id.as_str().into(), timestamp: call.timestamp };
        for write in call.writes.iter().flatten() {
            if call.writes_root.as_deref() != Some(self.root) {
                self.elsewhere.push((seq, write.path.clone()));
                continue;
            }
            let modes = write.mode.unwrap_or_default();
            let (before, after, origin) = (write.before, write.after, origin.clone());
            let file = self.file(&write.path, after);
            let is_same = |layer: &&mut Layer| {
                layer.origin == origin && (layer.before, layer.after) == (before, after)
            };
            if let Some(layer) = file.layers.iter_mut().find(is_same) {
                layer.copies.push(seq);
                continue;
            }
            let (copies, created_dirs) = (Vec::new(), write.created_dirs);
            file.layers.push(Layer {
                call: seq,
                copies,
                origin,
                before,
                after,
                modes,
                created_dirs,
                in_place: true,
            });
            file.last = after;
        }
    }

    /// Adds a record of files that were put back.
    pub(crate) fn put_back(&mut self, record: &PutBack) {
        if record.root != self.root {
            return;
        }
        for put in &record.files {
            let file = self.file(&put.path, put.after);
            file.last = put.after;
            for layer in &mut file.layers {
                if put.back.contains(&layer.call) {
                    layer.in_place = false;
                    // A removed file comes back with the permissions that it had.
                    let seen = put.mode.and_then(|mode| mode.before);
                    layer.modes.after = layer.modes.after.or(seen);
                } else if put.forward.contains(&layer.call) {
                    layer.in_place = true;
                }
            }
        }
    }

    fn file(&mut self, path: &str, last: FileState) -> &mut FileLayers {
        // Most files are written more than once, so the path is cloned only for a new one.
        if !self.files.contains_key(path) {
            self.files.insert(path.to_owned(), FileLayers { layers: Vec::new(), last });
        }
        self.files.get_mut(path).expect("was inserted")
    }

    /// Returns what changes if the layers of some calls are taken off, and those of others put on, by path.
    pub(crate) fn changes(&self, removed: &HashSet<Seq>, added: &HashSet<Seq>) -> Vec<LayerChange> {
        let elsewhere = self.elsewhere.iter();
        let elsewhere =
            elsewhere.filter(|(call, _)| removed.contains(call) || added.contains(call));
        let elsewhere = elsewhere.map(|(_, path)| LayerChange {
            path: path.clone(),
            back: Vec::new(),
            forward: Vec::new(),
            change: Err(LayerProblem::Elsewhere),
        });
        let own = self.files.iter().filter_map(|(path, file)| file.change(path, removed, added));
        let mut changes: Vec<_> = own.chain(elsewhere).collect();
        changes.sort_by(|one, other| one.path.cmp(&other.path));
        changes.dedup_by(|one, other| one.path == other.path);
        changes
    }
}

impl Layer {
    fn is_in(&self, calls: &HashSet<Seq>) -> bool {
        calls.contains(&self.call) || self.copies.iter().any(|copy| calls.contains(copy))
    }
}

impl FileLayers {
    /// Returns the change of this file; `None` if no layer moves.
    fn change(
        &self,
        path: &str,
        removed: &HashSet<Seq>,
        added: &HashSet<Seq>,
    ) -> Option<LayerChange> {
        // A call whose copy stays on the path, or comes onto it, stays in the file.
        let is_taken =
            |layer: &&Layer| layer.in_place && layer.is_in(removed) && !layer.is_in(added);
        let is_put = |layer: &&Layer| !layer.in_place && layer.is_in(added);
        let taken_off: Vec<&Layer> = self.layers.iter().rev().filter(is_taken).collect();
        let put_on: Vec<&Layer> = self.layers.iter().filter(is_put).collect();
        if taken_off.is_empty() && put_on.is_empty() {
            return None;
        }
        let calls = |layers: &[&Layer]| layers.iter().map(|layer| layer.call).collect();
        Some(LayerChange {
            path: path.to_owned(),
            back: calls(&taken_off),
            forward: calls(&put_on),
            change: self.move_layers(&taken_off, &put_on),
        })
    }

    fn move_layers(
        &self,
        taken_off: &[&Layer],
        put_on: &[&Layer],
    ) -> Result<StateChange, LayerProblem> {
        let in_place: Vec<&Layer> = self.layers.iter().filter(|layer| layer.in_place).collect();
        // The layers that are taken off must be the newest ones.
        let highest_staying = in_place
            .iter()
            .rev()
            .find(|layer| !taken_off.iter().any(|taken| taken.call == layer.call));
        let lowest_taken = taken_off.last().map(|layer| layer.call);
        if let (Some(staying), Some(lowest)) = (highest_staying, lowest_taken)
            && staying.call > lowest
        {
            return Err(LayerProblem::LaterCall(staying.call));
        }
        let mut state = self.last;
        let (mut mode, mut expected_mode) = (None, None);
        for layer in taken_off {
            step(&mut state, layer.after, layer.before)?;
            expected_mode = expected_mode.or(mode.is_none().then_some(layer.modes.after).flatten());
            mode = layer.modes.before.or(mode).filter(|_| state != FileState::Absent);
        }
        for layer in put_on {
            step(&mut state, layer.before, layer.after)?;
            expected_mode =
                expected_mode.or(mode.is_none().then_some(layer.modes.before).flatten());
            mode = layer.modes.after.or(mode).filter(|_| state != FileState::Absent);
        }
        if self.last == FileState::Unknown {
            return Err(LayerProblem::Unknown);
        }
        let mode = mode.map(|wanted| PermissionChange { expected: expected_mode, wanted });
        let dirs = taken_off.iter().map(|layer| layer.created_dirs).max();
        let dirs = dirs.filter(|_| state == FileState::Absent).unwrap_or_default();
        Ok(StateChange { expected: self.last, wanted: state, mode, dirs })
    }
}

/// Moves a state over one layer, from the side where it must be to the other one.
fn step(state: &mut FileState, from: FileState, to: FileState) -> Result<(), LayerProblem> {
    if [*state, from, to].contains(&FileState::Unknown) {
        return Err(LayerProblem::Unknown);
    }
    if *state != from {
        return Err(LayerProblem::ChangedBetween);
    }
    *state = to;
    Ok(())
}
