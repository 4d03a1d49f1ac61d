//! Code with the classes of its tokens.
//!
//! The grammars are loaded for the first block of code in a known language and dropped with the last clone of the
//! [`PageHighlighter`], so a daemon that exports nothing holds none. The style sheet of the page gives the classes their
//! colors. A block that is large, has long lines, or is in an unknown language stays plain.

use std::fmt;
use std::sync::{Arc, OnceLock};

use syntect::parsing::{ParseState, Scope, ScopeStack, SyntaxSet};

use super::escaped;

/// The largest block that gets classes, in bytes. Grammars are regular expressions that backtrack: a larger block takes
/// seconds.
const MAX_BLOCK_BYTES: usize = 64 * 1024;
/// The longest line of a block that gets classes, in bytes. The time for a line can grow with the square of its length.
const MAX_LINE_BYTES: usize = 2_000;

/// The class of tokens whose scope begins with a prefix, the more special prefix first. An empty class is plain text.
const CLASSES: &[(&str, &str)] = &[
    ("comment", "c"),
    ("string", "s"),
    ("constant", "n"),
    ("keyword.operator", ""),
    ("keyword", "k"),
    ("storage", "k"),
    ("variable.language", "k"),
    ("variable.function", "f"),
    ("entity.name.function", "f"),
    ("support.function", "f"),
    ("support.macro", "f"),
    ("entity.name.tag", "k"),
    ("entity.name", "t"),
    ("entity.other.attribute-name", "t"),
    ("support.type", "t"),
    ("support.class", "t"),
    ("markup.inserted", "i"),
    ("markup.deleted", "d"),
    ("markup.heading", "k"),
    ("meta.diff", "c"),
];

/// The grammars of an export, which are loaded when a block needs them.
#[derive(Clone, Default)]
pub(in crate::session::export) struct PageHighlighter(Arc<OnceLock<Grammars>>);

struct Grammars {
    syntaxes: SyntaxSet,
    classes: Vec<(Scope, &'static str)>,
}

impl PageHighlighter {
    /// Returns code as HTML, or `None` if it stays plain.
    pub(super) fn code(&self, language: &str, code: &str) -> Option<String> {
        let is_small =
            code.len() <= MAX_BLOCK_BYTES && code.lines().all(|line| line.len() <= MAX_LINE_BYTES);
        if language.is_empty() || !is_small {
            return None;
        }
        let grammars = self.0.get_or_init(Grammars::load);
        let syntax = grammars.syntaxes.find_syntax_by_token(language)?;
        let mut state = ParseState::new(syntax);
        let mut scopes = ScopeStack::new();
        let mut html = Spans::default();
        for line in code.split_inclusive('\n') {
            let mut done = 0;
            for (at, change) in state.parse_line(line, &grammars.syntaxes).ok()? {
                html.push(grammars.class(&scopes), line.get(done..at)?);
                scopes.apply(&change).ok()?;
                done = at;
            }
            html.push(grammars.class(&scopes), line.get(done..)?);
        }
        Some(html.end())
    }
}

/// Grammars are no part of an export's state: all highlighters are equal.
impl PartialEq for PageHighlighter {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for PageHighlighter {}

impl fmt::Debug for PageHighlighter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PageHighlighter")
    }
}

impl Grammars {
    fn load() -> Self {
        let classes =
            CLASSES.iter().filter_map(|(prefix, class)| Some((Scope::new(prefix).ok()?, *class)));
        Self { classes: classes.collect(), syntaxes: two_face::syntax::extra_newlines() }
    }

    /// Returns the class of the innermost scope that has one.
    fn class(&self, scopes: &ScopeStack) -> &'static str {
        let class = |scope: &Scope| {
            let known = self.classes.iter().find(|(prefix, _)| prefix.is_prefix_of(*scope));
            known.map(|(_, class)| *class)
        };
        scopes.as_slice().iter().rev().find_map(class).unwrap_or_default()
    }
}

/// HTML in which neighbors of one class share a span.
#[derive(Default)]
struct Spans {
    html: String,
    class: &'static str,
}

impl Spans {
    fn push(&mut self, class: &'static str, text: &str) {
        if text.is_empty() {
            return;
        }
        if class != self.class && !text.trim().is_empty() {
            self.close();
            if !class.is_empty() {
                self.html.push_str("<span class=\"");
                self.html.push_str(class);
                self.html.push_str("\">");
            }
            self.class = class;
        }
        self.html.push_str(&escaped(text));
    }

    fn close(&mut self) {
        if !std::mem::take(&mut self.class).is_empty() {
            self.html.push_str("</span>");
        }
    }

    fn end(mut self) -> String {
        self.close();
        self.html
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_language_gets_classes_and_text_stays_the_same() {
        let highlighter = PageHighlighter::default();
        let check = |language: &str, code: &str, expected: &[&str]| {
            let html = highlighter.code(language, code).expect(language);
            for part in expected {
                assert!(html.contains(part), "{language}: {part} in {html}");
            }
            let mut text = String::new();
            for piece in html.split('<') {
                text.push_str(piece.split_once('>').map_or(piece, |(_, after)| after));
            }
            assert_eq!(text, escaped(code), "{language}");
        };
        check(
            "rust",
            "let a: &str = \"<b>\"; // x\n",
            &[
                "<span class=\"k\">let",
                "<span class=\"s\">&quot;&lt;b&gt;&quot;</span>",
                "<span class=\"c\">// x",
            ],
        );
        check("python", "def f():\n    return 1\n", &["\"k\">def", "\"f\">f</span>", "\"n\">1"]);
        check("diff", "-old\n+new\n", &["<span class=\"d\">-old", "<span class=\"i\">+new"]);
        check("toml", "[a]\nb = 1\n", &["<span class=\"n\">1"]);
        check("typescript", "const a = 'x';\n", &["<span class=\"k\">const"]);
    }

    #[test]
    fn large_block_long_line_and_unknown_language_stay_plain() {
        let highlighter = PageHighlighter::default();
        assert_eq!(highlighter.code("", "let a;\n"), None);
        assert_eq!(highlighter.code("rust", &"x;\n".repeat(MAX_BLOCK_BYTES)), None);
        assert_eq!(highlighter.code("rust", &"x".repeat(MAX_LINE_BYTES + 1)), None);
        assert!(highlighter.0.get().is_none(), "no grammar is loaded for a plain block");
        assert_eq!(highlighter.code("no such language", "let a;\n"), None);
    }
}
