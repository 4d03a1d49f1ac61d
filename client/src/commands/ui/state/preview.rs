//! The records beside a list: the end of a session with the answer that is being written there, or the records around a found
//! one. Pure.
//!
//! Until other records arrive, those before stay; the reply to a request for a target that is no longer wanted is dropped.
//! A record is laid out when it comes onto the screen, once for each width.

use std::collections::HashMap;

use ollm_protocol::content::{Message, Part, Record, RecordBody, Role, ToolCall};
use ollm_protocol::methods::session::{BranchFilter, SessionGetParams};
use ollm_protocol::{Seq, SessionId};

use super::super::text::{UiLine, UiTone, markdown, shown_line, shown_text, wrap};
use super::live_answer::LiveAnswer;
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
/// The number of the answer that is being written, behind all records.
const LIVE_SEQ: Seq = Seq(u64::MAX);
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
    texts: Vec<(TextKind, String)>,
}

/// The kind of a text of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TextKind {
    /// A model's words.
    Markdown,
    /// A text whose lines are only wrapped.
    Of(UiTone),
}

/// A record, and its lines if they were on the screen.
#[derive(Clone, Debug)]
struct ShownRecord {
    block: RecordBlock,
    /// The columns at which the lines are wrapped, and the lines.
    lines: Option<(usize, Vec<UiLine>)>,
}

/// The place of a line: its record, and its number there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct LinePlace {
    record: usize,
    line: usize,
}

