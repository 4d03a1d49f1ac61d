//! How far a conversation can be trusted after compactions. Pure.
//!
//! The score is a rule of thumb by the size of the model and the number of compactions, and calls every small model
//! unreliable from the start; so what warns is what was measured: how much of what matters is still there.

use ollm_protocol::content::{CountKind, Reliability, ReliabilityLevel, Retention};

use super::compact::retention::percent;

/// What each compaction takes from the score.
const PENALTY: f64 = 0.15;
/// What is left of it after many.
const LEAST: f64 = 0.30;
/// Parameters in billions from which on a factor holds.
const FACTORS: [(f64, f64); 4] = [(70.0, 0.95), (30.0, 0.85), (13.0, 0.70), (7.0, 0.50)];
/// The factor of smaller models, and of those whose size nobody knows.
const SMALLEST: f64 = 0.30;
/// A share of files or identifiers below this is worth a warning.
const WARN_PERCENT: u32 = 50;

/// What the score depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Evidence {
    /// Parameters of the model, where the server says.
    pub parameters: Option<u64>,
    /// Compactions on the active path.
    pub n_compactions: u32,
    /// How tokens are counted.
    pub count_kind: CountKind,
    /// What survived the last compaction.
    pub retention: Option<Retention>,
}

/// Judges a conversation.
pub(crate) fn judge(evidence: &Evidence) -> Reliability {
    let Evidence { parameters, n_compactions, count_kind, retention } = *evidence;
    let confidence = match count_kind {
        CountKind::Exact => 1.0,
        CountKind::Calibrated => 0.95,
        CountKind::Estimated => 0.85,
    };
    let compacted = (1.0 - PENALTY * f64::from(n_compactions)).max(LEAST);
    let score = factor(parameters) * compacted * confidence;
    let percent_score = (score * 1000.0).round() / 10.0;
    let level = match percent_score {
        85.0.. => ReliabilityLevel::High,
        60.0.. => ReliabilityLevel::Medium,
        40.0.. => ReliabilityLevel::Low,
        _ => ReliabilityLevel::Critical,
    };
    let icon = match level {
        ReliabilityLevel::High => "🟢",
        ReliabilityLevel::Medium => "🟡",
        ReliabilityLevel::Low => "🟠",
        ReliabilityLevel::Critical => "🔴",
    };
    Reliability {
        score: percent_score,
        level,
        icon: icon.to_owned(),
        warning: retention.as_ref().and_then(|retention| warning(retention, n_compactions)),
        retained_percent: retention.as_ref().map(percent),
        retention,
    }
}

#[expect(clippy::cast_precision_loss, reason = "models have far fewer than 2^52 parameters")]
fn factor(parameters: Option<u64>) -> f64 {
    let billions = parameters.unwrap_or(0) as f64 / 1e9;
    let found = FACTORS.iter().find(|(from, _)| billions >= *from);
    found.map_or(SMALLEST, |(_, factor)| *factor)
}

/// What is lost, in words; `None` while what matters is there.
fn warning(retention: &Retention, n_compactions: u32) -> Option<String> {
    let Retention { task, pins, decisions, files, identifiers } = *retention;
    let mut lost = Vec::new();
    let whole =
        [("the original task", task), ("pinned messages", pins), ("locked decisions", decisions)];
    for (what, (kept, all)) in whole {
        if kept < all {
            lost.push(format!("{what} ({kept} of {all})"));
        }
    }
    for (what, (kept, all)) in [("changed files", files), ("names", identifiers)] {
        if kept * 100 < all * WARN_PERCENT {
            lost.push(format!("{what} ({kept} of {all})"));
        }
    }
    if lost.is_empty() {
        return None;
    }
    let times = if n_compactions == 1 { "once" } else { "more than once" };
    Some(format!(
        "the conversation was compacted {times}, and the model is no longer shown all of: {}; ask for what you miss, \
         pin it, or begin a new session",
        lost.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(billions: f64, n_compactions: u32, count_kind: CountKind) -> (f64, ReliabilityLevel) {
        let parameters = Some((billions * 1e9) as u64);
        let evidence = Evidence { parameters, n_compactions, count_kind, retention: None };
        let Reliability { score, level, warning, .. } = judge(&evidence);
        assert_eq!(warning, None);
        (score, level)
    }

    #[test]
    fn the_score_is_the_documented_product() {
        use ReliabilityLevel::{Critical, High, Low, Medium};
        let check = |billions, n, kind, score, level| {
            assert_eq!(judged(billions, n, kind), (score, level), "{billions} {n}");
        };
        check(70.0, 0, CountKind::Exact, 95.0, High);
        check(70.0, 1, CountKind::Exact, 80.8, Medium);
        check(32.0, 0, CountKind::Exact, 85.0, High);
        check(32.0, 0, CountKind::Estimated, 72.2, Medium);
        check(13.0, 1, CountKind::Exact, 59.5, Low);
        check(8.0, 0, CountKind::Calibrated, 47.5, Low);
        check(3.2, 0, CountKind::Exact, 30.0, Critical);
        check(70.0, 100, CountKind::Exact, 28.5, Critical);
        let unknown = Evidence {
            parameters: None,
            n_compactions: 0,
            count_kind: CountKind::Exact,
            retention: None,
        };
        assert_eq!(judge(&unknown).score, 30.0);
    }

    #[test]
    fn only_what_was_measured_warns() {
        let told = |retention: Retention| {
            let evidence = Evidence {
                parameters: None,
                n_compactions: 1,
                count_kind: CountKind::Exact,
                retention: Some(retention),
            };
            judge(&evidence).warning
        };
        let good = Retention {
            task: (1, 1),
            pins: (2, 2),
            decisions: (0, 0),
            files: (5, 6),
            identifiers: (40, 64),
        };
        assert_eq!(told(good), None);
        let text =
            told(Retention { pins: (1, 2), identifiers: (3, 64), ..good }).expect("a warning");
        assert!(text.contains("pinned messages (1 of 2), names (3 of 64)"), "{text}");
    }
}
