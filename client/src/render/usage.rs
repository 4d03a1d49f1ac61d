//! What an answer cost, on one line.

use ollm_protocol::content::CountKind;
use ollm_protocol::methods::chat::ChatUsage;
use ollm_protocol::sanitize;

use super::number::{counted, grouped};
use super::style::Style;
use super::window::level;

/// `Context: 5,234/6,963 (75 %) · qwen3:8b · 41.2 tokens/s`, the latter part faint.
pub(crate) fn line(usage: &ChatUsage, model: &str) -> String {
    let percent = (usage.context_tokens * 100).checked_div(usage.prompt_limit).unwrap_or_default();
    let (used, limit) = (grouped(usage.context_tokens), grouped(usage.prompt_limit));
    let mut facts = Vec::new();
    if usage.count_kind.is_some_and(|kind| kind != CountKind::Exact) {
        facts.push("estimated".to_owned());
    }
    facts.push(sanitize::one_line(model));
    facts.extend(speed(usage));
    if let Some(effective) = usage.effective_context.filter(|size| *size < usage.requested_context)
    {
        facts.push(format!(
            "the server's window has only {} of {} tokens",
            grouped(effective.into()),
            grouped(usage.requested_context.into())
        ));
    }
    let facts = Style::Faint.paint(&format!(" · {}", facts.join(" · ")));
    let compactions = match usage.compression_count {
        0 => String::new(),
        count => format!(" {}{}", counted(count, "compaction"), level(usage.reliability.as_ref())),
    };
    format!("Context: {used}/{limit} ({percent} %){compactions}{facts}")
}

/// Why an answer that came to an end of its own is not whole.
pub(crate) fn cut(usage: &ChatUsage) -> String {
    let window = usage.effective_context.unwrap_or(usage.requested_context);
    let after = usage
        .answer_tokens
        .map_or_else(String::new, |tokens| format!(" after {}", counted(tokens, "token")));
    format!("the answer is cut{after}: the window of {} is full", grouped(window.into()))
}

#[expect(clippy::cast_precision_loss, reason = "one decimal is shown")]
fn speed(usage: &ChatUsage) -> Option<String> {
    let (tokens, ms) = (usage.answer_tokens?, usage.answering_ms.filter(|ms| *ms > 0)?);
    Some(format!("{:.1} tokens/s", tokens as f64 * 1000.0 / ms as f64))
}

#[cfg(test)]
mod tests {
    use anstream::adapter::strip_str;

    use super::*;

    #[test]
    fn the_line_says_how_full_the_context_is() {
        let mut usage = ChatUsage {
            context_tokens: 5234,
            prompt_limit: 6963,
            count_kind: Some(CountKind::Exact),
            answer_tokens: Some(412),
            answering_ms: Some(10_000),
            requested_context: 8192,
            effective_context: Some(8192),
            ..ChatUsage::default()
        };
        let check = |usage: &ChatUsage, expect: &str| {
            assert_eq!(strip_str(&line(usage, "qwen3:8b")).to_string(), expect);
        };
        check(&usage, "Context: 5,234/6,963 (75 %) · qwen3:8b · 41.2 tokens/s");
        usage.compression_count = 2;
        check(&usage, "Context: 5,234/6,963 (75 %) 2 compactions · qwen3:8b · 41.2 tokens/s");
        usage.compression_count = 0;
        usage.count_kind = Some(CountKind::Estimated);
        usage.effective_context = Some(4096);
        check(
            &usage,
            "Context: 5,234/6,963 (75 %) · estimated · qwen3:8b · 41.2 tokens/s · the server's window has only 4,096 of 8,192 tokens",
        );
        assert_eq!(cut(&usage), "the answer is cut after 412 tokens: the window of 4,096 is full");
        check(&ChatUsage::default(), "Context: 0/0 (0 %) · qwen3:8b");
    }
}
