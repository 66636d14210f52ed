//! The number of GPUs that the hosts of a list can give at every level.

use super::candidates::mix;
use super::levels::Levels;

/// For one floor: the number of hosts of each kind that can give each number of GPUs, at every level.
pub(super) struct HostsByCountAndLevel {
    pub stride: usize,
    kinds: usize,
    /// `[level][kind][cap]`: number of hosts whose largest count is `cap`.
    hosts: Vec<u32>,
    /// `[level][kind][count]`: number of hosts that can give `count`, whatever their other counts.
    exactly: Vec<u32>,
}

impl HostsByCountAndLevel {
    /// Without hosts.
    pub fn empty(levels: &Levels) -> HostsByCountAndLevel {
        let (stride, kinds) = (levels.stride, levels.kinds);
        let hosts = vec![0; (levels.count() + 2) * kinds * stride];
        HostsByCountAndLevel { stride, kinds, exactly: hosts.clone(), hosts }
    }

    /// Counts the hosts of a list above a floor. O(hosts x counts + levels x kinds x counts).
    pub fn count(&mut self, levels: &Levels, list: &[u32], above: &[u16]) {
        let HostsByCountAndLevel { stride, kinds, hosts, exactly } = self;
        let (stride, kinds) = (*stride, *kinds);
        hosts.fill(0);
        exactly.fill(0);
        let at = |level: usize, kind: u8, cap: usize| (level * kinds + usize::from(kind)) * stride + cap;
        for &i in list {
            let i = i as usize;
            let kind = levels.rows[i].kind;
            let row = &above[i * stride..(i + 1) * stride];
            // In descending counts, a cap matters only if it is reached at a higher level than all before.
            let mut reached = 0;
            for cap in (1..stride).rev() {
                let level = usize::from(row[cap]);
                if level == 0 {
                    continue;
                }
                exactly[at(level, kind, cap)] += 1;
                if level > reached {
                    // From `level` down to `reached + 1` the cap is `cap`.
                    hosts[at(level, kind, cap)] = hosts[at(level, kind, cap)].wrapping_add(1);
                    hosts[at(reached, kind, cap)] = hosts[at(reached, kind, cap)].wrapping_sub(1);
                    reached = level;
                }
            }
        }
        // Sums the changes to totals, from the highest level down.
        let width = kinds * stride;
        for table in [hosts, exactly] {
            for level in (1..=levels.count()).rev() {
                let (lower, upper) = table.split_at_mut((level + 1) * width);
                let sums = lower[level * width..].iter_mut().zip(&upper[..width]);
                sums.for_each(|(n, more)| *n = n.wrapping_add(*more));
            }
        }
    }

    /// Identifies the capacity of these host types at a level.
    pub fn signature(&self, level: usize, kinds: u32) -> u64 {
        let from = level * self.kinds * self.stride;
        (0..self.kinds * self.stride)
            .filter(|j| kinds >> (j / self.stride) & 1 == 1 && self.hosts[from + j] > 0)
            .fold(0, |h, j| mix(h, (j as u64) << 32 | u64::from(self.hosts[from + j])))
    }

    /// Number of hosts of these kinds that can give `count` GPUs at a level.
    pub fn exactly(&self, level: usize, kinds: u32, count: usize) -> usize {
        let of_kind = |t: usize| self.exactly[(level * self.kinds + t) * self.stride + count] as usize;
        (0..self.kinds).filter(|t| kinds >> t & 1 == 1).map(of_kind).sum()
    }

    /// The smallest number of hosts of these kinds that gives `k` GPUs at a level, and the number of such hosts.
    pub fn fewest(&self, level: usize, kinds: u32, k: usize) -> Option<(usize, usize)> {
        let (mut left, mut hosts, mut all) = (k, 0, 0);
        for cap in (1..self.stride).rev() {
            let n: usize = (0..self.kinds)
                .filter(|t| kinds >> t & 1 == 1)
                .map(|t| self.hosts[(level * self.kinds + t) * self.stride + cap] as usize)
                .sum();
            all += n;
            if left > 0 {
                let take = n.min(left.div_ceil(cap));
                hosts += take;
                left = left.saturating_sub(take * cap);
            }
        }
        (left == 0).then_some((hosts, all))
    }
}
