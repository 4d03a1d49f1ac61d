use ollm_protocol::content::{LoopKind, LoopPattern, RecordBody};
use ollm_protocol::{Seq, Timestamp};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn config(max_turns: u32, repeat_threshold: u32) -> LoopDetectionConfig {
    LoopDetectionConfig { enabled: true, max_turns, repeat_threshold }
}

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("has the shape of the wire")
}

/// A tool call as a client records it.
fn call(id: &str, tool: &str, args: Value, result: Value) -> RecordBody {
    let call = json!({ "id": id, "name": tool, "args": args, "result": result, "timestamp": Timestamp::from_unix_ms(0) });
    RecordBody::ToolCall(read(call))
}

fn says(role: &str, parts: Value) -> RecordBody {
    let message = json!({ "role": role, "parts": parts, "timestamp": Timestamp::from_unix_ms(0) });
    RecordBody::Message(read(message))
}

fn text(role: &str, text: &str) -> RecordBody {
    says(role, json!([{ "type": "text", "text": text }]))
}

fn asks(calls: &[(&str, Value)]) -> RecordBody {
    let part = |(id, args): &(&str, Value)| json!({ "type": "toolCall", "id": id, "name": "read", "args": args });
    says("assistant", calls.iter().map(part).collect())
}

fn answers(id: Option<&str>, text: &str) -> RecordBody {
    let parts = json!([{ "type": "text", "text": text }]);
    let mut message =
        json!({ "role": "tool", "parts": parts, "timestamp": Timestamp::from_unix_ms(0) });
    if let Some(id) = id {
        message["toolCallId"] = json!(id);
    }
    RecordBody::Message(read(message))
}

fn folded(records: &[RecordBody]) -> Detector {
    let mut detector = Detector::default();
    for (record, seq) in records.iter().zip(0..) {
        if let Some(seen) = observe(record) {
            detector.fold(Seq(seq), seen);
        }
    }
    detector
}

/// What is found in records with the default settings, as kind, tools and count.
#[track_caller]
fn check(records: &[RecordBody], expect: Option<(LoopKind, &[&str], u32)>) {
    let expect = expect.map(|(kind, tools, count)| {
        let tools = tools.iter().map(|tool| (*tool).to_owned()).collect();
        LoopPattern { kind, tools, count }
    });
    assert_eq!(folded(records).found(&config(50, 3)), expect);
}

/// Words enough to weigh something.
const LONG: &str = "error: cannot find value `x` in this scope, did you mean `y`";

#[test]
fn equal_calls_are_found_at_the_threshold_whatever_the_order_of_keys() {
    let args = [
        r#"{"a":{"x":1,"y":[2]},"b":1}"#,
        r#"{"b":1.0,"a":{"y":[2],"x":1}}"#,
        r#"{"a":{"y":[2.0],"x":1},"b":1}"#,
    ];
    let calls: Vec<RecordBody> = args
        .iter()
        .map(|args| {
            call("c", "read", serde_json::from_str(args).unwrap(), json!({ "llmContent": "ok" }))
        })
        .collect();
    check(&calls[..2], None);
    check(&calls, Some((LoopKind::Call, &["read"], 3)));
}

#[test]
fn nested_arguments_that_differ_are_different_calls() {
    let calls: Vec<RecordBody> = (0..9)
        .map(|n| call("c", "read", json!({ "a": { "b": [n] } }), json!({ "llmContent": "ok" })))
        .collect();
    check(&calls, None);
}

#[test]
fn two_calls_that_take_turns_are_found() {
    let of = |tool: &str| call("c", tool, json!({}), json!({ "llmContent": tool }));
    check(&[of("a"), of("b"), of("a")], None);
    check(&[of("a"), of("b"), of("a"), of("b")], Some((LoopKind::Cycle, &["a", "b"], 2)));
    check(
        &[of("a"), of("b"), of("c"), of("a"), of("b"), of("c")],
        Some((LoopKind::Cycle, &["a", "b", "c"], 2)),
    );
}

