//! The window bar: how full the context window was at each call of the model, over the whole session.
//!
//! A first pass over the records collects the calls, of which neighbors are joined so that a session of any length has
//! few bars. The bars are drawn before the second pass, which writes the messages.

use std::fmt::Write as _;

use ollm_protocol::content::{Record, RecordBody};
use serde::{Deserialize, Serialize};

/// The most bars. More of them are narrower than a pixel on a small screen, and make cursors longer.
const MAX_BARS: usize = 160;
/// The width of a bar, and the height of a full window, in units of the drawing.
const BAR_WIDTH: usize = 10;
const FULL_HEIGHT: u64 = 100;
/// The share of a window from which a bar has the color of a full one, in percent.
const ALMOST_FULL_PERCENT: u64 = 90;

/// The model calls of a session, or groups of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::session::export) struct WindowBar {
    /// Set if all records were seen.
    is_complete: bool,
    bars: Vec<Bar>,
    /// The calls in each bar but the last, as a power of two.
    doublings: u32,
    /// The calls in the last bar.
    n_last: u64,
    /// The last message, which the next call answered with.
    message: u64,
    /// The window of the newest epoch, in tokens; 0 if unknown.
    window: u32,
    /// Set if a compaction follows the last call.
    compacted: bool,
}

/// The fullest of some successive calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Bar {
    seq: u64,
    tokens: u32,
    window: u32,
    /// Set if a compaction precedes one of the calls.
    compacted: bool,
}

impl WindowBar {
    pub(in crate::session::export) const fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Returns whether the numbers are those of a bar that was collected, however wrong.
    pub(in crate::session::export) const fn is_valid(&self) -> bool {
        self.bars.len() <= MAX_BARS && self.doublings < 64
    }

    /// Adds the call that a record counts, if any.
    pub(in crate::session::export) fn collect(&mut self, record: Record) {
        let seq = record.seq.0;
        match record.into_body() {
            Some(RecordBody::Message(_)) => self.message = seq,
            Some(RecordBody::Epoch(epoch)) => self.window = epoch.context_size,
            Some(RecordBody::Compaction(compaction)) => {
                self.compacted = true;
                self.window = compaction.epoch.map_or(self.window, |epoch| epoch.context_size);
            }
            Some(RecordBody::Usage(usage)) => {
                let tokens = usage.prompt_tokens.saturating_add(usage.answer_tokens);
                let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
                let compacted = std::mem::take(&mut self.compacted);
                self.add(Bar { seq: self.message, tokens, window: self.window, compacted });
            }
            _ => {}
        }
    }

    fn add(&mut self, call: Bar) {
        if self.bars.is_empty() || self.n_last >= 1 << self.doublings {
            if self.bars.len() == MAX_BARS {
                self.bars =
                    self.bars.chunks(2).map(|pair| joined(pair[0], pair[pair.len() - 1])).collect();
                self.doublings = (self.doublings + 1).min(62);
            }
            self.bars.push(call);
            self.n_last = 1;
        } else if let Some(last) = self.bars.last_mut() {
            *last = joined(*last, call);
            self.n_last += 1;
        }
    }

    /// Draws the bars. `window` is that of the session, in tokens, for calls whose own is unknown.
    pub(super) fn draw(&mut self, window: Option<u32>, out: &mut String) {
        self.is_complete = true;
        if self.bars.len() < 2 {
            return;
        }
        let most = self.bars.iter().map(|bar| bar.tokens).max().unwrap_or_default().max(1);
        let has_window = self.bars.iter().all(|bar| bar.window > 0) || window.is_some();
        let (width, height) = (self.bars.len() * BAR_WIDTH, FULL_HEIGHT);
        let _ = writeln!(
            out,
            "<figure>\n<svg viewBox=\"0 0 {width} {height}\" preserveAspectRatio=\"none\" role=\"img\" \
             aria-label=\"tokens of each answer and its prompt\">"
        );
        for (n, bar) in self.bars.iter().enumerate() {
            let whole = if bar.window > 0 { bar.window } else { window.unwrap_or(most).max(1) };
            let x = n * BAR_WIDTH;
            bar.draw(x, u64::from(whole), has_window, out);
        }
        out.push_str("</svg>\n<figcaption>");
        let n_compactions = self.bars.iter().filter(|bar| bar.compacted).count();
        out.push_str(if has_window {
            "How full the context window was at each answer"
        } else {
            "Tokens of each answer with its prompt"
        });
        if n_compactions > 0 {
            out.push_str("; a line marks a compaction");
        }
        out.push_str(". A click leads to the answer.</figcaption>\n</figure>\n");
        self.bars = Vec::new();
    }
}

