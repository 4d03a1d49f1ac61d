//! The user's own editor, for a long message.

use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::process::Command;

use crate::address::variables;
use crate::command_context::CommandContext;
use crate::command_error::{CommandError, CommandResult};
use crate::regular_file::open_input;

/// The variables that name the editor, the first one that is set.
const VARIABLES: [&str; 2] = ["VISUAL", "EDITOR"];
/// The editors that are tried without a variable.
const USUAL: [&str; 3] = ["nano", "vi", "vim"];

/// Lets the user edit a text in the editor of `$VISUAL` or `$EDITOR`, and returns it.
///
/// **Errors**: there is no editor, it fails, or the text is not UTF-8 then.
pub(super) fn edit(text: &str, ctx: &mut CommandContext<'_>) -> CommandResult<String> {
    let editor = editor(ctx)?;
    ctx.terminal.flush()?;
    let mut file = tempfile::Builder::new()
        .prefix("ollm-message-")
        .suffix(".md")
        .tempfile()
        .map_err(CommandError::Input)?;
    file.write_all(text.as_bytes()).and_then(|()| file.flush()).map_err(CommandError::Input)?;
    // A shell reads the variable, as it may have arguments.
    let mut script = editor.clone();
    script.push(" \"$1\"");
    let status = Command::new("sh").arg("-c").arg(&script).arg("sh").arg(file.path()).status();
    let problem = match status {
        Ok(status) if status.success() => None,
        Ok(status) => Some(format!("the editor {} failed: {status}", editor.display())),
        Err(error) => Some(format!("the editor {} cannot be started: {error}", editor.display())),
    };
    if let Some(problem) = problem {
        return Err(CommandError::usage(problem, "export EDITOR=nano, and start the chat again"));
    }
    // Many editors replace the file, so its path is opened again.
    let mut edited = String::new();
    let read = open_input(file.path()).and_then(|mut file| file.read_to_string(&mut edited));
    read.map_err(CommandError::Input)?;
    edited.truncate(edited.trim_end_matches('\n').len());
    Ok(edited)
}

/// Returns the command line of the editor.
fn editor(ctx: &CommandContext<'_>) -> CommandResult<OsString> {
    let variables = variables();
    let named = VARIABLES.iter().find_map(|name| {
        let found = variables.iter().find(|(other, value)| other == name && !value.is_empty());
        found.map(|(_, value)| value.clone())
    });
    let usual = || {
        let found = USUAL.iter().find(|name| ctx.environment.find_program(name).is_some());
        found.map(OsString::from)
    };
    named.or_else(usual).ok_or_else(|| {
        CommandError::usage("no editor was found", "export EDITOR=nano, and start the chat again")
    })
}
