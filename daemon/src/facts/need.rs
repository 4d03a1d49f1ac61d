//! Judges whether a message needs something said earlier that its prompt does not show.
//!
//! Most turns go on with what the prompt has. Searching for them costs room and the model server's time, and brings back what
//! only looks alike. So greetings, thanks and a go-ahead need nothing.

use super::candidate::{SentenceReading, read_sentence};
use super::features::{Feature, SentencePlace};
use super::numbers::*;
use super::sentences::for_each_sentence;
use super::values::FactValueKind;

/// The reason for which a message needs earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecallNeed {
    /// Asks about something.
    Question,
    /// Points back: `the one that we discussed last time`.
    PointsBack,
    /// Names something that the prompt does not have.
    UnknownValue,
}

/// Returns why a message needs earlier ones, or `None` if it does not.
///
/// `is_shown`: whether the rest of the prompt has a value.
pub(crate) fn recall_need(message: &str, is_shown: &dyn Fn(&str) -> bool) -> Option<RecallNeed> {
    // The values of pasted text are what the message is about.
    let may_name = message.len() < LONG_MESSAGE_BYTES;
    let mut need = None;
    for_each_sentence(message, |_, sentence| {
        if need.is_none()
            && let Some(reading) = read_sentence(sentence, SentencePlace::default())
        {
            need = need_of(&reading, may_name, is_shown);
        }
    });
    need
}

fn need_of(
    reading: &SentenceReading,
    may_name: bool,
    is_shown: &dyn Fn(&str) -> bool,
) -> Option<RecallNeed> {
    let has = |feature| reading.features.has(feature);
    let is_about_something = !reading.subject.is_empty() || !reading.values.is_empty();
    let mut named = reading.values.iter().filter(|value| match value.kind {
        FactValueKind::Number => value.text.chars().count() >= MIN_NAMED_NUMBER_CHARS,
        FactValueKind::Date | FactValueKind::Symbol => false,
        _ => true,
    });
    if has(Feature::Asked) && is_about_something && !has(Feature::Courtesy) {
        Some(RecallNeed::Question)
    } else if has(Feature::Back) && is_about_something {
        Some(RecallNeed::PointsBack)
    } else if may_name && named.any(|value| !is_shown(&value.text)) {
        Some(RecallNeed::UnknownValue)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn need(message: &str) -> Option<RecallNeed> {
        recall_need(message, &|value| value == "src/known.rs")
    }

    #[test]
    fn questions_and_pointers_to_earlier_talk_need_earlier_messages() {
        let check = |message: &str, expect| assert_eq!(need(message), Some(expect), "{message}");
        check("Which port does staging use?", RecallNeed::Question);
        check("ok. and when is the flight to Oslo?", RecallNeed::Question);
        check("Wie heißt die Buchhalterin?", RecallNeed::Question);
        check("端口是多少？", RecallNeed::Question);
        check("Use the color that I mentioned last time.", RecallNeed::PointsBack);
        check("Rename it in src/other.rs too.", RecallNeed::UnknownValue);
        check("Write to Annegret that it is done.", RecallNeed::UnknownValue);
    }

    #[test]
    fn greetings_thanks_and_going_on_need_nothing() {
        for message in [
            "Hi!",
            "Great going!",
            "continue",
            "yes, do that",
            "Thanks, that works.",
            "Good morning, how are you?",
            "Rename it in src/known.rs too.",
            "ok, now fix the test and run it",
            "haha nice",
            "",
        ] {
            assert_eq!(need(message), None, "{message}");
        }
    }
}
