//! Exact counting: prose and code for each vocabulary, texts that are bad for merging, and how long loading takes.
//!
//! Run with `cargo bench --bench tokens`; `OLLM_BENCH_VOCAB=DIR` adds every `.gguf` file of a folder, and
//! `OLLM_BENCH_TEXT=FILE` another text. The floor is one walk over the characters of the same text in the same run.

mod harness;

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow};
use ollm_daemon::bench_api::{Tokenizer, TokenizerError, Vocabulary};
use serde_json::json;

use harness::report::{Report, Row, rounded};
use harness::text::Text;

/// Enough that a scheduler's slice does not matter, little enough that a run takes seconds.
const TEXT_BYTES: usize = 4 << 20;
const MESSAGE_BYTES: usize = 1024;
const BAD_BYTES: usize = 1_000_000;
const ROUNDS: usize = 5;
/// What the common families must reach.
const BAR_MB_PER_S: f64 = 50.0;
/// A bad text of so many times the length may cost this many times as much: 10 log 10 of n log n, and cold caches.
const MAX_GROWTH: f64 = 25.0;
/// Families that split text into words first, and so repeat them.
const COMMON: [&str; 3] = ["gpt-2", "llama-bpe", "qwen2"];

fn main() -> Result<()> {
    if !harness::report::is_asked_for() {
        return Ok(());
    }
    let report = Report::new("tokens", &json!({ "textBytes": TEXT_BYTES }));
    let texts = texts()?;
    for (name, vocabulary) in vocabularies()? {
        let Some(tokenizer) = load(&report, &name, &vocabulary)? else { continue };
        let mut ns_per_byte = f64::NAN;
        for (kind, text) in &texts {
            ns_per_byte = speed(&report, &name, kind, &tokenizer, text)?;
        }
        bad(&report, &name, &tokenizer, ns_per_byte)?;
    }
    Ok(())
}

/// Generated messages and the sources of this repository; the last one is what bad texts are compared with.
fn texts() -> Result<Vec<(String, String)>> {
    let mut generator = Text::new(7);
    let generated = (0..TEXT_BYTES / MESSAGE_BYTES).map(|_| generator.message(MESSAGE_BYTES));
    let mut texts = vec![("generated prose".to_owned(), generated.collect())];
    if let Ok(path) = std::env::var("OLLM_BENCH_TEXT") {
        let text = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        texts.push(("given text".to_owned(), text));
    }
    for (kind, ending) in [("documentation", "md"), ("code", "rs")] {
        let mut text = String::new();
        collect(Path::new(env!("CARGO_MANIFEST_DIR")), ending, &mut text)?;
        texts.push((kind.to_owned(), text));
    }
    Ok(texts)
}

