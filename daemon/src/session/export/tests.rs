//! Tests of the pages: hostile content cannot leave its block, and normal content is readable. Tests of the cursor.

use ollm_protocol::content::{
    Compaction, Custom, ExportFormat, Message, Part, Record, RecordBody, Role, SessionHeader,
    ToolResult,
};
use ollm_protocol::{Seq, SessionId, Timestamp};
use proptest::strategy::Strategy as _;
use serde_json::json;

use crate::session::document::{DocumentPass, DocumentTotals, DocumentWriter};
use crate::session::export::Exporter;
use crate::session::testing::{FALLBACK_ID, export, mark_active, tool_call};

/// Content that tries to leave a page, a fence, a quote or a terminal.
const HOSTILE: &str = "</pre></div></details><script>alert(1)</script>\n\
    <img src=x onerror=alert(1)> \"' onload='x\" -->\n```\n</code>\n``````\n~~~\n# heading\n\
    ![t](http://tracker/x.png) [a](javascript:alert(1)) `]()`\n[x]: http://evil\n\
    \u{1b}[31mred\u{1b}]0;title\u{7} \u{202e}gnp.exe \u{9b}2J\r\n- ```\n<b>still here</b>\n";

fn session(bodies: Vec<RecordBody>) -> Vec<Record> {
    let at = Timestamp::from_unix_ms(1_769_508_000_000);
    let header: SessionHeader = serde_json::from_value(json!({
        "sessionId": SessionId::from_uuid(FALLBACK_ID), "startTime": at, "title": HOSTILE,
        "model": HOSTILE, "projectPath": HOSTILE, "systemPrompt": HOSTILE,
    }))
    .unwrap();
    let mut records = vec![Record::new(Seq(0), None, at, RecordBody::Session(header))];
    for (seq, body) in (1..).zip(bodies) {
        let parent = (seq > 1).then(|| Seq(seq - 1));
        records.push(Record::new(Seq(seq), parent, at, body));
    }
    mark_active(&mut records);
    records
}

fn hostile_session() -> Vec<Record> {
    let at = Timestamp::from_unix_ms(1_769_508_000_000);
    let message = |role| {
        let text = || HOSTILE.to_owned();
        let args = json!({ HOSTILE: HOSTILE });
        let parts = vec![
            Part::Text { text: text() },
            Part::Thinking { text: text() },
            Part::ToolCall { id: text(), name: text(), args },
            Part::Image { mime_type: text(), data: text() },
            Part::Image {
                mime_type: "image/png".to_owned(),
                data: "AAAA\" onerror=\"x".to_owned(),
            },
            Part::Image { mime_type: "image/svg+xml".to_owned(), data: "AAAA".to_owned() },
        ];
        let mut message = Message { parts, ..Message::text(role, "", at) };
        message.model = Some(text());
        message.tool_name = Some(text());
        RecordBody::Message(message)
    };
    let result = ToolResult {
        llm_content: HOSTILE.to_owned(),
        error: Some(HOSTILE.to_owned()),
        ..ToolResult::default()
    };
    let call = tool_call(HOSTILE, json!({ HOSTILE: HOSTILE }), result, at);
    let compaction: Compaction =
        serde_json::from_value(json!({ "summary": HOSTILE, "tokensBefore": 1, "tokenizer": "t" }))
            .unwrap();
    let custom = Custom {
        name: HOSTILE.to_owned(),
        data: json!(null),
        context_text: Some(HOSTILE.to_owned()),
    };
    session(vec![
        message(Role::User),
        message(Role::Assistant),
        message(Role::Tool),
        call,
        RecordBody::Compaction(compaction),
        RecordBody::Custom(custom),
    ])
}

fn has_unsafe_characters(text: &str) -> bool {
    text.chars().any(|c| {
        (c.is_control() && c != '\n' && c != '\t') || ('\u{202a}'..='\u{202e}').contains(&c)
    })
}

