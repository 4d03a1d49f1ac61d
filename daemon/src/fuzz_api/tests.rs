//! Property tests of the checks: arbitrary bytes, and inputs close to valid ones. They run without a fuzzer.

use proptest::collection::vec;
use proptest::prelude::*;

use super::{catalog_rows, frames, imports, log_lines};

/// Frozen files that the imports start from.
const IMPORT_SEEDS: [&[u8]; 3] = [
    include_bytes!("../../../tests/fixtures/import/pi-v1.jsonl"),
    include_bytes!("../../../tests/fixtures/import/pi-v2.jsonl"),
    include_bytes!("../../../tests/fixtures/import/pi-v3.jsonl"),
];
/// A frozen log.
const LOG_SEED: &[u8] =
    include_bytes!("../../../tests/fixtures/session/v1/0b6a7c1e-3f52-4c39-9d0e-6d1c2a9f4e03.jsonl");

/// Returns the number of cases of a property; `PROPTEST_CASES` replaces it for a longer run.
fn config(cases: u32) -> ProptestConfig {
    let is_set = std::env::var_os("PROPTEST_CASES").is_some();
    if is_set { ProptestConfig::default() } else { ProptestConfig::with_cases(cases) }
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..200)
}

/// Returns pieces of streams in both framings.
fn stream() -> impl Strategy<Value = Vec<u8>> {
    let pieces = prop::sample::select(vec![
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"a.b\"}",
        "{\"id\":\"\\u0061\",\n\"params\":{\"id\":2}}",
        "[1, {}]",
        "Content-Length: 2\r\n\r\n{}",
        "Content-Length: 300\r\n\r\n",
        "content-length:0\n\n",
        "\n",
        "\r\n",
        " ",
        "{\"id\":7,\"x\":\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    ]);
    let piece = prop_oneof![4 => pieces.prop_map(|text| text.as_bytes().to_vec()), 1 => vec(any::<u8>(), 0..4)];
    vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

/// Returns a seed with some bytes overwritten, and cut at the end.
fn mutated(
    seed: &[u8],
    changes: &[(prop::sample::Index, u8)],
    cut: prop::sample::Index,
) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for (at, value) in changes {
        let at = at.index(bytes.len());
        bytes[at] = *value;
    }
    bytes.truncate(cut.index(bytes.len() * 2));
    bytes
}

fn changes() -> impl Strategy<Value = Vec<(prop::sample::Index, u8)>> {
    vec((any::<prop::sample::Index>(), prop_oneof![any::<u8>(), Just(b'\n'), Just(b'"')]), 0..4)
}

fn with_prefix(prefix: &[u8], rest: &[u8]) -> Vec<u8> {
    [prefix, rest].concat()
}

proptest! {
    #![proptest_config(config(128))]

    #[test]
    fn frames_of_any_bytes_are_the_same_in_any_split(step: u8, any in bytes(), stream in stream()) {
        frames(&any);
        frames(&with_prefix(&[step], &stream));
        frames(&with_prefix(&[step, b'{'], &any));
        frames(&with_prefix(&[step], &with_prefix(b"Content-Length: 9\r\n\r\n", &any)));
    }

    #[test]
    fn log_of_any_bytes_is_read(any in bytes(), edits in changes(), cut: prop::sample::Index) {
        log_lines(&any);
        log_lines(&with_prefix(&[0], &mutated(LOG_SEED, &edits, cut)));
    }

    #[test]
    fn mutated_log_keeps_the_records_before_the_mutation(mutations in vec(any::<u8>(), 4..20)) {
        log_lines(&with_prefix(&[2], &mutations));
        log_lines(&with_prefix(&[3], &mutations));
    }

    #[test]
    fn line_with_a_correct_checksum_is_read_whatever_it_contains(
        edits in changes(), cut: prop::sample::Index, seq: u64, next: u64,
    ) {
        let unsealed = unsealed(LOG_SEED);
        log_lines(&with_prefix(&[1], &mutated(&unsealed, &edits, cut)));
        let line = |seq: u64| format!(
            "{{\"v\":1,\"seq\":{seq},\"parent\":0,\"durable\":{seq},\"at\":\"2026-01-27T10:00:00.000Z\",\
             \"type\":\"close\",\"close\":{{\"reason\":\"client\"}}\n"
        );
        log_lines(format!("\u{1}{}{}", line(seq), line(next)).as_bytes());
    }

    #[test]
    fn any_file_is_imported_or_refused(
        any in bytes(), edits in changes(), cut: prop::sample::Index, seed in 0..IMPORT_SEEDS.len(),
    ) {
        imports(&any);
        imports(&with_prefix(b"{\"ollmExport\":1}\n{\"seq\":1,", &any));
        imports(&with_prefix(b"{\"messages\":[{\"role\":\"user\",\"content\":\"", &any));
        imports(&mutated(IMPORT_SEEDS[seed], &edits, cut));
    }
}

proptest! {
    #![proptest_config(config(64))]

    #[test]
    fn changed_row_of_the_catalog_hides_no_record(column: u8, kind: u8, value in vec(any::<u8>(), 0..40)) {
        catalog_rows(&with_prefix(&[column, kind], &value));
        // A hint with correct checksums.
        catalog_rows(&with_prefix(&[9, kind], &value));
    }
}

/// Returns the lines of a log without their checksums.
fn unsealed(log: &[u8]) -> Vec<u8> {
    let content = |line: &[u8]| line[..line.len() - ",\"crc\":\"01234567\"}".len()].to_vec();
    let lines: Vec<_> = log.trim_ascii().split(|byte| *byte == b'\n').map(content).collect();
    lines.join(&b'\n')
}

#[test]
fn log_with_an_impossible_number_is_read_in_bounded_memory() {
    let line = |seq: u64, durable: u64| {
        format!(
            "{{\"v\":1,\"seq\":{seq},\"parent\":0,\"durable\":{durable},\"at\":\"2026-01-27T10:00:00.000Z\",\
             \"type\":\"close\",\"close\":{{\"reason\":\"client\"}}\n"
        )
    };
    // The number after the highest one does not exist.
    log_lines(format!("\u{1}{}{}", line(u64::MAX, 0), line(u64::MAX, 0)).as_bytes());
    // Every number before this one counted as lost.
    log_lines(format!("\u{1}{}", line(1 << 60, 1 << 60)).as_bytes());
}

#[test]
fn damaged_log_is_the_same_with_what_a_catalog_stored_of_it() {
    let line = |seq: u64, durable: &str, body: &str| {
        format!(
            "{{\"v\":1,\"seq\":{seq},\"parent\":null,\"durable\":{durable},\
             \"at\":\"2026-01-27T10:00:00.000Z\",{body}\n"
        )
    };
    let message = |part: &str| {
        format!(
            "\"type\":\"message\",\"message\":{{\"role\":\"user\",\"parts\":[{part}],\
             \"timestamp\":\"2026-01-27T10:00:00.000Z\"}}"
        )
    };
    let close = "\"type\":\"close\",\"close\":{\"reason\":\"client\"}";
    let hello = message("{\"type\":\"text\",\"text\":\"hello\"}");
    let unknown = message("{\"type\":\"unknown\"}");
    let without_blob = format!("\"blobs\":[\"{}\"],{unknown}", "0".repeat(64));
    for second in [&unknown, &without_blob] {
        // Only the last line says that the lost record was synced. Until it is read, nothing is known of the messages.
        let lines = [
            line(0, "null", close),
            "x\n".to_owned(),
            line(2, "null", &hello),
            line(3, "null", second),
            line(4, "3", close),
        ];
        log_lines(&with_prefix(&[1], lines.concat().as_bytes()));
    }
}
