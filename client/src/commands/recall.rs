//! `ollmctl recall` and `/recall`: the messages that answer a question.

use std::path::PathBuf;

use clap::Args;
use ollm_protocol::method::ContextRecall;
use ollm_protocol::methods::context::{ContextRecallParams, ContextRecallResult};
use ollm_protocol::sanitize;

use crate::args::text_or_stdin;
use crate::command_context::CommandContext;
use crate::command_error::CommandResult;
use crate::completion;
use crate::project;
use crate::render::session_table::{short_id, title};
use crate::render::units::{ago, counted};
use crate::render::{RenderOptions, Style, table};

/// Find what was said about a question, in all sessions.
#[derive(Debug, Args)]
#[command(after_help = "\
The question is asked in plain words: messages with more of its rarer words come first. \
`ollmctl sessions search` finds exact words instead.

Examples:
  ollmctl recall 'which port does staging use?'
  ollmctl recall 'what did we decide about retries?' --project .
  ollmctl recall 'who reviews billing?' --session last --limit 3")]
pub(crate) struct RecallArgs {
    /// The question; read from stdin if it is `-`, or if it is missing and stdin is a pipe.
    question: Option<String>,
    /// Only in one session: an id, a unique prefix of one, or `last`.
    #[arg(long, value_name = "SESSION", conflicts_with = "project", add = completion::sessions())]
    session: Option<String>,
    /// Only in sessions of the project in DIR.
    #[arg(long, value_name = "DIR")]
    project: Option<PathBuf>,
    /// The maximum number of messages.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=100))]
    limit: u32,
}

pub(crate) fn run(args: &RecallArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    let example = "ollmctl recall 'which port does staging use?'";
    let query = text_or_stdin(args.question.as_deref(), "recall", example)?;
    let params = ContextRecallParams {
        query,
        session_id: args.session.as_deref().map(|session| ctx.session(session)).transpose()?,
        project_path: project::filter_path(args.project.as_deref())?,
        limit: Some(args.limit),
        ..ContextRecallParams::default()
    };
    ctx.show::<ContextRecall>(&params, render)
}

/// Shows what was said about a question in all sessions.
pub(crate) fn recall(question: String, ctx: &mut CommandContext<'_>) -> CommandResult {
    let params = ContextRecallParams { query: question, ..ContextRecallParams::default() };
    ctx.show::<ContextRecall>(&params, render)
}

/// Returns the place and the excerpt of each message.
fn render(result: &ContextRecallResult, options: &RenderOptions) -> String {
    let mut text = String::new();
    for hit in &result.data {
        let id = short_id(&hit.session_id);
        let place = format!("#{} {}, {}", hit.seq, hit.role.as_str(), ago(hit.at, options.now));
        let room = options.width.saturating_sub(id.len() + place.len() + 4);
        text.push_str(&format!(
            "{}  {place}  {}\n",
            Style::Strong.paint(&id),
            Style::Faint.paint(&table::clip(&title(&hit.title), room)),
        ));
        for line in sanitize::text(&hit.excerpt).lines().filter(|line| !line.trim().is_empty()) {
            text.push_str(&format!("    {}\n", line.replace('\t', " ").trim_end()));
        }
    }
    if result.data.is_empty() {
        text.push_str("nothing found\n");
    }
    if let Some(behind) = result.behind.filter(|behind| *behind > 0) {
        let sessions = counted(behind, "session");
        text.push_str(&format!("the latest records of {sessions} are not indexed yet\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{plain, render_options};

    #[test]
    fn message_has_its_place_its_lines_and_no_control_characters() {
        let hit = serde_json::json!({
            "sessionId": "0192f0c1-9a3b-7000-8000-000000000001", "title": "Ports", "seq": 3,
            "role": "assistant", "at": "2026-01-27T09:00:00Z",
            "excerpt": "user: Which port?\nassistant: 6100\u{1b}[31m.\n", "score": 1.0, "matched": ["port"]
        });
        let result = serde_json::from_value::<ContextRecallResult>(
            serde_json::json!({ "data": [hit], "tokens": 9, "behind": 1 }),
        )
        .unwrap();
        assert_eq!(
            plain(&render(&result, &render_options(80))),
            "\
0192f0c1-9a3b  #3 assistant, 1 h ago  Ports
    user: Which port?
    assistant: 6100.
the latest records of 1 session are not indexed yet
"
        );
        let empty = ContextRecallResult { data: Vec::new(), tokens: 0, behind: None };
        assert_eq!(render(&empty, &render_options(80)), "nothing found\n");
    }
}
