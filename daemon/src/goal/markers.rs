//! The markers in what a model said: `[GOAL] ...`, `[CHECKPOINT] ... - COMPLETED` and so on, each on a line of its own.
//!
//! Tolerant of case, dashes, spacing, bullets and bold. What stands in a code fence, in a line that is indented like
//! code, in inline code or in a quote is no marker. Linear in the length of the text; no text is refused.

use std::collections::HashMap;
use std::ops::Range;

use ollm_protocol::content::{ArtifactAction, CheckpointStatus, GoalMarker};

use super::{MAX_ITEMS, on_one_line};

/// Most markers of one text; what a model writes beyond is no plan any more.
const MAX_MARKERS: usize = 100;
/// The longest text of one marker, in bytes; the rest is cut. It is sent with every prompt.
const MAX_MARKER_BYTES: usize = 500;
/// Columns of indentation from which on a line is code.
const CODE_COLUMNS: usize = 4;

/// The markers of a text, in order; the next steps of one text are one marker, the last.
///
/// `is_whole`: the text came to its end; without it the last line is not believed, because it may be half of one.
pub(crate) fn parse(text: &str, is_whole: bool) -> Vec<GoalMarker> {
    if !text.contains('[') {
        return Vec::new();
    }
    let text = if is_whole { text } else { text.rsplit_once('\n').map_or("", |(whole, _)| whole) };
    let (mut markers, mut next) = (Vec::new(), Vec::new());
    for paragraph in paragraphs(text) {
        let code = code_spans(text, &paragraph);
        for line in paragraph {
            let Some((kind, at)) = marker_at(text, line) else { continue };
            if code.iter().any(|span| span.contains(&at.start)) || markers.len() >= MAX_MARKERS {
                continue;
            }
            match (kind, &text[at]) {
                (Kind::Next, said) => next.extend(plain(said)),
                (kind, said) => markers.extend(read(kind, said)),
            }
        }
    }
    if !next.is_empty() {
        next.truncate(MAX_ITEMS);
        markers.push(GoalMarker::Next { steps: next });
    }
    markers
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Goal,
    Checkpoint,
    Decision,
    Artifact,
    Next,
}

/// The lines of a text that are no code and no quote, by paragraphs.
fn paragraphs(text: &str) -> Vec<Vec<Range<usize>>> {
    let (mut paragraphs, mut current) = (Vec::new(), Vec::new());
    let mut fence: Option<(char, usize)> = None;
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let range = start..start + line.len();
        start = range.end;
        let bare = line.trim();
        if let Some((sign, length)) = fence {
            if closes(bare, sign, length) {
                fence = None;
            }
            continue;
        }
        let unlisted = bare.trim_start_matches(['-', '*', '+', ' ']);
        fence = opens(bare).or_else(|| opens(unlisted));
        if fence.is_some() || bare.is_empty() || bare.starts_with('>') {
            paragraphs.push(std::mem::take(&mut current));
        } else {
            current.push(range);
        }
    }
    paragraphs.push(current);
    paragraphs
}

/// The sign and length of the fence that a line opens.
fn opens(line: &str) -> Option<(char, usize)> {
    let sign = line.chars().next().filter(|sign| ['`', '~'].contains(sign))?;
    let rest = line.trim_start_matches(sign);
    let length = line.len() - rest.len();
    // Backticks that come again on the line are inline code.
    let is_inline = sign == '`' && rest.contains('`');
    (length >= 3 && !is_inline).then_some((sign, length))
}

fn closes(line: &str, sign: char, length: usize) -> bool {
    line.len() >= length && line.chars().all(|char| char == sign)
}

/// Where inline code stands in a paragraph: between two runs of equally many backticks.
fn code_spans(text: &str, paragraph: &[Range<usize>]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for line in paragraph {
        for (at, _) in text[line.clone()].match_indices('`') {
            let at = line.start + at;
            match runs.last_mut() {
                Some(last) if last.end == at => last.end = at + 1,
                _ => runs.push(at..at + 1),
            }
        }
    }
    let mut later = HashMap::new();
    let mut closer = vec![None; runs.len()];
    for (at, run) in runs.iter().enumerate().rev() {
        closer[at] = later.insert(run.len(), at);
    }
    let (mut spans, mut at) = (Vec::new(), 0);
    while at < runs.len() {
        match closer[at] {
            Some(end) => {
                spans.push(runs[at].start..runs[end].end);
                at = end + 1;
            }
            None => at += 1,
        }
    }
    spans
}

/// The marker that a line begins with, and where what it says stands.
fn marker_at(text: &str, line: Range<usize>) -> Option<(Kind, Range<usize>)> {
    let whole = &text[line.clone()];
    if columns(whole) >= CODE_COLUMNS {
        return None;
    }
    let rest = unlisted(whole.trim_start());
    let inside = rest.strip_prefix('[')?;
    // The longest name has fourteen letters.
    let close = inside.char_indices().take(24).find(|(_, char)| *char == ']')?.0;
    let kind = kind_of(&inside[..close])?;
    let said = &inside[close + 1..];
    // A link, `[goal](...)` or `[goal][1]`, is none.
    if said.starts_with(['(', '[']) {
        return None;
    }
    let start = line.end - said.len();
    Some((kind, start..line.end))
}

fn columns(line: &str) -> usize {
    let mut columns = 0;
    for char in line.chars() {
        match char {
            ' ' => columns += 1,
            '\t' => columns += CODE_COLUMNS,
            _ => break,
        }
    }
    columns
}

