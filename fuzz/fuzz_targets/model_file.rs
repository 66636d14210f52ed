//! Model files: no panic, and a model that loads predicts numbers.
#![no_main]

use libfuzzer_sys::fuzz_target;
use topology::{Allocation, GpuMask, HostId};

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(model) = predict::Model::load(text) {
        let one = Allocation::new([(HostId(0), GpuMask::first(1))]);
        assert!(!model.predict_allocation(model.sizes()[0], &one).busbw_gb_per_s.is_nan());
    }
});
