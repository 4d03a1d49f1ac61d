//! Splitting a message into sentences, in any language. Code and its comments, quoted lines and paragraphs, and data are left
//! out.

use unicode_segmentation::UnicodeSegmentation;

use super::features::QUOTATION_MARKS;
use super::lexicon::words_of;
use super::numbers::*;
use crate::languages::{GERMAN, WordClass, WordEntry, entries, has_class};

/// Calls `visit` with each sentence of a message, in order, and with the byte at which its line begins.
pub(super) fn for_each_sentence(text: &str, mut visit: impl FnMut(usize, &str)) {
    let mut line = String::new();
    let mut start = 0;
    let mut is_code = false;
    let (mut quoted, mut searched_to) = (0..0, 0);
    let (head, tail) = ends(text);
    let stamped = head.lines().chain(tail.lines()).filter(|line| is_stamped(line));
    let has_log = stamped.take(MIN_LOG_LINES).count() == MIN_LOG_LINES;
    for raw in head.lines().chain(tail.lines()) {
        let trimmed = raw.trim_start();
        let is_fence = trimmed.starts_with("```") || trimmed.starts_with("~~~");
        is_code ^= is_fence;
        let at = raw.as_ptr().addr() - text.as_ptr().addr();
        if !is_code && at >= searched_to {
            let (length, searched) = quotation_bytes(&text[at..]);
            quoted = at..at + length;
            searched_to = at + searched;
        }
        let is_outside = is_code
            || quoted.contains(&at)
            || is_fence
            || trimmed.is_empty()
            || is_listed(trimmed)
            || has_log && is_stamped(trimmed)
            || trimmed == ">"
            || ["> ", "//", "/*", "*/", "<!--"].into_iter().any(|mark| trimmed.starts_with(mark));
        let part = without_bullet(trimmed).trim_end();
        let continues = !is_outside
            && part.len() == trimmed.trim_end().len()
            && line.len() >= WRAP_COLUMNS
            && line.len() + part.len() < MAX_LINE_BYTES
            && part.starts_with(char::is_lowercase);
        if !continues {
            for_each_sentence_of_line(&line, &mut |sentence| visit(start, sentence));
            line.clear();
            start = at;
        }
        if is_outside || part.len() > MAX_LINE_BYTES {
            continue;
        }
        if continues {
            line.push(' ');
        }
        line.push_str(part);
    }
    for_each_sentence_of_line(&line, &mut |sentence| visit(start, sentence));
}

/// Returns the length of the long quotation that a text begins with, 0 if it begins with none: from a mark at the beginning of
/// a line to one at the end of a line. What people paste into a message often stands so. Returns also how far it was searched.
fn quotation_bytes(text: &str) -> (usize, usize) {
    let start = text.len() - text.trim_start_matches([' ', '\t']).len();
    let first = text[start..].lines().next().unwrap_or_default();
    let Some(open) = first.chars().next() else { return (0, 0) };
    // German and Polish begin with the same mark and end with others.
    let closes = |char: char| QUOTATION_MARKS.contains(&(open, char));
    if !QUOTATION_MARKS.iter().any(|(mark, _)| *mark == open) {
        return (0, 0);
    }
    let n_marks = first.matches(|char| char == open || closes(char)).count();
    let is_open = n_marks % 2 == 1;
    // `"a" and "b"` are two quotations.
    let is_whole = n_marks == 2 && first.trim_end().ends_with(closes);
    let mut end = 0;
    for line in text.split_inclusive('\n') {
        end += line.len();
        if line.trim_end().ends_with(closes) && (is_whole || is_open && line.len() < end) {
            return (if end >= MIN_QUOTATION_BYTES { end } else { 0 }, end);
        }
        if !is_open || end > MAX_END_BYTES {
            break;
        }
    }
    (0, end)
}

/// Whether a line is one of a listing, in which the number of each line stands apart before it.
fn is_listed(line: &str) -> bool {
    let rest = line.trim_start_matches(|char: char| char.is_ascii_digit());
    let marks = ["  ", "\t", "|", " |", "│", " │", ":\t", ":  "];
    rest.len() < line.len() && marks.into_iter().any(|mark| rest.starts_with(mark))
}

/// Returns whether a line begins as those of logs do: with a level, a time of day in seconds, or a date and a time.
fn is_stamped(line: &str) -> bool {
    const LEVELS: [&str; 8] =
        ["TRACE", "DEBUG", "INFO", "NOTICE", "WARN", "WARNING", "ERROR", "FATAL"];
    let first = line.split_whitespace().next().unwrap_or_default();
    if LEVELS.contains(&first.trim_matches(|char| matches!(char, '[' | ']' | ':'))) {
        return true;
    }
    let mut has_date = false;
    for word in line.split_whitespace().take(3) {
        let bytes = word.as_bytes();
        let joins = |marks: &[u8]| {
            let parts = bytes.windows(3).filter(|part| marks.contains(&part[1]));
            parts.filter(|part| part[0].is_ascii_digit() && part[2].is_ascii_digit()).count()
        };
        has_date |= joins(b"-/.") >= 2;
        let n_colons = joins(b":");
        if n_colons == 2 || n_colons == 1 && has_date {
            return true;
        }
    }
    false
}

