//! The content of a prompt as a message: texts, files with their paths, and pictures.

use std::fmt::Write as _;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use ollm_protocol::content::{Part, Role};
use ollm_protocol::methods::session::MessageInput;

use super::agent::RequestResult;
use super::schema::{ContentBlock, RequestError, Resource};
use crate::commands::chat::fenced;
use crate::regular_file::open_input;

/// The largest file that is read because a prompt links to it. Larger ones do not fit into a window anyway.
const MAX_LINKED_BYTES: u64 = 1 << 20;
/// The most bytes of all files that a prompt links to.
const MAX_ALL_LINKED_BYTES: usize = 8 << 20;

/// Returns the text of a prompt that has nothing else.
pub(super) fn only_text(prompt: &[ContentBlock]) -> Option<&str> {
    match prompt {
        [ContentBlock::Text { text }] => Some(text),
        _ => None,
    }
}

/// Returns whether a prompt links to files, which are read.
pub(super) fn reads_files(prompt: &[ContentBlock]) -> bool {
    prompt.iter().any(|block| matches!(block, ContentBlock::ResourceLink { .. }))
}

/// Returns the message with which a prompt is recorded. Blocks on the disk for linked files.
///
/// **Errors**: the prompt is empty, or has a kind of content that no model of the daemon takes.
pub(super) fn message(prompt: Vec<ContentBlock>) -> RequestResult<MessageInput> {
    let mut parts: Vec<Part> = Vec::new();
    let mut room_bytes = MAX_ALL_LINKED_BYTES;
    for block in prompt {
        match block {
            ContentBlock::Text { text } => add_text(&mut parts, &text),
            ContentBlock::Image { data, mime_type } => parts.push(Part::Image { mime_type, data }),
            ContentBlock::ResourceLink { uri, name } => {
                add_link(&mut parts, &uri, &name, &mut room_bytes);
            }
            ContentBlock::Resource { resource } => add_resource(&mut parts, resource),
            ContentBlock::Other => {
                let problem = "a prompt has text, images, resources and links to them";
                return Err(RequestError::invalid(problem));
            }
        }
    }
    if parts.is_empty() {
        return Err(RequestError::invalid("the prompt is empty"));
    }
    let mut message = MessageInput::text(Role::User, "");
    (message.content, message.parts) = (None, Some(parts));
    Ok(message)
}

/// Returns a prompt whose links are texts, so that no file is read.
pub(super) fn without_files(prompt: Vec<ContentBlock>) -> Vec<ContentBlock> {
    let without = |block| match block {
        ContentBlock::ResourceLink { uri, .. } => ContentBlock::Text { text: format!("<{uri}>") },
        block => block,
    };
    prompt.into_iter().map(without).collect()
}

/// Adds a text to the last part, if that is a text.
fn add_text(parts: &mut Vec<Part>, text: &str) {
    match parts.last_mut() {
        Some(Part::Text { text: last }) => last.push_str(text),
        _ if text.is_empty() => {}
        _ => parts.push(Part::Text { text: text.to_owned() }),
    }
}

/// Adds the text of a file behind its path, on lines of its own.
fn add_file(parts: &mut Vec<Part>, path: &str, text: &str) {
    let before = match parts.last() {
        Some(Part::Text { text }) if !text.is_empty() && !text.ends_with('\n') => "\n\n",
        _ => "",
    };
    add_text(parts, &format!("{before}{path}:\n{}\n\n", fenced(text)));
}

fn add_resource(parts: &mut Vec<Part>, resource: Resource) {
    let Resource { uri, text, blob, mime_type } = resource;
    let path = path_of(&uri).map_or_else(|| uri.clone(), |path| path.display().to_string());
    match (text, blob, mime_type) {
        (Some(text), ..) => add_file(parts, &path, &text),
        (None, Some(data), Some(mime_type)) if mime_type.starts_with("image/") => {
            parts.push(Part::Image { mime_type, data });
        }
        _ => add_text(parts, &format!("\n[{path}: neither text nor a picture]\n")),
    }
}

/// Adds a link. The text of a linked file follows, because a model cannot read it by itself; `room_bytes` is what all files
/// may still have.
fn add_link(parts: &mut Vec<Part>, uri: &str, name: &str, room_bytes: &mut usize) {
    let Some(path) = path_of(uri) else {
        let mut link = String::new();
        let _infallible = if name.is_empty() || name == uri {
            write!(link, "<{uri}>")
        } else {
            write!(link, "[{name}]({uri})")
        };
        return add_text(parts, &link);
    };
    let shown = path.display().to_string();
    match text_of(&path) {
        Ok(text) if text.len() > *room_bytes => {
            let limit = MAX_ALL_LINKED_BYTES >> 20;
            add_text(parts, &format!("\n[{shown}: all linked files have more than {limit} MiB]\n"));
        }
        Ok(text) => {
            *room_bytes -= text.len();
            add_file(parts, &shown, &text);
        }
        Err(problem) => add_text(parts, &format!("\n[{shown}: {problem}]\n")),
    }
}

/// Returns the path of a file address, without a fragment such as the lines of a selection; `None` for another address.
fn path_of(uri: &str) -> Option<PathBuf> {
    let path = uri.strip_prefix("file://")?;
    // A host, as in `file://localhost/a`, is this machine.
    let path = &path[path.find('/')?..];
    let path = path.split(['#', '?']).next().unwrap_or(path);
    String::from_utf8(percent_decoded(path.as_bytes())).ok().map(PathBuf::from)
}

