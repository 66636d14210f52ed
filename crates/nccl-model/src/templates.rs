//! Recorded searches of the real library on hosts of the catalog.
//!
//! The search on a host depends only on the visible GPUs and on whether the communicator spans several hosts. A few
//! recorded searches per host type therefore cover all communicators. `cargo run -p nccl-model --example templates`
//! records them into `templates/`. Sets of GPUs with the same links between GPUs and to NICs, in the same order, share
//! one record; see [`Signature`].

use crate::machines::HostMachine;
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

/// One recorded search of the real library.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RecordedSearch {
    /// The visible GPUs, by their index on the host.
    pub gpus: Vec<u8>,
    /// True if the communicator spanned several hosts.
    pub several_hosts: bool,
    /// The releases that gave this result.
    pub releases: Vec<Version>,
    /// The graphs. They name GPUs and NICs by index on the host.
    pub graphs: Vec<Graph>,
}

/// All recorded searches of one host type.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HostTemplates {
    /// Name in the catalog.
    pub host_type: String,
    /// The searches.
    pub searches: Vec<RecordedSearch>,
}

/// The input of a search: the links between the visible GPUs and to the NICs next to them, in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Signature {
    compute_capability: u16,
    /// PCIe generation and lanes, NVLink rate in Mbit/s, true if the switches reduce (NVLink SHARP).
    links: (u8, u8, u64, bool),
    gpus: Vec<PathKind>,
    nics: Vec<(u64, Vec<PathKind>)>,
    several_hosts: bool,
}

/// The GPUs and NICs of a host that a search sees. Positions in recorded graphs are indices into these lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VisibleDevices {
    /// Visible GPUs, ascending.
    pub gpus: Vec<u8>,
    /// NICs next to these GPUs, ascending.
    pub nics: Vec<u8>,
    /// The NICs next to every GPU of the host, as bit masks.
    nearest: Vec<u32>,
}

impl VisibleDevices {
    /// The GPUs of a mask and the NICs nearest to them. O(GPUs x NICs).
    pub fn of(host: &HostType, mask: GpuMask) -> VisibleDevices {
        let touched = host.nics_touched(mask);
        VisibleDevices {
            gpus: mask.iter().map(|g| g as u8).collect(),
            nics: (0..host.nics.len()).filter(|n| touched >> n & 1 == 1).map(|n| n as u8).collect(),
            nearest: (0..host.gpu_count()).map(|g| host.nearest_nics(g)).collect(),
        }
    }

    /// True if a NIC of the host is among the NICs nearest to a GPU.
    pub fn adjacent(&self, gpu: u8, nic: u8) -> bool {
        self.nearest.get(usize::from(gpu)).is_some_and(|set| set >> nic & 1 == 1)
    }
}

impl Signature {
    /// True if the communicator spans several hosts.
    pub fn several_hosts(&self) -> bool {
        self.several_hosts
    }

    /// The signature of a set of GPUs of a host. O(GPUs x (GPUs + NICs)).
    pub fn of(host: &HostType, mask: GpuMask, several_hosts: bool) -> Signature {
        let places = VisibleDevices::of(host, mask);
        // Behind NVSwitches a GPU reaches far NICs through the GPUs next to those NICs, at any distance.
        let switched = host.nvlink.is_some_and(|n| n.switched);
        let adjacent = |nic: usize, gpu: usize| match host.nics[nic].gpu_paths[gpu] {
            _ if switched && host.nearest_nics(gpu) >> nic & 1 == 0 => PathKind::Sys,
            path => path,
        };
        let nvlink = host.nvlink.map_or((0, false), |n| ((n.link_rate.gbit_per_s() * 1000.0) as u64, n.multicast));
        let all = |f: &dyn Fn(usize) -> PathKind| places.gpus.iter().map(|&g| f(usize::from(g))).collect::<Vec<_>>();
        Signature {
            compute_capability: HostMachine::of(host).map_or(0, |m| m.compute_capability),
            links: (host.pcie.generation, host.pcie.lanes, nvlink.0, nvlink.1),
            gpus: places.gpus.iter().flat_map(|&a| all(&|b| host.gpu_paths[usize::from(a)][b])).collect(),
            nics: places
                .nics
                .iter()
                .map(|&n| {
                    let nic = &host.nics[usize::from(n)];
                    ((nic.line_rate.gbit_per_s() * 1000.0) as u64, all(&|g| adjacent(usize::from(n), g)))
                })
                .collect(),
            several_hosts,
        }
    }
}

