//! Reads a vocabulary from the header of a GGUF file, which precedes the tensors.
//!
//! Must not know the meaning of the values.
//!
//! **Invariant**: memory is allocated only for bytes that were read, so a header with false lengths costs no more than
//! the length of the file.
//!
//! **Source**: ggml's `docs/gguf.md`. Versions 2 and 3 differ in byte order only, and big endian is refused.

use std::io::{self, Read};

use super::builder::{MetadataKey, MetadataValue, VocabularyBuilder};
use super::vocabulary::{Vocabulary, VocabularyError};

/// Maximum length of a text. Longer texts, such as chat templates, belong to keys that are skipped.
const MAX_TEXT_BYTES: u64 = 1 << 20;
/// Maximum number of keys; real files have less than a hundred.
const MAX_KEYS: u64 = 1 << 16;

const TEXT: u32 = 8;
const ARRAY: u32 = 9;

impl Vocabulary {
    /// Reads the header of a GGUF file, version 2 or 3, up to the list of tensors.
    ///
    /// **Errors**: `Io` if the reader fails or ends early, `Malformed` if it is not such a file.
    pub fn from_gguf(file: impl Read) -> Result<Self, VocabularyError> {
        let file = io::BufReader::with_capacity(1 << 16, file);
        let mut reader = GgufReader { file, text: Vec::new() };
        if &reader.take::<4>()? != b"GGUF" {
            return Err(VocabularyError::Malformed("the file does not begin with GGUF"));
        }
        if !matches!(reader.number32()?, 2 | 3) {
            return Err(VocabularyError::Malformed("the version of the file is neither 2 nor 3"));
        }
        let _n_tensors = reader.number64()?;
        let n_keys = reader.number64()?;
        if n_keys > MAX_KEYS {
            return Err(VocabularyError::TooLarge("keys"));
        }
        let mut builder = VocabularyBuilder::default();
        for _ in 0..n_keys {
            reader.read_text()?;
            let key = std::str::from_utf8(&reader.text).ok().and_then(MetadataKey::by_name);
            let value_type = reader.number32()?;
            match (key, value_type) {
                (Some(key), ARRAY) => reader.array(key, &mut builder)?,
                (Some(key), value_type) => builder.set(key, reader.value(value_type)?),
                (None, value_type) => reader.skip(value_type)?,
            }
        }
        builder.finish()
    }
}

struct GgufReader<R> {
    file: io::BufReader<R>,
    /// The last text read.
    text: Vec<u8>,
}

impl<R: Read> GgufReader<R> {
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
        check_len(read.map(|n| n as u64), len)
    }

    fn value(&mut self, value_type: u32) -> Result<MetadataValue<'_>, VocabularyError> {
        let integer =
            |number: u64| MetadataValue::Integer(i64::try_from(number).unwrap_or(i64::MAX));
        Ok(match value_type {
            0 => MetadataValue::Integer(self.take().map(u8::from_le_bytes)?.into()),
            1 => MetadataValue::Integer(self.take().map(i8::from_le_bytes)?.into()),
            2 => MetadataValue::Integer(self.take().map(u16::from_le_bytes)?.into()),
            3 => MetadataValue::Integer(self.take().map(i16::from_le_bytes)?.into()),
            4 => MetadataValue::Integer(self.number32()?.into()),
            5 => MetadataValue::Integer(self.take().map(i32::from_le_bytes)?.into()),
            6 => MetadataValue::Real(self.take().map(f32::from_le_bytes)?.into()),
            7 => MetadataValue::Flag(self.take::<1>()? != [0]),
            TEXT => {
                self.read_text()?;
                MetadataValue::Text(&self.text)
            }
            10 => integer(self.number64()?),
            11 => MetadataValue::Integer(self.take().map(i64::from_le_bytes)?),
            12 => MetadataValue::Real(self.take().map(f64::from_le_bytes)?),
            _ => return Err(VocabularyError::Malformed("a value has an unknown type")),
        })
    }

    fn array(
        &mut self,
        key: MetadataKey,
        builder: &mut VocabularyBuilder,
    ) -> Result<(), VocabularyError> {
        let value_type = self.number32()?;
        for _ in 0..self.number64()? {
            builder.append(key, self.value(value_type)?)?;
        }
        Ok(())
    }

    /// Skips a value.
    fn skip(&mut self, value_type: u32) -> Result<(), VocabularyError> {
        match value_type {
            TEXT => {
                let len = self.number64()?;
                let skipped = io::copy(&mut (&mut self.file).take(len), &mut io::sink());
                check_len(skipped, len)
            }
            ARRAY => {
                let element_type = self.number32()?;
                if element_type == ARRAY {
                    return Err(VocabularyError::Malformed("an array in an array"));
                }
                for _ in 0..self.number64()? {
                    self.skip(element_type)?;
                }
                Ok(())
            }
            scalar => self.value(scalar).map(drop),
        }
    }
}

fn check_len(read: io::Result<u64>, expected: u64) -> Result<(), VocabularyError> {
    match read.map_err(VocabularyError::Io)? {
        len if len == expected => Ok(()),
        _ => Err(VocabularyError::Io(io::ErrorKind::UnexpectedEof.into())),
    }
}
