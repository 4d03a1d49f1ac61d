//! Loop detection: finds repetition in the records of one session.
//!
//! [`observe()`] extracts from a record what the detection compares, [`Detector::fold`] takes observations in the
//! order of the log, and [`Detector::found`] reports what repeats: a call with equal arguments, a cycle of two to
//! four calls, equal results or answers, or more model calls than allowed since the last user message.
//!
//! A result may be recorded as a tool call, as a message of role `tool`, or as both; it counts once. Calls count in the
//! order of their requests, whatever the order of their results. A call whose result the context cut may be repeated.
//!
//! **Invariants**: pure; a loop follows from the records since the last user message or reset alone, so a restart
//! changes nothing; the memory of a detector is bounded: it keeps digests and short names only. Must not know where
//! records are stored or what a loop stops.

mod digest;

use std::collections::VecDeque;

use ollm_protocol::content::{
    Epoch, HeadItem, LoopCall, LoopKind, LoopPattern, Message, Part, RecordBody, Role,
};
use ollm_protocol::{Seq, sanitize};
use serde_json::Value;

use self::digest::{Digest, Output, of_call, of_text};
use crate::config::LoopDetectionConfig;

/// Characters of a tool's name that are kept.
const MAX_NAME_CHARS: usize = 64;
/// Calls of the longest cycle. Longer cycles are rare, and `maxTurns` ends them.
const MAX_CYCLE: usize = 4;
/// Calls that `loop.status` shows, and ids of answered calls that are remembered.
const MAX_RECENT: usize = 16;
/// Calls that wait for their results, more than models make in one message. One more settles the oldest.
const MAX_PENDING: usize = 64;

/// Returns the number of newest records that suffice to find any loop: `repeat_threshold` rounds of the longest cycle,
/// each call with its message, its tool call and its result, and with a new head of the context.
pub(crate) fn look_back(config: &LoopDetectionConfig) -> usize {
    4 * (config.repeat_threshold as usize + 1) * MAX_CYCLE
}

/// The values of one record that the detection compares.
#[derive(Clone, Debug)]
pub(crate) enum Observation {
    /// A message of the user, which ends every loop.
    UserMessage,
    /// A message of the model: its text unless that is empty, and the calls that it requests, with the digests of their
    /// ids.
    ModelMessage { answer: Option<Output>, calls: Vec<(Digest, ObservedCall)> },
    /// A result, with the digest of its call's id, and with the call if the record has it. A result without an id
    /// belongs to the oldest call that has no result.
    ToolResult { id: Option<Digest>, call: Option<ObservedCall>, output: Output },
    /// A new head of the context: the ranges of records that the model is shown whole.
    NewHead(Vec<(Seq, Seq)>),
    /// A recorded loop, or `None` for a reset.
    LoopMark(Option<LoopPattern>),
}

/// A call and its result, if it has one.
#[derive(Clone, Debug)]
pub(crate) struct ObservedCall {
    tool: String,
    digest: Digest,
    output: Option<Output>,
}

impl ObservedCall {
    fn new(tool: &str, args: &Value) -> Self {
        let digest = of_call(tool, args);
        Self {
            tool: sanitize::text(tool).chars().take(MAX_NAME_CHARS).collect(),
            digest,
            output: None,
        }
    }
}

/// Returns the observation of a record, or `None` if the detection ignores the record.
pub(crate) fn observe(body: &RecordBody) -> Option<Observation> {
    match body {
        RecordBody::Message(message) => observe_message(message),
        RecordBody::ToolCall(call) => {
            let result = &call.result;
            let failed = result.success == Some(false)
                || result.error.is_some()
                || (result.success.is_none() && result.exit_code.is_some_and(|code| code != 0));
            let text = match &result.error {
                Some(error) if result.llm_content.trim().is_empty() => error,
                _ => &result.llm_content,
            };
            Some(Observation::ToolResult {
                id: Some(of_text(&call.id)),
                call: Some(ObservedCall::new(&call.name, &call.args)),
                output: Output::new(text, failed),
            })
        }
        RecordBody::Epoch(epoch) => Some(Observation::NewHead(whole_ranges(epoch))),
        RecordBody::Compaction(compaction) => {
            compaction.epoch.as_ref().map(|epoch| Observation::NewHead(whole_ranges(epoch)))
        }
        RecordBody::Loop(mark) => Some(Observation::LoopMark(mark.pattern.clone())),
        _ => None,
    }
}

/// Returns the ranges of records that a head shows whole.
fn whole_ranges(epoch: &Epoch) -> Vec<(Seq, Seq)> {
    let ranges = epoch.head.iter().filter_map(|item| match item {
        HeadItem::Range { from, to } => Some((*from, *to)),
        _ => None,
    });
    ranges.collect()
}

