//! A vocabulary as a value, its stored form (`vocab/<digest>` in FORMAT.md), and the error of all readers.
//!
//! Must not know files, JSON or GGUF.
//!
//! **Invariants**: every id is below the number of tokens, and every merge names a text that exists; the stored form
//! decodes to a valid vocabulary or fails.

use thiserror::Error;

use super::texts::Texts;

/// The families of a `tokenizer.json`, whose names no GGUF file has.
pub(in super::super) const BYTE_LEVEL: &str = "byte-level";
pub(in super::super) const CHAR_LEVEL: &str = "char-level";

/// A model's vocabulary.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Vocabulary {
    /// `tokenizer.ggml.model`: the tokenizer family; [`BYTE_LEVEL`] or [`CHAR_LEVEL`] if a `tokenizer.json` was read.
    pub(in super::super) model: String,
    /// `tokenizer.ggml.pre`: the name of the split rule; empty if the model names none.
    pub(in super::super) pre: String,
    /// `general.name`; `None` if it is missing, as in the reports of a model server.
    pub(in super::super) name: Option<String>,
    /// `general.architecture`.
    pub(in super::super) architecture: String,
    /// The tokens by id, followed by the texts that occur only in merges.
    pub(in super::super) texts: Texts,
    /// The number of texts that are tokens.
    pub(in super::super) n_tokens: u32,
    /// The merges by rank.
    pub(in super::super) merges: Vec<Merge>,
    /// One score per token, or none.
    pub(in super::super) scores: Vec<f32>,
    /// One kind per token, or none.
    pub(in super::super) kinds: Vec<TokenKind>,
    /// The ids of the tokens that have a role, by [`TokenRole`].
    pub(in super::super) roles: [Option<u32>; N_ROLES],
    pub(in super::super) adds_bos: Option<bool>,
    pub(in super::super) adds_eos: Option<bool>,
    pub(in super::super) adds_space_prefix: Option<bool>,
    /// The hash of the other fields in their stored form.
    pub(in super::super) digest: [u8; 32],
}

/// A merge of two texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Merge {
    /// The number of the merged text.
    pub(in super::super) text: u32,
    /// The length of its left half.
    pub(in super::super) left_bytes: u32,
}

/// The type of a token, as numbered in GGUF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(in super::super) enum TokenKind {
    Undefined = 0,
    Normal = 1,
    Unknown = 2,
    Control = 3,
    UserDefined = 4,
    Unused = 5,
    Byte = 6,
}

impl TokenKind {
    /// Returns the kind with a number; unknown numbers are `Undefined`.
    pub(super) const fn from_number(number: i64) -> Self {
        match number {
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => Self::Undefined,
        }
    }
}

/// The role of a token, numbered in the order of the stored form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum TokenRole {
    Bos = 0,
    Eos = 1,
    Eot = 2,
    Eom = 3,
    Unknown = 4,
    FimPrefix = 5,
    FimSuffix = 6,
    FimMiddle = 7,
    FimPad = 8,
    FimRepo = 9,
    FimSeparator = 10,
}

const N_ROLES: usize = 11;

