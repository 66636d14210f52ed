//! A job's trace, in both forms: no panic, and no bandwidth that a store would refuse.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(trace) = measure::trace::parse_trace(text, 16) {
        assert!(!trace.kinds.is_empty() && trace.kinds.len() <= measure::trace::KINDS_MAX);
        assert!(trace.kinds.iter().all(|k| k.busbw.gb_per_s() > 0.0 && k.busbw.gb_per_s() <= 1e6 && k.size.0 > 0));
    }
});
