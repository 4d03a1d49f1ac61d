//! `ollmctl man`: writes the manual pages, one for each command, from the same texts as `--help`.

use std::fs::DirBuilder;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use clap::{Args, Command};
use clap_mangen::Man;
use ollm_protocol::sanitize;
use serde_json::json;

use crate::cli;
use crate::command_context::CommandContext;
use crate::command_error::{CommandError, CommandResult};
use crate::error::ClientError;

/// Write the manual pages of ollmctl and ollmd into a directory.
#[derive(Debug, Args)]
#[command(after_help = "\
One page for each command, such as ollmctl-sessions-list.1, and ollmd.1. Files with these names are replaced.

Examples:
  ollmctl man ~/.local/share/man/man1
  man ollmctl-chat")]
pub(crate) struct ManArgs {
    /// The directory, which is created if it does not exist.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

pub(super) fn run(args: &ManArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    let mut pages = Vec::new();
    collect(&cli::whole_command(), &mut pages).map_err(CommandError::Input)?;
    pages.push(("ollmd.1".to_owned(), daemon_page(ctx)?));
    let directory = &args.directory;
    let fail = |path: &Path| {
        let path = path.to_owned();
        move |source| CommandError::File { action: "write", path, source }
    };
    DirBuilder::new().recursive(true).create(directory).map_err(fail(directory))?;
    for (name, page) in &pages {
        let path = directory.join(name);
        write(&path, page).map_err(fail(&path))?;
    }
    let value = json!({ "directory": directory.to_string_lossy(), "pages": pages.len() });
    ctx.print_value(&value, |_, _| {
        let directory = sanitize::one_line(&directory.to_string_lossy());
        format!("wrote {} pages to {directory}\n", pages.len())
    })
}

/// Collects the pages of a command and of its subcommands, with the names of their files.
fn collect(command: &Command, pages: &mut Vec<(String, Vec<u8>)>) -> io::Result<()> {
    if command.is_hide_set() {
        return Ok(());
    }
    let man = Man::new(command.clone())
        .source(concat!("ollm ", env!("CARGO_PKG_VERSION")))
        .manual("ollm");
    let mut page = Vec::new();
    man.render(&mut page)?;
    // The usual heading of further text in a manual.
    let page = String::from_utf8_lossy(&page).replace("\n.SH EXTRA\n", "\n.SH NOTES\n");
    pages.push((man.get_filename(), page.into_bytes()));
    command.get_subcommands().try_for_each(|command| collect(command, pages))
}

/// Returns the page of the daemon, which its program prints.
fn daemon_page(ctx: &CommandContext<'_>) -> CommandResult<Vec<u8>> {
    let mut command = ctx.connector().daemon_command()?;
    command.arg("--man-page").stdin(Stdio::null()).stderr(Stdio::inherit());
    let path = PathBuf::from(command.get_program());
    let fail = |source| ClientError::Start { action: "running", path, source };
    let output = command.output().map_err(fail)?;
    if output.status.success() {
        Ok(output.stdout)
    } else {
        Err(CommandError::Program { status: output.status })
    }
}

/// Replaces a file; a reader sees the old or the new one.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    let mut temporary = tempfile::Builder::new()
        // Every user of a machine reads its pages.
        .permissions(std::fs::Permissions::from_mode(0o644))
        .prefix(".man-")
        .tempfile_in(
            path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")),
        )?;
    temporary.write_all(bytes)?;
    temporary.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_visible_command_has_a_page_with_its_name_and_options() {
        let mut pages = Vec::new();
        collect(&cli::whole_command(), &mut pages).unwrap();
        let names: Vec<&str> = pages.iter().map(|(name, _)| name.as_str()).collect();
        for name in
            ["ollmctl.1", "ollmctl-chat.1", "ollmctl-sessions-list.1", "ollmctl-service-install.1"]
        {
            assert!(names.contains(&name), "{name}: {names:?}");
        }
        for (name, page) in &pages {
            let text = String::from_utf8_lossy(page);
            let command = name.trim_end_matches(".1").replace('-', "\\-");
            assert!(text.contains(".SH NAME") && text.contains(&command), "{name}: {text}");
            assert!(text.contains("\\-\\-json"), "{name}");
        }
    }
}
