//! The projection from records to the document.

use ollm_protocol::content::{
    ExportFormat, LeafMove, ModeChange, Part, RecordKind, SessionHeader, ToolResult,
};
use ollm_protocol::{Seq, SessionId};
use serde_json::{Value, json};

use super::*;
use crate::session::import::tests::fold::{OTHER_ID, export, mark_active};

fn at(second: i64) -> Timestamp {
    Timestamp::from_unix_ms(1_769_508_000_000 + second * 1000)
}

fn log(bodies: Vec<(Option<u64>, RecordBody)>) -> Vec<Record> {
    let header: SessionHeader = serde_json::from_value(json!({
        "sessionId": SessionId::from_uuid(OTHER_ID), "startTime": at(0), "title": "A \"bridge\"",
        "model": "m", "systemPrompt": "be brief", "contextSize": 4096, "metadata": { "k": [1] },
    }))
    .unwrap();
    let mut records = vec![Record::new(Seq(0), None, at(0), RecordBody::Session(header))];
    for (seq, (parent, body)) in (1..).zip(bodies) {
        let now = at(i64::try_from(seq).unwrap());
        let mut record = Record::new(Seq(seq), parent.map(Seq), now, body);
        record.tokens = Some(10);
        records.push(record);
    }
    mark_active(&mut records);
    records
}

fn said(role: Role, text: &str) -> RecordBody {
    RecordBody::Message(Message::text(role, text, at(1)))
}

fn called(id: &str) -> RecordBody {
    RecordBody::ToolCall(ToolCall {
        id: id.to_owned(),
        name: "read".to_owned(),
        args: json!({ "path": "a" }),
        result: ToolResult { llm_content: "x".to_owned(), ..ToolResult::default() },
        timestamp: at(2),
        duration_ms: None,
        message_seq: None,
    })
}

#[test]
fn a_document_holds_every_message_and_marks_those_off_the_path() {
    let mode = ModeChange {
        from: None,
        to: "planning".to_owned(),
        timestamp: at(5),
        trigger: "manual".to_owned(),
        confidence: None,
    };
    let records = log(vec![
        (None, said(Role::User, "one")),
        (Some(1), called("a")),
        (Some(2), said(Role::Assistant, "two")),
        (Some(3), called("b")),
        (Some(2), RecordBody::ModeChange(mode)),
        (Some(5), said(Role::User, "three")),
    ]);
    let document: Value = serde_json::from_str(&export(ExportFormat::Json, &records)).unwrap();
    assert_eq!(
        document["messages"]
            .as_array()
            .unwrap()
            .iter()
            .map(|m| m["active"].clone())
            .collect::<Vec<_>>(),
        [Value::Null, json!(false), Value::Null]
    );
    assert_eq!(document["toolCalls"][0]["afterMessages"], json!(1));
    assert_eq!(document["toolCalls"][1]["afterMessages"], json!(2));
    assert_eq!(document["toolCalls"][1]["active"], json!(false));
    assert_eq!(
        document["metadata"],
        json!({
            "tokenCount": 50, "compressionCount": 0, "userMessageCount": 2,
            "modeHistory": [{ "to": "planning", "timestamp": at(5), "trigger": "manual" }],
            "title": "A \"bridge\"", "systemPrompt": "be brief", "contextWindow": 4096,
            "lastMessageAt": at(1), "client": { "k": [1] },
        })
    );
    assert_eq!(document["lastActivity"], json!(at(6)));
}

#[test]
fn a_document_asks_for_a_pass_only_for_a_list_that_has_something() {
    let count = |records: &[Record]| {
        let (session, _) = crate::session::import::tests::fold::session_of(records);
        let facts = SessionFacts { session: &session, system_prompt: None };
        let (mut writer, mut out) = (DocumentWriter::default(), String::new());
        writer.begin(&facts, &mut out);
        for n in 1.. {
            records.iter().for_each(|record| writer.record(record.clone(), &mut out));
            if !writer.end_pass(&facts, &mut out) {
                serde_json::from_str::<Value>(&out).expect("valid JSON");
                return n;
            }
        }
        0
    };
    assert_eq!(count(&log(vec![])), 1);
    assert_eq!(count(&log(vec![(None, said(Role::User, "one"))])), 1);
    assert_eq!(count(&log(vec![(None, called("a"))])), 2);
}

#[test]
fn nothing_in_force_is_a_document_too() {
    let undo = RecordBody::Leaf(LeafMove { to: None, cause: "undo".to_owned() });
    let records = log(vec![(None, said(Role::User, "one")), (None, undo)]);
    assert_eq!(records[2].kind, RecordKind::Leaf);
    let document: Value = serde_json::from_str(&export(ExportFormat::Json, &records)).unwrap();
    assert_eq!(document["messages"][0]["active"], json!(false));
    let part: Part = serde_json::from_value(document["messages"][0]["parts"][0].clone()).unwrap();
    assert_eq!(part, Part::Text { text: "one".to_owned() });
}
