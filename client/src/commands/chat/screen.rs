//! A turn on the screen: the answer on stdout as it comes, everything else on stderr where somebody watches that.

use ollm_protocol::methods::chat::{ChatEvent, ChatUsage};
use ollm_protocol::sanitize;
use serde_json::value::RawValue;

use super::super::CommandError;
use super::turns::Watch;
use crate::render::answer::Answer;
use crate::render::style::Style;
use crate::render::terminal::Terminal;
use crate::render::waiting::{self, Waiting};
use crate::render::{json, usage};

/// For people.
#[derive(Default)]
pub(super) struct Screen {
    model: String,
    answer: Answer,
    thinking: Thinking,
    waiting: Option<Waiting>,
    usage: Option<ChatUsage>,
    finish_reason: String,
}

/// What the model thinks, faint and apart from the answer.
#[derive(Default)]
struct Thinking {
    clean: sanitize::Sanitizer,
    is_shown: bool,
    ends_line: bool,
}

impl Thinking {
    fn show(&mut self, text: &str, terminal: &Terminal) {
        // A model that does not think may say so by empty lines.
        let text = if self.is_shown { text } else { text.trim_start() };
        if !text.is_empty() && terminal.is_watched() {
            terminal.note_piece(&Style::Faint.paint(text));
            self.is_shown = true;
            self.ends_line = text.ends_with('\n');
        }
    }

    fn end(&mut self, terminal: &Terminal) {
        if std::mem::take(&mut self.is_shown) {
            terminal.note_piece(if self.ends_line { "\n" } else { "\n\n" });
        }
    }
}

impl Screen {
    /// What it cost, on one line; nothing where the model was not asked.
    pub(super) fn cost(&self) -> Option<String> {
        let usage = self.usage.as_ref()?;
        let line = usage::line(usage, &self.model);
        if self.finish_reason == "length" {
            let cut = Style::Bad.paint(&usage::cut(usage));
            return Some(format!("{cut}; 'go on' continues it\n{line}"));
        }
        Some(line)
    }

    fn wait(&mut self, what: String, terminal: &Terminal) {
        if terminal.is_watched() {
            self.waiting.get_or_insert_with(|| Waiting::new("")).set(what);
        }
    }

    fn delta(
        &mut self,
        text: Option<&str>,
        thinking: Option<&str>,
        terminal: &mut Terminal,
    ) -> Result<(), CommandError> {
        self.waiting = None;
        if let Some(thinking) = thinking {
            let shown = self.thinking.clean.push(thinking);
            self.thinking.show(&shown, terminal);
        }
        if let Some(text) = text {
            let shown = self.answer.push(text);
            if !shown.is_empty() {
                self.thinking.end(terminal);
                terminal
                    .print(&shown)
                    .and_then(|()| terminal.flush())
                    .map_err(CommandError::Output)?;
            }
        }
        Ok(())
    }
}

impl Watch for Screen {
    fn event(
        &mut self,
        event: Option<&ChatEvent>,
        _: &RawValue,
        terminal: &mut Terminal,
    ) -> Result<(), CommandError> {
        let Some(event) = event else { return Ok(()) };
        match event {
            ChatEvent::Accepted { model, .. } => {
                self.model.clone_from(model);
                self.wait(format!("asking {}", sanitize::one_line(model)), terminal);
            }
            ChatEvent::Delta { text, thinking } => {
                self.delta(text.as_deref(), thinking.as_deref(), terminal)?;
            }
            ChatEvent::Usage { usage } => self.usage = Some(usage.clone()),
            ChatEvent::Done { usage, finish_reason, .. } => {
                self.finish_reason.clone_from(finish_reason);
                self.usage = usage.clone().or(self.usage.take());
            }
            _ => {}
        }
        if let Some(phase) = waiting::phase(event, &self.model) {
            // What is thought in another try stands apart.
            self.thinking.end(terminal);
            self.wait(phase, terminal);
        }
        Ok(())
    }

    fn tick(&mut self) {
        if let Some(waiting) = &mut self.waiting {
            waiting.tick();
        }
    }

    fn canceling(&mut self, terminal: &mut Terminal) -> Result<(), CommandError> {
        self.thinking.end(terminal);
        // Behind half a line it could not be read, nor be gone again.
        if terminal.is_interactive() {
            let rest = self.answer.finish();
            let shown = terminal.print(&rest).and_then(|()| terminal.flush());
            shown.map_err(CommandError::Output)?;
        }
        self.wait("canceling; Ctrl-C once more leaves".to_owned(), terminal);
        Ok(())
    }

    fn end(&mut self, terminal: &mut Terminal) -> Result<(), CommandError> {
        self.waiting = None;
        self.thinking.end(terminal);
        let rest = self.answer.finish();
        terminal.print(&rest).and_then(|()| terminal.flush()).map_err(CommandError::Output)
    }
}

/// For programs: an event a line, at once.
pub(super) struct Lines;

impl Watch for Lines {
    fn event(
        &mut self,
        _: Option<&ChatEvent>,
        raw: &RawValue,
        terminal: &mut Terminal,
    ) -> Result<(), CommandError> {
        let line = format!("{}\n", json::escaped(raw.get()));
        terminal.print_raw(&line).and_then(|()| terminal.flush()).map_err(CommandError::Output)
    }

    fn tick(&mut self) {}

    fn canceling(&mut self, _: &mut Terminal) -> Result<(), CommandError> {
        Ok(())
    }

    fn end(&mut self, _: &mut Terminal) -> Result<(), CommandError> {
        Ok(())
    }
}
