//! The readings that a diagnosis uses: the newest of every host, with repetitions merged.
//!
//! A site stores readings for years, but the newest readings show a component that is slow now. The window holds the
//! allocations of every host that were measured last, separately for single-host and multi-host jobs, and the last
//! readings of every allocation. Its content depends only on the readings, not on the order in which they arrive.

use super::evidence::Evidence;
use std::cmp::Ordering;
use std::collections::HashMap;
use store::{Measurement, Quality};
use topology::{Allocation, Bytes, Cluster, Collective};

/// Maximum number of pairs of a multi-host allocation and a host in the window. The work and the memory of a diagnosis
/// are proportional to it, independent of the number of hosts (at most 1 KiB per pair, on jobs of two hosts).
pub const PAIRS_MAX: usize = 1 << 17;
/// Minimum limit on multi-host allocations per host: about 20 readings reveal a component at 88 % of its rate in 3 % of
/// scatter, and most jobs do not touch a given NIC.
pub const ALLOCATIONS_PER_HOST_MIN: usize = 128;
/// Maximum number of subsets per host in the window: all 247 of eight GPUs at one size.
pub const SUBSETS_PER_HOST_MAX: usize = 256;
/// Maximum number of hosts of a job in the window. Each component of a larger job is one of thousands of candidates,
/// and the physics of each costs work for all of its hosts.
pub const JOB_HOSTS_MAX: usize = 128;
/// Maximum number of readings of one allocation and size in the window. The standard error of their mean is then a
/// sixth of the scatter.
pub const REPETITIONS_MAX: usize = 32;
/// Maximum difference between the logarithms of readings of one allocation that belong to the same level.
const SAME_LEVEL: f64 = 0.1;

/// Maximum number of allocations per host in the window, by kind of job: single-host, multi-host.
pub(super) fn allocations_per_host(hosts: usize) -> [usize; 2] {
    [SUBSETS_PER_HOST_MAX, allocations_per_host_max(hosts)]
}

/// Maximum number of multi-host allocations per host in the window.
pub fn allocations_per_host_max(hosts: usize) -> usize {
    (PAIRS_MAX / hosts.max(1)).max(ALLOCATIONS_PER_HOST_MIN)
}

/// One usable reading.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sample {
    /// Time of the reading, seconds since 1970; minus infinity if unknown.
    pub at_unix_s: f64,
    /// Logarithm of the bus bandwidth, GB/s.
    pub ln_busbw: f64,
    /// Number of the reading, if it has one.
    pub id: u64,
}

impl Sample {
    /// The reading of `m`; `None` if it cannot be judged (rejected, contended, of another collective, or of unknown
    /// hosts).
    pub(super) fn of(cluster: &Cluster, m: &Measurement, collective: Collective, id: u64) -> Option<Sample> {
        let v = m.busbw.gb_per_s();
        let judged = m.quality != Quality::Rejected && m.collective == collective && m.contention.is_none();
        let fits = judged && m.allocation.host_count() <= JOB_HOSTS_MAX;
        let known = m.allocation.parts().last().is_some_and(|p| p.0.index() < cluster.hosts.len());
        (fits && known && v > 0.0 && v.is_finite() && m.allocation.gpu_count() > 1).then(|| Sample {
            at_unix_s: m.taken_at_unix_s.unwrap_or(f64::NEG_INFINITY),
            ln_busbw: v.ln(),
            id,
        })
    }

    fn order(&self, other: &Sample) -> Ordering {
        self.at_unix_s.total_cmp(&other.at_unix_s).then(self.ln_busbw.total_cmp(&other.ln_busbw))
    }
}

/// Inserts a reading in the order of time and drops the oldest beyond [`REPETITIONS_MAX`].
pub(super) fn insert(samples: &mut Vec<Sample>, s: Sample) {
    let at = samples.partition_point(|o| o.order(&s) != Ordering::Greater);
    samples.insert(at, s);
    if samples.len() > REPETITIONS_MAX {
        samples.remove(0);
    }
}

/// Merges readings of one allocation, in the order of time, into levels. Consecutive readings at one level count once,
/// because they share the irregularity of the allocation.
pub(super) fn levels(size: Bytes, allocation: &Allocation, samples: &[Sample]) -> Vec<Evidence> {
    let mut out: Vec<Evidence> = Vec::new();
    let mut members = 0usize;
    for s in samples {
        match out.last_mut() {
            Some(e) if (s.ln_busbw - e.ln_busbw).abs() <= SAME_LEVEL => {
                members += 1;
                e.ln_busbw += (s.ln_busbw - e.ln_busbw) / members as f64;
                e.repetitions += 1;
            }
            _ => {
                members = 1;
                out.push(Evidence {
                    allocation: allocation.clone(),
                    size,
                    ln_busbw: s.ln_busbw,
                    at_unix_s: s.at_unix_s,
                    repetitions: 1,
                });
            }
        }
    }
    out
}

/// The readings of one allocation and size, in the order of time.
pub(super) type Repetitions<'m> = ((Bytes, &'m Allocation), Vec<Sample>);

/// The window of `all`, sorted by the time of the newest reading, then by size and allocation. A reading's number is
/// its index. O(n log n).
pub(super) fn newest<'m>(cluster: &Cluster, all: &'m [Measurement], collective: Collective) -> Vec<Repetitions<'m>> {
    let mut by_allocation: HashMap<(Bytes, &Allocation), Vec<Sample>> = HashMap::new();
    for (i, m) in all.iter().enumerate() {
        if let Some(s) = Sample::of(cluster, m, collective, i as u64) {
            by_allocation.entry((m.size, &m.allocation)).or_default().push(s);
        }
    }
    let mut groups: Vec<Repetitions> = by_allocation.into_iter().collect();
    for (_, samples) in &mut groups {
        samples.sort_by(Sample::order);
        samples.drain(..samples.len().saturating_sub(REPETITIONS_MAX));
    }
    let newest = |g: &Repetitions| g.1[g.1.len() - 1].at_unix_s;
    groups.sort_unstable_by(|a, b| newest(b).total_cmp(&newest(a)).then(b.0.cmp(&a.0)));
    let most = allocations_per_host(cluster.hosts.len());
    let mut counts = vec![[0usize; 2]; cluster.hosts.len()];
    groups.retain(|((_, allocation), _)| {
        let kind = usize::from(allocation.host_count() > 1);
        let mut kept = false;
        for (h, _) in allocation.parts() {
            kept |= counts[h.index()][kind] < most[kind];
            counts[h.index()][kind] += 1;
        }
        kept
    });
    groups.reverse();
    groups
}

/// All levels in the window of `measurements`, by size and allocation. O(n log n).
pub(super) fn gather(cluster: &Cluster, measurements: &[Measurement], collective: Collective) -> Vec<Evidence> {
    let mut groups = newest(cluster, measurements, collective);
    groups.sort_unstable_by_key(|g| g.0);
    groups.iter().flat_map(|((size, allocation), samples)| levels(*size, allocation, samples)).collect()
}
