//! Dumps of PyTorch's flight recorder: no panic, sizes within a store's limits, and counts that the file has.
#![no_main]

use libfuzzer_sys::fuzz_target;
use measure::flight_recorder::{FlightRecords, is_flight_record};

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let _ = is_flight_record(text);
    let mut records = FlightRecords::default();
    if records.read(text).is_ok() {
        let (kinds, left_out) = records.kinds();
        assert!(kinds.iter().map(|k| k.calls).sum::<usize>() + left_out <= text.len());
        for k in &kinds {
            assert!(k.size.0 > 0 && k.size.0 <= 1 << 50 && k.ranks >= 2 && k.calls > 0, "{k:?}");
            assert!(k.time_us.is_none_or(|us| us > 0.0 && us.is_finite()), "{k:?}");
        }
    }
});