impl Bar {
    fn draw(&self, x: usize, whole: u64, has_window: bool, out: &mut String) {
        let Self { seq, tokens, .. } = *self;
        let percent = (u64::from(tokens) * 100).div_ceil(whole);
        let height = percent.clamp(1, FULL_HEIGHT);
        let class = match percent {
            ALMOST_FULL_PERCENT.. if has_window => " class=\"full\"",
            _ => "",
        };
        let share = if has_window { format!(" of {whole}, {percent} %") } else { String::new() };
        let note = if self.compacted { ", after a compaction" } else { "" };
        let _ = writeln!(
            out,
            "<a href=\"#r{seq}\"><title>#{seq}: {tokens} tokens{share}{note}</title>\
             <rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{height}\"{class}></rect></a>",
            x + 1,
            FULL_HEIGHT - height,
            BAR_WIDTH - 2,
        );
        if self.compacted {
            let _ = writeln!(
                out,
                "<rect class=\"cut\" x=\"{x}\" y=\"0\" width=\"2\" height=\"{FULL_HEIGHT}\"></rect>"
            );
        }
    }
}

/// Joins two bars; the fuller one counts.
fn joined(a: Bar, b: Bar) -> Bar {
    let fuller = if b.tokens > a.tokens { b } else { a };
    Bar { compacted: a.compacted || b.compacted, ..fuller }
}

#[cfg(test)]
mod tests {
    use ollm_protocol::content::Usage;
    use ollm_protocol::{Seq, Timestamp};

    use super::*;

    fn call(bar: &mut WindowBar, message: u64, prompt_tokens: u64) {
        bar.message = message;
        let usage = Usage { prompt_tokens, ..Usage::default() };
        let at = Timestamp::from_unix_ms(0);
        bar.collect(Record::new(Seq(message + 1), None, at, RecordBody::Usage(usage)));
    }

    #[test]
    fn calls_become_bars_with_their_share_of_the_window() {
        let mut bar = WindowBar::default();
        call(&mut bar, 2, 250);
        bar.compacted = true;
        call(&mut bar, 4, 950);
        let mut out = String::new();
        bar.draw(Some(1000), &mut out);
        assert!(bar.is_complete());
        assert!(out.contains("<title>#2: 250 tokens of 1000, 25 %</title>"), "{out}");
        assert!(out.contains("y=\"75\" width=\"8\" height=\"25\">"), "{out}");
        assert!(out.contains("950 tokens of 1000, 95 %, after a compaction"), "{out}");
        assert!(out.contains("height=\"95\" class=\"full\">"), "{out}");
        assert_eq!(out.matches("class=\"cut\"").count(), 1);
    }

    #[test]
    fn single_call_has_no_drawing() {
        let (mut bar, mut out) = (WindowBar::default(), String::new());
        call(&mut bar, 2, 250);
        bar.draw(Some(1000), &mut out);
        assert_eq!(out, "");
    }

    #[test]
    fn long_session_has_few_bars_and_keeps_its_peak() {
        let mut bar = WindowBar::default();
        for seq in 0..100_000 {
            call(&mut bar, seq, if seq == 77_777 { 5000 } else { 10 });
            assert!(bar.is_valid());
        }
        assert!((MAX_BARS / 2..=MAX_BARS).contains(&bar.bars.len()));
        let peak = bar.bars.iter().find(|bar| bar.tokens == 5000).unwrap();
        assert_eq!(peak.seq, 77_777);
        let mut out = String::new();
        bar.draw(None, &mut out);
        assert!(out.len() < 64 * 1024);
    }
}
