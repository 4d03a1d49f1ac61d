//! `ollmctl context entries`: the texts with which every context begins.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use ollm_protocol::content::ContextScope;
use ollm_protocol::method::{ContextAddEntry, ContextListEntries, ContextRemoveEntry};
use ollm_protocol::methods::context::{
    ContextAddEntryParams, ContextAddEntryResult, ContextListEntriesParams,
    ContextListEntriesResult, ContextRemoveEntryParams, ContextSource,
};
use ollm_protocol::sanitize;

use crate::args::{text_or_stdin, wire_enum};
use crate::command_context::CommandContext;
use crate::command_error::CommandResult;
use crate::completion;
use crate::project::{self, session_or_current};
use crate::render::table;
use crate::render::table::TableColumn::{Number, Prose, Word};
use crate::render::units::{counted, grouped};
use crate::render::{RenderOptions, wire_name};

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
    /// Entries of one session: an id, a unique end or beginning of one, or `last` [default: the current session of this
    /// directory's project].
    #[arg(long, global = true, value_name = "SESSION", add = completion::sessions())]
    session: Option<String>,
    /// Entries of all sessions of the project in DIR.
    #[arg(long, global = true, value_name = "DIR")]
    project: Option<PathBuf>,
    /// Entries of all sessions.
    #[arg(long, global = true)]
    global: bool,
}

#[derive(Debug, Subcommand)]
#[command(defer = true)]
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
    Add {
        /// The name of the entry.
        key: String,
        /// The text; read from stdin if it is `-`, or if it is missing and stdin is a pipe.
        text: Option<String>,
        /// Entries with lower numbers come first [default: 100].
        #[arg(long, value_name = "N", allow_negative_numbers = true)]
        priority: Option<i32>,
        /// The contributor of the entry.
        #[arg(long, default_value = "user", value_parser = wire_enum::<ContextSource>(&SOURCE_HELP))]
        source: ContextSource,
    },
    /// Remove an entry; an entry with the same key and a wider scope takes effect again.
    #[command(after_help = "\
Examples:
  ollmctl context entries remove style --global")]
    Remove {
        /// The name of the entry.
        key: String,
    },
}

pub(super) fn run(args: EntriesArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
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
            ctx.show::<ContextListEntries>(&params, render_list)
        }
        EntriesCommand::Add { key, text, priority, source } => {
            let params = ContextAddEntryParams {
                session_id,
                project_path,
                scope,
                key,
                content: text_or_stdin(
                    text.as_deref(),
                    "context entries add",
                    "ollmctl context entries add style 'Answer briefly.' --global",
                )?,
                priority,
                source: Some(source),
            };
            ctx.show::<ContextAddEntry>(&params, render_added)
        }
        EntriesCommand::Remove { key } => {
            let params = ContextRemoveEntryParams { session_id, project_path, scope, key };
            ctx.show::<ContextRemoveEntry>(&params, |result, _| {
                let text = if result.removed { "removed" } else { "there was no such entry" };
                format!("{text}\n")
            })
        }
    }
}

fn render_list(listed: &ContextListEntriesResult, options: &RenderOptions) -> String {
    if listed.data.is_empty() {
        return "no entries\n".to_owned();
    }
    let columns =
        [("KEY", Word), ("SCOPE", Word), ("SOURCE", Word), ("PRIORITY", Number), ("TEXT", Prose)];
    let rows = listed.data.iter().map(|entry| {
        [
            sanitize::one_line(&entry.key),
            wire_name(entry.scope),
            sanitize::one_line(&entry.source),
            entry.priority.to_string(),
            sanitize::one_line(&entry.content),
        ]
    });
    table::render(options.width, &columns, rows) + &budget_line(listed.tokens, listed.token_limit)
}

fn render_added(added: &ContextAddEntryResult, _: &RenderOptions) -> String {
    let outcome = if added.changed { "set" } else { "was set already" };
    let (key, scope) = (sanitize::one_line(&added.entry.key), wire_name(added.entry.scope));
    format!("{key} {outcome} ({scope})\n{}", budget_line(added.tokens, added.token_limit))
}

pub(crate) fn budget_line(tokens: u64, limit: u64) -> String {
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
            "addition": "", "tokens": 12, "tokenLimit": 1392 });
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
