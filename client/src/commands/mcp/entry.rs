//! Adding an entry to a settings file and removing it.
//!
//! **Invariants**: a file that does not parse is not changed. A changed file, parsed, differs from the old one by the entry
//! alone; where the edit of the text cannot do that, the file is refused. The old file is kept before the new one takes its
//! place, in one step.

use std::fs::{DirBuilder, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use tempfile::NamedTempFile;

use super::clients::{ClientFile, ENTRY};
use super::{json_file, toml_file, yaml_file};
use crate::command_error::{CommandError, CommandResult};
use crate::regular_file::open_input;
use crate::render::line_diff::render_diff;

/// The ending of the copy of a file as it was.
const COPY: &str = ".before-ollm";
/// The largest file, in bytes. Claude Code keeps its history in its settings.
const MAX_BYTES: u64 = 64 << 20;

/// The syntax of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SettingsFormat {
    /// JSON, with comments and trailing commas.
    Json,
    Toml,
    Yaml,
}

/// A text that does not parse.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SyntaxError {
    pub(super) line: usize,
    pub(super) problem: String,
}

impl SettingsFormat {
    /// Returns the value of a text; an empty object for an empty one.
    fn parse(self, text: &str) -> Result<Value, SyntaxError> {
        match self {
            Self::Json => json_file::parse(text),
            Self::Toml => toml_file::parse(text),
            Self::Yaml => yaml_file::parse(text),
        }
    }

    /// Returns a text that parses with an entry, or without it.
    fn edit(self, text: &str, section: &str, entry: Option<&Value>) -> Result<String, SyntaxError> {
        match self {
            Self::Json => json_file::edit(text, section, ENTRY, entry),
            Self::Toml => toml_file::edit(text, section, ENTRY, entry),
            Self::Yaml => Ok(yaml_file::edit(text, section, ENTRY, entry)),
        }
    }
}

/// A change of a settings file.
#[derive(Debug)]
pub(super) struct SettingsChange {
    /// The bytes as they are; `None` if there is no file.
    old: Option<String>,
    /// The bytes as they will be; `None` if the file goes.
    new: Option<String>,
    is_install: bool,
    /// Set if the file has the entry already, in this form or another one.
    has_entry: bool,
}

impl SettingsChange {
    /// Returns the change that adds the entry, or replaces an older form of it.
    pub(super) fn install(file: &ClientFile) -> CommandResult<Self> {
        let old = read(&file.path)?;
        let new = edited(file, old.as_deref().unwrap_or_default(), Some(&file.entry))?;
        let has_entry = old.as_deref().is_some_and(|text| has_entry(file, text));
        Ok(Self { old, new: Some(new), is_install: true, has_entry })
    }

    /// Returns the change that removes the entry. If nothing else changed since the installation, the file becomes what it
    /// was, to the byte, or goes if there was none.
    pub(super) fn uninstall(file: &ClientFile) -> CommandResult<Self> {
        let old = read(&file.path)?;
        let change = |old, new, has_entry| Self { old, new, is_install: false, has_entry };
        let Some(text) = &old else { return Ok(change(None, None, false)) };
        let own = file.format.parse(text).map_err(|error| refused(&file.path, &error))?;
        let Some(entry) = own.get(file.section).and_then(|section| section.get(ENTRY)) else {
            return Ok(change(old.clone(), old, false));
        };
        let before = read(&copy_path(&file.path))?;
        let before_text = before.as_deref().unwrap_or_default();
        let of_before = edited(file, before_text, Some(entry)).ok();
        // A copy of a file that had an older form of the entry does not take it back.
        let is_without = !has_entry(file, before_text);
        let new = match of_before {
            Some(installed) if installed == *text && is_without => before,
            _ => Some(edited(file, text, None)?),
        };
        Ok(change(old, new, true))
    }

    pub(super) fn is_nothing(&self) -> bool {
        self.old == self.new
    }

    /// Returns the path and the changed lines, with those around them.
    pub(super) fn difference(&self, path: &str) -> String {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let mut shown = format!("{path}\n");
        for line in render_diff(&text(&self.old), &text(&self.new)) {
            shown.push_str(&line);
            shown.push('\n');
        }
        shown
    }

    /// **Errors**: the file is not as it was when the change was planned.
    fn require_unchanged(&self, file: &ClientFile) -> CommandResult {
        if read(&file.path)? == self.old {
            return Ok(());
        }
        let verb = if self.is_install { "install" } else { "uninstall" };
        let project = if file.is_shared { " --project" } else { "" };
        let path = file.path.display();
        let message = format!("{path} changed concurrently, so it was left as it is");
        let hint = format!("ollmctl mcp {verb} {}{project}", file.client.name());
        Err(CommandError::usage(message, &hint))
    }

