//! Exact counting: the speed on prose and code for each vocabulary and on the worst texts for merging, and the time to
//! load a vocabulary.
//!
//! Run with `cargo bench --bench tokens`; `OLLM_BENCH_VOCAB=DIR` adds every `.gguf` and `.json` file (a
//! `tokenizer.json`) of a directory, and `OLLM_BENCH_TEXT=FILE` another text. The floor is one pass over the characters of
//! the same text in the same run.

mod harness;

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow};
use ollm_daemon::bench_api::{Engine, Tokenizer, TokenizerError, Vocabulary};
use serde_json::json;

use harness::generate::TextGenerator;
use harness::report::{Report, Row, is_bench_run, rounded};

/// Large enough that a time slice of the scheduler does not matter, small enough that a run takes seconds.
const TEXT_BYTES: usize = 4 << 20;
const MESSAGE_BYTES: usize = 1024;
const WORST_BYTES: usize = 1_000_000;
const ROUNDS: usize = 5;
/// The speed that the common families must reach.
const MIN_MB_PER_S: f64 = 50.0;
/// The factor by which ten times the text may cost more: n log n, and cold caches.
const MAX_GROWTH: f64 = 25.0;
/// Families that split text into words first, and so can reuse the counts of words.
const COMMON: [&str; 3] = ["gpt-2", "llama-bpe", "qwen2"];

fn main() -> Result<()> {
    if !is_bench_run() {
        return Ok(());
    }
    let report = Report::new("tokens", &json!({ "textBytes": TEXT_BYTES }));
    let texts = texts()?;
    for (name, vocabulary, engine) in vocabularies()? {
        let Some(tokenizer) = load(&report, &name, &vocabulary, engine)? else { continue };
        let mut ns_per_byte = f64::NAN;
        for (kind, text) in &texts {
            ns_per_byte = speed(&report, &name, kind, &tokenizer, text)?;
        }
        worst_texts(&report, &name, &tokenizer, ns_per_byte)?;
    }
    Ok(())
}

/// Returns generated messages and the files of this repository. The worst texts are compared with the last one.
fn texts() -> Result<Vec<(String, String)>> {
    let mut generator = TextGenerator::new(7);
    let generated = (0..TEXT_BYTES / MESSAGE_BYTES).map(|_| generator.message(MESSAGE_BYTES));
    let mut texts = vec![("generated prose".to_owned(), generated.collect())];
    if let Ok(path) = std::env::var("OLLM_BENCH_TEXT") {
        let text = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        texts.push(("given text".to_owned(), text));
    }
    for (kind, extension) in [("documentation", "md"), ("code", "rs")] {
        let mut text = String::new();
        collect(Path::new(env!("CARGO_MANIFEST_DIR")), extension, &mut text)?;
        texts.push((kind.to_owned(), text));
    }
    Ok(texts)
}

/// Appends every file under a directory that has an extension.
fn collect(dir: &Path, extension: &str, text: &mut String) -> Result<()> {
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
            collect(&path, extension, text)?;
        } else if path.extension().is_some_and(|own| own == extension) {
            let file = std::fs::read_to_string(&path);
            text.push_str(&file.with_context(|| format!("read {}", path.display()))?);
        }
    }
    Ok(())
}

/// Returns the vocabularies of the fixtures and of `OLLM_BENCH_VOCAB` with their names and engines.
fn vocabularies() -> Result<Vec<(String, Vocabulary, Engine)>> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/vocab");
    let mut vocabularies = Vec::new();
    for name in ["gpt-2", "llama-spm"] {
        let packed = std::fs::read(fixtures.join(format!("{name}.gguf.zlib")))?;
        let file = miniz_oxide::inflate::decompress_to_vec_zlib(&packed)
            .map_err(|error| anyhow!("unpack the vocabulary {name}: {error:?}"))?;
        let vocabulary = Vocabulary::from_gguf(file.as_slice())?;
        vocabularies.push((name.to_owned(), vocabulary, Engine::LlamaCpp));
    }
    let Ok(dir) = std::env::var("OLLM_BENCH_VOCAB") else { return Ok(vocabularies) };
    for entry in std::fs::read_dir(&dir).with_context(|| format!("list {dir}"))? {
        let path = entry?.path();
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let name = stem.trim_start_matches("ggml-vocab-").to_owned();
        let is_known = vocabularies.iter().any(|(known, ..)| *known == name);
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("gguf") if !is_known => {
                let vocabulary = Vocabulary::from_gguf(std::fs::File::open(&path)?)?;
                vocabularies.push((name, vocabulary, Engine::LlamaCpp));
            }
            Some("json") if !is_known => {
                let vocabulary = Vocabulary::from_tokenizer_json(&std::fs::read(&path)?)?;
                vocabularies.push((name, vocabulary, Engine::HuggingFace));
            }
            _ => {}
        }
    }
    Ok(vocabularies)
}

