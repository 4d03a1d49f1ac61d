//! `ollmctl recall` and `/recall`: the messages that answer a question.

use std::path::PathBuf;

use clap::Args;
use ollm_protocol::method::ContextRecall;
use ollm_protocol::methods::context::{ContextRecallParams, ContextRecallResult};

use crate::args::text_or_stdin;
use crate::command_context::CommandContext;
use crate::command_error::{CommandError, CommandResult};
use crate::completion;
use crate::project;
use crate::render::RenderOptions;
use crate::render::hit::HitList;

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
    /// Only in one session: an id, a unique end or beginning of one, or `last`.
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
    if query.trim().is_empty() {
        return Err(CommandError::usage("the question is empty", example));
    }
    let params = ContextRecallParams {
        query,
        session_id: args.session.as_deref().map(|session| ctx.session(session)).transpose()?,
        project_path: project::filter_path(args.project.as_deref())?,
        limit: Some(args.limit),
        ..ContextRecallParams::default()
    };
    ctx.show::<ContextRecall>(&params, render)
}

/// Returns the place and the excerpt of each message.
fn render(result: &ContextRecallResult, options: &RenderOptions) -> String {
    let mut list = HitList::new(options);
    result.data.iter().for_each(|hit| list.add_recalled(hit));
    list.finish(false, result.behind)
}
