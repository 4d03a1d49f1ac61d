//! What is waited for, on one line of stderr that is gone before the answer begins: only on a terminal, only after a
//! while.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use ollm_protocol::methods::chat::{ChatEvent, ChatPhase};
use ollm_protocol::sanitize;

use super::number::{counted, grouped};

/// What takes less is not worth a line.
const PATIENCE: Duration = Duration::from_millis(300);
/// Redraws a second at most: enough to show that something moves.
const HERTZ: u8 = 5;

/// The line.
pub(crate) struct Waiting {
    bar: ProgressBar,
    began: Instant,
    what: String,
    is_shown: bool,
}

impl Waiting {
    /// Waits for something from now on.
    pub(crate) fn new(what: &str) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg}") {
            bar.set_style(style.tick_chars("-\\|/ "));
        }
        Self { bar, began: Instant::now(), what: what.to_owned(), is_shown: false }
    }

    /// Waits for something else.
    pub(crate) fn set(&mut self, what: String) {
        self.what = what;
        self.began = Instant::now();
        self.bar.set_message(self.what.clone());
    }

    /// Shows that time passes.
    pub(crate) fn tick(&mut self) {
        let waited = self.began.elapsed();
        if !self.is_shown && waited > PATIENCE {
            self.bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(HERTZ));
            self.is_shown = true;
        }
        if self.is_shown {
            let seconds = waited.as_secs();
            let so_far = if seconds > 1 { format!(" ({seconds} s)") } else { String::new() };
            self.bar.set_message(format!("{}{so_far}", self.what));
            self.bar.tick();
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// A step of a turn in words; `None` for an event that is none.
pub(crate) fn phase(event: &ChatEvent, model: &str) -> Option<String> {
    let ChatEvent::Phase { name, tokens, expected_ms, ahead } = event else { return None };
    let model = sanitize::one_line(model);
    Some(match name {
        ChatPhase::Queued => match ahead {
            Some(ahead) => {
                format!("{model} is busy: {} before this one", counted(*ahead, "request"))
            }
            None => format!("{model} is busy"),
        },
        ChatPhase::Compacting => "making the context smaller".to_owned(),
        ChatPhase::Loading => format!("loading {model}"),
        ChatPhase::Reading => {
            let what =
                tokens.map_or_else(String::new, |tokens| format!(" {}", counted(tokens, "token")));
            // Below a second nobody waits.
            match expected_ms.map(|ms| ms.div_ceil(1000)).filter(|seconds| *seconds > 1) {
                Some(seconds) => format!("reading{what}, about {} s", grouped(seconds)),
                None => format!("reading{what}"),
            }
        }
        ChatPhase::Answering => format!("{model} answers"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_says_what_it_waits_for_and_how_long() {
        let check = |name, tokens, expected_ms, ahead, expect: &str| {
            let event = ChatEvent::Phase { name, tokens, expected_ms, ahead };
            assert_eq!(phase(&event, "a\u{1b}[2J").as_deref(), Some(expect));
        };
        check(ChatPhase::Loading, None, None, None, "loading a");
        check(ChatPhase::Queued, None, None, Some(2), "a is busy: 2 requests before this one");
        check(
            ChatPhase::Reading,
            Some(5234),
            Some(11_400),
            None,
            "reading 5,234 tokens, about 12 s",
        );
        check(ChatPhase::Reading, Some(1), Some(400), None, "reading 1 token");
        let delta = ChatEvent::Delta { text: None, thinking: None };
        assert_eq!(phase(&delta, "a"), None);
    }
}
