//! What NCCL writes: its log and its graph dump. No panic; numbers are finite and in range.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nccl_bench::read::{CHANNELS_MAX, graphs, log};

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    let read = log::read(&text);
    assert!(read.rates.iter().all(|r| r.latency_us >= 0.0 && r.bandwidth_gb_per_s >= 0.0 && r.bandwidth_gb_per_s < 1e12));
    assert!(read.ring_next.keys().all(|(c, _)| (*c as usize) < CHANNELS_MAX));
    assert!(read.graphs.iter().all(|(_, g)| g.channel_count <= CHANNELS_MAX));
    for host in [graphs::DumpContext::default(), graphs::DumpContext { gpus: &[3, 1], first_rank: 2, domain: vec![(4, 4), (4, 2)] }] {
        if let Ok(found) = graphs::read(&text, &host) {
            assert!(found.iter().all(|g| !g.channels.is_empty() && g.channels.len() == g.channel_count));
        }
    }
});
