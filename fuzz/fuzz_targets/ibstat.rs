//! `ibstat`: no panic, and errors point into the text.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Err(e) = import::ports::read_ibstat(text, "fuzz") {
        assert!(e.line() >= 1 && e.column() >= 1 && !e.message().is_empty());
    }
});
