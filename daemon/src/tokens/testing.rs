//! Vocabularies for tests: the two fixtures, and small ones built by hand.

use super::vocab::Vocabulary;

/// Builds the header of a GGUF file.
pub(crate) struct GgufBuilder {
    n_keys: u64,
    body: Vec<u8>,
}

impl GgufBuilder {
    /// Creates a header without tokens for a tokenizer model.
    pub(crate) fn new(model: &str) -> Self {
        Self { n_keys: 0, body: Vec::new() }.text("tokenizer.ggml.model", model)
    }

    fn bytes_of(&mut self, text: &[u8]) {
        self.body.extend((text.len() as u64).to_le_bytes());
        self.body.extend(text);
    }

    fn key(&mut self, key: &str, value_type: u32) {
        self.n_keys += 1;
        self.bytes_of(key.as_bytes());
        self.body.extend(value_type.to_le_bytes());
    }

    pub(crate) fn text(mut self, key: &str, text: &str) -> Self {
        self.key(key, 8);
        self.bytes_of(text.as_bytes());
        self
    }

    pub(crate) fn number(mut self, key: &str, number: u32) -> Self {
        self.key(key, 4);
        self.body.extend(number.to_le_bytes());
        self
    }

    pub(crate) fn flag(mut self, key: &str, flag: bool) -> Self {
        self.key(key, 7);
        self.body.push(flag.into());
        self
    }

    pub(crate) fn texts<T: AsRef<str>>(mut self, key: &str, texts: &[T]) -> Self {
        self.key(key, 9);
        self.body.extend(8_u32.to_le_bytes());
        self.body.extend((texts.len() as u64).to_le_bytes());
        for text in texts {
            self.bytes_of(text.as_ref().as_bytes());
        }
        self
    }

    pub(crate) fn numbers(mut self, key: &str, numbers: &[i32]) -> Self {
        self.key(key, 9);
        self.body.extend(5_u32.to_le_bytes());
        self.body.extend((numbers.len() as u64).to_le_bytes());
        self.body.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        self
    }

    pub(crate) fn scores(mut self, key: &str, scores: &[f32]) -> Self {
        self.key(key, 9);
        self.body.extend(6_u32.to_le_bytes());
        self.body.extend((scores.len() as u64).to_le_bytes());
        self.body.extend(scores.iter().flat_map(|score| score.to_le_bytes()));
        self
    }

    /// Returns the file, version 3, without tensors.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(3_u32.to_le_bytes());
        bytes.extend(0_u64.to_le_bytes());
        bytes.extend(self.n_keys.to_le_bytes());
        bytes.extend(&self.body);
        bytes
    }

    pub(crate) fn vocabulary(&self) -> Vocabulary {
        Vocabulary::from_gguf(self.bytes().as_slice()).unwrap()
    }
}

/// Returns a vocabulary with a token for each byte, then `specials` from id 256 on, then the results of `merges`.
pub(crate) fn byte_level(pre: &str, merges: &[&str], specials: &[&str]) -> GgufBuilder {
    byte_level_of(pre, merges, specials, 3)
}

/// The same, but the tokens `others` from id 256 on have the given kind.
pub(super) fn byte_level_of(pre: &str, merges: &[&str], others: &[&str], kind: i32) -> GgufBuilder {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 0x100_u32;
    let mut tokens: Vec<String> = Vec::new();
    for byte in 0..=255_u8 {
        let code = if printable(byte) { u32::from(byte) } else { next };
        next += u32::from(!printable(byte));
        tokens.push(char::from_u32(code).unwrap().into());
    }
    tokens.extend(others.iter().map(ToString::to_string));
    tokens.extend(merges.iter().map(|merge| merge.replacen(' ', "", 1)));
    let kind = |at: usize| if (256..256 + others.len()).contains(&at) { kind } else { 1 };
    let kinds: Vec<i32> = (0..tokens.len()).map(kind).collect();
    GgufBuilder::new("gpt2")
        .text("tokenizer.ggml.pre", pre)
        .texts("tokenizer.ggml.tokens", &tokens)
        .texts("tokenizer.ggml.merges", merges)
        .numbers("tokenizer.ggml.token_type", &kinds)
}

/// Reads a file of `tests/fixtures/vocab`.
pub(super) fn fixture(name: &str) -> Vec<u8> {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/vocab/");
    std::fs::read(format!("{dir}{name}")).unwrap()
}

/// Reads a vocabulary of the fixtures.
pub(super) fn vocabulary(name: &str) -> Vocabulary {
    let packed = fixture(&format!("{name}.gguf.zlib"));
    let file = miniz_oxide::inflate::decompress_to_vec_zlib(&packed).unwrap();
    Vocabulary::from_gguf(file.as_slice()).unwrap()
}

/// Reads the engine's own test cases for a vocabulary of the fixtures: texts and their ids.
pub(super) fn golden(name: &str) -> Vec<(String, Vec<u32>)> {
    let read = |ending: &str| String::from_utf8(fixture(&format!("{name}.{ending}"))).unwrap();
    let (texts, ids) = (read("inp"), read("out"));
    let line = |line: &str| line.split_whitespace().map(|id| id.parse().unwrap()).collect();
    let mut ids: Vec<Vec<u32>> = ids.lines().map(line).collect();
    let texts: Vec<&str> = texts.split("\n__ggml_vocab_test__\n").collect();
    // The last text is empty and has no line of ids.
    ids.resize(texts.len(), Vec::new());
    texts.into_iter().map(str::to_owned).zip(ids).collect()
}
