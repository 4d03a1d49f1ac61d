//! Templates as models use them, learned from the prompts that they render.

use std::sync::{Arc, LazyLock};

use ollm_protocol::content::{ContextFunction, ContextToolCall};
use proptest::prelude::*;
use serde_json::json;

use super::learn::{learn, probes};
use super::*;
use crate::tokens::testing::vocabulary;
use crate::tokens::{CachedTokenizer, Counter, Engine, ExactCounter, Tokenizer};

type Render = fn(&[ContextMessage]) -> Option<String>;

fn chat_ml(messages: &[ContextMessage]) -> Option<String> {
    let mut prompt = String::new();
    if messages[0].role != Role::System {
        prompt.push_str("<|im_start|>system\nYou are kind.<|im_end|>\n");
    }
    for message in messages {
        let role = message.role.as_str();
        let mut content = message.content.clone();
        for call in &message.tool_calls {
            let call = json!({ "name": call.function.name, "arguments": call.function.arguments });
            content.push_str(&format!("\n<tool_call>\n{call}\n</tool_call>"));
        }
        prompt.push_str(&format!("<|im_start|>{role}\n{content}<|im_end|>\n"));
    }
    Some(prompt + "<|im_start|>assistant\n")
}

/// Turns without special tokens, whose ends merge with the texts of messages.
fn plain_turns(messages: &[ContextMessage]) -> Option<String> {
    let turn = |message: &ContextMessage| match message.role {
        Role::System => format!("{}\n\n", message.content),
        Role::User => format!("User: {}\n\n", message.content),
        _ => format!("Assistant: {}<|endoftext|>", message.content),
    };
    Some(messages.iter().map(turn).collect::<String>() + "Assistant:")
}

/// The template of Llama 2.
fn instructions(messages: &[ContextMessage]) -> Option<String> {
    let mut prompt = String::new();
    let mut system = String::new();
    for message in messages {
        let content = &message.content;
        match message.role {
            Role::System => system = format!("<<SYS>>\n{content}\n<</SYS>>\n\n"),
            Role::User => {
                let system = std::mem::take(&mut system);
                prompt.push_str(&format!("<s>[INST] {system}{content} [/INST]"));
            }
            _ => prompt.push_str(&format!(" {content} </s>")),
        }
    }
    Some(prompt)
}

fn trimming(messages: &[ContextMessage]) -> Option<String> {
    let trimmed = messages.iter().cloned().map(|mut message| {
        message.content = message.content.trim().to_owned();
        message
    });
    chat_ml(&trimmed.collect::<Vec<_>>())
}

/// Trims ASCII white space only, as C's `isspace` does.
fn trimming_ascii(messages: &[ContextMessage]) -> Option<String> {
    let trimmed = messages.iter().cloned().map(|mut message| {
        let is_space = |char: char| matches!(char, ' ' | '\t'..='\r');
        message.content = message.content.trim_matches(is_space).to_owned();
        message
    });
    chat_ml(&trimmed.collect::<Vec<_>>())
}

/// Inserts a text before the last user message only, so that it moves with every turn.
fn moving(messages: &[ContextMessage]) -> Option<String> {
    let mut messages = messages.to_vec();
    let last = messages.iter().rposition(|message| message.role == Role::User)?;
    messages[last].content.insert_str(0, "/think ");
    chat_ml(&messages)
}

/// Inserts the system message before the last user message.
fn late_system(messages: &[ContextMessage]) -> Option<String> {
    let mut messages = messages.to_vec();
    if messages[0].role == Role::System {
        let system = messages.remove(0);
        let last = messages.iter().rposition(|message| message.role == Role::User)?;
        messages[last].content.insert_str(0, &format!("{}\n\n", system.content));
    }
    plain_turns(&messages)
}

/// Writes instructions for tools in the place of a system message, as Ollama's template of SmolLM2 does.
fn without_system(messages: &[ContextMessage]) -> Option<String> {
    let rest = messages.iter().filter(|message| message.role != Role::System);
    let prompt = chat_ml(&rest.cloned().collect::<Vec<_>>())?;
    Some(prompt.replacen("You are kind.", "You call tools.", 1))
}

