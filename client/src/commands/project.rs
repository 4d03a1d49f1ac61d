//! A project's directory as the daemon knows it: canonical, and text.

use std::path::{Path, PathBuf};

use super::CommandError;

/// The canonical path of a directory; `None` means the current one.
pub(crate) fn path(given: Option<&Path>) -> Result<String, CommandError> {
    let path = given.unwrap_or(Path::new("."));
    let canonical = std::fs::canonicalize(path).map_err(|source| CommandError::File {
        action: "find the project",
        path: path.to_owned(),
        source,
    })?;
    text(canonical)
}

/// The canonical path where one was given. A project whose directory is gone can still be asked for.
pub(crate) fn filter(given: Option<&Path>) -> Result<Option<String>, CommandError> {
    given
        .map(|path| {
            let found = std::fs::canonicalize(path).or_else(|_| std::path::absolute(path));
            text(found.unwrap_or_else(|_| path.to_owned()))
        })
        .transpose()
}

fn text(path: PathBuf) -> Result<String, CommandError> {
    path.into_os_string()
        .into_string()
        .map_err(|path| CommandError::PathNotUtf8 { path: path.into() })
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;

    #[test]
    fn a_path_that_is_no_text_is_refused() {
        let odd = Path::new(OsStr::from_bytes(b"/nowhere/\xff"));
        assert!(matches!(filter(Some(odd)), Err(CommandError::PathNotUtf8 { .. })));
        assert!(matches!(path(Some(odd)), Err(CommandError::File { .. })));
        assert_eq!(filter(Some(Path::new("/nowhere/x"))).unwrap().as_deref(), Some("/nowhere/x"));
        assert_eq!(filter(None).unwrap(), None);
    }
}
