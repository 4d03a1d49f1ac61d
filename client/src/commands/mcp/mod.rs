//! `ollmctl mcp`: the MCP server, and its entry in the settings of MCP clients.
//!
//! - `clients`: the clients, their files and the form of an entry.
//! - `json_file`, `toml_file`, `yaml_file`: an entry in a file, beside everything else in it.
//! - `entry`: adds and removes it, and checks that nothing else changed.

mod clients;
mod entry;
mod json_file;
mod toml_file;
mod yaml_file;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use ollm_protocol::sanitize;
use serde::Serialize;

use self::clients::{ClientFile, ClientName};
use self::entry::SettingsChange;
use crate::args::wire_enum;
use crate::command_context::CommandContext;
use crate::command_error::{CommandError, CommandResult};
use crate::mcp;

/// Let programs that speak MCP recall your conversations (an MCP server on stdin and stdout).
///
/// Without a subcommand this is the server, which a program starts: Claude Code, codex, an editor. Its tools recall and
/// read earlier messages, list sessions, find why a file was changed, and remember texts. Nothing can be deleted or
/// executed with them. The project is that of the program.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ollmctl mcp install claude-code
  ollmctl mcp install codex --dry-run
  ollmctl mcp install vscode --project --yes
  ollmctl mcp uninstall codex")]
pub(crate) struct McpArgs {
    #[command(subcommand)]
    command: Option<McpCommand>,
}

#[derive(Debug, Subcommand)]
enum McpCommand {
    /// Add the server to the settings of a client, after showing the change.
    ///
    /// Comments and the order of the file stay. The file as it was is kept beside it, with the ending .before-ollm.
    Install(McpInstallArgs),
    /// Take back what `mcp install` added, and nothing else.
    Uninstall(McpInstallArgs),
}

/// The client whose settings change.
#[derive(Debug, Args)]
struct McpInstallArgs {
    /// The client.
    #[arg(value_parser = wire_enum::<ClientName>(&[]))]
    client: ClientName,
    /// Change the settings of the project in this directory instead of yours.
    #[arg(long)]
    project: bool,
    /// Do not ask.
    #[arg(long, short, conflicts_with = "dry_run")]
    yes: bool,
    /// Show the change and make none.
    #[arg(long)]
    dry_run: bool,
}

/// The outcome for a file.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct McpOutcome {
    client: ClientName,
    path: PathBuf,
    /// Whether the file is or would be changed.
    changed: bool,
    dry_run: bool,
    /// The file as it was before the first installation; absent if there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    copy: Option<PathBuf>,
}

pub(crate) fn run(args: &McpArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    match &args.command {
        None => serve(ctx),
        Some(McpCommand::Install(args)) => {
            let file = file_of(args, ctx)?;
            let change = SettingsChange::install(&file)?;
            apply(args, &file, &change, "install", ctx)
        }
        Some(McpCommand::Uninstall(args)) => {
            let file = file_of(args, ctx)?;
            let change = SettingsChange::uninstall(&file)?;
            apply(args, &file, &change, "uninstall", ctx)
        }
    }
}

fn serve(ctx: &CommandContext<'_>) -> CommandResult {
    if ctx.terminal.can_ask() {
        ctx.note(
            "this is an MCP server for other programs; `ollmctl mcp install CLIENT` adds it to one",
        );
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(CommandError::Thread)?;
    let home = ctx.environment.user_home.clone();
    let served = mcp::serve(ctx.connector().clone(), std::env::current_dir().ok(), home);
    let result = runtime.block_on(served);
    // A call whose client has left is not awaited.
    runtime.shutdown_background();
    result
}

fn file_of(args: &McpInstallArgs, ctx: &CommandContext<'_>) -> CommandResult<ClientFile> {
    let address = ctx.connector().address();
    let mut flags: Vec<OsString> = Vec::new();
    // The client does not have the variables of this shell.
    if !args.project && ctx.environment.default_home().as_deref() != Some(address.home()) {
        flags.extend(["--home".into(), address.home().into()]);
    }
    if let Some(socket) = address.socket().filter(|_| !args.project) {
        flags.extend(["--socket".into(), socket.into()]);
    }
    let flags = flags.into_iter().map(OsString::into_string).collect::<Result<Vec<_>, _>>();
    let flags = flags.map_err(|path| CommandError::PathNotUtf8 { path: path.into() })?;
    ClientFile::find(args.client, args.project, flags, ctx.environment)
}

fn apply(
    args: &McpInstallArgs,
    file: &ClientFile,
    change: &SettingsChange,
    verb: &str,
    ctx: &mut CommandContext<'_>,
) -> CommandResult {
    let path = sanitize::one_line(&file.path.to_string_lossy());
    let diff = change.difference(&path);
    let outcome = |changed, copy| McpOutcome {
        client: args.client,
        path: file.path.clone(),
        changed,
        dry_run: args.dry_run,
        copy,
    };
    if change.is_nothing() {
        let state =
            if verb == "install" { "has the server already" } else { "does not have the server" };
        return ctx.print_value(&outcome(false, None), |_, _| format!("{path} {state}\n"));
    }
    if args.dry_run {
        return ctx.print_value(&outcome(true, None), |_, _| diff);
    }
    if !args.yes && !ctx.confirm(&format!("change {path}"), "changed", |_| diff)? {
        return Ok(());
    }
    let copy = change.write(file)?;
    let name = args.client.name();
    let project = if args.project { " --project" } else { "" };
    ctx.print_value(&outcome(true, copy), |outcome, _| {
        let mut text = format!("changed {path}\n");
        if let Some(copy) = &outcome.copy {
            let copy = sanitize::one_line(&copy.to_string_lossy());
            text.push_str(&format!("as it was: {copy}\n"));
        }
        if verb == "install" {
            let start = file.client.start_hint();
            text.push_str(&format!(
                "{start}\ntake it back: ollmctl mcp uninstall {name}{project}\n"
            ));
        }
        text
    })
}
