//! `ollmctl context`: the context that a model is sent. `window` and `build` show contexts, `entries`, `facts` and `compact`
//! change them; pins are here.

mod build;
pub(super) mod compact;
pub(super) mod entries;
mod facts;
pub(super) mod window;

use clap::{Args, Subcommand};
use ollm_protocol::content::{Record, RecordKind};
use ollm_protocol::method::{ContextPin, ContextUnpin};
use ollm_protocol::methods::context::{ContextPinParams, ContextPinResult};
use ollm_protocol::{Seq, SessionId};

use crate::args::parse_seq;
use crate::args::session::SessionFlag;
use crate::command_context::CommandContext;
use crate::command_error::{CommandError, CommandResult};
use crate::commands::chat::session::last_on_branch;
use crate::render::RenderOptions;
use entries::budget_line;

/// Show and change the context that a model is sent.
#[derive(Debug, Subcommand)]
#[command(defer = true)]
pub(crate) enum ContextCommand {
    Status(window::StatusArgs),
    Inspect(window::InspectArgs),
    Build(build::BuildArgs),
    Entries(entries::EntriesArgs),
    Facts(facts::FactsArgs),
    /// Keep a message or a tool call in every later context.
    #[command(after_help = "\
Examples:
  ollmctl context pin
  ollmctl context pin 12 --session last")]
    Pin(PinArgs),
    /// Unpin a message or a tool call.
    #[command(after_help = "\
Examples:
  ollmctl context unpin 12")]
    Unpin(PinArgs),
    Compact(compact::CompactArgs),
    Checkpoints(compact::CheckpointsArgs),
}

#[derive(Debug, Args)]
pub(crate) struct PinArgs {
    /// The number of the record, as in `sessions view` [default: that of the last message].
    #[arg(value_name = "N", value_parser = parse_seq)]
    seq: Option<Seq>,
    #[command(flatten)]
    session: SessionFlag,
}

pub(super) fn run(command: ContextCommand, ctx: &mut CommandContext<'_>) -> CommandResult {
    match command {
        ContextCommand::Status(args) => window::status(&args, ctx),
        ContextCommand::Inspect(args) => window::inspect(args, ctx),
        ContextCommand::Build(args) => build::build(args, ctx),
        ContextCommand::Entries(args) => entries::run(args, ctx),
        ContextCommand::Facts(args) => facts::run(args, ctx),
        ContextCommand::Pin(args) => pin(&args, true, ctx),
        ContextCommand::Unpin(args) => pin(&args, false, ctx),
        ContextCommand::Compact(args) => compact::compact(args, ctx),
        ContextCommand::Checkpoints(args) => compact::checkpoints(&args, ctx),
    }
}

fn pin(args: &PinArgs, pinned: bool, ctx: &mut CommandContext<'_>) -> CommandResult {
    let example = if pinned { "context pin N" } else { "context unpin N" };
    let session_id = args.session.id_or_current(example, ctx)?;
    let seq = args.seq.map_or_else(|| last_message(session_id, ctx), Ok)?;
    let params = ContextPinParams { session_id, seq };
    if pinned {
        ctx.show::<ContextPin>(&params, render_pins)
    } else {
        ctx.show::<ContextUnpin>(&params, render_pins)
    }
}

/// Returns the number of the last message on the active branch.
fn last_message(session_id: SessionId, ctx: &mut CommandContext<'_>) -> CommandResult<Seq> {
    let is_message = |record: &Record| record.kind == RecordKind::Message;
    let records = last_on_branch(session_id, 1, is_message, ctx)?;
    let last = records.iter().rev().find(|record| is_message(record)).map(|record| record.seq);
    last.ok_or_else(|| CommandError::not_found("there are no messages yet", "ollmctl chat"))
}

/// Returns the numbers of the pinned records.
fn render_pins(result: &ContextPinResult, _: &RenderOptions) -> String {
    if result.data.is_empty() {
        return "nothing is pinned\n".to_owned();
    }
    let pinned: Vec<String> = result.data.iter().map(|pin| format!("#{}", pin.seq)).collect();
    format!("pinned: {}\n{}", pinned.join(", "), budget_line(result.tokens, result.token_limit))
}