/// Trims the texts of each role differently.
fn trimming_some(messages: &[ContextMessage]) -> Option<String> {
    let trimmed = messages.iter().cloned().map(|mut message| {
        let content = match message.role {
            Role::System => message.content.trim_end(),
            Role::Assistant => message.content.trim_start_matches('\n'),
            Role::User | Role::Tool => &message.content,
        };
        message.content = content.to_owned();
        message
    });
    chat_ml(&trimmed.collect::<Vec<_>>())
}

/// Writes the ids of calls, which a template cannot cover.
fn with_ids(messages: &[ContextMessage]) -> Option<String> {
    let mut messages = messages.to_vec();
    for message in &mut messages {
        for call in &mut message.tool_calls {
            call.function.name = format!("{} {}", call.function.name, call.id);
        }
    }
    chat_ml(&messages)
}

/// Writes single calls, with nested arguments in alphabetical order, and results as JSON.
fn one_call(messages: &[ContextMessage]) -> Option<String> {
    let mut messages = messages.to_vec();
    for message in &mut messages {
        if message.role == Role::Tool {
            message.content = serde_json::Value::from(message.content.as_str()).to_string();
        }
        for call in std::mem::take(&mut message.tool_calls) {
            if message.content.contains("<call>") {
                return None;
            }
            let mut arguments = call.function.arguments;
            arguments.as_object_mut()?.values_mut().for_each(serde_json::Value::sort_all_objects);
            let call = format!("<call>{} {arguments}</call>", call.function.name);
            message.content.push_str(&call);
        }
    }
    chat_ml(&messages)
}

/// Writes arguments as a list of tags.
fn as_tags(messages: &[ContextMessage], flag: fn(bool) -> &'static str) -> Option<String> {
    let mut messages = messages.to_vec();
    for message in &mut messages {
        for (at, call) in std::mem::take(&mut message.tool_calls).into_iter().enumerate() {
            let gap = if at == 0 && message.content.is_empty() { "" } else { "\n" };
            message.content.push_str(&format!("{gap}<call>\n<tool={}>\n", call.function.name));
            for (name, value) in call.function.arguments.as_object()? {
                let value = match value {
                    serde_json::Value::String(text) => text.clone(),
                    serde_json::Value::Bool(value) => flag(*value).to_owned(),
                    other => other.to_string(),
                };
                let line = format!("<parameter={name}>\n{value}\n</parameter>\n");
                message.content.push_str(&line);
            }
            message.content.push_str("</tool>\n</call>");
        }
    }
    chat_ml(&messages)
}

fn with_tags(messages: &[ContextMessage]) -> Option<String> {
    as_tags(messages, |flag| if flag { "true" } else { "false" })
}

fn with_python_tags(messages: &[ContextMessage]) -> Option<String> {
    as_tags(messages, |flag| if flag { "True" } else { "False" })
}

fn learned(tokenizer: &Tokenizer, render: Render) -> Option<Template> {
    let prompts: Vec<_> = probes(true).iter().map(|probe| render(probe)).collect();
    learn(tokenizer, &prompts)
}

/// Returns a conversation of texts, which ends with a user message.
fn conversation(has_system: bool, texts: &[String]) -> Vec<ContextMessage> {
    let roles = [Role::User, Role::Assistant].iter().cycle();
    let mut messages: Vec<_> =
        roles.zip(texts).map(|(role, text)| ContextMessage::text(*role, text)).collect();
    if messages.len() % 2 == 0 {
        messages.pop();
    }
    if has_system {
        messages.insert(0, ContextMessage::text(Role::System, "Answer well. \n"));
    }
    messages
}

fn covers(template: &Template, messages: &[ContextMessage]) -> bool {
    template.chunks(messages).is_some()
}

static GPT2: LazyLock<Tokenizer> =
    LazyLock::new(|| Tokenizer::new(&vocabulary("gpt-2"), Engine::LlamaCpp).unwrap());
static LLAMA: LazyLock<Tokenizer> =
    LazyLock::new(|| Tokenizer::new(&vocabulary("llama-spm"), Engine::LlamaCpp).unwrap());

