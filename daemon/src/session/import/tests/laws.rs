//! Properties: an import of an export gives the same session, and no file makes an import panic.

use ollm_protocol::content::{
    AskedFact, BranchSummary, Close, CloseReason, Compaction, CompactionMethod, ContextEntryChange,
    Custom, Delta, Epoch, EpochBasis, ExportFormat, GoalChange, GoalMarker, GoalSource, GoalStep,
    HeadItem, Label, LeafMove, LoopKind, LoopMark, LoopPattern, Message, MetaPatch, ModeChange,
    Part, Pin, PutBack, Record, RecordBody, RecordKind, RecordScope, RestMark, Retention, Role,
    SessionDocument, SessionHeader, SnapshotMark, ToolCall, ToolResult, Usage,
};
use ollm_protocol::{GoalId, PlanId, Seq, SessionId, SnapshotId, Timestamp};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::parse;
use crate::session::testing::{FALLBACK_ID, export, mark_active, numbered};

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        Just("```\n</pre><script>\u{1b}[31m\r\n\u{2028}\u{0}\"\\".to_owned()),
        "[a-z ]{0,20}",
    ]
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<i64>().prop_map(|n| json!({ "n": [n, true] })),
        any::<i32>().prop_map(|n| json!(f64::from(n) / 8.0)),
        text().prop_map(|text| json!({ "text": text, "": {} })),
    ]
}

fn time() -> impl Strategy<Value = Timestamp> {
    (0..4_000_000_000_000_i64).prop_map(Timestamp::from_unix_ms)
}

fn part() -> impl Strategy<Value = Part> {
    prop_oneof![
        text().prop_map(|text| Part::Text { text }),
        text().prop_map(|text| Part::Thinking { text }),
        (text(), text(), value()).prop_map(|(id, name, args)| Part::ToolCall { id, name, args }),
        (text(), text()).prop_map(|(mime_type, data)| Part::Image { mime_type, data }),
    ]
}

fn role() -> impl Strategy<Value = Role> {
    prop::sample::select(vec![Role::System, Role::User, Role::Assistant, Role::Tool])
}

fn message() -> impl Strategy<Value = Message> {
    let details =
        (prop::option::of(text()), prop::option::of(text()), prop::option::of(any::<u64>()));
    (role(), prop::collection::vec(part(), 0..3), time(), details).prop_map(
        |(role, parts, timestamp, (name, reason, duration_ms))| Message {
            role,
            parts,
            timestamp,
            tool_call_id: reason.clone(),
            tool_name: name.clone(),
            model: name,
            finish_reason: reason,
            duration_ms,
        },
    )
}

fn tool_call(before: u64) -> impl Strategy<Value = ToolCall> {
    let result = (text(), prop::option::of(text()), prop::option::of(any::<i32>()));
    (text(), text(), value(), result, time(), prop::option::of(0..before.max(1))).prop_map(
        |(id, name, args, (llm_content, display, exit_code), timestamp, message_seq)| ToolCall {
            id,
            name,
            args,
            result: ToolResult {
                llm_content,
                error: display.clone(),
                display_content: display,
                success: exit_code.map(|code| code == 0),
                exit_code,
            },
            timestamp,
            duration_ms: exit_code.map(|code| code.unsigned_abs().into()),
            message_seq: message_seq.map(Seq),
            writes: None,
            writes_root: None,
            writes_omitted: 0,
        },
    )
}

fn mode_change() -> impl Strategy<Value = ModeChange> {
    (prop::option::of(text()), text(), time(), text(), prop::option::of(0..=100_u32)).prop_map(
        |(from, to, timestamp, trigger, confidence)| ModeChange {
            from,
            to,
            timestamp,
            trigger,
            confidence: confidence.map(|percent| f64::from(percent) / 100.0),
        },
    )
}

fn header() -> impl Strategy<Value = SessionHeader> {
    let named = || prop::option::of("[a-z]{1,8}");
    (any::<u128>(), time(), named(), named(), prop::option::of(2048..100_000_u32), value())
        .prop_map(|(id, start_time, model, title, context_size, extra)| SessionHeader {
            session_id: SessionId::from_uuid(uuid::Uuid::from_u128(id)),
            start_time,
            project_path: title.as_ref().map(|name| format!("/home/{name}")),
            provider: model.clone(),
            allowed_servers: model.iter().cloned().collect(),
            model,
            system_prompt: title.clone(),
            title,
            keep_alive_seconds: context_size,
            context_size,
            mode: None,
            forked_from: None,
            imported_from: None,
            options: [("extra".to_owned(), extra.clone())].into(),
            metadata: [("extra".to_owned(), extra)].into(),
        })
}

