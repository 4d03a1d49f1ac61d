use ollm_protocol::content::{LoopKind, LoopMark, LoopPattern, RecordBody};
use ollm_protocol::{Seq, Timestamp};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::config::LoopDetectionConfig;

fn config(max_turns: u32, repeat_threshold: u32) -> LoopDetectionConfig {
    LoopDetectionConfig { enabled: true, max_turns, repeat_threshold }
}

fn read<T: serde::de::DeserializeOwned>(mut value: Value) -> T {
    value["timestamp"] = json!(Timestamp::from_unix_ms(0));
    serde_json::from_value(value).expect("has the shape of the wire")
}

/// A tool call as a client records it.
fn call(id: &str, tool: &str, args: Value, result: Value) -> RecordBody {
    RecordBody::ToolCall(read(json!({ "id": id, "name": tool, "args": args, "result": result })))
}

fn message(role: &str, parts: Value) -> RecordBody {
    RecordBody::Message(read(json!({ "role": role, "parts": parts })))
}

fn text(role: &str, text: &str) -> RecordBody {
    message(role, json!([{ "type": "text", "text": text }]))
}

/// A message that requests calls of `read`.
fn requests(calls: &[(&str, &Value)]) -> RecordBody {
    let part = |(id, args): &(&str, &Value)| json!({ "type": "toolCall", "id": id, "name": "read", "args": args });
    message("assistant", calls.iter().map(part).collect())
}

/// A result as a message of role `tool`.
fn result(id: Option<&str>, text: &str) -> RecordBody {
    let parts = json!([{ "type": "text", "text": text }]);
    let message = json!({ "role": "tool", "parts": parts, "toolCallId": id });
    RecordBody::Message(read(message))
}

fn folded(records: &[RecordBody]) -> Detector {
    let mut detector = Detector::default();
    for (record, seq) in records.iter().zip(0..) {
        if let Some(observation) = observe(record) {
            detector.fold(Seq(seq), observation);
        }
    }
    detector
}

fn pattern(kind: LoopKind, tools: &[&str], count: u32) -> LoopPattern {
    LoopPattern { kind, tools: tools.iter().map(|tool| (*tool).to_owned()).collect(), count }
}

/// Compares what is found in records with the default settings, as kind, tools and count.
#[track_caller]
fn check(records: &[RecordBody], expect: Option<(LoopKind, &[&str], u32)>) {
    let expect = expect.map(|(kind, tools, count)| pattern(kind, tools, count));
    assert_eq!(folded(records).found(&config(50, 3)), expect);
}

/// Enough words to be substantial.
const LONG: &str = "error: cannot find value `x` in this scope, did you mean `y`";
/// Three calls of `read`.
const THREE_READS: Option<(LoopKind, &[&str], u32)> = Some((LoopKind::Call, &["read"], 3));

#[test]
fn calls_are_found_at_the_threshold_and_not_before() {
    // A letter is a call of the tool of that name, a digit behind it is its result.
    let check = |calls: &str, threshold, expect: Option<(LoopKind, &str, u32)>| {
        let mut records = Vec::new();
        let mut chars = calls.chars().peekable();
        while let Some(tool) = chars.next() {
            let (id, name) = (records.len().to_string(), tool.to_string());
            let part = json!({ "type": "toolCall", "id": id, "name": name, "args": {} });
            records.push(message("assistant", json!([part])));
            if let Some(digit) = chars.next_if(char::is_ascii_digit) {
                records.push(result(Some(&id), ["red", "green", "blue"][digit as usize - 48]));
            }
        }
        let found = folded(&records).found(&config(1000, threshold));
        let found = found.map(|found| (found.kind, found.tools.concat(), found.count));
        let expect = expect.map(|(kind, tools, count)| (kind, tools.to_owned(), count));
        assert_eq!(found, expect, "{calls} {threshold}");
    };
    let call = |tool, count| Some((LoopKind::Call, tool, count));
    let cycle = |tools, count| Some((LoopKind::Cycle, tools, count));
    check("", 3, None);
    check("AA", 3, None);
    check("AAA", 3, call("A", 3));
    check("BAAA", 3, call("A", 3));
    check("AABA", 3, None);
    check("AA", 2, call("A", 2));
    check("AAAAAAAAA", 10, None);
    check("AAAAAAAAAA", 10, call("A", 10));
    // With equal results two rounds are enough, else it takes three.
    check("A0B1A0B1", 3, cycle("AB", 2));
    check("A0B1A0B2", 3, None);
    check("A0B0A1B1A2B2", 3, cycle("AB", 3));
    check("ABA", 3, None);
    check("ABABA", 3, None);
    check("ABABAB", 3, cycle("AB", 3));
    check("A0B0C0A0B0C0", 3, cycle("ABC", 2));
    check("A0B0C0D0A0B0C0D0", 3, cycle("ABCD", 2));
    check("A0B0C0D0E0A0B0C0D0E0", 3, None);
    check("ABCABCABC", 3, cycle("ABC", 3));
    check("ABAB", 2, cycle("AB", 2));
    check("A0B0A0B0", 5, None);
    check("A0B0A0B0A0B0A0B0", 5, cycle("AB", 4));
    check("ABABABAB", 5, None);
    check("ABACABAD", 3, None);
    for threshold in 2..40 {
        for one in ["A", "A0"] {
            check(&one.repeat(threshold - 1), threshold as u32, None);
            check(&one.repeat(threshold), threshold as u32, call("A", threshold as u32));
        }
    }
}

