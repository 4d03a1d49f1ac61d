//! Fuzzes `ollm_daemon::fuzz_api::log_lines`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ollm_daemon::fuzz_api::log_lines(bytes));
