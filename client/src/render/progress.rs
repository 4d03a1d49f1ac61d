//! Progress of long work on stderr: a bar for work of a known size, a spinner for a wait. Both appear only on a
//! terminal and only after a while.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Work that is done sooner shows no progress.
const DELAY: Duration = Duration::from_millis(400);
/// Redraws in a second: enough to show that a spinner moves.
const HERTZ: u8 = 5;

/// A line on stderr that appears after [`DELAY`] and is removed when the value is dropped.
struct DelayedBar {
    bar: ProgressBar,
    started: Instant,
    is_shown: bool,
}

impl DelayedBar {
    fn new(template: &str, message: &str) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> ").tick_chars("-\\|/ "));
        }
        bar.set_message(message.to_owned());
        Self { bar, started: Instant::now(), is_shown: false }
    }

    /// Shows the bar if it is time.
    fn show_if_due(&mut self) -> bool {
        if !self.is_shown && self.started.elapsed() > DELAY {
            self.bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(HERTZ));
            self.is_shown = true;
        }
        self.is_shown
    }
}

impl Drop for DelayedBar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// The progress of work whose size is known.
pub(crate) struct ProgressMeter(DelayedBar);

impl ProgressMeter {
    /// Returns a meter of bytes. The label is already sanitized.
    pub(crate) fn bytes(label: &str) -> Self {
        Self(DelayedBar::new("{msg} [{bar:30}] {bytes}/{total_bytes}", label))
    }

    /// Returns a meter of records. The label is already sanitized.
    pub(crate) fn records(label: &str) -> Self {
        Self(DelayedBar::new("{msg} [{bar:30}] {pos}/{len} records", label))
    }

    /// Returns a meter of files. The label is already sanitized.
    pub(crate) fn files(label: &str) -> Self {
        Self(DelayedBar::new("{msg} [{bar:30}] {pos}/{len} files", label))
    }

    pub(crate) fn set(&mut self, done: u64, total: u64) {
        self.0.show_if_due();
        self.0.bar.set_length(total);
        self.0.bar.set_position(done);
    }
}

/// A line that names the current wait.
pub(crate) struct Spinner {
    bar: DelayedBar,
    message: String,
}

impl Spinner {
    /// Starts a wait. The message is already sanitized.
    pub(crate) fn new(message: String) -> Self {
        Self { bar: DelayedBar::new("{spinner} {wide_msg}", &message), message }
    }

    /// Shows a wait that began at a time.
    pub(crate) fn since(message: String, started: Instant) -> Self {
        let mut spinner = Self::new(message);
        spinner.bar.started = started;
        spinner
    }

    /// Removes the line; returns the message and the beginning of the wait.
    pub(crate) fn end(self) -> (String, Instant) {
        (self.message, self.bar.started)
    }

    /// Starts the next wait.
    pub(crate) fn set(&mut self, message: String) {
        self.bar.started = Instant::now();
        self.bar.bar.set_message(message.clone());
        self.message = message;
    }

    /// Redraws the line; shows the time after two seconds.
    pub(crate) fn tick(&mut self) {
        if self.bar.show_if_due() {
            let seconds = self.bar.started.elapsed().as_secs();
            let time = if seconds > 1 { format!(" ({seconds} s)") } else { String::new() };
            self.bar.bar.set_message(format!("{}{time}", self.message));
            self.bar.bar.tick();
        }
    }
}