#[test]
fn equal_arguments_are_equal_calls_and_nested_differences_are_not() {
    let reads = |args: &[Value]| -> Vec<RecordBody> {
        let read = |args: &Value| call("c", "read", args.clone(), json!({ "llmContent": "ok" }));
        args.iter().map(read).collect()
    };
    let args = [
        json!({ "a": { "x": 1, "y": [2] }, "b": 1 }),
        json!({ "b": 1.0, "a": { "y": [2], "x": 1 } }),
        json!({ "a": { "y": [2.0], "x": 1 }, "b": 1 }),
    ];
    check(&reads(&args[..2]), None);
    check(&reads(&args), THREE_READS);
    let nested: Vec<Value> = (0..9).map(|n| json!({ "a": { "b": [n] } })).collect();
    check(&reads(&nested), None);
}

#[test]
fn equal_outputs_are_found_and_confirmations_are_not() {
    let outputs = |result: fn(u32) -> Value, count: u32| -> Vec<RecordBody> {
        (0..count).map(|n| call("c", "run", json!({ "n": n }), result(n))).collect()
    };
    let found = Some((LoopKind::Output, &["run"] as &[&str], 3));
    check(&outputs(|_| json!({ "llmContent": LONG }), 2), None);
    check(&outputs(|_| json!({ "llmContent": LONG }), 3), found);
    check(&outputs(|n| json!({ "llmContent": format!("{LONG} (after {n} s)") }), 3), found);
    check(&outputs(|n| json!({ "llmContent": format!("{LONG} ({n} errors)") }), 9), None);
    check(&outputs(|_| json!({ "llmContent": "ok" }), 9), None);
    check(&outputs(|_| json!({ "llmContent": "" }), 9), None);
    check(&outputs(|_| json!({ "llmContent": "no such file", "success": false }), 3), found);
    check(&outputs(|_| json!({ "llmContent": "no such file", "exitCode": 2 }), 3), found);
    check(&outputs(|_| json!({ "llmContent": "", "error": "no such file" }), 3), found);
    let success = |_| json!({ "llmContent": "1 match", "exitCode": 1, "success": true });
    check(&outputs(success, 9), None);
    let mut interrupted = outputs(|_| json!({ "llmContent": LONG }), 4);
    let other = json!({ "llmContent": "something else" });
    interrupted.insert(2, call("c", "run", json!({ "n": "x" }), other));
    check(&interrupted, None);
    let again = text("assistant", LONG);
    check(&[again.clone(), again.clone()], None);
    check(&[again.clone(), again.clone(), again], Some((LoopKind::Output, &[], 3)));
    let short = text("assistant", "Let me look.");
    check(&[short.clone(), short.clone(), short], None);
}

#[test]
fn call_counts_once_in_whatever_records_it_is() {
    let args = &json!({ "path": "a" });
    let recorded = |id: &str| call(id, "read", args.clone(), json!({ "llmContent": "ok" }));
    let both = |id: &str| vec![requests(&[(id, args)]), recorded(id), result(Some(id), "ok")];
    check(&[both("1"), both("2")].concat(), None);
    check(&[both("1"), both("2"), both("3")].concat(), THREE_READS);
    let messages = |id: &str| vec![requests(&[(id, args)]), result(Some(id), "ok")];
    check(&[messages("1"), messages("2")].concat(), None);
    // The third request counts without a result.
    let third = vec![requests(&[("3", args)])];
    check(&[messages("1"), messages("2"), third].concat(), THREE_READS);
    let without_ids = |id: &str| vec![requests(&[(id, args)]), result(None, "ok")];
    check(&[without_ids("1"), without_ids("2")].concat(), None);
    // Ids that a model uses again, and calls without results.
    let request = requests(&[("1", args)]);
    check(&[request.clone(), request.clone()], None);
    check(&[request.clone(), request.clone(), request], THREE_READS);
    check(&[both("1"), both("1")].concat(), None);
    check(&[both("1"), both("1"), both("1")].concat(), THREE_READS);
}

