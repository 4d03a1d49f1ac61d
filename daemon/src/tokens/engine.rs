//! The programs that tokenize prompts, and which of them a model server may use for a model.
//!
//! A vocabulary alone does not decide how a text becomes tokens: the same file has other counts in another engine.
//! Must not know vocabularies or how they are applied.
//!
//! **Source**: `NewLlamaServer` in `llm/server.go` and `OllamaEngineRequired` in `fs/ggml/ggml.go` of each Ollama
//! release.

use serde::{Deserialize, Serialize};

/// A program that tokenizes prompts. Its serialized form is part of `vocab/models.json`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Engine {
    /// The llama.cpp of 2026, which Ollama runs for all GGUF models from 0.30 on.
    #[default]
    LlamaCpp,
    /// The llama.cpp inside of Ollama up to 0.24, where fewer texts are special tokens and fewer rules have a name.
    OldLlamaCpp,
    /// The engine in Go of Ollama up to 0.24, for the architectures that require it, and for others if the server was
    /// started with `OLLAMA_NEW_ENGINE`.
    OllamaGo,
    /// The library `tokenizers` of Hugging Face, which vLLM and SGLang use. Its vocabularies come from a `tokenizer.json`.
    HuggingFace,
}

/// A release number: major, minor, patch.
pub(crate) type Release = (u32, u32, u32);

/// The first Ollama release that runs every model with llama.cpp's own server.
const FIRST_WITH_LLAMA_SERVER: Release = (0, 30, 0);

/// The last Ollama release with engines of its own, which an older build without a release number is taken for.
const LAST_WITH_OWN_ENGINES: Release = (0, 24, 0);

/// The first Ollama release that reads `OLLAMA_NEW_ENGINE`.
const FIRST_WITH_SWITCH: Release = (0, 5, 12);

/// The architectures that Ollama ran with its engine in Go, and the first release that did.
#[rustfmt::skip]
const GO_ARCHITECTURES: &[(&str, Release)] = &[
    ("gemma3", (0, 6, 0)), ("mistral3", (0, 6, 5)), ("llama4", (0, 6, 7)), ("mllama", (0, 7, 0)),
    ("qwen25vl", (0, 7, 0)), ("gemma3n", (0, 9, 3)), ("gptoss", (0, 11, 0)), ("gpt-oss", (0, 11, 5)),
    ("qwen3", (0, 12, 0)), ("qwen3moe", (0, 12, 2)), ("qwen3vl", (0, 12, 7)), ("qwen3vlmoe", (0, 12, 7)),
    ("deepseekocr", (0, 13, 0)), ("deepseek2", (0, 13, 0)), ("olmo3", (0, 13, 4)), ("glm4moelite", (0, 14, 3)),
    ("lfm2", (0, 14, 3)), ("qwen3next", (0, 15, 5)), ("glmocr", (0, 15, 5)), ("nemotron_h", (0, 17, 1)),
    ("nemotron_h_moe", (0, 17, 1)), ("qwen35", (0, 17, 1)), ("qwen35moe", (0, 17, 1)), ("lfm2moe", (0, 17, 1)),
    ("gemma4", (0, 20, 0)), ("laguna", (0, 22, 0)), ("nemotron_h_omni", (0, 22, 0)),
];

/// The architectures whose text is split by several expressions in the engine in Go.
const STEPWISE: [&str; 2] = ["deepseek2", "deepseekocr"];
/// The first Ollama release that applies several expressions correctly; earlier ones repeat parts of the text.
const FIRST_WITH_STEPS: Release = (0, 22, 0);

impl Engine {
    /// Every engine that uses the vocabularies of GGUF files, the most common first.
    pub(crate) const ALL: [Self; 3] = [Self::LlamaCpp, Self::OldLlamaCpp, Self::OllamaGo];