/// A line without what lists, headings and bold put before its text.
fn unlisted(line: &str) -> &str {
    let rest = line.trim_start_matches(['-', '*', '+', '#', '_', '\u{2022}', ' ']);
    let digits = rest.trim_start_matches(|char: char| char.is_ascii_digit());
    let is_numbered = digits.len() < rest.len() && digits.starts_with(['.', ')']);
    if is_numbered { digits[1..].trim_start_matches(['*', '_', ' ']) } else { rest }
}

fn kind_of(name: &str) -> Option<Kind> {
    let name = name.trim().to_ascii_lowercase();
    Some(match name.as_str() {
        "goal" => Kind::Goal,
        "checkpoint" => Kind::Checkpoint,
        "decision" => Kind::Decision,
        "artifact" => Kind::Artifact,
        "next" | "next step" | "next steps" => Kind::Next,
        _ => return None,
    })
}

fn read(kind: Kind, said: &str) -> Option<GoalMarker> {
    let said = plain(said)?;
    let (text, word) = split_word(&said);
    let status = match word.as_deref() {
        Some("COMPLETED" | "COMPLETE" | "DONE") => Some(CheckpointStatus::Completed),
        Some("IN PROGRESS") => Some(CheckpointStatus::InProgress),
        Some("PENDING") => Some(CheckpointStatus::Pending),
        _ => None,
    };
    let description = text.to_owned();
    Some(match kind {
        Kind::Goal => {
            let completed = status == Some(CheckpointStatus::Completed);
            GoalMarker::Goal { description, completed }
        }
        Kind::Checkpoint => GoalMarker::Checkpoint { description, status },
        Kind::Decision => {
            GoalMarker::Decision { description, locked: word.as_deref() == Some("LOCKED") }
        }
        Kind::Artifact => {
            let (did, path) = artifact(&said)?;
            GoalMarker::Artifact { did, path }
        }
        Kind::Next => return None,
    })
}

/// What a marker says, on one line and without what stands around it; `None` where it says nothing.
fn plain(said: &str) -> Option<String> {
    let around = |char: char| char.is_whitespace() || ['*', '_', ':'].contains(&char);
    let said = said.trim_start_matches(|char| around(char) || is_dash(char));
    let said = on_one_line(said.trim_end_matches(['*', '_', ' ', '\r', '\n']), MAX_MARKER_BYTES);
    // A model that repeats how markers are written has said nothing yet.
    let is_placeholder = said.starts_with('<') && said.contains('>');
    (!is_placeholder && said.chars().any(char::is_alphanumeric)).then_some(said)
}

const fn is_dash(char: char) -> bool {
    matches!(char, '-' | '\u{2010}'..='\u{2015}' | '\u{2212}')
}

/// Divides `Add login - IN PROGRESS` into its text and its word, written as `IN PROGRESS`.
fn split_word(said: &str) -> (&str, Option<String>) {
    /// Bytes that a word and the signs around it have at most.
    const MAX_WORD_BYTES: usize = 40;
    for (at, dash) in said.char_indices().rev() {
        if said.len() - at > MAX_WORD_BYTES {
            break;
        }
        if !is_dash(dash) {
            continue;
        }
        let (text, tail) = (&said[..at], &said[at + dash.len_utf8()..]);
        let tail = tail.trim_matches(|char: char| !char.is_alphanumeric());
        let word = tail.replace(|char| is_dash(char) || char == '_', " ").to_uppercase();
        let word = word.split_whitespace().collect::<Vec<_>>().join(" ");
        // A hyphen inside a word, as in `well-done`, parts nothing, unless capitals say so.
        let parts = dash != '-' || text.ends_with(' ') || tail.chars().all(|c| !c.is_lowercase());
        let text = text.trim_end_matches(|char: char| {
            is_dash(char) || char.is_whitespace() || ['*', '_'].contains(&char)
        });
        if WORDS.contains(&word.as_str()) && parts && !text.is_empty() {
            return (text, Some(word));
        }
    }
    (said, None)
}

/// What may stand behind the last dash.
const WORDS: &[&str] = &["COMPLETED", "COMPLETE", "DONE", "IN PROGRESS", "PENDING", "LOCKED"];

/// Divides `Created src/a.rs` into what was done and to which file.
fn artifact(said: &str) -> Option<(ArtifactAction, String)> {
    let (first, rest) = said.split_once([' ', ':']).unwrap_or((said, ""));
    let did = match first.to_lowercase().as_str() {
        "created" | "added" | "new" => Some(ArtifactAction::Created),
        "modified" | "changed" | "updated" | "edited" => Some(ArtifactAction::Modified),
        "deleted" | "removed" => Some(ArtifactAction::Deleted),
        _ => None,
    };
    let rest = if did.is_some() { rest } else { said };
    let rest = rest.trim_start_matches(|char: char| char.is_whitespace() || char == ':');
    let path = match rest.strip_prefix('`').and_then(|rest| rest.split_once('`')) {
        Some((path, _)) => path,
        // What stands behind a dash explains the file.
        None => [" - ", " \u{2013} ", " \u{2014} "]
            .iter()
            .filter_map(|dash| rest.find(dash))
            .min()
            .map_or(rest, |end| &rest[..end]),
    };
    let path = path.trim().trim_matches(['"', '\'', ',', ';']);
    // Words without an action are a remark and no path.
    let is_path = !path.is_empty() && (did.is_some() || !path.contains(' '));
    is_path.then(|| (did.unwrap_or(ArtifactAction::Modified), path.to_owned()))
}
