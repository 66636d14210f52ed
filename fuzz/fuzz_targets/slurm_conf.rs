//! Slurm's `topology.conf`: no panic, errors point into the text, and what is read makes a network that keeps the rules.
#![no_main]

use import::switches::NetworkOptions;
use libfuzzer_sys::fuzz_target;
use topology::{Host, NetworkClass, read};

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = read::text(bytes, "fuzz", read::TOPOLOGY_SIZE_MAX) else { return };
    match import::switches::read_slurm_conf(text, "fuzz") {
        Ok(w) => {
            let hosts: Vec<Host> = w.hosts.iter().map(|h| Host { name: h.clone(), ..Host::default() }).collect();
            if let Ok((network, _)) = w.network(&hosts, NetworkClass::Infiniband, &NetworkOptions::default(), "fuzz") {
                network.check(&hosts).unwrap();
            }
        }
        Err(e) => assert!(e.line() >= 1 && e.column() >= 1 && !e.message().is_empty()),
    }
});
