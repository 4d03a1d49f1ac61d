//! The three versions of pi, each with a fixture that has every kind of entry, and one session of the real program.

use ollm_protocol::content::{Part, RecordBody, RecordKind, Role};
use ollm_protocol::{Seq, SessionId};
use serde_json::json;

use super::parse;
use crate::session::testing::{FALLBACK_ID, WholeImport, active_roles, losses, numbered};

const V1: &str = include_str!("../../../../../tests/fixtures/import/pi-v1.jsonl");
const V2: &str = include_str!("../../../../../tests/fixtures/import/pi-v2.jsonl");
const V3: &str = include_str!("../../../../../tests/fixtures/import/pi-v3.jsonl");
const REAL: &str = include_str!("../../../../../tests/fixtures/import/pi-mono-session.jsonl");

fn kinds(imported: &WholeImport) -> Vec<RecordKind> {
    imported.records.iter().map(|record| record.body.kind()).collect()
}

#[test]
fn version_1_becomes_a_linear_path() {
    use RecordKind::{Compaction, Custom, Message, Meta, ToolCall, Usage};
    let imported = parse(V1).unwrap();
    assert_eq!(imported.report.format, "pi v1");
    assert_eq!(
        kinds(&imported),
        [Message, Message, Usage, ToolCall, Compaction, Meta, ToolCall, Message, Custom]
    );
    let parents: Vec<_> = imported.records.iter().map(|record| record.parent).collect();
    let expected = [None, Some(0), Some(1), Some(2), Some(3), Some(4), Some(4), Some(6), Some(7)];
    assert_eq!(parents, expected);
    assert_eq!(imported.header.metadata["branchedFrom"], json!("/home/ada/older.jsonl"));
    assert_eq!(imported.header.project_path.as_deref(), Some("/home/ada/bridge"));
    assert_eq!(imported.header.imported_from.as_deref(), Some("pi:d1ge57"));

    let RecordBody::Usage(usage) = &imported.records[2].body else { panic!("usage") };
    assert_eq!((usage.prompt_tokens, usage.answer_tokens), (130, 5));
    let RecordBody::ToolCall(call) = &imported.records[3].body else { panic!("a tool call") };
    assert_eq!((call.id.as_str(), call.name.as_str()), ("call_1", "bash"));
    assert_eq!(call.args, json!({ "command": "ls" }));
    assert_eq!(call.result.llm_content, "README.md\nsrc");
    assert_eq!(call.result.display_content.as_deref(), Some("+README.md"));
    assert_eq!(call.result.success, Some(true));
    assert_eq!(call.timestamp.to_string(), "2026-01-05T09:00:02.500Z");
    assert_eq!(imported.records[3].at.to_string(), "2026-01-05T09:00:03.000Z");
    let RecordBody::Compaction(compaction) = &imported.records[4].body else {
        panic!("compaction")
    };
    assert_eq!((compaction.from, compaction.to), (Some(Seq(1)), Some(Seq(4))));
    let RecordBody::ToolCall(bash) = &imported.records[6].body else { panic!("a tool call") };
    assert_eq!((bash.result.exit_code, bash.result.success), (Some(1), Some(false)));
    let RecordBody::Custom(error) = &imported.records[8].body else { panic!("custom") };
    assert_eq!((error.name.as_str(), &error.context_text), ("pi.error", &None));
    let RecordBody::Message(broken) = &imported.records[7].body else { panic!("a message") };
    assert_eq!(error.data["stopReason"], json!(broken.finish_reason));
    assert!(V1.contains(&error.data["errorMessage"].to_string()));
}

#[test]
fn version_1_reports_its_losses_and_its_torn_end() {
    let imported = parse(V1).unwrap();
    let expected = [
        "session.thinkingLevel",
        "thinkingSignature",
        "toolCall.partialJson",
        "usage.cacheRead, cacheWrite",
        "usage.cost",
        "assistant.api (2 times)",
        "thinking_level_change",
        "bashExecution.output",
        "bashExecution.fullOutputPath",
        "torn last line",
    ];
    assert_eq!(losses(&imported), expected);
    assert_eq!((imported.report.source_records, imported.report.imported_records), (10, 10));
}

