//! The account of what an import could not carry over: one line a kind and reason, however often it happened.

use std::collections::HashMap;

use ollm_protocol::content::ImportLoss;

/// Kinds of losses that are named one by one; a hostile file could otherwise name as many as it has fields.
const MAX_KINDS: usize = 200;
/// Characters of a name or reason that are kept.
const MAX_CHARS: usize = 120;

/// Collects losses while a file is read.
#[derive(Debug, Default)]
pub(super) struct Losses {
    index: HashMap<(String, String), usize>,
    kinds: Vec<Kind>,
    further: u64,
}

#[derive(Debug)]
struct Kind {
    line: Option<u64>,
    what: String,
    reason: String,
    n_times: u64,
}

impl Losses {
    /// Adds one loss; a second one of the same kind and reason only counts.
    pub(super) fn add(&mut self, line: Option<u64>, what: &str, reason: &str) {
        let key = (shortened(what), shortened(reason));
        if let Some(&at) = self.index.get(&key) {
            self.kinds[at].n_times += 1;
        } else if self.kinds.len() == MAX_KINDS {
            self.further += 1;
        } else {
            let (what, reason) = key.clone();
            self.index.insert(key, self.kinds.len());
            self.kinds.push(Kind { line, what, reason, n_times: 1 });
        }
    }

    /// The losses in the order in which their kinds first appeared.
    pub(super) fn finish(self) -> Vec<ImportLoss> {
        let mut losses: Vec<_> = self
            .kinds
            .into_iter()
            .map(|kind| ImportLoss {
                line: kind.line,
                what: match kind.n_times {
                    1 => kind.what,
                    n => format!("{} ({n} times)", kind.what),
                },
                reason: kind.reason,
            })
            .collect();
        if self.further > 0 {
            losses.push(ImportLoss {
                line: None,
                what: format!("{} further losses", self.further),
                reason: format!("only the first {MAX_KINDS} kinds are named"),
            });
        }
        losses
    }
}

/// Text of a file ends up in a report that people read: no control characters, no endless names.
fn shortened(text: &str) -> String {
    let mut kept: String = text.chars().filter(|c| !c.is_control()).take(MAX_CHARS).collect();
    if kept.len() < text.len() && text.chars().nth(MAX_CHARS).is_some() {
        kept.push('…');
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_losses_are_one_line_with_a_count_and_the_first_place() {
        let mut losses = Losses::default();
        losses.add(Some(4), "signature", "not kept");
        losses.add(Some(5), "other", "not kept");
        losses.add(Some(6), "signature", "not kept");
        let found = losses.finish();
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].what, "signature (2 times)");
        assert_eq!(found[0].line, Some(4));
        assert_eq!(found[1].what, "other");
    }

    #[test]
    fn a_hostile_file_cannot_grow_the_report_without_bound() {
        let mut losses = Losses::default();
        for n in 0..10_000 {
            losses.add(None, &format!("field\u{1b}[31m{n}{}", "x".repeat(5_000)), "unknown");
        }
        let found = losses.finish();
        assert_eq!(found.len(), MAX_KINDS + 1);
        assert_eq!(found[MAX_KINDS].what, "9800 further losses");
        assert!(found.iter().all(|loss| loss.what.chars().count() <= MAX_CHARS + 1));
        assert!(found.iter().all(|loss| !loss.what.contains('\u{1b}')));
    }
}
