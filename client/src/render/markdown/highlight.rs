//! Colors of code, by the grammars of `two-face`, in the palette of 16 colors.
//!
//! **Invariants**: the grammars are decompressed when the first fence names a language; the colors of a line depend on
//! the lines before it alone, so lines can be shown as they come; a line costs a bounded time, because a long one, and
//! those after [`MAX_LINES`], have no colors.

use std::sync::LazyLock;

use syntect::parsing::{ParseState, Scope, ScopeStack, SyntaxSet};

use super::inline::{Look, Span};

/// Lines of one block that get colors. Beyond it, nobody reads along, and a model that repeats itself costs nothing.
const MAX_LINES: usize = 1_000;
/// The longest line that gets colors, in bytes: the time of some grammars grows faster than the line.
const MAX_LINE_BYTES: usize = 500;
/// Words after a fence that name no language, so that no grammar is loaded for them.
const NO_LANGUAGES: [&str; 6] = ["text", "txt", "plain", "plaintext", "output", "console"];

static GRAMMARS: LazyLock<SyntaxSet> = LazyLock::new(two_face::syntax::extra_newlines);

const fn colored(color: u8) -> Look {
    Look { color: Some(color), ..Look::PLAIN }
}

/// The looks of scopes. The first that matches the innermost scope is taken, and else those of the scopes around it.
const LOOKS: &[(&str, Look)] = &[
    ("comment", Look::FAINT),
    ("string", colored(32)),
    ("constant", colored(33)),
    ("keyword.operator", Look::PLAIN),
    ("keyword", colored(35)),
    ("storage.type.function", colored(35)),
    ("storage", colored(35)),
    ("entity.name.function", colored(94)),
    ("variable.function", colored(94)),
    ("support.function", colored(94)),
    ("entity.name.tag", colored(94)),
    ("entity.name", colored(36)),
    ("entity.other.attribute-name", colored(36)),
    ("support.type", colored(36)),
    ("support.class", colored(36)),
    ("markup.inserted", colored(32)),
    ("markup.deleted", colored(31)),
    ("meta.diff", colored(36)),
    ("markup.heading", Look { strong: true, ..Look::PLAIN }),
];

static SCOPES: LazyLock<Vec<(Scope, Look)>> = LazyLock::new(|| {
    let scopes = LOOKS.iter().filter_map(|(name, look)| Some((Scope::new(name).ok()?, *look)));
    scopes.collect()
});

/// The state of the colors of one block of code.
#[derive(Clone, Debug)]
pub(super) struct Highlighter {
    state: ParseState,
    scopes: ScopeStack,
    n_lines: usize,
}

impl Highlighter {
    /// Returns the highlighter of the language that a fence names; `None` if it names none that is known.
    pub(super) fn of(info: &str) -> Option<Self> {
        let words =
            info.split(|char: char| char.is_whitespace() || matches!(char, ',' | '{' | ':'));
        let name = words.into_iter().next().unwrap_or_default().to_lowercase();
        if name.is_empty() || NO_LANGUAGES.contains(&name.as_str()) {
            return None;
        }
        let grammar = GRAMMARS.find_syntax_by_token(&name)?;
        Some(Self { state: ParseState::new(grammar), scopes: ScopeStack::new(), n_lines: 0 })
    }

    /// Returns the parts of the next line, which ends with `\n`, without its end.
    pub(super) fn line(&mut self, line: &str) -> Vec<Span> {
        let text = line.trim_end_matches('\n');
        let plain = || vec![Span::new(text, Look::PLAIN)];
        self.n_lines += 1;
        if self.n_lines > MAX_LINES || line.len() > MAX_LINE_BYTES {
            return plain();
        }
        let Ok(changes) = self.state.parse_line(line, &GRAMMARS) else { return plain() };
        let mut spans: Vec<Span> = Vec::new();
        let mut add = |part: &str, look: Look| match spans.last_mut() {
            _ if part.is_empty() => {}
            Some(last) if last.look == look => last.text.push_str(part),
            _ => spans.push(Span::new(part, look)),
        };
        let mut at = 0;
        for (end, change) in changes {
            let end = end.min(text.len());
            if end > at {
                add(&text[at..end], look_of(&self.scopes));
                at = end;
            }
            if self.scopes.apply(&change).is_err() {
                return plain();
            }
        }
        add(&text[at..], look_of(&self.scopes));
        spans
    }
}

fn look_of(scopes: &ScopeStack) -> Look {
    let look = |scope: &Scope| {
        let found = SCOPES.iter().find(|(prefix, _)| prefix.is_prefix_of(*scope));
        found.map(|(_, look)| *look)
    };
    scopes.as_slice().iter().rev().find_map(look).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_languages_get_colors_of_the_palette() {
        let mut rust = Highlighter::of("rust,ignore").unwrap();
        let spans = rust.line("let x = \"a\"; // why\n");
        let look = |text: &str| spans.iter().find(|span| span.text.contains(text)).unwrap().look;
        assert_eq!(look("let"), colored(35));
        assert_eq!(look("a"), colored(32));
        assert_eq!(look("why"), Look::FAINT);
        let whole: String = spans.iter().map(|span| span.text.as_str()).collect();
        assert_eq!(whole, "let x = \"a\"; // why");
        for name in ["python", "py", "sh", "bash", "js", "ts", "json", "yaml", "toml", "go", "c++"]
        {
            assert!(Highlighter::of(name).is_some(), "{name}");
        }
        for name in ["", "text", "nosuchlanguage"] {
            assert!(Highlighter::of(name).is_none(), "{name}");
        }
    }

    #[test]
    fn long_lines_have_no_colors() {
        let mut json = Highlighter::of("json").unwrap();
        let line = format!("[{}]\n", "1,".repeat(MAX_LINE_BYTES));
        assert_eq!(json.line(&line), [Span::new(line.trim_end(), Look::PLAIN)]);
    }
}
