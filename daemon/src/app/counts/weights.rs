//! The file of a model's weights, whose header holds the vocabulary, where it lies on this machine.
//!
//! The model server names it, and need not be trusted for that: only regular files are opened whose name is that of a
//! blob, which says what is in it, and no more than a header is read.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::tokens::{Tokenizer, Vocabulary};

/// Bytes that are read at most; the largest known header has some 30 MB.
const MAX_HEADER_BYTES: u64 = 128 << 20;
/// How the names of blobs begin; 64 hexadecimal digits follow.
const BLOB: &str = "sha256-";

/// The vocabulary in the file that the server named, or in the blob of that name in one of its directories: a server
/// in a container names paths of its own. Blocks.
pub(super) fn vocabulary(named: &str, dirs: &[PathBuf]) -> Option<(Vocabulary, Tokenizer)> {
    let named = Path::new(named);
    let name = named.file_name()?.to_str().filter(|name| is_blob(name))?;
    let own = dirs.iter().map(|dir| dir.join("blobs").join(name));
    std::iter::once(named.to_owned()).chain(own).find_map(|path| read(&path))
}

fn is_blob(name: &str) -> bool {
    name.strip_prefix(BLOB).is_some_and(|digest| {
        digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

fn read(path: &Path) -> Option<(Vocabulary, Tokenizer)> {
    // A pipe would be waited for.
    if !path.is_absolute() || !std::fs::symlink_metadata(path).ok()?.is_file() {
        return None;
    }
    let told = |error: &dyn std::fmt::Display| {
        tracing::debug!("no vocabulary from {}: {error}", path.display());
    };
    let file = File::open(path).inspect_err(|error| told(error)).ok()?;
    let vocabulary = Vocabulary::from_gguf(file.take(MAX_HEADER_BYTES));
    let vocabulary = vocabulary.inspect_err(|error| told(error)).ok()?;
    let tokenizer = Tokenizer::new(&vocabulary).inspect_err(|error| told(error)).ok()?;
    Some((vocabulary, tokenizer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_blobs_are_opened() {
        let digest = "0123456789abcdef".repeat(4);
        assert!(is_blob(&format!("sha256-{digest}")));
        assert!(!is_blob(&format!("sha256-{}", &digest[1..])));
        assert!(!is_blob(&format!("sha256-{}g", &digest[1..])));
        assert!(!is_blob("passwd"));
        assert!(vocabulary("/etc/passwd", &[]).is_none());
        assert!(vocabulary("relative", &[PathBuf::from("also/relative")]).is_none());
    }
}
