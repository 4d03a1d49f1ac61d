//! The units of systemd: written into the templates in `systemd/`, and read from the files of a user.
//!
//! **Source**: systemd.service(5), "Command lines", tried with systemd 252. In arguments, `$` and `%` are doubled and
//! quotes escaped; in the program's path only `%` is doubled, and quotes are refused; the path of a socket is never
//! quoted. `EnvironmentFile` (systemd.exec(5)) is a pattern as of glob(7), without quotes.

use std::path::{Path, PathBuf};

use ollm_protocol::address::candidates;

use super::{ServedDaemon, UnusablePath, VARIABLES_FILE, text};

/// The service and the socket.
pub(super) const TEMPLATES: [&str; 2] =
    [include_str!("../../../systemd/ollmd.service"), include_str!("../../../systemd/ollmd.socket")];

/// The path of the socket in a home.
const DEFAULT_SOCKET: &str = "run/ollmd.sock";

/// Returns the texts of the service and of the socket.
pub(super) fn write(daemon: &ServedDaemon, user_home: &Path) -> Result<[String; 2], UnusablePath> {
    let words = daemon.words(false)?;
    if words[0].contains(['"', '\'', '\\']) {
        let what = "a quotation mark or a backslash, which systemd refuses in a program";
        return Err(UnusablePath { path: daemon.program.clone(), what });
    }
    // A dollar sign in the program's path is itself.
    let program = quote(words[0]).replace("$$", "$");
    let words: Vec<String> =
        std::iter::once(program).chain(words[1..].iter().map(|word| quote(word))).collect();
    let [service, socket] = TEMPLATES;
    let mut service = with_value(service, "ExecStart", &words.join(" "));
    if let Some(home) = &daemon.home {
        service = with_value(&service, "EnvironmentFile", &variables_file(home)?);
    }
    let default_home = user_home.join(".ollm");
    let own_socket = || socket_of(daemon.home.as_ref().unwrap_or(&default_home));
    let path = daemon.socket.clone().unwrap_or_else(own_socket);
    let socket = if path == default_home.join(DEFAULT_SOCKET) {
        socket.to_owned()
    } else {
        with_value(socket, "ListenStream", &text(&path)?.replace('%', "%%"))
    };
    debug_assert!(read(&service, &socket, user_home).as_ref() == Some(daemon), "{service}{socket}");
    Ok([service, socket])
}

/// Reads the daemon that the units run; `None` if the service has no command.
pub(super) fn read(service: &str, socket: &str, user_home: &Path) -> Option<ServedDaemon> {
    let words = words(value(service, "ExecStart")?, user_home);
    let mut daemon = ServedDaemon::from_words(words)?;
    let home = daemon.home.clone().unwrap_or_else(|| user_home.join(".ollm"));
    let listens = value(socket, "ListenStream").map(|path| PathBuf::from(expand(path, user_home)));
    daemon.socket = listens.filter(|path| *path != socket_of(&home));
    Some(daemon)
}

/// Returns the socket of a home that a unit names; every client tries it. It is the one in the home, or the one in `/tmp` if
/// the path of the home is too long.
pub(super) fn socket_of(home: &Path) -> PathBuf {
    let euid = rustix::process::geteuid().as_raw();
    // The first one is in the directory of a login session.
    candidates(home, euid).swap_remove(1)
}

/// Returns the value that names the file with variables in a home, which need not exist.
fn variables_file(home: &Path) -> Result<String, UnusablePath> {
    let path = home.join(VARIABLES_FILE);
    let mut value = String::from("-");
    for char in text(&path)?.chars() {
        match char {
            '%' => value.push_str("%%"),
            '*' | '?' | '[' | '\\' => value.extend(['\\', char]),
            _ => value.push(char),
        }
    }
    Ok(value)
}

/// Replaces the value of a key, which the template has once.
fn with_value(template: &str, key: &str, value: &str) -> String {
    let mut text = String::with_capacity(template.len() + value.len());
    for line in template.lines() {
        match line.split_once('=') {
            Some((name, _)) if name == key => text.push_str(&format!("{key}={value}")),
            _ => text.push_str(line),
        }
        text.push('\n');
    }
    text
}

