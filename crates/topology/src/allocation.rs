//! Sets of GPUs of one host ([`GpuMask`]) and of a cluster ([`Allocation`]).

use serde::{Deserialize, Serialize};
use std::fmt;

/// Maximum number of GPUs of one host (DGX-2 and p2-class hosts have 16).
pub const GPUS_PER_HOST_MAX: usize = 16;
/// Maximum number of hosts of a cluster.
pub const HOSTS_MAX: usize = 65_536;

/// A host: its index in [`crate::Cluster::hosts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HostId(pub u32);

impl HostId {
    /// The index into [`crate::Cluster::hosts`].
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// One GPU of a cluster; `n0:3` in text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GpuId {
    /// Its host.
    pub host: HostId,
    /// Its index on the host, as `nvidia-smi` numbers it.
    pub gpu: u8,
}

/// A set of GPUs of one host; bit `i` is GPU `i`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GpuMask(pub u32);

impl GpuMask {
    /// The empty set.
    pub const EMPTY: GpuMask = GpuMask(0);

    /// GPUs 0 to `n - 1`.
    #[inline]
    pub const fn first(n: usize) -> Self {
        GpuMask(((1u64 << n) - 1) as u32)
    }
    /// From indices.
    pub fn from_indices(indices: impl IntoIterator<Item = usize>) -> Self {
        GpuMask(indices.into_iter().fold(0, |m, i| m | 1 << i))
    }
    /// Number of GPUs.
    #[inline]
    pub const fn count(self) -> usize {
        self.0.count_ones() as usize
    }
    /// True if the set is empty.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
    /// True if GPU `i` is in the set.
    #[inline]
    pub const fn contains(self, i: usize) -> bool {
        i < 32 && self.0 >> i & 1 == 1
    }
    /// True if all GPUs of `other` are in the set.
    #[inline]
    pub const fn contains_all(self, other: GpuMask) -> bool {
        other.0 & !self.0 == 0
    }
    /// The union of both sets.
    #[inline]
    pub const fn union(self, other: GpuMask) -> GpuMask {
        GpuMask(self.0 | other.0)
    }
    /// The set without the GPUs of `other`.
    #[inline]
    pub const fn minus(self, other: GpuMask) -> GpuMask {
        GpuMask(self.0 & !other.0)
    }
    /// The indices, ascending.
    #[inline]
    pub fn iter(self) -> impl Iterator<Item = usize> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            (rest != 0).then(|| {
                let i = rest.trailing_zeros() as usize;
                rest &= rest - 1;
                i
            })
        })
    }
    /// All 2^count - 1 non-empty subsets of this set, in ascending order of the bits.
    #[inline]
    pub fn subsets(self) -> impl Iterator<Item = GpuMask> {
        let full = self.0;
        let mut sub = 0u32;
        std::iter::from_fn(move || {
            sub = sub.wrapping_sub(full) & full;
            (sub != 0).then_some(GpuMask(sub))
        })
    }
}

impl fmt::Display for GpuMask {
    /// `{0,1,5}`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list: Vec<String> = self.iter().map(|i| i.to_string()).collect();
        write!(f, "{{{}}}", list.join(","))
    }
}

/// A set of GPUs given to one job. Parts are sorted by host, no part is empty, no host appears twice.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Allocation {
    parts: Vec<(HostId, GpuMask)>,
}