    /// Returns the engines that an Ollama release may use for a model, the one without `OLLAMA_NEW_ENGINE` first; none if
    /// its rules are not known here. No call of the server returns the variable. A build without a release number is a
    /// new one, unless `is_old`.
    ///
    /// `has_projector`: images are encoded by a file of their own, which the engine in Go does not support.
    pub(crate) fn of_ollama(
        release: Option<Release>,
        is_old: bool,
        architecture: &str,
        has_projector: bool,
    ) -> Vec<Self> {
        let release = release.or_else(|| is_old.then_some(LAST_WITH_OWN_ENGINES));
        let Some(release) = release.filter(|release| *release < FIRST_WITH_LLAMA_SERVER) else {
            return vec![Self::LlamaCpp];
        };
        let runs_in_go =
            |(name, since): &(&str, Release)| *name == architecture && release >= *since;
        if has_projector || release < FIRST_WITH_SWITCH {
            return vec![Self::OldLlamaCpp];
        }
        if !GO_ARCHITECTURES.iter().any(runs_in_go) {
            return vec![Self::OldLlamaCpp, Self::OllamaGo];
        }
        let is_known = release >= FIRST_WITH_STEPS || !STEPWISE.contains(&architecture);
        is_known.then_some(Self::OllamaGo).into_iter().collect()
    }

    /// Returns the engines that use the same vocabularies.
    pub(crate) const fn of_same_vocabularies(self) -> &'static [Self] {
        match self {
            Self::HuggingFace => &[Self::HuggingFace],
            Self::LlamaCpp | Self::OldLlamaCpp | Self::OllamaGo => &Self::ALL,
        }
    }

    /// Returns the mark of the engine in the identity of a tokenizer.
    pub(super) const fn mark(self) -> &'static str {
        match self {
            Self::LlamaCpp => "",
            Self::OldLlamaCpp => "o",
            Self::OllamaGo => "g",
            Self::HuggingFace => "h",
        }
    }

    /// Returns whether a prompt that begins with a text of BOS loses it before the engine adds the token, so that it has
    /// one BOS and not two.
    ///
    /// **Source**: `completionPrompt` in `llm/llama_server.go` of Ollama 0.30 to 0.33: the text `<bos>`, and that with which
    /// the renderer of the model begins, if the file of the model asks for BOS. No renderer begins with `<s>`, and
    /// `<|begin_of_text|>` is left out because the templates of Llama 3 write it without a renderer. Earlier releases
    /// remove none.
    pub(super) fn removes_bos(self, prompt: &str) -> bool {
        const REMOVED: [&str; 5] =
            ["<bos>", "<｜begin▁of▁sentence｜>", "<BOS_TOKEN>", "<|startoftext|>", "〈|EOS|〉"];
        self == Self::LlamaCpp && REMOVED.iter().any(|bos| prompt.starts_with(bos))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_depend_on_release_architecture_and_projector() {
        let check = |release, architecture, has_projector, expect: &[Engine]| {
            let engines = Engine::of_ollama(release, false, architecture, has_projector);
            assert_eq!(engines, expect, "{release:?} {architecture} {has_projector}");
        };
        check(Some((0, 24, 0)), "qwen3", false, &[Engine::OllamaGo]);
        check(Some((0, 24, 0)), "qwen2", false, &[Engine::OldLlamaCpp, Engine::OllamaGo]);
        check(Some((0, 24, 0)), "gemma3", true, &[Engine::OldLlamaCpp]);
        check(Some((0, 11, 11)), "qwen3", false, &[Engine::OldLlamaCpp, Engine::OllamaGo]);
        check(Some((0, 5, 11)), "llama", false, &[Engine::OldLlamaCpp]);
        check(Some((0, 30, 0)), "qwen3", false, &[Engine::LlamaCpp]);
        check(Some((0, 22, 1)), "deepseek2", false, &[Engine::OllamaGo]);
        check(Some((0, 21, 2)), "deepseek2", false, &[]);
        check(None, "gemma3", false, &[Engine::LlamaCpp]);
        let old = |release| Engine::of_ollama(release, true, "gemma3", false);
        assert_eq!(old(None), [Engine::OllamaGo]);
        assert_eq!(old(Some((0, 30, 0))), [Engine::LlamaCpp], "a release number decides");
    }
}