    /// Makes the change; returns the file as it was before an installation.
    ///
    /// **Errors**: the file changed concurrently.
    pub(super) fn write(&self, file: &ClientFile) -> CommandResult<Option<PathBuf>> {
        let (named, copy) = (&file.path, copy_path(&file.path));
        self.require_unchanged(file)?;
        // The client follows a link, so the file that it leads to changes, and the link stays.
        let target = std::fs::canonicalize(named).unwrap_or_else(|_| named.clone());
        let fail = |path: &Path| {
            let path = path.to_owned();
            move |source| CommandError::File { action: "write", path, source }
        };
        let mode = target.metadata().map(|found| found.permissions().mode() & 0o777);
        let mode = mode.unwrap_or(if file.is_shared { 0o644 } else { 0o600 });
        let new = self.new.as_deref().map(|new| prepared(&target, new, mode));
        let new = new.transpose().map_err(fail(&target))?;
        match (&self.old, self.is_install) {
            // The copy has the file as it was before the first installation.
            (Some(_), true) if self.has_entry && copy.exists() => {}
            (Some(old), true) => {
                let old = prepared(&copy, old, mode).and_then(|old| persist(old, &copy));
                old.map_err(fail(&copy))?;
            }
            // The copy of an earlier file would come back by an uninstallation.
            (None, true) => remove(&copy).map_err(fail(&copy))?,
            (_, false) => {}
        }
        // Clients write their settings at any time. Nothing slow follows, so that hardly a write can be lost.
        self.require_unchanged(file)?;
        match new {
            Some(new) => persist(new, &target).map_err(fail(&target))?,
            None => remove(&target).map_err(fail(&target))?,
        }
        if !self.is_install {
            remove(&copy).map_err(fail(&copy))?;
        }
        Ok((self.is_install && self.old.is_some()).then_some(copy))
    }
}

/// Returns whether a text has the entry, in any form.
fn has_entry(file: &ClientFile, text: &str) -> bool {
    file.format.parse(text).is_ok_and(|value| {
        value.get(file.section).is_some_and(|section| section.get(ENTRY).is_some())
    })
}

/// Returns a text with or without the entry.
fn edited(file: &ClientFile, text: &str, entry: Option<&Value>) -> CommandResult<String> {
    let refuse = |error: SyntaxError| refused(&file.path, &error);
    let mut expect = file.format.parse(text).map_err(refuse)?;
    let by_hand = || {
        let path = file.path.display();
        let entry = serde_json::json!({ file.section: { ENTRY: file.entry } });
        let message =
            format!("{path} has a form that cannot be changed safely; the entry is {entry}");
        CommandError::usage(message, "")
    };
    let root = expect.as_object_mut().ok_or_else(by_hand)?;
    if let Some(entry) = entry {
        let section = root.entry(file.section).or_insert_with(|| Value::Object(Map::new()));
        if section.is_null() {
            *section = Value::Object(Map::new());
        }
        let section = section.as_object_mut().ok_or_else(by_hand)?;
        if section.get(ENTRY) == Some(entry) {
            return Ok(text.to_owned());
        }
        section.insert(ENTRY.to_owned(), entry.clone());
    } else if let Some(section) = root.get_mut(file.section).and_then(Value::as_object_mut) {
        section.shift_remove(ENTRY);
    }
    let new = file.format.edit(text, file.section, entry).map_err(refuse)?;
    match file.format.parse(&new) {
        Ok(found)
            if without_empty(found.clone(), file.section)
                == without_empty(expect, file.section) =>
        {
            Ok(new)
        }
        _ => Err(by_hand()),
    }
}

/// Returns a value without the section if that is empty: no section and an empty one say the same.
fn without_empty(mut value: Value, section: &str) -> Value {
    let is_empty = match value.get(section) {
        Some(Value::Object(own)) => own.is_empty(),
        Some(Value::Null) => true,
        _ => false,
    };
    if let (true, Some(root)) = (is_empty, value.as_object_mut()) {
        root.shift_remove(section);
    }
    value
}

fn refused(path: &Path, error: &SyntaxError) -> CommandError {
    let (path, SyntaxError { line, problem }) = (path.display(), error);
    CommandError::usage(
        format!("{path} does not parse, so it was not changed: line {line}: {problem}"),
        "",
    )
}

/// Reads a settings file, which may be a link; `None` if there is none.
fn read(path: &Path) -> CommandResult<Option<String>> {
    let fail = |source| CommandError::File { action: "read", path: path.to_owned(), source };
    let opened = match open_input(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_symlink() => {
            return Ok(None);
        }
        opened => opened.map_err(fail)?,
    };
    let mut text = String::new();
    opened.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(fail)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(fail(io::ErrorKind::FileTooLarge.into()));
    }
    Ok(Some(text))
}

fn copy_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(COPY);
    name.into()
}

/// Returns a file beside another one that can take its place in one step, with its mode.
fn prepared(path: &Path, text: &str, mode: u32) -> io::Result<NamedTempFile> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    DirBuilder::new().recursive(true).create(directory)?;
    let mut temporary = tempfile::Builder::new()
        .permissions(Permissions::from_mode(mode))
        .prefix(".ollm-")
        .tempfile_in(directory)?;
    temporary.write_all(text.as_bytes())?;
    // The umask applies to the permissions of a new file.
    temporary.as_file().set_permissions(Permissions::from_mode(mode))?;
    temporary.as_file().sync_all()?;
    Ok(temporary)
}

fn persist(temporary: NamedTempFile, path: &Path) -> io::Result<()> {
    temporary.persist(path)?;
    Ok(())
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}
