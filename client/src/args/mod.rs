//! Arguments that several commands share: sessions, roles, numbers of seconds, and texts from the command line or
//! stdin; and the completers of the shell.

pub(crate) mod completers;
pub(crate) mod session;

use std::io::{IsTerminal as _, Read as _};
use std::time::Duration;

use clap::ValueEnum;
use ollm_protocol::content::Role;

use crate::command_error::CommandError;

/// A role as an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RoleArg {
    /// Instructions to the model.
    System,
    /// The user.
    User,
    /// The model.
    Assistant,
    /// The output of a tool.
    Tool,
}

impl From<RoleArg> for Role {
    fn from(role: RoleArg) -> Self {
        match role {
            RoleArg::System => Self::System,
            RoleArg::User => Self::User,
            RoleArg::Assistant => Self::Assistant,
            RoleArg::Tool => Self::Tool,
        }
    }
}

/// The argument is not a number of seconds.
#[derive(Debug, thiserror::Error)]
#[error("must be a number of seconds above 0")]
pub(crate) struct InvalidSeconds;

/// Parses a number of seconds above 0.
pub(crate) fn parse_seconds(text: &str) -> Result<Duration, InvalidSeconds> {
    let seconds = text.parse::<f64>().map_err(|_| InvalidSeconds)?;
    Duration::try_from_secs_f64(seconds).ok().filter(|wait| !wait.is_zero()).ok_or(InvalidSeconds)
}

/// The use of a text argument, for errors.
pub(crate) struct TextUse {
    /// For example `record`: "there is no text to record".
    pub(crate) verb: &'static str,
    pub(crate) command: &'static str,
    pub(crate) example: &'static str,
}

/// Returns the argument, or all of stdin if the argument is `-` or is missing and stdin is no terminal.
pub(crate) fn text_or_stdin(given: Option<&str>, usage: &TextUse) -> Result<String, CommandError> {
    match given {
        Some(text) if text != "-" => Ok(text.to_owned()),
        None if std::io::stdin().is_terminal() => {
            let problem = format!("there is no text to {}", usage.verb);
            Err(CommandError::usage(problem, usage.example))
        }
        _ => read_stdin(usage.command),
    }
}

/// Reads all of stdin for a command.
pub(crate) fn read_stdin(command: &'static str) -> Result<String, CommandError> {
    let mut bytes = Vec::new();
    std::io::stdin().read_to_end(&mut bytes).map_err(|source| CommandError::File {
        action: "read",
        path: "-".into(),
        source,
    })?;
    utf8_from_stdin(bytes, command)
}

fn utf8_from_stdin(bytes: Vec<u8>, command: &'static str) -> Result<String, CommandError> {
    String::from_utf8(bytes).map_err(|error| CommandError::NotUtf8 {
        path: "-".into(),
        offset: error.utf8_error().valid_up_to() as u64,
        command,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stdin_must_be_utf8() {
        assert_eq!(utf8_from_stdin("naïve".into(), "record").unwrap(), "naïve");
        let error = utf8_from_stdin(b"na\xefve".to_vec(), "record").unwrap_err();
        assert!(matches!(error, CommandError::NotUtf8 { offset: 2, command: "record", .. }));
    }
}
