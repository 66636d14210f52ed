//! What NCCL's search finds on hosts of the catalog, as the real library found it.
//!
//! A host's search depends on nothing but its own visible GPUs (and on whether the communicator spans hosts), so a handful of recorded
//! searches per host type rebuild any communicator. Recorded by `cargo run -p nccl-model --example templates`, kept in `templates/`.
//! Sets of GPUs that look alike (same links among them and to the NICs beside them, in order) share one record: see [`Signature`].

use crate::machines::Machine;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};
use topology::nccl::{Graph, Version};
use topology::{GpuMask, HostType, PathKind};

/// The recorded files.
const FILES: &[&str] = &[
    include_str!("../templates/a800.json"),
    include_str!("../templates/dgx-a100.json"),
    include_str!("../templates/gb200-tray.json"),
    include_str!("../templates/h100-4gpu.json"),
    include_str!("../templates/hgx-b200.json"),
    include_str!("../templates/hgx-h100.json"),
];

/// One search of the real library.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Recorded {
    /// GPUs that were visible, by their index on the host.
    pub gpus: Vec<u8>,
    /// The communicator spanned several hosts.
    pub several_hosts: bool,
    /// Releases that found exactly this.
    pub releases: Vec<Version>,
    /// What was found; GPUs and NICs by their index on the host.
    pub graphs: Vec<Graph>,
}

/// All recorded searches of one type of host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Templates {
    /// Name in the catalog.
    pub host_type: String,
    /// The searches.
    pub searches: Vec<Recorded>,
}

/// What a search depends on: the links among the visible GPUs, and the NICs beside them, in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Signature {
    compute_capability: u16,
    /// Generation and lanes of PCIe, NVLink rate in Mbit/s, whether it reduces.
    links: (u8, u8, u64, bool),
    gpus: Vec<PathKind>,
    nics: Vec<(u64, Vec<PathKind>)>,
    several_hosts: bool,
}

/// Places of GPUs and NICs on the host that positions in a template stand for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// Visible GPUs, ascending.
    pub gpus: Vec<u8>,
    /// NICs beside them, ascending.
    pub nics: Vec<u8>,
    /// The NICs beside every GPU of the host, as bit sets.
    nearest: Vec<u32>,
}

impl Places {
    /// The GPUs of a mask and the NICs nearest to them. O(GPUs x NICs).
    pub fn of(host: &HostType, mask: GpuMask) -> Places {
        let touched = host.nics_touched(mask);
        Places {
            gpus: mask.iter().map(|g| g as u8).collect(),
            nics: (0..host.nics.len()).filter(|n| touched >> n & 1 == 1).map(|n| n as u8).collect(),
            nearest: (0..host.gpu_count()).map(|g| host.nearest_nics(g)).collect(),
        }
    }

    /// Is a NIC of the host among those nearest to a GPU of it?
    pub fn beside(&self, gpu: u8, nic: u8) -> bool {
        self.nearest.get(usize::from(gpu)).is_some_and(|set| set >> nic & 1 == 1)
    }
}

impl Signature {
    /// True where the communicator spans several hosts.
    pub fn several_hosts(&self) -> bool {
        self.several_hosts
    }

    /// Of a set of GPUs of a host. O(GPUs x (GPUs + NICs)).
    pub fn of(host: &HostType, mask: GpuMask, several_hosts: bool) -> Signature {
        let places = Places::of(host, mask);
        // Behind NVSwitches a GPU reaches far NICs through the GPUs beside them, wherever these are.
        let switched = host.nvlink.is_some_and(|n| n.switched);
        let beside = |nic: usize, gpu: usize| match host.nics[nic].gpu_paths[gpu] {
            _ if switched && host.nearest_nics(gpu) >> nic & 1 == 0 => PathKind::Sys,
            path => path,
        };
        let nvlink = host.nvlink.map_or((0, false), |n| ((n.link_rate.gbit_per_s() * 1000.0) as u64, n.multicast));
        let all = |f: &dyn Fn(usize) -> PathKind| places.gpus.iter().map(|&g| f(usize::from(g))).collect::<Vec<_>>();
        Signature {
            compute_capability: Machine::of(host).map_or(0, |m| m.compute_capability),
            links: (host.pcie.generation, host.pcie.lanes, nvlink.0, nvlink.1),
            gpus: places.gpus.iter().flat_map(|&a| all(&|b| host.gpu_paths[usize::from(a)][b])).collect(),
            nics: places
                .nics
                .iter()
                .map(|&n| {
                    let nic = &host.nics[usize::from(n)];
                    ((nic.line_rate.gbit_per_s() * 1000.0) as u64, all(&|g| beside(usize::from(n), g)))
                })
                .collect(),
            several_hosts,
        }
    }
}

