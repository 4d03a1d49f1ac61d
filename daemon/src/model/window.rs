//! Context windows: their limits, the advice about a loaded model's memory, and the one window of each model.
//!
//! A server reloads a model whenever a request names another window than the previous one. Reloading takes seconds to
//! minutes and discards the server's prompt cache.
//!
//! **Invariant**: all requests to a model name the same window as long as the daemon runs; it only grows, when a
//! larger one is needed. Where the server alone decides, the window is always the server's.

use std::num::NonZeroU32;

use hashlink::LruCache;
use parking_lot::Mutex;

use super::address::ModelNames;
use super::info::KvGeometry;
use super::listed::RunningModel;

/// The smallest window that engines accept.
const MIN_WINDOW: u32 = 4;
/// The smallest window of a model that accepts images.
const MIN_VISION_WINDOW: u32 = 2048;
/// Tokens of the window that must stay free.
///
/// **Source**: measured with llama-server: with a window of 256 tokens it accepts a prompt of 255 and refuses one
/// of 256.
const FREE_TOKENS: u32 = 1;
/// The smallest window worth recommending.
const MIN_ADVISED_WINDOW: u64 = 2048;
/// Maximum number of models whose window is known, more than most servers have.
const MAX_MODELS: usize = 256;
/// Recommended windows are multiples of this number of tokens.
const ADVICE_STEP: u64 = 1024;

/// The window of a model: requested, trained for, and used by the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Window {
    /// The window in the request.
    pub requested: u32,
    /// The longest window that the model was trained for.
    pub trained: Option<u32>,
    /// The window that the server uses, if it reports it.
    pub effective: Option<u32>,
}

impl Window {
    /// Returns a warning if the server uses a smaller window than requested.
    pub(crate) fn warning(&self) -> Option<String> {
        let effective = self.effective.filter(|effective| *effective < self.requested)?;
        Some(format!(
            "the server uses a window of {effective} tokens instead of {}",
            self.requested
        ))
    }
}

/// Limits a window to the range that a model supports.
///
/// A server would do so itself, but silently, so that later requests would seem to name another window.
pub(crate) fn clamp_window(wanted: u32, trained: Option<u32>, vision: bool) -> u32 {
    let least = if vision { MIN_VISION_WINDOW } else { MIN_WINDOW };
    let wanted = wanted.max(least);
    trained.map_or(wanted, |trained| wanted.min(trained.max(MIN_WINDOW)))
}

/// Limits the length of an answer so that prompt and answer leave one token of the window free.
///
/// Returns `None` if not even one token fits, and never 0, which servers take for "unlimited".
pub(crate) fn cap_num_predict(
    num_ctx: u32,
    prompt_tokens: u32,
    max_tokens: Option<u32>,
) -> Option<NonZeroU32> {
    let room = num_ctx.saturating_sub(FREE_TOKENS).saturating_sub(prompt_tokens);
    let wanted = max_tokens.map_or(room, |max| max.max(1));
    NonZeroU32::new(wanted.min(room))
}

/// Returns advice about a loaded model that is not entirely in GPU memory.
pub(crate) fn advise(running: &RunningModel, geometry: Option<KvGeometry>) -> Option<String> {
    let RunningModel { size_bytes, size_vram_bytes, effective_context, .. } = running;
    let outside = size_bytes.checked_sub(*size_vram_bytes).filter(|outside| *outside > 0)?;
    if *size_vram_bytes == 0 {
        return Some("the model runs on the CPU only".to_owned());
    }
    let percent = outside.saturating_mul(100) / size_bytes.max(&1);
    let mut text =
        format!("{} % of the model is outside of GPU memory, which makes it slow", percent.max(1));
    let smaller = geometry.zip(*effective_context).and_then(|(geometry, window)| {
        let tokens = outside.div_ceil(geometry.bytes_per_token().max(1));
        let fitting = u64::from(window).checked_sub(tokens)? / ADVICE_STEP * ADVICE_STEP;
        (fitting >= MIN_ADVISED_WINDOW).then_some(fitting)
    });
    if let Some(window) = smaller {
        text.push_str(&format!("; a window of {window} tokens might fit"));
    }
    Some(text)
}

/// The window of each model, by key. Clients choose the names, so only the newest [`MAX_MODELS`] are known.
pub(crate) struct ModelWindows {
    names: ModelNames,
    known: Mutex<LruCache<String, KnownWindow>>,
}

#[derive(Clone, Copy)]
struct KnownWindow {
    size: u32,
    /// Set if the server gives every request this window, whatever it asks for.
    is_fixed: bool,
}

impl Default for ModelWindows {
    fn default() -> Self {
        Self::new(ModelNames::default())
    }
}

