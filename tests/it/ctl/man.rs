//! The manual pages that `ollmctl man` writes.

use std::collections::BTreeSet;

use crate::harness::Sandbox;

/// Returns the subcommands that the help of a command lists.
fn subcommands(sandbox: &Sandbox, words: &[String]) -> Vec<String> {
    let help = sandbox.ctl(words.iter().map(String::as_str).chain(["-h"])).ok();
    let list = help.split_once("\nCommands:\n").map_or("", |(_, list)| list);
    let lines = list.lines().take_while(|line| !line.is_empty());
    // The lines of a text that is wrapped begin further right.
    let names =
        lines.filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' ')));
    names.filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

#[test]
fn each_command_has_a_page_and_so_has_the_daemon() {
    let sandbox = Sandbox::new();
    let directory = sandbox.path("share/man/man1");
    let printed = sandbox.ctl(["man", directory.to_str().unwrap()]).ok();
    let mut expected = BTreeSet::from(["ollmd.1".to_owned()]);
    let mut pending = vec![Vec::new()];
    while let Some(words) = pending.pop() {
        let name = ["ollmctl"].into_iter().chain(words.iter().map(String::as_str));
        expected.insert(format!("{}.1", name.collect::<Vec<_>>().join("-")));
        pending.extend(subcommands(&sandbox, &words).into_iter().map(|name| {
            let mut words = words.clone();
            words.push(name);
            words
        }));
    }
    let entries = std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name());
    let found: BTreeSet<String> = entries.map(|name| name.into_string().unwrap()).collect();
    assert_eq!(found, expected);
    assert!(found.len() > 50, "{found:?}");
    assert!(printed.starts_with(&format!("wrote {} pages to ", found.len())), "{printed}");
    let daemon = std::fs::read_to_string(directory.join("ollmd.1")).unwrap();
    assert!(daemon.contains("\\-\\-check\\-config") && !daemon.contains("ready\\-fd"), "{daemon}");
    // A second time, as an update does.
    sandbox.ctl(["man", directory.to_str().unwrap()]).ok();
}
