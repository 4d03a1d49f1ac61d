//! The reliability of a conversation after compactions. Pure.
//!
//! The score is what the last compaction was measured to keep, which a person can change. Without a measurement it is a
//! rule of thumb from the size of the model and the number of compactions, which calls every small model unreliable.

use ollm_protocol::content::{CountKind, Reliability, ReliabilityLevel, Retention};

use super::compact::retained_percent;

/// The part of the score that each compaction costs.
const COMPACTION_PENALTY: f64 = 0.15;
/// The lowest factor for any number of compactions.
const MIN_COMPACTION_FACTOR: f64 = 0.30;
/// The factor of models with at least so many billions of parameters.
const MODEL_FACTORS: [(f64, f64); 4] = [(70.0, 0.95), (30.0, 0.85), (13.0, 0.70), (7.0, 0.50)];
/// The factor of smaller models and of models of unknown size.
const MIN_MODEL_FACTOR: f64 = 0.30;
/// The levels by their lowest scores, with their symbols.
const LEVELS: [(f64, ReliabilityLevel, &str); 4] = [
    (85.0, ReliabilityLevel::High, "🟢"),
    (60.0, ReliabilityLevel::Medium, "🟡"),
    (40.0, ReliabilityLevel::Low, "🟠"),
    (0.0, ReliabilityLevel::Critical, "🔴"),
];
/// The percentage of kept files or identifiers below which a warning is given.
const WARN_PERCENT: u32 = 50;
/// The fewest files or identifiers whose share says something: one name that is lost is no sign.
const MIN_SHARED: u32 = 5;

/// The percentage of kept values below which a warning is given.
const WARN_VALUES_PERCENT: u32 = 80;

/// The values that a reliability score depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReliabilityEvidence {
    /// Parameters of the model, if the server reports them.
    pub parameters: Option<u64>,
    /// Compactions on the active path.
    pub n_compactions: u32,
    pub count_kind: CountKind,
    /// The retention of the last compaction.
    pub retention: Option<Retention>,
}

/// Returns the reliability of a conversation.
pub(crate) fn assess_reliability(evidence: &ReliabilityEvidence) -> Reliability {
    let (score, is_lossless, reason) = match &evidence.retention {
        Some(retention) => measured(retention, evidence.n_compactions),
        None => (rule_of_thumb(evidence), false, unmeasured(evidence)),
    };
    let reached = LEVELS.into_iter().find(|(least, ..)| is_lossless || score >= *least);
    let (_, level, icon) = reached.unwrap_or(LEVELS[3]);
    Reliability { score, level, icon: icon.to_owned(), reason, retention: evidence.retention }
}

/// Returns the share of what was measured that is kept, in percent, whether nothing is lost that a person should know of, and
/// the reason in words. What is lost decides the share.
fn measured(retention: &Retention, n_compactions: u32) -> (f64, bool, String) {
    let lost = lost_items(retention).map(|(_, (kept, all))| kept * 100 / all).min();
    let score = lost.unwrap_or(u32::MAX).min(retained_percent(retention));
    let kept = items(retention).filter(|(_, (_, all), _)| *all > 0);
    let kept: Vec<_> =
        kept.map(|(what, (kept, all), _)| format!("{what} ({kept} of {all})")).collect();
    let reason = retention_warning(retention, n_compactions).unwrap_or_else(|| match &*kept {
        [] => "the last compaction left out nothing that is measured".to_owned(),
        kept => format!("the model is still shown: {}", kept.join(", ")),
    });
    (f64::from(score), lost.is_none(), reason)
}

/// Returns the reason for a score that is not measured.
fn unmeasured(evidence: &ReliabilityEvidence) -> String {
    let size = match evidence.parameters {
        Some(parameters) => format!("{:.1} billion parameters", billions(parameters)),
        None => "unknown size".to_owned(),
    };
    let times = match evidence.n_compactions {
        1 => "one compaction".to_owned(),
        n => format!("{n} compactions"),
    };
    format!(
        "what the last compaction kept was not measured; this is a rule of thumb for a model of {size} after {times}"
    )
}

/// Returns the product of the factors in percent.
fn rule_of_thumb(evidence: &ReliabilityEvidence) -> f64 {
    let ReliabilityEvidence { parameters, n_compactions, count_kind, .. } = *evidence;
    let confidence = match count_kind {
        CountKind::Exact => 1.0,
        CountKind::Calibrated => 0.95,
        CountKind::Estimated => 0.85,
    };
    let compactions =
        (1.0 - COMPACTION_PENALTY * f64::from(n_compactions)).max(MIN_COMPACTION_FACTOR);
    (model_factor(parameters) * compactions * confidence * 1000.0).round() / 10.0
}

#[expect(clippy::cast_precision_loss, reason = "models have far fewer than 2^52 parameters")]
fn billions(parameters: u64) -> f64 {
    parameters as f64 / 1e9
}

fn model_factor(parameters: Option<u64>) -> f64 {
    let billions = billions(parameters.unwrap_or(0));
    let found = MODEL_FACTORS.iter().find(|(from, _)| billions >= *from);
    found.map_or(MIN_MODEL_FACTOR, |(_, factor)| *factor)
}

