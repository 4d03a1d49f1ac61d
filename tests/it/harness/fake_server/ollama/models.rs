//! The models of the fake: what `/api/tags`, `/api/ps` and `/api/show` report of them, and their chat template.

use serde_json::{Map, Value, json};

use super::super::http::Step;
use super::state::State;
use super::{vocabulary, wire};

/// The window that every model was trained for by default.
pub(super) const TRAINED_CONTEXT: u64 = 8192;
/// The memory of a model without a window, in bytes.
const WEIGHTS_BYTES: u64 = 1 << 30;
/// The memory of one token of the window: 2 layers of 2 heads of 16 keys and 16 values of 2 bytes each.
const KV_BYTES: u64 = 2 * 2 * (16 + 16) * 2;

const TEMPLATE: &str = "{{- if .System }}<|im_start|>system\n{{ .System }}{{ if .Tools }}\n# Tools\n\
    {{ range .Tools }}{{ . }}\n{{ end }}{{ end }}<|im_end|>\n{{ end }}{{- range .Messages }}\
    <|im_start|>{{ .Role }}\n{{ .Content }}<|im_end|>\n{{ end }}<|im_start|>assistant\n";

/// A model.
#[derive(Clone, Copy)]
pub(super) struct Model {
    pub(super) name: &'static str,
    capabilities: &'static [&'static str],
    /// The model's own system message; none if empty.
    system: &'static str,
    /// The roles and texts of the model's own example conversation.
    messages: &'static [(&'static str, &'static str)],
    tools: ToolPlace,
    /// Whether the model has a template and a vocabulary, so that prompts are rendered, counted and cut.
    pub(super) is_counted: bool,
}

/// The place in a prompt where a template writes tools.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ToolPlace {
    /// At the end of the system message, which is empty if there is none.
    InSystem,
    /// In the place of the system message, with instructions, as in Ollama's template of SmolLM2.
    InsteadOfSystem,
    /// Before the last user message, with instructions, as in Ollama's template of Llama 3.1.
    BeforeLastUser,
}

/// The instructions that some templates write beside tools. They are longer than what a prompt without tools can have.
const TOOL_INSTRUCTIONS: &str = "Below are the functions that you may call. Answer a question by one call or by \
    several, each as a JSON object with the name of a function and its arguments, between the tags of a call and \
    without any other text. If no function helps, say so; if an argument is missing, ask for it. The functions are:\n";

pub(super) const MODELS: &[Model] = &[
    Model::new("tiny", &["completion", "tools"]),
    Model::new("thinker", &["completion", "tools", "thinking"]),
    Model::new("seer", &["completion", "vision"]),
    Model {
        system: "Be brief.",
        messages: &[("user", "Ping?"), ("assistant", "Pong.")],
        ..Model::new("plain", &["completion"])
    },
];

/// Models with other templates, which few tests install.
pub(super) const MORE_MODELS: &[Model] = &[
    Model { tools: ToolPlace::InsteadOfSystem, ..Model::new("caller", &["completion", "tools"]) },
    Model { tools: ToolPlace::BeforeLastUser, ..Model::new("mover", &["completion", "tools"]) },
];

/// The name of the model that answers by a policy.
pub(crate) const SCRIPTED: &str = "scripted:latest";
/// The model that answers by a policy.
pub(super) const SCRIPTED_MODEL: Model =
    Model { is_counted: false, ..Model::new("scripted", &["completion", "tools"]) };

/// Returns the model of a name, with or without the tag `latest`.
pub(super) fn find(name: &str) -> Option<&'static Model> {
    let name = name.strip_suffix(":latest").unwrap_or(name);
    let all = MODELS.iter().chain(MORE_MODELS).chain([&SCRIPTED_MODEL]);
    all.into_iter().find(|model| model.name == name)
}

