//! A turn on the terminal: the answer on stdout as it arrives, everything else on stderr if that is a terminal. With
//! `--json`, the events of the turn.

use std::time::{Duration, Instant};

use ollm_protocol::Seq;
use ollm_protocol::content::{CountKind, CutRecord};
use ollm_protocol::methods::chat::{AnswerCut, ChatEvent, ChatPhase, ChatUsage, WaitsFor};
use ollm_protocol::sanitize::{self, Sanitizer};
use serde_json::value::RawValue;

use super::fit::cut_warning;
use super::turn::TurnOutput;
use crate::command_error::CommandResult;
use crate::commands::context::window::{count_kind, reliability_suffix};
use crate::render::answer::AnswerOutput;
use crate::render::progress::Spinner;
use crate::render::terminal::Terminal;
use crate::render::units::{counted, grouped};
use crate::render::wrap::wrap;
use crate::render::{Style, escaped_json};

/// Turns the marks around pasted texts on and off.
const PASTE_MARKS_ON: &str = "\u{1b}[?2004h";
const PASTE_MARKS_OFF: &str = "\u{1b}[?2004l";
/// The longest time between two pieces of an answer before the wait is shown.
const STALL: Duration = Duration::from_secs(5);

/// Shows a turn to a person.
#[derive(Default)]
pub(super) struct Screen {
    model: String,
    answer: AnswerOutput,
    /// Set if lines are written once, for a reader that follows them.
    is_plain: bool,
    thinking: ThinkingText,
    spinner: Option<Spinner>,
    /// The wait that was shown before the process stopped, and its beginning.
    stopped_wait: Option<(String, Instant)>,
    /// The terminal marks pasted texts.
    marks_pastes: bool,
    usage: Option<ChatUsage>,
    /// The records of which the model was shown a part.
    cut: Vec<CutRecord>,
    finish_reason: String,
    /// The record of the message, once the daemon has it.
    message: Option<Seq>,
    /// The daemon has recorded the message.
    is_accepted: bool,
    /// The time of the last piece of the answer.
    last_delta: Option<Instant>,
    /// The notice that the answer stalls is shown.
    is_stalled: bool,
    /// A printed line says that the message waits for another answer.
    is_wait_shown: bool,
    /// Cut records are reported as they are known, also without a terminal.
    warns_of_cuts: bool,
}

/// The model's thinking, faint and apart from the answer.
#[derive(Default)]
struct ThinkingText {
    sanitizer: Sanitizer,
    is_shown: bool,
    ends_line: bool,
}

impl ThinkingText {
    fn show(&mut self, piece: &str, terminal: &Terminal) {
        let text = self.sanitizer.push(piece);
        // Some models that do not think send empty lines of thinking.
        let text = if self.is_shown { text.as_str() } else { text.trim_start() };
        if !text.is_empty() {
            terminal.eprint(&Style::Faint.paint(text));
            self.is_shown = true;
            self.ends_line = text.ends_with('\n');
        }
    }

    /// Ends an open line, for another output.
    fn end_line(&mut self, terminal: &Terminal) {
        if self.is_shown && !std::mem::replace(&mut self.ends_line, true) {
            terminal.eprint("\n");
        }
    }

    /// Ends the thinking with an empty line.
    fn end(&mut self, terminal: &Terminal) {
        if std::mem::take(&mut self.is_shown) {
            terminal.eprint(if self.ends_line { "\n" } else { "\n\n" });
        }
    }
}

impl Screen {
    /// Returns the screen of a turn; `is_plain` is set if nothing may be painted again.
    pub(super) fn new(is_plain: bool, terminal: &Terminal) -> Self {
        Self { answer: AnswerOutput::new(is_plain, terminal), is_plain, ..Self::default() }
    }

    /// Returns the screen of a question that gets one answer.
    pub(super) fn for_one_answer(is_plain: bool, terminal: &Terminal) -> Self {
        Self { warns_of_cuts: true, ..Self::new(is_plain, terminal) }
    }

    /// Turns the marks around pasted texts on or off; the line editor does that by itself.
    pub(super) fn mark_pastes(&mut self, is_on: bool, terminal: &mut Terminal) -> CommandResult {
        if !self.is_plain && terminal.out_is_terminal() {
            terminal.print_raw(if is_on { PASTE_MARKS_ON } else { PASTE_MARKS_OFF })?;
            terminal.flush()?;
            self.marks_pastes = is_on;
        }
        Ok(())
    }

