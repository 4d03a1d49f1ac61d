//! Contexts that the model server rejects, or that leave no room for an answer: one compaction and one more request,
//! then an error with numbers.

use std::time::Duration;

use serde_json::json;

use super::{SUMMARY, request_kinds, session};
use crate::harness::{Answer, FakeOllama, Fault, ModelSession};

/// Returns a session with enough old messages for a compaction.
fn compactable(fake: &FakeOllama) -> ModelSession {
    fake.script_summaries(Answer::text(SUMMARY));
    let mut chat = session(fake, 8192, "compression:\n  preserveRecent: 256\n");
    chat.exchanges(14);
    chat
}

/// The ways in which a model server shows that a context is too large.
#[derive(Clone, Copy, Debug)]
enum Rejection {
    /// An error before the answer.
    Error,
    /// An empty answer, cut at its token limit.
    EmptyAnswer,
}

impl Rejection {
    const ALL: [Self; 2] = [Self::Error, Self::EmptyAnswer];

    /// Makes the server reject the first requests for an answer.
    fn script(self, fake: &FakeOllama, count: usize) {
        let text = "the input length exceeds the context length".to_owned();
        let error = Fault::Error { status: 400, text };
        // The summary comes between the two requests for an answer.
        let no_fault = Fault::Delay(Duration::ZERO);
        match self {
            Self::Error => {
                fake.inject("/api/chat", &[error.clone(), no_fault, error][..2 * count - 1])
            }
            Self::EmptyAnswer => (0..count).for_each(|_| fake.script(Answer::text("").cut())),
        }
    }
}

#[test]
fn rejected_context_is_compacted_once_and_sent_again() {
    for rejection in Rejection::ALL {
        let fake = FakeOllama::new();
        let mut chat = compactable(&fake);
        rejection.script(&fake, 1);
        chat.turn("go on");
        assert_eq!(request_kinds(&fake), "ASA", "{rejection:?}");
        assert_eq!(chat.count("compaction"), 1, "{rejection:?}");
        let requests = fake.requests("/api/chat");
        let size = |at: usize| requests[at].body["messages"].to_string().len();
        assert!(size(2) < size(0), "{rejection:?}: {} {}", size(2), size(0));
    }
}

#[test]
fn context_that_is_rejected_again_is_an_error_with_numbers() {
    for rejection in Rejection::ALL {
        let fake = FakeOllama::new();
        let mut chat = compactable(&fake);
        rejection.script(&fake, 2);
        let error = chat.turn_with(chat.message("go on")).pop().unwrap();
        assert_eq!(error["kind"], "error", "{error}");
        let data = &error["data"];
        let numbers = match rejection {
            Rejection::Error => {
                assert_eq!(data["kind"], "contextOverflow", "{error}");
                ["needed", "available"]
            }
            Rejection::EmptyAnswer => {
                assert_eq!(data["reason"], "emptyAnswer", "{error}");
                ["contextTokens", "promptLimit"]
            }
        };
        for number in numbers {
            assert!(data[number].as_u64().is_some_and(|value| value > 0), "{number}: {error}");
        }
        assert_eq!(request_kinds(&fake), "ASA", "{rejection:?}");
        assert_eq!(chat.count("compaction"), 1, "{rejection:?}");
        // The next turn works, without another compaction.
        chat.turn("and now?");
        assert_eq!(chat.count("compaction"), 1, "{rejection:?}");
    }
}

#[test]
fn cut_answer_with_text_is_accepted_without_compaction() {
    let fake = FakeOllama::new();
    let mut chat = compactable(&fake);
    fake.script(Answer::text("this is only the beginning").cut());
    let events = chat.turn("go on");
    assert_eq!(events.last().unwrap()["finishReason"], json!("length"), "{events:?}");
    assert_eq!((request_kinds(&fake).as_str(), chat.count("compaction")), ("A", 0));
}