#[test]
fn html_of_hostile_session_has_only_known_tags() {
    let page = export(ExportFormat::Html, &hostile_session());
    assert!(!has_unsafe_characters(&page));
    const ELEMENTS: [&str; 18] = [
        "html", "head", "meta", "title", "style", "body", "h1", "dl", "dt", "dd", "article", "h2",
        "time", "small", "p", "div", "details", "summary",
    ];
    for tag in page.split('<').skip(1).map(|rest| rest.split('>').next().unwrap_or_default()) {
        let name = tag.split(' ').next().unwrap_or_default();
        let element = name.strip_prefix('/').unwrap_or(name);
        let known = tag == "!DOCTYPE html" || element == "pre" || ELEMENTS.contains(&element);
        assert!(known && name != "/meta", "<{tag}>");
        assert!(!tag.contains(" on"), "<{tag}>");
    }
    assert!(page.contains("default-src 'none'"));
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;"));
}

#[test]
fn folded_call_shows_its_main_argument() {
    let at = Timestamp::from_unix_ms(0);
    let args = json!({ "content": "long", "path": "src/<main>.rs" });
    let part = Part::ToolCall { id: "1".to_owned(), name: "write".to_owned(), args: args.clone() };
    let message = Message { parts: vec![part], ..Message::text(Role::Assistant, "", at) };
    let call = tool_call("write", args, ToolResult::default(), at);
    let bodies = vec![RecordBody::Message(message), call];
    let page = export(ExportFormat::Html, &session(bodies));
    assert!(page.contains("<summary>calls write: src/&lt;main&gt;.rs (4 lines)</summary>"));
    assert!(page.contains("<summary>arguments: src/&lt;main&gt;.rs (4 lines)</summary>"));
}

#[test]
fn empty_answer_shows_its_finish_reason() {
    let at = Timestamp::from_unix_ms(0);
    let mut message = Message { parts: Vec::new(), ..Message::text(Role::Assistant, "", at) };
    message.finish_reason = Some("<aborted>".to_owned());
    let records = session(vec![RecordBody::Message(message)]);
    let page = export(ExportFormat::Html, &records);
    assert!(page.contains("<p>no answer: &lt;aborted&gt;</p>"), "{page}");
    let page = export(ExportFormat::Markdown, &records);
    assert!(page.ends_with("#1\n\n*no answer:* `<aborted>`\n\n"), "{page}");
}

#[test]
fn html_shows_only_valid_raster_images() {
    let image = |mime_type: &str, data: &str| {
        let parts = vec![Part::Image { mime_type: mime_type.to_owned(), data: data.to_owned() }];
        let at = Timestamp::from_unix_ms(0);
        let message = Message { parts, ..Message::text(Role::User, "", at) };
        export(ExportFormat::Html, &session(vec![RecordBody::Message(message)])).contains("<img")
    };
    assert!(image("image/png", "iVBORw0KGgo="));
    for (mime_type, data) in [
        ("image/svg+xml", "iVBORw0KGgo="),
        ("text/html", "iVBORw0KGgo="),
        ("image/png", "iVBORw0KGgo"),
        ("image/png", "iVBO=w0KGgo="),
        ("image/png", "===="),
        ("image/png", ""),
        ("image/png", "https://tracker/"),
    ] {
        assert!(!image(mime_type, data), "{mime_type} {data}");
    }
}