/// Measures the time to load a stored vocabulary, and its memory; returns `None` if its rules are unknown.
fn load(
    report: &Report,
    name: &str,
    vocabulary: &Vocabulary,
    engine: Engine,
) -> Result<Option<Tokenizer>> {
    let bytes = vocabulary.to_bytes();
    let start = Instant::now();
    let stored = Vocabulary::from_bytes(&bytes)?;
    let decoded = start.elapsed();
    let tokenizer = match Tokenizer::new(&stored, engine) {
        Ok(tokenizer) => tokenizer,
        Err(
            TokenizerError::UnknownModel(_)
            | TokenizerError::UnknownPreTokenizer(_)
            | TokenizerError::MissingName
            | TokenizerError::MissingByte,
        ) => {
            return Ok(None);
        }
    };
    let loaded_ms = rounded(start.elapsed().as_secs_f64() * 1e3);
    let row = Row::value(&format!("{name}: load the stored vocabulary"), "ms", loaded_ms)
        .with("decodeMs", rounded(decoded.as_secs_f64() * 1e3))
        .with("storedBytes", bytes.len());
    report.print(row)?;
    Ok(Some(tokenizer))
}

/// Measures one text, first with unknown and then with known words; returns nanoseconds per byte of the latter.
fn speed(
    report: &Report,
    name: &str,
    kind: &str,
    tokenizer: &Tokenizer,
    text: &str,
) -> Result<f64> {
    let mb_per_s = |seconds: f64| megabytes(text.len()) / seconds;
    let floor = mb_per_s(best(|| text.chars().filter(|char| char.is_alphanumeric()).count()));
    let start = Instant::now();
    let tokens = tokenizer.count(text);
    let first = mb_per_s(start.elapsed().as_secs_f64());
    let value = mb_per_s(best(|| tokenizer.count(text)));
    let mut row = Row::value(&format!("{name}: {kind}"), "MB/s", rounded(value))
        .with("first", rounded(first))
        .with("bytes", text.len())
        .with("tokens", tokens)
        .ratio(floor, value / floor);
    if COMMON.contains(&name) {
        row = row.bar(&format!(">= {MIN_MB_PER_S}"), value >= MIN_MB_PER_S);
    }
    report.print(row)?;
    Ok(1e3 / value)
}

/// Measures texts that repeat one unit, against ordinary text and against a tenth of the same text.
fn worst_texts(report: &Report, name: &str, tokenizer: &Tokenizer, ordinary: f64) -> Result<()> {
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
        let text = unit.repeat(WORST_BYTES / unit.len());
        let tenth = unit.repeat(WORST_BYTES / unit.len() / 10);
        let seconds = best(|| tokenizer.count(&text));
        let growth = seconds / best(|| tokenizer.count(&tenth));
        let ns_per_byte = 1e3 * seconds / megabytes(text.len());
        let row = Row::value(&format!("{name}: 1 MB of {kind}"), "ns/B", rounded(ns_per_byte))
            .ratio(ordinary, ns_per_byte / ordinary)
            .with("growth", rounded(growth))
            .bar(&format!("10 times the text <= {MAX_GROWTH}x"), growth <= MAX_GROWTH);
        report.print(row)?;
    }
    Ok(())
}

/// Returns the seconds of the fastest of some rounds.
fn best<T>(mut work: impl FnMut() -> T) -> f64 {
    let round = |_| {
        let start = Instant::now();
        black_box(work());
        start.elapsed().as_secs_f64()
    };
    (0..ROUNDS).map(round).fold(f64::INFINITY, f64::min)
}

fn megabytes(bytes: usize) -> f64 {
    bytes as f64 / 1e6
}
