//! Tests of the pages: hostile content cannot leave its block, and normal content is readable. Tests of the cursor.

use ollm_protocol::content::{
    Compaction, Custom, ExportFormat, Message, Part, Record, RecordBody, Role, SessionHeader,
    ToolResult,
};
use ollm_protocol::{Seq, SessionId, Timestamp};
use proptest::strategy::Strategy as _;
use pulldown_cmark::{Event, HeadingLevel, Options, Parser, Tag};
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

/// The elements of a page without its style and script, with their attributes.
const ELEMENTS: &[(&str, &[&str])] = &[
    ("html", &["lang"]),
    ("head", &[]),
    ("meta", &["charset", "content", "http-equiv", "name"]),
    ("title", &[]),
    ("style", &[]),
    ("script", &[]),
    ("body", &[]),
    ("header", &[]),
    ("h1", &["dir"]),
    ("dl", &[]),
    ("dt", &[]),
    ("dd", &[]),
    ("figure", &[]),
    ("figcaption", &[]),
    ("svg", &["viewBox", "preserveAspectRatio", "role", "aria-label"]),
    ("rect", &["class", "x", "y", "width", "height"]),
    ("nav", &["hidden"]),
    ("input", &["type", "placeholder", "aria-label"]),
    ("output", &[]),
    ("button", &[]),
    ("main", &[]),
    ("article", &["class", "id"]),
    ("h2", &[]),
    ("time", &["datetime"]),
    ("small", &[]),
    ("div", &["class", "dir"]),
    ("p", &["class"]),
    ("h3", &[]),
    ("h4", &[]),
    ("h5", &[]),
    ("h6", &[]),
    ("ul", &[]),
    ("ol", &["start"]),
    ("li", &[]),
    ("blockquote", &[]),
    ("pre", &["dir"]),
    ("code", &[]),
    ("span", &["class"]),
    ("table", &[]),
    ("thead", &[]),
    ("tbody", &[]),
    ("tr", &[]),
    ("th", &["class"]),
    ("td", &["class"]),
    ("em", &[]),
    ("strong", &[]),
    ("del", &[]),
    ("a", &["href", "rel"]),
    ("br", &[]),
    ("hr", &[]),
    ("details", &[]),
    ("summary", &[]),
    ("img", &["alt", "src"]),
];
/// The elements without an end.
const VOID: [&str; 5] = ["meta", "input", "br", "hr", "img"];

/// Parses a page and checks that it has only known elements and attributes, which are balanced, and safe addresses.
fn check_html(page: &str) {
    let rest = page.strip_prefix("<!DOCTYPE html>\n").expect("the doctype");
    let (mut rest, mut open) = (rest, Vec::new());
    while let Some((text, after)) = rest.split_once('<') {
        assert!(!text.contains('>'), "a > in {text:?}");
        let (tag, after) = after.split_once('>').expect("the end of a tag");
        rest = after;
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "{page}");
            continue;
        }
        let (name, attributes) = tag.split_once(' ').unwrap_or((tag, ""));
        let known = ELEMENTS.iter().find(|(element, _)| *element == name);
        let (_, allowed) = known.unwrap_or_else(|| panic!("<{tag}>"));
        for (attribute, value) in attributes_of(attributes) {
            assert!(allowed.contains(&attribute), "{attribute} of <{tag}>");
            let starts = |starts: &[&str]| {
                starts.iter().any(|start| value.to_lowercase().starts_with(start))
            };
            assert!(
                attribute != "href" || starts(&["#r", "http://", "https://", "mailto:"]),
                "<{tag}>"
            );
            assert!(attribute != "src" || starts(&["data:image/"]), "<{tag}>");
        }
        if matches!(name, "style" | "script") {
            let (_, after) = after.split_once("</").expect("the end of the element");
            rest = after.split_once('>').expect("the end of a tag").1;
        } else if !VOID.contains(&name) {
            open.push(name);
        }
    }
    assert_eq!(open, [""; 0], "an element is not closed");
}

/// Returns the attributes of a tag, whose values are in double quotes.
fn attributes_of(text: &str) -> Vec<(&str, &str)> {
    let (mut rest, mut found) = (text.trim_start(), Vec::new());
    while !rest.is_empty() {
        if rest == "hidden" {
            found.push((rest, ""));
            break;
        }
        let (name, after) = rest.split_once("=\"").expect("a quoted value");
        let (value, after) = after.split_once('"').expect("the end of a value");
        found.push((name, value));
        rest = after.trim_start();
    }
    found
}