/// Returns the measured items: their name, how many are kept and how many there are, and the percentage below which too many
/// are lost.
fn items(retention: &Retention) -> impl Iterator<Item = (&'static str, (u32, u32), u32)> {
    let Retention { task, pins, decisions, files, identifiers, values, facts } = *retention;
    let counts = [
        ("the original task", task, 100),
        ("pinned messages", pins, 100),
        ("locked decisions", decisions, 100),
        ("changed files", files, WARN_PERCENT),
        ("names", identifiers, WARN_PERCENT),
        ("numbers, paths and names of the notes", values, WARN_VALUES_PERCENT),
        ("facts that you stated", facts, WARN_VALUES_PERCENT),
    ];
    counts.into_iter()
}

/// Returns the items of which too many are lost.
fn lost_items(retention: &Retention) -> impl Iterator<Item = (&'static str, (u32, u32))> {
    let is_lost = |(_, (kept, all), percent): &(_, (u32, u32), _)| {
        kept * 100 < all * percent && (*percent != WARN_PERCENT || *all >= MIN_SHARED)
    };
    items(retention).filter(is_lost).map(|(what, counts, _)| (what, counts))
}

/// Returns a warning that names what is lost, or `None` if little is.
pub(crate) fn retention_warning(retention: &Retention, n_compactions: u32) -> Option<String> {
    let lost: Vec<_> = lost_items(retention)
        .map(|(what, (kept, all))| format!("{what} ({kept} of {all})"))
        .collect();
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

    fn score(billions: f64, n_compactions: u32, count_kind: CountKind) -> (f64, ReliabilityLevel) {
        let parameters = Some((billions * 1e9) as u64);
        let evidence =
            ReliabilityEvidence { parameters, n_compactions, count_kind, retention: None };
        let Reliability { score, level, reason, .. } = assess_reliability(&evidence);
        assert!(reason.contains("rule of thumb"), "{reason}");
        (score, level)
    }

    #[test]
    fn score_is_the_documented_product() {
        use ReliabilityLevel::{Critical, High, Low, Medium};
        let check = |billions, n, kind, expect, level| {
            assert_eq!(score(billions, n, kind), (expect, level), "{billions} {n}");
        };
        check(70.0, 0, CountKind::Exact, 95.0, High);
        check(70.0, 1, CountKind::Exact, 80.8, Medium);
        check(32.0, 0, CountKind::Exact, 85.0, High);
        check(32.0, 0, CountKind::Estimated, 72.2, Medium);
        check(13.0, 1, CountKind::Exact, 59.5, Low);
        check(8.0, 0, CountKind::Calibrated, 47.5, Low);
        check(3.2, 0, CountKind::Exact, 30.0, Critical);
        check(70.0, 100, CountKind::Exact, 28.5, Critical);
        let unknown = ReliabilityEvidence {
            parameters: None,
            n_compactions: 0,
            count_kind: CountKind::Exact,
            retention: None,
        };
        assert_eq!(assess_reliability(&unknown).score, 30.0);
    }

    #[test]
    fn reason_of_a_rule_of_thumb_names_its_values() {
        let check = |parameters, n_compactions, expect: &str| {
            let count_kind = CountKind::Exact;
            let evidence =
                ReliabilityEvidence { parameters, n_compactions, count_kind, retention: None };
            let reason = assess_reliability(&evidence).reason;
            let begin = "what the last compaction kept was not measured; this is a rule of thumb for a model of";
            assert_eq!(reason, format!("{begin} {expect}"));
        };
        check(Some(596_049_920), 1, "0.6 billion parameters after one compaction");
        check(Some(8_030_000_000), 2, "8.0 billion parameters after 2 compactions");
        check(None, 3, "unknown size after 3 compactions");
    }

    #[test]
    fn measured_retention_is_the_score_and_its_reason() {
        use ReliabilityLevel::{Critical, High, Low, Medium};
        let assess = |retention: Retention| {
            let evidence = ReliabilityEvidence {
                parameters: None,
                n_compactions: 1,
                count_kind: CountKind::Exact,
                retention: Some(retention),
            };
            let Reliability { score, level, reason, .. } = assess_reliability(&evidence);
            ((score, level), reason)
        };
        let good = Retention {
            task: (1, 1),
            pins: (2, 2),
            decisions: (0, 0),
            files: (5, 6),
            identifiers: (40, 64),
            values: (24, 30),
            facts: (0, 0),
        };
        let check = |retention, expect, part: &str| {
            let (found, reason) = assess(retention);
            assert_eq!(found, expect, "{reason}");
            assert!(reason.contains(part), "{reason}");
        };
        check(
            good,
            (80.0, High),
            "still shown: the original task (1 of 1), pinned messages (2 of 2)",
        );
        check(Retention::default(), (100.0, High), "left out nothing that is measured");
        let lost = Retention { pins: (1, 2), identifiers: (3, 64), ..good };
        check(lost, (4.0, Critical), "pinned messages (1 of 2), names (3 of 64); ask for");
        check(Retention { identifiers: (0, 1), ..good }, (80.0, High), "names (0 of 1)");
        check(Retention { pins: (1, 2), ..good }, (50.0, Low), "no longer shown all of: pinned");
        check(Retention { values: (23, 30), ..good }, (76.0, Medium), "of the notes (23 of 30)");
        check(Retention { facts: (7, 30), ..good }, (23.0, Critical), "you stated (7 of 30)");
    }
}
