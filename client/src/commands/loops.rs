//! `ollmctl loop`: shows and resets the detection of loops in a session.

use clap::Subcommand;
use ollm_protocol::method::{LoopReset, LoopStatus};
use ollm_protocol::methods::loops::LoopStatusResult;
use ollm_protocol::methods::session::SessionIdParams;
use ollm_protocol::sanitize;

use crate::args::session::OptionalSessionArg;
use crate::command_context::CommandContext;
use crate::command_error::CommandResult;
use crate::render::{RenderOptions, Style};

/// Digits of a digest that are enough to compare by eye.
const SHOWN_DIGITS: usize = 8;

/// Show whether a session repeats itself, and let it continue.
#[derive(Debug, Subcommand)]
#[command(defer = true)]
pub(crate) enum LoopCommand {
    /// Show the loop that keeps a session from calling the model, if there is one, and the session's latest tool calls.
    #[command(after_help = "\
Equal calls have equal digests. Results that differ only in numbers and white space have equal digests too.

Examples:
  ollmctl loop status
  ollmctl loop status last --json")]
    Status(OptionalSessionArg),
    /// Let a session continue after a loop; detection starts over.
    #[command(after_help = "\
A new message of the user does the same.

Examples:
  ollmctl loop reset")]
    Reset(OptionalSessionArg),
}

pub(super) fn run(command: &LoopCommand, ctx: &mut CommandContext<'_>) -> CommandResult {
    match command {
        LoopCommand::Status(session) => {
            let session_id = session.id_or_current("loop status", ctx)?;
            ctx.show::<LoopStatus>(&SessionIdParams { session_id }, render)
        }
        LoopCommand::Reset(session) => {
            let session_id = session.id_or_current("loop reset", ctx)?;
            ctx.show::<LoopReset>(&SessionIdParams { session_id }, render)
        }
    }
}

/// Returns the loop, if there is one, the limits, and the latest tool calls.
fn render(status: &LoopStatusResult, _: &RenderOptions) -> String {
    let mut text = match (&status.detected, status.enabled) {
        (_, false) => "detection is off (loopDetection.enabled)\n".to_owned(),
        (None, true) => "no loop\n".to_owned(),
        (Some(found), true) => {
            let found = sanitize::one_line(&found.to_string());
            format!("{} {found}\n", Style::Bad.paint("loop:"))
        }
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
    use crate::testing::{plain, render_options};

    #[test]
    fn status_names_the_loop_and_the_latest_calls() {
        let value = serde_json::json!({
            "enabled": true,
            "detected": { "kind": "cycle", "tools": ["a\u{1b}[2J", "b"], "count": 2 },
            "turnsSinceUser": 4, "maxTurns": 50, "repeatThreshold": 3,
            "recent": [
                { "seq": 9, "tool": "a", "call": "0011223344556677", "output": "8899aabbccddeeff" },
                { "seq": 10, "tool": "b", "call": "0011223344556688" }
            ]
        });
        let text = render(&serde_json::from_value(value).unwrap(), &render_options(80));
        assert_eq!(
            plain(&text),
            "\
loop: a, b were called in turn 2 times
4 of 50 model calls since the last user message; 3 repetitions are a loop
  #9   00112233 -> 8899aabb  a
  #10  00112233 -> no result  b
"
        );
    }
}
