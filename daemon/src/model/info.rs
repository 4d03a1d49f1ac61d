//! The description of a model, and the version of a model server.
//!
//! Must not know the server's JSON.

use std::fmt;
use std::path::PathBuf;

/// Bytes of a number in the key-value cache: engines store it in half precision by default.
const KV_NUMBER_BYTES: u64 = 2;

/// The description of one model.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ModelInfo {
    /// The requested name.
    pub model: String,
    /// The hash of the model's contents; `None` if the server does not list the model.
    pub digest: Option<String>,
    pub architecture: Option<String>,
    /// The family of the architecture.
    pub family: Option<String>,
    /// The number of parameters, in the server's format.
    pub parameter_size: Option<String>,
    pub parameter_count: Option<u64>,
    pub quantization: Option<String>,
    /// The longest window that the model was trained for.
    pub trained_context: Option<u32>,
    /// The window that the Modelfile sets.
    pub modelfile_context: Option<u32>,
    /// Empty if the server does not report capabilities.
    pub capabilities: Vec<String>,
    /// The chat template.
    pub template: Option<String>,
    /// The system message for conversations that have none.
    pub system: Option<String>,
    /// The number of messages that the server inserts before every conversation.
    pub n_hidden_messages: u64,
    /// The shape of the key-value cache, if the server reports enough of it.
    pub geometry: Option<KvGeometry>,
    /// The path of the model file on the server's machine.
    pub model_path: Option<String>,
    /// The machine that runs a remote model.
    pub remote_host: Option<String>,
    /// Whether images are encoded by a file of their own.
    pub has_projector: bool,
    /// The window of every request, if the server alone decides about it.
    pub served_context: Option<u32>,
    /// Set if the configuration says that, and not the server.
    pub is_window_configured: bool,
    /// Set if the server alone decides about the window, so that the daemon must know it.
    pub needs_served_context: bool,
    /// Set if the server says the window once it has loaded the model.
    pub is_window_known_later: bool,
    /// The longest answer in tokens, if the configuration limits it.
    pub max_output: Option<u32>,
    /// The number of requests that are answered at the same time.
    pub slots: Option<u32>,
    /// The source of counts before the server reports any.
    pub counting: CountingSource,
    /// The path, the length and the time of change of the configured vocabulary.
    pub tokenizer_stamp: Option<String>,
    /// The version of the server that described the model.
    pub server_version: Option<Version>,
    /// Set if the server lists models, and none with capabilities, which Ollama lists since 0.30. A build from source, which
    /// has no release number, is older then.
    pub lists_no_capabilities: bool,
}

impl ModelInfo {
    /// Returns whether the model has a capability, or `None` if the server does not report capabilities.
    pub(crate) fn can(&self, capability: &str) -> Option<bool> {
        (!self.capabilities.is_empty())
            .then(|| self.capabilities.iter().any(|known| known == capability))
    }

    /// Adds what the configuration says. A window that the server names itself stays if it is smaller. Where requests name
    /// the window, the configured one is that of sessions that name none, as if the Modelfile set it.
    pub(super) fn configure(&mut self, window: Option<u32>, max_output: Option<u32>) {
        self.max_output = max_output;
        if !self.needs_served_context {
            self.modelfile_context = window.or(self.modelfile_context);
        } else if let Some(window) = window
            && self.served_context.is_none_or(|served| window < served)
        {
            self.served_context = Some(window);
            self.is_window_configured = true;
        }
    }
}

/// The source of the counts of a model before its server reports any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum CountingSource {
    /// The blob of the weights if it is on this machine, else the server's description of the vocabulary
    /// ([`super::backend::Backend::vocabulary`]), with the rules of Ollama's engines.
    #[default]
    Ollama,
    /// The file of the weights on this machine, with the rules of llama.cpp.
    Weights(PathBuf),
    /// A file that the configuration names: a GGUF file, or a `tokenizer.json` of Hugging Face.
    Configured(PathBuf),
    /// The server itself, by [`super::backend::Backend::count`].
    Server,
    /// Nothing: the counts of answers calibrate estimates.
    Answers,
}

/// The shape of a model's key-value cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KvGeometry {
    /// The number of key-value heads in all layers.
    pub kv_heads: u64,
    /// The number of numbers in a key.
    pub key_length: u64,
    /// The number of numbers in a value.
    pub value_length: u64,
}

impl KvGeometry {
    /// Returns the memory of one token of the window, in bytes.
    ///
    /// This is an upper bound: layers with a sliding window or without attention use less.
    pub(crate) const fn bytes_per_token(&self) -> u64 {
        self.kv_heads
            .saturating_mul(self.key_length.saturating_add(self.value_length))
            .saturating_mul(KV_NUMBER_BYTES)
    }
}

