//! What repeats in a session, for people.

use ollm_protocol::content::LoopPattern;
use ollm_protocol::methods::loops::LoopStatusResult;
use ollm_protocol::sanitize;

use super::style::Style;

/// Digits of a digest that are enough to be compared by eye.
const SHOWN_DIGITS: usize = 8;

/// What repeats, in words.
pub(crate) fn pattern(pattern: &LoopPattern) -> String {
    sanitize::one_line(&pattern.to_string())
}

/// The loop in force, how near the limits are, and the newest calls.
pub(crate) fn status(status: &LoopStatusResult) -> String {
    let mut text = match (&status.detected, status.enabled) {
        (_, false) => "detection is off (loopDetection.enabled)\n".to_owned(),
        (None, true) => "no loop\n".to_owned(),
        (Some(found), true) => format!("{} {}\n", Style::Bad.paint("loop:"), pattern(found)),
    };
    text.push_str(&format!(
        "{} of {} model calls since the last user message; {} repetitions are a loop\n",
        status.turns_since_user, status.max_turns, status.repeat_threshold
    ));
    let width = status.recent.iter().map(|call| call.seq.to_string().len()).max().unwrap_or(0);
    for call in &status.recent {
        let short = |digest: &str| digest.chars().take(SHOWN_DIGITS).collect::<String>();
        let result = call.output.as_deref().map_or_else(|| "no result".to_owned(), short);
        let seq = format!("#{}", call.seq);
        let tool = sanitize::one_line(&call.tool);
        let digest = sanitize::one_line(&short(&call.call));
        text.push_str(&format!("  {seq:<0$}  {digest} -> {result}  {tool}\n", width + 1));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_names_what_repeats_and_shows_the_calls() {
        let value = serde_json::json!({
            "enabled": true,
            "detected": { "kind": "cycle", "tools": ["a\u{1b}[2J", "b"], "count": 2 },
            "turnsSinceUser": 4, "maxTurns": 50, "repeatThreshold": 3,
            "recent": [
                { "seq": 9, "tool": "a", "call": "0011223344556677", "output": "8899aabbccddeeff" },
                { "seq": 10, "tool": "b", "call": "0011223344556688" }
            ]
        });
        let text = status(&serde_json::from_value(value).unwrap());
        assert_eq!(
            anstream::adapter::strip_str(&text).to_string(),
            "\
loop: a, b went round 2 times
4 of 50 model calls since the last user message; 3 repetitions are a loop
  #9   00112233 -> 8899aabb  a
  #10  00112233 -> no result  b
"
        );
    }
}
