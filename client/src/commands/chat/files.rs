//! Files that a message names: `@src/main.rs` puts the text of the file behind the message, `@screen.png` the picture.
//!
//! **Invariant**: a file is read once, when the message is sent, and only a regular one.

use std::fmt::Write as _;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ollm_protocol::content::{Part, Role};
use ollm_protocol::method::{FilesSearch, ModelCountTokens};
use ollm_protocol::methods::files::FilesSearchParams;
use ollm_protocol::methods::model::ModelCountTokensParams;
use ollm_protocol::methods::session::MessageInput;
use ollm_protocol::sanitize;

use super::fenced;
use crate::command_context::CommandContext;
use crate::command_error::{CommandError, CommandResult};
use crate::connection::{BlockingClient, Connector};
use crate::regular_file::open_input;
use crate::render::units::{bytes, counted};

/// The largest file that a message takes. A frame has 16 MiB, and a picture grows by a third.
const MAX_FILE_BYTES: u64 = 10 << 20;
/// Names that a completion offers.
const MAX_OFFERED: u32 = 20;
/// The hints about a file that a message cannot have, and one that is no picture.
const KINDS: &str = "a text file, or a PNG, JPEG, GIF or WebP picture";
const PICTURE_KINDS: &str = "a PNG, JPEG, GIF or WebP picture";
/// The signatures of pictures that models take, and their media types.
const PICTURES: [(&[u8], &str); 4] = [
    (b"\x89PNG\r\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"RIFF", "image/webp"),
];

/// Returns a message with pictures.
pub(super) fn message(text: String, pictures: Vec<Part>) -> MessageInput {
    MessageDraft { text, pictures }.finish()
}

/// Returns the pictures in files.
///
/// **Errors**: a file cannot be read, or is no picture.
pub(super) fn pictures(paths: &[PathBuf]) -> CommandResult<Vec<Part>> {
    let picture_in = |path: &PathBuf| {
        picture(&read(path, MAX_FILE_BYTES)?).ok_or_else(|| {
            CommandError::usage(format!("{} is not a picture", shown(path)), PICTURE_KINDS)
        })
    };
    paths.iter().map(picture_in).collect()
}

/// Returns a message with the files that its text names, and a line about each of them.
///
/// **Errors**: a named file cannot be read, or is neither text nor a picture.
pub(super) fn with_named_files(
    text: &str,
    model: Option<&str>,
    ctx: &mut CommandContext<'_>,
) -> CommandResult<(MessageInput, Vec<String>)> {
    let mut draft = MessageDraft { text: text.to_owned(), pictures: Vec::new() };
    let mut notes = Vec::new();
    for path in named_files(text).iter().filter(|path| path.is_file()) {
        let size = match draft.add(path, model, ctx)? {
            Some(size) => size,
            None => "a picture".to_owned(),
        };
        notes.push(format!("{}: {size}", shown(path)));
    }
    Ok((draft.finish(), notes))
}

struct MessageDraft {
    text: String,
    pictures: Vec<Part>,
}

impl MessageDraft {
    /// Adds a file; returns the size of a text, and `None` for a picture.
    fn add(
        &mut self,
        path: &Path,
        model: Option<&str>,
        ctx: &mut CommandContext<'_>,
    ) -> CommandResult<Option<String>> {
        let content = read(path, MAX_FILE_BYTES)?;
        if let Some(picture) = picture(&content) {
            self.pictures.push(picture);
            return Ok(None);
        }
        let Ok(content) = String::from_utf8(content) else {
            let problem = format!("{} is neither text nor a picture", shown(path));
            return Err(CommandError::usage(problem, KINDS));
        };
        let _infallible = write!(self.text, "\n\n{}:\n{}", shown(path), fenced(&content));
        Ok(Some(size_of(&content, model, ctx)))
    }

    fn finish(self) -> MessageInput {
        let mut message = MessageInput::text(Role::User, self.text);
        if !self.pictures.is_empty() {
            let text = Part::Text { text: message.content.take().unwrap_or_default() };
            message.parts = Some(std::iter::once(text).chain(self.pictures).collect());
        }
        message
    }
}

/// Returns the files that the words of a text name: `@path`, or `@"path with spaces"`.
fn named_files(text: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = Vec::new();
    let starts = text
        .match_indices('@')
        .filter(|(at, _)| text[..*at].chars().next_back().is_none_or(char::is_whitespace));
    for (at, _) in starts {
        let rest = &text[at + 1..];
        let name = match rest.strip_prefix('"') {
            Some(quoted) => quoted.split('"').next().unwrap_or_default(),
            None => rest.split(char::is_whitespace).next().unwrap_or_default(),
        };
        // A sentence may end behind the name.
        let path = if Path::new(name).exists() {
            name
        } else {
            name.trim_end_matches(['.', ',', ';', ':', '?', '!', ')'])
        };
        if !path.is_empty() && !files.iter().any(|known| known == Path::new(path)) {
            files.push(PathBuf::from(path));
        }
    }
    files
}

/// Returns the content of a file that has at most `max` bytes.
///
/// **Errors**: the file cannot be read, or has more bytes.
pub(super) fn read(path: &Path, max: u64) -> CommandResult<Vec<u8>> {
    let mut content = Vec::new();
    let read = open_input(path).and_then(|file| file.take(max + 1).read_to_end(&mut content));
    let problem = match read {
        Err(error) => format!("{} cannot be read: {error}", shown(path)),
        Ok(_) if content.len() as u64 > max => {
            format!("{} has more than {}", shown(path), bytes(max))
        }
        Ok(_) => return Ok(content),
    };
    Err(CommandError::usage(problem, ""))
}

/// Returns the path of a file for a person, on one line.
fn shown(path: &Path) -> String {
    sanitize::one_line(&path.to_string_lossy())
}

/// Returns the part with a picture; `None` for another content.
fn picture(content: &[u8]) -> Option<Part> {
    let mime_type = picture_type(content)?.to_owned();
    Some(Part::Image { mime_type, data: STANDARD.encode(content) })
}

fn picture_type(content: &[u8]) -> Option<&'static str> {
    let found = PICTURES.iter().find(|(sign, _)| content.starts_with(sign))?;
    (found.1 != "image/webp" || content.get(8..12) == Some(b"WEBP")).then_some(found.1)
}

