//! The pre-tokenizers by name: how the text of a byte-level vocabulary is split into words before its merges.
//!
//! Must not know vocabularies or merges.
//!
//! **Invariant**: a name that is not in the table has no rule; nothing is guessed.
//!
//! **Source**: `llama_vocab::impl::load` in llama.cpp's `llama-vocab.cpp`, where many names share one rule.

mod class;
mod rule;
#[cfg(test)]
mod tests;

use self::class::{CharTables, LETTER, MARK};
use self::rule::{CasedRule, Cl100kRule, SplitRule, SplitStep};
use super::engine::Engine;

/// The settings that the name of a pre-tokenizer (`tokenizer.ggml.pre`) selects.
#[derive(Clone, Copy, Debug)]
pub(super) struct PreTokenizer {
    pub(super) rule: SplitRule,
    /// Whether a word that is a token becomes this token regardless of the merges.
    pub(super) ignores_merges: bool,
    /// Whether a prompt begins with the BOS token unless the model says otherwise.
    pub(super) adds_bos: bool,
    /// Whether the model has a BOS token.
    pub(super) has_bos: bool,
    /// Set if the characters of a text are composed (NFC) before it is split.
    pub(super) composes: bool,
}

impl PreTokenizer {
    /// Returns the pre-tokenizer with a name, or `None` for an unknown name.
    ///
    /// A vocabulary that names none gets the default, as in the engine.
    pub(super) fn by_name(name: &str) -> Option<Self> {
        let pre = match name {
            "" | "default" => DEFAULT,
            "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral"
            | "midm-2.0" | "lfm2" | "jina-v5-nano" => LLAMA3.ignoring_merges().adding_bos(),
            "dbrx" | "smaug-bpe" => LLAMA3,
            "chatglm-bpe" => LLAMA3.without_bos(),
            "glm4" | "glm5" => LLAMA3.ignoring_merges().without_bos(),
            "gpt-2" | "phi-2" | "jina-es" | "jina-de" | "gigachat" | "jina-v2-es"
            | "jina-v2-de" | "a.x-4.0" | "mellum" | "modern-bert" | "jina-v1-en"
            | "jina-v2-code" | "roberta-bpe" | "exaone4" | "mpt" | "olmo" | "jais" | "trillion"
            | "granite-docling" => GPT2,
            "starcoder" | "refact" | "command-r" | "smollm" | "codeshell" | "exaone"
            | "minerva-7b" | "mellum2" => STARCODER,
            "qwen2" | "deepseek-r1-qwen" | "kormo" | "f2llmv2" | "megrez" | "stablelm2"
            | "hunyuan" | "solar-open" | "grok-2" => QWEN2,
            "qwen35" => QWEN35,
            "laguna" => LAGUNA,
            "falcon" => FALCON,
            "gpt-4o" | "llama4" | "kanana2" | "talkie" | "minimax-m2" => GPT4O,
            "tekken" => TEKKEN.ignoring_merges().adding_bos(),
            "deepseek-llm" => DEEPSEEK_LLM,
            "deepseek-coder" => DEEPSEEK_CODER,
            "deepseek-v3" | "hunyuan-dense" | "joyai-llm" | "hy_v4" => DEEPSEEK3,
            _ => return None,
        };
        Some(pre)
    }

    /// Returns the pre-tokenizer with a name in an engine that runs llama.cpp; `None` for an unknown name.
    pub(super) fn in_llama_cpp(name: &str, engine: Engine) -> Option<Self> {
        match (engine, name) {
            // These names are newer, and the old engine takes the default for a name that it does not know.
            (
                Engine::OldLlamaCpp,
                "jina-v5-nano" | "modern-bert" | "mellum2" | "f2llmv2" | "solar-open" | "qwen35"
                | "laguna" | "kanana2" | "talkie" | "joyai-llm" | "hy_v4" | "glm5",
            ) => Some(DEFAULT),
            (Engine::OldLlamaCpp, "glm4") => Some(LLAMA3.without_bos()),
            _ => Self::by_name(name),
        }
    }

    /// Returns the pre-tokenizer of an architecture in Ollama's engine in Go, or `None` for an unknown architecture.
    ///
    /// **Source**: the `New` functions in Ollama 0.24's `model/models`, and `NewBytePairEncoding`, which takes a word
    /// that is a token as this token. The expressions are compiled with `regexp2.RE2`, whose `\s` is ASCII.
    pub(super) fn in_ollama_go(architecture: &str, name: &str) -> Option<Self> {
        let pre = match architecture {
            "qwen2" | "qwen3" | "qwen3moe" | "qwen3vl" | "qwen3vlmoe" | "qwen25vl"
            | "qwen3next" | "qwen35" | "qwen35moe" | "nemotron_h" | "nemotron_h_moe"
            | "nemotron_h_omni" => QWEN2,
            "lfm2" | "lfm2moe" if name == "default" => GPT2,
            "mllama" | "olmo3" | "glm4moelite" | "glmocr" | "lfm2" | "lfm2moe" => LLAMA3,
            "llama4" | "gptoss" | "gpt-oss" => GPT4O_BY_CLASSES,
            "mistral3" => TEKKEN_BY_CLASSES,
            "deepseek2" | "deepseekocr" => DEEPSEEK3,
            "laguna" => PreTokenizer::new(&[
                SplitStep::LineBreaks,
                SplitStep::Cl100k(Cl100kRule { letters: LETTER, max_digits: 1 }),
            ]),
            "gemma3" => GPT2,
            "llama" => match name {
                "default" => GPT2,
                "qwen2" => QWEN2,
                "refact" => STARCODER,
                "tekken" => TEKKEN_BY_CLASSES,
                _ => LLAMA3,
            },
            _ => return None,
        };
        let rule = SplitRule { tables: CharTables::Go, ..pre.rule };
        Some(Self { rule, ignores_merges: true, ..pre })
    }

