//! Windows: what was asked for, what a model was trained for, what is in force, and what it costs. Pure.

use std::num::NonZeroU32;

use parking_lot::Mutex;

use super::info::{KvGeometry, RunningModel, canonical};

/// The smallest window that any engine takes.
const MIN_WINDOW: u32 = 4;
/// The smallest window of a model that sees pictures.
const MIN_VISION_WINDOW: u32 = 2048;
/// Tokens of the window that must stay free: an engine takes at most one less than the window.
///
/// **Source**: measured with llama-server: at 256 tokens a prompt of 255 is taken and one of 256 refused.
const FREE_TOKENS: u32 = 1;
/// The smallest window that is worth recommending, and the step of recommendations.
const ADVICE_MIN: u64 = 2048;
const ADVICE_STEP: u64 = 1024;
/// The window of a model, as it was asked for and as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Window {
    /// What was sent.
    pub requested: u32,
    /// The longest that the model was trained for.
    pub trained: Option<u32>,
    /// What the server really uses; absent where it does not say.
    pub effective: Option<u32>,
}

impl Window {
    /// What a person should know of it.
    pub(crate) fn warning(&self) -> Option<String> {
        let effective = self.effective.filter(|effective| *effective < self.requested)?;
        Some(format!(
            "the server uses a window of {effective} tokens instead of {}",
            self.requested
        ))
    }
}

/// The window to ask for: what is wanted, within what the model takes.
///
/// Servers clamp by themselves and say so in their log only, so that later requests would seem to differ.
pub(crate) fn clamp_window(wanted: u32, trained: Option<u32>, vision: bool) -> u32 {
    let least = if vision { MIN_VISION_WINDOW } else { MIN_WINDOW };
    let wanted = wanted.max(least);
    trained.map_or(wanted, |trained| wanted.min(trained.max(MIN_WINDOW)))
}

/// The longest answer to ask for, so that prompt and answer leave one token of the window free.
///
/// `None` when not even one token fits. Never 0, which servers take for "without end".
pub(crate) fn cap_num_predict(
    num_ctx: u32,
    prompt_tokens: u32,
    asked: Option<u32>,
) -> Option<NonZeroU32> {
    let room = num_ctx.saturating_sub(FREE_TOKENS).saturating_sub(prompt_tokens);
    let wanted = asked.map_or(room, |asked| asked.max(1));
    NonZeroU32::new(wanted.min(room))
}

/// What a person should know of where a loaded model lies.
///
/// `None` when all of it is in the memory of the graphics processor.
pub(crate) fn advise(running: &RunningModel, geometry: Option<KvGeometry>) -> Option<String> {
    let RunningModel { size_bytes, size_vram_bytes, effective, .. } = running;
    let outside = size_bytes.checked_sub(*size_vram_bytes).filter(|outside| *outside > 0)?;
    if *size_vram_bytes == 0 {
        return Some("it runs on the processor alone, without a graphics processor".to_owned());
    }
    let percent = outside.saturating_mul(100) / size_bytes.max(&1);
    let mut text = format!(
        "{} % of it is outside the memory of the graphics processor, which makes it slow",
        percent.max(1)
    );
    let smaller = geometry.zip(*effective).and_then(|(geometry, effective)| {
        let tokens = outside.div_ceil(geometry.bytes_per_token().max(1));
        let fits = u64::from(effective).checked_sub(tokens)? / ADVICE_STEP * ADVICE_STEP;
        (fits >= ADVICE_MIN).then_some(fits)
    });
    if let Some(window) = smaller {
        text.push_str(&format!("; a window of {window} tokens might fit"));
    }
    Some(text)
}

use std::collections::HashMap;

/// The windows in force, by model.
#[derive(Debug, Default)]
pub(crate) struct Loads(Mutex<HashMap<String, u32>>);

/// How a window came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Agreement {
    /// It was in force already.
    Kept,
    /// It is the first one, as it was asked for.
    Begun,
    /// It is the first one, and the server has the model loaded with it, which is enough.
    Adopted,
    /// More was needed than was in force; the server will load the model again.
    Grown {
        /// The window until now.
        from: u32,
    },
}

/// The window to send, and how it came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Agreed {
    /// The window in tokens.
    pub num_ctx: u32,
    /// How it came about.
    pub how: Agreement,
}

