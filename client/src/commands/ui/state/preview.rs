//! The records beside a list: the end of a session, or the records around a found one. Pure.
//!
//! Until other records arrive, those before stay; the reply to a request for a target that is no longer wanted is dropped.

use ollm_protocol::content::{Custom, Message, Part, Record, RecordBody, Role, ToolCall};
use ollm_protocol::methods::session::{BranchFilter, SessionGetParams};
use ollm_protocol::{Seq, SessionId};

use super::super::text::{UiLine, UiTone, shown_line, shown_text, wrap};
use crate::render::RenderOptions;
use crate::render::units::{bytes, counted, grouped};

/// The records of the end of a session, of which a screen shows a few.
const TAIL_RECORDS: u32 = 60;
/// The records before a found one.
const RECORDS_BEFORE: u64 = 4;
/// The records around a found one.
const RECORDS_AROUND: u32 = 20;
/// The characters of a message that are shown; `ollmctl sessions view` shows the rest.
const MESSAGE_CHARS: usize = 8000;
/// The characters of a tool's output and of thinking that are shown.
const OUTPUT_CHARS: usize = 1000;
/// The characters of the arguments of a tool call that are shown.
const ARG_CHARS: usize = 200;

/// The records to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct PreviewTarget {
    pub(in super::super) session_id: SessionId,
    /// The record to show with those around it; `None` for the end of the session.
    pub(in super::super) seq: Option<Seq>,
}

impl PreviewTarget {
    /// Returns the params that request the records.
    pub(in super::super) fn params(&self) -> SessionGetParams {
        let (from, limit, branch) = match self.seq {
            None => (-i64::from(TAIL_RECORDS), TAIL_RECORDS, BranchFilter::Active),
            Some(seq) => {
                let from = seq.0.saturating_sub(RECORDS_BEFORE);
                (i64::try_from(from).unwrap_or(i64::MAX), RECORDS_AROUND, BranchFilter::All)
            }
        };
        SessionGetParams {
            session_id: self.session_id,
            from: Some(from),
            limit: Some(limit),
            branch,
        }
    }
}

/// A record as it is shown: a heading with its details, and a text.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RecordBlock {
    seq: Seq,
    tone: UiTone,
    heading: String,
    details: String,
    text: String,
    /// The tone of the text.
    text_tone: UiTone,
}

/// The records beside a list.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct RecordPreview {
    shown: Option<PreviewTarget>,
    blocks: Vec<RecordBlock>,
    lines: Vec<UiLine>,
    /// The columns at which the lines are wrapped, and the rows of the screen for them.
    size: (usize, usize),
    /// The first line on the screen; `None` for the end of the lines.
    top: Option<usize>,
    waiting: Option<PreviewTarget>,
    is_stale: bool,
    pub(in super::super) problem: Option<String>,
}

impl RecordPreview {
    /// Returns the lines on the screen, if they are those of the target.
    pub(in super::super) fn visible(&self, target: Option<PreviewTarget>) -> &[UiLine] {
        if target.is_none() || self.shown != target {
            return &[];
        }
        let top = self.first_line();
        &self.lines[top..(top + self.size.1).min(self.lines.len())]
    }

    /// Returns whether there are lines before and after those on the screen.
    pub(in super::super) fn has_more(&self) -> (bool, bool) {
        let top = self.first_line();
        (top > 0, top + self.size.1 < self.lines.len())
    }

    /// Requests the records again: there are new ones.
    pub(in super::super) fn refresh(&mut self) {
        self.is_stale = true;
    }

    /// Forgets that a reply is awaited: the connection was lost.
    pub(in super::super) fn stop_waiting(&mut self) {
        self.waiting = None;
        self.is_stale = true;
    }

    /// Returns the target to request now; `None` if a reply is awaited or nothing is missing.
    pub(in super::super) fn next_request(
        &mut self,
        target: Option<PreviewTarget>,
    ) -> Option<PreviewTarget> {
        let target = target?;
        if self.waiting.is_some() || (self.shown == Some(target) && !self.is_stale) {
            return None;
        }
        self.is_stale = false;
        self.waiting = Some(target);
        Some(target)
    }

    /// Shows records, or the problem of reading them. Returns false, and shows nothing, if another target is wanted now.
    pub(in super::super) fn receive(
        &mut self,
        target: PreviewTarget,
        wanted: Option<PreviewTarget>,
        records: Result<Vec<Record>, String>,
        times: &RenderOptions,
    ) -> bool {
        if self.waiting == Some(target) {
            self.waiting = None;
        }
        if wanted != Some(target) {
            return false;
        }
        let is_other = self.shown != Some(target);
        self.shown = Some(target);
        self.problem = records.as_ref().err().cloned();
        self.blocks = blocks(records.unwrap_or_default(), times);
        self.wrap();
        if is_other {
            self.top = target.seq.map(|seq| self.line_of(seq));
        }
        true
    }