#[test]
fn results_of_one_message_count_in_the_order_of_its_calls() {
    let (a, b) = (&json!({ "p": "a" }), &json!({ "p": "b" }));
    let round = |order: [&str; 2]| {
        let results = order.map(|id| result(Some(id), &format!("text of {id}")));
        [vec![requests(&[("a", a), ("b", b)])], results.to_vec()].concat()
    };
    let rounds = [round(["a", "b"]), round(["b", "a"])].concat();
    check(&rounds, Some((LoopKind::Cycle, &["read", "read"], 2)));
    check(&[requests(&[("1", a), ("2", a), ("3", a)])], THREE_READS);
}

#[test]
fn user_message_and_reset_end_a_loop() {
    let one = call("c", "read", json!({}), json!({ "llmContent": "ok" }));
    let mark = |pattern| RecordBody::Loop(LoopMark { pattern });
    for between in [text("user", "go on"), mark(None)] {
        let mut records = vec![one.clone(), one.clone(), between, one.clone(), one.clone()];
        check(&records, None);
        records.push(one.clone());
        check(&records, THREE_READS);
    }
    let noted = mark(Some(pattern(LoopKind::Turns, &[], 7)));
    check(&[noted.clone(), one], Some((LoopKind::Turns, &[], 7)));
    check(&[noted, text("user", "go on")], None);
}

#[test]
fn model_calls_are_limited_unless_the_detection_is_off() {
    let turns = |count| folded(&vec![text("assistant", "hm"); count]);
    assert_eq!(turns(4).found(&config(4, 3)), None);
    let found = |count| Some(pattern(LoopKind::Turns, &[], count));
    assert_eq!(turns(5).found(&config(4, 3)), found(5));
    assert_eq!(turns(3).found_before_call(&config(4, 3)), None);
    assert_eq!(turns(4).found_before_call(&config(4, 3)), found(4));
    let off = LoopDetectionConfig { enabled: false, ..config(4, 3) };
    assert_eq!(turns(9).found(&off), None);
    assert_eq!(turns(9).found_before_call(&off), None);
}

#[test]
fn shown_names_of_tools_are_short_and_printable() {
    let name = format!("re\u{1b}[31mad{}", "x".repeat(1000));
    let one = call("c", &name, json!({}), json!({ "llmContent": "ok" }));
    let found = folded(&[one.clone(), one.clone(), one]).found(&config(50, 3)).unwrap();
    assert!(found.tools[0].starts_with("readxxx") && found.tools[0].len() == 64, "{found:?}");
}

/// A session of few distinct records, so that much of it repeats.
fn any_records() -> impl Strategy<Value = Vec<RecordBody>> {
    let record = prop_oneof![
        4 => (0..3u8, 0..2u8).prop_map(|(args, result)| {
            let result = ["ok", LONG][usize::from(result)];
            call("c", "read", json!({ "n": args }), json!({ "llmContent": result }))
        }),
        2 => (0..3u8).prop_map(|args| requests(&[("c", &json!({ "n": args }))])),
        1 => Just(result(Some("c"), "ok")),
        1 => Just(result(None, LONG)),
        1 => Just(text("assistant", LONG)),
    ];
    prop::collection::vec(record, 0..80)
}

