//! The sessions whose prompts a model server holds for a model. Pure.
//!
//! A server keeps what it computed for the last prompts of a model, in one slot or in several, and reads everything else
//! again. The number of slots is learned from how much of a session's prompt was read again after those of others.

use ollm_protocol::SessionId;

/// The most slots that are told apart.
const MAX_SLOTS: usize = 8;

/// The sessions of the newest prompts of a model, and how many of these the server holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ModelSlots {
    /// The newest first, each session once; `None` for a prompt of its own, such as that of a summary.
    recent: [Option<SessionId>; MAX_SLOTS],
    n_slots: usize,
}

impl Default for ModelSlots {
    fn default() -> Self {
        Self { recent: [None; MAX_SLOTS], n_slots: 1 }
    }
}

impl ModelSlots {
    /// Returns whether the server probably holds the prompt of a session.
    pub(crate) fn hold(&self, id: SessionId) -> bool {
        self.age(id).is_some_and(|age| age < self.n_slots)
    }

    /// Returns whether a prompt of a session would take the place of one that another session sends again.
    pub(crate) fn displace_other(&self, id: SessionId) -> bool {
        !self.hold(id) && self.recent[self.n_slots - 1].is_some()
    }

    /// Returns whether a prompt of its own would take the place of one that another session than this sends again.
    pub(crate) fn own_displaces_other(&self, id: SessionId) -> bool {
        self.recent[self.n_slots - 1].is_some_and(|holder| holder != id)
    }

    /// Returns the number of prompts since the last one of a session; `None` if it had none, or too long ago.
    pub(super) fn age(&self, id: SessionId) -> Option<usize> {
        self.recent.iter().position(|holder| *holder == Some(id))
    }

    /// Adds a prompt of a session, or one of its own.
    pub(super) fn push(&mut self, holder: Option<SessionId>) {
        let from = holder.and_then(|id| self.age(id)).unwrap_or(MAX_SLOTS - 1);
        self.recent[..=from].rotate_right(1);
        self.recent[0] = holder;
    }

    /// Learns the number of slots from whether the server held a prompt of this age.
    pub(super) fn learn(&mut self, age: usize, was_held: bool) {
        if was_held {
            self.n_slots = self.n_slots.max(age + 1);
        } else if age > 0 {
            self.n_slots = self.n_slots.min(age);
        }
    }

    /// Forgets all prompts, because the server loaded the model again.
    pub(super) fn clear(&mut self) {
        self.recent = [None; MAX_SLOTS];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u128) -> SessionId {
        SessionId::from_uuid(uuid::Uuid::from_u128(number))
    }

    #[test]
    fn one_slot_holds_the_last_prompt_only() {
        let mut slots = ModelSlots::default();
        assert!(!slots.hold(id(1)) && !slots.displace_other(id(1)), "nothing is held");
        slots.push(Some(id(1)));
        assert!(slots.hold(id(1)) && !slots.displace_other(id(1)));
        assert!(slots.displace_other(id(2)));
        slots.push(Some(id(2)));
        assert!(slots.hold(id(2)) && !slots.hold(id(1)) && slots.displace_other(id(1)));
        assert!(slots.own_displaces_other(id(1)) && !slots.own_displaces_other(id(2)));
        slots.push(None);
        assert!(!slots.hold(id(2)) && !slots.displace_other(id(1)), "a summary displaced it");
    }

    #[test]
    fn number_of_slots_follows_from_what_was_held() {
        let mut slots = ModelSlots::default();
        for number in 1..=3 {
            slots.push(Some(id(number)));
        }
        assert_eq!(slots.age(id(1)), Some(2));
        slots.learn(2, true);
        assert!((1..=3).all(|number| slots.hold(id(number))));
        assert!(slots.displace_other(id(4)));
        slots.learn(1, false);
        assert!(slots.hold(id(3)) && !slots.hold(id(2)));
        slots.learn(0, false);
        assert!(slots.hold(id(3)), "there is always one slot");
        for number in 10..100 {
            slots.push(Some(id(number)));
        }
        assert_eq!(slots.age(id(3)), None);
        slots.clear();
        assert!(!slots.hold(id(99)));
    }
}