    /// Sets the columns and rows of the screen.
    pub(in super::super) fn resize(&mut self, size: (usize, usize)) {
        if self.size != size {
            self.size = size;
            self.wrap();
        }
    }

    /// Moves the lines on the screen by a number of rows.
    pub(in super::super) fn move_by(&mut self, rows: isize) {
        let top = self.first_line().saturating_add_signed(rows);
        let last = self.last_top();
        // At the end, new records are shown as they come.
        self.top = (top < last || self.shown.is_some_and(|target| target.seq.is_some()))
            .then_some(top.min(last));
    }

    fn first_line(&self) -> usize {
        self.top.unwrap_or(usize::MAX).min(self.last_top())
    }

    fn last_top(&self) -> usize {
        self.lines.len().saturating_sub(self.size.1)
    }

    fn line_of(&self, seq: Seq) -> usize {
        let before = self.blocks.iter().take_while(|block| block.seq < seq);
        before.map(|block| block_lines(block, None, self.size.0).len()).sum()
    }

    fn wrap(&mut self) {
        let found = self.shown.and_then(|target| target.seq);
        let lines = self.blocks.iter().map(|block| block_lines(block, found, self.size.0));
        self.lines = lines.flatten().collect();
    }
}

/// Returns the lines of a record, with an empty one behind; the found record has a mark.
fn block_lines(block: &RecordBlock, found: Option<Seq>, width: usize) -> Vec<UiLine> {
    let mark = if found == Some(block.seq) { "» " } else { "" };
    let mut lines = vec![UiLine(vec![
        (UiTone::Match, mark.to_owned()),
        (block.tone, block.heading.clone()),
        (UiTone::Faint, format!("  {}", block.details)),
    ])];
    let text = block.text.trim_end();
    if !text.is_empty() {
        lines.extend(wrap(text, width).into_iter().map(|line| UiLine::of(block.text_tone, line)));
        lines.push(UiLine::default());
    }
    lines
}

/// Returns what is shown of records. The pieces of an answer that is being written are one text.
fn blocks(records: Vec<Record>, times: &RenderOptions) -> Vec<RecordBlock> {
    let mut blocks = Vec::new();
    let mut answer: Option<RecordBlock> = None;
    for record in records {
        let other = if record.active { "" } else { " (other branch)" };
        let details = format!("#{} {}{other}", record.seq, times.minute(record.at));
        let (seq, size_bytes, kind) = (record.seq, record.size_bytes, record.kind);
        let note = |heading: String| RecordBlock {
            seq,
            tone: UiTone::Faint,
            heading,
            details: details.clone(),
            text: String::new(),
            text_tone: UiTone::Plain,
        };
        match record.into_body() {
            Some(RecordBody::Message(message)) => {
                answer = None;
                blocks.push(RecordBlock { details, ..message_block(seq, &message) });
            }
            Some(RecordBody::ToolCall(call)) => {
                blocks.push(RecordBlock { details, ..call_block(seq, &call) });
            }
            Some(RecordBody::Custom(custom)) if custom.name == Custom::PARTIAL_ANSWER => {
                let piece = custom.data["text"].as_str().unwrap_or_default();
                let growing = answer.get_or_insert_with(|| RecordBlock {
                    tone: UiTone::Live,
                    ..note("assistant, answering now".to_owned())
                });
                growing.text.push_str(&shown_text(piece));
            }
            Some(body) => {
                if let Some(heading) = note_of(&body) {
                    blocks.push(note(heading));
                }
            }
            None => {
                let size = size_bytes.map_or_else(String::new, |size| format!(", {}", bytes(size)));
                let name = crate::render::wire_name(kind);
                blocks.push(RecordBlock {
                    text: format!("ollmctl sessions view ID --from {seq} --limit 1 --full"),
                    text_tone: UiTone::Faint,
                    ..note(format!("{name}{size}"))
                });
            }
        }
    }
    blocks.extend(answer);
    blocks
}

