//! The model server of the benchmarks: the fake Ollama with one model, which answers by the policy of a program, and the
//! parts that policies share.

#[path = "../../../tests/it/harness/fake_server/mod.rs"]
mod fake_server;

pub(crate) use fake_server::answer::{Answer, Question};
pub(crate) use fake_server::http::{FakeServer, Step};
pub(crate) use fake_server::ollama::{FakeOllama, SCRIPTED as MODEL, wire};
pub(crate) use fake_server::openai::{EVENTS, Face, FakeOpenAi, done, event, piece};

/// The largest window of the model.
pub(crate) const TRAINED_CONTEXT: u64 = 131_072;
/// The error of a model that fails.
pub(crate) const BROKEN: &str = "the model runner has unexpectedly stopped";
/// The headings of notes. A request whose last message has all of them asks for notes.
pub(crate) const HEADINGS: [&str; 6] =
    ["Goal", "Constraints", "Progress", "Key decisions", "Next steps", "Critical context"];
/// The approximate number of characters of a token, used to cut an answer at its limit.
const CHARS_PER_TOKEN: usize = 3;

/// Returns an answer, whose text is cut at the token limit of the question.
pub(crate) fn limited(mut answer: Answer, question: &Question<'_>) -> Answer {
    let max_chars = question.max_tokens.unwrap_or(usize::MAX).saturating_mul(CHARS_PER_TOKEN);
    let text = answer.text.concat();
    if let Some((at, _)) = text.char_indices().nth(max_chars) {
        answer = answer.cut();
        answer.text = vec![text[..at].to_owned()];
    }
    answer
}

/// Returns the texts of a prompt. A message has no end mark, because a later prompt may extend it.
pub(crate) fn prompt_of(question: &Question<'_>) -> String {
    let mut prompt = question.tools.to_string();
    for message in question.messages {
        prompt.push_str(&format!("\n<{}>", message["role"].as_str().unwrap_or_default()));
        prompt.push_str(message["content"].as_str().unwrap_or_default());
        if let Some(calls) = message.get("tool_calls") {
            prompt.push_str(&calls.to_string());
        }
    }
    prompt
}

/// Returns the number of bytes with which both prompts begin.
pub(crate) fn common_bytes(a: &str, b: &str) -> usize {
    a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count()
}

/// Returns the number of words that a request for notes allows.
pub(crate) fn max_words(asked: &str) -> usize {
    let before = asked.rsplit_once(" words in all").map_or("", |(before, _)| before);
    before.rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or(200)
}
