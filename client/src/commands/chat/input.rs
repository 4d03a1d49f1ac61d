//! The line that is typed: edited, with what was typed before, over several lines where it ends with a backslash.

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};

use rustyline::completion::Completer;
use rustyline::config::Configurer as _;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{ColorMode, CompletionType, Config, Context, Editor, Helper};

use super::super::CommandError;
use super::slash::{COMMANDS, name};
use crate::render::style::Style;

/// Lines that are kept for the arrow keys.
const KEPT_LINES: usize = 1000;
/// What stands before the line.
const PROMPT: &str = "> ";

/// What came of waiting for a line.
pub(super) enum Line {
    /// A line, or several.
    Text(String),
    /// Ctrl-C.
    Interrupted {
        /// Whether nothing was typed yet.
        was_empty: bool,
    },
    /// Ctrl-D, or a terminal that is gone.
    End,
}

/// Reads lines.
pub(super) struct Input {
    editor: Editor<Typing, FileHistory>,
    history: Option<PathBuf>,
}

impl Input {
    /// With the file of what was typed before, where one is to be kept. One that cannot be read is begun anew.
    pub(super) fn new(history: Option<&Path>, has_color: bool) -> Result<Self, CommandError> {
        let config = Config::builder()
            .max_history_size(KEPT_LINES)
            .map(|config| {
                config
                    .history_ignore_space(true)
                    .completion_type(CompletionType::List)
                    .bracketed_paste(true)
                    .color_mode(if has_color { ColorMode::Enabled } else { ColorMode::Disabled })
                    .build()
            })
            .map_err(failed)?;
        let mut editor = Editor::with_config(config).map_err(failed)?;
        editor.set_helper(Some(Typing::default()));
        editor.set_auto_add_history(false);
        if let Some(path) = history {
            drop(editor.load_history(path));
        }
        Ok(Self { editor, history: history.map(Path::to_owned) })
    }

    /// Waits for a line.
    pub(super) fn read(&mut self) -> Result<Line, CommandError> {
        if let Some(typing) = self.editor.helper() {
            typing.begin();
        }
        let prompt = (PROMPT, Style::User.paint(PROMPT));
        match self.editor.readline(&prompt) {
            Ok(line) => {
                let joins = self.editor.helper().map(Typing::joins).unwrap_or_default();
                let text = joined(line, &joins);
                self.keep(&text);
                Ok(Line::Text(text))
            }
            Err(ReadlineError::Interrupted) => {
                let was_empty = self.editor.helper().is_none_or(|typing| typing.is_empty.get());
                Ok(Line::Interrupted { was_empty })
            }
            Err(ReadlineError::Eof) => Ok(Line::End),
            Err(error) => Err(failed(error)),
        }
    }

    fn keep(&mut self, text: &str) {
        let added = !text.trim().is_empty() && self.editor.add_history_entry(text).unwrap_or(false);
        if let Some(path) = self.history.as_ref().filter(|_| added) {
            // A disk that refuses a convenience is no reason not to talk.
            drop(self.editor.append_history(path));
        }
    }
}

fn failed(error: ReadlineError) -> CommandError {
    CommandError::Input(match error {
        ReadlineError::Io(error) => error,
        other => std::io::Error::other(other),
    })
}

/// What is known of a line while it is typed.
#[derive(Default)]
struct Typing {
    is_empty: Cell<bool>,
    /// Beginnings of the line that ended with a backslash when Enter was pressed, without it.
    joins: RefCell<Vec<String>>,
}

impl Typing {
    fn begin(&self) {
        self.is_empty.set(true);
        self.joins.borrow_mut().clear();
    }

    fn joins(&self) -> Vec<String> {
        self.joins.borrow().clone()
    }
}

/// Takes the backslashes out that only meant that the line goes on; those of a pasted text stay.
fn joined(mut line: String, joins: &[String]) -> String {
    for before in joins.iter().rev() {
        if line.starts_with(&format!("{before}\\\n")) {
            line.remove(before.len());
        }
    }
    line
}

impl Helper for Typing {}
impl Highlighter for Typing {}

impl Hinter for Typing {
    type Hint = String;

    /// Hints at nothing; it is told of every change of the line.
    fn hint(&self, line: &str, _: usize, _: &Context<'_>) -> Option<String> {
        self.is_empty.set(line.is_empty());
        None
    }
}

impl Validator for Typing {
    fn validate(&self, typed: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let input = typed.input();
        let backslashes = input.chars().rev().take_while(|char| *char == '\\').count();
        if backslashes % 2 == 0 {
            return Ok(ValidationResult::Valid(None));
        }
        self.joins.borrow_mut().push(input[..input.len() - 1].to_owned());
        Ok(ValidationResult::Incomplete)
    }
}

impl Completer for Typing {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        at: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        let typed = &line[..at];
        let names = COMMANDS.iter().map(|(usage, _)| name(usage));
        let fits = |name: &&str| typed.starts_with('/') && name.starts_with(typed);
        Ok((0, names.filter(fits).map(str::to_owned).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_backslash_before_enter_goes() {
        let check = |line: &str, joins: &[&str], expect: &str| {
            let joins: Vec<String> = joins.iter().map(|text| (*text).to_owned()).collect();
            assert_eq!(joined(line.to_owned(), &joins), expect);
        };
        check("one\\\ntwo", &["one"], "one\ntwo");
        check("a\\\nb\\\nc", &["a", "a\\\nb"], "a\nb\nc");
        check("make \\\n  all", &[], "make \\\n  all");
        check("changed\\\ntwo", &["one"], "changed\\\ntwo");
    }
}
