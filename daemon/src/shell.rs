//! Texts as they are typed in a shell, for the commands of hints.

use std::path::Path;

/// Returns a path as it is typed in a shell.
pub(crate) fn quoted_path(path: &Path) -> String {
    let path = path.to_string_lossy();
    match is_shell_safe(&path) {
        true => path.into_owned(),
        false => format!("'{}'", path.replace('\'', r"'\''")),
    }
}

/// Returns whether a name needs no quotes in a shell.
pub(crate) fn is_shell_safe(name: &str) -> bool {
    !name.starts_with('-')
        && name.chars().all(|char| char.is_ascii_alphanumeric() || "-._:/".contains(char))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_that_a_shell_would_change_are_quoted() {
        for (path, expected) in [
            ("/home/ada/b-1.json", "/home/ada/b-1.json"),
            ("/home/ada/my notes", "'/home/ada/my notes'"),
            ("/x/$(reboot)", "'/x/$(reboot)'"),
            ("/ada's", r"'/ada'\''s'"),
            ("-rf", "'-rf'"),
        ] {
            assert_eq!(quoted_path(Path::new(path)), expected);
        }
    }
}
