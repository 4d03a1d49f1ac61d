//! Entries of a pi session that are not messages.

use ollm_protocol::content::{BranchSummary, Compaction, Custom, Label, MetaPatch, RecordBody};
use ollm_protocol::{Seq, Timestamp};
use serde_json::{Map, Value};

use super::{Entry, Place, Reader, seq_of};
use crate::session::import::fields::Fields;

/// Who counted the tokens that pi writes: the provider, by a tokenizer that it does not name.
const TOKENIZER: &str = "provider";

impl Reader {
    /// Carries over one entry; what is left of its fields is reported.
    pub(super) fn entry(&mut self, mut entry: Entry<'_>) {
        let (line, at) = (entry.line, entry.at);
        match entry.kind.as_str() {
            "message" => {
                let message = entry.fields.object("message");
                entry.fields.report_rest(&mut self.losses, line, "message entry");
                match message {
                    Some(message) => self.message(line, entry.id, at, message),
                    None => self.losses.add(line, "message", "the entry holds none"),
                }
                return;
            }
            "model_change" => self.model_change(at, &mut entry.fields),
            "compaction" => self.compaction(line, at, &mut entry.fields),
            "branch_summary" => self.branch_summary(line, at, &mut entry.fields),
            "custom" => self.custom(at, &mut entry.fields),
            "custom_message" => self.custom_message(line, at, &mut entry.fields),
            "label" => self.label(line, at, &mut entry.fields),
            "session_info" => {
                self.title = entry.fields.text("name").filter(|name| !name.is_empty())
            }
            "thinking_level_change" => {
                self.losses.add(line, "thinking_level_change", "there is no setting like it");
                return;
            }
            "session" => {
                self.losses.add(line, "session", "a second header");
                return;
            }
            other => {
                self.losses.add(line, &format!("entry of type {other}"), "the type is not known");
                return;
            }
        }
        entry.fields.report_rest(&mut self.losses, line, &entry.kind);
    }

    fn model_change(&mut self, at: Timestamp, fields: &mut Fields) {
        let patch = MetaPatch {
            model: fields.text("modelId"),
            provider: fields.text("provider"),
            ..MetaPatch::default()
        };
        if patch.provider.is_some() {
            self.provider.clone_from(&patch.provider);
        }
        self.push(at, RecordBody::Meta(patch));
    }

    /// The summary stands for everything on the path before the first entry that was kept.
    fn compaction(&mut self, line: Option<u64>, at: Timestamp, fields: &mut Fields) {
        let kept = if let Some(id) = fields.text("firstKeptEntryId") {
            self.by_id.get(&id).copied()
        } else {
            fields
                .count("firstKeptEntryIndex")
                .and_then(|index| self.by_index.get(usize::try_from(index).ok()?).copied())
        };
        let range = kept.and_then(|kept| self.range_before(&kept));
        if kept.is_none() {
            self.losses.add(line, "compaction range", "the first kept entry is not in the file");
        }
        let summary = fields.text("summary").unwrap_or_default();
        let tokens_before = fields.count("tokensBefore").unwrap_or(0);
        self.push_compaction(at, range, summary, tokens_before);
    }

    /// From the beginning of the path to the last record before an entry; `None` where nothing lies between.
    fn range_before(&self, kept: &Place) -> Option<(Seq, Seq)> {
        let to = kept.before?;
        let same_path = self.tail.is_some_and(|tail| self.roots[tail] == self.roots[to]);
        same_path.then(|| (seq_of(self.roots[to]), seq_of(to)))
    }

    /// Appends a compaction that another program made.
    pub(super) fn push_compaction(
        &mut self,
        at: Timestamp,
        range: Option<(Seq, Seq)>,
        summary: String,
        tokens_before: u64,
    ) {
        let body = RecordBody::Compaction(Compaction {
            from: range.map(|(from, _)| from),
            to: range.map(|(_, to)| to),
            summary,
            tokens_before,
            tokens_after: None,
            tokenizer: TOKENIZER.to_owned(),
            epoch: None,
            checkpoints: Vec::new(),
            method: None,
            model: None,
            retention: None,
        });
        self.push(at, body);
    }

    /// Carries over a branch summary, as an entry or as a message.
    pub(super) fn branch_summary(&mut self, line: Option<u64>, at: Timestamp, fields: &mut Fields) {
        let from = fields.text("fromId").filter(|id| id != "root");
        let place = from.as_ref().and_then(|id| self.by_id.get(id));
        if from.is_some() && place.is_none() {
            self.losses.add(line, "branch_summary.fromId", "no such entry");
        }
        let from = place.and_then(Place::tail_seq);
        let summary = fields.text("summary").unwrap_or_default();
        self.push(at, RecordBody::BranchSummary(BranchSummary { from, summary }));
    }

    fn custom(&mut self, at: Timestamp, fields: &mut Fields) {
        let body = Custom {
            name: fields.text("customType").unwrap_or_default(),
            data: fields.value("data").unwrap_or_default(),
            context_text: None,
        };
        self.push(at, RecordBody::Custom(body));
    }

    /// Carries over a text that an extension put into the context, as an entry or as a message.
    pub(super) fn custom_message(&mut self, line: Option<u64>, at: Timestamp, fields: &mut Fields) {
        let (text, n_other) = self.text_of_content(line, fields);
        if n_other > 0 {
            self.losses.add(line, "custom_message content", "only its text enters the context");
        }
        let mut data = Map::new();
        for name in ["display", "details"] {
            if let Some(value) = fields.value(name) {
                data.insert(name.to_owned(), value);
            }
        }
        let body = Custom {
            name: fields.text("customType").unwrap_or_default(),
            data: if data.is_empty() { Value::Null } else { Value::Object(data) },
            context_text: Some(text),
        };
        self.push(at, RecordBody::Custom(body));
    }

    fn label(&mut self, line: Option<u64>, at: Timestamp, fields: &mut Fields) {
        let target = fields.text("targetId").and_then(|id| self.by_id.get(&id)?.first_seq());
        let name = fields.text("label").filter(|name| !name.is_empty());
        match target {
            Some(target) => {
                self.push(at, RecordBody::Label(Label { target, name }));
            }
            None => self.losses.add(line, "label", "the entry that it names was not carried over"),
        }
    }
}