fn counter(name: &str, tokenizer: &Tokenizer, render: Render) -> Counter {
    let template = Some(Arc::new(learned(tokenizer, render).unwrap()));
    let tokenizer = Arc::new(CachedTokenizer::new(
        Tokenizer::new(&vocabulary(name), Engine::LlamaCpp).unwrap(),
    ));
    Counter::exact(ExactCounter {
        is_checked: true,
        tokenizer,
        others: Vec::new(),
        without_tools: template.clone(),
        with_tools: template,
        doubts: Arc::default(),
    })
}

/// Counters with the functions that render the prompts that they count.
static COUNTERS: LazyLock<Vec<(Counter, &Tokenizer, Render)>> = LazyLock::new(|| {
    let all: [(&str, &Tokenizer, Render); 7] = [
        ("gpt-2", &GPT2, chat_ml),
        ("gpt-2", &GPT2, without_system),
        ("gpt-2", &GPT2, trimming),
        ("gpt-2", &GPT2, trimming_ascii),
        ("gpt-2", &GPT2, trimming_some),
        ("llama-spm", &LLAMA, instructions),
        ("llama-spm", &LLAMA, chat_ml),
    ];
    all.map(|(name, tokenizer, render)| (counter(name, tokenizer, render), tokenizer, render))
        .into()
});

#[test]
fn template_that_is_not_understood_is_not_used() {
    assert_eq!(learned(&GPT2, moving), None);
    let template = learned(&GPT2, late_system).unwrap();
    assert!(covers(&template, &conversation(false, &["a".to_owned()])));
    assert!(!covers(&template, &conversation(true, &["a".to_owned()])));
    assert_eq!(learned(&GPT2, |_| None), None);
    let template = learned(&GPT2, with_ids).unwrap();
    assert_eq!(template.calls, None);
    let template = learned(&GPT2, trimming).unwrap();
    assert!(template.calls.is_some());
    let both = Trim { start: TrimmedChars::Unicode, end: TrimmedChars::Unicode };
    assert_eq!(template.trims, RoleTrims { system: both, user: both, assistant: both, tool: both });
    let calls = learned(&GPT2, chat_ml).and_then(|template| template.calls);
    let calls = calls.unwrap();
    assert_eq!(calls.open, "\n<tool_call>\n{\"name\":\"");
    assert_eq!(calls.open_behind_text.as_deref(), Some(calls.open.as_str()));
    assert_eq!(calls.middle, "\",\"arguments\":");
    assert_eq!(calls.between.as_deref(), Some("}\n</tool_call>\n<tool_call>\n{\"name\":\""));
}

#[test]
fn only_control_tokens_that_the_model_reads_are_broken_up() {
    let (spm, gpt) = (counter("llama-spm", &LLAMA, instructions), counter("gpt-2", &GPT2, chat_ml));
    let text = "<|im_end|> [INST] </s> <|endoftext|> <|other|>";
    let check = |counter: &Counter, expect| assert_eq!(counter.defuse(text), expect);
    check(&Counter::ESTIMATE, "< |im_end|> [ INST] </s> < |endoftext|> < |other|>");
    // `[INST]` is no token of this vocabulary, and marks the template's turns.
    check(&spm, "<|im_end|> [ INST] < /s> <|endoftext|> <|other|>");
    check(&gpt, "< |im_end|> [INST] </s> < |endoftext|> <|other|>");
}

#[test]
fn system_message_that_is_left_out_is_learned() {
    let template = learned(&GPT2, without_system).unwrap();
    assert!(template.is_system_dropped && template.calls.is_some());
    assert!(!learned(&GPT2, chat_ml).unwrap().is_system_dropped);
    // A system message elsewhere is not left out.
    assert!(!learned(&GPT2, late_system).unwrap().is_system_dropped);
}

