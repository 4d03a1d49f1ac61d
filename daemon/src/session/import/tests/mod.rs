//! Imports: accepted and refused files, and the losses that they report.

mod laws;
mod pi;

use ollm_protocol::SessionId;
use ollm_protocol::content::{Part, RecordBody, Role};

use super::*;
use crate::session::testing::{FALLBACK_ID, WholeImport, active_roles, losses, numbered};

fn parse(text: &str) -> Result<WholeImport, ImportError> {
    parse_limited(text, MAX_RECORD_BYTES)
}

fn parse_limited(text: &str, max_record_bytes: usize) -> Result<WholeImport, ImportError> {
    let mut source = io::Cursor::new(text.as_bytes());
    let make_spool = || Ok(Box::new(io::Cursor::new(Vec::new())) as Box<dyn SpoolFile>);
    let fallback_id = SessionId::from_uuid(FALLBACK_ID);
    read_with_limit(&mut source, ("d1ge57", fallback_id), max_record_bytes, &make_spool)
        .map(WholeImport::of)
}

#[test]
fn file_that_cannot_be_imported_is_refused_with_a_reason() {
    let check = |text: &str, expect: &str| {
        let error = parse(text).expect_err(text).to_string();
        assert!(error.starts_with(expect), "{text:?}: {error}");
    };
    check("", "the file is empty");
    check("\u{feff} \n\t\n", "the file is empty");
    check("hello\nworld", "the format is not known");
    check("{}", "the format is not known");
    check("[1, 2]", "the format is not known");
    check(r#"{"type":"summary","leafUuid":"x"}"#, "the format is not known");
    check(r#"{"v":1,"seq":0,"type":"session","id":"x"}"#, "the format is not known");
    check(r#"{"ollmExport":2}"#, "version 2 of the export is newer than 1");
    check(
        &format!("{{\"messages\":{}", "[".repeat(10_000)),
        "message 1 is nested deeper than 127 levels, so the document cannot be read",
    );
    check("{\n\"sessionId\":\"x\",\n\"messages\":[{]\n}", "line 3 is not valid JSON");
}

#[test]
fn common_foreign_formats_are_named_in_the_refusal() {
    let check = |text: &str, expect: &str| {
        let error = parse(text).expect_err(text);
        assert!(matches!(error, ImportError::Foreign { .. }), "{text:?}: {error}");
        assert!(error.to_string().contains(expect), "{text:?}: {error}");
    };
    let claude =
        r#"{"parentUuid":null,"isSidechain":false,"uuid":"a","sessionId":"b","type":"user"}"#;
    check(claude, "Claude Code");
    check(&format!("{{\"type\":\"file-history-snapshot\"}}\n{claude}"), "Claude Code");
    check(r#"{"type":"summary","summary":"s","leafUuid":"x"}"#, "Claude Code");
    check(r#"{"timestamp":"t","type":"session_meta","payload":{"id":"x"}}"#, "Codex");
    check(r#"[{"title":"t","create_time":1.5,"mapping":{"a":{"message":null}}}]"#, "ChatGPT");
    check("[\n  {\n    \"title\": \"t\", \"create_time\": 1, \"mapping\": {", "ChatGPT");
    check(r#"[{"id":"i","user_id":"u","title":"t","chat":{"messages":[]}}]"#, "Open WebUI");
    let studio =
        r#"{"name":"n","pinned":false,"createdAt":1,"preset":"","tokenCount":2,"messages":[]}"#;
    check(studio, "LM Studio");
    check("\n# aider chat started at 2025-01-01 10:00:00\n\n#### hi\n", "aider");
    check("SQLite format 3\u{0}", "SQLite");
}

#[test]
fn file_of_an_unknown_format_is_refused_by_its_first_part() {
    let zeros = vec![0; detect::DETECT_BYTES];
    assert!(matches!(check_beginning(&zeros), Err(ImportError::Unrecognized { .. })));
    assert!(check_beginning(&zeros[1..]).is_ok(), "too short to tell");
    let with_zeros = [&br#"{"messages":["#[..], &zeros].concat();
    assert!(check_beginning(&with_zeros).is_ok(), "a document may follow");
    assert!(check_beginning(&[b'\n'; detect::DETECT_BYTES]).is_ok(), "blank lines may come first");
}

#[test]
fn refusal_of_an_unknown_format_describes_the_file() {
    let check = |text: &str, expect: &str| {
        let error = parse(text).expect_err(text).to_string();
        assert!(error.contains(expect), "{text:?}: {error}");
    };
    check("hello\nworld", r#"the file is text that begins with "hello""#);
    check(r#"{"a":1,"b":{},"c":2,"d":3,"e":4}"#, "whose first fields are `a`, `b`, `c`, `d`.");
    check("[1, 2]", "a JSON list, with an element without fields");
    check("\u{1b}[31mred", r#"begins with "[31mred""#);
}

#[test]
fn document_with_fields_in_any_order_gives_the_same_records() {
    let head =
        r#""sessionId":"550e8400-e29b-41d4-a716-446655440000","startTime":"2026-01-01T00:00:00Z""#;
    let messages = r#""messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b",
        "timestamp":"2026-01-01T00:00:05Z"}]"#;
    let calls =
        r#""toolCalls":[{"id":"c","name":"n","result":"r","timestamp":"2026-01-01T00:00:03Z"}]"#;
    let orders = [[head, messages, calls], [calls, messages, head], [messages, head, calls]];
    let [first, others @ ..] = orders.map(|fields| {
        let imported = parse(&format!("{{{}}}", fields.join(","))).expect("a document");
        (imported.header.start_time, imported.records, imported.report.losses)
    });
    assert_eq!(first.1.len(), 3);
    assert!(others.iter().all(|other| *other == first), "{first:?} and {others:?}");
}

#[test]
fn record_above_the_limit_is_a_loss_or_refused_with_the_limit() {
    let large = "x".repeat(1000);
    let pi = format!(
        "{{\"type\":\"session\",\"id\":\"x\",\"version\":1,\"timestamp\":0}}\n{{\"type\":\"{large}\"}}\n"
    );
    let imported = parse_limited(&pi, 1000).expect("the header is carried over");
    assert_eq!(losses(&imported), ["session id", "line"]);
    let export = format!("{{\"ollmExport\":1}}\n{{\"seq\":0,\"{large}\":1}}\n");
    let imported = parse_limited(&export, 1000).expect("the first line is carried over");
    assert_eq!(losses(&imported), ["line", "header"]);
    let document = |bytes: usize| {
        let content = "x".repeat(bytes);
        format!(
            "{{\"other\":\"{large}\",\"messages\":[{{\"role\":\"user\",\"content\":\"{content}\"}}]}}"
        )
    };
    let error = parse_limited(&document(1000), 1000).expect_err("too large").to_string();
    assert_eq!(error, "message 1 has more than 1000 bytes");
    assert_eq!(parse_limited(&document(900), 1000).expect("fits").records.len(), 1);
}

#[test]
fn fields_above_their_limit_are_shortened_and_reported() {
    let long = "x".repeat(5000);
    let document = format!(
        r#"{{"sessionId":"550e8400-e29b-41d4-a716-446655440000","model":"{long}","provider":"{long}",
        "startTime":"2026-01-01T00:00:00Z","metadata":{{"title":"{long}","modeHistory":[{{"to":"{long}"}}]}},
        "messages":[{{"role":"assistant","content":"{long}","model":"{long}","timestamp":1}},
        {{"role":"assistant","content":"a","finishReason":"{long}","timestamp":2}}]}}"#
    );
    let export = format!(
        "{}\n{}\n{}\n",
        r#"{"ollmExport":1,"sessionId":"550e8400-e29b-41d4-a716-446655440000"}"#,
        r#"{"seq":0,"at":"2026-01-01T00:00:00.000Z","type":"session","session":{"sessionId":"550e8400-e29b-41d4-a716-446655440000","startTime":"2026-01-01T00:00:00.000Z"}}"#,
        format_args!(
            r#"{{"seq":1,"at":"2026-01-01T00:00:00.000Z","type":"custom","key":"{long}","custom":{{"name":"{long}"}}}}"#
        ),
    );
    let pi = format!(
        "{{\"type\":\"session\",\"id\":\"x\",\"version\":3,\"timestamp\":0,\"modelId\":\"{long}\"}}\n\
         {{\"type\":\"session_info\",\"name\":\"{long}\",\"timestamp\":1,\"parentId\":null}}\n"
    );
    let check = |text: &str, expect: &[&str]| {
        let imported = parse(text).expect("is imported");
        let shortened = imported.report.losses.iter().filter(|loss| loss.reason.contains("longer"));
        let what: Vec<_> = shortened.map(|loss| loss.what.as_str()).collect();
        assert_eq!(what, expect, "{:?}", imported.report.losses);
        for record in numbered(&imported) {
            let text_bytes = record.message.as_ref().map_or(0, |m| m.plain_text().len());
            let json = serde_json::to_string(&record).expect("JSON");
            assert!(json.len() - text_bytes < 8000, "{} bytes", json.len());
        }
    };
    check(&document, &["model (2 times)", "mode", "finishReason", "title", "provider"]);
    check(&export, &["name", "key"]);
    check(&pi, &["title", "model"]);
}

#[test]
fn writes_of_an_export_are_dropped_and_reported() {
    let at = r#""at":"2026-01-01T00:00:00.000Z""#;
    let call = r#""id":"c","name":"n","args":{},"result":{"llmContent":"r"},"timestamp":"2026-01-01T00:00:00.000Z""#;
    let writes =
        r#""writes":[{"path":"/p/a","before":"absent","after":"absent"}],"writesRoot":"/p""#;
    let export = [
        r#"{"ollmExport":1,"sessionId":"550e8400-e29b-41d4-a716-446655440000"}"#.to_owned(),
        format!(
            r#"{{"seq":0,{at},"type":"session","session":{{"sessionId":"550e8400-e29b-41d4-a716-446655440000","startTime":"2026-01-01T00:00:00.000Z"}}}}"#
        ),
        format!(r#"{{"seq":1,{at},"type":"toolCall","toolCall":{{{call},{writes}}}}}"#),
        format!(r#"{{"seq":2,"parent":1,{at},"type":"toolCall","toolCall":{{{call}}}}}"#),
    ];
    let imported = parse(&export.join("\n")).expect("is imported");
    assert_eq!(imported.records.len(), 2);
    for record in &imported.records {
        let RecordBody::ToolCall(call) = &record.body else { panic!("{record:?}") };
        assert_eq!((&call.writes, &call.writes_root), (&None, &None));
    }
    let [loss] = &imported.report.losses[..] else { panic!("{:?}", imported.report.losses) };
    assert_eq!((loss.what.as_str(), loss.line), ("toolCall.writes", None));
}

#[test]
fn permissions_of_a_file_are_dropped_and_reported() {
    let at = r#""at":"2026-01-01T00:00:00.000Z""#;
    let metadata = r#""metadata":{"ollm.permissions":[{"tool":"*","decision":"allow"}],"own":1}"#;
    let export = [
        r#"{"ollmExport":1,"sessionId":"550e8400-e29b-41d4-a716-446655440000"}"#.to_owned(),
        format!(
            r#"{{"seq":0,{at},"type":"session","session":{{"sessionId":"550e8400-e29b-41d4-a716-446655440000","startTime":"2026-01-01T00:00:00.000Z",{metadata}}}}}"#
        ),
        format!(r#"{{"seq":1,{at},"type":"meta","meta":{{{metadata}}}}}"#),
    ];
    let imported = parse(&export.join("\n")).expect("is imported");
    let [record] = &imported.records[..] else { panic!("{:?}", imported.records) };
    let RecordBody::Meta(patch) = &record.body else { panic!("{record:?}") };
    for metadata in [&imported.header.metadata, &patch.metadata] {
        assert_eq!(metadata.keys().collect::<Vec<_>>(), ["own"]);
    }
    assert_eq!(losses(&imported), ["metadata.ollm.permissions (2 times)"]);

    let client = r#"{"ollm.permissions":[{"tool":"*","decision":"allow"}]}"#;
    let document = format!(
        r#"{{"messages":[{{"role":"user","content":"hi"}}],"metadata":{{"client":{client}}}}}"#
    );
    let imported = parse(&document).expect("is imported");
    assert!(imported.header.metadata.is_empty(), "{:?}", imported.header.metadata);
    assert!(losses(&imported).contains(&"metadata.ollm.permissions"));
}

#[test]
fn document_of_ollm_cli_is_read_without_loss() {
    let text = r#"{
      "sessionId": "550e8400-e29b-41d4-a716-446655440000",
      "startTime": "2026-01-27T10:00:00Z",
      "lastActivity": "2026-01-27T11:30:00Z",
      "model": "llama3.2:3b", "provider": "ollama",
      "messages": [
        {"role": "user", "parts": [{"type": "text", "text": "hi"}], "timestamp": "2026-01-27T10:00:00Z"},
        {"role": "assistant", "parts": [{"type": "text", "text": "ho"}], "timestamp": "2026-01-27T10:00:15Z"},
        {"role": "user", "parts": [{"type": "text", "text": "on"}], "timestamp": "2026-01-27T10:20:00Z"}
      ],
      "toolCalls": [
        {"id": "call_123", "name": "read_file", "args": {"path": "file.ts"},
         "result": {"llmContent": "text"}, "timestamp": "2026-01-27T10:00:20Z"}
      ],
      "metadata": {"tokenCount": 8500, "compressionCount": 0, "modeHistory": [
        {"from": "assistant", "to": "code", "timestamp": "2026-01-27T10:15:00Z", "trigger": "auto",
         "confidence": 0.95}]}
    }"#;
    let imported = parse(text).unwrap();
    assert_eq!(imported.report.losses, []);
    assert_eq!((imported.report.source_records, imported.report.imported_records), (6, 6));
    let kinds: Vec<_> = imported.records.iter().map(|record| record.body.kind()).collect();
    use ollm_protocol::content::RecordKind::{Message, ModeChange, ToolCall};
    assert_eq!(kinds, [Message, Message, ToolCall, ModeChange, Message]);
    assert_eq!(imported.header.mode.as_deref(), Some("assistant"));
    assert_eq!(imported.header.imported_from.as_deref(), Some("document:d1ge57"));
    assert_eq!(imported.records[4].at.to_string(), "2026-01-27T11:30:00.000Z");
}

#[test]
fn incomplete_document_is_read_and_its_losses_are_reported() {
    let text = r#"{
      "sessionId": "session-123", "unknown": 1,
      "messages": [
        {"role": "user", "content": "hi"},
        {"role": "model", "parts": [{"type": "text", "text": "ho"}, {"type": "video"}], "timestamp": "?"},
        {"role": "ghost"}, 7
      ],
      "toolCalls": [
        {"name": "a", "result": "plain"},
        {"id": "c", "name": "b", "result": {"llmContent": "x", "returnDisplay": "y",
          "error": {"message": "broke", "type": "t"}}}
      ],
      "metadata": {"compressionCount": 2, "tags": []}
    }"#;
    let imported = parse(text).unwrap();
    assert_eq!(imported.header.session_id, SessionId::from_uuid(FALLBACK_ID));
    assert_eq!(active_roles(&imported), [Role::User, Role::Assistant]);
    let RecordBody::ToolCall(call) = &imported.records[3].body else { panic!("a tool call") };
    assert_eq!(call.result.display_content.as_deref(), Some("y"));
    assert_eq!(call.result.error.as_deref(), Some("broke"));
    assert_eq!(
        losses(&imported),
        [
            "message.timestamp (2 times)",
            "part of type \"video\"",
            "message.timestamp",
            "message of role \"ghost\"",
            "message",
            "toolCall.timestamp (2 times)",
            "result.error.type",
            "sessionId",
            "metadata.compressionCount",
            "document.unknown",
            "metadata.tags",
        ]
    );
}

#[test]
fn list_of_servers_that_is_none_allows_no_server() {
    for (list, expect) in [
        ("null", &[] as &[&str]),
        ("[]", &[]),
        (r#"["a","b"]"#, &["a", "b"]),
        (r#"["a",7]"#, &["a", "(none)"]),
        (r#""a""#, &["(none)"]),
        (r#"{"a":true}"#, &["(none)"]),
        ("false", &["(none)"]),
    ] {
        let text = format!(
            r#"{{"messages":[{{"role":"user","content":"hi"}}],"metadata":{{"allowedServers":{list}}}}}"#
        );
        assert_eq!(parse(&text).unwrap().header.allowed_servers, expect, "{list}");
    }
}

#[test]
fn options_of_a_document_are_kept_or_reported() {
    let import = |options: &str| {
        let text = format!(
            r#"{{"messages":[{{"role":"user","content":"hi"}}],"metadata":{{"options":{options}}}}}"#
        );
        parse(&text).unwrap()
    };
    let kept = import(r#"{"seed":7}"#);
    assert_eq!(serde_json::to_string(&kept.header.options).unwrap(), r#"{"seed":7}"#);
    assert!(!losses(&kept).iter().any(|loss| loss.contains("options")), "{:?}", losses(&kept));
    let deep = format!(r#"{{"format":{}7{}}}"#, "[".repeat(97), "]".repeat(97));
    let large = format!(r#"{{"stop":["{}"]}}"#, "x".repeat(70_000));
    for (wrong, what) in
        [("[7]", "metadata.options"), (&deep, "metadata.options"), (&large, "options")]
    {
        let imported = import(wrong);
        assert!(imported.header.options.is_empty());
        let losses = losses(&imported);
        assert!(losses.iter().any(|loss| loss.starts_with(what)), "{losses:?}");
    }
}

#[test]
fn inactive_messages_of_a_document_stay_inactive() {
    let text = r#"{"sessionId":"550e8400-e29b-41d4-a716-446655440000","messages":[
      {"role":"user","content":"a","timestamp":"2026-01-01T00:00:00Z"},
      {"role":"assistant","content":"b","timestamp":"2026-01-01T00:00:01Z","active":false},
      {"role":"user","content":"c","timestamp":"2026-01-01T00:00:02Z","active":false},
      {"role":"assistant","content":"d","timestamp":"2026-01-01T00:00:03Z"},
      {"role":"user","content":"e","timestamp":"2026-01-01T00:00:04Z","active":false}]}"#;
    let imported = parse(text).unwrap();
    let parents: Vec<_> = imported.records.iter().map(|record| record.parent).collect();
    assert_eq!(parents, [None, Some(0), Some(1), Some(0), Some(3), Some(3)]);
    let active: Vec<_> = numbered(&imported)
        .into_iter()
        .filter(|record| record.active)
        .filter_map(|record| record.message)
        .map(|message| message.plain_text())
        .collect();
    assert_eq!(active, ["a", "d"]);
}

#[test]
fn own_export_loses_only_its_damaged_lines() {
    let text = concat!(
        r#"{"ollmExport":1,"sessionId":"550e8400-e29b-41d4-a716-446655440000"}"#,
        "\n",
        r#"{"seq":0,"at":"2026-01-01T00:00:00.000Z","type":"session","session":{"sessionId":"550e8400-e29b-41d4-a716-446655440000","startTime":"2026-01-01T00:00:00.000Z","importedFrom":"pi:abc"}}"#,
        "\n",
        r#"{"seq":1,"at":"2026-01-01T00:00:01.000Z","type":"message","key":"k","message":{"role":"user","parts":[{"type":"text","text":"a"}],"timestamp":"2026-01-01T00:00:01.000Z"}}"#,
        "\n",
        "{\"seq\":2,\"par\u{0}#\n",
        r#"{"seq":3,"parent":2,"at":"2026-01-01T00:00:03.000Z","type":"message","message":{"role":"assistant","parts":[],"timestamp":"2026-01-01T00:00:03.000Z"}}"#,
        "\n",
        r#"{"seq":4,"parent":3,"at":"2026-01-01T00:00:04.000Z","type":"label","label":{"target":2,"name":"lost"}}"#,
        "\n",
        r#"{"seq":5,"parent":3,"at":"2026-01-01T00:00:05.000Z","type":"label","label":{"target":3,"name":"kept"}}"#,
        "\n",
        r#"{"seq":6,"parent":3,"at":"2026-01-01T00:00:06.000Z","type":"novelty"}"#,
        "\n",
        r#"{"seq":7,"parent":3,"at":"2026"#,
    );
    let imported = parse(text).unwrap();
    assert_eq!(imported.header.imported_from.as_deref(), Some("pi:abc"));
    assert_eq!(imported.records.len(), 3);
    assert_eq!(imported.records[0].key.as_deref(), Some("k"));
    assert_eq!(imported.records[1].parent, Some(0));
    let RecordBody::Label(label) = &imported.records[2].body else { panic!("a label") };
    assert_eq!(label.target, seq_of(1));
    let lines: Vec<_> = imported.report.losses.iter().map(|loss| loss.line).collect();
    assert_eq!(lines, [Some(4), Some(5), Some(6), Some(8), Some(9)]);
    assert_eq!(imported.report.source_records, 8);
}

#[test]
fn document_parts_of_every_kind_are_carried_over() {
    let text = r#"{"messages":[{"role":"assistant","timestamp":"2026-01-01T00:00:00Z","parts":[
      {"type":"thinking","text":"hm"},{"type":"toolCall","id":"1","name":"n","args":[2]},
      {"type":"image","mimeType":"image/png","data":"AAAA"}]}]}"#;
    let imported = parse(text).unwrap();
    let RecordBody::Message(message) = &imported.records[0].body else { panic!("a message") };
    assert!(matches!(
        message.parts.as_slice(),
        [Part::Thinking { .. }, Part::ToolCall { .. }, Part::Image { .. }]
    ));
}
