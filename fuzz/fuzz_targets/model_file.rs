//! Model files: no panic, and a model that loads predicts numbers.
#![no_main]

use libfuzzer_sys::fuzz_target;
use predict::ModelKinds;
use std::sync::LazyLock;
use topology::{Allocation, GpuMask, HostId};

static KINDS: LazyLock<ModelKinds> = LazyLock::new(|| {
    let mut kinds = ModelKinds::shipped();
    papers::register_models(&mut kinds).expect("names are free");
    kinds
});

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(model) = predict::Model::load(text, &KINDS) {
        let one = Allocation::new([(HostId(0), GpuMask::first(1))]);
        assert!(!model.predict_allocation(model.sizes()[0], &one).busbw_gb_per_s.is_nan());
    }
});
