//! Metrics of NCCL Inspector: no panic, and readings within the limits.
#![no_main]

use libfuzzer_sys::fuzz_target;
use measure::inspector::prometheus::InspectorMetrics;

fuzz_target!(|bytes: &[u8]| {
    let mut metrics = InspectorMetrics::default();
    let _ = metrics.read(bytes);
    for k in metrics.kinds() {
        assert!(k.size.0 > 0 && k.size.0 <= 1 << 50 && k.time_us.is_some_and(f64::is_finite), "{k:?}");
    }
    for gpus in [1, 2, 4] {
        if let Ok(s) = metrics.summary(gpus) {
            assert!(!s.kinds.is_empty());
            assert!(s.kinds.iter().all(|k| k.busbw.gb_per_s() > 0.0 && k.busbw.gb_per_s().is_finite()), "{s:?}");
        }
    }
});
