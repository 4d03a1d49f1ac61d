//! This program's own environment, as the daemon judges it and as the command gets it.
//!
//! Variables need not be text, and JSON is. What is no text is judged by the text that is nearest to it, with
//! signs of replacement, which the rules take for separators; what passes is then taken from here, byte for byte.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};

use ollm_protocol::methods::env::{EnvSanitizeResult, Variables};

/// A variable of this process.
pub(super) type Variable = (OsString, OsString);

/// The variables as they are sent.
pub(super) fn asked(own: &[Variable]) -> Variables {
    let mut variables = Variables::default();
    for (name, value) in own {
        // Two names may look alike; then neither value escapes the judgment.
        let text = variables.0.entry(name.to_string_lossy().into_owned()).or_default();
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&value.to_string_lossy());
    }
    variables
}

/// The variables that passed, as they are here.
pub(super) fn passing(own: Vec<Variable>, judged: &EnvSanitizeResult) -> Vec<Variable> {
    let passes = |name: &OsStr| judged.variables.0.contains_key(&*name.to_string_lossy());
    own.into_iter().filter(|(name, _)| passes(name)).collect()
}

/// The names that did not pass.
pub(super) fn removed(judged: &EnvSanitizeResult) -> BTreeSet<&str> {
    judged.removed.iter().map(|removed| removed.name.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt as _;

    use super::*;

    fn raw(bytes: &[u8]) -> OsString {
        OsString::from_vec(bytes.to_vec())
    }

    #[test]
    fn what_is_no_text_is_judged_and_passes_without_loss() {
        let own = vec![
            (raw(b"A"), raw(b"\xff\xfe")),
            (raw(b"B\xffC"), raw(b"one")),
            (raw(b"B\xfeC"), raw(b"two")),
            (raw(b"D"), raw(b"gone")),
        ];
        let sent = asked(&own);
        assert_eq!(sent.0["A"], "\u{fffd}\u{fffd}");
        assert_eq!(sent.0["B\u{fffd}C"], "one\ntwo");
        let mut variables = sent;
        variables.0.remove("D");
        let judged = EnvSanitizeResult { variables, removed: vec![], warnings: vec![] };
        assert_eq!(passing(own.clone(), &judged), own[..3]);
    }
}
