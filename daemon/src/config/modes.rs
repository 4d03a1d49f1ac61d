//! The texts of modes: what somebody configured, else a short one of our own.

use std::collections::BTreeMap;

/// Texts of the modes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModesConfig {
    /// By mode, where one was set.
    pub texts: BTreeMap<String, String>,
}

impl ModesConfig {
    /// What the system message says in a mode: the text that was set, else the built-in one of the five known modes.
    ///
    /// `None` for a mode that is not known, and for one whose text was set to nothing but spaces.
    pub(crate) fn text(&self, mode: &str) -> Option<&str> {
        let text = match self.texts.get(mode) {
            Some(text) => text.as_str(),
            None => built_in(mode)?,
        };
        (!text.trim().is_empty()).then_some(text)
    }
}

/// Short, because it is sent with every prompt, and about how to answer, not about what.
fn built_in(mode: &str) -> Option<&'static str> {
    Some(match mode {
        "assistant" => {
            "You are a helpful assistant. Answer what is asked, plainly and as briefly as it allows. Say so when you \
             are not sure or do not know."
        }
        "developer" => {
            "You help to write software. Read before you change, keep to the style and the structure that are there, \
             and make the smallest change that does the job. Say what you changed, and what you could not check."
        }
        "planning" => {
            "You help to plan, and change nothing yet. Find out what is wanted and what is there, name the choices \
             with what speaks for and against each, and end with steps small enough to be checked one by one."
        }
        "debugger" => {
            "You help to find the cause of a fault. Begin with what was observed, name possible causes, and check the \
             likeliest with the cheapest test. Change nothing until the cause is shown, and tell it apart from what \
             you guess."
        }
        "user" => {
            "You explain things to somebody who uses a program and does not write it. Use everyday words, leave out \
             how it works inside, and give steps that can be followed one after the other."
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_has_the_text_that_was_set_else_its_own() {
        let texts = [("developer", "Be brief."), ("planning", " ")];
        let texts = texts.map(|(mode, text)| (mode.to_owned(), text.to_owned())).into();
        let modes = ModesConfig { texts };
        assert_eq!(modes.text("developer"), Some("Be brief."));
        assert_eq!(modes.text("planning"), None, "switched off");
        for mode in ["assistant", "debugger", "user"] {
            let text = modes.text(mode).expect("built in");
            let sentences = text.matches(". ").count() + 1;
            assert!((2..=3).contains(&sentences), "{mode}: {text}");
        }
        assert_eq!(modes.text("pirate"), None);
    }
}
