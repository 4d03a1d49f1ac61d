//! The fold of one session's observations, and what repeats in them.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::Arc;

use ollm_protocol::Seq;
use ollm_protocol::content::{LoopCall, LoopKind, LoopPattern};

use super::canonical::Digest;
use super::observe::{Answered, Asked, Observation};
use super::output::Output;
use super::runs::{Call, Runs};
use crate::config::LoopDetectionConfig;

/// Calls that `loop.status` shows, and ids of answered calls that are remembered.
const MAX_RECENT: usize = 16;
/// Calls of one message that wait for their results; further ones count as they are asked for. More than models
/// make at once.
const MAX_WAITING: usize = 64;

/// Outputs in a row that say the same as the first of them.
#[derive(Clone, Debug, Default)]
struct Alike {
    first: Option<Arc<Output>>,
    count: u32,
}

impl Alike {
    fn push(&mut self, output: &Arc<Output>) {
        if self.first.as_ref().is_some_and(|first| output.says_the_same(first)) {
            self.count = self.count.saturating_add(1);
        } else {
            (self.first, self.count) = (Some(Arc::clone(output)), 1);
        }
    }

    fn found(&self, threshold: u32) -> bool {
        self.count >= threshold && self.first.as_ref().is_some_and(|first| first.weighs)
    }
}

/// A call that was asked for.
#[derive(Clone, Debug)]
struct Waiting {
    seq: Seq,
    id: String,
    call: Call,
}

/// The fold of the records since the last user message or reset.
#[derive(Clone, Debug, Default)]
pub(crate) struct Detector {
    turns: u32,
    runs: Runs,
    results: Alike,
    answers: Alike,
    /// In the order in which they were asked for, which is the order in which they count.
    waiting: VecDeque<Waiting>,
    /// The ids of messages of role `tool` that answered a call, and of tool calls: the same result may be
    /// recorded as both.
    answered: VecDeque<(String, bool)>,
    recent: VecDeque<LoopCall>,
    detected: Option<LoopPattern>,
}

impl Detector {
    /// A detector that knows of so many calls of the model and nothing else.
    pub(crate) fn after_turns(turns: u32) -> Self {
        Self { turns, ..Self::default() }
    }

    /// Takes what the next record says.
    pub(crate) fn fold(&mut self, seq: Seq, seen: Observation) {
        match seen {
            Observation::User | Observation::Mark(None) => *self = Self::default(),
            Observation::Mark(pattern) => self.detected = pattern,
            Observation::Model { answer, calls } => self.model(seq, answer, calls),
            Observation::Result(answered) => self.result(seq, answered),
        }
    }

    fn model(&mut self, seq: Seq, answer: Option<Arc<Output>>, calls: Vec<Asked>) {
        // Who calls the model again has given up on what did not come.
        self.settle_all();
        self.turns = self.turns.saturating_add(1);
        if let Some(answer) = answer {
            self.answers.push(&answer);
        }
        for Asked { id, call } in calls {
            if self.waiting.len() == MAX_WAITING {
                self.settle_first();
            }
            self.waiting.push_back(Waiting { seq, id, call });
        }
    }

    fn result(&mut self, seq: Seq, answered: Answered) {
        let Answered { id, call, output } = answered;
        let is_record = call.is_some();
        let known = id.as_ref().and_then(|id| {
            let twin = |(other, record): &(String, bool)| other == id && *record != is_record;
            self.answered.iter().position(twin)
        });
        if let Some(known) = known {
            self.answered.remove(known);
            return;
        }
        let mut open = self.waiting.iter_mut().filter(|waiting| waiting.call.output.is_none());
        let asked = open.find(|waiting| id.as_ref().is_none_or(|id| waiting.id == *id));
        match (asked, call) {
            (Some(asked), _) => (asked.seq, asked.call.output) = (seq, Some(output)),
            (None, Some(call)) => {
                self.waiting.push_back(Waiting { seq, id: id.clone().unwrap_or_default(), call });
            }
            // Nobody knows what was called.
            (None, None) => return self.results.push(&output),
        }
        if let Some(id) = id {
            if self.answered.len() == MAX_RECENT {
                self.answered.pop_front();
            }
            self.answered.push_back((id, is_record));
        }
        while self.waiting.front().is_some_and(|first| first.call.output.is_some()) {
            self.settle_first();
        }
    }

    fn settle_all(&mut self) {
        while !self.waiting.is_empty() {
            self.settle_first();
        }
    }

    /// Counts the call that has waited for longest.
    fn settle_first(&mut self) {
        let Some(Waiting { seq, call, .. }) = self.waiting.pop_front() else { return };
        if self.recent.len() == MAX_RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(LoopCall {
            seq,
            tool: call.tool.clone(),
            call: hex(&call.digest),
            output: call.output.as_ref().map(|output| hex(output.digest())),
        });
        if let Some(output) = &call.output {
            self.results.push(output);
        }
        self.runs.push(call);
    }

    /// The loop in force: the one that was noted, else what repeats now.
    pub(crate) fn found(&self, config: &LoopDetectionConfig) -> Option<LoopPattern> {
        if !config.enabled {
            return None;
        }
        if self.detected.is_some() {
            return self.detected.clone();
        }
        if self.waiting.is_empty() {
            return self.repeats(config);
        }
        // What was only asked for counts too, without giving up on its results.
        let mut ahead = self.clone();
        ahead.settle_all();
        ahead.repeats(config)
    }

    fn repeats(&self, config: &LoopDetectionConfig) -> Option<LoopPattern> {
        let threshold = config.repeat_threshold;
        let output = |alike: &Alike, tools: Vec<String>| {
            let pattern = LoopPattern { kind: LoopKind::Output, tools, count: alike.count };
            alike.found(threshold).then_some(pattern)
        };
        let newest_tool = self.recent.back().map(|call| call.tool.clone());
        self.runs
            .found(threshold)
            .or_else(|| output(&self.results, newest_tool.into_iter().collect()))
            .or_else(|| output(&self.answers, Vec::new()))
            .or_else(|| (self.turns > config.max_turns).then(|| self.too_many_turns()))
    }

    /// The loop that there would be if the model was called now, too.
    pub(crate) fn found_before_call(&self, config: &LoopDetectionConfig) -> Option<LoopPattern> {
        let spent = config.enabled && self.turns >= config.max_turns;
        self.found(config).or_else(|| spent.then(|| self.too_many_turns()))
    }

    fn too_many_turns(&self) -> LoopPattern {
        LoopPattern { kind: LoopKind::Turns, tools: Vec::new(), count: self.turns }
    }

    /// Notes a loop before its record is written.
    pub(crate) fn note(&mut self, pattern: LoopPattern) {
        self.detected = Some(pattern);
    }

    /// Whether a loop was noted.
    pub(crate) const fn is_noted(&self) -> bool {
        self.detected.is_some()
    }

    /// Calls of the model since the user last said something.
    pub(crate) const fn turns(&self) -> u32 {
        self.turns
    }

    /// The newest calls, oldest first.
    pub(crate) fn recent(&self) -> Vec<LoopCall> {
        let mut all = self.clone();
        all.settle_all();
        all.recent.into()
    }
}

/// The first half of a digest: enough to be compared by eye.
fn hex(digest: &Digest) -> String {
    digest[..8].iter().fold(String::with_capacity(16), |mut out, byte| {
        let _infallible = write!(out, "{byte:02x}");
        out
    })
}
