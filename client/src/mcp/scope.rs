//! The project of an MCP client: its first root where it says one, else the working directory of the server.
//!
//! Only the older handshakes let a server ask for roots. A client whose working directory is `/` or the user's home has no
//! project, so it is asked about all sessions.

use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::Mutex;
use rmcp::model::ProtocolVersion;
use rmcp::service::{RequestContext, RoleServer};

use crate::command_error::{CommandError, CommandResult};
use crate::project::filter_path;

/// The word for all sessions in place of a project.
const ALL: &str = "all";
/// The longest wait for the roots of a client.
const ROOTS_LIMIT: Duration = Duration::from_secs(2);

/// The project of one client.
pub(super) struct ClientScope {
    /// The working directory; `None` if it is no project.
    directory: Option<String>,
    /// The answer of the client; `None` before it was asked.
    root: Mutex<Option<Option<String>>>,
}

impl ClientScope {
    pub(super) fn new(directory: Option<PathBuf>, home: Option<PathBuf>) -> Self {
        let is_project = |path: &PathBuf| path.parent().is_some() && Some(path) != home.as_ref();
        let directory =
            directory.filter(is_project).and_then(|path| path.to_str().map(str::to_owned));
        Self { directory, root: Mutex::new(None) }
    }

    /// Asks the client for its roots, once until it says that they changed.
    #[expect(deprecated, reason = "clients of the older handshakes have roots")]
    pub(super) async fn learn(&self, context: &RequestContext<RoleServer>) {
        if self.root.lock().is_some() {
            return;
        }
        let is_older =
            context.protocol_version().is_some_and(|own| own < ProtocolVersion::V_2026_07_28);
        let has_roots = context.client_capabilities().is_some_and(|own| own.roots.is_some());
        let mut root = None;
        if is_older && has_roots {
            let asked = tokio::time::timeout(ROOTS_LIMIT, context.peer.list_roots()).await;
            let roots = asked.ok().and_then(Result::ok).map(|listed| listed.roots);
            root = roots.into_iter().flatten().find_map(|root| path_of(&root.uri));
        }
        *self.root.lock() = Some(root);
    }

    /// Forgets the roots, because they changed.
    pub(super) fn forget(&self) {
        *self.root.lock() = None;
    }

    /// Returns the project of the client.
    pub(super) fn own(&self) -> Option<String> {
        let root = self.root.lock().clone().flatten();
        root.or_else(|| self.directory.clone())
    }

    /// Returns the project that an argument means: that of the client without one, `None` for all sessions.
    ///
    /// **Errors**: a relative path without a project that it is relative to.
    pub(super) fn project(&self, given: Option<&str>) -> CommandResult<Option<String>> {
        match given {
            None => filter_path(self.own().as_deref().map(Path::new)),
            Some(ALL) => Ok(None),
            Some(path) => {
                let path = self.own().map_or_else(|| path.into(), |own| Path::new(&own).join(path));
                if path.is_relative() {
                    let message = format!("{} is not an absolute path", path.display());
                    return Err(CommandError::usage(message, ""));
                }
                filter_path(Some(&path))
            }
        }
    }
}

/// Returns the path of a `file:` URI.
fn path_of(uri: &str) -> Option<String> {
    let rest = uri.strip_prefix("file://")?;
    let path = &rest[rest.find('/')?..];
    let mut bytes = Vec::with_capacity(path.len());
    let mut left = path.as_bytes();
    while let Some((first, rest)) = left.split_first() {
        let code = (*first == b'%').then(|| rest.get(..2)).flatten();
        let code = code.and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                left = &rest[2..];
            }
            None => {
                bytes.push(*first);
                left = rest;
            }
        }
    }
    String::from_utf8(bytes).ok().filter(|path| !path.contains('\0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_the_path_of_a_file_uri() {
        assert_eq!(path_of("file:///home/u/p").as_deref(), Some("/home/u/p"));
        assert_eq!(path_of("file://localhost/a%20b/%C3%A9").as_deref(), Some("/a b/é"));
        assert_eq!(path_of("file:///100%").as_deref(), Some("/100%"));
        for other in ["https://example.org/", "file://", "file:///%00", "file:///%ff", "/home"] {
            assert_eq!(path_of(other), None, "{other}");
        }
    }

    #[test]
    fn project_is_the_argument_or_that_of_the_client() {
        let scope = |path: &str| ClientScope::new(Some(path.into()), Some("/home/u".into()));
        let own = |path: &str, given: Option<&str>| scope(path).project(given).unwrap();
        assert_eq!(own("/gone/p", None).as_deref(), Some("/gone/p"));
        assert_eq!(own("/gone/p", Some("q")).as_deref(), Some("/gone/p/q"));
        assert_eq!(own("/gone/p", Some("/gone/r")).as_deref(), Some("/gone/r"));
        assert_eq!(own("/gone/p", Some("all")), None);
        assert_eq!(own("/", None), None);
        assert_eq!(own("/home/u", None), None);
        assert!(scope("/").project(Some("q")).is_err());
    }
}