fn percent_decoded(text: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((byte, after)) = rest.split_first() {
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match escaped.filter(|_| *byte == b'%') {
            Some(escaped) => {
                decoded.push(escaped);
                rest = &after[2..];
            }
            None => {
                decoded.push(*byte);
                rest = after;
            }
        }
    }
    decoded
}

/// Returns the text of a file, or why it has none.
fn text_of(path: &Path) -> Result<String, String> {
    let mut content = Vec::new();
    let read =
        open_input(path).and_then(|file| file.take(MAX_LINKED_BYTES + 1).read_to_end(&mut content));
    match read {
        Err(error) => Err(format!("cannot be read: {error}")),
        Ok(_) if content.len() as u64 > MAX_LINKED_BYTES => Err("has more than 1 MiB".to_owned()),
        Ok(_) => String::from_utf8(content).map_err(|_| "is no text".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts_of(prompt: serde_json::Value) -> Vec<Part> {
        let prompt: Vec<ContentBlock> = serde_json::from_value(prompt).unwrap();
        message(prompt).unwrap().parts.unwrap()
    }

    #[test]
    fn files_of_a_prompt_stand_behind_their_paths() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a b.rs");
        #[expect(clippy::disallowed_methods, reason = "a file of the test")]
        std::fs::write(&file, "fn a() {}\n```\n").unwrap();
        let uri = format!("file://{}", file.display()).replace(' ', "%20");
        let parts = parts_of(serde_json::json!([
            { "type": "text", "text": "Explain" },
            { "type": "resource_link", "uri": format!("{uri}#L1"), "name": "a b.rs" },
            { "type": "resource", "resource": { "uri": "file:///x/y.txt", "text": "hello" } },
            { "type": "resource_link", "uri": "https://a.b/c", "name": "docs" },
            { "type": "image", "mimeType": "image/png", "data": "AA==" },
        ]));
        let [Part::Text { text }, Part::Image { .. }] = &parts[..] else { panic!("{parts:?}") };
        let shown = file.display();
        assert_eq!(
            *text,
            format!(
                "Explain\n\n{shown}:\n````\nfn a() {{}}\n```\n````\n\n/x/y.txt:\n```\nhello\n```\n\n[docs](https://a.b/c)"
            )
        );
    }

    #[test]
    fn linked_files_have_a_limit_together() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a");
        #[expect(clippy::disallowed_methods, reason = "a file of the test")]
        std::fs::write(&file, "0123456789").unwrap();
        let uri = format!("file://{}", file.display());
        let (mut parts, mut room_bytes) = (Vec::new(), 15);
        for _ in 0..2 {
            add_link(&mut parts, &uri, "a", &mut room_bytes);
        }
        let [Part::Text { text }] = &parts[..] else { panic!("{parts:?}") };
        assert_eq!((text.matches("0123456789").count(), room_bytes), (1, 5));
        assert!(text.contains("all linked files"), "{text}");
    }

    #[test]
    fn missing_and_binary_resources_are_named() {
        let parts = parts_of(serde_json::json!([
            { "type": "resource_link", "uri": "file:///no/such/file", "name": "file" },
            { "type": "resource", "resource": { "uri": "file:///a.bin", "blob": "AA==" } },
            { "type": "resource", "resource": { "uri": "file:///a.png", "blob": "AA==", "mimeType": "image/png" } },
        ]));
        let [Part::Text { text }, Part::Image { .. }] = &parts[..] else { panic!("{parts:?}") };
        assert!(text.contains("/no/such/file: cannot be read"), "{text}");
        assert!(text.contains("/a.bin: neither text nor a picture"), "{text}");
    }

    #[test]
    fn link_without_its_file_is_a_text() {
        let prompt: Vec<ContentBlock> = serde_json::from_value(serde_json::json!([
            { "type": "text", "text": "Explain " },
            { "type": "resource_link", "uri": "file:///no/such/file", "name": "file" },
        ]))
        .unwrap();
        let parts = message(without_files(prompt)).unwrap().parts.unwrap();
        let [Part::Text { text }] = &parts[..] else { panic!("{parts:?}") };
        assert_eq!(text, "Explain <file:///no/such/file>");
    }

    #[test]
    fn empty_and_unknown_content_is_refused() {
        for prompt in [r#"[]"#, r#"[{"type":"text","text":""}]"#, r#"[{"type":"audio","data":""}]"#]
        {
            let prompt: Vec<ContentBlock> = serde_json::from_str(prompt).unwrap();
            assert!(message(prompt).is_err());
        }
    }

    #[test]
    fn percent_signs_that_escape_nothing_stay() {
        let check = |uri: &str, expect: Option<&str>| {
            assert_eq!(path_of(uri), expect.map(PathBuf::from), "{uri}");
        };
        check("file:///a%20b", Some("/a b"));
        check("file:///a%2", Some("/a%2"));
        check("file:///100%zz", Some("/100%zz"));
        check("file://localhost/a?x#L3", Some("/a"));
        check("file:///%ff", None);
        check("https://a/b", None);
    }
}
