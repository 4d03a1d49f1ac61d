//! What makes two sessions belong to one project.

use std::path::Path;

/// Names a project's directory: the first 16 hex digits of blake3 over its canonical path.
pub(crate) fn hash(path: &str) -> String {
    blake3::hash(path.as_bytes()).to_hex()[..16].to_owned()
}

/// The name of a project: the last part of its path.
pub(crate) fn name(path: &str) -> String {
    let last = Path::new(path).file_name();
    last.map_or_else(|| path.to_owned(), |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_project_is_named_by_its_last_part() {
        assert_eq!(name("/home/ada/engine"), "engine");
        assert_eq!(name("/"), "/");
        assert_eq!(hash("/home/ada/engine").len(), 16);
        assert_ne!(hash("/a"), hash("/b"));
    }
}
