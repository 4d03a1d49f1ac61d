//! The parser of goal markers in a model's text: `[GOAL] ...`, `[CHECKPOINT] ... - COMPLETED` and so on, each on a
//! line of its own.
//!
//! The parser tolerates any case, dashes, spacing, bullets and bold. It ignores markers in code fences, in lines that
//! are indented like code, in inline code and in quotes. It takes linear time and accepts every text.

use std::collections::HashMap;
use std::ops::Range;

use ollm_protocol::code_fence::CodeFence;
use ollm_protocol::content::{ArtifactAction, CheckpointStatus, GoalMarker};

use super::state::{MAX_ITEMS, on_one_line};

/// Maximum number of markers of one text. A model that writes more does not plan.
const MAX_MARKERS: usize = 100;
/// Maximum length of a marker's text in bytes: it is sent with every prompt.
const MAX_MARKER_BYTES: usize = 500;
/// Indentation of code, in columns.
const CODE_COLUMNS: usize = 4;
/// Bytes of the longest name of a marker with spaces around it; `next steps` has ten.
const MAX_NAME_BYTES: usize = 24;
/// Statuses that may stand behind the last dash of a marker.
const STATUSES: &[&str] = &["COMPLETED", "COMPLETE", "DONE", "IN PROGRESS", "PENDING", "LOCKED"];

