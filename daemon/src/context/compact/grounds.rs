//! The grounds of a summary: whether its values occur in the records that it replaces.
//!
//! Small models write about their task in place of the conversation, and invent names and numbers. Values are compared by
//! their form, so the language does not matter.

use super::numbers::*;
use super::request::{SummaryOptions, SummaryRequest};
use super::retention::prompt_text;
use super::summary::{Summary, without_bullet};
use super::values::{SearchedText, has_names, values};

/// The words of the task that a line about the task has.
const TASK_WORDS: &str = "summary summarize notes bullet bullets heading headings section sections instructions constraints";

/// The texts that the model of a summary was shown.
pub(super) struct Grounds {
    /// The records and the notes before.
    material: String,
    /// All texts.
    whole: SearchedText,
}

impl Grounds {
    pub(super) fn new(request: SummaryRequest<'_>, options: &SummaryOptions<'_>) -> Self {
        let previous = request.previous().into_iter().map(Summary::render);
        let texts: Vec<String> =
            std::iter::once(request.material().to_owned()).chain(previous).collect();
        let material = texts.join("\n");
        // The chat shows some records whole that the request has shortened.
        let chat = options.chat.map_or_else(String::new, |chat| prompt_text(chat.messages));
        let demands = [options.goal, options.instructions].map(Option::unwrap_or_default);
        let whole = SearchedText::new(&[&material, &chat, demands[0], demands[1]].join("\n"));
        Self { material, whole }
    }

    /// Returns some values of a summary that no text names, if these are most of its values.
    pub(super) fn invented(&self, summary: &Summary) -> Option<String> {
        // The numbers of lists are no values.
        let lines: Vec<&str> = summary.all_lines().map(|(_, line)| without_bullet(line)).collect();
        let text = lines.join("\n");
        // Names in another script are translated.
        let names = has_names(&text) && is_mostly_latin(&text) == is_mostly_latin(&self.material);
        let all = values(&text, names);
        let is_invented = |value: &&_| !self.whole.has(value);
        let unknown: Vec<&str> =
            all.iter().filter(is_invented).map(|value| value.text.as_str()).collect();
        let is_most = unknown.len() >= MIN_INVENTED && unknown.len() * 2 > all.len();
        is_most.then(|| unknown[..MAX_INVENTED_NAMED.min(unknown.len())].join(", "))
    }

    /// Returns whether a line, as [`words`] returns it, is about the task of writing a summary: it has words of the task that
    /// the records do not have.
    pub(super) fn is_about_the_task(&self, said: &str) -> bool {
        let has = |text: &str, word: &str| text.split(' ').any(|one| one == word);
        let named = TASK_WORDS.split(' ').filter(|word| has(said, word));
        named.clone().count() >= MIN_TASK_WORDS && {
            let known = words(&self.material);
            named.filter(|word| !has(&known, word)).count() >= MIN_TASK_WORDS
        }
    }
}

/// Returns the words of a text in lower case, with one space between them.
pub(super) fn words(text: &str) -> String {
    let words = text.split(|char: char| !char.is_alphanumeric()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join(" ").to_lowercase()
}

/// Returns whether most letters of a text are Latin ones without accents.
fn is_mostly_latin(text: &str) -> bool {
    let letters = text.chars().filter(|char| char.is_alphabetic());
    let (n_letters, n_latin) = letters.fold((0_usize, 0_usize), |(all, latin), char| {
        (all + 1, latin + usize::from(char.is_ascii()))
    });
    n_latin * 2 > n_letters
}

#[cfg(test)]
mod tests {
    use ollm_protocol::Seq;
    use ollm_protocol::content::{ContextMessage, Role};

    use super::super::request::{ChatPrompt, ShownRecords, TranscriptPiece};
    use super::*;

    fn with_grounds<T>(records: &str, check: impl FnOnce(Grounds) -> T) -> T {
        let piece = TranscriptPiece { from: Seq(1), to: Seq(9), text: records.to_owned() };
        check(Grounds::new(SummaryRequest::First(&piece), &SummaryOptions::default()))
    }

    fn invented(records: &str, summary: &str) -> Option<String> {
        with_grounds(records, |grounds| grounds.invented(&Summary::parse(summary)))
    }

    #[test]
    fn summary_of_invented_names_and_numbers_is_recognized() {
        let records = "[#1 user] What is TCP slow start?\n[#2 assistant] TCP begins with 10 segments, says RFC 6928.";
        let made_up = "## Progress\n- It was introduced in 1970 by Herbert Bix.\n- Then came BULKSTREE and the tool \
            `treedb` on port 8081.\n- TCP is older.";
        assert!(invented(records, made_up).is_some_and(|values| values.contains("1970")));
        let true_one = "## Progress\n- the user asked about TCP slow start\n- RFC 6928 was named; 4 of 5 steps are done \
            on 2026-03-05";
        assert_eq!(invented(records, true_one), None);
        // The chat shows the texts whole that the request has shortened.
        let piece = TranscriptPiece { from: Seq(1), to: Seq(9), text: records.to_owned() };
        let messages = [ContextMessage::text(Role::User, made_up)];
        let chat = ChatPrompt { messages: &messages, shows: ShownRecords::Nothing };
        let behind = SummaryOptions { chat: Some(chat), ..SummaryOptions::default() };
        let with_goal = SummaryOptions { goal: Some(made_up), ..SummaryOptions::default() };
        for options in [behind, with_goal] {
            let grounds = Grounds::new(SummaryRequest::First(&piece), &options);
            assert_eq!(grounds.invented(&Summary::parse(made_up)), None);
        }
    }

    #[test]
    fn values_in_another_language_are_grounded_by_their_form() {
        let records =
            "[#1 user] Анна сказала, что порт 48213, а сервер в Москве. Позвони Ивану и Марии.";
        let summary = "## Goal\n- call Ivan and Maria\n## Critical context\n- says Anna: the port is 48213, the server \
            is in Moscow";
        assert_eq!(invented(records, summary), None);
    }

    #[test]
    fn line_about_the_task_is_recognized() {
        let check = |records: &str, line: &str| {
            with_grounds(records, |grounds| grounds.is_about_the_task(&words(line)))
        };
        let line = "The next step would be to write the summary if you follow the instructions.";
        assert!(check("[#1 user] What is a lexer?", line));
        assert!(!check("[#1 user] Write a summary of the instructions.", line));
        assert!(!check("[#1 user] What is a lexer?", "the summary of the lexer is done"));
    }
}
