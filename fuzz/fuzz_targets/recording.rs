#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stepalloc_targets::recording(data));
