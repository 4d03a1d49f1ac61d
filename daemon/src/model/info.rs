//! What a server says of its models. Values only.

use std::fmt;

/// Bytes of a number in the memory of a conversation: engines keep it in half precision unless told otherwise.
const KV_NUMBER_BYTES: u64 = 2;

/// A model in the list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListedModel {
    /// Its name with its tag.
    pub model: String,
    /// Names its contents: the same digest is the same model, template and vocabulary.
    pub digest: String,
    /// Its size on disk.
    pub size_bytes: u64,
    /// When it was last changed, as the server writes it.
    pub modified_at: Option<String>,
    /// The architecture's family.
    pub family: Option<String>,
    /// The number of its parameters, as the server writes it.
    pub parameter_size: Option<String>,
    /// How its weights are packed.
    pub quantization: Option<String>,
    /// The longest window it was trained for; newer servers only.
    pub trained: Option<u32>,
    /// What it can do; newer servers only.
    pub capabilities: Vec<String>,
    /// The machine that really answers, for models that are elsewhere.
    pub remote_host: Option<String>,
}

/// Everything that matters of one model.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ModelInfo {
    /// Its name as it was asked for.
    pub model: String,
    /// Names its contents; absent where the server's list does not have the name.
    pub digest: Option<String>,
    /// The architecture's name, which is the prefix of its numbers.
    pub architecture: Option<String>,
    /// The architecture's family.
    pub family: Option<String>,
    /// The number of its parameters, as the server writes it.
    pub parameter_size: Option<String>,
    /// The number of its parameters.
    pub parameter_count: Option<u64>,
    /// How its weights are packed.
    pub quantization: Option<String>,
    /// The longest window it was trained for.
    pub trained: Option<u32>,
    /// What it can do; empty where the server does not say.
    pub capabilities: Vec<String>,
    /// How its messages become a prompt.
    pub template: Option<String>,
    /// The renderer that is used in the place of the template.
    pub renderer: Option<String>,
    /// The system message that the server puts before conversations that have none.
    pub system: Option<String>,
    /// Messages that the server puts before every conversation.
    pub messages: Vec<HiddenMessage>,
    /// What its memory of a conversation costs, where the server says enough.
    pub geometry: Option<KvGeometry>,
    /// The file of its weights, as the server names it; that may lie on another machine.
    pub weights: Option<String>,
    /// The machine that really answers, for models that are elsewhere.
    pub remote_host: Option<String>,
}

impl ModelInfo {
    /// Whether the model can do something; `None` where the server does not say what it can.
    pub(crate) fn can(&self, capability: &str) -> Option<bool> {
        (!self.capabilities.is_empty())
            .then(|| self.capabilities.iter().any(|known| known == capability))
    }
}

/// A message that belongs to the model itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HiddenMessage {
    /// Who speaks.
    pub role: String,
    /// The text.
    pub content: String,
}

/// A model in the server's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RunningModel {
    /// Its name with its tag.
    pub model: String,
    /// Names its contents.
    pub digest: String,
    /// Memory that it takes, its window included.
    pub size_bytes: u64,
    /// Of that, memory of the graphics processor.
    pub size_vram_bytes: u64,
    /// The window that it was loaded with; newer servers only.
    pub effective: Option<u32>,
    /// When it leaves memory unless it is used, as the server writes it.
    pub expires_at: Option<String>,
}

/// The shape of a model's memory of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KvGeometry {
    /// Heads that keep keys and values, over all layers.
    pub kv_heads: u64,
    /// Numbers of one key.
    pub key_length: u64,
    /// Numbers of one value.
    pub value_length: u64,
}

impl KvGeometry {
    /// Bytes that each token of the window takes, in half precision.
    ///
    /// An upper bound: layers with a sliding window or without attention take less.
    pub(crate) const fn bytes_per_token(&self) -> u64 {
        self.kv_heads
            .saturating_mul(self.key_length.saturating_add(self.value_length))
            .saturating_mul(KV_NUMBER_BYTES)
    }
}

/// A version as the server tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    text: String,
    numbers: Option<(u32, u32, u32)>,
}

/// The engine behind the API, which decides what counts mean and what overflow does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Era {
    /// Up to 0.3: a C++ server counts what it did not have cached.
    LlamaCpp,
    /// 0.4 to 0.24: runners in Go count the whole prompt.
    GoRunner,
    /// From 0.30: llama-server counts the whole prompt.
    LlamaServer,
}

/// What a version can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Features {
    /// `prompt_eval_count` is the whole prompt.
    pub counts_whole_prompt: bool,
    /// `truncate: false` is understood.
    pub truncate: bool,
    /// `think` is understood.
    pub think: bool,
    /// Capabilities of models are told.
    pub capabilities: bool,
    /// The running models tell their window.
    pub running_window: bool,
    /// The prompt can be rendered without being answered.
    pub render: bool,
}

