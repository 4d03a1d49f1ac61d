//! `ollmctl acp`: an agent for editors that speak ACP, the Agent Client Protocol.

use std::io::IsTerminal as _;

use clap::Args;

use crate::acp::{AgentSettings, serve};
use crate::command_context::CommandContext;
use crate::command_error::{CommandError, CommandResult};
use crate::completion;

/// Serve an editor over stdin and stdout: an agent of ACP, the Agent Client Protocol.
#[derive(Debug, Args)]
#[command(after_help = "\
Editors start this command themselves; in Zed:

  \"agent_servers\": { \"ollm\": { \"type\": \"custom\", \"command\": \"ollmctl\", \"args\": [\"acp\"] } }

Their threads are sessions of the daemon: with search, recall, compaction and undo, and `ollmctl` shows them too. The MCP \
servers of the editor are tools of the model. `ollmctl sessions permissions` lists what you allowed.

Examples:
  ollmctl acp
  ollmctl acp --model qwen3:8b")]
pub(crate) struct AcpArgs {
    /// The model of new sessions [default: the configured one].
    #[arg(long, short, value_name = "MODEL", add = completion::models())]
    model: Option<String>,
}

pub(super) fn run(args: AcpArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    if std::io::stdin().is_terminal() {
        let problem = "an editor starts this command, and talks to it over stdin and stdout";
        return Err(CommandError::usage(problem, "ollmctl acp --help"));
    }
    let settings = AgentSettings {
        connector: ctx.connector().clone().with_show_waiting(|_| Box::new(|| {})),
        flags: ctx.global_flags(),
        model: args.model,
    };
    serve(settings)
}