fn observe_message(message: &Message) -> Option<Observation> {
    let text = || message.plain_text();
    match message.role {
        Role::System => None,
        Role::User => Some(Observation::UserMessage),
        Role::Assistant => {
            let calls = message.parts.iter().filter_map(|part| match part {
                Part::ToolCall { id, name, args } => {
                    Some((of_text(id), ObservedCall::new(name, args)))
                }
                _ => None,
            });
            let answer = Some(text()).filter(|text| !text.trim().is_empty());
            let answer = answer.map(|text| Output::new(&text, false));
            Some(Observation::ModelMessage { answer, calls: calls.collect() })
        }
        Role::Tool => {
            let id = message.tool_call_id.as_deref().map(of_text);
            let output = Output::new(&text(), false);
            Some(Observation::ToolResult { id, call: None, output })
        }
    }
}

/// Equal outputs in a row.
#[derive(Clone, Debug, Default)]
struct OutputRun {
    last: Option<Output>,
    count: u32,
}

impl OutputRun {
    fn push(&mut self, output: Output) {
        let is_equal = self.last.is_some_and(|last| last.digest == output.digest);
        self.count = if is_equal { self.count.saturating_add(1) } else { 1 };
        self.last = Some(output);
    }

    fn is_loop(&self, threshold: u32) -> bool {
        self.count >= threshold && self.last.is_some_and(|last| last.is_substantial)
    }
}

/// The number of newest calls that each equal the call one cycle length earlier, and the number of those with equal
/// results too.
#[derive(Clone, Copy, Debug, Default)]
struct CycleRun {
    calls: u32,
    results: u32,
}

/// A call that waits for its result or for that of an earlier call.
#[derive(Clone, Debug)]
struct PendingCall {
    seq: Seq,
    id: Option<Digest>,
    call: ObservedCall,
}

/// The fold of the records since the last user message or reset.
#[derive(Clone, Debug, Default)]
pub(crate) struct Detector {
    turns: u32,
    pending: VecDeque<PendingCall>,
    /// The newest calls with results, and whether the result was recorded as a tool call rather than as a message.
    answered: VecDeque<(Digest, bool)>,
    /// The newest counted calls, newest first.
    recent: VecDeque<(Seq, ObservedCall)>,
    /// The run of each cycle length, from 1.
    cycles: [CycleRun; MAX_CYCLE],
    results: OutputRun,
    answers: OutputRun,
    noted: Option<LoopPattern>,
}

impl Detector {
    /// Creates a detector that knows the number of model calls and nothing else.
    pub(crate) fn after_turns(turns: u32) -> Self {
        Self { turns, ..Self::default() }
    }

    /// Takes the observation of the next record.
    pub(crate) fn fold(&mut self, seq: Seq, observation: Observation) {
        match observation {
            Observation::UserMessage | Observation::LoopMark(None) => *self = Self::default(),
            Observation::LoopMark(pattern) => self.noted = pattern,
            Observation::ModelMessage { answer, calls } => {
                // The model continues without the missing results.
                self.settle_all();
                self.turns = self.turns.saturating_add(1);
                if let Some(answer) = answer {
                    self.answers.push(answer);
                }
                for (id, call) in calls {
                    if self.pending.len() == MAX_PENDING {
                        self.settle_first();
                    }
                    self.pending.push_back(PendingCall { seq, id: Some(id), call });
                }
            }
            Observation::ToolResult { id, call, output } => self.result(seq, id, call, output),
            Observation::NewHead(whole) => self.forget_cut(&whole),
        }
    }

    /// Forgets the calls whose results the model is no longer shown whole, and the run of equal results and answers with
    /// them: the model has a reason to repeat itself. A model that only repeats itself reaches the limit of turns.
    fn forget_cut(&mut self, whole: &[(Seq, Seq)]) {
        let n_before = self.recent.len();
        self.recent.retain(|(seq, _)| whole.iter().any(|(from, to)| (from..=to).contains(&seq)));
        if self.recent.len() < n_before {
            self.cycles = Default::default();
            (self.results, self.answers) = Default::default();
        }
    }

    fn result(&mut self, seq: Seq, id: Option<Digest>, call: Option<ObservedCall>, output: Output) {
        let is_record = call.is_some();
        let is_twin = |answered: &(Digest, bool)| id == Some(answered.0) && answered.1 != is_record;
        if let Some(twin) = self.answered.iter().position(is_twin) {
            self.answered.remove(twin);
            return;
        }
        let is_of_result =
            |open: &&mut PendingCall| open.call.output.is_none() && (id.is_none() || open.id == id);
        match (self.pending.iter_mut().find(is_of_result), call) {
            (Some(pending), _) => (pending.seq, pending.call.output) = (seq, Some(output)),
            (None, Some(call)) => {
                let call = ObservedCall { output: Some(output), ..call };
                self.pending.push_back(PendingCall { seq, id, call });
            }
            // A result of an unknown call.
            (None, None) => return self.results.push(output),
        }
        if let Some(id) = id {
            self.answered.push_back((id, is_record));
            self.answered.drain(..self.answered.len().saturating_sub(MAX_RECENT));
        }
        while self.pending.front().is_some_and(|first| first.call.output.is_some()) {
            self.settle_first();
        }
    }

