//! The models that a server with the API of OpenAI describes: lists, windows, and the properties of llama-server.
//!
//! Every field is optional and unknown fields are ignored.
//!
//! **Invariant**: a window comes from the server's word about itself, never from what the model was trained for.

use std::path::PathBuf;

use serde::Deserialize;
use serde_json::Value;

use super::dialect::{CountingPath, DialectRules};
use crate::model::info::{CountingSource, ModelInfo, Version};
use crate::model::listed::{ListedModel, ModelVariant, RunningModel, absent_or_null, positive_u32};

/// The fields with the window that a server gives every request.
///
/// **Source**: `max_model_len` of vLLM and SGLang, `context_length` and `context_window` of gateways,
/// `loaded_context_length` of LM Studio, and `n_ctx` of llama-server in `meta`.
const WINDOW_FIELDS: &[&str] =
    &["max_model_len", "loaded_context_length", "context_length", "context_window", "n_ctx"];

/// The states of a model that a router loaded; it loads a sleeping one again by itself.
const LOADED: [&str; 2] = ["loaded", "sleeping"];

/// `GET /v1/models`, and the list of LM Studio.
#[derive(Deserialize)]
pub(super) struct ModelList {
    #[serde(deserialize_with = "absent_or_null")]
    data: Vec<Value>,
}

/// `GET /props` of llama-server.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Props {
    #[serde(deserialize_with = "absent_or_null")]
    default_generation_settings: GenerationSettings,
    total_slots: Option<u64>,
    model_path: Option<String>,
    chat_template: Option<String>,
    #[serde(deserialize_with = "absent_or_null")]
    chat_template_caps: TemplateCaps,
    #[serde(deserialize_with = "absent_or_null")]
    modalities: Modalities,
    pub(super) build_info: Option<String>,
    role: Option<String>,
}