    /// Returns the usage of the turn, after a line that explains a cut answer; `None` if the model was not called.
    pub(super) fn usage_line(&self) -> Option<String> {
        let usage = self.usage.as_ref()?;
        let line = usage_line(usage, &self.model, &self.cut);
        if self.finish_reason == "length" {
            return Some(format!("{}\n{line}", Style::Bad.paint(&cut_answer(usage))));
        }
        Some(line)
    }

    /// Returns whether the daemon has recorded the message.
    pub(super) const fn is_accepted(&self) -> bool {
        self.is_accepted
    }

    fn show_wait(&mut self, message: String, terminal: &Terminal) {
        if !terminal.err_is_terminal() {
            return;
        }
        match &mut self.spinner {
            _ if self.is_plain => terminal.eprintln(&message),
            Some(spinner) => spinner.set(message),
            None => self.spinner = Some(Spinner::new(message)),
        }
    }

    fn show_delta(
        &mut self,
        text: Option<&str>,
        thinking: Option<&str>,
        terminal: &mut Terminal,
    ) -> CommandResult {
        self.spinner = None;
        self.last_delta = Some(Instant::now());
        self.is_stalled = false;
        let is_open = self.thinking.is_shown;
        let thinking = thinking.filter(|text| is_open || !text.trim().is_empty());
        if let Some(thinking) = thinking.filter(|_| terminal.err_is_terminal()) {
            // The answer may go on behind it.
            if terminal.out_is_terminal() {
                self.answer.finish(terminal)?;
            }
            self.thinking.show(thinking, terminal);
        }
        if let Some(text) = text {
            if !text.trim().is_empty() {
                self.thinking.end(terminal);
            }
            self.answer.push(text, terminal)?;
        }
        Ok(())
    }

    /// Shows what has arrived, and after [`STALL`] without another piece that the answer stalls.
    fn show_stall(&mut self, since: Instant, terminal: &mut Terminal) -> CommandResult {
        self.answer.paint_if_due(terminal)?;
        if since.elapsed() > STALL && terminal.err_is_terminal() && !self.is_stalled {
            self.is_stalled = true;
            self.thinking.end_line(terminal);
            // The notice needs a line of its own.
            if terminal.out_is_terminal() {
                self.answer.make_room(terminal)?;
            }
            let message = format!("{} has stopped in its answer; Ctrl-C cancels", self.model);
            let message = sanitize::one_line(&message);
            if self.is_plain {
                terminal.eprintln(&message);
            } else {
                self.spinner = Some(Spinner::since(message, since));
            }
        }
        Ok(())
    }

    /// Returns the record of the message, once the daemon has it.
    pub(super) const fn message(&self) -> Option<Seq> {
        self.message
    }
}

impl TurnOutput for Screen {
    fn on_event(
        &mut self,
        event: Option<&ChatEvent>,
        _: &RawValue,
        terminal: &mut Terminal,
    ) -> CommandResult {
        let Some(event) = event else { return Ok(()) };
        match event {
            ChatEvent::Accepted { model, seq, .. } => {
                self.message = *seq;
                self.model.clone_from(model);
                self.is_accepted = true;
                if !self.is_plain {
                    self.show_wait(format!("asking {}", sanitize::one_line(model)), terminal);
                }
            }
            ChatEvent::Delta { text, thinking } => {
                self.show_delta(text.as_deref(), thinking.as_deref(), terminal)?;
            }
            ChatEvent::Cut { cut } => {
                if self.warns_of_cuts {
                    self.spinner = None;
                    terminal.eprintln(&cut_warning(*cut));
                }
                self.cut.retain(|known| known.seq != cut.seq);
                self.cut.push(*cut);
            }
            ChatEvent::Failover { from, to, message, .. } => {
                self.spinner = None;
                let [from, to, message] = [from, to, message].map(|text| sanitize::one_line(text));
                let text = format!("{from} does not answer, so {to} is asked: {message}");
                terminal.eprintln(&wrap(&text, terminal.err_columns(), 0));
            }
            ChatEvent::Usage { usage } => self.usage = Some(usage.clone()),
            ChatEvent::Done { usage, finish_reason, .. } => {
                self.finish_reason.clone_from(finish_reason);
                self.usage = usage.clone().or(self.usage.take());
            }
            _ => {}
        }
        if let Some(phase) = phase_text(event, &self.model) {
            // Separates the thinking of two attempts.
            self.thinking.end(terminal);
            self.show_wait(phase, terminal);
        }
        Ok(())
    }