fn message_block(seq: Seq, message: &Message) -> RecordBlock {
    let mut heading = message.role.as_str().to_owned();
    for detail in [&message.tool_name, &message.model].into_iter().flatten() {
        heading = format!("{heading} {}", shown_line(detail));
    }
    let limit = if message.role == Role::Tool { OUTPUT_CHARS } else { MESSAGE_CHARS };
    let mut text = String::new();
    for part in &message.parts {
        let part = match part {
            Part::Text { text } => beginning(text, limit),
            Part::Thinking { text } => format!("(thinking) {}", beginning(text, OUTPUT_CHARS)),
            Part::ToolCall { name, args, .. } => call_line(name, &args.to_string()),
            Part::Image { mime_type, .. } => format!("[{}]", shown_line(mime_type)),
        };
        text.push_str(part.trim_end());
        text.push('\n');
    }
    if let Some(reason) = message.finish_reason.as_deref().filter(|reason| *reason != "stop") {
        text.push_str(&format!("({})", shown_line(reason)));
    }
    RecordBlock {
        seq,
        tone: UiTone::of_role(message.role),
        heading,
        details: String::new(),
        text,
        text_tone: UiTone::Plain,
    }
}

fn call_block(seq: Seq, call: &ToolCall) -> RecordBlock {
    let result = &call.result;
    let is_failure = result.success == Some(false) || result.error.is_some();
    let failed = if is_failure { ", failed" } else { "" };
    let output = result.display_content.as_deref().unwrap_or(&result.llm_content);
    let error = result.error.as_deref().unwrap_or_default();
    let args = call_line(&call.name, &call.args.to_string());
    RecordBlock {
        seq,
        tone: UiTone::Tool,
        heading: format!("tool {}{failed}", shown_line(&call.name)),
        details: String::new(),
        text: format!("{args}\n{}{}", shown_text(error), beginning(output, OUTPUT_CHARS)),
        text_tone: UiTone::Plain,
    }
}

fn call_line(name: &str, args: &str) -> String {
    format!("-> {} {}", shown_line(name), beginning(&shown_line(args), ARG_CHARS))
}

/// Returns the beginning of a text, and how much is missing.
fn beginning(text: &str, max_chars: usize) -> String {
    match text.char_indices().nth(max_chars) {
        None => shown_text(text),
        Some((end, _)) => {
            let more = grouped(text[end..].chars().count() as u64);
            format!("{}… ({more} more characters)", shown_text(&text[..end]))
        }
    }
}

