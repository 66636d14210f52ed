//! What healthy hosts show: the share of outliers among readings, and the levels of hosts.

use super::{Given, Item, Search};
use crate::infer::{LEVELS, OUTLIER_SHARES, level_sd, ln_density};
use topology::HostId;

/// Minimum share of outliers that lie more than `OUTLIER_SEEN_SDS` below expectation.
const OUTLIERS_SEEN: f64 = 0.7;
/// A host stands out with this many low readings, if they are half of its readings.
const LOW_OF_HOST_MIN: usize = 3;
/// Maximum size of a residual, in standard deviations, in the estimate of a host's level.
const LEVEL_SDS: f64 = 3.0;

impl Search {
    /// The share of outliers among the readings of a kind: of low ones that no host stands out by. On a restless site two
    /// outliers often have a host in common, which is then no defect. O(readings x hosts).
    pub(super) fn outlier_share(&self, kind: usize) -> f64 {
        let [usual, ..] = OUTLIER_SHARES;
        let judged = |x: &Item| x.kind() == kind && x.residual.is_some();
        let stands_out = |list: &Vec<(u32, u32)>| {
            let of_kind = list.iter().filter_map(|i| self.items[i.0 as usize].as_ref()).filter(|x| judged(x));
            let (all, low) = of_kind.fold((0, 0), |(n, low), x| (n + 1, low + usize::from(x.is_low())));
            low >= LOW_OF_HOST_MIN && 2 * low >= all
        };
        let stands_out: Vec<bool> = self.by_host.iter().map(stands_out).collect();
        let (mut all, mut low) = (0u32, 0u32);
        for (_, x) in self.items().filter(|x| judged(x.1)) {
            all += 1;
            let parts = x.evidence.allocation.parts();
            low +=
                u32::from(x.is_low() && x.evidence.repetitions < 2 && !parts.iter().any(|p| stands_out[p.0.index()]));
        }
        let reached = |s: &f64| {
            f64::from(low) > OUTLIERS_SEEN * s * f64::from(all) && f64::from(low) > usual * f64::from(all) + 1.0
        };
        OUTLIER_SHARES.into_iter().rfind(reached).unwrap_or(usual)
    }

    /// The standard deviation of hosts' levels over all multi-host readings.
    pub(super) fn level_sd_now(&self) -> f64 {
        let of_host = |list: &Vec<(u32, u32)>| {
            let items = list.iter().filter_map(|i| self.items[i.0 as usize].as_ref());
            let several = items.filter(|x| x.residual.is_some() && x.evidence.allocation.host_count() > 1);
            let (n, sum, sd) = several.fold((0usize, 0.0, 0.0f64), |(n, sum, _), x| {
                // Limited, so that one extreme reading does not move a host's level.
                (n + 1, sum + x.left().clamp(-LEVEL_SDS * x.sd(), LEVEL_SDS * x.sd()), x.sd())
            });
            (n > 0).then(|| (sum / n as f64, sd * sd / n as f64))
        };
        let levels: Vec<(f64, f64)> = self.by_host.iter().filter_map(of_host).collect();
        level_sd(&levels)
    }

    /// By reading of a host: the log-likelihood gain if the host's own level explains this and all later multi-host
    /// readings. Readings of one host share its level, so a hundred slightly low readings are not a hundred independent
    /// signs of a defect.
    pub(super) fn level_gains(&self, h: HostId, given: &Given) -> Vec<f64> {
        let list = &self.by_host[h.index()];
        let mut sums = [0.0; LEVELS.len()];
        let mut out = vec![0.0; list.len()];
        for (rank, &(i, _)) in list.iter().enumerate().rev() {
            let several = |x: &Item| x.residual.is_some() && x.evidence.allocation.host_count() > 1;
            let counts = self.items[i as usize].as_ref().is_some_and(several);
            for (sum, z) in sums.iter_mut().zip(LEVELS) {
                if counts {
                    let at = i as usize;
                    let off = given.left[at] - z * given.level_sd;
                    *sum += ln_density(off, given.sd[at], given.outliers[at]) - given.ln_density[at];
                }
                out[rank] = f64::max(out[rank], *sum - 0.5 * z * z);
            }
        }
        out
    }
}
