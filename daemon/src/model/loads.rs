//! The one window that each model is loaded with.
//!
//! A server loads a model again, which takes seconds to minutes and forgets every prompt it had read, whenever a
//! request names another window than the one before. So all requests to a model name the same one, for the life
//! of the daemon; it changes only where somebody needs or asks for another.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

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
        let mut windows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&canonical(model)).copied()
    }

    /// Forgets all of them: another server has other models.
    pub(crate) fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
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
