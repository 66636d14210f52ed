//! `scontrol show nodes -o` and `scontrol show job -d -o`: no panic, only GPUs of the cluster are held, reasons are valid JSON.
#![no_main]

use libfuzzer_sys::fuzz_target;
use slurm::{books, queue, reason};
use topology::catalog;

fuzz_target!(|text: &str| {
    if let Ok(nodes) = books::nodes(text) {
        nodes.iter().for_each(|n| assert!(n.gpus > 0 && !n.name.contains(' ')));
    }
    let cluster = catalog::cluster("h100").unwrap();
    for job in books::jobs(text) {
        if let Some(gpus) = books::held(&cluster, &job) {
            assert!(cluster.usable().contains_all(&gpus));
        }
    }
    text.lines().for_each(|l| assert!(queue::gpus_asked(l) <= 1 << 40));
    for (_, comment) in reason::Comments::default().due(text, text.len() % 2 == 0) {
        serde_json::from_str::<serde_json::Value>(&comment).unwrap();
    }
    let _ = (books::socket(text), books::setting(text, "PluginDir"));
});
