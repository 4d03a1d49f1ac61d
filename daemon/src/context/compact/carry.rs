//! Carrying lines over: the lines of earlier notes that a new summary lost, and has no other value for.
//!
//! A model that updates its notes drops lines without a reason. The daemon compares both texts and puts back each line of
//! the lasting sections that is lost. Shortening the result drops the oldest lines without a value first.

use std::collections::BTreeSet;

use super::summary::{Section, Summary, without_bullet};
use crate::facts::FactValueKind;

use super::numbers::*;
use super::values::{SearchedText, Value, has_names, subject, values};

/// The separator of the parts of a line.
const PARTS: &str = ", ";

/// The values of earlier notes that a new summary has, and that it lost.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct KeptValues {
    pub(super) n_kept: usize,
    pub(super) lost: Vec<String>,
}

impl KeptValues {
    /// Whether so many values are lost that the new summary is not an update of the earlier notes.
    pub(super) fn is_too_few(&self) -> bool {
        let n_all = self.n_kept + self.lost.len();
        n_all >= MIN_JUDGED_VALUES && self.n_kept * KEPT_VALUES.1 < n_all * KEPT_VALUES.0
    }

    /// Returns the first of the lost values, as a rejection names them.
    pub(super) fn named(&self) -> String {
        self.lost[..self.lost.len().min(MAX_LOST_NAMED)].join(", ")
    }
}

/// A line of a summary with its values.
struct NoteLine<'a> {
    text: &'a str,
    values: Vec<Value>,
}

/// A summary whose lines are compared with those of another one.
struct ComparedNotes<'a> {
    lines: Vec<(Section, NoteLine<'a>)>,
    text: SearchedText,
}

impl<'a> ComparedNotes<'a> {
    fn new(summary: &'a Summary) -> Self {
        let text = summary.render();
        let names = has_names(&text);
        let lines = Section::ALL.into_iter().flat_map(|section| {
            let lines = summary.lines(section).iter().map(String::as_str);
            let lines = lines.filter(|line| !without_bullet(line).is_empty());
            lines.map(move |text| (section, NoteLine { text, values: values(text, names) }))
        });
        Self { lines: lines.collect(), text: SearchedText::new(&text) }
    }
}

/// Earlier notes and the summary that takes their place.
struct NotesChange<'a> {
    before: ComparedNotes<'a>,
    now: ComparedNotes<'a>,
}

impl<'a> NotesChange<'a> {
    fn new(earlier: &'a Summary, new: &'a Summary) -> Self {
        Self { before: ComparedNotes::new(earlier), now: ComparedNotes::new(new) }
    }

    /// Returns whether a line of the summary says of the same subject another value of a kind.
    fn contradicts(&self, line: &NoteLine<'_>, kind: FactValueKind) -> bool {
        let about = subject(line.text, kind);
        self.now.lines.iter().any(|(_, other)| {
            let subject = subject(other.text, kind);
            let is_other = |value: &Value| value.kind == kind && !self.had_before(value, &subject);
            is_same_subject(&about, &subject) && other.values.iter().any(is_other)
        })
    }

    /// Returns whether a lasting line of the earlier notes states a value of exactly this subject. Then a line whose
    /// subject has only some of the words is about something else.
    fn had_before(&self, value: &Value, about: &BTreeSet<String>) -> bool {
        self.before.lines.iter().any(|(section, line)| {
            Section::LASTING.contains(section)
                && line.values.contains(value)
                && subject(line.text, value.kind) == *about
        })
    }

    /// Returns whether the summary has a value of a line, or another one in its place.
    fn keeps(&self, line: &NoteLine<'_>, value: &Value) -> bool {
        self.now.text.has(value) || self.contradicts(line, value.kind)
    }

    /// Returns the part of a line of earlier notes that the summary lost: the whole line, or only the parts with values
    /// that nothing contradicts; `None` if the summary has the line or a replacement.
    fn lost(&self, line: &NoteLine<'_>) -> Option<String> {
        let is_lost = match line.values.is_empty() {
            true => !self.now.lines.iter().any(|(_, other)| is_similar(line.text, other.text)),
            false => line.values.iter().any(|value| !self.keeps(line, value)),
        };
        is_lost.then(|| self.without_contradicted(line))
    }

