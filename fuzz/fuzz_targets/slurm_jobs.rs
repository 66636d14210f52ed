//! `sinfo`, a line of `---`, and `scontrol show job`: no panic, and only GPUs of the cluster are left out.
#![no_main]

use libfuzzer_sys::fuzz_target;
use topology::catalog;

fuzz_target!(|text: &str| {
    let cluster = catalog::cluster("h100").unwrap();
    let (nodes, jobs) = text.split_once("\n---\n").unwrap_or((text, ""));
    for own in [None, Some("7")] {
        if let Ok(out) = measure::idle::slurm::parse(&cluster, nodes, jobs, own) {
            out.iter().for_each(|o| assert!(cluster.usable().contains_all(&o.gpus)));
        }
    }
});
