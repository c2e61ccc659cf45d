#![no_main]

#[allow(dead_code, reason = "each target runs one of the properties")]
#[path = "../properties.rs"]
mod properties;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| properties::chunked(bytes));
