//! The stored form of a vocabulary: `vocab/<digest>` of FORMAT.md.
//!
//! Must not know files. **Invariant**: what decodes is a vocabulary that could have been built; every other sequence
//! of bytes is an error.

use super::builder::Kind;
use super::texts::Texts;
use super::{Merge, Roles, Vocabulary, VocabularyError};

const MAGIC: &[u8; 8] = b"ollmvoc\n";
/// Raised with every change of the form; a file of another version is read anew from the model.
const VERSION: u32 = 1;
const HASH_BYTES: usize = 32;

/// The hash of all that a vocabulary says.
pub(super) fn digest(vocabulary: &Vocabulary) -> blake3::Hash {
    blake3::hash(&body(vocabulary))
}

/// Magic, version, hash of the body, body.
pub(super) fn encode(vocabulary: &Vocabulary) -> Vec<u8> {
    let body = body(vocabulary);
    let mut bytes = Vec::with_capacity(body.len() + 64);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(blake3::hash(&body).as_bytes());
    bytes.extend_from_slice(&body);
    bytes
}

fn body(vocabulary: &Vocabulary) -> Vec<u8> {
    let mut out = Writer(Vec::with_capacity(vocabulary.texts.heap_bytes() * 2));
    for text in [&vocabulary.model, &vocabulary.pre, &vocabulary.architecture] {
        out.text(text.as_bytes());
    }
    out.number(u64::from(vocabulary.name.is_some()));
    out.text(vocabulary.name.as_deref().unwrap_or_default().as_bytes());
    let flags = [vocabulary.adds_bos, vocabulary.adds_eos, vocabulary.adds_space_prefix];
    for flag in flags {
        out.number(flag.map_or(0, |flag| 1 + u64::from(flag)));
    }
    let mut roles = vocabulary.roles;
    for role in roles.all_mut() {
        out.number(role.map_or(0, |id| 1 + u64::from(id)));
    }
    out.number(u64::from(vocabulary.n_tokens));
    out.number(vocabulary.texts.len() as u64);
    for text in vocabulary.texts.iter() {
        out.text(text);
    }
    out.number(vocabulary.kinds.len() as u64);
    for run in vocabulary.kinds.chunk_by(|a, b| a == b) {
        out.number(run.len() as u64);
        out.0.push(run[0] as u8);
    }
    out.number(vocabulary.scores.len() as u64);
    for score in &vocabulary.scores {
        out.0.extend_from_slice(&score.to_le_bytes());
    }
    out.number(vocabulary.merges.len() as u64);
    // Most merges make the token after the one of the merge before.
    let mut before = 0_u32;
    for merge in &vocabulary.merges {
        out.number(u64::from(merge.text.wrapping_sub(before)));
        out.number(u64::from(merge.left_bytes));
        before = merge.text;
    }
    out.0
}

/// Numbers of seven bits a byte, the lowest first; texts by their length.
struct Writer(Vec<u8>);

impl Writer {
    #[expect(clippy::cast_possible_truncation, reason = "the low seven bits are meant")]
    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    fn text(&mut self, text: &[u8]) {
        self.number(text.len() as u64);
        self.0.extend_from_slice(text);
    }
}

/// The vocabulary in `bytes`.
pub(super) fn decode(bytes: &[u8]) -> Result<Vocabulary, VocabularyError> {
    let mut reader = Reader(bytes);
    if reader.take(MAGIC.len())? != MAGIC {
        return Err(VocabularyError::Malformed("the file is of another kind"));
    }
    let found = u32::from_le_bytes(reader.array()?);
    if found != VERSION {
        return Err(VocabularyError::Version { found, supported: VERSION });
    }
    let digest = blake3::Hash::from_bytes(reader.array::<HASH_BYTES>()?);
    if blake3::hash(reader.0) != digest {
        return Err(VocabularyError::Checksum);
    }
    let [model, pre, architecture] = [reader.string()?, reader.string()?, reader.string()?];
    let has_name = reader.number()? != 0;
    let name = Some(reader.string()?).filter(|_| has_name);
    let [adds_bos, adds_eos, adds_space_prefix] = [reader.flag()?, reader.flag()?, reader.flag()?];
    let mut roles = Roles::default();
    for role in roles.all_mut() {
        *role = reader.number32()?.checked_sub(1);
    }
    let n_tokens = reader.number32()?;
    let texts = reader.texts()?;
    let is_beyond = |id: u32| id >= n_tokens;
    if n_tokens as usize > texts.len() || roles.all_mut().iter().any(|id| id.is_some_and(is_beyond))
    {
        return Err(VocabularyError::Malformed("an id has no token"));
    }
    let kinds = reader.kinds(n_tokens)?;
    let scores = reader.scores(n_tokens)?;
    let merges = reader.merges(&texts)?;
    if !reader.0.is_empty() {
        return Err(VocabularyError::Malformed("bytes are left over"));
    }
    Ok(Vocabulary {
        model,
        pre,
        name,
        architecture,
        texts,
        n_tokens,
        merges,
        scores,
        kinds,
        roles,
        adds_bos,
        adds_eos,
        adds_space_prefix,
        digest,
    })
}

