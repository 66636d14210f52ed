//! The model's own search, for hosts without a recorded search. It covers hosts with NVSwitches and one NIC next to
//! every GPU.
//!
//! NCCL tries speeds from a list, highest first, and takes the first speed at which the links of every GPU carry the
//! channels. If the result is fewer than five channels at 25 GB/s or more, NCCL splits each channel in two. Behind
//! NVSwitches all GPUs are equal, so NCCL's recursion over paths reduces to sums of link rates. Other hosts (PCIe only,
//! direct meshes, shared NICs) get no graphs, so building a communicator fails. `examples/check.rs` compares the search
//! with the library on hosts without a record.

use crate::machines::HostMachine;
use crate::templates::{HostGraphs, VisibleDevices};
use std::sync::Arc;
use topology::nccl::{Channel, Graph, GraphKind, PathType, Version};
use topology::{GpuMask, HostType, PathKind};

/// Channel speeds inside a host, GB/s, for compute capability below 9.0, 9.x, and 10.0 or later.
const INTRA: [&[f64]; 3] = [
    &[40.0, 30.0, 20.0, 18.0, 15.0, 12.0, 10.0, 9.0, 7.0, 6.0, 5.0, 4.0, 3.0],
    &[60.0, 50.0, 40.0, 30.0, 24.0, 20.0, 15.0, 12.0, 11.0, 6.0, 3.0],
    &[90.0, 80.0, 70.0, 60.0, 50.0, 45.0, 40.0, 30.0, 24.0, 20.0, 19.0, 18.0],
];
/// Channel speeds between hosts, GB/s, for the same generations.
const INTER: [&[f64]; 3] = [
    &[48.0, 30.0, 28.0, 24.0, 20.0, 18.0, 15.0, 12.0, 10.0, 9.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.4, 1.2, 0.24, 0.12],
    &[48.0, 45.0, 42.0, 40.0, 30.0, 24.0, 22.0, 20.0, 17.5, 15.0, 12.0, 6.0, 3.0, 2.4, 1.2, 0.24, 0.12],
    &[
        96.0, 86.0, 80.0, 48.0, 45.1, 42.0, 40.0, 30.0, 24.0, 22.0, 20.0, 17.5, 15.0, 12.0, 6.0, 3.0, 2.4, 1.2, 0.24,
        0.12,
    ],
];
/// NCCL's rate of one NVLink, GB/s.
const LINK: [f64; 3] = [20.0, 20.6, 40.1];
/// Maximum number of channels of a search.
const CHANNELS_MAX: usize = 16;
/// Minimum speed of channels that are split in two.
const SPLIT_GB_PER_S: f64 = 25.0;
/// Highest share of a GPU's NVLinks that all heads together use. Recorded hosts have graphs at 0.887, but not at 0.906.
const NVLS_SHARE: f64 = 0.9;
/// NCCL's pattern numbers.
const BALANCED_TREE: u8 = 1;
const TREE: u8 = 3;
const RING: u8 = 4;
const NVLS: u8 = 5;

/// The properties of a host that the search uses.
struct SearchHost {
    /// Number of visible GPUs.
    gpus: usize,
    generation: usize,
    /// Rate of one GPU's NVLinks, GB/s.
    nvlink: f64,
    /// Rate of a NIC or of its PCIe link, whichever is lower, GB/s.
    nic: f64,
    multicast: bool,
}

impl SearchHost {
    fn of(host: &HostType, mask: GpuMask) -> Option<SearchHost> {
        let machine = HostMachine::of(host)?;
        let generation = match machine.compute_capability {
            80 => 0,
            90..100 => 1,
            100..110 => 2,
            _ => return None,
        };
        let fabric = host.nvlink.filter(|n| n.switched)?;
        let places = VisibleDevices::of(host, mask);
        let alone = |(i, g): (usize, &u8)| {
            let near = host.nearest_nics(usize::from(*g));
            near.count_ones() == 1 && places.nics.get(i).is_some_and(|n| near == 1 << n)
        };
        let one_each = places.nics.len() == places.gpus.len() && places.gpus.iter().enumerate().all(alone);
        let links =
            host.gpu_paths.iter().flatten().find_map(|p| if let PathKind::NvLink(n) = p { Some(*n) } else { None });
        let rate =
            places.nics.iter().map(|n| host.nics[usize::from(*n)].line_rate.gb_per_s()).fold(f64::INFINITY, f64::min);
        // NCCL uses round PCIe rates: 12, 24, 48, 96 GB/s for sixteen lanes of generation 3, 4, 5, 6.
        let pcie = 12.0
            * f64::from(1u32 << host.pcie.generation.clamp(3, 6).saturating_sub(3))
            * f64::from(host.pcie.lanes.min(16))
            / 16.0;
        one_each.then_some(SearchHost {
            gpus: places.gpus.len(),
            generation,
            nvlink: f64::from(links?) * LINK[generation],
            nic: rate.min(pcie),
            multicast: fabric.multicast && generation > 0,
        })
    }