/// FORMAT.md describes this form, in which `vocab/models.json` keeps templates.
#[test]
fn serialized_form_is_unchanged() {
    let stored = |render: Render| serde_json::to_value(learned(&GPT2, render).unwrap()).unwrap();
    let single = stored(one_call);
    let style = json!({ "order": "inner", "spaced": false, "escaped": false });
    let calls = json!({
        "open": "<call>", "open_behind_text": "<call>", "is_dropped_behind_text": false,
        "middle": " ", "between": null,
        "arguments": { "object": style },
    });
    assert_eq!((&single["calls"], &single["results"]), (&calls, &style));
    let calls = json!({
        "open": "<call>\n<tool=", "open_behind_text": "\n<call>\n<tool=",
        "is_dropped_behind_text": false, "middle": "",
        "between": ">\n</tool>\n</call>\n<call>\n<tool=",
        "arguments": { "list": {
            "beforeName": ">\n<parameter=", "behindName": ">\n", "behindValue": "\n</parameter",
            "style": { "order": "given", "spaced": false, "escaped": false }, "isPython": true,
        } },
    });
    assert_eq!(stored(with_python_tags)["calls"], calls);
    let trimmed = stored(trimming_some);
    let none = json!({ "start": "none", "end": "none" });
    let trims = json!({
        "system": { "start": "none", "end": "unicode" }, "user": none,
        "assistant": { "start": "lineFeeds", "end": "none" }, "tool": none,
    });
    assert_eq!(trimmed["trims"], trims);
    let seam = json!(["user", "assistant", {
        "left": "<", "right": "|im_end|>\n<|im_start|>assistant\n", "extra": 0,
    }]);
    assert_eq!(trimmed["seams"][2], seam);
    assert_eq!(serde_json::from_value::<Template>(single).ok(), learned(&GPT2, one_call));
}

#[test]
fn characters_that_are_trimmed_are_learned() {
    let trims = |render: Render| learned(&GPT2, render).unwrap().trims;
    let both = |set| Trim { start: set, end: set };
    assert_eq!(trims(chat_ml), RoleTrims::default());
    let ascii = trims(trimming_ascii);
    assert_eq!((ascii.system, ascii.user), (both(TrimmedChars::Ascii), both(TrimmedChars::Ascii)));
    assert_eq!((ascii.assistant, ascii.tool), (ascii.user, ascii.user));
    // What remains of white space at the ends, by what the server renders of such a message.
    for (render, text) in [(trimming as Render, "字"), (trimming_ascii, "\u{3000}字\u{85}\u{a0}")]
    {
        let template = learned(&GPT2, render).unwrap();
        let messages = [ContextMessage::text(Role::User, " \n\u{3000}字\u{85}\u{a0}\u{b}\t")];
        let chunks = template.chunks(&messages).unwrap();
        let prompt: String = chunks.iter().map(|chunk| chunk.text.as_str()).collect();
        assert_eq!(prompt, render(&messages).unwrap());
        assert!(prompt.contains(&format!("user\n{text}<|im_end|>")), "{prompt:?}");
    }
}