    fn tick_in(&self) -> Option<Duration> {
        // Nothing is painted under a spinner.
        self.answer.paints_in().filter(|_| self.spinner.is_none())
    }

    fn on_tick(&mut self, terminal: &mut Terminal) -> CommandResult {
        match (&mut self.spinner, self.last_delta) {
            (Some(spinner), _) => spinner.tick(),
            (None, Some(since)) => self.show_stall(since, terminal)?,
            (None, None) => {}
        }
        Ok(())
    }

    fn on_wait(&mut self, terminal: &mut Terminal) {
        // Repeated waits are one, so that the time goes on, and so that a printed line is not printed again.
        if self.spinner.is_none() && !std::mem::replace(&mut self.is_wait_shown, self.is_plain) {
            let message = "another answer comes first; your message waits, Ctrl-C takes it back";
            self.show_wait(message.to_owned(), terminal);
        }
    }

    fn on_cancel(&mut self, terminal: &mut Terminal) -> CommandResult {
        self.thinking.end(terminal);
        // The spinner needs a line of its own to be readable, and to be removed.
        if terminal.out_is_terminal() {
            self.answer.finish(terminal)?;
        }
        self.show_wait("canceling; Ctrl-C again leaves".to_owned(), terminal);
        Ok(())
    }

    fn on_stop(&mut self, terminal: &mut Terminal) -> CommandResult {
        self.stopped_wait = self.spinner.take().map(Spinner::end);
        self.thinking.end_line(terminal);
        if terminal.out_is_terminal() {
            self.answer.make_room(terminal)?;
        }
        if self.marks_pastes {
            terminal.print_raw(PASTE_MARKS_OFF)?;
        }
        Ok(terminal.flush()?)
    }

    fn on_continue(&mut self, terminal: &mut Terminal) -> CommandResult {
        if self.marks_pastes {
            terminal.print_raw(PASTE_MARKS_ON)?;
        }
        if terminal.out_is_terminal() {
            self.answer.paint_again(terminal)?;
        }
        // No piece could be shown meanwhile.
        self.last_delta = self.last_delta.map(|_| Instant::now());
        let wait = self.stopped_wait.take();
        if wait.is_some() && terminal.out_is_terminal() {
            self.answer.make_room(terminal)?;
        }
        self.spinner = wait.map(|(message, since)| Spinner::since(message, since));
        Ok(terminal.flush()?)
    }

    fn on_end(&mut self, terminal: &mut Terminal) -> CommandResult {
        self.spinner = None;
        self.thinking.end(terminal);
        Ok(self.answer.finish(terminal)?)
    }
}

/// Prints the events of a turn for a program, one a line.
pub(super) struct JsonLines;

impl TurnOutput for JsonLines {
    fn on_event(
        &mut self,
        _: Option<&ChatEvent>,
        raw: &RawValue,
        terminal: &mut Terminal,
    ) -> CommandResult {
        terminal.print_raw(format!("{}\n", escaped_json(raw.get())))?;
        Ok(terminal.flush()?)
    }
}