    /// Counts the call that was requested first.
    fn settle_first(&mut self) {
        let Some(PendingCall { seq, call, .. }) = self.pending.pop_front() else { return };
        if let Some(output) = call.output {
            self.results.push(output);
        }
        for (run, at) in self.cycles.iter_mut().zip(0..) {
            let earlier = self.recent.get(at).map(|(_, earlier)| earlier);
            let equal = earlier.filter(|earlier| earlier.digest == call.digest);
            let results = equal.map(|earlier| (earlier.output, call.output));
            let is_same =
                matches!(results, Some((Some(one), Some(other))) if one.digest == other.digest);
            run.calls = if equal.is_some() { run.calls.saturating_add(1) } else { 0 };
            run.results = if is_same { run.results.saturating_add(1) } else { 0 };
        }
        self.recent.truncate(MAX_RECENT - 1);
        self.recent.push_front((seq, call));
    }

    fn settle_all(&mut self) {
        while !self.pending.is_empty() {
            self.settle_first();
        }
    }

    /// A copy in which the calls without results count too.
    fn settled(&self) -> Self {
        let mut settled = self.clone();
        settled.settle_all();
        settled
    }

    /// Returns the loop in force: the noted one, else what repeats now.
    pub(crate) fn found(&self, config: &LoopDetectionConfig) -> Option<LoopPattern> {
        if !config.enabled {
            return None;
        }
        self.noted.clone().or_else(|| self.settled().repetition(config))
    }

    fn repetition(&self, config: &LoopDetectionConfig) -> Option<LoopPattern> {
        let threshold = config.repeat_threshold;
        let of_outputs = |run: &OutputRun, tools: Vec<String>| {
            let count = run.count;
            run.is_loop(threshold).then_some(LoopPattern { kind: LoopKind::Output, tools, count })
        };
        let newest_tool = self.recent.front().map(|(_, call)| call.tool.clone());
        self.repeated_calls(threshold)
            .or_else(|| of_outputs(&self.results, newest_tool.into_iter().collect()))
            .or_else(|| of_outputs(&self.answers, Vec::new()))
            .or_else(|| (self.turns > config.max_turns).then(|| self.too_many_turns()))
    }

    /// Returns the call or the cycle that repeats `threshold` times.
    ///
    /// A cycle whose results were equal each time is found one round earlier, but not before the second: `A-B-A-B`
    /// without any news is a loop, while a build and a test in turn with changing results are work.
    fn repeated_calls(&self, threshold: u32) -> Option<LoopPattern> {
        let rounds = threshold.saturating_sub(1).max(1);
        let rounds_of_equal_results = threshold.saturating_sub(2).max(1);
        let (at, run) = self.cycles.iter().enumerate().find(|(at, run)| {
            let reaches = |n: u32, rounds: u32| n / (*at as u32 + 1) >= rounds;
            match at {
                0 => run.calls.saturating_add(1) >= threshold,
                _ => reaches(run.calls, rounds) || reaches(run.results, rounds_of_equal_results),
            }
        })?;
        let kind = if at == 0 { LoopKind::Call } else { LoopKind::Cycle };
        let tools = self.recent.iter().take(at + 1).rev().map(|(_, call)| call.tool.clone());
        Some(LoopPattern { kind, tools: tools.collect(), count: run.calls / (at as u32 + 1) + 1 })
    }

    /// Returns the loop that one more model call would make, or the one in force.
    pub(crate) fn found_before_call(&self, config: &LoopDetectionConfig) -> Option<LoopPattern> {
        let is_spent = config.enabled && self.turns >= config.max_turns;
        self.found(config).or_else(|| is_spent.then(|| self.too_many_turns()))
    }

    fn too_many_turns(&self) -> LoopPattern {
        LoopPattern { kind: LoopKind::Turns, tools: Vec::new(), count: self.turns }
    }

    /// Notes a loop before its record is written.
    pub(crate) fn note(&mut self, pattern: LoopPattern) {
        self.noted = Some(pattern);
    }

    pub(crate) const fn is_noted(&self) -> bool {
        self.noted.is_some()
    }

    /// The number of model calls since the last user message.
    pub(crate) const fn turns(&self) -> u32 {
        self.turns
    }

    /// Returns the newest calls, oldest first.
    pub(crate) fn recent(&self) -> Vec<LoopCall> {
        let short = |digest: Digest| format!("{:016x}", digest >> 64);
        let calls = self.settled().recent.into_iter().rev().map(|(seq, call)| LoopCall {
            seq,
            tool: call.tool,
            call: short(call.digest),
            output: call.output.map(|output| short(output.digest)),
        });
        calls.collect()
    }
}

#[cfg(test)]
mod tests;
