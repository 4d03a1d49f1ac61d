//! Which tokens of a vocabulary are special: those that are marked so, and those that the engine knows by their text.
//!
//! Must not know texts to be cut.
//!
//! **Source**: `llama_vocab::impl::load` in llama.cpp's `llama-vocab.cpp`: what it calls control, user-defined and
//! unknown. Where it takes the first of several texts for a role it takes them in the order of a hash table; here
//! the lowest id comes first.

use rustc_hash::{FxHashMap, FxHashSet};

use super::Special;
use crate::tokens::vocab::{Kind, Vocabulary};

/// Texts that end a generation: special whatever the file says of them.
const ENDS: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

/// Texts that frame a message of gpt-oss.
const FRAMES: &[&str] = &["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

const FIM_PREFIX: &[&str] = &[
    "<|fim_prefix|>",
    "<fim-prefix>",
    "<fim_prefix>",
    "<｜fim▁begin｜>",
    "<PRE>",
    "▁<PRE>",
    "<|code_prefix|>",
    "<|prefix|>",
];
const FIM_SUFFIX: &[&str] = &[
    "<|fim_suffix|>",
    "<fim-suffix>",
    "<fim_suffix>",
    "<｜fim▁hole｜>",
    "<SUF>",
    "▁<SUF>",
    "<|code_suffix|>",
    "<|suffix|>",
];
const FIM_MIDDLE: &[&str] = &[
    "<|fim_middle|>",
    "<fim-middle>",
    "<fim_middle>",
    "<｜fim▁end｜>",
    "<MID>",
    "▁<MID>",
    "<|code_middle|>",
    "<|middle|>",
];
const FIM_PAD: &[&str] = &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"];
const FIM_REPO: &[&str] = &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"];
const FIM_SEPARATOR: &[&str] = &["<|file_sep|>"];

/// The ids of the texts that are known here; of equal ones the last counts, as in the engine.
fn known(vocabulary: &Vocabulary) -> FxHashMap<&[u8], u32> {
    let lists =
        [ENDS, FRAMES, FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE, FIM_PAD, FIM_REPO, FIM_SEPARATOR];
    let texts: FxHashSet<&[u8]> = lists.into_iter().flatten().map(|text| text.as_bytes()).collect();
    let tokens = vocabulary.texts.iter().zip(0..vocabulary.n_tokens);
    tokens.filter(|(text, _)| texts.contains(text)).collect()
}

/// The special tokens, by id.
pub(super) fn specials(vocabulary: &Vocabulary) -> Vec<Special> {
    let known = known(vocabulary);
    let find = |text: &str| known.get(text.as_bytes()).copied();
    let mut is_special = vec![false; vocabulary.n_tokens as usize];
    for (is_special, kind) in is_special.iter_mut().zip(&vocabulary.kinds) {
        *is_special = matches!(kind, Kind::Control | Kind::UserDefined | Kind::Unknown);
    }
    for id in ENDS.iter().chain(FRAMES).filter_map(|text| find(text)) {
        is_special[id as usize] = true;
    }
    let roles = vocabulary.roles;
    let known_by_text = [
        (roles.fim_prefix, FIM_PREFIX),
        (roles.fim_suffix, FIM_SUFFIX),
        (roles.fim_middle, FIM_MIDDLE),
        (roles.fim_pad, FIM_PAD),
        (roles.fim_repo, FIM_REPO),
        (roles.fim_separator, FIM_SEPARATOR),
    ];
    for (_, texts) in known_by_text.into_iter().filter(|(role, _)| role.is_none()) {
        if let Some(id) = texts.iter().filter_map(|text| find(text)).min() {
            is_special[id as usize] = true;
        }
    }
    // Gemma 4 and PLaMo have a plain token of this text.
    let ends_by_role = [roles.eos, roles.eot].into_iter().flatten();
    let is_plamo = ends_by_role.into_iter().any(|id| vocabulary.texts.of(id) == b"<|plamo:eos|>");
    if (is_plamo || find("<|tool_response>").is_some())
        && let Some(id) = find("</s>")
    {
        is_special[id as usize] = false;
    }
    let special = |(id, _): (u32, &bool)| Special {
        text: vocabulary.texts.of(id).to_vec(),
        id,
        strips_left: false,
        strips_right: false,
    };
    let mut specials: Vec<Special> =
        (0..).zip(&is_special).filter(|(_, is_special)| **is_special).map(special).collect();
    strip(vocabulary, &mut specials);
    specials
}

/// Some models' special tokens swallow white space; the engine knows them by their names.
fn strip(vocabulary: &Vocabulary, specials: &mut [Special]) {
    const WITH_MASK: [&str; 3] = ["jina-v2-de", "jina-v2-es", "jina-v2-code"];
    let name = vocabulary.name.as_deref().unwrap_or_default().to_ascii_lowercase();
    let swallows_left = if WITH_MASK.iter().any(|pre| vocabulary.pre.contains(pre)) {
        Some("<mask>")
    } else if name.contains("phi-3") || name.contains("phi3") {
        for special in specials.iter_mut() {
            let keeps: [&[u8]; 3] = [b"<unk>", b"<s>", b"<|endoftext|>"];
            special.strips_right = !keeps.contains(&special.text.as_slice());
        }
        None
    } else if name.contains("modern-bert") {
        Some("[MASK]")
    } else {
        None
    };
    for special in specials.iter_mut() {
        special.strips_left = swallows_left.is_some_and(|text| special.text == text.as_bytes());
    }
}