    /// Returns the pre-tokenizer of a byte-level `tokenizer.json`: the name of a rule, and options behind it.
    ///
    /// **Source**: the expressions in `vocab/tokenizer_json.rs`, of which each name stands for one.
    pub(super) fn in_hugging_face(pre: &str) -> Option<Self> {
        let mut words = pre.split(' ');
        let pre = match words.next()? {
            "gpt-2" => GPT2,
            "starcoder" => STARCODER,
            "llama3" => LLAMA3,
            "qwen2" => QWEN2,
            "qwen35" => QWEN35,
            "gpt-4o" => GPT4O_BY_CLASSES,
            "tekken" => TEKKEN_BY_CLASSES,
            "deepseek-v3" => DEEPSEEK3,
            _ => return None,
        };
        let rule = SplitRule { tables: CharTables::HuggingFace, ..pre.rule };
        words.try_fold(Self { rule, ..pre }, |pre, option| match option {
            "nfc" => Some(Self { composes: true, ..pre }),
            "whole-words" => Some(pre.ignoring_merges()),
            _ => None,
        })
    }

    const fn new(steps: &'static [SplitStep]) -> Self {
        let rule = SplitRule { steps, tables: CharTables::LlamaCpp };
        Self { rule, ignores_merges: false, adds_bos: false, has_bos: true, composes: false }
    }

    const fn ignoring_merges(self) -> Self {
        Self { ignores_merges: true, ..self }
    }

    const fn adding_bos(self) -> Self {
        Self { adds_bos: true, ..self }
    }

    const fn without_bos(self) -> Self {
        Self { has_bos: false, ..self }
    }
}

const UNLIMITED: usize = usize::MAX;

const DEFAULT: PreTokenizer = PreTokenizer::new(&[
    SplitStep::Runs(rule::default_signs, UNLIMITED),
    SplitStep::Gpt2,
    SplitStep::Runs(rule::numbers, UNLIMITED),
    SplitStep::DigitTriples,
]);
const GPT2: PreTokenizer = PreTokenizer::new(&[SplitStep::Gpt2]);
const STARCODER: PreTokenizer =
    PreTokenizer::new(&[SplitStep::Runs(rule::numbers, 1), SplitStep::Gpt2]);
const FALCON: PreTokenizer = PreTokenizer::new(&[
    SplitStep::Runs(rule::falcon_signs, UNLIMITED),
    SplitStep::Gpt2,
    SplitStep::DigitTriples,
]);
const LLAMA3: PreTokenizer =
    PreTokenizer::new(&[SplitStep::Cl100k(Cl100kRule { letters: LETTER, max_digits: 3 })]);
const QWEN2: PreTokenizer =
    PreTokenizer::new(&[SplitStep::Cl100k(Cl100kRule { letters: LETTER, max_digits: 1 })]);
const QWEN35: PreTokenizer =
    PreTokenizer::new(&[SplitStep::Cl100k(Cl100kRule { letters: LETTER | MARK, max_digits: 1 })]);
const LAGUNA: PreTokenizer = PreTokenizer::new(&[
    SplitStep::Runs(rule::line_feeds, UNLIMITED),
    SplitStep::Cl100k(Cl100kRule { letters: LETTER, max_digits: 1 }),
]);
const GPT4O: PreTokenizer =
    PreTokenizer::new(&[SplitStep::Cased(CasedRule { max_digits: 3, contractions: true })]);
const TEKKEN: PreTokenizer =
    PreTokenizer::new(&[SplitStep::Cased(CasedRule { max_digits: 1, contractions: false })]);
const GPT4O_BY_CLASSES: PreTokenizer = PreTokenizer::new(&[SplitStep::CasedByClasses(CasedRule {
    max_digits: 3,
    contractions: true,
})]);
const TEKKEN_BY_CLASSES: PreTokenizer =
    PreTokenizer::new(&[SplitStep::CasedByClasses(CasedRule {
        max_digits: 1,
        contractions: false,
    })]);
const DEEPSEEK_LLM: PreTokenizer = PreTokenizer::new(&[
    SplitStep::Runs(rule::breaks, 1),
    SplitStep::RunsWithSpace(rule::deepseek_letters),
    SplitStep::RunsWithSpace(rule::deepseek_signs),
    SplitStep::TrailingSpace,
    SplitStep::Runs(rule::asian, UNLIMITED),
    SplitStep::Runs(rule::numbers, UNLIMITED),
]);
const DEEPSEEK_CODER: PreTokenizer = PreTokenizer::new(&[
    SplitStep::Runs(rule::breaks, 1),
    SplitStep::RunsWithSpace(rule::letters),
    SplitStep::RunsWithSpace(rule::punctuation),
    SplitStep::Runs(rule::asian, UNLIMITED),
    SplitStep::Runs(rule::numbers, 1),
]);
const DEEPSEEK3: PreTokenizer = PreTokenizer::new(&[
    SplitStep::Runs(rule::numbers, 3),
    SplitStep::Runs(rule::han_and_kana, UNLIMITED),
    SplitStep::DeepSeek3,
]);
