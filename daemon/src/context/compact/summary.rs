//! The fixed form of a summary: six sections, parsed tolerantly and rendered in one way.
//!
//! Models number headings, make them bold, omit the colon or answer in a code fence; all of these are the same summary.
//! Text before the first heading is ignored, so an answer without headings is empty.

use super::defuse::defuse;

/// A part of a summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Section {
    Goal,
    Constraints,
    Progress,
    Decisions,
    NextSteps,
    /// Names, values and errors that the work needs.
    Critical,
}

impl Section {
    /// Every section, in the order of rendering.
    pub(super) const ALL: [Self; 6] = [
        Self::Goal,
        Self::Constraints,
        Self::Progress,
        Self::Decisions,
        Self::NextSteps,
        Self::Critical,
    ];

    /// Returns the heading.
    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Goal => "Goal",
            Self::Constraints => "Constraints",
            Self::Progress => "Progress",
            Self::Decisions => "Key decisions",
            Self::NextSteps => "Next steps",
            Self::Critical => "Critical context",
        }
    }

    /// Returns the names that models use, in lower case.
    const fn names(self) -> &'static [&'static str] {
        match self {
            Self::Goal => &["goal", "goals", "main goal", "objective", "task", "user goal"],
            Self::Constraints => &[
                "constraints",
                "constraint",
                "constraints and preferences",
                "constraints & preferences",
                "requirements",
            ],
            Self::Progress => &["progress", "progress so far", "work done", "current status"],
            Self::Decisions => &["key decisions", "decisions", "key decision", "decisions made"],
            Self::NextSteps => &["next steps", "next step", "next", "remaining work"],
            Self::Critical => &["critical context", "critical information", "important context"],
        }
    }

    fn named(name: &str) -> Option<Self> {
        let name = name.to_lowercase();
        Self::ALL.into_iter().find(|section| section.names().contains(&name.as_str()))
    }
}

/// A summary in its sections.
///
/// **Shape**: lines without trailing space, and no empty lines at the ends of a section; an empty section is not
/// rendered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    sections: [Vec<String>; 6],
}

impl Summary {
    /// Parses the text of a summarizer. Text that a model could obey is defused.
    pub(crate) fn parse(text: &str) -> Self {
        let mut summary = Self::default();
        let mut current = None;
        for line in unwrapped(text).lines() {
            let line = line.trim_end();
            if let Some((section, rest)) = heading(line) {
                current = Some(section);
                if !rest.is_empty() {
                    summary.push(section, rest);
                }
            } else if let Some(section) = current {
                summary.push(section, line);
            }
        }
        summary.sections.iter_mut().for_each(tidy);
        summary
    }

    pub(super) fn push(&mut self, section: Section, line: &str) {
        self.sections[section as usize].push(defuse(line));
    }

    pub(super) fn lines(&self, section: Section) -> &[String] {
        &self.sections[section as usize]
    }

    pub(super) fn lines_mut(&mut self, section: Section) -> &mut Vec<String> {
        &mut self.sections[section as usize]
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sections.iter().all(Vec::is_empty)
    }

    /// Returns the items of a section, without their bullets.
    pub(super) fn items(&self, section: Section) -> Vec<String> {
        let lines = self.lines(section).iter().map(|line| without_bullet(line));
        lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned).collect()
    }

    /// Returns the text as models are sent it.
    pub(crate) fn render(&self) -> String {
        let mut text = String::new();
        for section in Section::ALL {
            let lines = self.lines(section);
            if lines.is_empty() {
                continue;
            }
            if !text.is_empty() {
                text.push_str("\n\n");
            }
            text.push_str("## ");
            text.push_str(section.title());
            text.push('\n');
            text.push_str(&lines.join("\n"));
        }
        text
    }
}

/// Returns the section that a line begins, and the text behind its name.
fn heading(line: &str) -> Option<(Section, &str)> {
    let trimmed = line.trim_start();
    if trimmed.len() < line.len() && !trimmed.starts_with('#') {
        return None;
    }
    let marked = trimmed.trim_start_matches('#');
    let has_marks = marked.len() < trimmed.len();
    let unnumbered = without_number(marked.trim_start());
    let bold = unnumbered.trim_start_matches(['*', '_']);
    let has_marks = has_marks || bold.len() < unnumbered.len();
    let end = bold.find([':', '*', '_']).unwrap_or(bold.len());
    let section = Section::named(bold[..end].trim())?;
    let rest = bold[end..].trim_start_matches([':', '*', '_']).trim();
    // `Next: look at it` is a heading, `Next we look at it` is not.
    (has_marks || rest.is_empty() || bold[end..].contains(':')).then_some((section, rest))
}

