//! Mending: an answer in another form than the one that was asked for becomes a summary, if its sections can be recognized.
//!
//! Six headings in any language and form are the six sections by their position; a missing heading is an empty section;
//! a plain narrative is Progress. Everything else is left to the verification.

use crate::facts::for_each_sentence_of_line;
use crate::languages::{WordClass, texts};

use super::numbers::*;
use super::summary::{Section, Summary, unwrapped, without_bullet, without_number};
use super::values::{SearchedText, values};

/// Returns the summary that an answer is meant to be, or `None` if it is an answer to the conversation.
///
/// `material`: the records that the answer is about, by which a narrative is recognized.
pub(super) fn mended(answer: &str, material: &str) -> Option<Summary> {
    let text = unwrapped(answer);
    let by_name = Summary::parse(text);
    let n_named = text.lines().filter_map(Summary::heading_of).count();
    if n_named < Section::ALL.len()
        && let Some(summary) = by_position(text)
    {
        return Some(summary);
    }
    if n_named > 0 {
        return Some(by_name);
    }
    is_narrative(text, material).then(|| narrative(text))
}

/// Returns a narrative as Progress, each sentence as a line.
fn narrative(text: &str) -> Summary {
    let mut summary = Summary::default();
    for line in text.lines().map(without_bullet) {
        for_each_sentence_of_line(line, &mut |sentence| {
            summary.push(Section::Progress, &format!("- {}", sentence.trim()));
        });
    }
    summary.tidied()
}

/// A form of headings: returns the title that a line begins with, and the text behind it.
type HeadingForm = fn(&str) -> Option<(&str, &str)>;

/// The ways in which models write headings.
const FORMS: [HeadingForm; 4] =
    [|line| marked(line, "## "), |line| marked(line, "### "), bold, with_colon];

/// Returns the summary of a text with six headings of one form.
fn by_position(text: &str) -> Option<Summary> {
    let n_headings = |form: &HeadingForm| text.lines().filter(|line| form(line).is_some()).count();
    let form = FORMS.iter().find(|form| n_headings(form) == Section::ALL.len())?;
    let mut summary = Summary::default();
    let mut sections = Section::ALL.into_iter();
    let mut current = None;
    for line in text.lines() {
        if let Some((_, rest)) = form(line) {
            current = sections.next();
            if let Some(section) = current
                && !rest.is_empty()
            {
                summary.push(section, rest);
            }
        } else if let Some(section) = current {
            summary.push(section, line.trim_end());
        }
    }
    Some(summary.tidied())
}

fn marked<'a>(line: &'a str, mark: &str) -> Option<(&'a str, &'a str)> {
    Some((line.strip_prefix(mark)?.trim(), ""))
}

/// Returns the bold words that a line begins with, and the text behind them.
fn bold(line: &str) -> Option<(&str, &str)> {
    let (title, rest) = without_number(line.trim_start()).strip_prefix("**")?.split_once("**")?;
    Some((title, rest.trim_start_matches(':').trim()))
}

/// Returns a short line that ends with a colon.
fn with_colon(line: &str) -> Option<(&str, &str)> {
    let title = without_number(line).trim_end().strip_suffix([':', '：'])?;
    let is_short = title.chars().count() <= MAX_HEADING_CHARS;
    (is_short && !line.starts_with([' ', '-', '*', '\t'])).then_some((title, ""))
}

/// Returns whether a text without headings reports what happened in the records instead of answering them.
fn is_narrative(text: &str, material: &str) -> bool {
    let start = text.trim_start().to_lowercase();
    let n_chars = text.chars().filter(|char| char.is_alphanumeric()).count();
    let is_addressed = texts(WordClass::Address).iter().any(|address| start.starts_with(address))
        || text.trim_end().ends_with(['?', '？'])
        || text.contains("```");
    let known = values(material, true);
    let said = SearchedText::new(text);
    let is_about = known.is_empty() || known.iter().any(|value| said.has(value));
    n_chars >= MIN_NARRATIVE_CHARS && !is_addressed && is_about
}

