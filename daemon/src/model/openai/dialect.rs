//! The servers that speak the API of OpenAI, how they are told apart, and the one table of their differences.
//!
//! **Source**: `tools/server/README.md` and `server-schema.cpp` of llama.cpp of mid-2026; `protocol.py` of vLLM 0.33 and of
//! SGLang 0.5; the documentation of LM Studio 0.4; the API reference of OpenAI.

use serde_json::Value;

use crate::model::chat::{OptionType as Kind, SamplingNames};
use crate::model::error::ServerAdvice;

/// A kind of server with the API of OpenAI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    LlamaServer,
    Vllm,
    Sglang,
    LmStudio,
    /// A server of which nothing more is known.
    Plain,
}

/// The ways in which a kind of server differs.
pub(super) struct DialectRules {
    /// The name for people.
    title: &'static str,
    pub(super) advice: ServerAdvice,
    pub(super) sampling: SamplingNames,
    pub(super) thinking: ThinkingSwitch,
    pub(super) counting: CountingPath,
    /// Set if `/props` describes the model.
    pub(super) has_props: bool,
    /// The path of a list with the windows of the models, if `/v1/models` has none.
    pub(super) windows: Option<&'static str>,
    /// The path of the version.
    pub(super) version: Option<&'static str>,
    /// Set if a request can name the time for which the model stays loaded, as `ttl`.
    pub(super) takes_ttl: bool,
    /// Set if a model is loaded by the first request to it, and unloaded later.
    pub(super) loads_on_demand: bool,
}

/// The way in which a request says whether the model thinks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ThinkingSwitch {
    /// By a variable of the chat template, and levels as `reasoning_effort`.
    Template,
    /// By `reasoning_effort` alone.
    Effort,
}

/// The way in which the server counts a prompt.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CountingPath {
    /// Renders the prompt, and divides any text into tokens.
    Rendered,
    /// Counts a conversation. A gateway in front of the server may hide that.
    Conversation,
    None,
}

const LLAMA_SERVER: DialectRules = DialectRules {
    title: "llama-server",
    advice: ServerAdvice {
        kind: "a llama-server",
        start: "llama-server -m MODEL.gguf",
        get_small_model: "llama-server -hf ggml-org/Qwen3-0.6B-GGUF",
        get_image_reader: "llama-server -hf ggml-org/Qwen3-VL-4B-Instruct-GGUF",
        ..PLAIN.advice
    },
    sampling: SamplingNames {
        options: &[
            ("temperature", Kind::Number),
            ("dynatemp_range", Kind::Number),
            ("dynatemp_exponent", Kind::Number),
            ("top_k", Kind::Integer),
            ("top_p", Kind::Number),
            ("min_p", Kind::Number),
            ("top_n_sigma", Kind::Number),
            ("typical_p", Kind::Number),
            ("xtc_probability", Kind::Number),
            ("xtc_threshold", Kind::Number),
            ("repeat_last_n", Kind::Integer),
            ("repeat_penalty", Kind::Number),
            ("presence_penalty", Kind::Number),
            ("frequency_penalty", Kind::Number),
            ("dry_multiplier", Kind::Number),
            ("dry_base", Kind::Number),
            ("dry_allowed_length", Kind::Integer),
            ("dry_penalty_last_n", Kind::Integer),
            ("dry_sequence_breakers", Kind::Texts),
            ("mirostat", Kind::Integer),
            ("mirostat_tau", Kind::Number),
            ("mirostat_eta", Kind::Number),
            ("samplers", Kind::Texts),
            ("min_keep", Kind::Integer),
            ("seed", Kind::Integer),
            ("ignore_eos", Kind::Switch),
            ("stop", Kind::Texts),
        ],
        length: PLAIN.sampling.length,
        load: &["n_ctx", "num_ctx", "n_gpu_layers"],
    },
    thinking: ThinkingSwitch::Template,
    counting: CountingPath::Rendered,
    has_props: true,
    ..PLAIN
};

const VLLM: DialectRules = DialectRules {
    title: "vLLM",
    advice: ServerAdvice {
        kind: "a vLLM server",
        start: "vllm serve MODEL",
        get_small_model: "vllm serve Qwen/Qwen3-0.6B",
        get_image_reader: "vllm serve Qwen/Qwen3-VL-4B-Instruct",
        ..PLAIN.advice
    },
    sampling: SamplingNames {
        options: &[
            ("temperature", Kind::Number),
            ("top_p", Kind::Number),
            ("top_k", Kind::Integer),
            ("min_p", Kind::Number),
            ("presence_penalty", Kind::Number),
            ("frequency_penalty", Kind::Number),
            ("repetition_penalty", Kind::Number),
            ("length_penalty", Kind::Number),
            ("min_tokens", Kind::Integer),
            ("seed", Kind::Integer),
            ("ignore_eos", Kind::Switch),
            ("skip_special_tokens", Kind::Switch),
            ("include_stop_str_in_output", Kind::Switch),
            ("stop", Kind::Texts),
        ],
        length: PLAIN.sampling.length,
        load: &["num_ctx", "max_model_len"],
    },
    thinking: ThinkingSwitch::Template,
    counting: CountingPath::Conversation,
    version: Some("/version"),
    ..PLAIN
};

