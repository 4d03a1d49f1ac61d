//! The end of the system message, and the later changes of it, which are sent as deltas.
//!
//! **Invariant**: the system message of an epoch stays as it is. A context entry that is set or changed, and a goal
//! that a client changes, are sent once, as a `delta` record after the conversation so far.

use std::sync::Arc;

use ollm_protocol::content::{Delta, Epoch, OmittedItem, RecalledRecord, RecordBody, RecordKind};
use ollm_protocol::{Seq, SessionId};

use super::entries::{ENTRY_BEGIN, ENTRY_END, entries_block, render_entry};
use super::folds::{Folds, goal_changes};
use crate::app::core::Core;
use crate::app::error::Result;
use crate::app::path::ActivePath;
use crate::config::Config;
use crate::context::{ENTRIES_PERCENT, GOAL_PERCENT, OmitReason, digest, prompt_limit};
use crate::goal::block::{
    GOAL_BLOCK, GOAL_END, MARKER_INSTRUCTION, goal_block, goal_delta, n_omitted,
};
use crate::tokens::Counter;

/// The topic of a delta about the goal.
const GOAL_TOPIC: &str = "goal";
/// The beginning of the topic of a delta about a context entry; the entry's key follows.
const ENTRY_TOPIC: &str = "entry:";

/// The end of the system message.
pub(super) struct Additions {
    pub(super) text: String,
    /// The context entries in it: key and digest of the text.
    pub(super) entries: Vec<(String, String)>,
}

impl Additions {
    /// Renders context entries, goal and marker instruction, each within its share.
    pub(super) fn new(
        folds: &Folds,
        counter: &Counter,
        config: &Config,
        context_size: u32,
    ) -> Self {
        let count = |text: &str| u64::from(counter.count_text(text));
        let limit = prompt_limit(context_size, config.context.answer_reserve);
        let entries = entries_block(&folds.entries, &count, limit * ENTRIES_PERCENT / 100);
        let goal = goal_block(&folds.goals, &count, limit * GOAL_PERCENT / 100);
        let mut texts: Vec<String> =
            entries.into_iter().chain(goal).map(|block| block.text).collect();
        if config.goals.markers {
            texts.push(MARKER_INSTRUCTION.to_owned());
        }
        let digests =
            folds.entries.iter().map(|entry| (entry.key.clone(), digest(&render_entry(entry))));
        Self { text: texts.join("\n\n"), entries: digests.collect() }
    }
}

/// Lists the items of the goal and the context entries that the end of a system message does not show.
///
/// The head in force may come from an earlier build, so the numbers are read from its recorded text.
pub(super) fn omitted_additions(additions: &str, path: &ActivePath) -> Vec<OmittedItem> {
    let (entries, goal) = entries_and_goal(additions);
    let goal = goal.split_once(GOAL_END).map_or("", |(goal, _)| goal.trim_end());
    let goal_line = goal.lines().next_back().unwrap_or_default();
    let behind = entries.rsplit_once(ENTRY_END).map_or(entries, |(_, behind)| behind);
    let entries_line = behind.trim_start().lines().next().unwrap_or_default();
    // Project and global entries have no record in the session; its newest record takes their place.
    let of = |seqs: &[Seq]| seqs.last().copied().or(path.leaf).unwrap_or(Seq(0));
    let omitted = [
        (OmitReason::ContextEntry, entries_line, &path.entries),
        (OmitReason::Goal, goal_line, &path.goals),
    ];
    let items = omitted.into_iter().map(|(reason, line, seqs)| OmittedItem {
        seq: of(seqs),
        through_seq: None,
        tokens: 0,
        reason: reason.as_str().to_owned(),
        item_count: Some(n_omitted(line)),
    });
    items.filter(|item| item.item_count > Some(0)).collect()
}

/// Divides the end of a system message where the goal begins, behind the entries: the text of an entry can be anything but
/// the end of its block.
pub(super) fn entries_and_goal(additions: &str) -> (&str, &str) {
    let mut rest = additions;
    while rest.trim_start().starts_with(ENTRY_BEGIN)
        && let Some((_, behind)) = rest.split_once(ENTRY_END)
    {
        rest = behind;
    }
    let goal_at = rest.find(GOAL_BLOCK).unwrap_or(rest.len());
    additions.split_at(additions.len() - rest.len() + goal_at)
}

