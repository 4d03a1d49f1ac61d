//! A progress bar for what takes long: on stderr, only on a terminal, only after a while.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Work that is done sooner shows no bar.
const PATIENCE: Duration = Duration::from_millis(400);

/// How far a piece of work is.
pub(crate) struct Progress {
    bar: ProgressBar,
    started: Instant,
    shown: bool,
}

impl Progress {
    /// A bar for `total` units, whose label is already clean.
    pub(crate) fn new(label: &str, total: u64, template: &str) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden());
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(label.to_owned());
        Self { bar, started: Instant::now(), shown: false }
    }

    /// For bytes.
    pub(crate) fn bytes(label: &str, total: u64) -> Self {
        Self::new(label, total, "{msg} [{bar:30}] {bytes}/{total_bytes}")
    }

    /// For records.
    pub(crate) fn records(label: &str) -> Self {
        Self::new(label, 0, "{msg} [{bar:30}] {pos}/{len} records")
    }

    /// So much is done.
    pub(crate) fn set(&mut self, done: u64, total: u64) {
        if !self.shown && self.started.elapsed() > PATIENCE {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
            self.shown = true;
        }
        self.bar.set_length(total);
        self.bar.set_position(done);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
