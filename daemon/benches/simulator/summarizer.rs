//! The scripted summarizer: recognizes that a summary is asked for, and answers well or badly.

use std::collections::HashMap;

use serde_json::Value;

/// The headings of a summary; a request that names all of them asks for one.
const SECTIONS: [&str; 6] =
    ["Goal", "Constraints", "Progress", "Key decisions", "Next steps", "Critical context"];
/// Words of the goal and of one line of progress.
const GOAL_WORDS: usize = 40;
const LINE_WORDS: usize = 14;

/// How the summarizer behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Summarizer {
    /// All sections, with the facts that it was given, within the target.
    Good,
    /// The same, ten times as long.
    Verbose,
    /// Says nothing.
    Empty,
    /// Answers with an error.
    Failing,
    /// Good, after a while.
    Slow,
}

impl Summarizer {
    /// All of them.
    pub(crate) const ALL: [Self; 5] =
        [Self::Good, Self::Verbose, Self::Empty, Self::Failing, Self::Slow];

    /// Its name.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Verbose => "verbose",
            Self::Empty => "empty",
            Self::Failing => "failing",
            Self::Slow => "slow",
        }
    }

    /// The one of a name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name)
    }

    /// What it says to a prompt; `None` for an error.
    pub(crate) fn answer(self, prompt: &str) -> Option<String> {
        let words = asked_words(prompt);
        match self {
            Self::Good | Self::Slow => Some(summary(prompt, words)),
            Self::Verbose => Some(verbose(&summary(prompt, words))),
            Self::Empty => Some(String::new()),
            Self::Failing => None,
        }
    }
}

/// The prompt of a request for a summary; `None` for any other request.
pub(crate) fn asked(request: &Value) -> Option<&str> {
    let last = request["messages"].as_array()?.last()?;
    let text = last["content"].as_str()?;
    // What is asked for stands at the end, so that a conversation that holds a summary is none of these.
    let mut from = text.len().saturating_sub(6000);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    let end = &text[from..];
    let has_all = SECTIONS.iter().all(|section| end.contains(&format!("## {section}")));
    (has_all && end.contains("words in all") && request["tools"].is_null()).then_some(text)
}

/// How many words are allowed.
fn asked_words(prompt: &str) -> usize {
    let before = prompt.rsplit_once(" words in all").map_or("", |(before, _)| before);
    before.rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or(200)
}

/// All sections, from what stands in the blocks of the prompt: the earlier summary first, the newest records last.
fn summary(prompt: &str, words: usize) -> String {
    let earlier: Vec<&str> =
        ["previous-summary", "summary"].into_iter().filter_map(|tag| block(prompt, tag)).collect();
    let records: Vec<&str> = block(prompt, "records").map(records).unwrap_or_default();
    let goal = earlier.iter().find_map(|text| section(text, "Goal").first().copied());
    let first = records.iter().find(|record| record.contains(" user]"));
    let goal = goal.or(first.copied()).unwrap_or("Go on with the work.");
    let mut left = words.saturating_sub(GOAL_WORDS + 12);
    let mut decisions = Vec::new();
    let mut progress = Vec::new();
    for line in earlier.iter().flat_map(|text| section(text, "Key decisions")) {
        take(&mut decisions, line, &mut left);
    }
    let critical = identifiers(&earlier, &records, left / 3);
    left = left.saturating_sub(critical.len());
    for record in records.iter().rev() {
        take(&mut progress, record, &mut left);
    }
    for line in earlier.iter().rev().flat_map(|text| section(text, "Progress")) {
        take(&mut progress, line, &mut left);
    }
    if progress.is_empty() {
        progress.push("The work goes on.".to_owned());
    }
    let list =
        |lines: &[String]| lines.iter().map(|line| format!("- {line}\n")).collect::<String>();
    format!(
        "## Goal\n- {}\n\n## Constraints\n- as the user said\n\n## Progress\n{}\n## Key decisions\n{}\n\
         ## Next steps\n- go on\n\n## Critical context\n- {}\n",
        shortened(goal, GOAL_WORDS),
        list(&progress),
        list(&decisions),
        critical.join(" ")
    )
}

/// Every line ten times, each time a little different.
fn verbose(text: &str) -> String {
    let mut long = String::new();
    for line in text.lines() {
        long.push_str(line);
        long.push('\n');
        if line.starts_with("- ") {
            (1..10).for_each(|n| long.push_str(&format!("{line} (said {n} times)\n")));
        }
    }
    long
}

/// What stands between the tags of a block.
fn block<'a>(prompt: &'a str, tag: &str) -> Option<&'a str> {
    let (_, inside) = prompt.split_once(&format!("<{tag}"))?;
    let (_, inside) = inside.split_once(">\n")?;
    inside.split_once(&format!("\n</{tag}>")).map(|(inside, _)| inside)
}

/// The records of a block; each begins with its number.
fn records(block: &str) -> Vec<&str> {
    block.lines().filter(|line| line.starts_with("[#")).collect()
}

/// The lines of one section, without what makes them a list.
fn section<'a>(summary: &'a str, title: &str) -> Vec<&'a str> {
    let heading = format!("## {title}");
    let inside = summary.lines().skip_while(|line| *line != heading).skip(1);
    let lines = inside.take_while(|line| !line.starts_with("## "));
    lines.map(|line| line.trim_start_matches("- ")).filter(|line| !line.is_empty()).collect()
}

fn shortened(line: &str, words: usize) -> String {
    line.split_whitespace().take(words).collect::<Vec<_>>().join(" ")
}

fn take(lines: &mut Vec<String>, line: &str, left: &mut usize) {
    let short = shortened(line, LINE_WORDS);
    let n_words = short.split(' ').count();
    if n_words <= *left {
        *left -= n_words;
        lines.push(short);
    }
}

/// Paths and names, those that occur most often first.
fn identifiers(earlier: &[&str], records: &[&str], most: usize) -> Vec<String> {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for text in earlier.iter().chain(records) {
        let words = text.split(|c: char| c.is_whitespace() || "\"',:;()[]{}".contains(c));
        let names = words.filter(|word| {
            word.len() > 4
                && word.contains(['/', '_'])
                && word.chars().all(|c| c.is_ascii_graphic())
        });
        names.for_each(|name| *counts.entry(name).or_default() += 1);
    }
    let mut sorted: Vec<_> = counts.into_iter().collect();
    sorted.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
    sorted.into_iter().take(most).map(|(name, _)| name.to_owned()).collect()
}