/// What is known of the graphs of a host.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The graphs; GPUs and NICs are positions in [`Places`].
    pub graphs: Vec<Graph>,
    /// Recorded from the very release that was asked for (or another patch of it).
    pub checked: bool,
}

type Known = HashMap<Signature, Vec<(Vec<Version>, Arc<Found>)>>;

static KNOWN: LazyLock<Known> = LazyLock::new(|| {
    let mut known = Known::new();
    for file in FILES {
        let Ok(templates) = serde_json::from_str::<Templates>(file) else { continue };
        let Some(host) = topology::catalog::host_type(&templates.host_type) else { continue };
        for search in templates.searches {
            let mask = GpuMask::from_indices(search.gpus.iter().map(|&g| usize::from(g)));
            let signature = Signature::of(&host, mask, search.several_hosts);
            let Some(graphs) = positions(&search.graphs, &Places::of(&host, mask)) else { continue };
            known.entry(signature).or_default().push((search.releases, Arc::new(Found { graphs, checked: true })));
        }
    }
    known
});

/// Indices on the host become positions. `None` if a graph names a device that is not among the places.
pub(crate) fn positions(graphs: &[Graph], places: &Places) -> Option<Vec<Graph>> {
    let to = |list: &[u8], at: &[u8]| -> Option<Vec<u8>> {
        list.iter().map(|v| at.iter().position(|p| p == v).map(|p| p as u8)).collect()
    };
    let mut graphs = graphs.to_vec();
    for channel in graphs.iter_mut().flat_map(|g| &mut g.channels) {
        channel.gpus = to(&channel.gpus, &places.gpus)?;
        channel.nics = to(&channel.nics, &places.nics)?;
    }
    Some(graphs)
}

/// What the real library found on hosts that look like this one; the nearest release where this one was not recorded.
pub fn lookup(version: Version, signature: &Signature) -> Option<Arc<Found>> {
    let records = KNOWN.get(signature)?;
    let same = |v: &Version| (v.major, v.minor) == (version.major, version.minor);
    // The same patch, else another of the same minor release, else the nearest minor release.
    let far = |v: &Version| match () {
        _ if *v == version => 0,
        _ if same(v) => 1,
        _ => 2 + (i32::from(v.minor) - i32::from(version.minor)).unsigned_abs(),
    };
    let (releases, found) = records.iter().min_by_key(|(releases, _)| releases.iter().map(far).min())?;
    if releases.iter().any(same) {
        return Some(found.clone());
    }
    Some(Arc::new(Found { checked: false, ..(**found).clone() }))
}

/// What was recorded of a set of GPUs of a host.
pub fn recorded(version: Version, host: &HostType, mask: GpuMask, several_hosts: bool) -> Option<Arc<Found>> {
    lookup(version, &Signature::of(host, mask, several_hosts))
}

/// Names of the host types with recorded searches.
pub fn host_types() -> Vec<String> {
    FILES.iter().filter_map(|f| serde_json::from_str::<Templates>(f).ok()).map(|t| t.host_type).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_recorded_search_is_read_and_found_again() {
        for file in FILES {
            let templates: Templates = serde_json::from_str(file).expect("a template file");
            let host = topology::catalog::host_type(&templates.host_type).expect("a host type of the catalog");
            for search in templates.searches {
                let mask = GpuMask::from_indices(search.gpus.iter().map(|&g| usize::from(g)));
                let found =
                    lookup(search.releases[0], &Signature::of(&host, mask, search.several_hosts)).expect("found");
                assert!(found.checked);
                assert_eq!(Some(&found.graphs), positions(&search.graphs, &Places::of(&host, mask)).as_ref());
            }
        }
    }
}
