//! Reads a vocabulary from the header of a GGUF file, which comes before the list of tensors.
//!
//! Must not know what the values mean. **Invariant**: nothing is allocated for a length or a count before its bytes
//! were read, so that a header that lies costs no more than the file is long.
//!
//! **Source**: ggml's `docs/gguf.md`; versions 2 and 3 differ in byte order only, and big endian is refused.

use std::io::Read;

use super::builder::{Builder, Key, Value};
use super::vocabulary::VocabularyError;

/// The longest text that is kept. Longer ones, such as chat templates, belong to keys that are skipped.
const MAX_TEXT_BYTES: u64 = 1 << 20;
/// The most keys; real files have less than a hundred.
const MAX_KEYS: u64 = 1 << 16;

const TEXT: u32 = 8;
const ARRAY: u32 = 9;

/// Reads up to the end of the keys.
pub(super) fn read(file: impl Read) -> Result<Builder, VocabularyError> {
    let mut header =
        Header { file: std::io::BufReader::with_capacity(1 << 16, file), text: Vec::new() };
    if &header.take::<4>()? != b"GGUF" {
        return Err(VocabularyError::Malformed("the file does not begin with GGUF"));
    }
    if !matches!(header.number32()?, 2 | 3) {
        return Err(VocabularyError::Malformed("the version of the file is neither 2 nor 3"));
    }
    let _n_tensors = header.number64()?;
    let n_keys = header.number64()?;
    if n_keys > MAX_KEYS {
        return Err(VocabularyError::TooLarge("keys"));
    }
    let mut builder = Builder::default();
    for _ in 0..n_keys {
        header.read_text()?;
        let key = std::str::from_utf8(&header.text).ok().and_then(Key::of);
        let kind = header.number32()?;
        match (key, kind) {
            (Some(key), ARRAY) => header.array(key, &mut builder)?,
            (Some(key), kind) => builder.value(key, header.value(kind)?),
            (None, kind) => header.skip(kind)?,
        }
    }
    Ok(builder)
}

struct Header<R> {
    file: std::io::BufReader<R>,
    /// The text that was read last.
    text: Vec<u8>,
}

impl<R: Read> Header<R> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], VocabularyError> {
        let mut bytes = [0; N];
        self.file.read_exact(&mut bytes).map_err(VocabularyError::Io)?;
        Ok(bytes)
    }

    fn number32(&mut self) -> Result<u32, VocabularyError> {
        self.take().map(u32::from_le_bytes)
    }

    fn number64(&mut self) -> Result<u64, VocabularyError> {
        self.take().map(u64::from_le_bytes)
    }

    fn read_text(&mut self) -> Result<(), VocabularyError> {
        let len = self.number64()?;
        if len > MAX_TEXT_BYTES {
            return Err(VocabularyError::TooLarge("bytes in one text"));
        }
        self.text.clear();
        let read = (&mut self.file).take(len).read_to_end(&mut self.text);
        match read.map_err(VocabularyError::Io)? as u64 {
            read if read == len => Ok(()),
            _ => Err(VocabularyError::Io(std::io::ErrorKind::UnexpectedEof.into())),
        }
    }

    fn value(&mut self, kind: u32) -> Result<Value<'_>, VocabularyError> {
        let integer = |number: u64| Value::Integer(i64::try_from(number).unwrap_or(i64::MAX));
        Ok(match kind {
            0 => Value::Integer(self.take().map(u8::from_le_bytes)?.into()),
            1 => Value::Integer(self.take().map(i8::from_le_bytes)?.into()),
            2 => Value::Integer(self.take().map(u16::from_le_bytes)?.into()),
            3 => Value::Integer(self.take().map(i16::from_le_bytes)?.into()),
            4 => Value::Integer(self.number32()?.into()),
            5 => Value::Integer(self.take().map(i32::from_le_bytes)?.into()),
            6 => Value::Real(self.take().map(f32::from_le_bytes)?.into()),
            7 => Value::Flag(self.take::<1>()? != [0]),
            TEXT => {
                self.read_text()?;
                Value::Text(&self.text)
            }
            10 => integer(self.number64()?),
            11 => Value::Integer(self.take().map(i64::from_le_bytes)?),
            12 => Value::Real(self.take().map(f64::from_le_bytes)?),
            _ => return Err(VocabularyError::Malformed("a value is of an unknown type")),
        })
    }

    fn array(&mut self, key: Key, builder: &mut Builder) -> Result<(), VocabularyError> {
        let kind = self.number32()?;
        for _ in 0..self.number64()? {
            builder.element(key, self.value(kind)?)?;
        }
        Ok(())
    }

    /// Passes over a value of a key that does not matter.
    fn skip(&mut self, kind: u32) -> Result<(), VocabularyError> {
        let len = match kind {
            TEXT => self.number64()?,
            ARRAY => {
                let kind = self.number32()?;
                let n = self.number64()?;
                match fixed_bytes(kind) {
                    Some(each) => n.saturating_mul(each),
                    None if kind == TEXT => {
                        for _ in 0..n {
                            self.skip(TEXT)?;
                        }
                        0
                    }
                    None => return Err(VocabularyError::Malformed("an array in an array")),
                }
            }
            kind => fixed_bytes(kind)
                .ok_or(VocabularyError::Malformed("a value is of an unknown type"))?,
        };
        let passed = std::io::copy(&mut (&mut self.file).take(len), &mut std::io::sink());
        match passed.map_err(VocabularyError::Io)? {
            passed if passed == len => Ok(()),
            _ => Err(VocabularyError::Io(std::io::ErrorKind::UnexpectedEof.into())),
        }
    }
}

/// The length of a value of a type, where all values of it are as long.
fn fixed_bytes(kind: u32) -> Option<u64> {
    match kind {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}