    /// True if the search splits each channel into two at half the speed.
    fn split(&self, channels: usize, speed: f64) -> bool {
        speed >= SPLIT_GB_PER_S
            && 2 * channels <= CHANNELS_MAX
            && !(self.generation > 0 && speed < 50.0 && channels > 4)
    }

    fn graph(kind: GraphKind, pattern: u8, intra: f64, inter: f64, channels: Vec<Channel>) -> Graph {
        Graph {
            kind,
            pattern,
            cross_nic: 0,
            channel_count: channels.len(),
            bw_intra_gb_per_s: intra,
            bw_inter_gb_per_s: inter,
            latency_inter_us: 0.0,
            type_intra: PathType::Nvl,
            type_inter: PathType::Pix,
            same_channels: false,
            channels,
        }
    }

    /// The graphs of a communicator on one host: as many channels as the links carry at the highest speed.
    fn alone(&self) -> Vec<Graph> {
        let n = self.gpus as f64;
        let plain: Vec<u8> = (0..self.gpus as u8).collect();
        let fill = |total: f64| {
            let best = INTRA[self.generation].iter().copied().find(|s| *s <= total)?;
            let (mut channels, mut speed) = ((total / best) as usize, best);
            if speed >= SPLIT_GB_PER_S {
                (channels, speed) = (2 * channels, speed / 2.0);
            }
            Some((channels.min(CHANNELS_MAX), speed))
        };
        let Some((channels, speed)) = fill(self.nvlink) else { return Vec::new() };
        let row = |n: usize| vec![Channel { gpus: plain.clone(), nics: Vec::new() }; n];
        let mut ring = SearchHost::graph(GraphKind::Ring, RING, speed, speed, row(channels));
        ring.same_channels = true;
        // The GPUs at the ends of a chain use half of their links' rate, so with few GPUs the same channels run faster.
        let most = self.nvlink * n / (n - 1.0) / channels as f64;
        let tree_speed = INTRA[self.generation].iter().copied().find(|s| *s <= most && (self.gpus < 4 || *s <= speed));
        let mut tree = SearchHost::graph(
            GraphKind::Tree,
            BALANCED_TREE,
            tree_speed.unwrap_or(speed),
            tree_speed.unwrap_or(speed),
            row(channels),
        );
        tree.same_channels = self.gpus > 3;
        let mut graphs = vec![ring, tree];
        graphs.extend(self.nvls(INTRA[self.generation], INTRA[self.generation][0], false));
        graphs
    }

    /// The NVLS graph: every GPU is the head of a channel.
    fn nvls(&self, ladder: &[f64], inter: f64, nics: bool) -> Option<Graph> {
        let n = self.gpus as f64;
        let total = NVLS_SHARE * self.nvlink;
        let intra = ladder.iter().copied().find(|s| *s <= inter && n * s <= total)?;
        (self.multicast && self.gpus >= 2).then(|| {
            let heads = (0..self.gpus as u8)
                .map(|g| Channel { gpus: vec![g], nics: if nics { vec![g, g] } else { Vec::new() } });
            SearchHost::graph(GraphKind::Nvls, NVLS, intra, inter, heads.collect())
        })
    }