/// The records beside a list.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct RecordPreview {
    shown: Option<PreviewTarget>,
    records: Vec<ShownRecord>,
    /// The session in which an answer is being written, and the answer.
    live: Option<(SessionId, RecordBlock)>,
    /// The lines on the screen.
    lines: Vec<UiLine>,
    /// Set if there are lines before and after those on the screen.
    more: (bool, bool),
    /// The columns at which the lines are wrapped, and the rows of the screen for them.
    size: (usize, usize),
    /// The record of the first line on the screen, and its number there; `None` for the end of the lines.
    top: Option<(Seq, usize)>,
    is_styled: bool,
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
        &self.lines
    }

    /// Returns whether there are lines before and after those on the screen.
    pub(in super::super) fn has_more(&self) -> (bool, bool) {
        self.more
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
        self.is_styled = times.is_styled;
        // The mark of the found record is among its lines.
        let known = std::mem::take(&mut self.records).into_iter().filter(|_| !is_other);
        let mut known: HashMap<Seq, ShownRecord> =
            known.map(|record| (record.block.seq, record)).collect();
        let blocks = blocks(records.unwrap_or_default(), times).into_iter();
        let shown = blocks.map(|block| match known.remove(&block.seq) {
            Some(same) if same.block == block => same,
            _ => ShownRecord { block, lines: None },
        });
        self.records = shown.collect();
        self.place_live();
        if is_other {
            self.top = target.seq.map(|seq| (seq, 0));
        }
        self.lay_out();
        true
    }

    /// Shows an answer that is being written behind the records of its session; `None` if there is none.
    pub(in super::super) fn show_live(&mut self, answer: Option<&LiveAnswer>) {
        let live = answer.and_then(|answer| Some((answer.session_id, live_block(answer)?)));
        if self.live != live {
            self.live = live;
            self.place_live();
            self.lay_out();
        }
    }

    /// Replaces the answer behind the records.
    fn place_live(&mut self) {
        self.records.pop_if(|record| record.block.seq == LIVE_SEQ);
        if let (Some((id, block)), Some(target)) = (&self.live, self.shown)
            && *id == target.session_id
            && target.seq.is_none()
        {
            self.records.push(ShownRecord { block: block.clone(), lines: None });
        }
    }

    /// Sets the columns and rows of the screen.
    pub(in super::super) fn resize(&mut self, size: (usize, usize)) {
        if self.size != size {
            self.size = size;
            self.lay_out();
        }
    }

    /// Moves the lines on the screen by a number of rows.
    pub(in super::super) fn move_by(&mut self, rows: isize) {
        if !self.has_room() {
            return;
        }
        let end = self.before(self.end(), self.size.1);
        let top = self.first_line(end);
        let top = match rows.is_negative() {
            true => self.before(top, rows.unsigned_abs()),
            false => self.after(top, rows.unsigned_abs()).min(end),
        };
        // At the end, new records are shown as they come.
        let is_kept = top < end || self.shown.is_some_and(|target| target.seq.is_some());
        let record = self.records.get(top.record).filter(|_| is_kept);
        self.top = record.map(|record| (record.block.seq, top.line));
        self.lay_out();
    }

    fn has_room(&self) -> bool {
        self.size.0 > 0 && self.size.1 > 0
    }

    /// Takes the lines on the screen from their records.
    fn lay_out(&mut self) {
        (self.lines, self.more) = (Vec::new(), (false, false));
        if !self.has_room() {
            return;
        }
        let rows = self.size.1;
        let end = self.before(self.end(), rows);
        let top = self.first_line(end);
        let (mut lines, mut place) = (Vec::with_capacity(rows), top);
        while lines.len() < rows && place.record < self.records.len() {
            let room = rows - lines.len();
            let record = self.lines_of(place.record);
            lines.extend(record.iter().skip(place.line).take(room).cloned());
            place = LinePlace { record: place.record + 1, line: 0 };
        }
        self.more = (top > LinePlace::default(), top < end);
        self.lines = lines;
    }

    /// Returns the place behind the last line.
    fn end(&self) -> LinePlace {
        LinePlace { record: self.records.len(), line: 0 }
    }

    /// Returns the place of the first line on the screen; `end` is that of the last lines.
    fn first_line(&mut self, end: LinePlace) -> LinePlace {
        let Some((seq, line)) = self.top else { return end };
        let seqs = || self.records.iter().map(|record| record.block.seq);
        let same = seqs().position(|other| other == seq).map(|record| (record, line));
        // The record may be none of the last ones any more.
        let next = || seqs().position(|other| other > seq).map(|record| (record, 0));
        let Some((record, line)) = same.or_else(next) else { return end };
        let last = self.lines_of(record).len().saturating_sub(1);
        LinePlace { record, line: line.min(last) }.min(end)
    }

    /// Returns the place some lines before another one, or that of the first line.
    fn before(&mut self, mut place: LinePlace, mut n_lines: usize) -> LinePlace {
        while n_lines > place.line {
            n_lines -= place.line;
            let Some(record) = place.record.checked_sub(1) else { return LinePlace::default() };
            place = LinePlace { record, line: self.lines_of(record).len() };
        }
        place.line -= n_lines;
        place
    }

    /// Returns the place some lines after another one, or the end.
    fn after(&mut self, mut place: LinePlace, mut n_lines: usize) -> LinePlace {
        while place.record < self.records.len() {
            let rest = self.lines_of(place.record).len().saturating_sub(place.line);
            if n_lines < rest {
                place.line += n_lines;
                return place;
            }
            n_lines -= rest;
            place = LinePlace { record: place.record + 1, line: 0 };
        }
        place
    }

    /// Returns the lines of a record.
    fn lines_of(&mut self, record: usize) -> &[UiLine] {
        let found = self.shown.and_then(|target| target.seq);
        let (width, is_styled) = (self.size.0, self.is_styled);
        let ShownRecord { block, lines } = &mut self.records[record];
        let known = lines.take().filter(|(columns, _)| *columns == width);
        let made = || (width, block_lines(block, found, width, is_styled));
        &lines.insert(known.unwrap_or_else(made)).1
    }
}