impl ModelWindows {
    /// Creates an empty collection.
    pub(super) fn new(names: ModelNames) -> Self {
        Self { names, known: Mutex::new(LruCache::new(MAX_MODELS)) }
    }

    /// Sets the window of a model whose server alone decides about it.
    pub(super) fn fix(&self, model: &str, size: u32) {
        let window = KnownWindow { size, is_fixed: true };
        self.known.lock().insert(self.names.key(model), window);
    }

    /// Chooses the window to request for a caller that needs `wanted` tokens, already clamped.
    ///
    /// The current window stays if it is large enough. The first window is the one with which the server has `loaded`
    /// the model, if that is large enough.
    pub(crate) fn choose(&self, model: &str, wanted: u32, loaded: Option<u32>) -> u32 {
        let (mut windows, name) = (self.known.lock(), self.names.key(model));
        let known = windows.get(&name).copied();
        if let Some(KnownWindow { size, is_fixed: true }) = known {
            return size;
        }
        let size =
            known.map(|known| known.size).or(loaded).map_or(wanted, |known| known.max(wanted));
        windows.insert(name, KnownWindow { size, is_fixed: false });
        size
    }

    /// Returns the window of a model, if one was chosen.
    pub(crate) fn current(&self, model: &str) -> Option<u32> {
        self.known.lock().get(&self.names.key(model)).map(|known| known.size)
    }

    /// Forgets all windows, because another server has other models.
    pub(crate) fn clear(&self) {
        self.known.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_fits_into_the_window_and_is_never_empty() {
        let check = |num_ctx, prompt, max_tokens, expect| {
            let capped = cap_num_predict(num_ctx, prompt, max_tokens).map(NonZeroU32::get);
            assert_eq!(capped, expect, "{num_ctx} {prompt} {max_tokens:?}");
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
    fn window_is_clamped_to_the_range_of_the_model() {
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
        let check = |size: u64, vram: u64, effective_context, expect: Option<&str>| {
            let running = RunningModel {
                size_bytes: size << 20,
                size_vram_bytes: vram << 20,
                effective_context,
                ..RunningModel::default()
            };
            assert_eq!(advise(&running, Some(geometry)).as_deref(), expect, "{size} {vram}");
        };
        let slow = "of the model is outside of GPU memory, which makes it slow";
        check(6000, 6000, Some(8192), None);
        check(6000, 7000, Some(8192), None);
        check(6000, 0, Some(8192), Some("the model runs on the CPU only"));
        // 512 MiB are 4,096 tokens.
        let fits = format!("8 % {slow}; a window of 4096 tokens might fit");
        check(6000, 5488, Some(8192), Some(&fits));
        check(6000, 3000, Some(8192), Some(&format!("50 % {slow}")));
        check(6000, 5999, None, Some(&format!("1 % {slow}")));
    }

    #[test]
    fn effective_window_below_the_requested_one_is_a_warning() {
        let window = |effective| Window { requested: 8192, trained: None, effective };
        assert_eq!(window(Some(8192)).warning(), None);
        assert_eq!(window(None).warning(), None);
        let warning = "the server uses a window of 4096 tokens instead of 8192";
        assert_eq!(window(Some(4096)).warning().as_deref(), Some(warning));
    }

    #[test]
    fn window_stays_until_a_larger_one_is_needed() {
        let windows = ModelWindows::default();
        assert_eq!(windows.choose("a", 4096, None), 4096);
        assert_eq!(windows.choose("a:latest", 4096, Some(9999)), 4096);
        assert_eq!(windows.choose("library/a", 2048, None), 4096);
        assert_eq!(windows.choose("a", 8192, None), 8192);
        assert_eq!(windows.choose("a", 4096, None), 8192);
        assert_eq!(windows.choose("a:7b", 4096, Some(8192)), 8192);
        assert_eq!(windows.choose("b", 4096, Some(2048)), 4096);
        windows.clear();
        assert_eq!(windows.current("b"), None);
    }

    #[test]
    fn window_of_the_server_is_the_only_one() {
        let windows = ModelWindows::default();
        windows.fix("a", 4096);
        assert_eq!(windows.choose("a", 8192, None), 4096);
        assert_eq!(windows.choose("a", 2048, Some(16_384)), 4096);
        windows.fix("a:latest", 2048);
        assert_eq!(windows.current("a"), Some(2048), "the server was started again");
    }

    #[test]
    fn windows_of_many_names_are_bounded() {
        let windows = ModelWindows::default();
        for number in 0..10 * MAX_MODELS {
            windows.choose(&format!("m{number}"), 4096, None);
            assert_eq!(windows.choose("used", 2048, Some(8192)), 8192, "a used model stays");
        }
        assert_eq!(windows.known.lock().len(), MAX_MODELS);
    }
}