/// Whether a text is JSON, or the beginning of it.
pub(super) fn is_json(answer: &str) -> bool {
    let text = unwrapped(answer).trim_start();
    let inside = text.strip_prefix('{').or_else(|| text.strip_prefix('['));
    inside.is_some_and(|inside| inside.trim_start().starts_with(['"', '{', '[', '}', ']']))
}

/// Returns whether a line stands in the place of a text that was asked for, such as `...` or `[the goal]`. A line such as
/// `[#12 user]` names a record.
pub(super) fn is_placeholder(line: &str) -> bool {
    let text = without_bullet(line);
    let enclosed = |start, end| text.starts_with(start) && text.ends_with(end);
    let is_one = |start: char| text.matches(start).count() == 1;
    let words = text.split_whitespace().count();
    let is_bracketed = (enclosed('<', '>') && is_one('<')) || (enclosed('[', ']') && is_one('['));
    let is_dots = !text.is_empty() && text.chars().all(|char| matches!(char, '.' | '…' | '_'));
    is_dots || (is_bracketed && words > 1 && !text.starts_with("[#"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(answer: &str, expect: &str) {
        let summary = mended(answer, "[#1 user] parse a.toml");
        assert_eq!(summary.map(|summary| summary.render()).unwrap_or_default(), expect, "{answer}");
    }

    #[test]
    fn six_headings_of_another_language_are_taken_by_position() {
        let expect = "## Goal\n- a\n\n## Constraints\n- b\n\n## Progress\n- c\n\n## Key decisions\n- d\n\n\
            ## Next steps\n- e\n\n## Critical context\n- f";
        check(
            "## Ziel\n- a\n## Vorgaben\n- b\n## Stand\n- c\n## Beschlüsse\n- d\n## Weiter\n- e\n## Wichtig\n- f",
            expect,
        );
        check(
            "# Notizen\n\n**Ziel**\n- a\n**Vorgaben**:\n- b\n**Stand**\n- c\n**Progress**\n- d\n**e**\n- e\n**f**\n- f",
            expect,
        );
        check(
            "目标：\n- a\n约束：\n- b\n进展：\n- c\n决定：\n- d\n下一步：\n- e\n背景：\n- f",
            expect,
        );
        // Five of another language are not the sections.
        check("## Ziel\n- a\n## Vorgaben\n- b\n## Stand\n- c\n## Weiter\n- e\n## Wichtig\n- f", "");
    }

    #[test]
    fn missing_headings_are_empty_sections() {
        check("## Progress\n- c\n- d", "## Progress\n- c\n- d");
        check("## Goal\nnone\n## Progress\n- c", "## Progress\n- c");
    }

    #[test]
    fn narrative_is_progress_and_an_answer_is_not() {
        let story =
            "The user asked for a parser of a.toml, and the lexer of it was written on Monday.";
        check(story, &format!("## Progress\n- {story}"));
        check(
            &format!("{story} The tests of a.toml come next."),
            &format!("## Progress\n- {story}\n- The tests of a.toml come next."),
        );
        check(&format!("Gerne! {story}"), "");
        check(&format!("好的，{story}"), "");
        check(&format!("Sure, here it is. {story}"), "");
        check(&format!("{story} Shall I go on with the tests?"), "");
        check("All went well.", "");
        check("A long tale of a castle and its king, who slept in a bed of gold for years.", "");
    }

    #[test]
    fn json_and_placeholders_are_recognized() {
        assert!(is_json("```json\n{\"goal\": 1}\n```") && is_json("[{\"goal\": \"x"));
        assert!(!is_json("[DECISION] x") && !is_json("{curly} words"));
        let is = |line: &str| is_placeholder(line);
        assert!(is("- ...") && is("[what the user wants]") && is("- <the goal>"));
        assert!(!is("- [x] done") && !is("[link]") && !is("- <b> and <i>") && !is(""));
    }
}
