//! The line that a job leaves in a pod's termination message: no panic, numbers within limits, and what is read is written back.
#![no_main]

use libfuzzer_sys::fuzz_target;
use measure::summary;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(Some(kinds)) = summary::read(text) else { return };
    for k in &kinds {
        assert!(k.ranks >= 2 && k.calls > 0 && k.time_us.is_some_and(|us| us > 0.0 && us.is_finite()), "{k:?}");
    }
    let merged = summary::merged(&[kinds.clone(), kinds]);
    let again = summary::line(&merged).expect("times");
    assert!(again.len() <= summary::LINE_BYTES_MAX && summary::read(&again).is_ok(), "{again}");
});
