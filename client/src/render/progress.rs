//! Progress of long work on stderr: a bar for work of a known size, a spinner for a wait. Both appear only on a
//! terminal and only after a while.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Work that is done sooner shows no bar.
const BAR_DELAY: Duration = Duration::from_millis(400);
/// A shorter wait shows no spinner.
const SPINNER_DELAY: Duration = Duration::from_millis(300);
/// Redraws of a spinner in a second: enough to show that it moves.
const SPINNER_HERTZ: u8 = 5;

/// The progress of work whose size is known.
pub(crate) struct ProgressMeter {
    bar: ProgressBar,
    started: Instant,
    is_shown: bool,
}

impl ProgressMeter {
    /// Returns a meter of bytes. The label is already sanitized.
    pub(crate) fn bytes(label: &str, total: u64) -> Self {
        Self::new(label, total, "{msg} [{bar:30}] {bytes}/{total_bytes}")
    }

    /// Returns a meter of records. The label is already sanitized.
    pub(crate) fn records(label: &str) -> Self {
        Self::new(label, 0, "{msg} [{bar:30}] {pos}/{len} records")
    }

    fn new(label: &str, total: u64, template: &str) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden());
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(label.to_owned());
        Self { bar, started: Instant::now(), is_shown: false }
    }

    pub(crate) fn set(&mut self, done: u64, total: u64) {
        if !self.is_shown && self.started.elapsed() > BAR_DELAY {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
            self.is_shown = true;
        }
        self.bar.set_length(total);
        self.bar.set_position(done);
    }
}

impl Drop for ProgressMeter {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// A line that names what the program waits for, removed again when it is dropped.
pub(crate) struct Spinner {
    bar: ProgressBar,
    started: Instant,
    message: String,
    is_shown: bool,
}

impl Spinner {
    /// Starts a wait. The message is already sanitized.
    pub(crate) fn new(message: String) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg}") {
            bar.set_style(style.tick_chars("-\\|/ "));
        }
        let spinner = Self { bar, started: Instant::now(), message, is_shown: false };
        spinner.bar.set_message(spinner.message.clone());
        spinner
    }

    /// Starts the next wait.
    pub(crate) fn set(&mut self, message: String) {
        self.started = Instant::now();
        self.bar.set_message(message.clone());
        self.message = message;
    }

    /// Redraws the line; from the second second on it shows the time.
    pub(crate) fn tick(&mut self) {
        let waited = self.started.elapsed();
        if !self.is_shown && waited > SPINNER_DELAY {
            self.bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(SPINNER_HERTZ));
            self.is_shown = true;
        }
        if self.is_shown {
            let seconds = waited.as_secs();
            let time = if seconds > 1 { format!(" ({seconds} s)") } else { String::new() };
            self.bar.set_message(format!("{}{time}", self.message));
            self.bar.tick();
        }
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
