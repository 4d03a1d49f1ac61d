//! `ollmctl acp`: ACP, the Agent Client Protocol, between editors and agents.

mod proxy;

use clap::Args;

use self::proxy::ProxyArgs;
use crate::command_context::CommandContext;
use crate::command_error::CommandResult;

/// Keep what an editor and its agent say to each other (a proxy for ACP, the Agent Client Protocol).
#[derive(Debug, Args)]
#[command(after_help = "\
An editor starts this command in place of its agent, whose command line follows the `--`. Every byte passes unchanged. \
Beside it, the conversation becomes a session: prompts, answers, thoughts, tool calls and the files that they touched. \
`ollmctl recall` finds it, `ollmctl sessions export` writes it. In Zed:

  \"agent_servers\": { \"opencode\": { \"type\": \"custom\", \"command\": \"ollmctl\", \"args\": [\"acp\", \"--\", \"opencode\", \"acp\"] } }

Examples:
  ollmctl acp -- opencode acp
  ollmctl acp --recall --mcp -- gemini --acp")]
pub(crate) struct AcpArgs {
    #[command(flatten)]
    proxy: ProxyArgs,
}

pub(crate) fn run(args: &AcpArgs, ctx: &CommandContext<'_>) -> CommandResult {
    proxy::run(&args.proxy, ctx)
}
