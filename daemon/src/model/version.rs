//! Versions of Ollama, and what each can do.
//!
//! **Source**: the first release tag that has a feature. A version that cannot be read, such as the `0.0.0` of
//! a build from source, counts as new: the old ones were all numbered.

use std::fmt;

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

#[cfg(test)]
mod tests {
    use super::*;

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
}