impl Allocation {
    /// From parts in any order. Parts of one host are merged, empty parts dropped. O(h log h).
    pub fn new(parts: impl IntoIterator<Item = (HostId, GpuMask)>) -> Self {
        let mut parts: Vec<_> = parts.into_iter().filter(|(_, m)| !m.is_empty()).collect();
        parts.sort_by_key(|p| p.0);
        parts.dedup_by(|b, a| {
            let same = a.0 == b.0;
            if same {
                a.1 = a.1.union(b.1);
            }
            same
        });
        Allocation { parts }
    }
    /// From single GPUs.
    pub fn from_gpus(gpus: impl IntoIterator<Item = GpuId>) -> Self {
        Self::new(gpus.into_iter().map(|g| (g.host, GpuMask(1 << g.gpu))))
    }
    /// Host and GPUs, ascending by host.
    #[inline]
    pub fn parts(&self) -> &[(HostId, GpuMask)] {
        &self.parts
    }
    /// Number of GPUs.
    pub fn gpu_count(&self) -> usize {
        self.parts.iter().map(|p| p.1.count()).sum()
    }
    /// Number of hosts.
    pub fn host_count(&self) -> usize {
        self.parts.len()
    }
    /// True if the set is empty.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }
    /// The GPUs of one host.
    pub fn mask(&self, host: HostId) -> GpuMask {
        match self.parts.binary_search_by_key(&host, |p| p.0) {
            Ok(i) => self.parts[i].1,
            Err(_) => GpuMask::EMPTY,
        }
    }
    /// Every GPU, by host and index.
    pub fn gpus(&self) -> impl Iterator<Item = GpuId> + '_ {
        self.parts.iter().flat_map(|&(host, m)| m.iter().map(move |i| GpuId { host, gpu: i as u8 }))
    }
    /// True if every GPU of `other` is in the allocation.
    pub fn contains_all(&self, other: &Allocation) -> bool {
        other.parts.iter().all(|&(h, m)| self.mask(h).contains_all(m))
    }
    /// Number of GPUs per host, in order of the hosts: `[4, 4]`.
    pub fn counts(&self) -> Vec<usize> {
        self.parts.iter().map(|p| p.1.count()).collect()
    }
    /// Number of GPUs per host, largest first; see [`split`].
    pub fn split(&self) -> String {
        split(&self.counts())
    }
}

/// Maximum number of hosts of a split that lists every host.
const SPLIT_HOSTS_NAMED_MAX: usize = 4;

/// Number of GPUs per host as text, largest first: `4+4`, `6+2`. With more than four hosts, hosts with equal numbers
/// are written as HOSTSxGPUS: `64x4` is 64 hosts with 4 GPUs each, `30x8+6+2x5` is 33 hosts. O(hosts log hosts).
pub fn split(counts: &[usize]) -> String {
    let mut counts = counts.to_vec();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let run = |run: &[usize]| match run.len() {
        1 => run[0].to_string(),
        n if counts.len() > SPLIT_HOSTS_NAMED_MAX => format!("{n}x{}", run[0]),
        _ => run.iter().map(usize::to_string).collect::<Vec<_>>().join("+"),
    };
    counts.chunk_by(|a, b| a == b).map(run).collect::<Vec<_>>().join("+")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subsets_are_complete_and_distinct() {
        let all: Vec<_> = GpuMask(0b1011).subsets().collect();
        assert_eq!(all.len(), 7);
        assert!(all.windows(2).all(|w| w[0] < w[1]));
        assert!(all.iter().all(|m| GpuMask(0b1011).contains_all(*m)));
    }

    #[test]
    fn an_allocation_is_the_same_whatever_the_order_it_was_given_in() {
        let a = Allocation::new([(HostId(1), GpuMask(3)), (HostId(0), GpuMask(4)), (HostId(1), GpuMask(8))]);
        let b = Allocation::new([(HostId(0), GpuMask(4)), (HostId(1), GpuMask(11)), (HostId(2), GpuMask(0))]);
        assert_eq!(a, b);
        assert_eq!(a.split(), "3+1");
        assert_eq!(a.gpu_count(), 4);
    }

    #[test]
    fn long_splits_count_hosts_with_the_same_number_of_gpus() {
        assert_eq!(split(&[]), "");
        assert_eq!(split(&[8]), "8");
        assert_eq!(split(&[4, 2, 4, 4]), "4+4+4+2");
        assert_eq!(split(&[4; 5]), "5x4");
        assert_eq!(split(&[4; 64]), "64x4");
        assert_eq!(split(&[5, 8, 6, 8, 5, 8]), "3x8+6+2x5");
    }
}
