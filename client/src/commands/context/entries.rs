//! `ollmctl context entries`, `context pin` and `context unpin`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use ollm_protocol::content::ContextScope;
use ollm_protocol::method::{
    ContextAddEntry, ContextListEntries, ContextPin, ContextRemoveEntry, ContextUnpin,
};
use ollm_protocol::methods::context::{
    ContextAddEntryParams, ContextAddEntryResult, ContextListEntriesParams,
    ContextListEntriesResult, ContextPinParams, ContextPinResult, ContextRemoveEntryParams,
    ContextSource,
};
use ollm_protocol::{Seq, SessionId, sanitize};

use crate::args::session::OPTIONAL_SESSION_HELP;
use crate::args::wire_enum::wire_enum;
use crate::args::{TextUse, completers, text_or_stdin};
use crate::command_context::{CallReply, CommandContext};
use crate::command_error::CommandError;
use crate::project::{self, session_or_current};
use crate::render::RenderOptions;
use crate::render::table::{self, TableColumn};
use crate::render::units::{counted, grouped};

const ENTRY_TEXT: TextUse = TextUse {
    verb: "add",
    command: "context entries add",
    example: "ollmctl context entries add style 'Answer briefly.' --global",
};

const SOURCE_HELP: [&str; 3] =
    ["A program that runs beside the conversation", "A part of a client", "A person"];

/// Show and set the texts with which every context begins.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
An entry applies to a session, to all sessions of a project, or to all sessions. Lower priorities come first.

Examples:
  ollmctl context entries
  ollmctl context entries add style 'Answer briefly.' --global
  ollmctl context entries remove style --global"
)]
pub(crate) struct EntriesArgs {
    #[command(flatten)]
    scope: ScopeArgs,
    #[command(subcommand)]
    command: Option<EntriesCommand>,
}

#[derive(Debug, Args)]
#[group(multiple = false)]
struct ScopeArgs {
    /// Entries of one session: an id, a unique prefix of one, or `last` [default: the current session of this
    /// directory's project].
    #[arg(long, global = true, value_name = "SESSION", add = completers::sessions())]
    session: Option<String>,
    /// Entries of all sessions of the project in this directory.
    #[arg(long, global = true, value_name = "DIR")]
    project: Option<PathBuf>,
    /// Entries of all sessions.
    #[arg(long, global = true)]
    global: bool,
}

#[derive(Debug, Subcommand)]
enum EntriesCommand {
    /// List the entries in force, in the order in which they are sent; `entries` alone does the same.
    #[command(after_help = "\
Examples:
  ollmctl context entries list --session last
  ollmctl context entries list --global")]
    List,
    /// Set an entry; replaces one with the same key.
    #[command(after_help = "\
An entry of a session overrides the entry of its project with the same key, and that one the global entry.

Examples:
  ollmctl context entries add style 'Answer briefly.' --global
  ollmctl context entries add rules --project . --priority 10 'Never touch main.rs.'
  ./rules.sh | ollmctl context entries add rules --source hook -")]
    Add(AddEntryArgs),
    /// Remove an entry; an entry with the same key and a wider scope takes effect again.
    #[command(after_help = "\
Examples:
  ollmctl context entries remove style --global")]
    Remove(RemoveEntryArgs),
}

#[derive(Debug, Args)]
struct AddEntryArgs {
    /// The name of the entry.
    key: String,
    /// The text; `-`, or no text behind a pipe, reads stdin.
    text: Option<String>,
    /// Entries with lower numbers come first [default: 100].
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    priority: Option<i32>,
    /// The contributor of the entry.
    #[arg(long, default_value = "user", value_parser = wire_enum::<ContextSource>(&SOURCE_HELP))]
    source: ContextSource,
}

#[derive(Debug, Args)]
struct RemoveEntryArgs {
    /// The name of the entry.
    key: String,
}

#[derive(Debug, Args)]
pub(crate) struct PinArgs {
    /// The number of the record, as in `sessions view`.
    #[arg(value_name = "N")]
    seq: u64,
    #[arg(
        long,
        value_name = "SESSION",
        help = OPTIONAL_SESSION_HELP,
        add = completers::sessions()
    )]
    session: Option<String>,
}