/// Returns the markers of a text in order; all next steps of the text are one marker, the last.
///
/// `is_whole`: whether the text is complete. The last line of an incomplete text is ignored.
pub(crate) fn parse(text: &str, is_whole: bool) -> Vec<GoalMarker> {
    if !text.contains('[') {
        return Vec::new();
    }
    let text = if is_whole { text } else { text.rsplit_once('\n').map_or("", |(whole, _)| whole) };
    let (mut markers, mut next) = (Vec::new(), Vec::new());
    for paragraph in paragraphs(text) {
        let code = code_spans(text, &paragraph);
        for line in paragraph {
            let Some((kind, content)) = marker_at(text, line) else { continue };
            let is_code = code.iter().any(|span| span.contains(&content.start));
            if is_code || markers.len() >= MAX_MARKERS {
                continue;
            }
            match (kind, &text[content]) {
                (MarkerKind::Next, content) => next.extend(clean(content)),
                (kind, content) => markers.extend(marker(kind, content)),
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
enum MarkerKind {
    Goal,
    Checkpoint,
    Decision,
    Artifact,
    Next,
}

/// Returns the lines of each paragraph of a text, without fenced code and quotes.
fn paragraphs(text: &str) -> Vec<Vec<Range<usize>>> {
    let (mut paragraphs, mut current) = (Vec::new(), Vec::new());
    let mut fence: Option<CodeFence> = None;
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let range = start..start + line.len();
        start = range.end;
        let bare = line.trim();
        if let Some(open) = fence {
            if open.is_closed_by(bare) {
                fence = None;
            }
            continue;
        }
        let without_bullet = bare.trim_start_matches(['-', '*', '+', ' ']);
        fence = CodeFence::opened_by(bare).or_else(|| CodeFence::opened_by(without_bullet));
        if fence.is_some() || bare.is_empty() || bare.starts_with('>') {
            paragraphs.push(std::mem::take(&mut current));
        } else {
            current.push(range);
        }
    }
    paragraphs.push(current);
    paragraphs
}

/// Returns the ranges of inline code in a paragraph: from a run of backticks to the next run of the same length.
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

/// Returns the kind of the marker at the beginning of a line, and the range of the text behind it.
fn marker_at(text: &str, line: Range<usize>) -> Option<(MarkerKind, Range<usize>)> {
    let whole = &text[line.clone()];
    if indentation(whole) >= CODE_COLUMNS {
        return None;
    }
    let inside = without_list_signs(whole.trim_start()).strip_prefix('[')?;
    let close = inside.char_indices().take(MAX_NAME_BYTES).find(|(_, char)| *char == ']')?.0;
    let kind = kind_named(&inside[..close])?;
    let content = &inside[close + 1..];
    // `[goal](...)` and `[goal][1]` are links.
    if content.starts_with(['(', '[']) {
        return None;
    }
    Some((kind, line.end - content.len()..line.end))
}

fn indentation(line: &str) -> usize {
    let columns = line.chars().map_while(|char| match char {
        ' ' => Some(1),
        '\t' => Some(CODE_COLUMNS),
        _ => None,
    });
    columns.sum()
}

/// Returns a line without the signs of lists, headings and bold before its text.
fn without_list_signs(line: &str) -> &str {
    let rest = line.trim_start_matches(['-', '*', '+', '#', '_', '\u{2022}', ' ']);
    let digits = rest.trim_start_matches(|char: char| char.is_ascii_digit());
    let is_numbered = digits.len() < rest.len() && digits.starts_with(['.', ')']);
    if is_numbered { digits[1..].trim_start_matches(['*', '_', ' ']) } else { rest }
}

fn kind_named(name: &str) -> Option<MarkerKind> {
    let name = name.trim().to_ascii_lowercase();
    Some(match name.as_str() {
        "goal" => MarkerKind::Goal,
        "checkpoint" => MarkerKind::Checkpoint,
        "decision" => MarkerKind::Decision,
        "artifact" => MarkerKind::Artifact,
        "next" | "next step" | "next steps" => MarkerKind::Next,
        _ => return None,
    })
}

fn marker(kind: MarkerKind, content: &str) -> Option<GoalMarker> {
    let content = clean(content)?;
    let (text, status_word) = split_status(&content);
    let status = match status_word.as_deref() {
        Some("COMPLETED" | "COMPLETE" | "DONE") => Some(CheckpointStatus::Completed),
        Some("IN PROGRESS") => Some(CheckpointStatus::InProgress),
        Some("PENDING") => Some(CheckpointStatus::Pending),
        _ => None,
    };
    let description = text.to_owned();
    Some(match kind {
        MarkerKind::Goal => {
            let completed = status == Some(CheckpointStatus::Completed);
            GoalMarker::Goal { description, completed }
        }
        MarkerKind::Checkpoint => GoalMarker::Checkpoint { description, status },
        MarkerKind::Decision => {
            let locked = status_word.as_deref() == Some("LOCKED");
            GoalMarker::Decision { description, locked }
        }
        MarkerKind::Artifact => {
            let (did, path) = artifact(&content)?;
            GoalMarker::Artifact { did, path }
        }
        MarkerKind::Next => return None,
    })
}

/// Returns the text of a marker on one line without the signs around it, or `None` if it has no text.
fn clean(content: &str) -> Option<String> {
    let is_sign = |char: char| char.is_whitespace() || ['*', '_', ':'].contains(&char);
    let content = content.trim_start_matches(|char| is_sign(char) || is_dash(char));
    let content = content.trim_end_matches(['*', '_', ' ', '\r', '\n']);
    let content = on_one_line(content, MAX_MARKER_BYTES);
    // The model repeats the instruction to write markers.
    let is_placeholder = content.starts_with('<') && content.contains('>');
    (!is_placeholder && content.chars().any(char::is_alphanumeric)).then_some(content)
}

const fn is_dash(char: char) -> bool {
    matches!(char, '-' | '\u{2010}'..='\u{2015}' | '\u{2212}')
}

/// Splits `Add login - in_progress` into its text and `IN PROGRESS`.
fn split_status(content: &str) -> (&str, Option<String>) {
    /// Bytes of the longest status with the signs around it.
    const MAX_STATUS_BYTES: usize = 40;
    for (at, dash) in content.char_indices().rev() {
        if content.len() - at > MAX_STATUS_BYTES {
            break;
        }
        if !is_dash(dash) {
            continue;
        }
        let (text, tail) = (&content[..at], &content[at + dash.len_utf8()..]);
        let tail = tail.trim_matches(|char: char| !char.is_alphanumeric());
        let status = tail.replace(|char| is_dash(char) || char == '_', " ").to_uppercase();
        let status = status.split_whitespace().collect::<Vec<_>>().join(" ");
        // A hyphen within a word, as in `well-done`, begins no status unless that is in capitals.
        let is_apart = dash != '-' || text.ends_with(' ') || !tail.contains(char::is_lowercase);
        let text = text.trim_end_matches(|char: char| {
            is_dash(char) || char.is_whitespace() || ['*', '_'].contains(&char)
        });
        if STATUSES.contains(&status.as_str()) && is_apart && !text.is_empty() {
            return (text, Some(status));
        }
    }
    (content, None)
}

/// Splits `Created src/a.rs` into the action and the path.
fn artifact(content: &str) -> Option<(ArtifactAction, String)> {
    let (first, rest) = content.split_once([' ', ':']).unwrap_or((content, ""));
    let did = match first.to_lowercase().as_str() {
        "created" | "added" | "new" => Some(ArtifactAction::Created),
        "modified" | "changed" | "updated" | "edited" => Some(ArtifactAction::Modified),
        "deleted" | "removed" => Some(ArtifactAction::Deleted),
        _ => None,
    };
    let rest = if did.is_some() { rest } else { content };
    let rest = rest.trim_start_matches(|char: char| char.is_whitespace() || char == ':');
    let path = match rest.strip_prefix('`').and_then(|rest| rest.split_once('`')) {
        Some((path, _)) => path,
        // The words behind a dash explain the file.
        None => [" - ", " \u{2013} ", " \u{2014} "]
            .iter()
            .filter_map(|dash| rest.find(dash))
            .min()
            .map_or(rest, |end| &rest[..end]),
    };
    let path = path.trim().trim_matches(['"', '\'', ',', ';']);
    // Several words without an action are a remark.
    let is_path = !path.is_empty() && (did.is_some() || !path.contains(' '));
    is_path.then(|| (did.unwrap_or(ArtifactAction::Modified), path.to_owned()))
}