    /// Returns a line without the parts in which every value is contradicted.
    fn without_contradicted(&self, line: &NoteLine<'_>) -> String {
        let is_contradicted =
            |value: &Value| !self.now.text.has(value) && self.contradicts(line, value.kind);
        let is_kept = |part: &&str| {
            let found =
                line.values.iter().filter(|value| part.to_lowercase().contains(&value.text));
            let mut found = found.peekable();
            found.peek().is_none() || !found.all(is_contradicted)
        };
        let parts: Vec<&str> = line.text.split(PARTS).collect();
        let kept: Vec<&str> = parts.iter().copied().filter(is_kept).collect();
        if kept.len() == parts.len() {
            return line.text.to_owned();
        }
        format!("- {}", without_bullet(&kept.join(PARTS)))
    }
}

/// Returns a new summary with the lines of earlier notes that it lost, which stand before its own. A missing goal is
/// taken from the earlier notes.
pub(super) fn carry_over(earlier: &Summary, new: &Summary) -> Summary {
    let change = NotesChange::new(earlier, new);
    let mut merged = new.clone();
    if new.lines(Section::Goal).is_empty() {
        *merged.lines_mut(Section::Goal) = earlier.lines(Section::Goal).to_vec();
    }
    for section in Section::LASTING {
        let lines = change.before.lines.iter().filter(|(of, _)| *of == section);
        let lost: Vec<String> = lines.filter_map(|(_, line)| change.lost(line)).collect();
        merged.lines_mut(section).splice(..0, lost);
    }
    merged
}

/// Counts the values in the lasting sections and the goal of earlier notes that a new summary has. A value counts as
/// kept if the new text has another one for its subject.
pub(super) fn kept_values(earlier: &Summary, new: &Summary) -> KeptValues {
    let change = NotesChange::new(earlier, new);
    let mut kept = KeptValues::default();
    let mut known = BTreeSet::new();
    let is_judged =
        |section: &Section| Section::LASTING.contains(section) || *section == Section::Goal;
    for (_, line) in change.before.lines.iter().filter(|(section, _)| is_judged(section)) {
        for value in line.values.iter().filter(|value| known.insert(value.text.clone())) {
            if change.keeps(line, value) {
                kept.n_kept += 1;
            } else {
                kept.lost.push(value.text.clone());
            }
        }
    }
    kept
}

/// Whether two lines have the same subject: all words of the shorter one are in the other one, and these are at least
/// two, or both subjects are equal.
fn is_same_subject(one: &BTreeSet<String>, other: &BTreeSet<String>) -> bool {
    let smaller = one.len().min(other.len());
    let is_within = one.is_subset(other) || other.is_subset(one);
    smaller > 0 && is_within && (smaller > 1 || one.len() == other.len())
}