/// Returns the tokens of a text, or its bytes if the daemon cannot count them.
fn size_of(text: &str, model: Option<&str>, ctx: &mut CommandContext<'_>) -> String {
    let (model, content) = (model.map(str::to_owned), Some(text.to_owned()));
    let params = ModelCountTokensParams { model, text: content, messages: None, tools: Vec::new() };
    match ctx.call::<ModelCountTokens>(&params) {
        Ok(count) => counted(count.value.tokens, "token"),
        Err(_) => bytes(text.len() as u64),
    }
}

/// The names of the files of a directory, as the daemon's search completes them.
pub(super) struct FileNames {
    connector: Connector,
    root: Option<PathBuf>,
}

impl FileNames {
    /// Returns the names of the present directory.
    pub(super) fn new(connector: &Connector) -> Self {
        let root = std::env::current_dir().ok();
        Self { connector: connector.clone().without_spawn(), root }
    }

    /// Returns the words for the files that match a beginning of a word; none if the daemon cannot be asked.
    pub(super) fn complete(&self, name: &str) -> Vec<String> {
        let Some(root) = self.root.as_ref().and_then(|root| root.to_str()) else {
            return Vec::new();
        };
        let params = FilesSearchParams {
            root: root.to_owned(),
            query: name.trim_start_matches('"').to_owned(),
            limit: Some(MAX_OFFERED),
            ..FilesSearchParams::default()
        };
        let found = BlockingClient::connect(&self.connector)
            .and_then(|mut client| client.call::<FilesSearch>(&params));
        let hits = found.map(|found| found.data).unwrap_or_default();
        hits.into_iter().map(|hit| word_for(&sanitize::one_line(&hit.path.path))).collect()
    }
}

fn word_for(path: &str) -> String {
    if path.contains(' ') { format!("@\"{path}\"") } else { format!("@{path}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_with_an_at_sign_name_files() {
        let check = |text: &str, expect: &[&str]| {
            let expect: Vec<PathBuf> = expect.iter().map(PathBuf::from).collect();
            assert_eq!(named_files(text), expect, "{text}");
        };
        check("explain @src/a.rs, and @\"b c.md\"?", &["src/a.rs", "b c.md"]);
        check("@x @x mail a@b.c and @", &["x"]);
        check("see @Cargo.toml.", &["Cargo.toml"]);
    }

    #[test]
    fn pictures_are_known_by_their_beginning() {
        assert_eq!(picture_type(b"\x89PNG\r\n\x1a\n"), Some("image/png"));
        assert_eq!(picture_type(b"RIFF....WEBPVP8 "), Some("image/webp"));
        assert_eq!(picture_type(b"RIFF....WAVE"), None);
        assert_eq!(picture_type(b"text"), None);
    }
}
