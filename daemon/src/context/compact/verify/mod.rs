//! The check of a summarizer's answer, and the use of an answer that broke off.
//!
//! A model's text is used only if it is a summary: not the echo of its instructions, not an answer to the conversation,
//! and with most of the values of the notes that it updates. Lines that it lost nevertheless are carried over.

use std::collections::HashSet;

use super::carry::{carry_over, kept_values};
use super::defuse::find_obeyed;
use super::grounds::{Grounds, words};
use super::mend::{is_json, is_placeholder, mended};
use super::numbers::*;
use super::request::{EXAMPLE_VALUE, INSTRUCTIONS, SummaryOptions, SummaryRequest};
use super::summary::{Section, Summary, drop_replaced, fit, without_bullet};
use crate::tokens::Counter;

/// The sections that an answer reaches before it is long enough to be used, although it broke off.
const REQUIRED: [Section; 2] = [Section::Goal, Section::Progress];

/// The reason why an answer is rejected. A retry sends its text to the model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RejectedSummary {
    #[error("the summary is empty")]
    Empty,
    /// The answer holds text that a model or a chat template would obey.
    #[error("the summary holds {what}")]
    Obeyed { what: &'static str },
    #[error("the summary is JSON instead of headings and bullets")]
    Json,
    /// The answer has no headings, and does not tell what happened.
    #[error("the text is an answer to the conversation and not notes of it")]
    Answer,
    #[error("the summary has fewer than {MIN_LINES} lines")]
    TooShort,
    /// A line repeats the instructions or the example of the request, or holds a place for a text.
    #[error("the summary repeats the instructions instead of following them: {line}")]
    Echo { line: String },
    #[error("the summary repeats its own lines: {line}")]
    Repeated { line: String },
    /// Most of the names and numbers are in no record.
    #[error("the summary names what the conversation does not: {values}")]
    Invented { values: String },
    /// Fewer than two thirds of the values of the earlier notes are left.
    #[error("the summary lost these of the previous notes: {lost}")]
    Forgot { lost: String },
    /// The answer reached its maximum length before a section.
    #[error("the summary was too long and broke off before the section {}", section.title())]
    BrokeOff { section: Section },
    /// The shortest form of the summary is not shorter than the text that it replaces.
    #[error("the summary has {tokens} tokens in place of {replaced}")]
    Longer { tokens: u64, replaced: u64 },
}

/// The limits of a summary's size, in tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SummaryLimits {
    /// Tokens of the records or summaries that it replaces.
    pub replaced: u64,
    /// Tokens that it may have.
    pub target: u64,
}

/// Returns the answer to a request as a summary, with the lines of the earlier notes that it lost, cut to the limits.
///
/// `is_cut`: whether the answer reached its maximum length. Its last line is then dropped. `options`: those of the request.
pub(crate) fn verify_summary(
    answer: &str,
    is_cut: bool,
    request: SummaryRequest<'_>,
    options: &SummaryOptions<'_>,
    counter: &Counter,
    limits: SummaryLimits,
) -> Result<Summary, RejectedSummary> {
    if answer.trim().is_empty() {
        return Err(RejectedSummary::Empty);
    }
    if let Some(what) = find_obeyed(answer) {
        return Err(RejectedSummary::Obeyed { what });
    }
    if is_json(answer) {
        return Err(RejectedSummary::Json);
    }
    let text = if is_cut { without_last_line(answer) } else { answer };
    let summary = mended(text, request.material());
    let grounds = Grounds::new(request, options);
    if is_cut {
        let begun = summary.clone().unwrap_or_default();
        check_lines(&begun, request, &grounds)?;
        if let Some(section) = first_missing(&begun) {
            return Err(RejectedSummary::BrokeOff { section });
        }
    }
    let mut summary = summary.ok_or(RejectedSummary::Answer)?;
    check_lines(&summary, request, &grounds)?;
    match summary.all_lines().count() {
        0 => return Err(RejectedSummary::Empty),
        n_lines if n_lines < MIN_LINES => return Err(RejectedSummary::TooShort),
        _ => drop_repeated(&mut summary),
    }
    for previous in request.previous() {
        let kept = kept_values(previous, &summary);
        if kept.is_too_few() && !is_cut {
            return Err(RejectedSummary::Forgot { lost: kept.named() });
        }
    }
    cut_to_limits(&with_earlier(summary, request), counter, limits)
}

/// Returns the whole lines of an answer that reached its maximum length, or `None` if they are no summary.
///
/// `options`: those of the request.
pub(crate) fn partial_summary(
    answer: &str,
    request: SummaryRequest<'_>,
    options: &SummaryOptions<'_>,
) -> Option<Summary> {
    let mut summary = Summary::parse(without_last_line(answer));
    let is_clean = || check_lines(&summary, request, &Grounds::new(request, options)).is_ok();
    let is_usable = find_obeyed(answer).is_none() && is_clean();
    drop_repeated(&mut summary);
    (is_usable && !summary.is_empty()).then_some(summary)
}

