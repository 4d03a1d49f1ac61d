//! Goals: the fold of a session's `goal` records, the markers that models write, and the texts that models read.
//!
//! Pure: changes in, values and texts out. Must not know sessions, files, the wire or who counts tokens.
//!
//! - [`GoalState`]: what the records on a path mean; `apply`: one change of a client; `mark`: one marker.
//! - `markers`: what a model's text says. `block`: what a model is told.
//!
//! **Invariants**: at most one goal is active; a locked decision changes only through a step that names it, and markers
//! name nothing; the same changes give the same state, because one that is refused changes nothing.

mod apply;
pub(crate) mod block;
mod mark;
pub(crate) mod markers;

use ollm_protocol::content::{Goal, GoalChange, GoalSource, GoalStatus};
use ollm_protocol::{DecisionId, GoalCheckpointId, GoalId, Timestamp, sanitize};
use serde::{Deserialize, Serialize};

/// Most goals of a session, and most checkpoints, decisions, artifacts and next steps of a goal: far more than a person
/// keeps in view. With texts of the length below, one goal stays within a frame.
pub(crate) const MAX_ITEMS: usize = 500;
/// The longest description, in bytes: some paragraphs. A line of a goal is to be read, and sent with every prompt.
pub(crate) const MAX_TEXT_BYTES: usize = 4096;

/// A change cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum GoalError {
    /// The session works towards nothing.
    #[error("the session has no active goal")]
    NoActiveGoal,
    /// No goal has this id.
    #[error("the session has no goal {id}")]
    NoGoal {
        /// The id.
        id: GoalId,
    },
    /// The goal has no such checkpoint.
    #[error("the goal has no checkpoint {id}")]
    NoCheckpoint {
        /// The id.
        id: GoalCheckpointId,
    },
    /// The goal has no such decision.
    #[error("the goal has no decision {id}")]
    NoDecision {
        /// The id.
        id: DecisionId,
    },
    /// The decision does not hold any more.
    #[error("decision {id} was superseded by {by}")]
    Superseded {
        /// The decision.
        id: DecisionId,
        /// What holds instead.
        by: DecisionId,
    },
    /// The same is there already.
    #[error("the goal has this {what} already: {id}")]
    Exists {
        /// What is there twice.
        what: &'static str,
        /// The one that there is.
        id: String,
    },
    /// There are too many of something.
    #[error("there are {MAX_ITEMS} {what} already; more are not kept")]
    TooMany {
        /// Of what.
        what: &'static str,
    },
}

/// The goals of a session, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct GoalState {
    goals: Vec<Goal>,
}

impl GoalState {
    /// Every goal, oldest first.
    pub(crate) fn goals(&self) -> &[Goal] {
        &self.goals
    }

    /// The goal that is worked on.
    pub(crate) fn active(&self) -> Option<&Goal> {
        self.goals.iter().find(|goal| goal.status == GoalStatus::Active)
    }

    /// A goal by its id.
    pub(crate) fn goal(&self, id: GoalId) -> Result<&Goal, GoalError> {
        self.goals.iter().find(|goal| goal.id == id).ok_or(GoalError::NoGoal { id })
    }

    /// The goal that is meant: the one that is named, else the active one.
    pub(crate) fn meant(&self, id: Option<GoalId>) -> Result<&Goal, GoalError> {
        match id {
            Some(id) => self.goal(id),
            None => self.active().ok_or(GoalError::NoActiveGoal),
        }
    }

    /// Makes a change that was recorded at a time; returns how many of its steps changed something.
    ///
    /// **Errors**: for a client's change the first step that cannot be made; then nothing is changed. Markers that
    /// cannot be followed are passed over.
    pub(crate) fn apply(&mut self, at: Timestamp, change: &GoalChange) -> Result<usize, GoalError> {
        if change.source == GoalSource::Marker {
            let followed = change.steps.iter().filter(|step| mark::follow(self, at, step));
            return Ok(followed.count());
        }
        let mut next = self.clone();
        let mut n_changed = 0;
        for step in &change.steps {
            n_changed += usize::from(apply::step(&mut next, at, step)?);
        }
        *self = next;
        Ok(n_changed)
    }

    fn goal_mut(&mut self, id: GoalId) -> Result<&mut Goal, GoalError> {
        self.goals.iter_mut().find(|goal| goal.id == id).ok_or(GoalError::NoGoal { id })
    }
}

/// What two descriptions have in common that mean the same: their words, whatever the case and the signs around them.
pub(crate) fn normalized(description: &str) -> String {
    let word = |word: &str| word.trim_matches(|char: char| !char.is_alphanumeric()).to_lowercase();
    let words = description.split_whitespace().map(word).filter(|word| !word.is_empty());
    let joined = words.collect::<Vec<_>>().join(" ");
    if joined.is_empty() { description.trim().to_owned() } else { joined }
}

/// A text on one line without control characters and escape sequences; what is longer than the bound is cut.
pub(crate) fn on_one_line(text: &str, max_bytes: usize) -> String {
    let mut line = String::new();
    for word in sanitize::text(text).split_whitespace() {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
        if line.len() > max_bytes {
            break;
        }
    }
    if line.len() > max_bytes {
        let most = max_bytes.saturating_sub('\u{2026}'.len_utf8());
        let end = (0..=most).rev().find(|end| line.is_char_boundary(*end)).unwrap_or(0);
        line.truncate(end);
        line.push('\u{2026}');
    }
    line
}

#[cfg(test)]
mod tests;
