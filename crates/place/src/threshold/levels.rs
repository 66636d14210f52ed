//! All options of all hosts on one scale, and the options that pass a threshold.

use crate::options::HostOptions;
use predict::{BandwidthModel, HostShare};
use std::collections::BTreeMap;
use topology::{GpuMask, HostId};

/// Maximum number of distinct intra bandwidths that thresholds distinguish; larger sets are divided into as many
/// quantiles.
pub const LEVELS_MAX: usize = 256;
/// Maximum number of NIC rates that serve as a floor.
const NIC_FLOORS_MAX: usize = 24;
/// Maximum number of host types that searches distinguish; the others count as one.
pub const KINDS_MAX: usize = 8;

/// A host with its options.
#[derive(Clone, Debug)]
pub struct Row {
    /// The host.
    pub host: HostId,
    /// Index of its type among the offered types.
    pub kind: u8,
    /// Free GPUs.
    pub free: u8,
    /// The model's correction for this single host, as a logarithm.
    pub effect: f64,
}

/// The minimum for every share of a candidate, in addition to the intra threshold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Floor {
    /// NIC rate, GB/s.
    pub nic_gb_per_s: f64,
    /// Number of GPUs per host.
    pub count: u8,
}

/// One option: a number of GPUs of a host.
#[derive(Clone, Copy, Debug)]
struct Entry {
    count: u8,
    nic_gb_per_s: f64,
    level: u16,
}

/// The options above one floor.
pub struct Above {
    /// The floor.
    pub floor: Floor,
    /// For every row and count, the best level, or 0 if there is none: `levels[row * stride + count]`.
    pub levels: Vec<u16>,
    /// The best level of a row at any count.
    pub tops: Vec<u16>,
    /// The smallest NIC rate by kind, GB/s; infinite if a kind has no option.
    pub thinnest: [f64; KINDS_MAX],
}

/// All options, with their intra bandwidth as a level from 1 (worst) upwards.
pub struct Levels<'o> {
    /// The hosts.
    pub rows: Vec<Row>,
    /// The largest count of any option, plus one.
    pub stride: usize,
    /// Number of kinds of hosts.
    pub kinds: usize,
    options: &'o [HostOptions],
    entries: Vec<Entry>,
    /// Entries of row `i` are `starts[i]..starts[i + 1]`.
    starts: Vec<u32>,
    /// The smallest intra bandwidth of each level; `edges[0]` is level 1.
    edges: Vec<f64>,
}

impl<'o> Levels<'o> {
    /// The levels of free GPUs and their hosts' options, in the same order; `kind_of` gives the type of a host.
    /// O(options log options).
    pub fn new(
        free: &[(HostId, GpuMask)],
        options: &'o [HostOptions],
        model: &dyn BandwidthModel,
        kind_of: &dyn Fn(HostId) -> usize,
    ) -> Self {
        let parts = || options.iter().flat_map(|o| o.by_count.iter().flatten());
        let mut values: Vec<f64> = parts().map(|p| p.intra_gb_per_s).filter(|v| v.is_finite()).collect();
        values.sort_unstable_by(f64::total_cmp);
        values.dedup();
        let edges: Vec<f64> = if values.len() <= LEVELS_MAX {
            values
        } else {
            (0..LEVELS_MAX).map(|i| values[i * values.len() / LEVELS_MAX]).collect()
        };
        let mut kinds: Vec<usize> = Vec::new();
        let mut rows = Vec::with_capacity(free.len());
        let mut entries = Vec::with_capacity(free.len() * 8);
        let mut starts = vec![0];
        let mut stride = 1;
        for (&(host, mask), o) in free.iter().zip(options) {
            let t = kind_of(host);
            let kind = kinds.iter().position(|k| *k == t).unwrap_or_else(|| {
                kinds.push(t);
                kinds.len() - 1
            });
            stride = stride.max(o.by_count.len() + 1);
            rows.push(Row {
                host,
                kind: kind.min(KINDS_MAX - 1) as u8,
                free: mask.count() as u8,
                effect: model.host_effect(host),
            });
            for p in o.by_count.iter().flatten() {
                // One GPU has no link inside its host: it passes every threshold.
                let level = edges.partition_point(|e| *e <= p.intra_gb_per_s).max(1);
                entries.push(Entry { count: p.count, nic_gb_per_s: p.nic_gb_per_s, level: level as u16 });
            }
            starts.push(entries.len() as u32);
        }
        Levels { rows, stride, kinds: kinds.len().min(KINDS_MAX), options, entries, starts, edges }
    }

    /// Number of levels.
    pub fn count(&self) -> usize {
        self.edges.len().max(1)
    }
    /// The minimum intra bandwidth of parts of a level or above, GB/s.
    pub fn edge_gb_per_s(&self, level: usize) -> f64 {
        self.edges.get(level - 1).copied().unwrap_or(f64::INFINITY)
    }