/// Returns a partial summary with the sections that it did not reach taken from others, from the first that has them.
///
/// A section that the summary left out before it broke off stays left out, unless it is required.
pub(crate) fn complete_summary(
    partial: &Summary,
    others: &[&Summary],
    request: SummaryRequest<'_>,
    counter: &Counter,
    limits: SummaryLimits,
) -> Result<Summary, RejectedSummary> {
    let mut summary = partial.clone();
    let has = |section: &Section| !partial.lines(*section).is_empty();
    let reached = Section::ALL.iter().rposition(has).unwrap_or_default();
    for (at, section) in Section::ALL.into_iter().enumerate() {
        if has(&section) || (at < reached && !REQUIRED.contains(&section)) {
            continue;
        }
        let lines = others.iter().map(|other| other.lines(section)).find(|lines| !lines.is_empty());
        *summary.lines_mut(section) = lines.unwrap_or_default().to_vec();
    }
    cut_to_limits(&with_earlier(summary, request), counter, limits)
}

/// Returns a summary with the lines of the earlier notes that it lost.
fn with_earlier(summary: Summary, request: SummaryRequest<'_>) -> Summary {
    // The newer of two notes decides what the older one may add.
    request.previous().into_iter().rev().fold(summary, |summary, one| carry_over(one, &summary))
}

/// Fails for lines that repeat the request or each other, and for names and numbers that are invented.
fn check_lines(
    summary: &Summary,
    request: SummaryRequest<'_>,
    grounds: &Grounds,
) -> Result<(), RejectedSummary> {
    let instructions = INSTRUCTIONS.map(|text| format!(" {} ", words(text)));
    let knows_example = request.material().contains(EXAMPLE_VALUE)
        || request.previous().iter().any(|one| one.render().contains(EXAMPLE_VALUE));
    let is_echo = |line: &str| {
        let said = words(line);
        if limits_length(&said, request) || grounds.is_about_the_task(&said) {
            return true;
        }
        let is_said = |text: &String| text.contains(&format!(" {said} "));
        (said.split(' ').count() >= MIN_ECHOED_WORDS && instructions.iter().any(is_said))
            || (!knows_example && line.contains(EXAMPLE_VALUE))
            || is_placeholder(line)
    };
    let short = |line: &str| without_bullet(line).chars().take(80).collect();
    let is_question = |line: &str| {
        let text = without_bullet(line);
        text.starts_with('#') && text.ends_with(['?', '？'])
    };
    // The questions of the conversation as headlines, each with an answer.
    if summary.all_lines().filter(|(_, line)| is_question(line)).count() >= MIN_ANSWERED {
        return Err(RejectedSummary::Answer);
    }
    if let Some((_, line)) = summary.all_lines().find(|(_, line)| is_echo(line)) {
        return Err(RejectedSummary::Echo { line: short(line) });
    }
    if let Some(values) = grounds.invented(summary) {
        return Err(RejectedSummary::Invented { values });
    }
    let mut known = HashSet::new();
    let lines: Vec<&str> = summary.all_lines().map(|(_, line)| line).collect();
    let repeated: Vec<&&str> = lines.iter().filter(|line| !known.insert(words(line))).collect();
    let (least, divisor) = REPEATED;
    match repeated.first() {
        Some(line) if repeated.len() >= least && repeated.len() * divisor >= lines.len() => {
            Err(RejectedSummary::Repeated { line: short(line) })
        }
        _ => Ok(()),
    }
}

/// Returns whether a line repeats the length that the request asks for: a number of words that the conversation does not
/// name.
fn limits_length(said: &str, request: SummaryRequest<'_>) -> bool {
    let all: Vec<&str> = said.split(' ').collect();
    let mut pairs = all
        .windows(2)
        .filter(|pair| pair[1] == "words" && pair[0].chars().all(|char| char.is_ascii_digit()));
    pairs.any(|pair| {
        let limit = format!(" {} words ", pair[0]);
        let names = |text: &str| format!(" {} ", words(text)).contains(&limit);
        !names(request.material()) && !request.previous().iter().any(|one| names(&one.render()))
    })
}

/// Drops the few lines of a section that say the same as an earlier one.
fn drop_repeated(summary: &mut Summary) {
    for section in Section::ALL {
        let mut known = HashSet::new();
        summary.lines_mut(section).retain(|line| {
            let said = words(line);
            said.is_empty() || known.insert(said)
        });
    }
    drop_replaced(summary.lines_mut(Section::Progress));
}

fn first_missing(summary: &Summary) -> Option<Section> {
    REQUIRED.into_iter().find(|section| summary.lines(*section).is_empty())
}

fn cut_to_limits(
    whole: &Summary,
    counter: &Counter,
    limits: SummaryLimits,
) -> Result<Summary, RejectedSummary> {
    let SummaryLimits { replaced, target } = limits;
    let summary = fit(whole, counter, target.min(replaced.saturating_sub(1)));
    let is_lost =
        |section: &Section| summary.lines(*section).is_empty() && !whole.lines(*section).is_empty();
    if summary.is_empty() || REQUIRED.iter().any(is_lost) {
        let tokens = u64::from(counter.count_text(&summary.render()));
        return Err(RejectedSummary::Longer { tokens, replaced });
    }
    Ok(summary)
}

fn without_last_line(text: &str) -> &str {
    text.trim_end().rfind('\n').map_or(text, |end| &text[..end])
}

#[cfg(test)]
mod tests;
