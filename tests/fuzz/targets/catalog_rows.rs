//! Fuzzes `ollm_daemon::fuzz_api::catalog_rows`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ollm_daemon::fuzz_api::catalog_rows(bytes));
