//! One question, one answer.

use serde_json::json;

use super::super::record::piped;
use super::super::{CommandError, Cx};
use super::screen::{Lines, Screen};
use super::talk::Talk;
use super::turns::{Outcome, Turns};
use super::{Manner, ask};
use crate::cli::ChatArgs;

/// The shortest fence around a text from a pipe; it is longer than any within.
const MIN_FENCE: usize = 3;

/// What is asked: the words of the command line, and what comes through a pipe. `None` where nothing does.
pub(super) fn question(given: Option<&str>) -> Result<Option<String>, CommandError> {
    let given = given.filter(|text| *text != "-");
    if super::is_typed() {
        return match given {
            Some(text) if text.trim().is_empty() => Err(empty()),
            other => Ok(other.map(str::to_owned)),
        };
    }
    let piped = piped("chat")?;
    let question = joined(given.unwrap_or_default(), &piped);
    if question.trim().is_empty() { Err(empty()) } else { Ok(Some(question)) }
}

fn empty() -> CommandError {
    CommandError::usage("there is no question", "ollmctl chat 'How do I reverse a list?'")
}

/// A text from a pipe stands behind the question, between fences that do not occur in it.
fn joined(question: &str, piped: &str) -> String {
    if piped.trim().is_empty() {
        return question.to_owned();
    }
    if question.trim().is_empty() {
        return piped.to_owned();
    }
    let runs = piped.split(|char| char != '`').map(str::len);
    let fence = "`".repeat(runs.max().unwrap_or(0).saturating_add(1).max(MIN_FENCE));
    format!("{question}\n\nstdin:\n{fence}\n{}\n{fence}", piped.trim_end_matches('\n'))
}

pub(super) fn run(
    args: &ChatArgs,
    question: String,
    mut talk: Talk,
    mut turns: Turns,
    cx: &mut Cx<'_>,
) -> Result<(), CommandError> {
    let manner = Manner { think: args.thinking() };
    let outcome = if cx.json() {
        let first = json!({ "kind": "session", "sessionId": talk.id(cx)? });
        cx.terminal.print_raw(&format!("{first}\n")).map_err(CommandError::Output)?;
        ask(&mut talk, Some(&question), manner, (&mut turns, &mut Lines), cx)?
    } else {
        let mut screen = Screen::default();
        let outcome = ask(&mut talk, Some(&question), manner, (&mut turns, &mut screen), cx)?;
        if let Some(cost) = screen.cost().filter(|_| cx.terminal.is_watched()) {
            cx.terminal.note(&cost);
        }
        outcome
    };
    match outcome {
        Outcome::Done => Ok(()),
        Outcome::Canceled | Outcome::Left => {
            let hint = Some("ollmctl chat --continue".to_owned());
            Err(CommandError::Canceled { hint })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piped_text_stands_apart_behind_the_question() {
        let check = |question, piped, expect: &str| assert_eq!(joined(question, piped), expect);
        check("why?", "", "why?");
        check("", "text\n", "text\n");
        check("why?", "a\nb\n", "why?\n\nstdin:\n```\na\nb\n```");
        check("why?", "```\nx\n```\n", "why?\n\nstdin:\n````\n```\nx\n```\n````");
    }
}