/// The graphs of a host.
#[derive(Clone, Debug, PartialEq)]
pub struct HostGraphs {
    /// The graphs. GPUs and NICs are positions in [`VisibleDevices`].
    pub graphs: Vec<Graph>,
    /// True if the graphs were recorded from the wanted minor release.
    pub checked: bool,
}

type SearchesBySignature = HashMap<Signature, Vec<(Vec<Version>, Arc<HostGraphs>)>>;

static RECORDED: LazyLock<SearchesBySignature> = LazyLock::new(|| {
    let mut known = SearchesBySignature::new();
    for file in FILES {
        let Ok(templates) = serde_json::from_str::<HostTemplates>(file) else { continue };
        let Some(host) = topology::catalog::host_type(&templates.host_type) else { continue };
        for search in templates.searches {
            let mask = GpuMask::from_indices(search.gpus.iter().map(|&g| usize::from(g)));
            let signature = Signature::of(&host, mask, search.several_hosts);
            let Some(graphs) = positions(&search.graphs, &VisibleDevices::of(&host, mask)) else { continue };
            known.entry(signature).or_default().push((search.releases, Arc::new(HostGraphs { graphs, checked: true })));
        }
    }
    known
});

/// Converts indices on the host to positions; `None` if a graph names a device that is not visible.
pub(crate) fn positions(graphs: &[Graph], places: &VisibleDevices) -> Option<Vec<Graph>> {
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

/// The recorded graphs for a signature, from the nearest recorded release; `None` if no release is recorded. O(records).
pub fn find_recorded(version: Version, signature: &Signature) -> Option<Arc<HostGraphs>> {
    let records = RECORDED.get(signature)?;
    let same = |v: &Version| (v.major, v.minor) == (version.major, version.minor);
    // Order of preference: the same patch, another patch of the minor release, the nearest minor release.
    let far = |v: &Version| match () {
        _ if *v == version => 0,
        _ if same(v) => 1,
        _ => 2 + (i32::from(v.minor) - i32::from(version.minor)).unsigned_abs(),
    };
    let (releases, found) = records.iter().min_by_key(|(releases, _)| releases.iter().map(far).min())?;
    if releases.iter().any(same) {
        return Some(found.clone());
    }
    Some(Arc::new(HostGraphs { checked: false, ..(**found).clone() }))
}

/// The recorded graphs for a set of GPUs of a host, as [`find_recorded`].
pub fn find_recorded_on(
    version: Version,
    host: &HostType,
    mask: GpuMask,
    several_hosts: bool,
) -> Option<Arc<HostGraphs>> {
    find_recorded(version, &Signature::of(host, mask, several_hosts))
}

/// Names of the host types with recorded searches.
pub fn host_types() -> Vec<String> {
    FILES.iter().filter_map(|f| serde_json::from_str::<HostTemplates>(f).ok()).map(|t| t.host_type).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_recorded_search_is_read_and_found_again() {
        for file in FILES {
            let templates: HostTemplates = serde_json::from_str(file).expect("a template file");
            let host = topology::catalog::host_type(&templates.host_type).expect("a host type of the catalog");
            for search in templates.searches {
                let mask = GpuMask::from_indices(search.gpus.iter().map(|&g| usize::from(g)));
                let found = find_recorded(search.releases[0], &Signature::of(&host, mask, search.several_hosts))
                    .expect("found");
                assert!(found.checked);
                assert_eq!(Some(&found.graphs), positions(&search.graphs, &VisibleDevices::of(&host, mask)).as_ref());
            }
        }
    }
}
