use clap::{CommandFactory as _, Parser as _};

use super::Cli;

fn every_command(command: &clap::Command, visit: &mut impl FnMut(&clap::Command)) {
    visit(command);
    for sub in command.get_subcommands() {
        every_command(sub, visit);
    }
}

/// Splits a line as a shell would, up to the first pipe or redirection.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quote = None;
    for char in line.chars() {
        match (quote, char) {
            (Some(open), close) if open == close => quote = None,
            (None, '\'' | '"') => quote = Some(char),
            (None, '|' | '>') => break,
            (None, ' ') => words.push(String::new()),
            (_, other) => words.last_mut().unwrap().push(other),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

#[test]
fn the_definition_is_sound_and_every_command_and_argument_is_explained() {
    Cli::command().debug_assert();
    every_command(&Cli::command(), &mut |command| {
        assert!(command.get_about().is_some(), "{} has no sentence", command.get_name());
        for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
            assert!(
                arg.get_help().is_some() || matches!(arg.get_id().as_str(), "help" | "version"),
                "{} {} has no sentence",
                command.get_name(),
                arg.get_id()
            );
        }
    });
}

#[test]
fn every_example_parses() {
    let mut examples = 0;
    every_command(&Cli::command(), &mut |command| {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        for line in help.lines() {
            let own = line
                .trim()
                .rsplit_once("| ollmctl")
                .map_or_else(|| line.trim().to_owned(), |(_, own)| format!("ollmctl{own}"));
            if own.starts_with("ollmctl ") {
                examples += 1;
                if let Err(error) = Cli::try_parse_from(words(&own)) {
                    panic!("{own}\n{error}");
                }
            }
        }
    });
    assert!(examples > 20, "{examples} examples were found");
}

#[test]
fn what_cannot_be_meant_is_refused() {
    let check = |line: &str| assert!(Cli::try_parse_from(words(line)).is_err(), "{line}");
    check("ollmctl sessions clear");
    check("ollmctl sessions cleanup");
    check("ollmctl record --new --session last hello");
    check("ollmctl --timeout 0 socket");
    check("ollmctl --timeout never socket");
    check("ollmctl sessions list --limit 0");
}

#[cfg(unix)]
#[test]
fn arguments_that_are_not_utf_8_are_refused_or_taken_but_never_panic() {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt as _;

    let odd = OsString::from_vec(b"/tmp/\xff".to_vec());
    let arguments = |line: &str| -> Vec<OsString> {
        line.split(' ').map(OsString::from).chain([odd.clone()]).collect()
    };
    assert!(Cli::try_parse_from(arguments("ollmctl sessions import")).is_ok());
    assert!(Cli::try_parse_from(arguments("ollmctl sessions view")).is_err());
    assert!(Cli::try_parse_from(arguments("ollmctl call")).is_err());
}
