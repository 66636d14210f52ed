//! linkwise's loops with the real NCCL library on a cluster in a box.
//!
//! Every host is a network namespace with shaped rails (`netns`), every rank a process with an unmodified NCCL library whose kernels are played
//! on the CPU (`nccl-bench`). The times are measured; the hardware is simulated. No result says how fast a GPU is.
//!
//! - [`tuning`]: mode `adaptive` beside every arm alone, with NCCL's own settings in place of linkwise.
//! - [`placement`]: measure, fit and place with the command, beside an even split.

pub mod placement;
pub mod table;
pub mod tuning;

use nccl_bench::bytes::{BytesCall, BytesSpec, HostPlace};
use nccl_bench::{BenchError, SimulatedNode};
use netns::NetBox;
use std::path::{Path, PathBuf};
use topology::{Cluster, Host, HostId, catalog};

/// A run of `gpus` GPUs on each of the first `hosts` hosts of a box, over NCCL's sockets on all rails.
///
/// # Errors
/// An unknown release.
pub fn spec(
    netbox: &NetBox,
    hosts: &[(usize, u8)],
    release: &str,
    calls: Vec<BytesCall>,
) -> Result<BytesSpec, BenchError> {
    let of_type = catalog::host_type("hgx-h100").expect("the catalog has it");
    let cluster = Cluster { name: "box".into(), types: vec![of_type], ..Cluster::default() };
    let version = release.parse().map_err(|e| BenchError::Spec(format!("`{release}` is no release of NCCL: {e}")))?;
    let mut s = BytesSpec::new(cluster, Vec::new(), version);
    for (number, (host, gpus)) in hosts.iter().enumerate() {
        s.cluster.hosts.push(Host { name: format!("host{host}"), ..Host::default() });
        s.nodes.push(SimulatedNode { host: HostId(number as u32), gpus: (0..*gpus).collect(), nvlink_domain: None });
        let prefix = ["ip", "netns", "exec", netbox.namespace(*host)].map(str::to_owned).to_vec();
        s.places.push(HostPlace { prefix, ..HostPlace::default() });
    }
    let rails: Vec<&str> = (0..netbox.nics(0)).map(|r| netbox.interface(0, r)).collect();
    s.interfaces = rails.join(",");
    s.calls = calls;
    Ok(s)
}

/// The folder in which cargo puts the workspace's programs and the NCCL plugin, seen from this program or test; `None` if `file` is missing there.
pub fn built(file: &str) -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    program.ancestors().skip(1).take(2).find(|folder| folder.join(file).exists()).map(Path::to_owned)
}