/// Returns the last value of a key, which is the one in force.
fn value<'a>(unit: &'a str, key: &str) -> Option<&'a str> {
    let pairs = unit.lines().filter_map(|line| line.split_once('='));
    pairs.filter(|(name, _)| name.trim() == key).map(|(_, value)| value.trim()).next_back()
}

/// Quotes an argument of a command line, if it needs that.
fn quote(word: &str) -> String {
    let is_plain = |char: char| char.is_ascii_alphanumeric() || "/._-+:@=,".contains(char);
    if word.chars().all(is_plain) {
        return word.to_owned();
    }
    let mut quoted = String::from("\"");
    for char in word.chars() {
        match char {
            '"' | '\\' => quoted.extend(['\\', char]),
            '%' | '$' => quoted.extend([char, char]),
            _ => quoted.push(char),
        }
    }
    quoted + "\""
}

/// Splits a command line into words, without the prefixes of the program that change how it is run.
fn words(line: &str, user_home: &Path) -> Vec<String> {
    let line = line.trim_start_matches(['@', '-', ':', '+', '!']);
    let mut words: Vec<String> = Vec::new();
    let mut word: Option<String> = None;
    let mut quote: Option<char> = None;
    let mut chars = line.chars().peekable();
    while let Some(char) = chars.next() {
        let is_argument = !words.is_empty();
        match (char, quote) {
            (char, None) if char.is_whitespace() => words.extend(word.take()),
            ('"' | '\'', None) => {
                quote = Some(char);
                word.get_or_insert_default();
            }
            (char, Some(open)) if char == open => quote = None,
            ('\\', _) => word.get_or_insert_default().extend(chars.next()),
            ('$', _) if is_argument && chars.peek() == Some(&'$') => {
                chars.next();
                word.get_or_insert_default().push('$');
            }
            (char, _) => word.get_or_insert_default().push(char),
        }
    }
    words.extend(word);
    words.iter().map(|word| expand(word, user_home)).collect()
}

/// Replaces the specifiers that the templates use.
fn expand(text: &str, user_home: &Path) -> String {
    let mut expanded = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        match char {
            '%' => match chars.next() {
                Some('h') => expanded.push_str(&user_home.to_string_lossy()),
                Some('%') | None => expanded.push('%'),
                Some(other) => expanded.extend(['%', other]),
            },
            _ => expanded.push(char),
        }
    }
    expanded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_differ_from_the_templates_only_in_what_they_run() {
        let daemon = ServedDaemon {
            program: "/usr/local/bin/ollmd".into(),
            home: Some("/srv/my talks".into()),
            config: None,
            socket: None,
        };
        let written = write(&daemon, Path::new("/home/ada")).unwrap();
        let changed = |at: usize| -> Vec<&str> {
            let lines = written[at].lines().zip(TEMPLATES[at].lines());
            lines.filter(|(new, old)| new != old).map(|(new, _)| new).collect()
        };
        let command = "ExecStart=/usr/local/bin/ollmd --home \"/srv/my talks\"";
        assert_eq!(changed(0), [command, "EnvironmentFile=-/srv/my talks/service.env"]);
        assert_eq!(changed(1), ["ListenStream=/srv/my talks/run/ollmd.sock"]);
        let by_hand =
            "[Service]\nExecStart=\nExecStart = -%h/bin/ollmd --home='/srv/my talks' -v\n";
        let read = read(by_hand, &written[1], Path::new("/home/ada")).unwrap();
        assert_eq!((read.program, read.home), ("/home/ada/bin/ollmd".into(), daemon.home));
        assert_eq!(read.socket, None);
    }

    #[test]
    fn file_with_variables_is_no_pattern_of_others() {
        let value = variables_file(Path::new("/srv/100% [a]*?\\b")).unwrap();
        assert_eq!(value, r"-/srv/100%% \[a]\*\?\\b/service.env");
        let default = format!("\nEnvironmentFile=-%h/.ollm/{VARIABLES_FILE}\n");
        assert!(TEMPLATES[0].contains(&default), "{default}");
    }
}