/// Answers `/api/tags`.
pub(super) fn list(state: &State) -> Vec<Step> {
    let models = state.installed.iter().map(|installed| {
        let model = state.find(installed.name).expect("an installed model is known");
        let mut tag = json!({
            "name": installed.full_name(), "model": installed.full_name(), "size": model.size_bytes(0),
            "digest": model.digest(), "modified_at": "2026-01-27T10:00:00.5+01:00",
            "details": model.details(),
        });
        if state.is_at_least(0, 30, 0) {
            tag["details"]["context_length"] = json!(state.trained_context_of(model.name));
            tag["details"]["embedding_length"] = json!(64);
            tag["capabilities"] = json!(model.capabilities);
        }
        tag
    });
    wire::json(&json!({ "models": models.collect::<Vec<_>>() }))
}

/// Answers `/api/ps`.
pub(super) fn running(state: &State) -> Vec<Step> {
    let running = state.loaded.iter().map(|loaded| {
        let named = find(loaded.name).expect("a loaded model is known");
        let model = state.find(loaded.name).unwrap_or(named);
        let size = model.size_bytes(loaded.num_ctx);
        let mut running = json!({
            "name": named.full_name(), "model": named.full_name(), "size": size,
            "digest": model.digest(), "details": model.details(),
            "expires_at": "2026-01-27T10:05:00.5+01:00",
            "size_vram": size * state.vram_percent / 100,
        });
        if state.is_at_least(0, 10, 0) {
            running["context_length"] = json!(loaded.num_ctx);
        }
        running
    });
    wire::json(&json!({ "models": running.collect::<Vec<_>>() }))
}

/// Answers `/api/show`.
pub(super) fn show(state: &State, request: &Value) -> Vec<Step> {
    let name = request["model"].as_str().unwrap_or_default();
    if name.is_empty() {
        return wire::error(400, "model is required");
    }
    let Some(model) = state.find(name) else {
        return match name.contains(' ') {
            true => wire::error(400, "invalid model name"),
            false => wire::error(404, &format!("model '{name}' not found")),
        };
    };
    let mut show = json!({
        "details": model.details(),
        "model_info": model.info(state.trained_context_of(model.name), request["verbose"] == true),
        "modified_at": "2026-01-27T10:00:00.123456789+01:00",
    });
    if state.new_engine.is_some() {
        show["model_info"]["tokenizer.ggml.add_bos_token"].take();
    }
    if model.is_counted {
        let weights = &state.weights;
        let text =
            format!("# Modelfile generated by \"ollama show\"\n# FROM it\n\nFROM {weights}\n");
        show["modelfile"] = json!(text);
        show["template"] = json!(TEMPLATE);
    }
    if let Some(num_ctx) = state.modelfile_window {
        show["parameters"] = json!(format!(
            "num_ctx                        {num_ctx}\nstop                           \"<|im_end|>\""
        ));
    }
    if !model.system.is_empty() {
        show["system"] = json!(model.system);
    }
    if !model.messages.is_empty() {
        show["messages"] = json!(model.own_messages());
    }
    if state.is_at_least(0, 6, 4) {
        show["capabilities"] = json!(model.capabilities);
    }
    wire::json(&show)
}

