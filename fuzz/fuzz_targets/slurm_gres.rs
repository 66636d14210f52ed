//! `gres.conf`: no panic, every index has one device, and no device is there twice.
#![no_main]

use libfuzzer_sys::fuzz_target;
use slurm::gres;

fuzz_target!(|text: &str| {
    for n in gres::read(text, "fuzz").unwrap_or_default() {
        assert!(n.minors.len() <= topology::GPUS_PER_HOST_MAX);
        assert!(n.minors.len() == n.cores.len() && n.minors.len() == n.links.len());
        assert!(n.minors.windows(2).all(|w| w[0] < w[1]));
    }
});