/// Returns a text without the number at its beginning.
fn without_number(text: &str) -> &str {
    let rest = text.trim_start_matches(|char: char| char.is_ascii_digit());
    match rest.strip_prefix(['.', ')']) {
        Some(behind) if rest.len() < text.len() => behind.trim_start(),
        _ => text,
    }
}

/// Returns a line without indentation, bullet and check box.
pub(super) fn without_bullet(line: &str) -> &str {
    let line = without_number(line.trim_start());
    let line = line.strip_prefix(['-', '*', '+', '•']).map_or(line, str::trim_start);
    let boxes = ["[x] ", "[X] ", "[ ] "];
    boxes.iter().find_map(|mark| line.strip_prefix(mark)).unwrap_or(line).trim()
}

/// Returns the text without thinking before it and without a code fence around it.
fn unwrapped(text: &str) -> &str {
    let mut text = text.trim();
    while let Some(end) = text.strip_prefix("<think").and_then(|rest| rest.find("</think>")) {
        text = text[end + "<think".len() + "</think>".len()..].trim_start();
    }
    let fenced = text.strip_prefix("```").and_then(|rest| rest.strip_suffix("```"));
    match fenced.and_then(|inner| inner.split_once('\n')) {
        // With further fences inside, the first and the last one are not a pair.
        Some((_, inner)) if !inner.contains("```") => inner,
        _ => text,
    }
}

/// Removes empty lines at the ends, or all lines if they only say that there is nothing.
fn tidy(lines: &mut Vec<String>) {
    if lines.iter().all(|line| is_nothing(line)) {
        lines.clear();
        return;
    }
    while lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    let n_empty = lines.iter().take_while(|line| line.is_empty()).count();
    lines.drain(..n_empty);
}

/// Whether a line is empty or says that there is nothing.
fn is_nothing(line: &str) -> bool {
    let text = without_bullet(line).to_lowercase();
    let text = text.trim_matches(|char: char| !char.is_alphanumeric());
    let words = ["", "none", "n/a", "nothing", "none yet", "not applicable", "not specified"];
    words.contains(&text) || text.starts_with("none -") || text.contains("empty conversation")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> String {
        Summary::parse(text).render()
    }

    #[test]
    fn headings_are_parsed_in_every_form() {
        let expect = "## Goal\nBuild it\n\n## Progress\n- half done\n\n## Next steps\n- go on";
        let check = |text: &str| assert_eq!(parsed(text), expect, "{text}");
        check("## Goal\nBuild it\n\n## Progress\n- half done\n\n## Next steps\n- go on\n");
        check("# GOAL\n\nBuild it\n### progress:\n- half done\n#### Next Steps\n- go on");
        check("**Goal**\nBuild it\n**Progress:**\n- half done\n__Next steps__:\n- go on");
        check("1. Goal: Build it\n2. Progress\n- half done\n3) Next step:\n- go on");
        check("Goal\nBuild it\nProgress so far\n- half done\nNext:\n- go on");
        check("Sure!\n\nGoal: Build it\nPROGRESS\n- half done\n**Next steps**\n- go on");
        check(
            "```markdown\n## Goal\nBuild it\n## Progress\n- half done\n## Next steps\n- go on\n```",
        );
        check(
            "<think>hm\n## Goal\nno</think>\n## Goal\nBuild it\n## Progress\n- half done\n## Next\n- go on",
        );
    }

    #[test]
    fn lines_that_resemble_headings_stay_text() {
        let text = "## Progress\nNext we look at it\n- Goal: found\n  Task: inner\n### Done\n- a";
        assert_eq!(parsed(text), text);
        assert!(Summary::parse("All went well, we are done.").is_empty());
        assert!(Summary::parse("").is_empty());
    }

    #[test]
    fn sections_without_content_are_left_out() {
        let text =
            "## Goal\nx\n## Constraints\n(none)\n## Progress\n- None.\n\n## Key decisions\nN/A";
        assert_eq!(parsed(text), "## Goal\nx");
        assert!(Summary::parse("## Goal\n(none - empty conversation)").is_empty());
    }

    #[test]
    fn rendered_summary_parses_as_the_same() {
        let text = "## Goal\na\n\n## Constraints\n- b\n\n## Key decisions\n1. c\n\n\n2. d\n\n## Critical context\n`e`";
        let summary = Summary::parse(text);
        assert_eq!(Summary::parse(&summary.render()), summary);
        assert_eq!(summary.items(Section::Decisions), ["c", "d"]);
    }
}
