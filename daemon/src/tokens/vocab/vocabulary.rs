//! A vocabulary as a value, its stored form (`vocab/<digest>` in FORMAT.md), and the error of all readers.
//!
//! Must not know files, JSON or GGUF.
//!
//! **Invariants**: every id is below the number of tokens, and every merge names a text that exists; the stored form
//! decodes to a valid vocabulary or fails.

use thiserror::Error;

use super::texts::Texts;

/// A merge: the text that it makes, and how many bytes of that are its left half. Its rank is its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Merge {
    pub(in super::super) text: u32,
    pub(in super::super) left_bytes: u32,
}

/// The tokens that a model names by their role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Roles {
    pub(in super::super) bos: Option<u32>,
    pub(in super::super) eos: Option<u32>,
    pub(in super::super) eot: Option<u32>,
    pub(in super::super) eom: Option<u32>,
    pub(in super::super) unknown: Option<u32>,
    pub(in super::super) fim_prefix: Option<u32>,
    pub(in super::super) fim_suffix: Option<u32>,
    pub(in super::super) fim_middle: Option<u32>,
    pub(in super::super) fim_pad: Option<u32>,
    pub(in super::super) fim_repo: Option<u32>,
    pub(in super::super) fim_separator: Option<u32>,
}

impl Roles {
    pub(super) fn all_mut(&mut self) -> [&mut Option<u32>; 11] {
        [
            &mut self.bos,
            &mut self.eos,
            &mut self.eot,
            &mut self.eom,
            &mut self.unknown,
            &mut self.fim_prefix,
            &mut self.fim_suffix,
            &mut self.fim_middle,
            &mut self.fim_pad,
            &mut self.fim_repo,
            &mut self.fim_separator,
        ]
    }
}

/// What a model says of its tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Vocabulary {
    /// `tokenizer.ggml.model`: the family.
    pub(in super::super) model: String,
    /// `tokenizer.ggml.pre`: the split rule; empty where the model names none.
    pub(in super::super) pre: String,
    /// `general.name`; `None` where it was left out, as a model server does.
    pub(in super::super) name: Option<String>,
    /// `general.architecture`.
    pub(in super::super) architecture: String,
    /// The tokens by id; behind them the texts that only merges make.
    pub(in super::super) texts: Texts,
    /// How many of the texts are tokens.
    pub(in super::super) n_tokens: u32,
    pub(in super::super) merges: Vec<Merge>,
    /// One for each token, or none at all.
    pub(in super::super) scores: Vec<f32>,
    /// One for each token, or none at all.
    pub(in super::super) kinds: Vec<Kind>,
    pub(in super::super) roles: Roles,
    pub(in super::super) adds_bos: Option<bool>,
    pub(in super::super) adds_eos: Option<bool>,
    pub(in super::super) adds_space_prefix: Option<bool>,
    /// The hash of all of the above.
    pub(in super::super) digest: blake3::Hash,
}

/// Why bytes are not a vocabulary.
#[derive(Debug, Error)]
pub enum VocabularyError {
    /// The bytes are not what they were said to be.
    #[error("not a vocabulary: {0}")]
    Malformed(&'static str),
    /// The JSON does not parse.
    #[error("read the description of the model")]
    Json(#[source] serde_json::Error),
    /// The file cannot be read, or ends too early.
    #[error("read the header of the model file")]
    Io(#[source] std::io::Error),
    /// The model says nothing of its tokens; a server leaves them out where it was not asked for all of them.
    #[error("the model's description holds no tokens")]
    NoTokens,
    /// More or longer than any vocabulary.
    #[error("the vocabulary has too many {0}")]
    TooLarge(&'static str),
    /// A stored vocabulary of another version of the daemon.
    #[error("the stored vocabulary is of version {found}, this daemon writes {supported}")]
    Version {
        /// The version in the bytes.
        found: u32,
        /// The only one that is read.
        supported: u32,
    },
    /// A stored vocabulary that is damaged.
    #[error("the stored vocabulary does not match its checksum")]
    Checksum,
}

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(in super::super) enum Kind {
    Undefined = 0,
    Normal = 1,
    Unknown = 2,
    Control = 3,
    UserDefined = 4,
    Unused = 5,
    Byte = 6,
}

impl Kind {
    /// The kind with a number of GGUF.
    pub(in super::super) fn of(number: i64) -> Self {
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

impl Vocabulary {
    /// Reads what [`Self::to_bytes`] wrote.
    ///
    /// **Errors**: `Version` where another daemon wrote it, `Checksum` or `Malformed` where it is damaged.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, VocabularyError> {
        decode(bytes)
    }

    /// The compact form for `vocab/<digest>`; FORMAT.md describes it.
    pub fn to_bytes(&self) -> Vec<u8> {
        encode(self)
    }

    /// Says what the model is called, which a model server leaves out of its description.
    #[must_use]
    pub fn with_name(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self.digest = digest(&self);
        self
    }

    /// The number of tokens.
    pub fn n_tokens(&self) -> u32 {
        self.n_tokens
    }
}

const MAGIC: &[u8; 8] = b"ollmvoc\n";
/// Raised with every change of the form; a file of another version is read anew from the model.
const VERSION: u32 = 1;
const HASH_BYTES: usize = 32;

/// The hash of all that a vocabulary says.
pub(super) fn digest(vocabulary: &Vocabulary) -> blake3::Hash {
    blake3::hash(&body(vocabulary))
}

/// Magic, version, hash of the body, body.
fn encode(vocabulary: &Vocabulary) -> Vec<u8> {
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
fn decode(bytes: &[u8]) -> Result<Vocabulary, VocabularyError> {
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