/// Returns a body of any kind, which refers only to records before `before`.
fn body(before: u64) -> BoxedStrategy<RecordBody> {
    let seq = move || (0..before.max(1)).prop_map(Seq);
    let kinds = prop::sample::select(exported_kinds());
    let small = (text(), prop::option::of(text()), value(), any::<u32>(), any::<bool>());
    let refs = (seq(), seq(), prop::option::of(seq()));
    let large = (message(), tool_call(before), mode_change(), header());
    (kinds, small, refs, large)
        .prop_map(|(kind, small, refs, large)| body_of(kind, small, refs, large))
        .boxed()
}

type Small = (String, Option<String>, Value, u32, bool);
type Refs = (Seq, Seq, Option<Seq>);
type Large = (Message, ToolCall, ModeChange, SessionHeader);

fn delta_of(text: String) -> Delta {
    Delta { topic: text.clone(), text, recalled: Vec::new() }
}

/// Returns the record of a plan as an import leaves it: without files.
fn put_back(cause: String) -> PutBack {
    let plan_id = PlanId::from_uuid(FALLBACK_ID);
    PutBack { plan_id, cause, root: String::new(), files: Vec::new(), left: Vec::new() }
}

fn cycle_of(tool: String) -> LoopPattern {
    LoopPattern { kind: LoopKind::Cycle, tools: vec![tool], count: 3 }
}

fn body_of(
    kind: RecordKind,
    (text, maybe, value, n, flag): Small,
    (one, two, other): Refs,
    (message, call, mode, header): Large,
) -> RecordBody {
    let (from, to) = (one.min(two), one.max(two));
    let epoch = Epoch {
        strategy: text.clone(),
        cause: text.clone(),
        context_size: n,
        tokenizer: text.clone(),
        head_tokens: n.into(),
        head: vec![
            HeadItem::Range { from, to },
            HeadItem::Cut { seq: to, head_chars: n, tail_chars: n },
            HeadItem::Handle { seq: from },
            HeadItem::Stub { seq: from, reason: text.clone(), by: to },
            HeadItem::Earlier { seq: to, head_chars: Some(n), tail_chars: None },
            HeadItem::Pinned { seq: to, head_chars: None, tail_chars: Some(n) },
            HeadItem::Block { topic: text.clone(), text: text.clone() },
        ],
        basis: flag.then(|| EpochBasis { additions: text.clone(), ..EpochBasis::default() }),
    };
    match kind {
        RecordKind::Session => RecordBody::Session(header),
        RecordKind::Message => RecordBody::Message(message),
        RecordKind::ToolCall => RecordBody::ToolCall(call),
        RecordKind::Compaction => RecordBody::Compaction(Compaction {
            from: other.map(|_| from),
            to: other.map(|_| to),
            summary: text.clone(),
            tokens_before: n.into(),
            tokens_after: other.map(|seq| seq.0),
            tokenizer: text.clone(),
            epoch: flag.then_some(epoch),
            checkpoints: Vec::new(),
            method: flag.then_some(CompactionMethod::Summarized),
            model: maybe,
            retention: flag.then(Retention::default),
            asked: vec![AskedFact { seq: to, digest: text, chosen: flag }],
        }),
        RecordKind::Epoch => RecordBody::Epoch(epoch),
        RecordKind::Delta => RecordBody::Delta(delta_of(text)),
        RecordKind::Goal => RecordBody::Goal(goal_change(text, flag, other)),
        RecordKind::ContextEntry => RecordBody::ContextEntry(ContextEntryChange {
            key: text,
            content: maybe,
            priority: flag.then_some(3),
            source: None,
        }),
        RecordKind::Pin => RecordBody::Pin(Pin { target: one, pinned: flag }),
        RecordKind::ModeChange => RecordBody::ModeChange(mode),
        RecordKind::BranchSummary => {
            RecordBody::BranchSummary(BranchSummary { from: other, summary: text, by: None })
        }
        RecordKind::Custom => {
            RecordBody::Custom(Custom { name: text, data: value, context_text: maybe })
        }
        RecordKind::Usage => RecordBody::Usage(Usage {
            model: maybe,
            prompt_tokens: n.into(),
            answer_tokens: n.into(),
        }),
        RecordKind::Meta => RecordBody::Meta(MetaPatch {
            title: maybe,
            pinned: Some(flag),
            metadata: [(text, value)].into(),
            ..MetaPatch::default()
        }),
        RecordKind::Label => RecordBody::Label(Label { target: one, name: maybe }),
        RecordKind::Leaf => RecordBody::Leaf(LeafMove { to: other, cause: text }),
        RecordKind::Snapshot => RecordBody::Snapshot(SnapshotMark {
            summary: maybe,
            ..SnapshotMark::new(SnapshotId::from_uuid(FALLBACK_ID), other, &text)
        }),
        RecordKind::Loop => RecordBody::Loop(LoopMark { pattern: maybe.map(cycle_of) }),
        RecordKind::Close => RecordBody::Close(Close { reason: CloseReason::Client }),
        RecordKind::PutBack => RecordBody::PutBack(put_back(text)),
        RecordKind::Rest => RecordBody::Rest(RestMark {}),
    }
}

