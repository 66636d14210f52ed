//! What a host says of its GPUs and their processes: no panic.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(gpus) = measure::idle::nvidia_smi::parse(text) {
        assert!(gpus.len() <= topology::GPUS_PER_HOST_MAX);
        gpus.iter().for_each(|g| drop(g.in_use()));
    }
});
