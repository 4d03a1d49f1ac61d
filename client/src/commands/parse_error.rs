//! Errors of the command line, in the form of all other errors: a sentence, and a command to type.

use std::ffi::OsString;
use std::io::IsTerminal as _;

use anstream::ColorChoice;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::exec::shell_quoted;
use crate::cli;
use crate::command_error::{CommandError, parse_error_message};
use crate::error::Exit;
use crate::render::terminal::Terminal;
use crate::render::wrap::wrap;

/// Prints help, or an error of the command line; with `--json` as JSON.
pub(super) fn report(error: &clap::Error, arguments: &[OsString]) -> Exit {
    // Without arguments, help is printed as an error, because something is missing.
    let is_help = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if !error.use_stderr() || is_help {
        // A failure to print help could not be reported anywhere.
        drop(error.print());
        if arguments.len() == 1 && std::io::stderr().is_terminal() {
            let text = "\n`ollmctl ui` shows your sessions on the whole screen.";
            Terminal::of_process(ColorChoice::Auto).eprintln(text);
        }
        return if is_help { Exit::Usage } else { Exit::Success };
    }
    let words = arguments.iter().skip(1).map(|word| word.to_string_lossy().into_owned());
    let words: Vec<String> = words.collect();
    let error = CommandError::usage(parse_error_message(error), &hint(error, &words));
    if arguments.iter().any(|argument| argument == "--json") {
        Terminal::of_process(ColorChoice::Never).eprintln(&error.to_json());
    } else {
        let terminal = Terminal::of_process(ColorChoice::Auto);
        let text = wrap(&error.to_text(), terminal.err_columns(), 2);
        terminal.eprintln(&text);
    }
    Exit::Usage
}

/// Returns the command with the word that it probably means, else the help of the command.
fn hint(error: &clap::Error, words: &[String]) -> String {
    let invalid =
        [ContextKind::InvalidSubcommand, ContextKind::InvalidValue, ContextKind::InvalidArg];
    let suggested =
        [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg, ContextKind::SuggestedValue];
    let wrong = invalid.into_iter().find_map(|kind| first(error.get(kind)?));
    let right = suggested.into_iter().find_map(|kind| first(error.get(kind)?));
    let command = cli::whole_command();
    let is_first = |name: &&String| words.iter().find(|word| !word.starts_with('-')) == Some(name);
    if let Some(name) = wrong.as_ref().filter(is_first)
        && error.kind() == ErrorKind::InvalidSubcommand
        && let Some(sessions) = command.find_subcommand("sessions")
        && sessions.find_subcommand(name).is_some()
    {
        return format!("ollmctl sessions {name} --help");
    }
    if let (Some(wrong), Some(right)) = (&wrong, right)
        && words.contains(wrong)
    {
        let meant = words.iter().map(|word| if word == wrong { &right } else { word });
        let meant: Vec<String> = meant.map(|word| shell_quoted(word)).collect();
        return format!("ollmctl {}", meant.join(" "));
    }
    let mut known = vec!["ollmctl".to_owned()];
    let mut at = &command;
    for word in words {
        let Some(sub) = at.find_subcommand(word) else { continue };
        known.push(sub.get_name().to_owned());
        at = sub;
    }
    format!("{} --help", known.join(" "))
}

/// Returns the first text of a value.
fn first(value: &ContextValue) -> Option<String> {
    match value {
        ContextValue::String(text) => Some(text.clone()),
        ContextValue::Strings(texts) => texts.first().cloned(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hint_is_the_command_that_was_probably_meant() {
        let check = |line: &str, expected: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let arguments: Vec<OsString> =
                std::iter::once("ollmctl").chain(line.split(' ')).map(OsString::from).collect();
            let error = cli::parse(&arguments, "").expect_err(line);
            assert_eq!(hint(&error, &words), expected, "{line}");
        };
        check("sesions list", "ollmctl sessions list");
        check("sessions lst --all", "ollmctl sessions list --all");
        check("sessions list --limt 3", "ollmctl sessions list --limit 3");
        check("export last", "ollmctl sessions export --help");
        check("sessions rename", "ollmctl sessions rename --help");
        check("sessions list --limit x", "ollmctl sessions list --help");
        check("undo --files previev", "ollmctl undo --files preview");
        check("snapshot view", "ollmctl snapshot --help");
        check("sesions import ~/a", "ollmctl sessions import '~/a'");
        check("nonsense", "ollmctl --help");
    }
}