#[test]
fn single_calls_and_results_as_json_are_learned() {
    let template = learned(&GPT2, one_call).unwrap();
    let calls = template.calls.clone().unwrap();
    assert_eq!((calls.open.as_str(), calls.between), ("<call>", None));
    let mut call_message = ContextMessage::text(Role::Assistant, "");
    let call = |name: &str| ContextToolCall {
        id: "c".to_owned(),
        function: ContextFunction {
            name: name.to_owned(),
            arguments: json!({ "z": { "y": 1, "x": "<&>" }, "a": [] }),
        },
    };
    call_message.tool_calls.push(call("read"));
    let mut messages = vec![
        ContextMessage::text(Role::User, "What is in it?"),
        call_message,
        ContextMessage::text(Role::Tool, "it says \"x\"\n\tand more"),
    ];
    let prompt = one_call(&messages).unwrap();
    assert!(prompt.contains(r#"{"z":{"x":"<&>","y":1},"a":[]}"#), "{prompt}");
    let chunks = template.chunks(&messages).unwrap();
    assert_eq!(chunks.iter().map(|chunk| chunk.text.as_str()).collect::<String>(), prompt);
    messages[1].tool_calls.push(call("list"));
    assert!(!covers(&template, &messages));
}

/// The calls of Qwen 2.5 in Ollama's library: several calls share one tag, and a message with text has none.
fn shared_tag(messages: &[ContextMessage]) -> Option<String> {
    let mut messages = messages.to_vec();
    for message in &mut messages {
        let calls = std::mem::take(&mut message.tool_calls);
        if message.role == Role::Tool {
            message.role = Role::User;
            message.content = format!("<tool_response>\n{}\n</tool_response>", message.content);
        }
        if calls.is_empty() || !message.content.is_empty() {
            continue;
        }
        let line = |call: ContextToolCall| {
            let ContextFunction { name, arguments } = call.function;
            format!("{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n")
        };
        let lines: String = calls.into_iter().map(line).collect();
        message.content = format!("<tool_call>\n{lines}</tool_call>");
    }
    chat_ml(&messages)
}

#[test]
fn calls_in_one_tag_and_calls_dropped_beside_text_are_learned() {
    let template = learned(&GPT2, shared_tag).unwrap();
    let call = |path: &str| ContextToolCall {
        id: "c".to_owned(),
        function: ContextFunction { name: "read".to_owned(), arguments: json!({ "path": path }) },
    };
    let check = |text: &str, paths: &[&str]| {
        let mut call_message = ContextMessage::text(Role::Assistant, text);
        call_message.tool_calls = paths.iter().map(|path| call(path)).collect();
        let results = paths.iter().map(|path| ContextMessage::text(Role::Tool, *path));
        let mut messages = vec![ContextMessage::text(Role::User, "Look."), call_message];
        messages.extend(results);
        let chunks = template.chunks(&messages).expect("is covered");
        let text: String = chunks.iter().map(|chunk| chunk.text.as_str()).collect();
        assert_eq!(Some(text), shared_tag(&messages));
    };
    check("", &["a"]);
    check("", &["a", "b", "c"]);
    check("Let me see.", &["a"]);
    check("Let me see.", &["a", "b"]);
}

#[test]
fn arguments_as_a_list_are_learned() {
    for render in [with_tags as Render, with_python_tags] {
        let template = learned(&GPT2, render).unwrap();
        let call = |name: &str, arguments| ContextToolCall {
            id: "c".to_owned(),
            function: ContextFunction { name: name.to_owned(), arguments },
        };
        let check = |text: &str, calls: &[ContextToolCall], is_covered: bool| {
            let mut call_message = ContextMessage::text(Role::Assistant, text);
            call_message.tool_calls.extend_from_slice(calls);
            let messages = [
                ContextMessage::text(Role::User, "Look."),
                call_message,
                ContextMessage::text(Role::Tool, "a </parameter> b"),
            ];
            let chunks = template.chunks(&messages);
            assert_eq!(chunks.is_some(), is_covered, "{calls:?}");
            let text = chunks.map(|chunks| chunks.into_iter().map(|chunk| chunk.text).collect());
            assert!(text.is_none_or(|text: String| Some(text) == render(&messages)));
        };
        let read = call("read", json!({ "path": "<a> &\n\"b\"", "lines": [1, 2], "all": false }));
        let list = call("list", json!({}));
        check("", &[read.clone(), list.clone()], true);
        check("Let me see.", &[list, read], true);
        check("", &[call("stop", json!({ "at": null }))], false);
    }
}

#[test]
fn seam_is_divided_where_the_counts_add_up() {
    let template = learned(&GPT2, plain_turns).unwrap();
    let seam = template.seam(Neighbor::Assistant, Neighbor::User).unwrap();
    assert_eq!(seam.text(), "<|endoftext|>User: ");
    assert_eq!(seam.extra, 0);
}

proptest! {
    #[test]
    fn counts_of_parts_add_up_to_the_prompt(
        has_system in any::<bool>(),
        texts in proptest::collection::vec("[a-zA-Z0-9 \\n.'é字{}<|>\u{b}\u{85}\u{a0}\u{3000}]{1,40}", 1..8),
    ) {
        for (counter, tokenizer, render) in COUNTERS.iter() {
            let messages = conversation(has_system, &texts);
            let prompt = render(&messages).unwrap();
            let sum = counter.count_prompt(&messages, &[]);
            prop_assert_eq!(sum, u64::from(tokenizer.count_prompt(&prompt)), "{}", prompt);
        }
    }
}
