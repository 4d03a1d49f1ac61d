//! The user guide: every command in it works as it stands there, in the order of the page.

use std::path::Path;

use crate::harness::{FakeOllama, Output, Sandbox, Terminal, program, run};

const GUIDE: &str = include_str!("../../../client/GUIDE.md");
/// The commands that need a terminal, with a text that they show first and the keys that end them.
const ON_A_TERMINAL: [(&str, &str, &[&str]); 3] = [
    ("ollmctl chat -c", "", &["/exit\r"]),
    ("ollmctl chat -r", "", &["1\r", "/exit\r"]),
    ("ollmctl ui", "Sessions of", &["q"]),
];

/// Returns the lines of the blocks that are marked as shell.
fn commands() -> Vec<&'static str> {
    let mut is_shell = false;
    let lines = GUIDE.lines().filter(|line| {
        let is_fence = line.starts_with("```");
        is_shell = if is_fence { *line == "```sh" } else { is_shell };
        is_shell && !is_fence
    });
    lines.collect()
}

/// Runs a line as a shell would, in the home of the sandbox.
fn run_line(sandbox: &Sandbox, fake: &FakeOllama, line: &str) -> Output {
    let mut command = std::process::Command::new("/bin/sh");
    sandbox.isolate(&mut command);
    let programs = program("ollmctl");
    let programs = programs.parent().map(Path::display).unwrap();
    command
        .env("PATH", format!("{programs}:/usr/bin:/bin"))
        .env("OLLM_DAEMON", program("ollmd"))
        .env("OLLAMA_HOST", fake.host())
        .args(["-c", line]);
    run(command, "")
}

/// Stops the daemon that the commands started, however the test ends.
struct StopDaemon<'a>(&'a Sandbox);

impl Drop for StopDaemon<'_> {
    fn drop(&mut self) {
        let _stopped = self.0.ctl(["daemon", "stop"]);
    }
}

#[test]
fn every_command_of_the_guide_works() {
    let fake = FakeOllama::new();
    let sandbox = Sandbox::new();
    sandbox.write_config(&fake.config("tiny"));
    let _stop = StopDaemon(&sandbox);
    // The user of the guide has the default home.
    std::os::unix::fs::symlink(sandbox.home(), sandbox.path(".ollm")).unwrap();
    std::fs::write(sandbox.path("notes.txt"), "The port is 48213.\n").unwrap();
    let commands = commands();
    assert!(commands.len() > 50, "{commands:?}");
    for line in commands {
        let Some((_, first, keys)) = ON_A_TERMINAL.iter().find(|(command, ..)| *command == line)
        else {
            let output = run_line(&sandbox, &fake, line);
            let _printed = output.ok();
            continue;
        };
        let args: Vec<&str> = line.split(' ').skip(1).collect();
        let mut terminal = Terminal::start(&sandbox, &args);
        terminal.expect(first);
        keys.iter().for_each(|keys| terminal.send(keys));
        assert_eq!(terminal.exit_code(), 0, "{line}: {}", terminal.screen());
    }
}

/// Returns the number of words that a command needs, those of its name too, by the usage line of its help.
fn n_required_words(help: &str) -> usize {
    let usage = help.lines().find_map(|line| line.strip_prefix("Usage: ollmctl"));
    let words = usage.expect("help has a usage line").split(' ').filter(|word| !word.is_empty());
    // `[OPTIONS]`, `[SESSION]...` and `[-- <FLAGS>...]` may be left out.
    words.filter(|word| !word.starts_with(['[', '-']) && !word.ends_with(']')).count()
}

#[test]
fn guide_is_short_and_names_only_commands_that_exist() {
    assert!(GUIDE.lines().count() <= 300);
    let sandbox = Sandbox::new();
    for (at, _) in GUIDE.match_indices("`ollmctl ") {
        let command = GUIDE[at + 1..].split('`').next().unwrap();
        let words: Vec<&str> = command.split(' ').skip(1).collect();
        let is_name = |word: &&str| word.chars().all(|c| c.is_ascii_lowercase());
        let names = words.iter().copied().take_while(is_name);
        let help = sandbox.ctl(names.chain(["--help"])).ok();
        let n_words = words.iter().filter(|word| !word.starts_with('-')).count();
        let is_whole = words.contains(&"--help") || n_words >= n_required_words(&help);
        assert!(is_whole, "`{command}` lacks a subcommand or an argument:\n{help}");
    }
}
