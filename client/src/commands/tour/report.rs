//! The report of the tour: its steps as they are finished, and its checks. The other files of the tour build on this one.

use std::time::Instant;

use serde_json::{Value, json};

use crate::command_context::CommandContext;
use crate::command_error::{CommandError, CommandResult};

/// The text of a step for people, and its numbers for programs.
pub(super) type StepReport = (String, Value);

/// Prints the steps of the tour as they are finished, and keeps them for `--json`.
pub(super) struct TourReport<'a, 'ctx> {
    ctx: &'a mut CommandContext<'ctx>,
    step_started: Instant,
    steps: Vec<Value>,
}

impl<'a, 'ctx> TourReport<'a, 'ctx> {
    pub(super) fn new(ctx: &'a mut CommandContext<'ctx>) -> Self {
        Self { ctx, step_started: Instant::now(), steps: Vec::new() }
    }

    /// Returns the finished steps as JSON.
    pub(super) fn into_steps(self) -> Vec<Value> {
        self.steps
    }

    /// Finishes a step and prints it with its duration, at once because people watch the tour.
    pub(super) fn step(&mut self, name: &str, (text, numbers): StepReport) -> CommandResult {
        let duration = self.step_started.elapsed();
        self.step_started = Instant::now();
        let ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        self.steps.push(json!({ "step": name, "ms": ms, "numbers": numbers }));
        if self.ctx.json() {
            return Ok(());
        }
        let (number, seconds) = (self.steps.len(), duration.as_secs_f64());
        let text = text.replace('\n', &format!("\n{:23}", ""));
        self.ctx.print_text(&format!("{number:>2}. {name:<8} {seconds:>6.2} s  {text}\n"))?;
        Ok(self.ctx.terminal.flush()?)
    }
}

/// Checks a claim of the tour.
///
/// **Errors**: the claim is false in this run; `failure` describes the failure.
pub(super) fn check(is_true: bool, failure: &str) -> CommandResult {
    if is_true { Ok(()) } else { Err(CommandError::Tour { failure: failure.to_owned() }) }
}
