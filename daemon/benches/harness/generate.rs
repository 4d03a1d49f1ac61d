//! Generated data: text like that of sessions, and session logs as FORMAT.md describes them.

use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::Result;
use serde_json::json;

/// 2026-01-01T00:00:00Z: the time of the first record.
const BEGIN_MS: u64 = 1_767_225_600_000;
/// The number of words that a large code base and its documentation use often.
const VOCABULARY: usize = 60_000;
const SYLLABLES: [&str; 32] = [
    "ba", "con", "der", "el", "fi", "gra", "hol", "in", "jo", "ka", "lum", "men", "nor", "or",
    "per", "qui", "ra", "ser", "tion", "ul", "ver", "win", "ex", "yr", "zo", "tra", "ple", "ment",
    "sta", "cre", "dis", "pro",
];
/// The first of 1,500 common Chinese characters.
const HAN: u32 = 0x4E00;
/// The first letter of hiragana.
const HIRAGANA: u32 = 0x3042;

/// The records of a large session: with [`plain_texts`], a log of 128 MB.
pub(crate) const LARGE_RECORDS: usize = 100_000;
/// The bytes of a plain text, whose record has 1.3 KiB.
const PLAIN_BYTES: usize = 1_080;

/// Returns texts that differ in their numbers only.
pub(crate) fn plain_texts(n_texts: usize) -> impl Iterator<Item = String> {
    let text = "what was said and what was answered ".repeat(PLAIN_BYTES / 36 + 1);
    (0..n_texts).map(move |at| format!("{at}: {}", &text[..PLAIN_BYTES]))
}

/// A text generator: words by Zipf's law, identifiers, paths, and some Chinese and Japanese.
///
/// The same seed gives the same text.
pub(crate) struct TextGenerator {
    random: Random,
    words: Vec<String>,
    /// The sums of 1/rank, from which words are drawn.
    cumulative: Vec<f64>,
}

impl TextGenerator {
    pub(crate) fn new(seed: u64) -> Self {
        let random = Random::new(seed);
        let mut text = Self { random, words: Vec::new(), cumulative: Vec::new() };
        let mut seen = std::collections::HashSet::new();
        while text.words.len() < VOCABULARY {
            let syllables = 1 + text.random.below(4);
            let word: String =
                (0..=syllables).map(|_| SYLLABLES[text.random.below(SYLLABLES.len())]).collect();
            if seen.insert(word.clone()) {
                text.words.push(word);
            }
        }
        let mut sum = 0.0;
        for rank in 1..=VOCABULARY {
            sum += 1.0 / f64::from(u32::try_from(rank).unwrap_or(u32::MAX));
            text.cumulative.push(sum);
        }
        text
    }

    /// Returns the word of a rank; the most common word has rank 0.
    pub(crate) fn word_of_rank(&self, rank: usize) -> &str {
        &self.words[rank % self.words.len()]
    }

    /// Returns a message of about `bytes` bytes.
    pub(crate) fn message(&mut self, bytes: usize) -> String {
        let mut message = String::with_capacity(bytes + 64);
        let is_cjk = self.random.below(10) == 0;
        while message.len() < bytes {
            match self.random.below(40) {
                0 => self.identifier(&mut message),
                1 => self.path(&mut message),
                2 => message.push_str("\n\n"),
                _ if is_cjk => self.cjk(&mut message),
                _ => message.push_str(self.draw()),
            }
            message.push(' ');
        }
        message
    }

    /// Appends a name. As with words, a few names are common and most are rare, but none is unique.
    fn identifier(&mut self, out: &mut String) {
        let (first, second) = (self.draw_rank() % 300, self.draw_rank() % 900);
        let (first, second) = (self.word_of_rank(first), self.word_of_rank(second));
        out.push_str(&format!("{first}_{second}"));
    }

    fn path(&mut self, out: &mut String) {
        let (dir, file, line) =
            (self.draw_rank() % 40, self.draw_rank() % 700, self.random.below(900));
        let (dir, file) = (self.word_of_rank(dir), self.word_of_rank(file));
        out.push_str(&format!("src/{dir}/{file}.rs:{line}"));
    }