const SGLANG: DialectRules = DialectRules {
    title: "SGLang",
    advice: ServerAdvice {
        kind: "an SGLang server",
        start: "python -m sglang.launch_server --model-path MODEL",
        get_small_model: "python -m sglang.launch_server --model-path Qwen/Qwen3-0.6B",
        get_image_reader: "python -m sglang.launch_server --model-path Qwen/Qwen3-VL-4B-Instruct",
        ..PLAIN.advice
    },
    sampling: SamplingNames {
        options: &[
            ("temperature", Kind::Number),
            ("top_p", Kind::Number),
            ("top_k", Kind::Integer),
            ("min_p", Kind::Number),
            ("presence_penalty", Kind::Number),
            ("frequency_penalty", Kind::Number),
            ("repetition_penalty", Kind::Number),
            ("min_tokens", Kind::Integer),
            ("seed", Kind::Integer),
            ("ignore_eos", Kind::Switch),
            ("skip_special_tokens", Kind::Switch),
            ("stop", Kind::Texts),
        ],
        length: PLAIN.sampling.length,
        load: &["num_ctx", "context_length"],
    },
    thinking: ThinkingSwitch::Template,
    ..PLAIN
};

const LM_STUDIO: DialectRules = DialectRules {
    title: "LM Studio",
    advice: ServerAdvice {
        kind: "an LM Studio server",
        start: "lms server start",
        get_small_model: "lms get qwen/qwen3-0.6b",
        get_image_reader: "lms get qwen/qwen3-vl-4b",
        ..PLAIN.advice
    },
    sampling: SamplingNames {
        options: &[
            ("temperature", Kind::Number),
            ("top_p", Kind::Number),
            ("top_k", Kind::Integer),
            ("presence_penalty", Kind::Number),
            ("frequency_penalty", Kind::Number),
            ("repeat_penalty", Kind::Number),
            ("seed", Kind::Integer),
            ("stop", Kind::Texts),
        ],
        length: PLAIN.sampling.length,
        load: &["num_ctx", "context_length"],
    },
    thinking: ThinkingSwitch::Effort,
    windows: Some("/api/v0/models"),
    takes_ttl: true,
    loads_on_demand: true,
    ..PLAIN
};

/// The rules of a server of which nothing more is known, and of the others where they do not differ.
const PLAIN: DialectRules = DialectRules {
    title: "another server with the API of OpenAI",
    advice: ServerAdvice {
        kind: "a server with the API of OpenAI",
        start: "ollmctl config show",
        state: "ollmctl servers test",
        get_model: "",
        get_small_model: "ollmctl models list",
        get_image_reader: "ollmctl models list",
        address: "servers.NAME.url in the file of `ollmctl config path`",
    },
    sampling: SamplingNames {
        options: &[
            ("temperature", Kind::Number),
            ("top_p", Kind::Number),
            ("presence_penalty", Kind::Number),
            ("frequency_penalty", Kind::Number),
            ("seed", Kind::Integer),
            ("stop", Kind::Texts),
        ],
        // The options for the longest answer.
        length: &["max_tokens", "max_completion_tokens", "n_predict", "num_predict"],
        load: &[],
    },
    thinking: ThinkingSwitch::Effort,
    counting: CountingPath::None,
    has_props: false,
    windows: None,
    version: None,
    takes_ttl: false,
    loads_on_demand: false,
};

impl Dialect {
    pub(super) const fn rules(self) -> &'static DialectRules {
        static ALL: [DialectRules; 5] = [LLAMA_SERVER, VLLM, SGLANG, LM_STUDIO, PLAIN];
        match self {
            Self::LlamaServer => &ALL[0],
            Self::Vllm => &ALL[1],
            Self::Sglang => &ALL[2],
            Self::LmStudio => &ALL[3],
            Self::Plain => &ALL[4],
        }
    }

    /// Returns the name of the server for people.
    pub(in crate::model) const fn title(self) -> &'static str {
        self.rules().title
    }

    /// Returns the kind of the server that sent a list of models; `None` for other JSON.
    pub(in crate::model) fn of_models(models: &Value) -> Option<Self> {
        let all = models.get("data")?.as_array()?;
        let owner = all.first().and_then(|model| model["owned_by"].as_str()).unwrap_or_default();
        Some(match owner {
            "llamacpp" => Self::LlamaServer,
            "vllm" => Self::Vllm,
            "sglang" => Self::Sglang,
            "organization_owner" => Self::LmStudio,
            _ => Self::Plain,
        })
    }
}