/// Checks that no line outside of code has live markup and that every fence is closed, as CommonMark reads a page.
fn check_markdown(page: &str) {
    let mut fence: Option<usize> = None;
    let mut quoted_fence: Option<usize> = None;
    let run = |line: &str| line.len() - line.trim_start_matches('`').len();
    for line in page.lines() {
        if let Some(len) = fence {
            if run(line) >= len && line.trim_start_matches('`').is_empty() {
                fence = None;
            }
            continue;
        }
        let Some(quoted) =
            line.strip_prefix('>').map(|rest| rest.strip_prefix(' ').unwrap_or(rest))
        else {
            assert!(quoted_fence.is_none(), "a quote ends within a fence: {line}");
            if run(line) >= 3 {
                fence = Some(run(line));
            } else {
                no_live_markup(&without_code(line));
            }
            continue;
        };
        match quoted_fence {
            Some(len) if run(quoted) >= len && quoted.trim_start_matches('`').is_empty() => {
                quoted_fence = None;
            }
            Some(_) => {}
            None if run(quoted) >= 3 && !quoted.trim_start_matches('`').contains('`') => {
                quoted_fence = Some(run(quoted));
            }
            None => no_live_markup(quoted),
        }
    }
    assert_eq!((fence, quoted_fence), (None, None), "a fence is not closed");
}

/// Returns the line without its code spans: a run of backticks ends at the next run of the same length.
fn without_code(line: &str) -> String {
    let mut left = String::new();
    let mut rest = line;
    while let Some(c) = rest.chars().next() {
        let run = rest.len() - rest.trim_start_matches('`').len();
        if c == '\\' {
            let end = rest.char_indices().nth(2).map_or(rest.len(), |(at, _)| at);
            left.push_str(&rest[..end]);
            rest = &rest[end..];
        } else if run == 0 {
            left.push(c);
            rest = &rest[c.len_utf8()..];
        } else {
            let inside = &rest[run..];
            let mut at = 0;
            let mut end = None;
            while let Some(start) = inside[at..].find('`').map(|offset| at + offset) {
                let len = inside.len() - start - inside[start..].trim_start_matches('`').len();
                if len == run {
                    end = Some(start + len);
                    break;
                }
                at = start + len;
            }
            if end.is_none() {
                left.push_str(&rest[..run]);
            }
            rest = &inside[end.unwrap_or(0)..];
        }
    }
    left
}

fn no_live_markup(line: &str) {
    let mut escaped = false;
    for c in line.chars() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '<' | '[' | ']' => panic!("live {c} in {line:?}"),
            _ => {}
        }
    }
}

#[test]
fn markdown_of_hostile_session_has_no_live_markup() {
    let page = export(ExportFormat::Markdown, &hostile_session());
    assert!(!has_unsafe_characters(&page));
    check_markdown(&page);
    let n_turns = page.lines().filter(|line| line.starts_with("## ")).count();
    assert_eq!(n_turns, 1 + 6, "the system prompt and one heading a record");
}

#[test]
fn markdown_of_a_session_is_readable() {
    let at = Timestamp::from_unix_ms(1_769_508_000_000);
    let text = "Use `Vec` **now**:\n\n```rust\nlet a: Vec<u8> = vec![];\n```\n- C:\\Users";
    let result = ToolResult {
        llm_content: "a\n```\nb".to_owned(),
        success: Some(false),
        exit_code: Some(2),
        error: Some("`no` such file_name".to_owned()),
        ..ToolResult::default()
    };
    let call = tool_call("read_file", json!({ "path": "a.rs" }), result, at);
    let args = json!({ "path": "a_b.rs", "html": "<b>" });
    let calls = Part::ToolCall { id: "2".to_owned(), name: "read_file".to_owned(), args };
    let calls = Message { parts: vec![calls], ..Message::text(Role::Assistant, "", at) };
    let mut result = Message::text(Role::Tool, "a_b <b>\n```", at);
    result.tool_name = Some("read_file".to_owned());
    let mut records = session(vec![
        RecordBody::Message(Message::text(Role::User, "hi", at)),
        RecordBody::Message(Message::text(Role::Assistant, text, at)),
        call,
        RecordBody::Message(calls),
        RecordBody::Message(result),
    ]);
    records[3].active = false;
    let page = export(ExportFormat::Markdown, &records);
    let (_, turns) = page.split_once("## user").unwrap();
    assert_eq!(
        turns,
        " · 2026-01-27 10:00:00 UTC · #1\n\n> hi\n\n\
         ## assistant · 2026-01-27 10:00:00 UTC · #2\n\n\
         > Use `Vec` **now**:\n>\n> ```rust\n> let a: Vec<u8> = vec![];\n> ```\n> - C:\\Users\n\n\
         ## tool `read_file` · 2026-01-27 10:00:00 UTC · #3 · on a branch that was left\n\n\
         ```json\n{\n  \"path\": \"a.rs\"\n}\n```\n\n*failed, exit code 2:* `` `no` such file_name ``\n\n\
         ````text\na\n```\nb\n````\n\n\
         ## assistant · 2026-01-27 10:00:00 UTC · #4\n\n\
         *calls* `read_file` `{\"path\":\"a_b.rs\",\"html\":\"<b>\"}`\n\n\
         ## tool `read_file` · 2026-01-27 10:00:00 UTC · #5\n\n\
         ````text\na_b <b>\n```\n````\n\n"
    );
}