impl Props {
    /// Returns whether the server is a router, which starts a llama-server for each model that is used.
    pub(super) fn is_router(&self) -> bool {
        self.role.as_deref() == Some("router")
    }
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct GenerationSettings {
    /// The window of a slot.
    n_ctx: Option<u64>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct TemplateCaps {
    supports_tools: Option<bool>,
    supports_tool_calls: Option<bool>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct Modalities {
    vision: bool,
}

/// A model as far as a server describes it.
#[derive(Clone, Default)]
pub(super) struct FoundModel {
    /// The name at the server.
    pub(super) id: String,
    /// The entry of the list.
    entry: Value,
    props: Option<Props>,
    /// Set if a router did not load it.
    is_unloaded: bool,
}

impl ModelList {
    /// Returns the models, each with the properties of the server if they are those of its one model.
    pub(super) fn into_models(self, props: Option<&Props>) -> Vec<FoundModel> {
        let props = props.filter(|props| self.data.len() == 1 && !props.is_router());
        let found = self.data.into_iter().filter_map(|entry| {
            let id = entry["id"].as_str()?.to_owned();
            let status = entry["status"]["value"].as_str();
            let is_unloaded = status.is_some_and(|status| !LOADED.contains(&status));
            Some(FoundModel { id, entry, props: props.cloned(), is_unloaded })
        });
        found.collect()
    }

    /// Adds the windows of another list of the same models.
    pub(super) fn add_windows(&mut self, other: &Self) {
        for entry in &mut self.data {
            let same = other.data.iter().find(|other| other["id"] == entry["id"]);
            if let Some(window) = same.and_then(window_in) {
                entry["loaded_context_length"] = window.into();
            }
        }
    }
}

/// Finds a window in the entry of a list.
fn window_in(entry: &Value) -> Option<u32> {
    let places = [entry, &entry["meta"], &entry["model_info"]];
    let mut fields = places
        .into_iter()
        .flat_map(|place| WINDOW_FIELDS.iter().filter_map(move |field| place[*field].as_u64()));
    fields.next().and_then(positive_u32)
}

/// Returns whether a name means the model with an id: it is the id, or the name of the file whose path llama-server has as
/// id by default.
pub(super) fn is_named(id: &str, name: &str) -> bool {
    let file = id.rsplit('/').next().unwrap_or_default();
    name == id || (file.ends_with(".gguf") && (name == file || file == format!("{name}.gguf")))
}

impl FoundModel {
    /// Returns whether the model is in memory.
    pub(super) const fn is_loaded(&self) -> bool {
        !self.is_unloaded
    }

    /// Returns the model as a router lists it now, with what it said of itself the last time that it was loaded; `None` if
    /// it was loaded again since.
    ///
    /// `known`: the model at that time.
    pub(super) fn with_known(&self, known: &Self) -> Option<Self> {
        let is_same = self.is_unloaded || self.entry["status"] == known.entry["status"];
        is_same.then(|| Self { is_unloaded: self.is_unloaded, ..known.clone() })
    }

    /// Adds the properties of the server that a router started for the model.
    pub(super) fn with_props(self, props: Props) -> Self {
        Self { props: Some(props), ..self }
    }

    /// Returns the window of every request.
    fn window(&self) -> Option<u32> {
        let of_slot = self.props.as_ref().and_then(|props| props.default_generation_settings.n_ctx);
        of_slot.and_then(positive_u32).or_else(|| window_in(&self.entry))
    }

    /// Returns a text that changes if the model, its template or its window does; the window is behind the dot.
    fn digest(&self) -> String {
        let meta = &self.entry["meta"];
        let props = self.props.as_ref();
        let parts = [
            self.id.clone(),
            self.entry["root"].to_string(),
            meta["n_params"].to_string(),
            meta["size"].to_string(),
            props.and_then(|props| props.model_path.clone()).unwrap_or_default(),
            props.and_then(|props| props.chat_template.clone()).unwrap_or_default(),
        ];
        let weights = &blake3::hash(parts.join("\n").as_bytes()).to_hex()[..32];
        format!("{weights}.{}", self.window().unwrap_or_default())
    }

    fn meta(&self, name: &str) -> Option<u64> {
        self.entry["meta"][name].as_u64()
    }

    /// Returns the capabilities; empty if the server does not say enough of them.
    fn capabilities(&self) -> Vec<String> {
        let Some(props) = &self.props else { return Vec::new() };
        let TemplateCaps { supports_tools, supports_tool_calls } = props.chat_template_caps;
        let has_tools = supports_tools.or(supports_tool_calls).unwrap_or(true);
        let all = [("completion", true), ("tools", has_tools), ("vision", props.modalities.vision)];
        all.into_iter().filter(|(_, is_there)| *is_there).map(|(name, _)| name.to_owned()).collect()
    }

    /// Returns the model as an entry of a list.
    pub(super) fn listed(&self) -> ListedModel {
        let meta = &self.entry["meta"];
        let n_params = self.meta("n_params");
        ListedModel {
            model: self.id.clone(),
            digest: self.digest(),
            size_bytes: self.meta("size").unwrap_or_default(),
            details: ModelVariant {
                parameter_size: n_params.map(parameters),
                quantization: meta["ftype"].as_str().map(str::to_owned),
                trained_context: self.meta("n_ctx_train").and_then(positive_u32),
                ..ModelVariant::default()
            },
            capabilities: self.capabilities(),
            served_context: self.window(),
            is_whole: true,
            ..ListedModel::default()
        }
    }

    /// Returns the model as one that is in memory.
    pub(super) fn running(&self) -> RunningModel {
        RunningModel {
            model: self.id.clone(),
            digest: self.digest(),
            size_bytes: self.meta("size").unwrap_or_default(),
            effective_context: self.window(),
            ..RunningModel::default()
        }
    }

    /// Returns the description of the model. `is_local`: the server is on this machine, so that its files are.
    pub(super) fn info(&self, model: &str, rules: &DialectRules, is_local: bool) -> ModelInfo {
        let props = self.props.as_ref();
        let path = props.and_then(|props| props.model_path.as_ref()).map(PathBuf::from);
        let path = path.filter(|path| is_local && path.is_absolute());
        let counting = match (path, rules.counting) {
            (Some(path), _) => CountingSource::Weights(path),
            (None, CountingPath::Rendered | CountingPath::Conversation) => CountingSource::Server,
            (None, CountingPath::None) => CountingSource::Answers,
        };
        let listed = self.listed();
        ModelInfo {
            model: model.to_owned(),
            digest: Some(listed.digest),
            parameter_size: listed.details.parameter_size,
            parameter_count: self.meta("n_params"),
            quantization: listed.details.quantization,
            trained_context: listed.details.trained_context,
            capabilities: listed.capabilities,
            template: props.and_then(|props| props.chat_template.clone()),
            served_context: listed.served_context,
            needs_served_context: true,
            is_window_known_later: self.is_unloaded,
            slots: props
                .and_then(|props| props.total_slots)
                .and_then(|slots| u32::try_from(slots).ok()),
            counting,
            server_version: props.and_then(|props| props.build_info.as_deref()).map(Version::parse),
            ..ModelInfo::default()
        }
    }
}

/// Returns a number of parameters as model servers write it.
#[expect(clippy::cast_precision_loss, reason = "the text has two digits")]
fn parameters(count: u64) -> String {
    match count {
        1_000_000_000.. => format!("{:.1}B", count as f64 / 1e9),
        _ => format!("{:.0}M", count as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Dialect;
    use super::*;

    fn list(data: Value) -> ModelList {
        serde_json::from_value(json!({ "object": "list", "data": data })).expect("a list")
    }

    fn props(n_ctx: u64) -> Props {
        serde_json::from_value(json!({
            "default_generation_settings": { "n_ctx": n_ctx, "params": {} }, "total_slots": 2,
            "model_path": "/models/a.gguf", "chat_template": "{{ x }}", "build_info": "b1-0c1e570",
            "chat_template_caps": { "supports_tools": false, "supports_tool_calls": false },
            "modalities": { "vision": false },
        }))
        .expect("properties")
    }

    /// Returns the one entry of llama-server b1-0c1e570.
    fn entry() -> Value {
        json!({ "id": "/models/a.gguf", "owned_by": "llamacpp", "meta": { "n_vocab": 49152,
            "n_ctx": 2048, "n_ctx_train": 8192, "n_params": 134515008, "size": 96576768, "ftype": "Q4_1" } })
    }

    #[test]
    fn llama_server_says_everything() {
        let found = list(json!([entry()])).into_models(Some(&props(1024)));
        let rules = Dialect::LlamaServer.rules();
        let info = found[0].info("small", rules, true);
        assert_eq!((info.model.as_str(), info.served_context), ("small", Some(1024)));
        assert_eq!((info.trained_context, info.slots), (Some(8192), Some(2)));
        assert_eq!(info.counting, CountingSource::Weights("/models/a.gguf".into()));
        assert_eq!((info.can("tools"), info.can("completion")), (Some(false), Some(true)));
        assert_eq!(info.parameter_size.as_deref(), Some("135M"));
        let elsewhere = found[0].info("small", rules, false);
        assert_eq!(elsewhere.counting, CountingSource::Server, "its files are not here");
        let bare = list(json!([entry()])).into_models(None);
        assert_eq!(bare[0].listed().served_context, Some(2048));
        for (name, expect) in
            [("a", true), ("a.gguf", true), ("/models/a.gguf", true), ("b", false)]
        {
            assert_eq!(is_named(&bare[0].id, name), expect, "{name}");
        }
        assert!(!is_named("Qwen/Qwen3", "Qwen3"), "another owner has another model");
    }

    #[test]
    fn digest_follows_the_model_its_template_and_its_window() {
        let digest = |entry: Value, props: &Props| {
            list(json!([entry])).into_models(Some(props))[0].listed().digest
        };
        let same = digest(entry(), &props(1024));
        assert_eq!(digest(entry(), &props(1024)), same);
        assert_ne!(digest(entry(), &props(2048)), same);
        let mut other = entry();
        other["meta"]["n_params"] = json!(5);
        assert_ne!(digest(other, &props(1024)), same);
        let other = Props { chat_template: None, ..props(1024) };
        assert_ne!(digest(entry(), &other), same);
    }

    #[test]
    fn window_has_several_names_and_is_not_guessed() {
        let check = |entry: Value, expect: Option<u32>| {
            let found = list(json!([entry])).into_models(None);
            assert_eq!(found[0].listed().served_context, expect, "{entry}");
        };
        // vLLM 0.33; SGLang since 0.4.9 has the same field.
        check(
            json!({ "id": "Q/W", "owned_by": "vllm", "root": "Q/W", "max_model_len": 40960 }),
            Some(40_960),
        );
        check(json!({ "id": "m", "context_length": 8192 }), Some(8192));
        check(json!({ "id": "m", "max_model_len": null }), None);
        check(json!({ "id": "gpt", "owned_by": "openai" }), None);
        check(json!({ "id": "m", "meta": { "n_ctx_train": 8192 } }), None);
    }

    #[test]
    fn lm_studio_says_the_window_in_a_list_of_its_own() {
        let mut models = list(json!([{ "id": "a" }, { "id": "b" }]));
        models.add_windows(&list(json!([
            { "id": "a", "state": "loaded", "max_context_length": 32768, "loaded_context_length": 4096 },
            { "id": "b", "state": "not-loaded", "max_context_length": 32768 },
        ])));
        let found = models.into_models(None);
        let windows: Vec<_> = found.iter().map(|model| model.listed().served_context).collect();
        assert_eq!(windows, [Some(4096), None]);
    }
}