#[test]
fn version_2_becomes_a_tree_with_the_last_entry_as_leaf() {
    use RecordKind::{Custom, Label, Message, Meta, Usage};
    let imported = parse(V2).unwrap();
    assert_eq!(imported.report.format, "pi v2");
    assert_eq!(imported.header.session_id, SessionId::from_uuid(FALLBACK_ID));
    assert_eq!(
        kinds(&imported),
        [Meta, Message, Message, Usage, Custom, Message, Message, Label, Message]
    );
    let parents: Vec<_> = imported.records.iter().map(|record| record.parent).collect();
    let expected = [None, None, Some(1), Some(2), Some(3), Some(4), Some(1), Some(6), Some(6)];
    assert_eq!(parents, expected);
    assert_eq!(active_roles(&imported), [Role::User, Role::User, Role::Tool]);
    let RecordBody::Message(first) = &imported.records[1].body else { panic!("a message") };
    assert!(matches!(&first.parts[1], Part::Image { mime_type, .. } if mime_type == "image/png"));
    let RecordBody::Custom(custom) = &imported.records[4].body else { panic!("custom") };
    assert_eq!(custom.context_text.as_deref(), Some("a file changed"));
    let RecordBody::Label(label) = &imported.records[7].body else { panic!("a label") };
    assert_eq!((label.target, label.name.as_deref()), (Seq(3), Some("answer")));
    let RecordBody::Message(orphan) = &imported.records[8].body else { panic!("a message") };
    assert_eq!(orphan.tool_call_id.as_deref(), Some("nobody"));
    assert_eq!(losses(&imported), ["session id", "damaged line", "parentId", "toolResult.isError"]);
}

#[test]
fn version_3_keeps_branches_extensions_and_leaf() {
    use RecordKind::{BranchSummary, Compaction, Custom, Label, Leaf, Message, Usage};
    let imported = parse(V3).unwrap();
    assert_eq!(imported.report.format, "pi v3");
    assert_eq!(imported.header.title.as_deref(), Some("Two ways over the bridge"));
    let expected = [
        Message,
        Message,
        Usage,
        BranchSummary,
        Custom,
        Custom,
        Custom,
        Message,
        Compaction,
        Custom,
        Label,
        Leaf,
    ];
    assert_eq!(kinds(&imported), expected);
    let RecordBody::BranchSummary(summary) = &imported.records[3].body else { panic!("summary") };
    assert_eq!(summary.from, Some(Seq(3)));
    assert_eq!(imported.records[3].parent, Some(0));
    let RecordBody::Compaction(compaction) = &imported.records[8].body else {
        panic!("compaction")
    };
    assert_eq!((compaction.from, compaction.to), (Some(Seq(1)), Some(Seq(7))));
    let RecordBody::Custom(linter) = &imported.records[5].body else { panic!("custom") };
    assert_eq!(linter.data, json!({ "display": false, "details": { "warnings": 2 } }));
    let RecordBody::Custom(bash) = &imported.records[9].body else { panic!("custom") };
    assert_eq!((bash.name.as_str(), &bash.context_text), ("pi.bashExecution", &None));
    // The last entry belongs to the first branch, which pi would continue.
    assert_eq!(active_roles(&imported), [Role::User, Role::Assistant]);
    assert_eq!(
        losses(&imported),
        ["thinking_level_change", "compaction.details", "entry of type from_the_future"]
    );
}

#[test]
fn real_session_is_imported_completely() {
    let imported = parse(REAL).unwrap();
    let n = |kind| kinds(&imported).iter().filter(|&&found| found == kind).count();
    assert_eq!(imported.report.source_records, 69);
    let lines = REAL.lines().count();
    assert_eq!(n(RecordKind::Message) + n(RecordKind::ToolCall), lines - 1);
    assert!(numbered(&imported).iter().all(|record| record.active));
    assert_eq!(imported.report.losses.iter().filter(|loss| loss.what.contains("line")).count(), 0);
}