/// Returns the beginning and, of a long message, the end.
fn ends(text: &str) -> (&str, &str) {
    if text.len() <= 2 * MAX_END_BYTES {
        return (text, "");
    }
    let boundary = |mut at: usize| {
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        at
    };
    let head = &text[..boundary(MAX_END_BYTES)];
    let tail = &text[boundary(text.len() - MAX_END_BYTES)..];
    // The first line of the end is the rest of a line.
    let tail = tail.split_once('\n').map_or("", |(_, rest)| rest);
    (head, tail)
}

/// Removes the mark of a list item or a heading.
fn without_bullet(line: &str) -> &str {
    let rest = line.trim_start_matches('#');
    let line =
        if rest.len() < line.len() && rest.starts_with(' ') { rest.trim_start() } else { line };
    for mark in ["- [ ] ", "- [x] ", "- ", "* ", "+ ", "• ", "– ", "— "] {
        if let Some(rest) = line.strip_prefix(mark) {
            return rest.trim_start();
        }
    }
    let digits = line.len() - line.trim_start_matches(|char: char| char.is_ascii_digit()).len();
    let rest = &line[digits..];
    match rest.strip_prefix(['.', ')']) {
        Some(rest) if (1..=3).contains(&digits) && rest.starts_with(' ') => rest.trim_start(),
        _ => line,
    }
}

/// Calls `visit` with each sentence of a line, in order. Sentences are parts of the line.
pub(crate) fn for_each_sentence_of_line(line: &str, visit: &mut impl FnMut(&str)) {
    let line = line.trim();
    // Most lines are one sentence, which needs no rules.
    if !line.trim_end_matches(is_terminator).contains(is_terminator) {
        if !line.is_empty() {
            visit_with_question(line, visit);
        }
        return;
    }
    let mut start = 0;
    for (at, piece) in line.split_sentence_bound_indices() {
        let end = at + piece.len();
        let is_last = end == line.len();
        // The question mark of an address ends no sentence.
        let is_within_word = piece.ends_with(['.', '!', '?']);
        let goes_on = || ends_with_abbreviation(piece) || is_day_before_month(piece, &line[end..]);
        if is_last || !is_within_word && !goes_on() {
            for_each_lower_sentence(line[start..end].trim(), visit);
            start = end;
        }
    }
}

/// Calls `visit` with the sentences of a piece in which a sentence may begin with a small letter, as people type: Unicode's
/// rules see one sentence there.
fn for_each_lower_sentence(piece: &str, visit: &mut impl FnMut(&str)) {
    let mut start = 0;
    for (at, _) in piece.match_indices(". ") {
        let (before, after) = (&piece[start..=at], piece[at + 1..].trim_start());
        if after.starts_with(char::is_lowercase) && ends_with_whole_word(before) {
            visit_with_question(before.trim(), visit);
            start = piece.len() - after.len();
        }
    }
    if start < piece.len() {
        visit_with_question(piece[start..].trim(), visit);
    }
}

/// Calls `visit` with a sentence, or with a statement and the question that a comma joins to it: `She is allergic to nuts, so
/// should I label the cake?`
fn visit_with_question(sentence: &str, visit: &mut impl FnMut(&str)) {
    match question_start(sentence) {
        Some(at) => {
            visit(sentence[..at].trim_end_matches([',', ' ']));
            visit(&sentence[at..]);
        }
        None => visit(sentence),
    }
}

/// Returns where the question begins that a comma joins to a statement, if a sentence is both.
fn question_start(sentence: &str) -> Option<usize> {
    use WordClass::{Doubt, Filler, Interrogative, Question};
    if !sentence.ends_with('?') || !sentence.contains(", ") {
        return None;
    }
    let is_filler = |word: &str| has_class(word, Filler) && !has_class(word, Question);
    // `I could come, should I?` has too few words to be two sentences.
    let begins = |text: &str, classes: &[WordClass]| {
        let lower = text.to_lowercase();
        let words = words_of(&lower);
        let own = words.iter().position(|word| !is_filler(word)).map_or(&[][..], |at| &words[at..]);
        own.len() >= MIN_CLAUSE_WORDS && classes.iter().any(|class| has_class(own[0], *class))
    };
    // What stands between commas may begin like a question: `Edie, his sister, is allergic to nuts, so should I label it?`
    let mut commas = sentence.rmatch_indices(", ").map(|(at, _)| at);
    let at = commas.find(|at| begins(&sentence[at + 2..], &[Question, Interrogative]))?;
    let statement = &sentence[..at];
    let is_statement = statement.split_whitespace().count() >= MIN_CLAUSE_WORDS
        && !begins(statement, &[Question, Interrogative, Doubt]);
    is_statement.then_some(at + 2)
}