/// Returns a phase of a turn in words; `None` for other events.
fn phase_text(event: &ChatEvent, model: &str) -> Option<String> {
    let ChatEvent::Phase { name, tokens, expected_ms, ahead, waits_for } = event else {
        return None;
    };
    let model = sanitize::one_line(model);
    Some(match name {
        ChatPhase::Queued => match ahead {
            _ if *waits_for == Some(WaitsFor::Limit) => {
                let seconds = grouped(expected_ms.unwrap_or_default().div_ceil(1000));
                format!("{model} takes no requests for {seconds} s")
            }
            _ if *waits_for == Some(WaitsFor::Server) => {
                let about = expected_ms.map(|ms| grouped(ms.div_ceil(1000)));
                let about =
                    about.map_or_else(String::new, |seconds| format!(", about {seconds} s"));
                format!("{model} finishes an earlier request{about}")
            }
            Some(ahead) => format!("{model} is busy: {} ahead", counted(*ahead, "request")),
            None => format!("{model} is busy"),
        },
        ChatPhase::Compacting => "compacting the context".to_owned(),
        ChatPhase::Loading => format!("loading {model}"),
        ChatPhase::Reading => {
            let tokens =
                tokens.map_or_else(String::new, |tokens| format!(" {}", counted(tokens, "token")));
            match expected_ms.map(|ms| ms.div_ceil(1000)).filter(|seconds| *seconds > 1) {
                Some(seconds) => format!("reading{tokens}, about {} s", grouped(seconds)),
                None => format!("reading{tokens}"),
            }
        }
        ChatPhase::Answering => format!("{model} answers"),
    })
}

/// Returns a line such as `Context: 5,234/6,963 (75 %) · qwen3:8b · 41.2 tokens/s`, which counts the answer too. With a
/// long answer that can be more than a prompt may have, up to the whole window.
fn usage_line(usage: &ChatUsage, model: &str, cut: &[CutRecord]) -> String {
    let used = usage.context_tokens + usage.answer_tokens.unwrap_or_default();
    let limit = usage.prompt_limit;
    let fill = match used.checked_sub(limit).filter(|over| *over > 0) {
        None => {
            let percent = (used * 100).checked_div(limit).unwrap_or_default();
            format!("{}/{} ({percent} %)", grouped(used), grouped(limit))
        }
        Some(over) => format!(
            "{} over the {} that the next prompt may have, so older parts give way",
            counted(over, "token"),
            grouped(limit)
        ),
    };
    let mut details: Vec<String> = cut.iter().map(cut_note).collect();
    if let Some(kind) = usage.count_kind.filter(|kind| *kind != CountKind::Exact) {
        details.push(count_kind(kind).to_owned());
    }
    details.push(sanitize::one_line(model));
    details.extend(speed(usage));
    if let Some(effective) = usage.effective_context.filter(|size| *size < usage.context_size) {
        details.push(format!(
            "the server's window has only {} of {} tokens",
            grouped(effective.into()),
            grouped(usage.context_size.into())
        ));
    }
    let n_recalled = usage.recalled.len() + usage.recalled_elsewhere.len();
    if n_recalled > 0 {
        details.push(format!("recalled {n_recalled}"));
    }
    let details = Style::Faint.paint(&format!(" · {}", details.join(" · ")));
    let compactions = match usage.compression_count {
        0 => String::new(),
        count => {
            let reliability = reliability_suffix(usage.reliability.as_ref());
            format!(" {}{reliability}", counted(count, "compaction"))
        }
    };
    format!("Context: {fill}{compactions}{details}")
}

/// Returns a note such as `#12 was cut to 2,000 of 5,000 tokens`.
fn cut_note(cut: &CutRecord) -> String {
    let (shown, total) = (grouped(cut.shown_tokens), grouped(cut.total_tokens));
    match cut.shown_tokens {
        0 => format!("#{} was left out: {total} tokens", cut.seq),
        _ => format!("#{} was cut to {shown} of {total} tokens", cut.seq),
    }
}

/// Explains an answer that was cut, and names the setting that limits answers.
fn cut_answer(usage: &ChatUsage) -> String {
    let window = grouped(usage.effective_context.unwrap_or(usage.context_size).into());
    let after = usage
        .answer_tokens
        .map_or_else(String::new, |tokens| format!(" after {}", counted(tokens, "token")));
    let go_on = "send 'go on' to continue it";
    match usage.cut_by {
        Some(AnswerCut::Call) => {
            format!("the answer was cut{after}, as the option answerLimit says; {go_on}")
        }
        Some(AnswerCut::Config) => {
            format!("the answer was cut{after}, as context.answerLimit says; {go_on}")
        }
        Some(AnswerCut::Window) | None => format!(
            "the answer was cut{after}: the window of {window} is full; {go_on}, or set \
             context.answerLimit to end answers earlier"
        ),
    }
}