    /// The graphs of a host in a communicator of several hosts: one channel in and out of every NIC, split in two if
    /// there are few channels. If rings do not fit, they leave by the next NIC.
    fn among_others(&self) -> Vec<Graph> {
        let k = self.gpus;
        let Some(inter) = INTER[self.generation].iter().copied().find(|s| *s <= self.nic) else { return Vec::new() };
        // A ring in and out of one NIC crosses every GPU's links once, including the last hop back to the NIC.
        let crosses = k.is_multiple_of(2) && k as f64 * inter > self.nvlink && (k - 1) as f64 * inter <= self.nvlink;
        if k as f64 * inter > self.nvlink && !crosses && k > 1 {
            return Vec::new(); // NCCL would try lower speeds and other orders, which are not modelled
        }
        let copies = if self.split(k, inter) { 2 } else { 1 };
        let speed = inter / copies as f64;
        let around = |c: usize, step: usize| (0..k).map(|i| ((c + i * step) % k) as u8).collect::<Vec<u8>>();
        let search = |ways: &dyn Fn(usize) -> Channel| (0..k * copies).map(|c| ways(c % k)).collect::<Vec<Channel>>();
        let rings = search(&|c| match c {
            _ if !crosses => Channel { gpus: around(c, k.max(2) - 1), nics: vec![c as u8; 2] },
            _ if c.is_multiple_of(2) => Channel { gpus: around(c, k - 1), nics: vec![c as u8, (c + 1) as u8] },
            _ => Channel { gpus: around(c, 1), nics: vec![c as u8, (c - 1) as u8] },
        });
        let trees = search(&|c| Channel { gpus: around(c, 1), nics: vec![c as u8; 2] });
        let mut ring = SearchHost::graph(GraphKind::Ring, RING, speed, speed, rings);
        if crosses {
            ring.cross_nic = 2;
        } else if k > 1 {
            ring.type_inter = PathType::Pxn;
        }
        // Trees inside a host may run at twice the speed between hosts if the links carry it.
        let fast = INTER[self.generation].iter().copied().find(|s| {
            *s <= 2.0 * speed && (k - 1) as f64 * copies as f64 * s <= self.nvlink * 2.0 * (k as f64 - 1.0) / k as f64
        });
        let intra = if k == 1 { 2.0 * speed } else { fast.unwrap_or(speed).max(speed) };
        let mut tree = SearchHost::graph(GraphKind::Tree, TREE, intra, speed, trees);
        if k == 1 {
            for g in [&mut ring, &mut tree] {
                (g.type_intra, g.same_channels) = (PathType::Loc, true);
            }
        }
        let mut graphs = vec![ring, tree];
        graphs.extend(self.nvls(INTER[self.generation], inter, true));
        graphs
    }
}

/// The expected result of NCCL's search; no graphs for a host that this search does not cover. O(GPUs x channels).
pub fn search_graphs(_version: Version, host: &HostType, mask: GpuMask, several_hosts: bool) -> Arc<HostGraphs> {
    let graphs = match SearchHost::of(host, mask) {
        Some(h) if several_hosts => h.among_others(),
        Some(h) if h.gpus > 1 => h.alone(),
        _ => Vec::new(),
    };
    Arc::new(HostGraphs { graphs, checked: false })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::templates::find_recorded_on;

    /// True if two graphs have the same bandwidths, channels and order of GPUs.
    fn same(a: &Graph, b: &Graph) -> bool {
        let of = |g: &Graph| {
            (
                g.pattern,
                g.cross_nic,
                g.channel_count,
                g.bw_intra_gb_per_s,
                g.bw_inter_gb_per_s,
                g.type_intra,
                g.type_inter,
            )
        };
        let ways = |g: &Graph| {
            g.channels
                .iter()
                .map(|c| (c.gpus.clone(), c.nics.first().copied(), c.nics.last().copied()))
                .collect::<Vec<_>>()
        };
        of(a) == of(b) && (a.kind == GraphKind::Nvls || ways(a) == ways(b))
    }

    #[test]
    fn the_search_finds_most_recorded_graphs_of_switched_hosts() {
        let release = Version::new(2, 28, 9);
        let (mut found, mut all) = (0, 0);
        for host in ["hgx-h100", "hgx-b200"] {
            let ty = topology::catalog::host_type(host).unwrap();
            for several in [false, true] {
                for n in if several { 1 } else { 2 }..=8 {
                    let real = find_recorded_on(release, &ty, GpuMask::first(n), several).unwrap();
                    let own = search_graphs(release, &ty, GpuMask::first(n), several);
                    for g in &real.graphs {
                        all += 1;
                        let hit = own.graphs.iter().any(|o| o.kind == g.kind && same(o, g));
                        found += usize::from(hit);
                        if !hit {
                            let o = own.graphs.iter().find(|o| o.kind == g.kind);
                            println!(
                                "{host} {n} several {several} {}: library {} x {}/{} p{} x{}, model {:?}",
                                g.kind,
                                g.channel_count,
                                g.bw_intra_gb_per_s,
                                g.bw_inter_gb_per_s,
                                g.pattern,
                                g.cross_nic,
                                o.map(|o| (
                                    o.channel_count,
                                    o.bw_intra_gb_per_s,
                                    o.bw_inter_gb_per_s,
                                    o.pattern,
                                    o.cross_nic
                                ))
                            );
                        }
                    }
                }
            }
        }
        println!("{found} of {all} graphs");
        assert!(found * 100 >= all * 80, "{found} of {all}");
    }
}