#[test]
fn outputs_that_say_the_same_are_found_and_confirmations_are_not() {
    let outputs = |result: fn(u32) -> Value, count: u32| -> Vec<RecordBody> {
        (0..count).map(|n| call("c", "run", json!({ "n": n }), result(n))).collect()
    };
    let found = Some((LoopKind::Output, &["run"] as &[&str], 3));
    check(&outputs(|_| json!({ "llmContent": LONG }), 2), None);
    check(&outputs(|_| json!({ "llmContent": LONG }), 3), found);
    check(&outputs(|n| json!({ "llmContent": format!("{LONG} (after {n} s)") }), 3), found);
    check(&outputs(|_| json!({ "llmContent": "ok" }), 9), None);
    check(&outputs(|_| json!({ "llmContent": "" }), 9), None);
    check(&outputs(|_| json!({ "llmContent": "no such file", "success": false }), 3), found);
    check(&outputs(|_| json!({ "llmContent": "no such file", "exitCode": 2 }), 3), found);
    check(&outputs(|_| json!({ "llmContent": "", "error": "no such file" }), 3), found);
    check(
        &outputs(|_| json!({ "llmContent": "1 match", "exitCode": 1, "success": true }), 9),
        None,
    );
    let mut broken = outputs(|_| json!({ "llmContent": LONG }), 4);
    broken.insert(
        2,
        call("c", "run", json!({ "n": "x" }), json!({ "llmContent": "something else" })),
    );
    check(&broken, None);
}

#[test]
fn an_answer_that_is_given_again_and_again_is_found() {
    let again = text("assistant", LONG);
    check(&[again.clone(), again.clone()], None);
    check(&[again.clone(), again.clone(), again], Some((LoopKind::Output, &[], 3)));
    let short = text("assistant", "Let me look.");
    check(&[short.clone(), short.clone(), short], None);
}

#[test]
fn a_call_counts_once_however_it_is_recorded() {
    let result = json!({ "llmContent": "ok" });
    let args = json!({ "path": "a" });
    let round = |id: &str| {
        vec![
            asks(&[(id, args.clone())]),
            call(id, "read", args.clone(), result.clone()),
            answers(Some(id), "ok"),
        ]
    };
    check(&[round("1"), round("2")].concat(), None);
    check(&[round("1"), round("2"), round("3")].concat(), Some((LoopKind::Call, &["read"], 3)));
    let as_messages = |id: &str| vec![asks(&[(id, args.clone())]), answers(Some(id), "ok")];
    check(&[as_messages("1"), as_messages("2")].concat(), None);
    // What was asked for a third time need not be executed a third time.
    let third = vec![asks(&[("3", args.clone())])];
    check(
        &[as_messages("1"), as_messages("2"), third].concat(),
        Some((LoopKind::Call, &["read"], 3)),
    );
    let without_ids = |id: &str| vec![asks(&[(id, args.clone())]), answers(None, "ok")];
    check(&[without_ids("1"), without_ids("2")].concat(), None);
    // Ids that a model uses again, and results that never came.
    check(&[asks(&[("1", args.clone())]), asks(&[("1", args.clone())])], None);
    check(
        &[asks(&[("1", args.clone())]), asks(&[("1", args.clone())]), asks(&[("1", args.clone())])],
        Some((LoopKind::Call, &["read"], 3)),
    );
    check(&[round("1"), round("1")].concat(), None);
    check(&[round("1"), round("1"), round("1")].concat(), Some((LoopKind::Call, &["read"], 3)));
}

#[test]
fn results_of_one_message_count_in_the_order_of_its_calls() {
    let (a, b) = (json!({ "p": "a" }), json!({ "p": "b" }));
    let round = |turned: bool| {
        let mut results =
            vec![answers(Some("a"), "what a says"), answers(Some("b"), "what b says")];
        if turned {
            results.reverse();
        }
        [vec![asks(&[("a", a.clone()), ("b", b.clone())])], results].concat()
    };
    check(&[round(false), round(true)].concat(), Some((LoopKind::Cycle, &["read", "read"], 2)));
    check(
        &[asks(&[("1", a.clone()), ("2", a.clone()), ("3", a.clone())])],
        Some((LoopKind::Call, &["read"], 3)),
    );
}

