//! Services: the definition that makes the user's service manager run the daemon, and the manager itself.
//!
//! - [`ServedDaemon`]: the daemon that a service runs. `systemd` and `launchd` write it into the templates of the
//!   directories of these names, and read it back from a file that a person may have changed.
//! - `manager`: finds the manager of this user and runs its program, or says why there is none and what to do instead.
//! - `installed`: the service that starts the daemon of an address, which autostart asks first.
//!
//! **Invariants**: a definition is read as the manager reads it, so that a copied template counts too; every wait for a
//! manager has a deadline.

mod installed;
mod launchd;
mod manager;
mod systemd;

use std::path::{Path, PathBuf};

use serde::Serialize;

pub(crate) use installed::{InstalledService, is_same, is_socket_of};
pub(crate) use manager::{LINKS, Manager, ManagerKind, NoManager, ServiceError, ServiceState};

/// The label of the launchd agent.
const LAUNCHD_AGENT: &str = "org.ollm.ollmd";
/// The file in the home with variables that systemd gives to the daemon.
pub(crate) const VARIABLES_FILE: &str = "service.env";

/// The daemon that a service runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct ServedDaemon {
    /// The daemon's program.
    pub(crate) program: PathBuf,
    /// The home; `None` for the default one.
    pub(crate) home: Option<PathBuf>,
    /// The configuration; `None` for that of the home.
    pub(crate) config: Option<PathBuf>,
    /// The socket of the unit, or of the flag; `None` if it follows from the home.
    pub(crate) socket: Option<PathBuf>,
}

/// A file of a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct ServiceFile {
    pub(crate) path: PathBuf,
    pub(crate) text: String,
}

/// A path that cannot stand in a definition, because the manager would read another one.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the path {} cannot stand in a service: it has {what}", path.display())]
pub(crate) struct UnusablePath {
    pub(crate) path: PathBuf,
    pub(crate) what: &'static str,
}

impl ServedDaemon {
    /// Returns the files that make the manager run this daemon; their names are those of [`ManagerKind::file_names`].
    pub(crate) fn files(
        &self,
        kind: ManagerKind,
        directory: &Path,
        user_home: &Path,
    ) -> Result<Vec<ServiceFile>, UnusablePath> {
        let texts = match kind {
            ManagerKind::Systemd => systemd::write(self, user_home)?.to_vec(),
            ManagerKind::Launchd => vec![launchd::write(self)?],
        };
        let names = kind.file_names().iter();
        let file = |(name, text): (&&str, _)| ServiceFile { path: directory.join(name), text };
        Ok(names.zip(texts).map(file).collect())
    }

    /// Reads the daemon of a definition from the texts of its files; `None` if no program is found in them.
    fn parse(kind: ManagerKind, texts: &[String], user_home: &Path) -> Option<Self> {
        match (kind, texts) {
            (ManagerKind::Systemd, [service, socket, ..]) => {
                systemd::read(service, socket, user_home)
            }
            (ManagerKind::Launchd, [agent, ..]) => launchd::read(agent, user_home),
            _ => None,
        }
    }

    /// Reads the words of a command line.
    fn from_words(words: Vec<String>) -> Option<Self> {
        let mut words = words.into_iter();
        let program = words.next().filter(|word| !word.is_empty())?.into();
        let mut daemon = Self { program, home: None, config: None, socket: None };
        while let Some(word) = words.next() {
            let (flag, joined) = match word.split_once('=') {
                Some((flag, value)) => (flag.to_owned(), Some(value.to_owned())),
                None => (word, None),
            };
            let place = match flag.as_str() {
                "--home" => &mut daemon.home,
                "--config" => &mut daemon.config,
                "--socket" => &mut daemon.socket,
                _ => continue,
            };
            *place = joined.or_else(|| words.next()).map(PathBuf::from);
        }
        Some(daemon)
    }

    /// Returns the words of the command line; the socket only if the manager passes none.
    fn words(&self, with_socket: bool) -> Result<Vec<&str>, UnusablePath> {
        let mut words = vec![text(&self.program)?];
        let socket = self.socket.as_ref().filter(|_| with_socket);
        for (flag, path) in [
            ("--home", self.home.as_ref()),
            ("--config", self.config.as_ref()),
            ("--socket", socket),
        ] {
            if let Some(path) = path {
                words.extend([flag, text(path)?]);
            }
        }
        Ok(words)
    }
}

/// Returns the text of a path, which a definition can contain.
fn text(path: &Path) -> Result<&str, UnusablePath> {
    let unusable = |what| UnusablePath { path: path.to_owned(), what };
    let text = path.to_str().ok_or_else(|| unusable("bytes that are not UTF-8"))?;
    if text.chars().any(char::is_control) {
        return Err(unusable("control characters"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn daemon(program: &str, home: Option<&str>, socket: Option<&str>) -> ServedDaemon {
        ServedDaemon {
            program: program.into(),
            home: home.map(PathBuf::from),
            config: home.map(|home| Path::new(home).join("other.yaml")),
            socket: socket.map(PathBuf::from),
        }
    }

    /// Writes the files of a daemon and reads them back.
    fn read_back(kind: ManagerKind, written: &ServedDaemon) -> ServedDaemon {
        let user_home = Path::new("/home/ada");
        let files = written.files(kind, Path::new("/units"), user_home).unwrap();
        let texts: Vec<String> = files.into_iter().map(|file| file.text).collect();
        ServedDaemon::parse(kind, &texts, user_home).unwrap()
    }

    #[test]
    fn definition_is_read_back_whatever_characters_its_paths_have() {
        for kind in [ManagerKind::Systemd, ManagerKind::Launchd] {
            for (home, socket) in [
                (None, None),
                (Some("/srv/o"), None),
                (None, Some("/run/o.sock")),
                (Some("/a b/$HOME %h \"q\" 'r' \\ &<>;é"), Some("/s $x %t &.sock")),
            ] {
                let written = daemon("/opt/a $b %c &/ollmd", home, socket);
                assert_eq!(read_back(kind, &written), written, "{kind:?}");
            }
        }
    }

    #[test]
    fn copied_templates_run_the_daemon_of_the_default_home() {
        let user_home = Path::new("/home/ada");
        let expected = daemon("/home/ada/.cargo/bin/ollmd", None, None);
        let [service, socket] = systemd::TEMPLATES.map(str::to_owned);
        let systemd = ServedDaemon::parse(ManagerKind::Systemd, &[service, socket], user_home);
        assert_eq!(systemd.as_ref(), Some(&expected));
        let agent = [launchd::TEMPLATE.to_owned()];
        let launchd = ServedDaemon::parse(ManagerKind::Launchd, &agent, user_home);
        assert_eq!(launchd, Some(expected));
    }

    #[test]
    fn unreadable_definition_and_path_are_refused() {
        let empty = [String::new(), String::new()];
        for kind in [ManagerKind::Systemd, ManagerKind::Launchd] {
            assert_eq!(ServedDaemon::parse(kind, &empty, Path::new("/")), None);
            let broken = daemon("/a\nExecStartPre=/evil", None, None);
            let error = broken.files(kind, Path::new("/"), Path::new("/")).unwrap_err();
            assert_eq!(error.what, "control characters");
        }
        let quoted = daemon("/a\"b/ollmd", None, None);
        let error = quoted.files(ManagerKind::Systemd, Path::new("/"), Path::new("/")).unwrap_err();
        assert!(error.to_string().contains("a quotation mark"), "{error}");
    }
}
