//! Dumps of NCCL Inspector: no panic, and readings within the limits.
#![no_main]

use libfuzzer_sys::fuzz_target;
use measure::inspector::{InspectorDump, KINDS_MAX, OPERATIONS_MIN};

fuzz_target!(|bytes: &[u8]| {
    let mut dump = InspectorDump::default();
    let _ = dump.read(bytes);
    for gpus in [2, 4, 8] {
        if let Ok(s) = dump.summary(gpus) {
            assert!(!s.kinds.is_empty() && s.kinds.len() <= KINDS_MAX);
            for k in &s.kinds {
                assert!(k.operations >= OPERATIONS_MIN && k.time_us > 0.0 && k.busbw.gb_per_s().is_finite(), "{k:?}");
            }
        }
    }
});
