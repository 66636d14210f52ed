//! GPU lists in words.

use topology::{Allocation, Cluster, GpuMask, HostId};

/// `n0:0-3 n2:1,4`.
pub fn gpus_in_short(cluster: &Cluster, a: &Allocation) -> String {
    let host = |(h, m): &(HostId, GpuMask)| {
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for g in m.iter() {
            match runs.last_mut() {
                Some((_, last)) if *last + 1 == g => *last = g,
                _ => runs.push((g, g)),
            }
        }
        let runs = runs.iter().map(|(a, b)| if a == b { a.to_string() } else { format!("{a}-{b}") });
        format!("{}:{}", cluster.host(*h).name, runs.collect::<Vec<_>>().join(","))
    };
    a.parts().iter().map(host).collect::<Vec<_>>().join(" ")
}