proptest! {
    /// A restart folds only the newest records, and finds the same.
    #[test]
    fn newest_records_suffice_to_find_a_loop(records in any_records(), threshold in 2..4u32) {
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

    #[test]
    fn distinct_calls_with_short_results_are_no_loop(results in prop::collection::vec("([a-z]{1,6} ){0,7}", 0..60)) {
        let calls = results.iter().zip(0..).map(|(result, n)| {
            call("c", "edit", json!({ "deep": [{ "n": n }] }), json!({ "llmContent": result }))
        });
        prop_assert_eq!(folded(&calls.collect::<Vec<_>>()).found(&config(1000, 3)), None);
    }
}

/// Outputs of one failure with `{}` where runs differ, and the words of three runs.
const ONE_FAILURE: &[(&str, [&str; 3])] = &[
    (
        "thread 'parser::nested' ({}) panicked at src/parser.rs:41:9:\nassertion `left == right` failed\n\
         test result: FAILED. 2 passed; 1 failed; 0 ignored; finished in 0.03s",
        ["81234", "81377", "90001"],
    ),
    (
        "test parser::nested ... FAILED\npanicked at src/parser.rs:{}:\nassertion `left == right` failed\n\
         test result: FAILED. 2 passed; 1 failed; 0 ignored; finished in 0.03s",
        ["41:9", "43:9", "112:13"],
    ),
    (
        "Traceback (most recent call last):\n  File \"/tmp/{}/run.py\", line 12, in <module>\n    main()\n\
         KeyError: 'host' is missing in the configuration",
        ["tmpx7k2pq", "tmp9a1zz", "tmpb3zt9l"],
    ),
    (
        "<Server object at {}> could not bind the port because it is in use by another process",
        ["0x7f3c2a10b4f0", "0x7f9911aa0050", "0x55d01c02e1a0"],
    ),
    (
        "npm error code ELIFECYCLE the script build failed\nnpm error A complete log of this run can be found in: \
         /home/me/.npm/_logs/{}-debug-0.log",
        ["2026-01-27T10_00_00_123Z", "2026-01-27T10_02_41_007Z", "2026-01-28T00_00_00_000Z"],
    ),
];

/// Outputs with `{}` where runs differ, and the words of three runs that make progress.
const PROGRESS: &[(&str, [&str; 3])] = &[
    (
        "running 9 tests\nthe whole log of this run lies in the directory below\n\
         test result: FAILED. {}; 0 ignored; finished in 0.03s",
        ["5 passed; 4 failed", "6 passed; 3 failed", "7 passed; 2 failed"],
    ),
    (
        "running 9 tests\ntest {} ... FAILED\nassertion `left == right` failed\n\
         test result: FAILED. 8 passed; 1 failed; 0 ignored; finished in 0.03s",
        ["parser::nested", "parser::empty", "lexer::strings"],
    ),
    (
        "error: could not compile `app` (lib) due to {} previous errors; see the whole log in the directory",
        ["12", "7", "2"],
    ),
];

#[test]
fn near_repeats_of_one_failure_are_a_loop_and_progress_is_not() {
    let run = |args: Value, template: &str, word: &str| {
        let text = template.replace("{}", word);
        call("c", "run", args, json!({ "llmContent": text, "exitCode": 1 }))
    };
    let runs_of_different_commands = |template, words: &[&str; 3]| -> Vec<RecordBody> {
        let numbered = words.iter().enumerate();
        numbered.map(|(n, word)| run(json!({ "n": n }), template, word)).collect()
    };
    for (template, words) in ONE_FAILURE {
        let records = runs_of_different_commands(template, words);
        check(&records, Some((LoopKind::Output, &["run"], 3)));
        check(&records[..2], None);
    }
    for (template, words) in PROGRESS {
        check(&runs_of_different_commands(template, words), None);
        let edit_and_run = |(n, word): (usize, &&str)| {
            let edited = json!({ "llmContent": "The file has been updated." });
            [call("e", "edit", json!({ "text": n }), edited), run(json!({}), template, word)]
        };
        check(&words.iter().enumerate().flat_map(edit_and_run).collect::<Vec<_>>(), None);
    }
}

#[test]
fn call_whose_result_was_cut_may_be_repeated() {
    let args = json!({ "path": "a.rs" });
    let head = |items: Value| {
        let epoch = json!({
            "strategy": "floor", "cause": "overflow", "contextSize": 2048, "tokenizer": "t",
            "headTokens": 9, "head": items,
        });
        RecordBody::Epoch(serde_json::from_value(epoch).expect("an epoch"))
    };
    let read_it = || call("c", "read", args.clone(), json!({ "llmContent": "a long file" }));
    let cut = |seq: u64| head(json!([{ "as": "cut", "seq": seq, "headChars": 9, "tailChars": 9 }]));
    let left_out = head(json!([{ "as": "range", "from": 0, "to": 0 }]));
    let whole = head(json!([{ "as": "range", "from": 0, "to": 9 }]));
    let user = || text("user", "read it");
    let again = [user(), read_it(), cut(1), read_it(), left_out, read_it(), read_it()];
    check(&again, None);
    let seen = [user(), read_it(), whole, read_it(), read_it()];
    check(&seen, Some((LoopKind::Call, &["read"], 3)));
}
