//! Fuzzes `ollm_daemon::fuzz_api::imports`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ollm_daemon::fuzz_api::imports(bytes));