/// Appends every file of the repository with an ending.
fn collect(dir: &Path, ending: &str, text: &mut String) -> Result<()> {
    let mut entries: Vec<PathBuf> = std::fs::read_dir(dir)
        .with_context(|| format!("list {}", dir.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    entries.sort();
    for path in entries {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name == "target" || name.starts_with('.') {
            continue;
        }
        if path.is_dir() {
            collect(&path, ending, text)?;
        } else if path.extension().is_some_and(|own| own == ending) {
            let file = std::fs::read_to_string(&path);
            text.push_str(&file.with_context(|| format!("read {}", path.display()))?);
        }
    }
    Ok(())
}

fn vocabularies() -> Result<Vec<(String, Vocabulary)>> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/vocab");
    let mut vocabularies = Vec::new();
    for name in ["gpt-2", "llama-spm"] {
        let packed = std::fs::read(fixtures.join(format!("{name}.gguf.zlib")))?;
        let file = miniz_oxide::inflate::decompress_to_vec_zlib(&packed)
            .map_err(|error| anyhow!("unpack the vocabulary {name}: {error:?}"))?;
        vocabularies.push((name.to_owned(), Vocabulary::from_gguf(file.as_slice())?));
    }
    let Ok(dir) = std::env::var("OLLM_BENCH_VOCAB") else { return Ok(vocabularies) };
    for entry in std::fs::read_dir(&dir).with_context(|| format!("list {dir}"))? {
        let path = entry?.path();
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let name = stem.trim_start_matches("ggml-vocab-").to_owned();
        let is_known = vocabularies.iter().any(|(known, _)| *known == name);
        if path.extension().is_some_and(|ending| ending == "gguf") && !is_known {
            let file = std::fs::File::open(&path)?;
            vocabularies.push((name, Vocabulary::from_gguf(file)?));
        }
    }
    Ok(vocabularies)
}

/// How long a stored vocabulary takes until it counts, and what it needs then.
fn load(report: &Report, name: &str, vocabulary: &Vocabulary) -> Result<Option<Tokenizer>> {
    let bytes = vocabulary.to_bytes();
    let started = Instant::now();
    let stored = Vocabulary::from_bytes(&bytes)?;
    let decoded = started.elapsed();
    let tokenizer = match Tokenizer::new(&stored) {
        Ok(tokenizer) => tokenizer,
        Err(
            TokenizerError::UnknownModel(_)
            | TokenizerError::UnknownPreTokenizer(_)
            | TokenizerError::MissingName,
        ) => {
            return Ok(None);
        }
    };
    let row = Row::new(&format!("{name}: load the stored vocabulary"), "ms")
        .with("value", rounded(started.elapsed().as_secs_f64() * 1e3))
        .with("decodeMs", rounded(decoded.as_secs_f64() * 1e3))
        .with("storedBytes", bytes.len())
        .with("heapBytes", tokenizer.heap_bytes());
    report.row(row)?;
    Ok(Some(tokenizer))
}

/// Measures one text, the first time and when its words are known; gives nanoseconds a byte of the latter.
fn speed(
    report: &Report,
    name: &str,
    kind: &str,
    tokenizer: &Tokenizer,
    text: &str,
) -> Result<f64> {
    let mb_per_s = |seconds: f64| megabytes(text.len()) / seconds;
    let floor = mb_per_s(best(|| text.chars().filter(|char| char.is_alphanumeric()).count()));
    let started = Instant::now();
    let tokens = tokenizer.count(text);
    let first = mb_per_s(started.elapsed().as_secs_f64());
    let value = mb_per_s(best(|| tokenizer.count(text)));
    let row = Row::new(&format!("{name}: {kind}"), "MB/s")
        .with("value", rounded(value))
        .with("first", rounded(first))
        .with("bytes", text.len())
        .with("tokens", tokens)
        .with("floor", rounded(floor))
        .with("ratio", rounded(value / floor));
    let bar = COMMON.contains(&name);
    let row = if bar {
        row.with("bar", format!(">= {BAR_MB_PER_S}")).with("met", value >= BAR_MB_PER_S)
    } else {
        row
    };
    report.row(row)?;
    Ok(1e3 / value)
}

/// Measures texts of one unit over and over: against ordinary text, and against a tenth of the same.
fn bad(report: &Report, name: &str, tokenizer: &Tokenizer, ordinary: f64) -> Result<()> {
    let units = [
        ("one letter", "a"),
        ("spaces", " "),
        ("one digit", "7"),
        ("line breaks", "\n"),
        ("dashes", "-"),
        ("two letters", "ab"),
        ("one emoji", "🦀"),
        ("half special tokens", "<|"),
    ];
    for (kind, unit) in units {
        let text = unit.repeat(BAD_BYTES / unit.len());
        let tenth = unit.repeat(BAD_BYTES / unit.len() / 10);
        let seconds = best(|| tokenizer.count(&text));
        let growth = seconds / best(|| tokenizer.count(&tenth));
        let ns_per_byte = 1e3 * seconds / megabytes(text.len());
        let row = Row::new(&format!("{name}: 1 MB of {kind}"), "ns/B")
            .with("value", rounded(ns_per_byte))
            .with("floor", rounded(ordinary))
            .with("ratio", rounded(ns_per_byte / ordinary))
            .with("growth", rounded(growth))
            .with("bar", format!("10 times the text <= {MAX_GROWTH}x"))
            .with("met", growth <= MAX_GROWTH);
        report.row(row)?;
    }
    Ok(())
}

/// Seconds of the quickest of some rounds.
fn best<T>(mut work: impl FnMut() -> T) -> f64 {
    let round = |_| {
        let started = Instant::now();
        black_box(work());
        started.elapsed().as_secs_f64()
    };
    (0..ROUNDS).map(round).fold(f64::INFINITY, f64::min)
}

#[expect(clippy::cast_precision_loss, reason = "a length in bytes")]
fn megabytes(bytes: usize) -> f64 {
    bytes as f64 / 1e6
}