#[test]
fn long_line_takes_linear_time() {
    let at = Timestamp::from_unix_ms(0);
    let long = "a".repeat(4_000_000);
    let page = export(
        ExportFormat::Markdown,
        &session(vec![RecordBody::Message(Message::text(Role::User, long.as_str(), at))]),
    );
    assert!(page.contains(&long));
}

#[test]
fn invalid_cursor_is_refused() {
    let cursor = Exporter::new(ExportFormat::Json).to_cursor();
    assert!(Exporter::from_cursor(&cursor).is_some());
    assert_eq!(Exporter::from_cursor(""), None);
    assert_eq!(Exporter::from_cursor("json"), None);
    for (valid, invalid) in [
        ("\"json\"", "\"xml\""),
        ("\"Messages\"", "\"Other\""),
        ("\"tokens\":0,", ""),
        ("\"tokens\":0", "\"tokens\":99999999999"),
        ("\"tokens\":0", "\"tokens\":-1"),
        ("\"format\"", "\"n\":0,\"format\""),
    ] {
        assert!(cursor.contains(valid), "{valid} in {cursor}");
        let cursor = cursor.replace(valid, invalid);
        assert_eq!(Exporter::from_cursor(&cursor), None, "{cursor}");
    }
}

proptest::proptest! {
    #[test]
    fn exporter_survives_its_cursor(
        counts: [u32; 7],
        ms in proptest::option::of(0..4_000_000_000_000_i64),
    ) {
        let n = counts.map(u64::from);
        let totals = DocumentTotals {
            user_messages: n[0],
            tool_calls: n[1],
            mode_changes: n[2],
            compactions: n[3],
            tokens: n[4],
            last_message_at: ms.map(Timestamp::from_unix_ms),
        };
        let (pass, n_written, n_messages) = (DocumentPass::ToolCalls, n[5], n[6]);
        let document = DocumentWriter { pass, n_written, n_messages, totals };
        let exporter = Exporter { format: ExportFormat::Json, document };
        proptest::prop_assert_eq!(Exporter::from_cursor(&exporter.to_cursor()), Some(exporter));
    }

    #[test]
    fn markdown_of_any_text_has_no_live_markup(
        parts in proptest::collection::vec(
            proptest::prelude::prop_oneof![
                proptest::prelude::any::<String>(),
                proptest::sample::select(
                    vec!["`", "```", "~~~", "\n", "<script>", "[", "\\", "&", "|", "- ", "  ", "> ", "x"],
                ).prop_map(str::to_owned),
            ],
            0..20,
        )
    ) {
        let at = Timestamp::from_unix_ms(0);
        let message = Message::text(Role::Assistant, parts.concat(), at);
        let records = session(vec![RecordBody::Message(message)]);
        check_markdown(&export(ExportFormat::Markdown, &records));
    }
}