/// Returns the lines of a record, with an empty one behind; the found record has a mark.
fn block_lines(
    block: &RecordBlock,
    found: Option<Seq>,
    width: usize,
    is_styled: bool,
) -> Vec<UiLine> {
    let mark = if found == Some(block.seq) { "» " } else { "" };
    let mut lines = vec![UiLine(vec![
        (UiTone::Match, mark.to_owned()),
        (block.tone, block.heading.clone()),
        (UiTone::Faint, format!("  {}", block.details)),
    ])];
    for (kind, text) in &block.texts {
        match (kind, text.trim_end()) {
            (_, "") => {}
            (TextKind::Markdown, text) => lines.extend(markdown(text, width, is_styled)),
            (TextKind::Of(tone), text) => {
                lines.extend(wrap(text, width).into_iter().map(|line| UiLine::of(*tone, line)));
            }
        }
    }
    if lines.len() > 1 {
        lines.push(UiLine::default());
    }
    lines
}

/// Returns the end of an answer that is being written; `None` if it has no text yet.
fn live_block(answer: &LiveAnswer) -> Option<RecordBlock> {
    let end = |text: &str, max_chars: usize| {
        let from = text.char_indices().rev().nth(max_chars - 1).map_or(0, |(at, _)| at);
        shown_text(&text[from..])
    };
    let thinking = (!answer.thinking.is_empty()).then(|| {
        let text = format!("(thinking) {}", end(&answer.thinking, OUTPUT_CHARS));
        (TextKind::Of(UiTone::Faint), text)
    });
    let text =
        (!answer.text.is_empty()).then(|| (TextKind::Markdown, end(&answer.text, MESSAGE_CHARS)));
    let texts: Vec<_> = thinking.into_iter().chain(text).collect();
    let heading = "assistant, answering now".to_owned();
    let block =
        RecordBlock { seq: LIVE_SEQ, tone: UiTone::Live, heading, details: String::new(), texts };
    (!block.texts.is_empty()).then_some(block)
}

/// Returns what is shown of records.
fn blocks(records: Vec<Record>, times: &RenderOptions) -> Vec<RecordBlock> {
    let mut blocks = Vec::new();
    for record in records {
        let other = if record.active { "" } else { " (other branch)" };
        let details = format!("#{} {}{other}", record.seq, times.minute(record.at));
        let (seq, size_bytes, kind) = (record.seq, record.size_bytes, record.kind);
        let note = |heading: String| RecordBlock {
            seq,
            tone: UiTone::Faint,
            heading,
            details: details.clone(),
            texts: Vec::new(),
        };
        match record.into_body() {
            Some(RecordBody::Message(message)) => {
                blocks.push(RecordBlock { details, ..message_block(seq, &message) });
            }
            Some(RecordBody::ToolCall(call)) => {
                blocks.push(RecordBlock { details, ..call_block(seq, &call) });
            }
            Some(body) => {
                if let Some(heading) = note_of(&body) {
                    blocks.push(note(heading));
                }
            }
            None => {
                let size = size_bytes.map_or_else(String::new, |size| format!(", {}", bytes(size)));
                let name = crate::render::wire_name(kind);
                let command = format!("ollmctl sessions view ID --from {seq} --limit 1 --full");
                blocks.push(RecordBlock {
                    texts: vec![(TextKind::Of(UiTone::Faint), command)],
                    ..note(format!("{name}{size}"))
                });
            }
        }
    }
    blocks
}

fn message_block(seq: Seq, message: &Message) -> RecordBlock {
    let mut heading = message.role.as_str().to_owned();
    for detail in [&message.tool_name, &message.model].into_iter().flatten() {
        heading = format!("{heading} {}", shown_line(detail));
    }
    let limit = if message.role == Role::Tool { OUTPUT_CHARS } else { MESSAGE_CHARS };
    let prose = match message.role {
        Role::Assistant => TextKind::Markdown,
        _ => TextKind::Of(UiTone::Plain),
    };
    let mut texts = Vec::new();
    for part in &message.parts {
        texts.push(match part {
            Part::Text { text } => (prose, beginning(text, limit)),
            Part::Thinking { text } => {
                let text = format!("(thinking) {}", beginning(text, OUTPUT_CHARS));
                (TextKind::Of(UiTone::Faint), text)
            }
            Part::ToolCall { name, args, .. } => {
                (TextKind::Of(UiTone::Plain), call_line(name, &args.to_string()))
            }
            Part::Image { mime_type, .. } => {
                (TextKind::Of(UiTone::Plain), format!("[{}]", shown_line(mime_type)))
            }
        });
    }
    if let Some(reason) = message.finish_reason.as_deref().filter(|reason| *reason != "stop") {
        texts.push((TextKind::Of(UiTone::Plain), format!("({})", shown_line(reason))));
    }
    let (tone, details) = (UiTone::of_role(message.role), String::new());
    RecordBlock { seq, tone, heading, details, texts }
}