    fn cjk(&mut self, out: &mut String) {
        for _ in 0..2 + self.random.below(8) {
            // Squaring makes early characters more common, as in real texts.
            let skewed = self.random.below(39).pow(2);
            let (first, at) =
                if self.random.below(3) == 0 { (HIRAGANA, skewed % 80) } else { (HAN, skewed) };
            let code = first + u32::try_from(at).unwrap_or_default();
            out.extend(char::from_u32(code));
        }
    }

    fn draw(&mut self) -> &str {
        let rank = self.draw_rank();
        &self.words[rank]
    }

    fn draw_rank(&mut self) -> usize {
        let total = self.cumulative.last().copied().unwrap_or(1.0);
        let at = self.random.next() as f64 / (1_u64 << 53) as f64 * total;
        let rank = self.cumulative.partition_point(|sum| *sum < at);
        rank.min(VOCABULARY - 1)
    }
}

/// A pseudo-random generator (xorshift64*, of which the upper 53 bits are used).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// Returns a number below `limit`.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).unwrap_or_default()
    }

    /// Returns a number of 53 bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11
    }
}

/// Writes session logs, faster than a daemon would record them.
pub(crate) struct LogWriter<'a> {
    dir: &'a Path,
    now_ms: u64,
    bytes: u64,
}

impl<'a> LogWriter<'a> {
    pub(crate) fn new(dir: &'a Path) -> Self {
        Self { dir, now_ms: BEGIN_MS, bytes: 0 }
    }

    /// Returns the number of bytes written so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Writes a session with a message for each text, user and assistant in turns; returns its id.
    pub(crate) fn write(&mut self, texts: impl Iterator<Item = String>) -> Result<String> {
        let id = self.next_id();
        let file = std::fs::File::create(self.dir.join(format!("{id}.jsonl")))?;
        let mut log = BufWriter::with_capacity(1 << 20, file);
        let at = self.next_instant();
        let header = format!(
            r#"{{"v":1,"seq":0,"parent":null,"durable":null,"at":"{at}","type":"session","session":{{"sessionId":"{id}","startTime":"{at}","model":"bench"}}"#
        );
        self.line(&mut log, &header)?;
        for (parent, text) in texts.enumerate() {
            let seq = parent + 1;
            let at = self.next_instant();
            let parent = if parent == 0 { json!(null) } else { json!(parent) };
            let role = if seq % 2 == 1 { "user" } else { "assistant" };
            let tokens = text.len() / 4;
            let text = serde_json::to_string(&text)?;
            let line = format!(
                r#"{{"v":1,"seq":{seq},"parent":{parent},"durable":{parent},"at":"{at}","type":"message","tokens":{tokens},"tokenizer":"estimate-v1","message":{{"role":"{role}","parts":[{{"type":"text","text":{text}}}],"timestamp":"{at}"}}"#
            );
            self.line(&mut log, &line)?;
        }
        log.flush()?;
        Ok(id)
    }

    /// Returns the id of a session that is created now, so that two runs write the same logs.
    fn next_id(&self) -> String {
        let (seconds, millis) = (self.now_ms / 1000, u32::try_from(self.now_ms % 1000));
        let at =
            uuid::Timestamp::from_unix_time(seconds, millis.unwrap_or_default() * 1_000_000, 0, 0);
        uuid::Uuid::new_v7(at).to_string()
    }

    /// Writes a line, given as an object without its checksum and closing brace.
    fn line(&mut self, log: &mut impl Write, open_object: &str) -> Result<()> {
        let crc = crc32c::crc32c(open_object.as_bytes());
        let line = format!("{open_object},\"crc\":\"{crc:08x}\"}}\n");
        self.bytes += line.len() as u64;
        Ok(log.write_all(line.as_bytes())?)
    }

    /// Returns a time ten milliseconds after the one before.
    fn next_instant(&mut self) -> String {
        self.now_ms += 10;
        let of_day = self.now_ms - BEGIN_MS;
        let (seconds, ms) = (of_day / 1000, of_day % 1000);
        let (day, hour) = (seconds / 86_400 + 1, seconds / 3600 % 24);
        let (minute, second) = (seconds / 60 % 60, seconds % 60);
        format!("2026-01-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
    }
}
