//! The service files of systemd and launchd must agree with the defaults of daemon and client.

use std::path::Path;

use super::{read, report, root};

/// Returns the values of a key in a unit file.
fn unit_values<'a>(unit: &'a str, key: &str) -> Vec<&'a str> {
    unit.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('=')).collect()
}

/// Returns the value that follows a key in a property list, without its tag.
fn plist_value<'a>(plist: &'a str, key: &str) -> &'a str {
    let after = plist.split_once(&format!("<key>{key}</key>")).map_or("", |(_, after)| after);
    let value = after.split_once('>').map_or("", |(_, value)| value);
    value.split('<').next().unwrap_or_default()
}

/// Returns the value of a constant in a source file, as it is written there.
fn constant(path: &str, name: &str) -> String {
    let source = read(&root().join(path));
    let line = source.lines().find(|line| line.contains(&format!("const {name}:")));
    let value = line.and_then(|line| line.split_once(" = ")).map(|(_, value)| value);
    value.unwrap_or_default().trim_end_matches(';').trim_matches('"').to_owned()
}

#[test]
fn service_files_agree_with_the_defaults() {
    let socket = read(&root().join("systemd/ollmd.socket"));
    let service = read(&root().join("systemd/ollmd.service"));
    let agent = read(&root().join("launchd/org.ollm.ollmd.plist"));
    let exit_locked = constant("daemon/src/daemon/start.rs", "EXIT_LOCKED");
    let label = constant("client/src/service/mod.rs", "LAUNCHD_AGENT");
    let default_sockets = ollm_protocol::address::candidates(Path::new("%h/.ollm"), 1000);

    let checks = [
        (
            "ListenStream",
            unit_values(&socket, "ListenStream"),
            default_sockets[1].to_str().unwrap(),
        ),
        ("SocketMode", unit_values(&socket, "SocketMode"), "0600"),
        ("DirectoryMode", unit_values(&socket, "DirectoryMode"), "0700"),
        ("Requires", unit_values(&service, "Requires"), "ollmd.socket"),
        ("ExecStart", unit_values(&service, "ExecStart"), "%h/.cargo/bin/ollmd"),
        ("EnvironmentFile", unit_values(&service, "EnvironmentFile"), "-%h/.ollm/service.env"),
        ("UMask", unit_values(&service, "UMask"), "0077"),
        ("RestartPrevent", unit_values(&service, "RestartPreventExitStatus"), &exit_locked),
        ("Label", vec![plist_value(&agent, "Label")], &label),
        ("Umask", vec![plist_value(&agent, "Umask")], "63"),
        ("Core", vec![plist_value(&agent, "Core")], "0"),
    ];
    let wrong = checks.iter().filter(|(_, values, expected)| *values != [*expected]);
    let problems: Vec<String> = wrong
        .map(|(key, values, expected)| format!("{key} is {values:?} instead of {expected:?}"))
        .collect();
    report(&problems);
    assert!(agent.contains("exec \"$HOME/.cargo/bin/ollmd\""), "launchd starts another program");
}
