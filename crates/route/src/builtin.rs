//! Built-in clusters for routing, with measured rates instead of nominal ones.

use topology::catalog;
use topology::{Bandwidth, Cluster, Host, Network};

/// Names of the built-in clusters; [`cluster`] describes them.
pub const NAMES: [&str; 5] = ["mesh4", "cube8", "rails2x4", "rails4x8", "rails64x8"];

/// Measured NVLink rate of a pair of H100 in a mesh of four, six links (NIMBLE's testbed).
const MESH_GB_PER_S: f64 = 120.0;
/// Measured rate of a 400 Gbit/s NIC (NIMBLE's testbed).
const NIC_GB_PER_S: f64 = 45.1;
/// Rate of a GPU's port to the NVSwitches: 18 links of 20.6 GB/s, NCCL's figure for Hopper.
const SWITCH_GB_PER_S: f64 = 18.0 * 20.6;

/// Maximum number of hosts of a built-in cluster: 1,024 ranks at 8 GPUs per host.
const HOSTS_MAX: usize = 128;

/// A built-in cluster by name; `None` for an unknown name.
///
/// - `mesh4`: 4 H100, 120 GB/s per pair, no network.
/// - `cube8`: a DGX-1 with V100: zero, one or two links of 25 GB/s per pair.
/// - `rails2x4`: two `mesh4` with one 45.1 GB/s NIC per GPU.
/// - `rails4x8`, `rails64x8`: 4 and 64 HGX H100, 370.8 GB/s from each GPU to the switches, eight NICs of 45.1 GB/s.
/// - `railsHx4`, `railsHx8`: the same with H hosts, 1 to 128.
pub fn cluster(name: &str) -> Option<Cluster> {
    let (hosts, type_name, pair, nics) = match name {
        "mesh4" => (1, "h100-4gpu", Some(MESH_GB_PER_S), false),
        "cube8" => (1, "dgx1-v100", None, false),
        _ => {
            let (hosts, gpus) = name.strip_prefix("rails")?.split_once('x')?;
            let hosts: usize = hosts.parse().ok().filter(|h| (1..=HOSTS_MAX).contains(h))?;
            match gpus {
                "4" => (hosts, "h100-4gpu", Some(MESH_GB_PER_S), true),
                "8" => (hosts, "hgx-h100", Some(SWITCH_GB_PER_S), true),
                _ => return None,
            }
        }
    };
    let mut kind = catalog::host_type(type_name)?;
    let n = kind.gpu_count();
    if let Some(rate) = pair {
        let cell = |i, j| if i == j { Bandwidth::ZERO } else { Bandwidth::from_gb_per_s(rate) };
        kind.p2p = Some((0..n).map(|i| (0..n).map(|j| cell(i, j)).collect()).collect());
    }
    if nics {
        kind.nics.iter_mut().for_each(|nic| nic.line_rate = Bandwidth::from_gb_per_s(NIC_GB_PER_S));
    } else {
        kind.nics.clear();
    }
    Some(Cluster {
        name: name.into(),
        types: vec![kind],
        hosts: (0..hosts).map(|h| Host { name: format!("n{h}"), ..Host::default() }).collect(),
        network: Network::default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_cluster_passes_the_check() {
        for name in NAMES {
            let c = cluster(name).unwrap();
            c.check().unwrap();
            assert_eq!(c.name, name);
        }
        for bad in ["mesh5", "rails0x8", "rails129x8", "rails2x5", "rails-2x4", "railsx4", "rails2x"] {
            assert_eq!(cluster(bad), None, "{bad}");
        }
    }
}