impl Loads {
    /// The window to send for a model that somebody needs `wanted` tokens of, which is already clamped.
    ///
    /// `loaded` is the window that the server has the model loaded with, where it does.
    pub(crate) fn agree(&self, model: &str, wanted: u32, loaded: Option<u32>) -> Agreed {
        let mut windows = self.0.lock();
        let (num_ctx, how) = match (windows.get(&canonical(model)).copied(), loaded) {
            (Some(current), _) if current >= wanted => (current, Agreement::Kept),
            (Some(current), _) => (wanted, Agreement::Grown { from: current }),
            (None, Some(loaded)) if loaded >= wanted => (loaded, Agreement::Adopted),
            (None, _) => (wanted, Agreement::Begun),
        };
        windows.insert(canonical(model), num_ctx);
        Agreed { num_ctx, how }
    }

    /// The window in force.
    pub(crate) fn current(&self, model: &str) -> Option<u32> {
        self.0.lock().get(&canonical(model)).copied()
    }

    /// Forgets all of them: another server has other models.
    pub(crate) fn clear(&self) {
        self.0.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_never_passes_the_window_and_is_never_nothing() {
        let check = |num_ctx, prompt, asked, expect| {
            let capped = cap_num_predict(num_ctx, prompt, asked).map(NonZeroU32::get);
            assert_eq!(capped, expect, "{num_ctx} {prompt} {asked:?}");
            if let Some(capped) = capped {
                assert!(prompt + capped < num_ctx);
            }
        };
        check(4096, 100, None, Some(3995));
        check(4096, 100, Some(500), Some(500));
        check(4096, 4000, Some(500), Some(95));
        check(4096, 4094, None, Some(1));
        check(4096, 4095, None, None);
        check(4096, 9999, Some(1), None);
        check(4096, 0, Some(0), Some(1));
        check(0, 0, None, None);
        check(1, 0, None, None);
    }

    #[test]
    fn a_window_stays_within_what_the_model_takes() {
        let check = |wanted, trained, vision, expect| {
            assert_eq!(clamp_window(wanted, trained, vision), expect)
        };
        check(8192, Some(40_960), false, 8192);
        check(65_536, Some(40_960), false, 40_960);
        check(8192, None, false, 8192);
        check(1, Some(4096), false, 4);
        check(1024, Some(4096), true, 2048);
        check(4096, Some(1024), true, 1024);
        check(4096, Some(0), false, 4);
    }

    #[test]
    fn advice_names_a_window_that_might_fit() {
        let geometry = KvGeometry { kv_heads: 256, key_length: 128, value_length: 128 };
        let check = |size: u64, vram: u64, effective, expect: Option<&str>| {
            let running = RunningModel {
                size_bytes: size << 20,
                size_vram_bytes: vram << 20,
                effective,
                ..RunningModel::default()
            };
            assert_eq!(advise(&running, Some(geometry)).as_deref(), expect, "{size} {vram}");
        };
        let slow = "outside the memory of the graphics processor, which makes it slow";
        check(6000, 6000, Some(8192), None);
        check(6000, 7000, Some(8192), None);
        check(
            6000,
            0,
            Some(8192),
            Some("it runs on the processor alone, without a graphics processor"),
        );
        // 512 MiB are 4,096 tokens.
        let fits = format!("8 % of it is {slow}; a window of 4096 tokens might fit");
        check(6000, 5488, Some(8192), Some(&fits));
        check(6000, 3000, Some(8192), Some(&format!("50 % of it is {slow}")));
        check(6000, 5999, None, Some(&format!("1 % of it is {slow}")));
    }

    #[test]
    fn a_smaller_window_than_asked_for_is_told() {
        let window = |effective| Window { requested: 8192, trained: None, effective };
        assert_eq!(window(Some(8192)).warning(), None);
        assert_eq!(window(None).warning(), None);
        let warning = "the server uses a window of 4096 tokens instead of 8192";
        assert_eq!(window(Some(4096)).warning().as_deref(), Some(warning));
    }

    #[test]
    fn a_window_is_kept_and_only_grows_by_need() {
        let loads = Loads::default();
        let agree = |model, wanted, loaded| {
            let Agreed { num_ctx, how } = loads.agree(model, wanted, loaded);
            (num_ctx, how)
        };
        assert_eq!(agree("a", 4096, None), (4096, Agreement::Begun));
        assert_eq!(agree("a:latest", 4096, Some(9999)), (4096, Agreement::Kept));
        assert_eq!(agree("library/a", 2048, None), (4096, Agreement::Kept));
        assert_eq!(agree("a", 8192, None), (8192, Agreement::Grown { from: 4096 }));
        assert_eq!(agree("a", 4096, None), (8192, Agreement::Kept));
        assert_eq!(agree("a:7b", 4096, Some(8192)), (8192, Agreement::Adopted));
        assert_eq!(agree("b", 4096, Some(2048)), (4096, Agreement::Begun));
        loads.clear();
        assert_eq!(loads.current("b"), None);
    }
}