/// The reason why bytes could not be read as a vocabulary.
#[derive(Debug, Error)]
pub enum VocabularyError {
    /// The bytes do not have the expected form.
    #[error("not a vocabulary: {0}")]
    Malformed(&'static str),
    /// The JSON could not be parsed.
    #[error("read the description of the model")]
    Json(#[source] serde_json::Error),
    /// A part of a `tokenizer.json` has no counterpart here.
    #[error("the {part} is not understood: {found}")]
    NotUnderstood {
        /// The part.
        part: &'static str,
        /// The beginning of its value.
        found: String,
    },
    /// The file could not be read, or ends too early.
    #[error("read the header of the model file")]
    Io(#[source] std::io::Error),
    /// The model's description contains no tokens, for example because it is not verbose.
    #[error("the model's description contains no tokens")]
    NoTokens,
    /// A count or length is larger than in any real vocabulary.
    #[error("the vocabulary has too many {0}")]
    TooLarge(&'static str),
    /// The stored vocabulary has another version.
    #[error("the stored vocabulary has version {found}, but this daemon supports {supported}")]
    Version {
        /// The version in the bytes.
        found: u32,
        /// The only supported version.
        supported: u32,
    },
}

/// A name by which llama.cpp recognizes a Phi-3 model.
const PHI3: &str = "phi-3";

const MAGIC: &[u8; 8] = b"ollmvoc\n";
/// The version of the stored form. A file of another version is replaced by what the model reports.
const VERSION: u32 = 1;

impl Vocabulary {
    /// Decodes the stored form.
    ///
    /// **Errors**: `Version` if another version of the daemon wrote it, `Malformed` if it is damaged.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, VocabularyError> {
        let mut reader = VocabularyReader(bytes);
        if reader.take(MAGIC.len())? != MAGIC {
            return Err(VocabularyError::Malformed("the file is of another kind"));
        }
        let found = u32::from_le_bytes(reader.array()?);
        if found != VERSION {
            return Err(VocabularyError::Version { found, supported: VERSION });
        }
        let digest = reader.array()?;
        if blake3::hash(reader.0) != digest {
            return Err(VocabularyError::Malformed("the checksum does not match"));
        }
        reader.body(digest)
    }

    /// Encodes the stored form: magic, version, hash of the body, body.
    pub fn to_bytes(&self) -> Vec<u8> {
        let body = self.body();
        let mut bytes = Vec::with_capacity(body.len() + 64);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(blake3::hash(&body).as_bytes());
        bytes.extend_from_slice(&body);
        bytes
    }

    /// Sets the name of the model, which a model server omits from its report.
    #[must_use]
    pub fn with_name(self, name: &str) -> Self {
        Self { name: Some(name.to_owned()), ..self }.with_digest()
    }

    /// Returns whether the name of the model is missing and decides how it is tokenized.
    pub(crate) fn needs_name(&self) -> bool {
        self.name.is_none() && self.architecture == "phi3" && self.model == "llama"
    }

    /// Returns the vocabulary with the name that a Phi-3 model has if it does not have the present one: a name by which
    /// llama.cpp recognizes such a model, or another one.
    #[must_use]
    pub(crate) fn with_other_name(self) -> Self {
        let name = if self.name.as_deref() == Some(PHI3) { "" } else { PHI3 };
        self.with_name(name)
    }

    /// Returns the id of the token that has a role.
    pub(in super::super) const fn role(&self, role: TokenRole) -> Option<u32> {
        self.roles[role as usize]
    }

    /// Returns the name of the file that stores it: the first 16 hex digits of the digest.
    pub(crate) fn file_name(&self) -> String {
        blake3::Hash::from(self.digest).to_hex()[..16].to_owned()
    }

    /// Recomputes the digest.
    pub(super) fn with_digest(self) -> Self {
        Self { digest: blake3::hash(&self.body()).into(), ..self }
    }

    fn body(&self) -> Vec<u8> {
        let mut out = VocabularyWriter(Vec::new());
        for text in [&self.model, &self.pre, &self.architecture] {
            out.text(text.as_bytes());
        }
        out.number(u64::from(self.name.is_some()));
        out.text(self.name.as_deref().unwrap_or_default().as_bytes());
        for flag in [self.adds_bos, self.adds_eos, self.adds_space_prefix] {
            out.number(flag.map_or(0, |flag| 1 + u64::from(flag)));
        }
        for role in self.roles {
            out.number(role.map_or(0, |id| 1 + u64::from(id)));
        }
        out.number(u64::from(self.n_tokens));
        out.number(self.texts.len() as u64);
        for text in self.texts.iter() {
            out.text(text);
        }
        out.number(self.kinds.len() as u64);
        for run in self.kinds.chunk_by(|a, b| a == b) {
            out.number(run.len() as u64);
            out.0.push(run[0] as u8);
        }
        out.number(self.scores.len() as u64);
        for score in &self.scores {
            out.0.extend_from_slice(&score.to_le_bytes());
        }
        out.number(self.merges.len() as u64);
        // Differences are small: the merged text is usually the one after that of the previous merge.
        let mut previous = 0_u32;
        for merge in &self.merges {
            out.number(u64::from(merge.text.wrapping_sub(previous)));
            out.number(u64::from(merge.left_bytes));
            previous = merge.text;
        }
        out.0
    }
}

/// Writes numbers with seven bits per byte, the lowest first, and texts with their length.
struct VocabularyWriter(Vec<u8>);

impl VocabularyWriter {
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

/// Reads the stored form from the remaining bytes.
struct VocabularyReader<'b>(&'b [u8]);

impl<'b> VocabularyReader<'b> {
    const TOO_SHORT: VocabularyError = VocabularyError::Malformed("the bytes end too early");

    fn body(mut self, digest: [u8; 32]) -> Result<Vocabulary, VocabularyError> {
        let mut vocabulary = Vocabulary { digest, ..Vocabulary::default() };
        vocabulary.model = self.string()?;
        vocabulary.pre = self.string()?;
        vocabulary.architecture = self.string()?;
        let has_name = self.number()? != 0;
        vocabulary.name = Some(self.string()?).filter(|_| has_name);
        vocabulary.adds_bos = self.flag()?;
        vocabulary.adds_eos = self.flag()?;
        vocabulary.adds_space_prefix = self.flag()?;
        for role in &mut vocabulary.roles {
            *role = self.number32()?.checked_sub(1);
        }
        let n_tokens = self.number32()?;
        vocabulary.n_tokens = n_tokens;
        vocabulary.texts = self.texts()?;
        let has_no_token = |id: &u32| *id >= n_tokens;
        if n_tokens as usize > vocabulary.texts.len()
            || vocabulary.roles.iter().flatten().any(has_no_token)
        {
            return Err(VocabularyError::Malformed("an id has no token"));
        }
        vocabulary.kinds = self.kinds(n_tokens)?;
        vocabulary.scores = self.scores(n_tokens)?;
        vocabulary.merges = self.merges(&vocabulary.texts)?;
        if !self.0.is_empty() {
            return Err(VocabularyError::Malformed("bytes are left over"));
        }
        Ok(vocabulary)
    }

    fn take(&mut self, len: usize) -> Result<&'b [u8], VocabularyError> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Self::TOO_SHORT)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], VocabularyError> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Self::TOO_SHORT)?;
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

    /// Reads the number of items that take at least one byte each.
    fn count(&mut self) -> Result<usize, VocabularyError> {
        let count = usize::try_from(self.number()?).unwrap_or(usize::MAX);
        if count > self.0.len() { Err(Self::TOO_SHORT) } else { Ok(count) }
    }

    fn text(&mut self) -> Result<&'b [u8], VocabularyError> {
        let len = self.count()?;
        self.take(len)
    }

    fn string(&mut self) -> Result<String, VocabularyError> {
        let text = std::str::from_utf8(self.text()?);
        text.map(str::to_owned).map_err(|_| VocabularyError::Malformed("a name is not UTF-8"))
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

    fn kinds(&mut self, n_tokens: u32) -> Result<Vec<TokenKind>, VocabularyError> {
        let n = self.number()?;
        if n != 0 && n != u64::from(n_tokens) {
            return Err(VocabularyError::Malformed("the numbers of types and tokens differ"));
        }
        let mut kinds = Vec::new();
        while (kinds.len() as u64) < n {
            let len = self.number()?;
            let [kind] = self.array()?;
            if len == 0 || len > n - kinds.len() as u64 {
                return Err(VocabularyError::Malformed("a run of types has a wrong length"));
            }
            let len = usize::try_from(len).unwrap_or(usize::MAX);
            kinds.resize(kinds.len() + len, TokenKind::from_number(kind.into()));
        }
        Ok(kinds)
    }

    fn scores(&mut self, n_tokens: u32) -> Result<Vec<f32>, VocabularyError> {
        let n = self.count()?;
        if n != 0 && n != n_tokens as usize {
            return Err(VocabularyError::Malformed("the numbers of scores and tokens differ"));
        }
        let (scores, _) = self.take(n.saturating_mul(4))?.as_chunks::<4>();
        Ok(scores.iter().map(|score| f32::from_le_bytes(*score)).collect())
    }

    fn merges(&mut self, texts: &Texts) -> Result<Vec<Merge>, VocabularyError> {
        let n = self.count()?;
        let mut merges = Vec::with_capacity(n);
        let mut previous = 0_u32;
        for _ in 0..n {
            let text = previous.wrapping_add(self.number32()?);
            let left_bytes = self.number32()?;
            if text as usize >= texts.len() || left_bytes as usize > texts.of(text).len() {
                return Err(VocabularyError::Malformed("a merge has no text"));
            }
            merges.push(Merge { text, left_bytes });
            previous = text;
        }
        Ok(merges)
    }
}