/// Returns a line for a record that is not part of the conversation; `None` if readers do not need it.
fn note_of(body: &RecordBody) -> Option<String> {
    Some(match body {
        RecordBody::Compaction(compaction) => {
            let after = compaction.tokens_after.map(|after| format!(" to {}", grouped(after)));
            let after = after.unwrap_or_default();
            format!("compacted {}{after} tokens", grouped(compaction.tokens_before))
        }
        RecordBody::BranchSummary(branch) => {
            format!("summary of a branch: {}", beginning(&shown_line(&branch.summary), ARG_CHARS))
        }
        RecordBody::Custom(custom) => {
            let text = custom.context_text.as_deref()?;
            let text = beginning(&shown_line(text), ARG_CHARS);
            format!("{}: {text}", shown_line(&custom.name))
        }
        RecordBody::Leaf(moved) => match moved.to {
            Some(to) => format!("{} to #{to}", shown_line(&moved.cause)),
            None => format!("{} to the beginning", shown_line(&moved.cause)),
        },
        RecordBody::ModeChange(change) => format!("mode {}", shown_line(&change.to)),
        RecordBody::Label(label) => {
            let name = shown_line(label.name.as_deref().unwrap_or_default());
            format!("label {name} on #{}", label.target)
        }
        RecordBody::Goal(_) => "goals changed".to_owned(),
        RecordBody::Pin(pin) if pin.pinned => format!("pinned #{}", pin.target),
        RecordBody::Pin(pin) => format!("unpinned #{}", pin.target),
        // The others come before each change by themselves.
        RecordBody::Snapshot(snapshot) if snapshot.reason == "manual" => "snapshot".to_owned(),
        RecordBody::PutBack(files) => {
            format!("put back {}", counted(files.files.len() as u64, "file"))
        }
        RecordBody::Close(_) => "closed".to_owned(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{SESSION_ID, render_options};

    fn target(seq: Option<u64>) -> PreviewTarget {
        PreviewTarget { session_id: SESSION_ID.parse().unwrap(), seq: seq.map(Seq) }
    }

    fn record(seq: u64, kind: &str, body: &Value) -> Record {
        serde_json::from_value(json!({
            "seq": seq, "at": "2026-01-27T10:00:00Z", "type": kind, kind: body
        }))
        .unwrap()
    }

    fn message(seq: u64, role: &str, text: &str) -> Record {
        let at = "2026-01-27T10:00:00Z";
        let parts = json!([{ "type": "text", "text": text }]);
        record(seq, "message", &json!({ "role": role, "parts": parts, "timestamp": at }))
    }

    fn piece(seq: u64, text: &str) -> Record {
        let data = json!({ "model": "tiny", "text": text });
        record(seq, "custom", &json!({ "name": Custom::PARTIAL_ANSWER, "data": data }))
    }

    fn shown(preview: &RecordPreview, target: PreviewTarget) -> Vec<String> {
        preview.visible(Some(target)).iter().map(UiLine::text).collect()
    }

    fn receive(preview: &mut RecordPreview, target: PreviewTarget, records: Vec<Record>) -> bool {
        preview.receive(target, Some(target), Ok(records), &render_options(80))
    }

    #[test]
    fn messages_are_wrapped_and_sanitized() {
        let mut preview = RecordPreview::default();
        preview.resize((20, 20));
        let records = vec![
            message(1, "user", "How do I \u{1b}[2Jreverse a list?"),
            message(2, "assistant", "So."),
        ];
        assert!(receive(&mut preview, target(None), records));
        assert_eq!(
            shown(&preview, target(None)),
            [
                "user  #1 2026-01-27 10:00",
                "How do I reverse a",
                "list?",
                "",
                "assistant  #2 2026-01-27 10:00",
                "So.",
                "",
            ]
        );
        assert!(preview.visible(Some(target(Some(1)))).is_empty(), "another target is wanted");
        preview.resize((40, 20));
        assert_eq!(shown(&preview, target(None))[1], "How do I reverse a list?");
    }

    #[test]
    fn answer_in_pieces_is_one_text_until_it_is_whole() {
        let mut preview = RecordPreview::default();
        preview.resize((40, 20));
        let mut records = vec![message(1, "user", "Hi"), piece(2, "Hel"), piece(3, "lo")];
        receive(&mut preview, target(None), records.clone());
        let lines = shown(&preview, target(None));
        assert!(lines[3].starts_with("assistant, answering now"), "{lines:?}");
        assert_eq!(lines[4], "Hello");
        records.push(message(4, "assistant", "Hello!"));
        receive(&mut preview, target(None), records);
        let lines = shown(&preview, target(None));
        assert!(lines.iter().all(|line| !line.contains("answering")), "{lines:?}");
        assert_eq!(lines[4], "Hello!");
    }

    #[test]
    fn end_of_a_session_is_followed_and_a_found_record_is_kept_in_sight() {
        let mut preview = RecordPreview::default();
        preview.resize((40, 3));
        let records: Vec<Record> = (1..=9).map(|seq| message(seq, "user", "Hi")).collect();
        receive(&mut preview, target(None), records.clone());
        assert_eq!(shown(&preview, target(None))[0], "user  #9 2026-01-27 10:00");
        preview.move_by(-6);
        assert_eq!(shown(&preview, target(None))[0], "user  #7 2026-01-27 10:00");
        assert_eq!(preview.has_more(), (true, true));
        receive(&mut preview, target(None), records.clone());
        assert_eq!(shown(&preview, target(None))[0], "user  #7 2026-01-27 10:00");
        preview.move_by(100);
        receive(&mut preview, target(None), vec![message(10, "user", "Hi")]);
        assert_eq!(shown(&preview, target(None))[0], "user  #10 2026-01-27 10:00");
        receive(&mut preview, target(Some(4)), records);
        assert_eq!(shown(&preview, target(Some(4)))[0], "» user  #4 2026-01-27 10:00");
    }

    #[test]
    fn one_request_is_under_way_and_stale_replies_are_dropped() {
        let mut preview = RecordPreview::default();
        assert_eq!(preview.next_request(None), None);
        assert_eq!(preview.next_request(Some(target(None))), Some(target(None)));
        assert_eq!(preview.next_request(Some(target(Some(3)))), None);
        let records = Ok(vec![message(1, "user", "Hi")]);
        let times = render_options(80);
        assert!(!preview.receive(target(None), Some(target(Some(3))), records, &times));
        assert_eq!(preview.next_request(Some(target(Some(3)))), Some(target(Some(3))));
        receive(&mut preview, target(Some(3)), Vec::new());
        assert_eq!(preview.next_request(Some(target(Some(3)))), None);
        preview.refresh();
        assert_eq!(preview.next_request(Some(target(Some(3)))), Some(target(Some(3))));
    }

    #[test]
    fn large_content_is_shortened() {
        let block = |record| blocks(vec![record], &render_options(80)).remove(0);
        let long = message(1, "user", &"x".repeat(MESSAGE_CHARS + 1200));
        assert!(block(long).text.ends_with("… (1,200 more characters)\n"));
        let unread = message(2, "user", "x").without_content(3 << 20);
        assert_eq!(block(unread).heading, "message, 3.0 MiB");
    }
}
