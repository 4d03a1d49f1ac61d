//! `ollmctl sessions files`: the files that a session read and changed.

use clap::Args;
use ollm_protocol::method::SessionFiles;
use ollm_protocol::methods::session::files::{
    FileOnDisk, SessionFile, SessionFilesParams, SessionFilesResult,
};
use ollm_protocol::sanitize;

use crate::args::session::OptionalSessionArg;
use crate::command_context::CommandContext;
use crate::command_error::CommandResult;
use crate::render::units::{ago, counted};
use crate::render::{RenderOptions, Style};

/// List the files that a session read and changed, and whether they are still as it knows them.
#[derive(Debug, Args)]
#[command(after_help = "\
A file that something else changed since, such as an editor, is marked: what the model read of it is no longer true.

Examples:
  ollmctl sessions files
  ollmctl sessions files last --stale --json")]
pub(crate) struct FilesArgs {
    #[command(flatten)]
    session: OptionalSessionArg,
    /// Only files that were changed or removed since.
    #[arg(long)]
    stale: bool,
    /// The maximum number of files.
    #[arg(long, value_name = "N", default_value = "50", value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
}

pub(super) fn run(args: &FilesArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    let session_id = args.session.id_or_current("sessions files", ctx)?;
    let (stale, limit) = (args.stale, Some(args.limit));
    let params = SessionFilesParams { session_id, stale, limit, cursor: None };
    ctx.show::<SessionFiles>(&params, |result, options| render(result, stale, options))
}

fn render(result: &SessionFilesResult, only_stale: bool, options: &RenderOptions) -> String {
    let mut text: String = match (result.data.is_empty(), only_stale && result.total > 0) {
        (true, true) => "no file was changed since the session used it\n".to_owned(),
        (true, false) => "the session used no files yet\n".to_owned(),
        _ => result.data.iter().map(|file| line(file, options)).collect(),
    };
    if result.next_cursor.is_some() {
        text.push_str(&format!("... of {}; --limit shows more\n", counted(result.total, "file")));
    }
    for path in result.changed_later.iter().flatten() {
        let path = sanitize::one_line(path);
        text.push_str(&format!("{:<7} {path}  changed after the last record\n", "other"));
    }
    text
}

fn line(file: &SessionFile, options: &RenderOptions) -> String {
    let is_read = file.read_seq > file.modified_seq;
    let verb = if is_read { "read" } else { "changed" };
    let seq =
        file.read_seq.max(file.modified_seq).map(|seq| format!("#{seq}, ")).unwrap_or_default();
    let mark = match file.on_disk {
        FileOnDisk::Current => "",
        FileOnDisk::Changed => "  changed on the disk since",
        FileOnDisk::Missing => "  not on the disk any more",
        FileOnDisk::Unknown => "  not examined",
    };
    let path = sanitize::one_line(&file.path);
    let used = format!("{seq}{}", ago(file.at, options.now));
    format!("{verb:<7} {path}  {}{}\n", Style::Faint.paint(&used), Style::Bad.paint(mark))
}
