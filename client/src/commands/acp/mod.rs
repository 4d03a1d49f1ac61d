//! `ollmctl acp`: ACP, the Agent Client Protocol, between editors and agents: an agent for editors, or a proxy for the agent
//! of somebody else.

mod proxy;

use std::io::IsTerminal as _;

use clap::Args;

use self::proxy::ProxyArgs;
use crate::acp::{AgentSettings, serve};
use crate::command_context::CommandContext;
use crate::command_error::{CommandError, CommandResult};
use crate::completion;

/// Serve an editor over stdin and stdout by ACP, the Agent Client Protocol, or keep what it and another agent say.
#[derive(Debug, Args)]
#[command(after_help = "\
Editors start this command themselves; in Zed:

  \"agent_servers\": { \"ollm\": { \"type\": \"custom\", \"command\": \"ollmctl\", \"args\": [\"acp\"] } }

Their threads are sessions of the daemon: with search, recall, compaction and undo, and `ollmctl` shows them too. The MCP \
servers of the editor are tools of the model. `ollmctl sessions permissions` lists what you allowed.

`--unstable-v2` follows the draft of the crate agent-client-protocol-schema 1.20.0, commit c0945895.

With the command line of another agent behind `--`, that agent answers, and every byte passes unchanged. Beside it, the \
conversation becomes a session: prompts, answers, thoughts, tool calls and the files that they touched. In Zed, the \
arguments are then [\"acp\", \"--\", \"opencode\", \"acp\"].

Examples:
  ollmctl acp
  ollmctl acp --model qwen3:8b
  ollmctl acp -- opencode acp
  ollmctl acp --recall --mcp -- gemini --acp")]
pub(crate) struct AcpArgs {
    /// The model of new sessions [default: the configured one].
    #[arg(long, short, value_name = "MODEL", add = completion::models(), conflicts_with = "agent")]
    model: Option<String>,
    /// Speak version 2 of the protocol with an editor that asks for it: a draft, which changes with each release.
    #[arg(long, conflicts_with = "agent")]
    unstable_v2: bool,
    #[command(flatten)]
    proxy: ProxyArgs,
}

pub(super) fn run(args: AcpArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    if !args.proxy.agent.is_empty() {
        return proxy::run(&args.proxy, ctx);
    }
    if std::io::stdin().is_terminal() {
        let problem = "an editor starts this command, and talks to it over stdin and stdout";
        return Err(CommandError::usage(problem, "ollmctl acp --help"));
    }
    let settings = AgentSettings {
        connector: ctx.connector().clone().with_show_waiting(|_| Box::new(|| {})),
        flags: ctx.global_flags(),
        model: args.model,
        speaks_v2: args.unstable_v2,
    };
    serve(settings)
}
