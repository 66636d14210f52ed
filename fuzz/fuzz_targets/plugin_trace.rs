//! Traces of the NCCL plugin: no panic, no time or size beyond the limits, and places that are consistent.
#![no_main]

use libfuzzer_sys::fuzz_target;
use measure::plugin_trace::{LINE_BYTES_MAX, RankGpus, RANKS_MAX, SIZE_BYTES_MAX, TIME_US_MAX, read};
use std::collections::{BTreeMap, BTreeSet};

fuzz_target!(|bytes: &[u8]| {
    let (mut places, mut comms, mut lines) = (RankGpus::default(), BTreeMap::new(), 0u64);
    let end = read(bytes, |l| {
        assert!((0.0..=TIME_US_MAX).contains(&l.time_us) && l.kernel_us.is_none_or(|t| (0.0..=TIME_US_MAX).contains(&t)));
        assert!(l.ranks <= RANKS_MAX && l.size_bytes <= SIZE_BYTES_MAX && l.bucket < 64);
        places.add_line(&l);
        if l.kind == "comm" {
            comms.insert(l.comm.clone(), l.ranks.min(256));
        }
        lines += 1;
        Ok(())
    });
    if let Ok(end) = end {
        assert!(end.lines >= lines || end.cut_off, "{end:?} {lines}");
        assert!(bytes.split(|b| *b == b'\n').all(|l| l.len() <= LINE_BYTES_MAX + 1));
    }
    for (comm, ranks) in &comms {
        if let Ok(gpus) = places.gpus(comm, *ranks) {
            assert_eq!(gpus.len(), *ranks as usize);
            assert_eq!(gpus.iter().collect::<BTreeSet<_>>().len(), gpus.len(), "no GPU twice");
        }
    }
});