/// Returns whether the word before the period of a piece is none that is shortened by it, and no number of an order.
fn ends_with_whole_word(piece: &str) -> bool {
    let word = piece.trim_end_matches('.').rsplit(char::is_whitespace).next().unwrap_or_default();
    word.chars().filter(|char| char.is_alphanumeric()).nth(MIN_LAST_WORD_CHARS - 1).is_some()
        && !ends_with_abbreviation(piece)
}

/// Whether a character may end a sentence within a line.
const fn is_terminator(char: char) -> bool {
    match char {
        '.' | '!' | '?' => true,
        char => {
            !char.is_ascii()
                && !matches!(char, 'À'..='ÿ' | 'Ѐ'..='ӿ' | 'ا'..='ي' | '\u{4E00}'..='\u{9FFF}' | '\u{3040}'..='\u{30FF}' | '\u{AC00}'..='\u{D7AF}')
        }
    }
}

fn ends_with_abbreviation(piece: &str) -> bool {
    let Some(piece) = piece.trim_end().strip_suffix('.') else { return false };
    let word =
        piece.rsplit(|char: char| char.is_whitespace() || char == '(').next().unwrap_or_default();
    let is_initial = word.chars().count() == 1 && word.chars().all(char::is_uppercase);
    is_initial || word.len() <= 8 && has_class(&word.to_lowercase(), WordClass::Abbreviation)
}

/// Returns whether a piece ends with the day of a date whose month comes next: `am 3. Oktober`.
fn is_day_before_month(piece: &str, next: &str) -> bool {
    let Some(piece) = piece.trim_end().strip_suffix('.') else { return false };
    let day = piece.rsplit(char::is_whitespace).next().unwrap_or_default();
    let is_day = matches!(day.len(), 1..=2) && day.bytes().all(|byte| byte.is_ascii_digit());
    let word = || next.split(|char: char| !char.is_alphabetic()).next().unwrap_or_default();
    // Other languages have no period there, or begin the month with a small letter.
    let is_month = |entry: &WordEntry| {
        entry.class == WordClass::Date && entry.languages & GERMAN != 0 && entry.rest.is_empty()
    };
    is_day && entries(&word().to_lowercase()).iter().any(is_month)
}

