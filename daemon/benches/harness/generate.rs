//! Text like that of sessions: words by Zipf's law, identifiers, paths, and some Chinese and Japanese.

/// As many words as a large code base with its documentation uses often.
const VOCABULARY: usize = 60_000;
const SYLLABLES: [&str; 32] = [
    "ba", "con", "der", "el", "fi", "gra", "hol", "in", "jo", "ka", "lum", "men", "nor", "or",
    "per", "qui", "ra", "ser", "tion", "ul", "ver", "win", "ex", "yr", "zo", "tra", "ple", "ment",
    "sta", "cre", "dis", "pro",
];
/// The first of 1,500 common characters, and of the letters of hiragana.
const HAN: u32 = 0x4E00;
const HIRAGANA: u32 = 0x3042;

/// A generator that gives the same text for the same seed.
pub(crate) struct Text {
    state: u64,
    words: Vec<String>,
    /// Sums of 1/rank, to draw by.
    cumulative: Vec<f64>,
}

impl Text {
    /// A generator.
    pub(crate) fn new(seed: u64) -> Self {
        let mut text = Self { state: seed | 1, words: Vec::new(), cumulative: Vec::new() };
        let mut seen = std::collections::HashSet::new();
        while text.words.len() < VOCABULARY {
            let syllables = 1 + text.below(4);
            let word: String =
                (0..=syllables).map(|_| SYLLABLES[text.below(SYLLABLES.len())]).collect();
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

    /// The word of a rank, the most common one being 0.
    pub(crate) fn word_of_rank(&self, rank: usize) -> &str {
        &self.words[rank % self.words.len()]
    }

    /// About `bytes` bytes of one message.
    pub(crate) fn message(&mut self, bytes: usize) -> String {
        let mut message = String::with_capacity(bytes + 64);
        let is_cjk = self.below(10) == 0;
        while message.len() < bytes {
            match self.below(40) {
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

    /// Like words, a few names are everywhere and most are rare, but none is unique.
    fn identifier(&mut self, out: &mut String) {
        let (first, second) = (self.draw_rank() % 300, self.draw_rank() % 900);
        let (first, second) = (self.word_of_rank(first), self.word_of_rank(second));
        out.push_str(&format!("{first}_{second}"));
    }

    fn path(&mut self, out: &mut String) {
        let (dir, file, line) = (self.draw_rank() % 40, self.draw_rank() % 700, self.below(900));
        let (dir, file) = (self.word_of_rank(dir), self.word_of_rank(file));
        out.push_str(&format!("src/{dir}/{file}.rs:{line}"));
    }

    fn cjk(&mut self, out: &mut String) {
        for _ in 0..2 + self.below(8) {
            // Squaring makes early characters more common, as some are in any text.
            let skewed = self.below(39).pow(2);
            let (first, at) =
                if self.below(3) == 0 { (HIRAGANA, skewed % 80) } else { (HAN, skewed) };
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
        #[expect(clippy::cast_precision_loss, reason = "a random fraction")]
        let at = self.next() as f64 / (1_u64 << 53) as f64 * total;
        let rank = self.cumulative.partition_point(|sum| *sum < at);
        rank.min(VOCABULARY - 1)
    }

    fn below(&mut self, limit: usize) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "any bits will do")]
        let bits = self.next() as usize;
        bits % limit
    }

    /// xorshift64*, of which the upper 53 bits are good: enough for text.
    fn next(&mut self) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        self.state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11
    }
}