/// Returns the kinds of records that an export can have.
fn exported_kinds() -> Vec<RecordKind> {
    let kinds = RecordKind::ALL.iter().copied();
    kinds.filter(|kind| kind.scope() != RecordScope::Log).collect()
}

fn goal_change(text: String, is_marker: bool, message_seq: Option<Seq>) -> GoalChange {
    let id = GoalId::from_uuid(FALLBACK_ID);
    let (source, step) = if is_marker {
        let marker = GoalMarker::Checkpoint { description: text, status: None };
        (GoalSource::Marker, GoalStep::Mark { id, marker })
    } else {
        let next_steps = vec![text];
        (GoalSource::Client, GoalStep::SetNextSteps { goal: id, next_steps })
    };
    GoalChange { source, message_seq, steps: vec![step] }
}

/// Returns a header and records, each of which has an earlier parent or starts a path.
fn log(body: fn(u64) -> BoxedStrategy<RecordBody>) -> impl Strategy<Value = Vec<Record>> {
    let rest = (0..12_u64).prop_flat_map(move |n| {
        (1..=n)
            .map(|seq| {
                (
                    body(seq),
                    prop::option::of(1..seq.max(2)),
                    0..5_000_i64,
                    prop::option::of("[a-z]{3}"),
                )
            })
            .collect::<Vec<_>>()
    });
    (header(), rest).prop_map(|(header, rest)| {
        let mut at = header.start_time;
        let mut records = vec![Record::new(Seq(0), None, at, RecordBody::Session(header))];
        for (seq, (body, parent, wait_ms, key)) in (1..).zip(rest) {
            at = Timestamp::from_unix_ms(at.unix_ms() + wait_ms);
            let parent = parent.filter(|&parent| parent < seq).map(Seq);
            let mut record = Record::new(Seq(seq), parent, at, body);
            record.key = key;
            records.push(record);
        }
        mark_active(&mut records);
        records
    })
}

fn document_body(before: u64) -> BoxedStrategy<RecordBody> {
    let description =
        "[a-z]{1,9}".prop_map(|text| MetaPatch { description: Some(text), ..MetaPatch::default() });
    prop_oneof![
        4 => message().prop_map(RecordBody::Message),
        2 => tool_call(before).prop_map(RecordBody::ToolCall),
        1 => mode_change().prop_map(RecordBody::ModeChange),
        1 => prop::option::of(1..before.max(2)).prop_map(move |to| RecordBody::Leaf(LeafMove {
            to: to.filter(|&to| to < before).map(Seq),
            cause: "undo".to_owned(),
        })),
        1 => description.prop_map(RecordBody::Meta),
    ]
    .boxed()
}

fn document_of(records: &[Record]) -> SessionDocument {
    serde_json::from_str(&export(ExportFormat::Json, records)).expect("a valid document")
}

proptest! {
    #[test]
    fn import_of_jsonl_gives_the_same_records(records in log(body)) {
        let text = export(ExportFormat::Jsonl, &records);
        prop_assert_eq!(text.lines().count(), records.len() + 1);
        let imported = parse(&text).unwrap();
        prop_assert_eq!(&imported.report.losses, &[]);
        prop_assert_eq!(imported.report.source_records, imported.report.imported_records);
        prop_assert_eq!(numbered(&imported), records);
    }

    #[test]
    fn import_of_a_document_gives_the_same_document(records in log(document_body)) {
        let written = document_of(&records);
        let imported = parse(&export(ExportFormat::Json, &records)).unwrap();
        prop_assert_eq!(&imported.report.losses, &[]);
        prop_assert_eq!(document_of(&numbered(&imported)), written);
    }

    #[test]
    fn truncated_jsonl_gives_a_prefix(records in log(body), cut in 0.0..1.0_f64) {
        let text = export(ExportFormat::Jsonl, &records);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a fraction of a length")]
        let mut end = (text.len() as f64 * cut) as usize;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        if let Ok(imported) = parse(&text[..end]) {
            let found = numbered(&imported);
            if found.len() > 1 {
                for (found, written) in found[1..].iter().zip(&records[1..]) {
                    prop_assert_eq!(found.clone().into_body(), written.clone().into_body());
                }
            }
        }
    }

    #[test]
    fn any_text_is_read_or_refused_without_panic(text in any::<String>()) {
        drop(parse(&text).map(|imported| numbered(&imported)));
        let pi = format!("{{\"type\":\"session\",\"id\":\"x\",\"version\":3}}\n{text}");
        drop(parse(&pi).map(|imported| numbered(&imported)));
    }
}