impl Version {
    /// Reads a version; anything is one.
    pub(crate) fn parse(text: &str) -> Self {
        let text = text.trim();
        let core = text.trim_start_matches('v').split(['-', '+']).next().unwrap_or_default();
        let mut parts = core.split('.').map(str::parse::<u32>);
        let numbers = match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some(Ok(major)), Some(Ok(minor)), Some(Ok(patch)), None) => {
                Some((major, minor, patch))
            }
            (Some(Ok(major)), Some(Ok(minor)), None, None) => Some((major, minor, 0)),
            _ => None,
        };
        Self { text: text.to_owned(), numbers: numbers.filter(|numbers| *numbers != (0, 0, 0)) }
    }

    /// Whether it is this version or a later one.
    fn has(&self, since: (u32, u32, u32)) -> bool {
        self.numbers.is_none_or(|numbers| numbers >= since)
    }

    /// The engine behind it.
    pub(crate) fn era(&self) -> Era {
        if self.has((0, 30, 0)) {
            Era::LlamaServer
        } else if self.has((0, 4, 0)) {
            Era::GoRunner
        } else {
            Era::LlamaCpp
        }
    }

    /// What it can do.
    pub(crate) fn features(&self) -> Features {
        Features {
            // 0.30.0 alone went back to counting what was not cached.
            counts_whole_prompt: self.era() != Era::LlamaCpp && self.numbers != Some((0, 30, 0)),
            truncate: self.has((0, 12, 6)),
            think: self.has((0, 9, 0)),
            capabilities: self.has((0, 6, 4)),
            running_window: self.has((0, 10, 0)),
            render: self.has((0, 11, 5)),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

/// The name that a server knows a model by: with a tag, and without the parts that are understood.
///
/// **Source**: `model.ParseName` of Ollama 0.33: host `registry.ollama.ai`, namespace `library`, tag `latest`.
pub(crate) fn canonical(model: &str) -> String {
    let model = model.strip_prefix("registry.ollama.ai/").unwrap_or(model);
    let model = model.strip_prefix("library/").unwrap_or(model);
    let last = model.rsplit('/').next().unwrap_or(model);
    if last.contains(':') { model.to_owned() } else { format!("{model}:latest") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capability_is_known_only_where_the_server_lists_them() {
        let mut info = ModelInfo::default();
        assert_eq!(info.can("tools"), None);
        info.capabilities = vec!["completion".to_owned(), "tools".to_owned()];
        assert_eq!(info.can("tools"), Some(true));
        assert_eq!(info.can("thinking"), Some(false));
    }

    #[test]
    fn eras_follow_the_numbers_and_the_unknown_is_new() {
        let check = |text: &str, era| assert_eq!(Version::parse(text).era(), era, "{text}");
        check("0.1.35", Era::LlamaCpp);
        check("0.3.14", Era::LlamaCpp);
        check("0.4.0-rc3", Era::GoRunner);
        check("v0.24.1", Era::GoRunner);
        check("0.30.0", Era::LlamaServer);
        check("0.33.0-rc2", Era::LlamaServer);
        check("1.0", Era::LlamaServer);
        check("0.0.0", Era::LlamaServer);
        check("dev", Era::LlamaServer);
        check("", Era::LlamaServer);
        check("0.3.1.4", Era::LlamaServer);
    }

    #[test]
    fn features_begin_with_the_release_that_brought_them() {
        let features = |text| Version::parse(text).features();
        assert!(!features("0.3.14").counts_whole_prompt);
        assert!(features("0.4.0").counts_whole_prompt);
        assert!(!features("0.30.0").counts_whole_prompt);
        assert!(features("0.30.1").counts_whole_prompt);
        assert!(!features("0.12.5").truncate && features("0.12.6").truncate);
        assert!(!features("0.8.0").think && features("0.9.0").think);
        assert!(!features("0.6.3").capabilities && features("0.6.4").capabilities);
        assert!(!features("0.9.6").running_window && features("0.10.0").running_window);
        assert!(!features("0.11.4").render && features("0.11.5").render);
        let new = features("nightly");
        assert!(new.counts_whole_prompt && new.truncate && new.render);
    }

    #[test]
    fn memory_follows_from_the_geometry() {
        // Llama 3 8B: 32 layers with 8 heads of 128 numbers each are 128 KiB a token.
        let llama = KvGeometry { kv_heads: 32 * 8, key_length: 128, value_length: 128 };
        assert_eq!(llama.bytes_per_token(), 131_072);
        assert_eq!(llama.bytes_per_token() * 8192, 1 << 30);
        let endless = KvGeometry { kv_heads: u64::MAX, key_length: 1, value_length: 1 };
        assert_eq!(endless.bytes_per_token(), u64::MAX);
    }

    #[test]
    fn names_mean_the_same_model() {
        let check = |name: &str, expect: &str| assert_eq!(canonical(name), expect);
        check("qwen3", "qwen3:latest");
        check("qwen3:8b", "qwen3:8b");
        check("registry.ollama.ai/library/qwen3", "qwen3:latest");
        check("hf.co/someone/model:Q4_K_M", "hf.co/someone/model:Q4_K_M");
        check("host:5000/someone/model", "host:5000/someone/model:latest");
    }
}