#[expect(clippy::cast_precision_loss, reason = "one decimal is shown")]
fn speed(usage: &ChatUsage) -> Option<String> {
    let (tokens, ms) = (usage.answer_tokens?, usage.answering_ms.filter(|ms| *ms > 0)?);
    Some(format!("{:.1} tokens/s", tokens as f64 * 1000.0 / ms as f64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::plain;

    #[test]
    fn phase_names_the_wait_and_its_length() {
        let check = |name, tokens, expected_ms, ahead: Option<u64>, expect: &str| {
            let waits_for = ahead.is_none().then_some(WaitsFor::Server);
            let event = ChatEvent::Phase { name, tokens, expected_ms, ahead, waits_for };
            assert_eq!(phase_text(&event, "a\u{1b}[2J").as_deref(), Some(expect));
        };
        check(ChatPhase::Loading, None, None, None, "loading a");
        check(ChatPhase::Queued, None, None, Some(2), "a is busy: 2 requests ahead");
        let finishes = "a finishes an earlier request, about 26 s";
        check(ChatPhase::Queued, None, Some(25_400), None, finishes);
        check(
            ChatPhase::Reading,
            Some(5234),
            Some(11_400),
            None,
            "reading 5,234 tokens, about 12 s",
        );
        check(ChatPhase::Reading, Some(1), Some(400), None, "reading 1 token");
        let delta = ChatEvent::Delta { text: None, thinking: None };
        assert_eq!(phase_text(&delta, "a"), None);
    }

    #[test]
    fn usage_line_shows_how_full_the_context_is() {
        let mut usage = ChatUsage {
            context_tokens: 5234,
            prompt_limit: 6963,
            count_kind: Some(CountKind::Exact),
            answer_tokens: Some(412),
            answering_ms: Some(10_000),
            context_size: 8192,
            effective_context: Some(8192),
            ..ChatUsage::default()
        };
        let check = |usage: &ChatUsage, expect: &str| {
            assert_eq!(plain(&usage_line(usage, "qwen3:8b", &[])), expect);
        };
        check(&usage, "Context: 5,646/6,963 (81 %) · qwen3:8b · 41.2 tokens/s");
        usage.compression_count = 2;
        check(&usage, "Context: 5,646/6,963 (81 %) 2 compactions · qwen3:8b · 41.2 tokens/s");
        usage.compression_count = 0;
        usage.recalled = vec![ollm_protocol::Seq(3), ollm_protocol::Seq(9)];
        check(&usage, "Context: 5,646/6,963 (81 %) · qwen3:8b · 41.2 tokens/s · recalled 2");
        usage.recalled.clear();
        usage.count_kind = Some(CountKind::Estimated);
        usage.effective_context = Some(4096);
        check(
            &usage,
            "Context: 5,646/6,963 (81 %) · estimated · qwen3:8b · 41.2 tokens/s · the server's window has only 4,096 of 8,192 tokens",
        );
        assert_eq!(
            cut_answer(&usage),
            "the answer was cut after 412 tokens: the window of 4,096 is full; send 'go on' to continue it, or set context.answerLimit to end answers earlier"
        );
        usage.cut_by = Some(AnswerCut::Config);
        assert_eq!(
            cut_answer(&usage),
            "the answer was cut after 412 tokens, as context.answerLimit says; send 'go on' to continue it"
        );
        usage.cut_by = Some(AnswerCut::Call);
        assert_eq!(
            cut_answer(&usage),
            "the answer was cut after 412 tokens, as the option answerLimit says; send 'go on' to continue it"
        );
        check(&ChatUsage::default(), "Context: 0/0 (0 %) · qwen3:8b");
        let full = ChatUsage {
            context_tokens: 6_000,
            prompt_limit: 6_963,
            answer_tokens: Some(2_023),
            count_kind: Some(CountKind::Calibrated),
            ..ChatUsage::default()
        };
        check(
            &full,
            "Context: 1,060 tokens over the 6,963 that the next prompt may have, so older parts give way · estimated and calibrated · qwen3:8b",
        );
        let cut = |shown_tokens| CutRecord { seq: Seq(12), shown_tokens, total_tokens: 5000 };
        assert_eq!(
            plain(&usage_line(&ChatUsage::default(), "m", &[cut(2000), cut(0)])),
            "Context: 0/0 (0 %) · #12 was cut to 2,000 of 5,000 tokens · #12 was left out: 5,000 tokens · m"
        );
    }
}
