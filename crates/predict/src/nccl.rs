//! NCCL's own decisions as the physics between hosts: predictions from a cluster file alone (cold start), and a prior
//! for learning.
//!
//! If the real library's searches on every host of a candidate were recorded ([`nccl_model::templates`]), the bandwidth
//! between hosts is that of NCCL's own rings and trees. Otherwise `fabric` gives the estimate.

use crate::bound::{Bounds, Limit, Memo};
use nccl_model::{CallLimit as NcclLimit, Communicator, GraphSource, HostCache, LoadConstants};
use serde::{Deserialize, Serialize};
use std::str::FromStr;
use topology::nccl::Version;
use topology::{Bytes, Cluster, Collective, GpuMask, HostId};

/// Releases whose decisions between hosts differ; the first is assumed if the release is unknown.
///
/// Release 2.28 changed how channels are copied and when rings exchange NICs. Between 2.22 and 2.28, and since 2.28,
/// nothing relevant changed. Most frameworks of 2025 ship 2.27.
pub const RELEASES: [Version; 2] =
    [Version { major: 2, minor: 27, patch: None }, Version { major: 2, minor: 32, patch: None }];
/// Minimum number of multi-host readings for choosing the release by fit.
const READINGS_MIN: usize = 8;
/// Message sizes of a cold start, which has no measured sizes.
pub const COLD_SIZES: [Bytes; 5] = [Bytes::kib(64), Bytes::mib(1), Bytes::mib(16), Bytes::mib(256), Bytes::gib(2)];
/// Relative standard deviation of a single prediction of a cold start. On the published table the median error is 1 to
/// 4 % and the 90th percentile 6 to 12 % (`cargo run -p nccl-model --example accuracy`); other systems differ.
pub const COLD_SD: f64 = 0.12;

/// The network as a given NCCL release uses it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct NcclNetwork {
    /// The release.
    pub release: Version,
    /// True if the shipped constants of loads are not used: they were fitted on a published table, and must not be used
    /// to evaluate models on that table.
    #[serde(default)]
    pub unfitted: bool,
}

impl NcclNetwork {
    /// True if `nccl-model` models the release.
    pub(crate) fn is_modelled(&self) -> bool {
        nccl_model::releases::is_modelled(self.release)
    }

    fn constants(&self, cluster: &Cluster) -> LoadConstants {
        if self.unfitted { LoadConstants::unfitted() } else { LoadConstants::of(cluster.network.class) }
    }

    /// The communicator of hosts in this order; `None` if a host's search was not recorded, or if NCCL does not decide.
    fn communicator(
        &self,
        cache: &mut HostCache,
        cluster: &Cluster,
        order: &[(HostId, GpuMask)],
    ) -> Option<Communicator> {
        let c = Communicator::build_with(cache, self.release, cluster, order).ok()?;
        c.members().iter().all(|m| m.source != GraphSource::Searched).then_some(c)
    }

    /// Bus bandwidth between hosts, GB/s. `None`: the caller uses the physics of `fabric`.
    pub(crate) fn busbw_gb_per_s(
        &self,
        cache: &mut HostCache,
        cluster: &Cluster,
        order: &[(HostId, GpuMask)],
        collective: Collective,
        size: Bytes,
    ) -> Option<f64> {
        let c = self.communicator(cache, cluster, order)?;
        let busbw = c.busbw_with(collective, size.0, &self.constants(cluster))?.busbw.gb_per_s();
        (busbw.is_finite() && busbw > 0.0).then_some(busbw)
    }

    /// The part that limits the bandwidth between hosts.
    pub(crate) fn limit(
        &self,
        cluster: &Cluster,
        order: &[(HostId, GpuMask)],
        collective: Collective,
        size: Bytes,
    ) -> Option<Limit> {
        let c = self.communicator(&mut HostCache::default(), cluster, order)?;
        let busbw = c.busbw_with(collective, size.0, &self.constants(cluster))?;
        Some(match busbw.limit {
            NcclLimit::Nic { host, .. } | NcclLimit::CrossingNics { host, .. } => Limit::Nic { host },
            NcclLimit::Channels { channels } => Limit::Network { name: format!("NCCL's {channels} channels") },
            NcclLimit::NvLink => Limit::Network { name: "NVLinks below NVLSTree".into() },
            NcclLimit::Latency => Limit::Latency,
        })
    }

    /// The release that the readings name; otherwise the one that explains them best; otherwise the first of
    /// [`RELEASES`].
    pub(crate) fn of<'a>(
        named: impl Iterator<Item = &'a str>,
        readings: &[crate::calibrate::CalibrationReading],
        base: Bounds<'_>,
        unfitted: bool,
    ) -> NcclNetwork {
        let mut names: Vec<Version> = named.filter_map(|n| Version::from_str(n).ok()).collect();
        names.sort();
        // The median release: readings of several releases in one store are rare.
        if let Some(&release) = names.get(names.len() / 2) {
            let named = NcclNetwork { release, unfitted };
            if named.is_modelled() {
                return named;
            }
        }
        if readings.len() < READINGS_MIN {
            return NcclNetwork { release: RELEASES[0], unfitted };
        }
        let networks = RELEASES.map(|release| NcclNetwork { release, unfitted });
        let [old, new] = networks.map(|n| distances(readings, Bounds { nccl: Some(&n), ..base }).iter().sum::<f64>());
        if new < old { networks[1] } else { networks[0] }
    }

    /// True if NCCL's decisions predict the readings better than the physics without them. A common offset is ignored.
    /// The constants of that physics were fitted to these readings, and a fit of `p` constants to `n` readings appears
    /// better on them by a factor of about `(n + p) / (n - p)`; the comparison corrects for this.
    pub(crate) fn explains_more(&self, readings: &[crate::calibrate::CalibrationReading], base: Bounds<'_>) -> bool {
        if readings.len() < READINGS_MIN {
            return false;
        }
        let nccl = distances(readings, Bounds { nccl: Some(self), ..base });
        let physics = distances(readings, Bounds { nccl: None, ..base });
        let sane = || nccl.iter().zip(&physics).filter(|(a, b)| a.min(**b) < ODD);
        let (n, p) = (sane().count() as f64, crate::calibrate::CONSTANTS as f64);
        let optimism = if n > p { (n + p) / (n - p) } else { f64::INFINITY };
        sane().map(|d| d.0).sum::<f64>() < optimism * sane().map(|d| d.1).sum::<f64>()
    }
}

/// Maximum distance of a reading from its bound that counts. A reading this far from both bounds is implausible and
/// does not affect the choice.
const ODD: f64 = 0.5;

/// Distance of every reading from its bound, after the common offset is removed: `|ln(busbw / bound) - offset|`, at
/// most [`ODD`].
fn distances(readings: &[crate::calibrate::CalibrationReading], base: Bounds<'_>) -> Vec<f64> {
    let mut memo = (Bytes(0), Memo::default());
    let mut off: Vec<f64> = Vec::with_capacity(readings.len());
    for r in readings {
        if memo.0 != r.size {
            memo = (r.size, Memo::default());
        }
        let bound = Bounds { size: r.size, ..base }.of(&r.parts, &mut memo.1).bound_gb_per_s;
        off.push((r.busbw_gb_per_s / bound).ln());
    }
    let middle = if off.is_empty() { 0.0 } else { stats::upper_median(&off) };
    off.iter().map(|v| (v - middle).abs().min(ODD)).collect()
}