/// The bytes that are still to be read.
struct Reader<'b>(&'b [u8]);

impl<'b> Reader<'b> {
    const ENDS: VocabularyError = VocabularyError::Malformed("the bytes end too early");

    fn take(&mut self, len: usize) -> Result<&'b [u8], VocabularyError> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Self::ENDS)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], VocabularyError> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Self::ENDS)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn number(&mut self) -> Result<u64, VocabularyError> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let [byte] = self.array()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(VocabularyError::Malformed("a number has no end"))
    }

    fn number32(&mut self) -> Result<u32, VocabularyError> {
        let number = self.number()?;
        u32::try_from(number).map_err(|_| VocabularyError::Malformed("a number is too large"))
    }

    /// A count of things of at least one byte each.
    fn count(&mut self) -> Result<usize, VocabularyError> {
        let count = usize::try_from(self.number()?).unwrap_or(usize::MAX);
        if count > self.0.len() { Err(Self::ENDS) } else { Ok(count) }
    }

    fn text(&mut self) -> Result<&'b [u8], VocabularyError> {
        let len = self.count()?;
        self.take(len)
    }

    fn string(&mut self) -> Result<String, VocabularyError> {
        let text = std::str::from_utf8(self.text()?);
        text.map(str::to_owned).map_err(|_| VocabularyError::Malformed("a name is no text"))
    }

    fn flag(&mut self) -> Result<Option<bool>, VocabularyError> {
        Ok(self.number()?.checked_sub(1).map(|flag| flag != 0))
    }

    fn texts(&mut self) -> Result<Texts, VocabularyError> {
        let mut texts = Texts::default();
        for _ in 0..self.count()? {
            if !texts.push(self.text()?) {
                return Err(VocabularyError::TooLarge("bytes"));
            }
        }
        Ok(texts)
    }

    fn kinds(&mut self, n_tokens: u32) -> Result<Vec<Kind>, VocabularyError> {
        let n = self.number()?;
        if n != 0 && n != u64::from(n_tokens) {
            return Err(VocabularyError::Malformed("not as many types as tokens"));
        }
        let mut kinds = Vec::new();
        while (kinds.len() as u64) < n {
            let len = self.number()?;
            let [kind] = self.array()?;
            if len == 0 || len > n - kinds.len() as u64 {
                return Err(VocabularyError::Malformed("a run of types is too long"));
            }
            let len = usize::try_from(len).unwrap_or(usize::MAX);
            kinds.resize(kinds.len() + len, Kind::of(kind.into()));
        }
        Ok(kinds)
    }

    fn scores(&mut self, n_tokens: u32) -> Result<Vec<f32>, VocabularyError> {
        let n = self.count()?;
        if n != 0 && n != n_tokens as usize {
            return Err(VocabularyError::Malformed("not as many scores as tokens"));
        }
        let (scores, _) = self.take(n.saturating_mul(4))?.as_chunks::<4>();
        Ok(scores.iter().map(|score| f32::from_le_bytes(*score)).collect())
    }

    fn merges(&mut self, texts: &Texts) -> Result<Vec<Merge>, VocabularyError> {
        let n = self.count()?;
        let mut merges = Vec::with_capacity(n);
        let mut before = 0_u32;
        for _ in 0..n {
            let text = before.wrapping_add(self.number32()?);
            let left_bytes = self.number32()?;
            let fits = left_bytes as usize <= texts.of(text).len();
            if text as usize >= texts.len() || !fits {
                return Err(VocabularyError::Malformed("a merge joins nothing"));
            }
            merges.push(Merge { text, left_bytes });
            before = text;
        }
        Ok(merges)
    }
}