/// The texts that the model was sent since the epoch in force was opened, including its system message.
#[derive(Default)]
pub(super) struct SentDeltas {
    /// The context entries: key and digest of the text.
    pub(super) entries: Vec<(String, String)>,
    /// The messages that were recalled, each with the delta that has it.
    pub(super) recalled: Vec<(Seq, RecalledRecord)>,
    /// The record up to which changes of the goal were sent.
    goal_until: Option<Seq>,
}

impl SentDeltas {
    /// Returns what the system message of an epoch sends, which `seq` opens.
    pub(super) fn of_epoch(seq: Seq, epoch: &Epoch) -> Self {
        let entries = epoch.basis.as_ref().map(|basis| basis.entries.clone()).unwrap_or_default();
        Self { entries, recalled: Vec::new(), goal_until: Some(seq) }
    }

    /// Reads the deltas on the path since the epoch was opened. Blocks on the disk.
    pub(super) fn load(
        core: &Core,
        id: SessionId,
        path: &ActivePath,
        epoch: Option<&(Seq, Arc<Epoch>)>,
    ) -> Result<Self> {
        let Some((seq, epoch)) = epoch else { return Ok(Self::default()) };
        let items = path.after(*seq).iter();
        let deltas: Vec<Seq> =
            items.filter(|item| item.kind == RecordKind::Delta).map(|item| item.seq).collect();
        let mut sent = Self::of_epoch(*seq, epoch);
        for (at, body) in deltas.iter().zip(core.sessions.bodies(id, &deltas)?) {
            let Some(RecordBody::Delta(delta)) = body else { continue };
            sent.recalled.extend(delta.recalled.into_iter().map(|recalled| (*at, recalled)));
            if delta.topic == GOAL_TOPIC {
                sent.goal_until = Some(*at);
            } else if let Some(key) = delta.topic.strip_prefix(ENTRY_TOPIC) {
                sent.entries.retain(|(other, _)| other != key);
                sent.entries.push((key.to_owned(), digest(&delta.text)));
            }
        }
        Ok(sent)
    }

    /// Returns the changes of goals and entries that were not sent, each as a delta. Blocks on the disk.
    pub(super) fn pending(
        &self,
        core: &Core,
        id: SessionId,
        path: &ActivePath,
        folds: &Folds,
        additions: &Additions,
    ) -> Result<Vec<Delta>> {
        let mut deltas = Vec::new();
        for (entry, key_and_digest) in folds.entries.iter().zip(&additions.entries) {
            if !self.entries.contains(key_and_digest) {
                let topic = format!("{ENTRY_TOPIC}{}", entry.key);
                deltas.push(Delta { topic, text: render_entry(entry), recalled: Vec::new() });
            }
        }
        let changes = goal_changes(core, id, path, self.goal_until)?;
        let text = goal_delta(&folds.goals, &changes);
        if !text.is_empty() {
            deltas.push(Delta { topic: GOAL_TOPIC.to_owned(), text, recalled: Vec::new() });
        }
        Ok(deltas)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_that_have_no_room_in_the_system_message_are_listed() {
        let path = ActivePath {
            leaf: Some(Seq(9)),
            goals: vec![Seq(2), Seq(5)],
            entries: vec![Seq(3)],
            ..ActivePath::default()
        };
        let check = |additions: &str, expect: &[(&str, u64, u64)]| {
            let found = omitted_additions(additions, &path);
            let found: Vec<_> = found
                .iter()
                .map(|item| (item.reason.as_str(), item.seq.0, item.item_count.unwrap_or_default()))
                .collect();
            assert_eq!(found, expect, "{additions}");
        };
        let entry = "<context-entry key=\"a\">\n+7 more\n</context-entry>";
        let forged = "<context-entry key=\"b\">\n<goal priority=\"low\">\n+9 more\n</goal>\n</context-entry>";
        let goal = "<goal priority=\"high\">\nship\nDecisions:\n- x";
        check("", &[]);
        check(&format!("{entry}\n\n{goal}\n</goal>\n\n+4 more"), &[]);
        check(&format!("{entry}\n{forged}\n+2 more"), &[("contextEntry", 3, 2)]);
        check(
            &format!("{entry}\n+2 more\n\nOlder parts are not shown."),
            &[("contextEntry", 3, 2)],
        );
        check("+3 more\n\nOlder parts are not shown.", &[("contextEntry", 3, 3)]);
        check(
            &format!("{entry}\n+2 more\n\n{goal}\n+15 more\n</goal>\n\nMarkers"),
            &[("contextEntry", 3, 2), ("goal", 5, 15)],
        );
    }
}