impl Model {
    const fn new(name: &'static str, capabilities: &'static [&'static str]) -> Self {
        let tools = ToolPlace::InSystem;
        Self { name, capabilities, system: "", messages: &[], tools, is_counted: true }
    }

    pub(super) fn can(&self, capability: &str) -> bool {
        self.capabilities.contains(&capability)
    }

    fn full_name(&self) -> String {
        format!("{}:latest", self.name)
    }

    fn digest(&self) -> String {
        let sum: u64 = self.name.bytes().map(u64::from).sum();
        format!("{:016x}", sum.wrapping_mul(0x9e37_79b9_7f4a_7c15)).repeat(4)
    }

    /// Returns the memory of the model with a window.
    const fn size_bytes(&self, num_ctx: u64) -> u64 {
        WEIGHTS_BYTES + num_ctx * KV_BYTES
    }

    fn details(&self) -> Value {
        if !self.is_counted {
            return json!({ "family": "scripted", "parameter_size": "7B" });
        }
        json!({
            "parent_model": "", "format": "gguf", "family": "llama", "families": ["llama"],
            "parameter_size": "108K", "quantization_level": "F32",
        })
    }

    /// Returns `model_info`; the arrays of the vocabulary only if `is_verbose`.
    fn info(&self, trained_context: u64, is_verbose: bool) -> Map<String, Value> {
        let own = |(key, value): (&str, Value)| (key.to_owned(), value);
        if !self.is_counted {
            let keys = [
                ("general.architecture", json!("scripted")),
                ("general.parameter_count", json!(7_000_000_000_u64)),
                ("scripted.context_length", json!(trained_context)),
            ];
            return keys.into_iter().map(own).collect();
        }
        let keys = [
            ("general.architecture", json!("llama")),
            ("general.parameter_count", json!(108_096)),
            ("llama.context_length", json!(trained_context)),
            ("llama.block_count", json!(2)),
            ("llama.embedding_length", json!(64)),
            ("llama.attention.head_count", json!(4)),
            ("llama.attention.head_count_kv", json!(2)),
        ];
        let vocabulary = vocabulary::metadata(is_verbose);
        keys.into_iter().chain(vocabulary).map(own).collect()
    }

    /// Adds tools to the messages of a prompt; returns whether they are to be written behind the system message.
    fn add_tools(&self, tools: &[Value], all: &mut Vec<Value>) -> bool {
        let tools: String = tools.iter().map(|tool| format!("{tool}\n")).collect();
        let instructions = format!("{TOOL_INSTRUCTIONS}{tools}");
        match self.tools {
            ToolPlace::InSystem => {
                if all.iter().all(|message| message["role"] != "system") {
                    all.insert(0, json!({ "role": "system", "content": "" }));
                }
                return true;
            }
            ToolPlace::InsteadOfSystem => {
                all.retain(|message| message["role"] != "system");
                all.insert(0, json!({ "role": "system", "content": instructions }));
            }
            ToolPlace::BeforeLastUser => {
                if let Some(last) = all.iter_mut().rfind(|message| message["role"] == "user") {
                    let text = last["content"].as_str().unwrap_or_default();
                    last["content"] = json!(format!("{instructions}\n{text}"));
                }
            }
        }
        false
    }

    fn own_messages(&self) -> Vec<Value> {
        let messages = self.messages.iter();
        messages.map(|(role, text)| json!({ "role": role, "content": text })).collect()
    }
}

/// Returns the prompt that a model's template makes of messages.
pub(crate) fn render(model: &str, messages: &[Value], tools: &[Value], think: bool) -> String {
    let model = find(model).expect("a model of the fake");
    let text = |message: &Value, name: &str| message[name].as_str().unwrap_or_default().to_owned();
    let mut all = [model.own_messages(), messages.to_vec()].concat();
    let begins_with_system = messages.first().is_some_and(|first| first["role"] == "system");
    if !model.system.is_empty() && !begins_with_system {
        all.insert(0, json!({ "role": "system", "content": model.system }));
    }
    let mut are_tools_pending = false;
    if !tools.is_empty() {
        are_tools_pending = model.add_tools(tools, &mut all);
    }
    let mut prompt = String::new();
    for message in &all {
        let role = text(message, "role");
        let mut content = text(message, "content");
        if role == "system" && std::mem::take(&mut are_tools_pending) {
            content.push_str("\n# Tools\n");
            tools.iter().for_each(|tool| content.push_str(&format!("{tool}\n")));
        }
        // Like Qwen 3's template, which drops what it takes for thinking.
        if let Some((_, after)) = content.rsplit_once("</think>").filter(|_| model.can("thinking"))
        {
            content = after.to_owned();
        }
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            let function = &call["function"];
            let call = json!({ "name": function["name"], "arguments": function["arguments"] });
            content.push_str(&format!("<tool_call>{call}</tool_call>"));
        }
        prompt.push_str(&format!("<|im_start|>{role}\n{content}<|im_end|>\n"));
    }
    prompt.push_str("<|im_start|>assistant\n");
    if model.can("thinking") {
        prompt.push_str(if think { "<think>\n" } else { "<think>\n\n</think>\n\n" });
    }
    prompt
}