/// Returns a text on one line, with single spaces between its words.
pub(crate) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentences(text: &str) -> Vec<String> {
        let mut all = Vec::new();
        for_each_sentence(text, |_, sentence| all.push(sentence.to_owned()));
        all
    }

    #[test]
    fn messages_are_split_into_sentences() {
        let check = |text: &str, expect: &[&str]| assert_eq!(sentences(text), expect, "{text}");
        check("The port is 4512. Is it open? Yes!", &["The port is 4512.", "Is it open?", "Yes!"]);
        check(
            "Ask Dr. Weber, e.g. about v1.2.3 of no. 5.",
            &["Ask Dr. Weber, e.g. about v1.2.3 of no. 5."],
        );
        check("See https://a.org/b?c=1. Then go!", &["See https://a.org/b?c=1.", "Then go!"]);
        check("- one\n- two\n1. three\n## Four", &["one", "two", "three", "Four"]);
        check("before\n```\nlet x = 5;\n```\nafter", &["before", "after"]);
        check("> quoted\nmine", &["mine"]);
        check("/// The port is 4512.\n/* never change it */\n<!-- nor this -->\nmine", &["mine"]);
        check(
            "ci is red again. i was at lunch, e.g. with dr. weber. the port is 4512. ok?",
            &[
                "ci is red again.",
                "i was at lunch, e.g. with dr. weber.",
                "the port is 4512.",
                "ok?",
            ],
        );
        check(
            "Meine Mutter hat am 3. Oktober Geburtstag. Am 27. Mai fliegen wir. Wir sind 5. Mehr nicht.",
            &[
                "Meine Mutter hat am 3. Oktober Geburtstag.",
                "Am 27. Mai fliegen wir.",
                "Wir sind 5.",
                "Mehr nicht.",
            ],
        );
        check(
            "Edie, his sister, is allergic to nuts, so should I label it? The db is 40 MB, is that big?",
            &[
                "Edie, his sister, is allergic to nuts",
                "so should I label it?",
                "The db is 40 MB",
                "is that big?",
            ],
        );
        for one in [
            "If the port is 80, what do I open?",
            "Where do they meet, is it in the hall?",
            "I could come on Monday, should I?",
            "We had rain, did the garden, went home.",
            "We like the small one, right?",
        ] {
            check(one, &[one]);
        }
        check("My shift starts at 7. Monday is off.", &["My shift starts at 7.", "Monday is off."]);
        check(
            "am 3. mai ist es so weit.. glaube ich",
            &["am 3. mai ist es so weit..", "glaube ich"],
        );
        check("端口是48213。记住它！好吗？", &["端口是48213。", "记住它！", "好吗？"]);
        check("المنفذ هو 5432. هل هو مفتوح؟ نعم", &["المنفذ هو 5432.", "هل هو مفتوح؟", "نعم"]);
        check("पोर्ट 5432 है। यह खुला है।", &["पोर्ट 5432 है।", "यह खुला है।"]);
        check(
            "a line that an editor wrapped at a column of about seventy-two is\ncontinued here",
            &["a line that an editor wrapped at a column of about seventy-two is continued here"],
        );
        check("  12  The port is 4512.\n\t7| let x\n4512 is the port", &["4512 is the port"]);
        check("", &[]);
    }

    #[test]
    fn long_quotation_in_lines_of_its_own_is_no_sentence() {
        let pasted = "I keep 40 hens in Larkspur. ".repeat(8);
        let check = |text: &str, expect: &[&str]| assert_eq!(sentences(text), expect, "{text}");
        for (open, close) in [("\"", "\""), ("“", "”"), ("„", "“"), ("„", "”"), ("«", "»")]
        {
            let text = format!("Shorten this, please.\n\n{open}{pasted}.{close}\n\nThanks.");
            check(&text, &["Shorten this, please.", "Thanks."]);
            let lines = pasted.replace(". ", ".\n");
            check(&format!("Shorten it.\n  {open}{lines}{close}\nNow."), &["Shorten it.", "Now."]);
        }
        let code = format!("```\n\"\"\"doc\n```\nMy port is 48213.\n{pasted}\n\"\"\"\n");
        assert_eq!(sentences(&code)[0], "My port is 48213.");
        check("\"Start with the ticket.\"\nFine.", &["\"Start with the ticket.\"", "Fine."]);
        // A quotation that does not end, and words in marks, are no pasted text.
        let open = format!("\"{pasted}\nMy port is 48213.");
        assert_eq!(sentences(&open).last().map(String::as_str), Some("My port is 48213."));
        let named = format!("\"Fern\" is its name. {pasted}\nMy port is 48213, I call it \"fern\"");
        assert_eq!(sentences(&named).len(), 10, "{named}");
    }

    #[test]
    fn lines_of_a_pasted_log_are_no_sentences() {
        for stamp in [
            "2026-11-0D 10:0D",
            "[2026-11-0DT10:0D:00Z]",
            "Nov 23 10:0D:22 host",
            "10:0D:22.123",
            "[WARN]",
        ] {
            let log = |n: usize| -> String {
                let line = |at: usize| stamp.replace('D', &at.to_string());
                (1..=n)
                    .map(|at| format!("{} worker {at} listens on 4800{at}\n", line(at)))
                    .collect()
            };
            let message = |n| format!("Here is it, from port 4512.\n{}What do you see?", log(n));
            assert_eq!(
                sentences(&message(3)),
                ["Here is it, from port 4512.", "What do you see?"],
                "{stamp}"
            );
            // One or two dates may be the user's own words.
            assert_eq!(sentences(&message(2)).len(), 4, "{stamp}");
        }
        let own = "10:00 standup\n11:00 review\n12:00 lunch\n13:00 call\n10.0.0.1 is the gateway";
        assert_eq!(sentences(own).len(), 5);
    }

    #[test]
    fn sentences_come_with_the_place_of_their_line() {
        let mut places = Vec::new();
        let text = "One. Two.\n\nThree\n```\ncode\n```\n- four";
        for_each_sentence(text, |at, sentence| places.push((at, sentence.to_owned())));
        let at = |sentence: &str| places.iter().find(|(_, one)| one == sentence).map(|(at, _)| *at);
        assert_eq!((at("One."), at("Two.")), (Some(0), Some(0)));
        assert_eq!((at("Three"), at("four")), (text.find("Three"), text.find("- four")));
    }

    #[test]
    fn long_message_is_read_at_both_ends() {
        let text = format!("first fact\n{}\nlast fact", "x y\n".repeat(3_000_000));
        let all = sentences(&text);
        assert_eq!((all[0].as_str(), all[all.len() - 1].as_str()), ("first fact", "last fact"));
        assert!(all.len() < 20_000);
        assert!(sentences(&"9".repeat(10_000_000)).is_empty(), "a line without end is data");
        let quoted = sentences(&"\"a port\n".repeat(1_000_000));
        assert!(quoted.len() > 1_000, "a quotation without end is searched once: {}", quoted.len());
    }
}