#[test]
fn a_word_of_the_user_and_a_reset_begin_anew() {
    let one = call("c", "read", json!({}), json!({ "llmContent": "ok" }));
    let mark = |pattern: Option<LoopPattern>| {
        RecordBody::Loop(ollm_protocol::content::LoopMark { pattern })
    };
    for between in [text("user", "go on"), mark(None)] {
        let records = [one.clone(), one.clone(), between, one.clone(), one.clone()];
        check(&records, None);
        check(
            &[records.to_vec(), vec![one.clone()]].concat(),
            Some((LoopKind::Call, &["read"], 3)),
        );
    }
    let noted = LoopPattern { kind: LoopKind::Turns, tools: vec![], count: 7 };
    check(&[mark(Some(noted.clone())), one.clone()], Some((LoopKind::Turns, &[], 7)));
    check(&[mark(Some(noted)), text("user", "go on")], None);
}

#[test]
fn calls_of_the_model_are_counted_since_the_user_spoke() {
    let turns = |count| folded(&vec![text("assistant", "hm"); count]);
    assert_eq!(turns(4).found(&config(4, 3)), None);
    let found = |count| Some(LoopPattern { kind: LoopKind::Turns, tools: vec![], count });
    assert_eq!(turns(5).found(&config(4, 3)), found(5));
    // Before a call there may be one less.
    assert_eq!(turns(3).found_before_call(&config(4, 3)), None);
    assert_eq!(turns(4).found_before_call(&config(4, 3)), found(4));
    let off = LoopDetectionConfig { enabled: false, ..config(4, 3) };
    assert_eq!(turns(9).found(&off), None);
    assert_eq!(turns(9).found_before_call(&off), None);
}

#[test]
fn names_are_harmless_and_short_where_they_are_shown() {
    let name = format!("re\u{1b}[31mad{}", "x".repeat(1000));
    let one = call("c", &name, json!({}), json!({ "llmContent": "ok" }));
    let found = folded(&[one.clone(), one.clone(), one]).found(&config(50, 3)).unwrap();
    assert!(found.tools[0].starts_with("readxxx") && found.tools[0].len() == 64, "{found:?}");
}

/// A short session of few different records, so that much of it repeats.
fn any_records() -> impl Strategy<Value = Vec<RecordBody>> {
    let record = prop_oneof![
        4 => (0..3u8, 0..2u8).prop_map(|(args, result)| {
            let result = ["ok", LONG][usize::from(result)];
            call("c", "read", json!({ "n": args }), json!({ "llmContent": result }))
        }),
        2 => (0..3u8).prop_map(|args| asks(&[("c", json!({ "n": args }))])),
        1 => Just(answers(Some("c"), "ok")),
        1 => Just(answers(None, LONG)),
        1 => Just(text("assistant", LONG)),
    ];
    prop::collection::vec(record, 0..80)
}

proptest! {
    /// What a restart keeps is enough: folding only the newest records finds what folding all of them finds.
    #[test]
    fn the_newest_records_tell_the_same_as_all(records in any_records(), threshold in 2..4u32) {
        let config = config(1000, threshold);
        let mut all = Detector::default();
        for (record, at) in records.iter().zip(0..) {
            all.fold(Seq(at), observe(record).unwrap());
            let first = (at as usize + 1).saturating_sub(look_back(&config));
            let newest = folded(&records[first..=at as usize]).found(&config);
            let found = all.found(&config);
            prop_assert_eq!(found.as_ref().map(|found| (found.kind, &found.tools)),
                newest.as_ref().map(|found| (found.kind, &found.tools)));
            if found.is_some() {
                return Ok(());
            }
        }
    }

    /// Calls that always differ are no loop, whatever their confirmations say.
    #[test]
    fn progress_is_no_loop(results in prop::collection::vec("([a-z]{1,6} ){0,7}", 0..60)) {
        let calls = results.iter().zip(0..).map(|(result, n)| {
            call("c", "edit", json!({ "deep": [{ "n": n }] }), json!({ "llmContent": result }))
        });
        prop_assert_eq!(folded(&calls.collect::<Vec<_>>()).found(&config(1000, 3)), None);
    }
}