/// A version of Ollama.
///
/// A version without a release number, such as the `0.0.0` of a build from source, counts as the newest: all old
/// releases had numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    text: String,
    numbers: Option<(u32, u32, u32)>,
}

impl Version {
    /// Reads a version; any text is valid.
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

    /// Returns whether `prompt_eval_count` is the whole prompt, and not only its uncached tokens.
    ///
    /// **Source**: uncached tokens up to 0.3 (a C++ server) and in 0.30.0 alone; the whole prompt from 0.4 (Go
    /// runners) and from 0.30.1 (llama-server) on.
    pub(crate) fn counts_whole_prompt(&self) -> bool {
        self.is_at_least((0, 4, 0)) && self.numbers != Some((0, 30, 0))
    }

    /// Returns whether the server can render a prompt without answering it, which it can since 0.11.5.
    pub(crate) fn can_render(&self) -> bool {
        self.is_at_least((0, 11, 5))
    }

    /// Returns the release number, or `None` for a version without one.
    pub(crate) const fn release(&self) -> Option<(u32, u32, u32)> {
        self.numbers
    }

    fn is_at_least(&self, since: (u32, u32, u32)) -> bool {
        self.numbers.is_none_or(|numbers| numbers >= since)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

/// Returns the full name of a model, with a tag and without the default host and namespace.
///
/// **Source**: `model.ParseName` of Ollama 0.33: host `registry.ollama.ai`, namespace `library`, tag `latest`.
pub(crate) fn canonical_name(model: &str) -> String {
    let model = model.strip_prefix("registry.ollama.ai/").unwrap_or(model);
    let model = model.strip_prefix("library/").unwrap_or(model);
    let last = model.rsplit('/').next().unwrap_or(model);
    if last.contains(':') { model.to_owned() } else { format!("{model}:latest") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capability_is_unknown_if_the_server_reports_none() {
        let mut info = ModelInfo::default();
        assert_eq!(info.can("tools"), None);
        info.capabilities = vec!["completion".to_owned(), "tools".to_owned()];
        assert_eq!(info.can("tools"), Some(true));
        assert_eq!(info.can("thinking"), Some(false));
    }

    #[test]
    fn configured_window_is_that_of_the_server_only_where_the_server_decides() {
        let check = |info: ModelInfo, expect: (Option<u32>, Option<u32>)| {
            let mut info = info;
            info.configure(Some(4096), None);
            assert_eq!((info.served_context, info.modelfile_context), expect);
        };
        let ollama = ModelInfo { modelfile_context: Some(2048), ..ModelInfo::default() };
        check(ollama, (None, Some(4096)));
        let served = |served| ModelInfo {
            served_context: served,
            needs_served_context: true,
            ..ModelInfo::default()
        };
        check(served(None), (Some(4096), None));
        check(served(Some(8192)), (Some(4096), None));
        check(served(Some(2048)), (Some(2048), None));
    }

    #[test]
    fn version_without_release_number_counts_as_the_newest() {
        let check = |text: &str, counts_whole_prompt, can_render| {
            let version = Version::parse(text);
            let found = (version.counts_whole_prompt(), version.can_render());
            assert_eq!(found, (counts_whole_prompt, can_render), "{text}");
        };
        check("0.1.35", false, false);
        check("0.3.14", false, false);
        check("0.4.0-rc3", true, false);
        check("0.11.4", true, false);
        check("0.11.5", true, true);
        check("v0.24.1", true, true);
        check("0.30.0", false, true);
        check("0.30.1", true, true);
        check("0.33.0-rc2", true, true);
        check("1.0", true, true);
        for text in ["0.0.0", "dev", "nightly", "", "0.3.1.4"] {
            check(text, true, true);
        }
    }

    #[test]
    fn memory_per_token_follows_from_the_geometry() {
        // Llama 3 8B: 32 layers with 8 heads of 128 numbers each are 128 KiB a token.
        let llama = KvGeometry { kv_heads: 32 * 8, key_length: 128, value_length: 128 };
        assert_eq!(llama.bytes_per_token(), 131_072);
        assert_eq!(llama.bytes_per_token() * 8192, 1 << 30);
        let huge = KvGeometry { kv_heads: u64::MAX, key_length: 1, value_length: 1 };
        assert_eq!(huge.bytes_per_token(), u64::MAX);
    }

    #[test]
    fn canonical_name_has_a_tag_and_no_default_parts() {
        let check = |name: &str, expect: &str| assert_eq!(canonical_name(name), expect);
        check("qwen3", "qwen3:latest");
        check("qwen3:8b", "qwen3:8b");
        check("registry.ollama.ai/library/qwen3", "qwen3:latest");
        check("hf.co/someone/model:Q4_K_M", "hf.co/someone/model:Q4_K_M");
        check("host:5000/someone/model", "host:5000/someone/model:latest");
    }
}
