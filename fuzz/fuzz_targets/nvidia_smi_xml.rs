//! `nvidia-smi -q -x`: no panic, at most as many GPUs as a host can have.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(all) = import::devices::read(text, "fuzz") {
        assert!((1..=topology::GPUS_PER_HOST_MAX).contains(&all.len()));
        all.iter().for_each(|d| assert!(d.uuid.is_empty() || d.uuid.starts_with("GPU-")));
    }
});