pub(super) fn run(args: EntriesArgs, ctx: &mut CommandContext<'_>) -> Result<(), CommandError> {
    let (session_id, project_path) = match &args.scope {
        ScopeArgs { global: true, .. } => (None, None),
        ScopeArgs { project: Some(given), .. } => {
            (None, Some(project::canonical_path(Some(given))?))
        }
        ScopeArgs { session, .. } => {
            (Some(session_or_current(session.as_deref(), "context entries", ctx)?), None)
        }
    };
    let scope = args.scope.global.then_some(ContextScope::Global);
    match args.command.unwrap_or(EntriesCommand::List) {
        EntriesCommand::List => {
            let params = ContextListEntriesParams { session_id, project_path };
            let reply = ctx.call::<ContextListEntries>(&params)?;
            ctx.print(&reply, render_list)
        }
        EntriesCommand::Add(add) => {
            let params = ContextAddEntryParams {
                session_id,
                project_path,
                scope,
                key: add.key,
                content: text_or_stdin(add.text.as_deref(), &ENTRY_TEXT)?,
                priority: add.priority,
                source: Some(add.source),
            };
            let reply = ctx.call::<ContextAddEntry>(&params)?;
            ctx.print(&reply, |added, _| render_added(added))
        }
        EntriesCommand::Remove(remove) => {
            let key = remove.key;
            let params = ContextRemoveEntryParams { session_id, project_path, scope, key };
            let reply = ctx.call::<ContextRemoveEntry>(&params)?;
            ctx.print(&reply, |result, _| {
                let text = if result.removed { "removed" } else { "there was no such entry" };
                format!("{text}\n")
            })
        }
    }
}

pub(super) fn pin(
    args: &PinArgs,
    pinned: bool,
    ctx: &mut CommandContext<'_>,
) -> Result<(), CommandError> {
    let example = if pinned { "context pin N" } else { "context unpin N" };
    let session_id = session_or_current(args.session.as_deref(), example, ctx)?;
    let reply = set_pin(session_id, Seq(args.seq), pinned, ctx)?;
    ctx.print(&reply, |result, _| render_pins(result))
}

/// Pins or unpins a record.
pub(in crate::commands) fn set_pin(
    session_id: SessionId,
    seq: Seq,
    pinned: bool,
    ctx: &mut CommandContext<'_>,
) -> Result<CallReply<ContextPinResult>, CommandError> {
    let params = ContextPinParams { session_id, seq };
    Ok(if pinned { ctx.call::<ContextPin>(&params)? } else { ctx.call::<ContextUnpin>(&params)? })
}

/// Returns the numbers of the pinned records.
pub(in crate::commands) fn render_pins(result: &ContextPinResult) -> String {
    if result.data.is_empty() {
        return "nothing is pinned\n".to_owned();
    }
    let pinned: Vec<String> = result.data.iter().map(|pin| format!("#{}", pin.seq)).collect();
    format!("pinned: {}\n{}", pinned.join(", "), budget_line(result.tokens, result.limit))
}

fn render_list(listed: &ContextListEntriesResult, options: &RenderOptions) -> String {
    if listed.data.is_empty() {
        return "no entries\n".to_owned();
    }
    let columns = [
        ("KEY", TableColumn::Word),
        ("SCOPE", TableColumn::Word),
        ("SOURCE", TableColumn::Word),
        ("PRIORITY", TableColumn::Number),
        ("TEXT", TableColumn::Prose),
    ];
    let rows: Vec<Vec<String>> = listed
        .data
        .iter()
        .map(|entry| {
            vec![
                sanitize::one_line(&entry.key),
                entry.scope.as_str().to_owned(),
                sanitize::one_line(&entry.source),
                entry.priority.to_string(),
                sanitize::one_line(&entry.content),
            ]
        })
        .collect();
    table::render(options.width, &columns, &rows) + &budget_line(listed.tokens, listed.limit)
}

fn render_added(added: &ContextAddEntryResult) -> String {
    let outcome = if added.changed { "set" } else { "was set already" };
    let (key, scope) = (sanitize::one_line(&added.entry.key), added.entry.scope.as_str());
    format!("{key} {outcome} ({scope})\n{}", budget_line(added.tokens, added.limit))
}

fn budget_line(tokens: u64, limit: u64) -> String {
    format!("{} of at most {}\n", counted(tokens, "token"), grouped(limit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{plain, render_options};

    #[test]
    fn list_is_in_the_order_of_sending_with_its_budget() {
        let entry = |key: &str, scope: &str| {
            serde_json::json!({ "key": key, "content": "Be\nbrief. \u{1b}[2J", "priority": 5,
                "source": "user", "scope": scope })
        };
        let value = serde_json::json!({ "data": [entry("tone", "global"), entry("style", "session")],
            "addition": "", "tokens": 12, "limit": 1392 });
        let text = render_list(&serde_json::from_value(value).unwrap(), &render_options(60));
        assert_eq!(
            plain(&text),
            "\
KEY    SCOPE    SOURCE  PRIORITY  TEXT
tone   global   user           5  Be brief.
style  session  user           5  Be brief.
12 tokens of at most 1,392
"
        );
    }
}
