//! The user's own editor, for a long message.

use std::ffi::{OsStr, OsString};
use std::io::{Read as _, Write as _};
use std::process::Command;

use ollm_protocol::sanitize;
use tempfile::TempPath;

use crate::address::variables;
use crate::command_context::CommandContext;
use crate::command_error::{CommandError, CommandResult};
use crate::regular_file::open_input;

/// The variables that name the editor, the first one that is set.
const VARIABLES: [&str; 2] = ["VISUAL", "EDITOR"];
/// The editors that are tried without a variable.
const USUAL: [&str; 3] = ["nano", "vi", "vim"];
/// The way to another editor.
const OTHER_EDITOR: &str = "export EDITOR=nano, and start the chat again";

/// Lets the user edit a text in the editor of `$VISUAL` or `$EDITOR`, and returns it without escape sequences.
///
/// **Errors**: there is no editor, it fails, or its file cannot be read then. A changed text stays in the file, which the
/// error names.
pub(super) fn edit(text: &str, ctx: &mut CommandContext<'_>) -> CommandResult<String> {
    let editor = editor(ctx)?;
    ctx.terminal.flush()?;
    edited_with(&editor, text)
}

/// Lets the user edit a text with the command line of an editor.
fn edited_with(editor: &OsStr, text: &str) -> CommandResult<String> {
    let mut file = tempfile::Builder::new()
        .prefix("ollm-message-")
        .suffix(".md")
        .tempfile()
        .map_err(CommandError::Input)?;
    file.write_all(text.as_bytes()).and_then(|()| file.flush()).map_err(CommandError::Input)?;
    let path = file.into_temp_path();
    // A shell reads the variable, as it may have arguments.
    let mut script = editor.to_owned();
    script.push(" \"$1\"");
    let status = Command::new("sh").arg("-c").arg(&script).arg("sh").arg(path.as_os_str()).status();
    let status = status.map_err(|error| {
        let problem = format!("the editor {} cannot be started: {error}", editor.display());
        CommandError::usage(problem, OTHER_EDITOR)
    })?;
    // Many editors replace the file, so its path is opened again.
    let mut edited = Vec::new();
    let read = open_input(&path).and_then(|mut file| file.read_to_end(&mut edited));
    let (problem, hint) = match &read {
        Ok(_) if status.success() => {
            let mut edited = sanitize::text(&String::from_utf8_lossy(&edited));
            edited.truncate(edited.trim_end_matches('\n').len());
            return Ok(edited);
        }
        Ok(_) => (format!("the editor {} failed: {status}", editor.display()), OTHER_EDITOR),
        Err(error) => (format!("the edited text cannot be read: {error}"), ""),
    };
    let is_changed = read.is_err() || edited != text.as_bytes();
    let problem = if is_changed { with_kept_file(problem, path) } else { problem };
    Err(CommandError::usage(problem, hint))
}

/// Lets the file of a text stay, and adds its path to a problem.
fn with_kept_file(problem: String, file: TempPath) -> String {
    if !file.exists() {
        return problem;
    }
    match file.keep() {
        Ok(path) => format!("{problem}; the text is in {}", path.display()),
        Err(failed) => format!("{problem}; the text cannot be kept: {}", failed.error),
    }
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
    named.or_else(usual).ok_or_else(|| CommandError::usage("no editor was found", OTHER_EDITOR))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_text_of_a_failed_editor_is_kept() {
        for end in ["exit 1", "kill -9 $$"] {
            let editor = format!("sh -c 'printf new > \"$1\"; {end}' sh");
            let error = edited_with(editor.as_ref(), "old").unwrap_err().to_string();
            let (problem, path) = error.split_once("; the text is in ").unwrap();
            assert!(problem.starts_with("the editor "), "{error}");
            assert_eq!(std::fs::read_to_string(path).unwrap(), "new");
            std::fs::remove_file(path).unwrap();
        }
        let unchanged = edited_with("false".as_ref(), "old").unwrap_err().to_string();
        assert!(!unchanged.contains("the text is in"), "{unchanged}");
    }

    #[test]
    fn edited_text_is_sanitized_and_need_not_be_utf8() {
        let editor = r#"sh -c 'printf "a\033[2Jb\377\n\n" > "$1"' sh"#;
        assert_eq!(edited_with(editor.as_ref(), "").unwrap(), "ab\u{fffd}");
    }
}