    /// The floors worth trying for parts of at least `count_min` and at most `count_max` GPUs, lowest first.
    pub fn floors(&self, count_min: u8, count_max: usize) -> Vec<Floor> {
        let fits = |e: &&Entry| e.count >= count_min && usize::from(e.count) <= count_max;
        let mut nics: Vec<f64> = self.entries.iter().filter(fits).map(|e| e.nic_gb_per_s).collect();
        nics.sort_unstable_by(f64::total_cmp);
        nics.dedup();
        if nics.len() > NIC_FLOORS_MAX {
            nics = (0..NIC_FLOORS_MAX).map(|i| nics[i * nics.len() / NIC_FLOORS_MAX]).collect();
        }
        let lowest = nics.first().copied().unwrap_or(0.0);
        let counts = count_min + 1..=(self.stride - 1).min(count_max) as u8;
        let by_nic = nics.iter().map(|&nic_gb_per_s| Floor { nic_gb_per_s, count: count_min });
        by_nic.chain(counts.map(|count| Floor { nic_gb_per_s: lowest, count })).collect()
    }

    /// The options above a floor. O(options).
    pub fn above(&self, floor: Floor, allowed_counts: u32) -> Above {
        let mut levels = vec![0u16; self.rows.len() * self.stride];
        let mut thinnest = [f64::INFINITY; KINDS_MAX];
        let mut tops = Vec::with_capacity(self.rows.len());
        for ((i, r), row) in self.rows.iter().enumerate().zip(levels.chunks_exact_mut(self.stride)) {
            let thin = &mut thinnest[usize::from(r.kind)];
            let mut top = 0;
            for e in &self.entries[self.starts[i] as usize..self.starts[i + 1] as usize] {
                if e.nic_gb_per_s >= floor.nic_gb_per_s && e.count >= floor.count {
                    *thin = thin.min(e.nic_gb_per_s);
                    if allowed_counts >> e.count & 1 == 1 {
                        let slot = &mut row[usize::from(e.count)];
                        *slot = (*slot).max(e.level);
                        top = top.max(e.level);
                    }
                }
            }
            tops.push(top);
        }
        Above { floor, levels, tops, thinnest }
    }

    /// For every kind, count and NIC rate, the two hosts with the highest intra bandwidth, in order of kind, count and
    /// rate. O(options).
    pub fn champions(&self, counts: u32) -> Vec<&'o HostShare> {
        #[allow(clippy::type_complexity)] // used in the next lines only; a name would hide it
        let mut best: BTreeMap<(u8, u8, u64), (f64, [Option<(f64, &'o HostShare)>; 2])> = BTreeMap::new();
        for (r, o) in self.rows.iter().zip(self.options) {
            for p in o.by_count.iter().flatten().filter(|p| counts >> p.count & 1 == 1) {
                let worth = p.intra_gb_per_s * r.effect.exp();
                let slot = best.entry((r.kind, p.count, p.nic_gb_per_s.to_bits())).or_default();
                if worth <= slot.0 {
                    continue;
                }
                let two = &mut slot.1;
                if two[0].is_none_or(|f| worth > f.0) {
                    two[1] = two[0];
                    two[0] = Some((worth, p));
                } else {
                    two[1] = Some((worth, p));
                }
                slot.0 = two[1].map_or(0.0, |s| s.0);
            }
        }
        best.into_values().flat_map(|s| s.1).flatten().map(|s| s.1).collect()
    }

    /// The part of a row with `count` GPUs that passes a level and a floor; among equal NICs the one with the highest
    /// intra bandwidth.
    pub fn part(&self, row: usize, count: usize, level: usize, floor: Floor, sides: Sides) -> Option<&'o HostShare> {
        let edge = if self.edges.is_empty() { f64::NEG_INFINITY } else { self.edge_gb_per_s(level) };
        let fits = |p: &&HostShare| p.intra_gb_per_s >= edge && p.nic_gb_per_s >= floor.nic_gb_per_s;
        self.options[row].by_count.get(count.checked_sub(1)?)?.iter().filter(fits).max_by(|a, b| {
            let nics = a.nic_gb_per_s.total_cmp(&b.nic_gb_per_s);
            let nics = if sides == Sides::Fattest { nics } else { nics.reverse() };
            nics.then(a.intra_gb_per_s.total_cmp(&b.intra_gb_per_s))
        })
    }
}

/// The choice among several NIC sets above a floor. More NICs never carry less, but NCCL spreads its channels evenly
/// only over hosts with the same number of NICs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sides {
    /// As many NICs as possible.
    Fattest,
    /// No more NICs than the floor needs.
    Thinnest,
}