/// Whether half of a line's words stand in another line.
fn is_similar(line: &str, other: &str) -> bool {
    // Lines are compared by all of their words, values included.
    let words = |line: &str| -> BTreeSet<String> {
        let words = line.split(|char: char| !char.is_alphanumeric()).map(str::to_lowercase);
        words.filter(|word| word.chars().count() > 2).collect()
    };
    let (line, other) = (words(line), words(other));
    line.intersection(&other).count() * 2 >= line.len()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn notes(critical: &[&str]) -> Summary {
        let lines: Vec<String> = critical.iter().map(|line| format!("- {line}")).collect();
        Summary::parse(&format!(
            "## Goal\n- ship\n## Progress\n- begun\n## Critical context\n{}",
            lines.join("\n")
        ))
    }

    #[test]
    fn lost_lines_are_carried_over_unless_contradicted() {
        let check = |before: &[&str], after: &[&str], expect: &[&str]| {
            let merged = carry_over(&notes(before), &notes(after));
            assert_eq!(merged.items(Section::Critical), expect, "{before:?} {after:?}");
        };
        check(&["staging port: 48213"], &["tests pass"], &["staging port: 48213", "tests pass"]);
        check(&["staging port: 48213"], &["port 48213 is staging"], &["port 48213 is staging"]);
        check(&["staging port: 48213"], &["staging port: 50100"], &["staging port: 50100"]);
        check(
            &["staging port: 48213 (user, #7)"],
            &["the staging port is now 50100"],
            &["the staging port is now 50100"],
        );
        // Another subject contradicts nothing.
        check(
            &["staging port: 48213", "port: 443"],
            &["production port: 8443"],
            &["staging port: 48213", "port: 443", "production port: 8443"],
        );
        check(
            &["Phone of Anna: 5551234"],
            &["Phone of Bert: 5559876"],
            &["Phone of Anna: 5551234", "Phone of Bert: 5559876"],
        );
        check(
            &["door 17 code: 7731", "door 18 code: 7732"],
            &["door 18 code: 7732"],
            &["door 17 code: 7731", "door 18 code: 7732"],
        );
        check(
            &["door 17 code: 7731"],
            &["door 18 code: 7732"],
            &["door 17 code: 7731", "door 18 code: 7732"],
        );
        check(&["door 17 code: 7731"], &["door 17 code: 7732"], &["door 17 code: 7732"]);
        check(&["CI port: 8080"], &["DB port: 5433"], &["CI port: 8080", "DB port: 5433"]);
        check(
            &["staging port: 48213", "staging backup port: 50100"],
            &["staging backup port: 50100"],
            &["staging port: 48213", "staging backup port: 50100"],
        );
        // A part of a line is contradicted alone.
        check(
            &["staging port: 48213, key /etc/a.pem"],
            &["staging port: 50100"],
            &["key /etc/a.pem", "staging port: 50100"],
        );
        check(
            &["key /etc/a.pem, staging port: 48213"],
            &["staging port: 50100", "the key is /etc/a.pem"],
            &["staging port: 50100", "the key is /etc/a.pem"],
        );
        check(&["端口是48213"], &["端口是50100"], &["端口是50100"]);
        check(
            &["数据库端口是48213"],
            &["服务器端口是50100"],
            &["数据库端口是48213", "服务器端口是50100"],
        );
        check(&["never push with force"], &["x is done"], &["never push with force", "x is done"]);
        check(&["never push with force"], &["force push never"], &["force push never"]);
        check(&[], &["x"], &["x"]);
    }

    #[test]
    fn value_that_is_restored_replaces_the_one_in_between() {
        let before = Summary::parse(
            "## Progress\n- moved the staging port from 48213 to 50100\n## Critical context\n- staging port: 50100",
        );
        let after = notes(&["staging port: 48213"]);
        let merged = carry_over(&before, &after);
        assert_eq!(merged.items(Section::Critical), ["staging port: 48213"]);
        assert!(kept_values(&before, &after).lost.is_empty());
    }

    #[test]
    fn goal_that_was_left_out_stays() {
        let before = Summary::parse("## Goal\n- port the parser\n## Next steps\n- old");
        let merged = carry_over(&before, &Summary::parse("## Progress\n- done\n- more"));
        assert_eq!(merged.items(Section::Goal), ["port the parser"]);
        assert!(merged.lines(Section::NextSteps).is_empty());
    }

    #[test]
    fn replaced_values_count_as_kept() {
        let before = notes(&["staging port: 48213", "key file: /etc/a.pem", "user TokenKind"]);
        let check = |after: &[&str], n_kept, lost: &[&str]| {
            let kept = kept_values(&before, &notes(after));
            assert_eq!((kept.n_kept, kept.lost.as_slice()), (n_kept, &*owned(lost)), "{after:?}");
        };
        check(&["staging port: 50100", "key file: /etc/b.pem", "TokenKind"], 3, &[]);
        check(&["TokenKind"], 1, &["48213", "/etc/a.pem"]);
        let before = notes(&["staging port: 48213, key /etc/a.pem"]);
        let kept = kept_values(&before, &notes(&["staging port: 50100"]));
        assert_eq!((kept.n_kept, kept.lost), (1, owned(&["/etc/a.pem"])));
        let before = notes(&["staging port: 48213", "key file: /etc/a.pem", "user TokenKind"]);
        assert!(kept_values(&before, &notes(&["TokenKind"])).is_too_few());
        assert!(!kept_values(&before, &notes(&["48213 /etc/a.pem"])).is_too_few());
        assert!(!kept_values(&notes(&["48213"]), &notes(&["x"])).is_too_few());
    }

    fn owned(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    proptest! {
        #[test]
        fn no_value_is_lost_without_a_contradiction(
            before in proptest::collection::vec("[a-z]{4,9} [a-z]{4,9}: [1-9][0-9]{3,5}", 0..20),
            after in proptest::collection::vec("[a-z]{4,9} [a-z]{4,9}: [1-9][0-9]{3,5}", 0..20),
        ) {
            let borrow = |lines: &[String]| notes(&lines.iter().map(String::as_str).collect::<Vec<_>>());
            let (before, after) = (borrow(&before), borrow(&after));
            let merged = carry_over(&before, &after);
            prop_assert!(kept_values(&before, &merged).lost.is_empty());
            prop_assert!(kept_values(&after, &merged).lost.is_empty());
            prop_assert_eq!(carry_over(&before, &merged), merged);
        }
    }
}