fn call_block(seq: Seq, call: &ToolCall) -> RecordBlock {
    let result = &call.result;
    let is_failure = result.success == Some(false) || result.error.is_some();
    let failed = if is_failure { ", failed" } else { "" };
    let output = result.display_content.as_deref().unwrap_or(&result.llm_content);
    let error = result.error.as_deref().unwrap_or_default();
    let args = call_line(&call.name, &call.args.to_string());
    let text = format!("{args}\n{}{}", shown_text(error), beginning(output, OUTPUT_CHARS));
    RecordBlock {
        seq,
        tone: UiTone::Tool,
        heading: format!("tool {}{failed}", shown_line(&call.name)),
        details: String::new(),
        texts: vec![(TextKind::Of(UiTone::Plain), text)],
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
    fn answer_that_is_written_is_behind_the_records_of_its_session() {
        let mut preview = RecordPreview::default();
        preview.resize((40, 20));
        let mut answer = LiveAnswer::new(SESSION_ID.parse().unwrap());
        answer.text = "x".repeat(MESSAGE_CHARS) + "Hello";
        let records = vec![message(1, "user", "Hi")];
        receive(&mut preview, target(None), records.clone());
        preview.show_live(Some(&answer));
        let lines = shown(&preview, target(None));
        assert!(lines.iter().any(|line| line.ends_with("xHello")), "the end is shown: {lines:?}");
        preview.move_by(-isize::MAX);
        let lines = shown(&preview, target(None));
        assert!(lines[3].starts_with("assistant, answering now"), "{lines:?}");
        receive(&mut preview, target(None), records.clone());
        assert!(shown(&preview, target(None))[3].starts_with("assistant, answering now"));
        receive(&mut preview, target(Some(1)), records.clone());
        assert_eq!(shown(&preview, target(Some(1))).len(), 3);
        receive(&mut preview, target(None), records);
        preview.show_live(None);
        assert_eq!(shown(&preview, target(None)).len(), 3);
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
    fn answer_is_shown_as_in_a_chat_and_laid_out_only_where_it_is_seen() {
        let mut preview = RecordPreview::default();
        preview.resize((20, 4));
        let text = "# List\n\n- **one** and more words\n- `two`";
        let records: Vec<Record> = (1..=9).map(|seq| message(seq, "assistant", text)).collect();
        receive(&mut preview, target(None), records.clone());
        assert_eq!(
            shown(&preview, target(None)),
            ["", "- one and more words", "- two", ""],
            "the marks are looks"
        );
        let n_laid_out = |preview: &RecordPreview| {
            preview.records.iter().filter(|record| record.lines.is_some()).count()
        };
        assert_eq!(n_laid_out(&preview), 1);
        preview.move_by(-7);
        assert_eq!(shown(&preview, target(None))[..2], ["# List", ""]);
        assert_eq!(n_laid_out(&preview), 2);
        receive(&mut preview, target(None), records);
        assert_eq!(n_laid_out(&preview), 2, "the same records keep their lines");
        preview.move_by(-100);
        assert_eq!(preview.has_more(), (false, true));
        assert_eq!(shown(&preview, target(None))[1], "# List");
        preview.move_by(100);
        assert_eq!(preview.has_more(), (true, false));
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
        assert!(block(long).texts[0].1.ends_with("… (1,200 more characters)"));
        let unread = message(2, "user", "x").without_content(3 << 20);
        assert_eq!(block(unread).heading, "message, 3.0 MiB");
    }
}
