//! What waits for the writer thread, and which of it comes next. Pure, but for the instants that it is given.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Instant;

use ollm_protocol::SessionId;

use super::{EAGER_MARKS, Forget, Job, Need, PACE, REST, Unclean};

/// What waits.
#[derive(Default)]
pub(super) struct Pending {
    pub(super) needs: HashMap<SessionId, Need>,
    pub(super) order: VecDeque<SessionId>,
    /// Taken for a batch that is not committed.
    pub(super) taken: Vec<(SessionId, Need)>,
    /// Their source failed; they wait for the next change.
    pub(super) failed: HashSet<SessionId>,
    /// Removed and not changed since, so that a check does not bring them back.
    pub(super) forgotten: HashSet<SessionId>,
    pub(super) forgets: VecDeque<Forget>,
    /// Their rows could not be removed, which is tried again.
    pub(super) stuck: Vec<SessionId>,
    /// Their removal was asked for and their rows are still there, so that they must not be shown.
    pub(super) hidden: HashSet<SessionId>,
    pub(super) unclean: Unclean,
    /// The last job was a slice of the cleaning up.
    pub(super) cleaned: bool,
    /// When to compare with the logs.
    pub(super) check_at: Option<Instant>,
    pub(super) checking: bool,
    pub(super) recover: bool,
    pub(super) working: bool,
    pub(super) rested: bool,
    pub(super) marks: usize,
    pub(super) waiters: usize,
    pub(super) last_batch: Option<Instant>,
    pub(super) retry_at: Option<Instant>,
    pub(super) closing: Option<Instant>,
    pub(super) dead: bool,
}

/// What the writer thread may do now.
pub(super) enum Choice {
    /// This.
    Do(Job),
    /// Nothing before that instant, unless it is woken.
    WaitUntil(Instant),
    /// Nothing until it is woken.
    Wait,
}

impl Pending {
    /// A session waits for something.
    pub(super) fn add(&mut self, id: SessionId, need: Need) {
        self.marks = self.marks.saturating_add(1);
        self.rested = false;
        match self.needs.insert(id, need) {
            None => self.order.push_back(id),
            Some(before) if before != need => {
                self.needs.insert(id, Need::Update);
            }
            Some(_) => {}
        }
    }

    /// Nothing is to be done for a session that is being removed.
    pub(super) fn drop_session(&mut self, id: SessionId) {
        self.forgotten.insert(id);
        self.failed.remove(&id);
        if self.needs.remove(&id).is_some() {
            self.order.retain(|other| *other != id);
        }
    }

    /// Whether nothing of removed sessions is in the files.
    pub(super) fn is_clean(&self) -> bool {
        let Unclean { sessions, journal, shards: _ } = self.unclean;
        sessions == 0 && !journal && self.stuck.is_empty() && self.forgets.is_empty()
    }

    /// Whether the catalog holds all that was marked.
    pub(super) fn is_done(&self) -> bool {
        self.needs.is_empty()
            && self.taken.is_empty()
            && self.forgets.is_empty()
            && !(self.check_at.is_some() || self.recover || self.working)
    }

    /// The next thing to do, the most urgent first.
    pub(super) fn choose(&mut self, now: Instant) -> Choice {
        // Whoever asks for work has finished the last.
        self.checking = false;
        if let Some(forget) = self.forgets.pop_front() {
            return Choice::Do(Job::Forget(forget));
        }
        if let Some(last_work) = self.closing {
            let more = !self.needs.is_empty() && self.retry_at.is_none() && now < last_work;
            return Choice::Do(if more && !self.recover { Job::Index } else { Job::Close });
        }
        if let Some(at) = self.retry_at.filter(|at| *at > now) {
            return Choice::WaitUntil(at);
        }
        if !self.stuck.is_empty() && !self.recover {
            self.retry_at = None;
            let ids = std::mem::take(&mut self.stuck);
            return Choice::Do(Job::Forget(Forget { ids, reply: None }));
        }
        // By turns with everything else, so that neither keeps the other waiting for long.
        let Unclean { sessions, shards, journal } = self.unclean;
        let can_clean = (sessions > 0 || shards || journal) && !self.recover;
        if can_clean && !std::mem::take(&mut self.cleaned) {
            self.cleaned = true;
            return Choice::Do(Job::Clean);
        }
        match self.choose_work(now) {
            Choice::Wait | Choice::WaitUntil(_) if can_clean => Choice::Do(Job::Clean),
            choice => choice,
        }
    }

    fn choose_work(&mut self, now: Instant) -> Choice {
        if std::mem::take(&mut self.recover) {
            return Choice::Do(Job::Recover);
        }
        if self.check_at.is_some_and(|at| self.waiters > 0 || at <= now) {
            self.check_at = None;
            self.checking = true;
            return Choice::Do(Job::Check);
        }
        let wait = self.choose_index(now);
        match (wait, self.check_at) {
            (Choice::WaitUntil(until), Some(at)) => Choice::WaitUntil(until.min(at)),
            (Choice::Wait, Some(at)) => Choice::WaitUntil(at),
            (choice, _) => choice,
        }
    }

    fn choose_index(&mut self, now: Instant) -> Choice {
        if self.needs.is_empty() {
            return self.choose_rest(now);
        }
        let due = self.last_batch.map_or(now, |at| at + PACE);
        if self.waiters > 0 || self.marks >= EAGER_MARKS || due <= now {
            return Choice::Do(Job::Index);
        }
        Choice::WaitUntil(due)
    }

    fn choose_rest(&mut self, now: Instant) -> Choice {
        match self.last_batch.map(|at| at + REST) {
            Some(at) if !self.rested && at <= now => {
                self.rested = true;
                Choice::Do(Job::Rest)
            }
            Some(at) if !self.rested => Choice::WaitUntil(at),
            _ => Choice::Wait,
        }
    }
}
