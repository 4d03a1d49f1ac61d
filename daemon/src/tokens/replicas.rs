//! Replicas behind one address that count differently, found by the counts of the server.
//!
//! One fit explains all counts of one server whose texts are counted exactly. The templates of two replicas differ by the
//! same number of tokens in each prompt, and their counts come in turns; those of a server that changed do not go back.
//! Must not know models or servers.

use super::linear_fit::{LinearFit, PromptObservation};

/// The number of newest observations that are compared. More take longer: each division into two parts is tried.
pub(super) const WINDOW: usize = 8;
/// The least number of counts of each of two replicas. With fewer, two fits explain any counts.
const MIN_OF_EACH: usize = 3;
/// The least number of times that the counts go from one replica to the other within a conversation. Two conversations in
/// turns may differ by the same tokens as well, for example by blanks of a system prompt that the template removes.
const MIN_SWITCHES: usize = 3;
/// The least difference in tokens. A single one can be that of texts that begin with a line feed.
pub(super) const MIN_DIFFERENCE: u64 = 2;

/// Returns which of the observations were made by replicas that count fewer tokens, if the newest ones are those of two
/// replicas that count differently.
pub(super) fn lower_counts(observations: &[PromptObservation]) -> Option<Vec<bool>> {
    let newest = &observations[observations.len().saturating_sub(WINDOW)..];
    let is_usable = newest.len() >= 2 * MIN_OF_EACH
        && newest.last().is_some_and(|last| last.missed > 0)
        && !newest.iter().any(PromptObservation::is_estimated);
    if !is_usable || LinearFit::new(newest).errors(newest).all(|error| error == Some(0)) {
        return None;
    }
    // The bit of each observation that the next one continues.
    let continued = newest.iter().skip(1).enumerate();
    let continued = continued.fold(0, |sum, (at, next)| sum | u32::from(next.continues) << at);
    let divisions = (1..1_u32 << newest.len())
        .filter(|division| may_be_replicas(*division, newest.len(), continued));
    let (fit, difference) = divisions.into_iter().find_map(|division| {
        let is_lower = |at: usize| division >> at & 1 == 1;
        let part = |lower: bool| -> Vec<PromptObservation> {
            let numbered = newest.iter().enumerate();
            numbered.filter(|(at, _)| is_lower(*at) == lower).map(|(_, one)| *one).collect()
        };
        let (upper, lower) = (part(false), part(true));
        let fit = LinearFit::new(&upper);
        let difference = fit.errors(&lower).next()??;
        let is_found = difference >= MIN_DIFFERENCE.cast_signed()
            && fit.errors(&upper).all(|error| error == Some(0))
            && fit.errors(&lower).all(|error| error == Some(difference))
            && is_redundant(&upper, &lower);
        is_found.then_some((fit, difference))
    })?;
    Some(fit.errors(observations).map(|error| error == Some(difference)).collect())
}

/// Returns whether the lower counts are of such prompts as several of the upper ones: else their difference may be that of
/// a part that one upper prompt alone shares with them.
fn is_redundant(upper: &[PromptObservation], lower: &[PromptObservation]) -> bool {
    (0..upper.len()).all(|without| {
        let mut others = upper.to_vec();
        others.remove(without);
        LinearFit::new(&others).errors(lower).all(|error| error.is_some())
    })
}

/// Returns whether a division of `n` observations, with a bit for each, has enough of both parts, in turns.
const fn may_be_replicas(division: u32, n: usize, continued: u32) -> bool {
    let n_lower = division.count_ones() as usize;
    let n_switches = ((division ^ division >> 1) & continued).count_ones() as usize;
    n_lower >= MIN_OF_EACH && n - n_lower >= MIN_OF_EACH && n_switches >= MIN_SWITCHES
}
