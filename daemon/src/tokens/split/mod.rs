//! Split rules by name: how the text of a byte-level vocabulary is split into words before its merges.
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

use self::class::{LETTER, MARK};
use self::rule::{self as sets, Cased, Rule, Step, Words};

/// What the name of a split rule decides.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pre {
    /// How text is cut.
    pub(super) rule: Rule,
    /// Whether a word that is a token is that token, whatever the merges say.
    pub(super) ignores_merges: bool,
    /// Whether a text begins with the token of the beginning where the model does not say.
    pub(super) adds_bos: bool,
    /// Whether the model has a token of the beginning at all.
    pub(super) has_bos: bool,
}

impl Pre {
    const fn new(steps: &'static [Step]) -> Self {
        Self { rule: Rule(steps), ignores_merges: false, adds_bos: false, has_bos: true }
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

const DEFAULT: Pre = Pre::new(&[
    Step::Runs(sets::default_signs, UNLIMITED),
    Step::Gpt2,
    Step::Runs(sets::numbers, UNLIMITED),
    Step::Triples,
]);
const GPT2: Pre = Pre::new(&[Step::Gpt2]);
const STARCODER: Pre = Pre::new(&[Step::Runs(sets::numbers, 1), Step::Gpt2]);
const FALCON: Pre =
    Pre::new(&[Step::Runs(sets::falcon_signs, UNLIMITED), Step::Gpt2, Step::Triples]);
const LLAMA3: Pre = Pre::new(&[Step::Words(Words { letters: LETTER, digits: 3 })]);
const QWEN2: Pre = Pre::new(&[Step::Words(Words { letters: LETTER, digits: 1 })]);
const QWEN35: Pre = Pre::new(&[Step::Words(Words { letters: LETTER | MARK, digits: 1 })]);
const LAGUNA: Pre = Pre::new(&[
    Step::Runs(sets::line_feeds, UNLIMITED),
    Step::Words(Words { letters: LETTER, digits: 1 }),
]);
const GPT4O: Pre = Pre::new(&[Step::Cased(Cased { digits: 3, contractions: true })]);
const TEKKEN: Pre = Pre::new(&[Step::Cased(Cased { digits: 1, contractions: false })]);
const DEEPSEEK_LLM: Pre = Pre::new(&[
    Step::Runs(sets::breaks, 1),
    Step::AfterSpace(sets::deepseek_letters),
    Step::AfterSpace(sets::deepseek_signs),
    Step::TrailingSpace,
    Step::Runs(sets::asian, UNLIMITED),
    Step::Runs(sets::numbers, UNLIMITED),
]);
const DEEPSEEK_CODER: Pre = Pre::new(&[
    Step::Runs(sets::breaks, 1),
    Step::AfterSpace(sets::letters),
    Step::AfterSpace(sets::punctuation),
    Step::Runs(sets::asian, UNLIMITED),
    Step::Runs(sets::numbers, 1),
]);
const DEEPSEEK3: Pre = Pre::new(&[
    Step::Runs(sets::numbers, 3),
    Step::Runs(sets::han_and_kana, UNLIMITED),
    Step::DeepSeek3,
]);

/// What a name stands for; nothing where the name is not known.
///
/// **Source**: a model without the name is counted by the default rule, as the engine does.
pub(super) fn pre_of(name: &str) -> Option<Pre> {
    let pre = match name {
        "" | "default" => DEFAULT,
        "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral" | "midm-2.0"
        | "lfm2" | "jina-v5-nano" => LLAMA3.ignoring_merges().adding_bos(),
        "dbrx" | "smaug-bpe" => LLAMA3,
        "chatglm-bpe" => LLAMA3.without_bos(),
        "glm4" | "glm5" => LLAMA3.ignoring_merges().without_bos(),
        "gpt-2" | "phi-2" | "jina-es" | "jina-de" | "gigachat" | "jina-v2-es" | "jina-v2-de"
        | "a.x-4.0" | "mellum" | "modern-bert" | "jina-v1-en" | "jina-v2-code" | "roberta-bpe"
        | "exaone4" | "mpt" | "olmo" | "jais" | "trillion" | "granite-docling" => GPT2,
        "starcoder" | "refact" | "command-r" | "smollm" | "codeshell" | "exaone" | "minerva-7b"
        | "mellum2" => STARCODER,
        "qwen2" | "deepseek-r1-qwen" | "kormo" | "f2llmv2" | "megrez" | "stablelm2" | "hunyuan"
        | "solar-open" | "grok-2" => QWEN2,
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