#[test]
fn html_of_hostile_session_has_only_known_tags() {
    let page = export(ExportFormat::Html, &hostile_session());
    assert!(!has_unsafe_characters(&page));
    check_html(&page);
    assert!(page.contains("default-src 'none'"));
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;"));
    assert!(!page.contains("<img"));
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
fn compaction_shows_the_summary_of_its_newest_checkpoint() {
    let checkpoint = |summary: &str| {
        json!({
            "id": SessionId::from_uuid(FALLBACK_ID), "level": 3, "from": 1, "to": 2, "summary": summary,
            "createdAt": Timestamp::from_unix_ms(0), "originalTokens": 90, "currentTokens": 9,
            "compressionCount": 1,
        })
    };
    let checkpoints = [checkpoint("older notes"), checkpoint("newer notes")];
    let compaction: Compaction = serde_json::from_value(json!({
        "tokensBefore": 100, "tokensAfter": 20, "tokenizer": "t", "checkpoints": checkpoints,
    }))
    .unwrap();
    let records = session(vec![RecordBody::Compaction(compaction)]);
    let page = export(ExportFormat::Markdown, &records);
    assert!(
        page.ends_with("#1\n\nThe context went from 100 to 20 tokens.\n\n> newer notes\n\n"),
        "{page}"
    );
    check_markdown(&page);
    let page = export(ExportFormat::Html, &records);
    assert!(page.contains("<p>The context went from 100 to 20 tokens.</p>"), "{page}");
    assert!(page.contains("newer notes") && !page.contains("older notes"), "{page}");
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

/// Checks that a Markdown page has only its own blocks at the top level, and nothing that reaches out of a message.
///
/// Returns the headings.
fn check_markdown(page: &str) -> Vec<String> {
    let options =
        Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_TASKLISTS;
    let parser = Parser::new_ext(page, options);
    assert_eq!(parser.reference_definitions().iter().count(), 0, "a definition holds everywhere");
    let (mut depth, mut headings) = (0, Vec::new());
    for event in parser {
        match &event {
            Event::Html(_) | Event::InlineHtml(_) | Event::Start(Tag::Image { .. }) => {
                panic!("{event:?} in {page}")
            }
            Event::Start(tag) if depth == 0 => match tag {
                Tag::Heading { level, .. } => {
                    let expected =
                        if headings.is_empty() { HeadingLevel::H1 } else { HeadingLevel::H2 };
                    assert_eq!(*level, expected, "{page}");
                    headings.push(String::new());
                }
                Tag::BlockQuote(_) | Tag::CodeBlock(_) | Tag::Paragraph | Tag::List(None) => {}
                other => panic!("{other:?} at the top level of {page}"),
            },
            Event::Text(text) | Event::Code(text) if depth == 1 => {
                headings.last_mut().expect("a heading first").push_str(text);
            }
            _ => {}
        }
        match event {
            Event::Start(_) => depth += 1,
            Event::End(_) => depth -= 1,
            _ => {}
        }
    }
    headings
}

#[test]
fn markdown_of_hostile_session_has_no_live_markup() {
    let page = export(ExportFormat::Markdown, &hostile_session());
    assert!(!has_unsafe_characters(&page));
    let headings = check_markdown(&page);
    assert_eq!(headings.len(), 2 + 6, "the title, the system prompt and one heading a record");
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
fn markdown_keeps_the_text_but_for_that_which_reaches_beyond_it() {
    let check = |text: &str, expected: &str| {
        let message = Message::text(Role::User, text, Timestamp::from_unix_ms(0));
        let page = export(ExportFormat::Markdown, &session(vec![RecordBody::Message(message)]));
        assert!(page.ends_with(&format!("#1\n\n{expected}\n")), "{text:?}: {page}");
        check_markdown(&page);
    };
    check("# A [b](https://c) & *d*  \ne", "> # A [b](https://c) & *d*  \n> e\n");
    check("`<b>` <b>c</b>", "> `<b>` \\<b>c\\</b>\n");
    check("<div>\n<!-- x", "> \\<div>\n> \\<!-- x\n");
    check("![a](https://b)", "> \\![a](https://b)\n");
    check("[a]: https://b\n\n[a]", "> \\[a]: https://b\n>\n> [a]\n");
    check("```\nopen", "> ```\n> open\n");
    // A tab stop is elsewhere within a quote.
    check("\tcode", "```markdown\n\tcode\n```\n");
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
        let exporter = Exporter { document, ..Exporter::new(ExportFormat::Json) };
        proptest::prop_assert_eq!(Exporter::from_cursor(&exporter.to_cursor()), Some(exporter));
    }

    #[test]
    fn page_of_any_text_has_only_its_own_structure(text in hostile_text()) {
        let at = Timestamp::from_unix_ms(0);
        let message = |role| RecordBody::Message(Message::text(role, text.as_str(), at));
        let records = session(vec![message(Role::User), message(Role::Assistant)]);
        check_html(&export(ExportFormat::Html, &records));
        let headings = check_markdown(&export(ExportFormat::Markdown, &records));
        proptest::prop_assert_eq!(headings.len(), 2 + 2);
    }
}

/// Returns texts of which many are Markdown or HTML.
fn hostile_text() -> impl proptest::strategy::Strategy<Value = String> {
    let marks = vec![
        "`",
        "```",
        "~~~",
        "\n",
        "\n\n",
        "<script>",
        "</div>",
        "<!--",
        "<a href=\"",
        "[",
        "](",
        ")",
        "![",
        "[x]: /y",
        "\\",
        "&",
        "&lt;",
        "&#27;",
        "|",
        "|-|-|\n",
        "- ",
        "1. ",
        "  ",
        "\t",
        "> ",
        "# ",
        "===",
        "---",
        "*",
        "**",
        "~~",
        "<",
        "https://a.b",
        "javascript:",
        "x",
        " ",
        "\"",
        "'",
        "```rust\nlet a = \"",
    ];
    let part = proptest::prop_oneof![
        1 => proptest::prelude::any::<String>(),
        4 => proptest::sample::select(marks).prop_map(str::to_owned),
    ];
    proptest::collection::vec(part, 0..24).prop_map(|parts| parts.concat())
}
