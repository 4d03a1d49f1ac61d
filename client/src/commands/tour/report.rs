//! The report of the tour: one step after another, as it is finished.

use std::time::Instant;

use serde_json::{Value, json};

use crate::command_context::CommandContext;
use crate::command_error::CommandError;

/// Prints the steps of the tour, or collects them for `--json`.
pub(super) struct TourReport<'a, 'ctx> {
    ctx: &'a mut CommandContext<'ctx>,
    started: Instant,
    step_started: Instant,
    steps: Vec<Value>,
}

impl<'a, 'ctx> TourReport<'a, 'ctx> {
    pub(super) fn new(ctx: &'a mut CommandContext<'ctx>, started: Instant) -> Self {
        Self { ctx, started, step_started: started, steps: Vec::new() }
    }

    /// Finishes a step and prints it with its duration, at once because people watch the tour.
    pub(super) fn step(
        &mut self,
        name: &str,
        text: &str,
        numbers: Value,
    ) -> Result<(), CommandError> {
        let duration = self.step_started.elapsed();
        self.step_started = Instant::now();
        let ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        self.steps.push(json!({ "step": name, "ms": ms, "numbers": numbers }));
        if self.ctx.json() {
            return Ok(());
        }
        let (number, seconds) = (self.steps.len(), duration.as_secs_f64());
        let text = text.replace('\n', &format!("\n{:22}", ""));
        self.ctx.print_text(&format!("{number}. {name:<8} {seconds:>6.2} s  {text}\n"))?;
        Ok(self.ctx.terminal.flush()?)
    }

    /// Finishes the tour.
    pub(super) fn finish(self) -> Result<(), CommandError> {
        let seconds = self.started.elapsed().as_secs_f64();
        if self.ctx.json() {
            return self.ctx.print_json(&json!({ "steps": self.steps, "seconds": seconds }));
        }
        self.ctx.print_text(&format!(
            "\nEvery check passed, in {seconds:.1} s. Your own sessions were not touched.\nNext: ollmctl chat\n"
        ))
    }
}
